# SPDX-License-Identifier: BSD-3-Clause
"""Migrations that others reported, with `simlib migrate`'s prediction of each from its reported inputs.

No value in `simlib.vmm` was chosen by these migrations before their first run, apart from those of
`studies.converge.published`. A migration is predicted with the settings that it had (plan ``current``), from options as
the command reads them. The sources of 33 of the 54 do not state the dirty rate or the link, and the table contains an
assumption.

First run, on 2026-11-29: 41 of 47 verdicts right, no verdict for 7 migrations, 15 of 45 times within their interval.
Wrong verdicts: four guests under a dirty limit completed, and so did a multifd migration whose author writes that it
almost did not converge; with QEMU 1.6 a migration did not complete, because it reached a tenth of its 20 Gbit/s. Likely
reasons of the 30 times outside:

- 10, guests that write and then sleep, under a dirty limit or auto-converge of QEMU 5.0: they do not catch up while
  they are throttled. Write faults, which slow a guest down while its pages are logged, are not part of the pre-copy
  model.
- 10, over localhost: the speed at which QEMU finds pages of zeros has no uncertainty in the model, and the link of
  seven is not stated.
- 4, auto-converge with long passes: older versions of QEMU synchronise only at the end of a pass, and QEMU 10.0, whose
  rules simlib applies, every 5 s. For 30 GB in 32 GB, 588 s were published and 141 to 152 s predicted; without this
  rule, 477 to 557 s would be.
- 2, dirty rings of 65,536 entries, which took three to ten times as long as the bitmap; and one time just outside.
- 3, others: QEMU 1.6, and random writes of 800 MB/s with and without a dirty ring: six runs took 48 to 70 s, and 31 to
  42 s were predicted. A workload that is given as a model has no uncertainty.

Since then, `simlib.vmm` has the rules of QEMU before 9.2, the time to log a page in a dirty ring, and a spread of
links, scans for zeros (from the mail of 2 August 2022) and given models: 39 of 42 verdicts are right, and 25 of 45
times within their interval.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from simlib._lib.errors import InputError
from simlib._lib.parallel import Progress
from simlib.measurements import load
from simlib.vmm.guest import RunningGuest
from simlib.vmm.plans import SURE, Plan, PlanOutcome, simulate_plan
from simlib.vmm.read_inputs import read_options
from simlib.vmm.targets import Targets

TABLE = "migrations-reported"

_YEAR_OF_9_2 = "2024"
"""Year at whose end QEMU 9.2 was released."""

DRAWS = 64
"""Number of sampled guests, as `simlib migrate` samples by default."""

YES, NO, NONE = VERDICTS = ("completes", "does not complete", "none")
"""Verdicts: at least `SURE` of the sampled guests complete, at most 1 - `SURE`, or neither."""

_OPTIONS = ("link", "vcpus", "ring_entries", "cpu_percent", "version")


def migrations() -> pd.DataFrame:
    """Return one row for each reported migration, with the median ``total_s`` of its runs.

    >>> rows = migrations()
    >>> rows.loc["random-24g", ["total_s", "runs"]].astype(float).tolist()
    [53.0, 6.0]
    """
    runs = load(TABLE).frame.groupby("migration", sort=False)
    return runs.first().assign(total_s=runs["total_ms"].median() / 1e3, runs=runs.size())


def guest_of(row: Any) -> RunningGuest:
    """Return the guest of a row of `migrations`, read as `simlib migrate` reads its options.

    Raises `InputError` if an input is missing or impossible.

    >>> guest_of(migrations().loc["random-24g"]).description
    '8 vCPUs, 24 GiB, 10Gbit/s; 204,800 writes/s over 20 GiB'
    """
    texts = {name: _text(row[name]) for name in _OPTIONS}
    texts |= {"memory": f"{_text(row['memory_kib'])}KiB", "ring": texts.pop("ring_entries")}
    share, version = texts.pop("cpu_percent"), texts.pop("version")
    if not version and str(row["date"])[:4] < _YEAR_OF_9_2:
        version = "9.1"  # or older
    texts["qemu"] = version if row["vmm"] == "qemu" else ""
    texts["cpu"] = f"{share}%" if share else ""
    settings, rate = _text(row["settings"]).split(), _text(row["dirty"])
    if not texts["vcpus"] and not any(name in " ".join(settings) for name in ("auto-converge", "dirty-limit")):
        texts["vcpus"] = "1"  # without throttling, the number of vCPUs has no effect
    lists = {"dirty": [rate] if rate else [], "current": settings}
    zeros = None if pd.isna(row["zero_kib"]) else int(row["zero_kib"]) * 1024
    guest = read_options({**texts, **lists}, RunningGuest(vmm=row["vmm"], zeros=zeros))
    guest.check_complete()
    return guest


def _text(value: Any) -> str:
    """Return a cell as the text of an option; empty if it is missing."""
    return "" if pd.isna(value) or value == "" else value if isinstance(value, str) else f"{value:.15g}"


def judge(seed: int = 1, draws: int = DRAWS, progress: Progress | None = None) -> pd.DataFrame:
    """Predict all reported migrations, and compare them with their outcomes.

    Returns: one row for each migration: ``source``, ``inputs``, ``outcome``, ``total_s`` as published, ``share`` of the
    sampled guests that complete, ``verdict`` (one of `VERDICTS`), ``right`` (None without a verdict), ``low_s``,
    ``middle_s`` and ``high_s`` (5th, 50th and 95th percentile of the total time of those that complete), ``inside``
    (None if the migration did not complete), ``refused`` (the error, if simlib refuses the inputs). Migrations
    whose inputs are missing are left out.

    An ``active`` migration was not over when it was printed; its share counts the guests that complete by then.

    - `seed`, `draws`: as those of `simlib migrate`.
    """
    rows = migrations().query("inputs != 'missing'")
    judged = []
    for number, (name, row) in enumerate(rows.iterrows()):
        if progress is not None:
            progress(str(name), number / len(rows))
        reported = {"migration": name, **row[["source", "inputs", "outcome", "total_s"]]}
        try:
            guest = guest_of(row)
            plan = Plan("current", "", guest.settings)
            outcomes = simulate_plan(plan, guest, Targets(), guest.samples(draws, seed))
        except InputError as error:
            judged.append({**reported, "verdict": NONE, "refused": str(error)})
            continue
        judged.append({**reported, **_compare(outcomes, str(row["outcome"]), float(row["total_s"]))})
    frame = pd.DataFrame(judged).set_index("migration")
    return frame.assign(refused=frame["refused"].fillna("") if "refused" in frame else "")


def _compare(outcomes: list[PlanOutcome], outcome: str, total_s: float) -> dict[str, Any]:
    """Compare outcomes of the sampled guests with the reported one."""
    until = total_s if outcome == "active" else np.inf
    times = np.array([run.total_s for run in outcomes if run.completed and run.total_s <= until])
    share = len(times) / len(outcomes)
    verdict = YES if share >= SURE else NO if share <= 1 - SURE else NONE
    done = outcome == "completed"
    low, middle, high = np.quantile(times, [0.05, 0.5, 0.95]) if len(times) else (np.nan, np.nan, np.nan)
    return {
        "share": share, "verdict": verdict, "right": None if verdict == NONE else (verdict == YES) == done,
        "low_s": low, "middle_s": middle, "high_s": high, "inside": bool(low <= total_s <= high) if done else None,
    }  # fmt: skip


def score(judged: pd.DataFrame) -> pd.DataFrame:
    """Count right verdicts and times within their intervals, of all migrations, by inputs and by source.

    Returns: ``migrations``, ``verdicts`` given, ``right`` of them, ``completed`` migrations, ``inside`` of them.

    - `judged`: rows of `judge`.

    >>> rows = pd.DataFrame({"inputs": "stated", "source": "s", "right": [True, None], "inside": [False, None]})
    >>> score(rows).loc["all"].tolist()
    [2, 1, 1, 1, 0]
    """
    groups = {"all": judged}
    for column in ("inputs", "source"):
        groups |= {str(name): group for name, group in judged.groupby(column, sort=False)}
    counts = {
        name: (len(group), group["right"].notna().sum(), group["right"].eq(True).sum(),
               group["inside"].notna().sum(), group["inside"].eq(True).sum())
        for name, group in groups.items()
    }  # fmt: skip
    columns = ["migrations", "verdicts", "right", "completed", "inside"]
    return pd.DataFrame.from_dict(counts, orient="index", columns=columns).astype(int)
