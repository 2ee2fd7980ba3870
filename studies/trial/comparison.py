# SPDX-License-Identifier: BSD-3-Clause
"""Trials beside what is known otherwise: the lab's own collections, and two published outcomes."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from simlib._lib.parallel import Progress
from simlib.lab import Trial
from simlib.lab.hardware.prediction import on_hardware
from simlib.measurements import load
from studies.lab.switches import switch_effects
from studies.lockless import get_time, kernbench
from studies.migrations.drops import TABLE
from studies.x86.hosts import PUBLISHED_CHANGE, configurations


class PatchComparison(NamedTuple):
    """A number of a trial, and the same of an experiment of ``data/experiments/switches.toml``.

    - `settings`: the experiment's settings without the switch and with it.
    """

    trial: str
    mmu_mode: str
    cell: str
    of: str
    what: str
    experiment: str
    metric: str
    settings: tuple[str, str]


_ARCH = ("dirty_log_arch_lock=N", "dirty_log_arch_lock=Y")
_LOCKLESS = ("lockless_write_protect=N", "lockless_write_protect=Y")
_CHUNK = "eager_split_chunk=2097152 split_skip_levels"
_SPLIT = (f"{_CHUNK}=N, enable", f"{_CHUNK}=Y, enable")
OWN = (
    PatchComparison("arch-lock", "x86_64/shadow", "load", "clear", "time", "lock-inside", "clear_time_s", _ARCH),
    PatchComparison("arch-lock", "x86_64/shadow", "load", "vCPUs", "longest stall", "lock-inside", "longest_stall_s",
                    _ARCH),
    PatchComparison("lockless", "x86_64/shadow", "load", "clear", "time", "lockless-write-protect", "clear_time_s",
                    _LOCKLESS),
    PatchComparison("lockless", "x86_64/shadow", "load", "vCPUs", "longest stall", "lockless-write-protect",
                    "longest_stall_s", _LOCKLESS),
    PatchComparison("split-walk", "arm64/vhe", "blocks", "enable", "time", "split-arm64", "enable_hold_s", _SPLIT),
)  # fmt: skip
"""Numbers that trials and collections both have; where enabling splits, nearly all of its time is a hold."""


def own_patches(trials: dict[str, Trial]) -> pd.DataFrame:
    """Ratios that trials of bundled patches and the lab's collections both have.

    Returns: ``trial``, ``mmu_mode``, ``number``, ``tried`` (the ratio), ``low``, ``high``, ``collected`` (the same of
    other cells: their memory and vCPUs differ, so that only its direction and order have to agree).
    """
    rows = []
    for pair in OWN:
        frame = trials[pair.trial].frame()
        row = frame[(frame["mmu_mode"] == pair.mmu_mode) & (frame["cell"] == pair.cell)
                     & (frame["of"] == pair.of) & (frame["what"] == pair.what)].iloc[0]  # fmt: skip
        effects = switch_effects(pair.experiment).query("metric == @pair.metric")
        values = [float(effects[effects["setting"] == setting]["value"].iloc[0]) for setting in pair.settings]
        number = f"{pair.of}: {pair.what}"
        rows.append((pair.trial, pair.mmu_mode, number, row["ratio"], row["low"], row["high"], values[1] / values[0]))
    return pd.DataFrame(rows, columns=["trial", "mmu_mode", "number", "tried", "low", "high", "collected"])


def seed_001(trial: Trial, seed: int = 1, progress: Progress | None = None) -> pd.DataFrame:
    """Compare the April 2024 mail's nine changes with the model's from the trial's counts.

    Returns: ``configuration``, ``metric``, ``published``, ``predicted``, ``low``, ``high`` (percent), ``inside``.
    """
    result = on_hardware(trial, configurations(), vcpus=[16], seed=seed, progress=progress)
    frame, table = (
        result.frame.query("policy == 'with' and metric in @PUBLISHED_CHANGE"),
        load(TABLE).frame.set_index("configuration"),
    )
    rows = []
    for row in frame.to_dict("records"):
        number = int(row["workload"].rpartition("-")[2])
        published = float(table[PUBLISHED_CHANGE[row["metric"]]][number])
        ends = (row["change_percent"], row["change_low"], row["change_high"])
        rows.append((number, row["metric"], published, *ends, ends[1] <= published <= ends[2]))
    rows.sort(key=lambda row: (row[0], list(PUBLISHED_CHANGE).index(row[1])))
    return pd.DataFrame(rows, columns=["configuration", "metric", "published", "predicted", "low", "high", "inside"])


def seed_002(trial: Trial) -> pd.DataFrame:
    """Compare the 2013 series' time of GET after over before with the model's from the trial's counts.

    Returns: one row a guest: ``guest``, ``published`` (ratio), ``low``, ``high``: over what the mail does not state.
    """
    frame = trial.frame().query("mmu_mode == 'x86_64/shadow' and cell == 'parked'")
    page = frame.query("of == 'clear' and what == 'time a dirty page'").iloc[0]
    base, changed = float(page["base"]), float(page["changed"])
    walk = get_time.Walk(
        (base, float(page["base_low"]), float(page["base_high"])),
        (changed, float(page["changed_low"]), float(page["changed_high"])),
        int(page["runs"]),
    )
    published = kernbench.get_means().ratio
    spread = (
        get_time.simulate_settings(walk).groupby("guest", sort=False)["ratio_lab"].agg(["min", "max"]).reset_index()
    )
    spread = spread.rename(columns={"min": "low", "max": "high"})
    spread.insert(1, "published", published)
    return spread.assign(inside=(spread["low"] <= published) & (published <= spread["high"]))
