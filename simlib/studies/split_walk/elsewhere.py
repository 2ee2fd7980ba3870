# SPDX-License-Identifier: BSD-3-Clause
"""What the costs of `simlib.studies.split_walk.costs` say elsewhere: other walks, other pages, the lab, the barrier.

All are predictions: nothing here was fitted to but the lab's own costs, which are instructions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy import optimize

from simlib.measurements import load
from simlib.model.pagetable import SPLIT_WALKS
from simlib.model.quantities import format_size, parse_size
from simlib.model.scenario import Scenario
from simlib.simulation import run_scenario
from simlib.studies.split_walk.costs import BACKINGS, CASES, NAMES, TABLES, WalkFit, count_row, interval
from simlib.theory.split_walk import COSTS, Counts, EagerSplit, time


def walks_table(found: WalkFit) -> pd.DataFrame:
    """Ways to skip entries, beside the published one: change from the walk as it is, and from skipping levels.

    Returns: ``walk``, ``scenario``, ``backing``, ``change_percent``, ``low``, ``high``, ``slower_percent``,
    ``slower_low``, ``slower_high`` (against ``skip_levels``); guest pages of 4 KiB, 48 bits of address.
    """
    memory = TABLES[found.machine][1]
    rows = []
    for walk in SPLIT_WALKS[1:]:
        for scenario, backing in CASES:
            slot = EagerSplit(memory, BACKINGS[backing])
            paid = slot.enable if scenario == "enable" else slot.clear
            counts = {name: paid(name) for name in ("all", "skip_levels", walk)}
            rows.append((walk, scenario, backing, *found.predict(counts["all"], counts[walk]),
                         *found.predict(counts["skip_levels"], counts[walk])))  # fmt: skip
    columns = ["walk", "scenario", "backing", "change_percent", "low", "high", "slower_percent", "slower_low",
               "slower_high"]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def granules_table(found: WalkFit, other: WalkFit) -> pd.DataFrame:
    """What skipping the last level would change with other page sizes of the host.

    Costs of an entry and of a block are taken to be the same; guest pages are the host's.

    Returns: ``page_size``, ``block``, ``scenario``, ``backing``, ``change_percent``, ``low``, ``high``,
    ``other_percent``.

    Parameters
    ----------
    other : WalkFit
        Another reading, to see which predictions depend on it.
    """
    rows = []
    for page in (4096, 16384, 65536):
        for scenario, backing in CASES:
            if page > 4096 and backing == "hugetlb-1gb":
                continue  # stage 2 then maps the same blocks as with THP
            slot = EagerSplit(64 * 2**30, BACKINGS[backing], page, page)
            old, new = ((slot.enable(w) if scenario == "enable" else slot.clear(w)) for w in ("all", "skip_levels"))
            block = {"4k-already-split": page, "thp": page * (page // 8), "hugetlb-1gb": 2**30}[backing]
            name = backing.removeprefix("4k-")
            rows.append((format_size(page), format_size(block), scenario, name, *found.predict(old, new),
                         other.predict(old, new)[0]))  # fmt: skip
    columns = ["page_size", "block", "scenario", "backing", "change_percent", "low", "high", "other_percent"]
    return pd.DataFrame(rows, columns=columns)


LAB = EagerSplit(128 * 2**20, "thp", ipa_bits=40, chunk=2**21)
"""The lab's largest guest; the test's default mode has 40 bits of address (lib/guest_modes.c)."""

LAB_PHASES = ("enable", "clear[1]", "clear[2]", "clear")


def lab_times() -> pd.DataFrame:
    """Measured times of the lab's eager splits, as growth from its smallest guest to its largest.

    Returns: ``chunk`` (bytes), ``phase`` (of `LAB_PHASES` but the last), ``walk``, ``pages`` (by which the guest
    grows), ``measured_ns`` (instructions, by which the time grows).
    """
    frame = load("switches-ioctls").frame
    frame = frame[frame["experiment"] == "split-arm64"]
    rows = []
    for chunk in (2**21, 2**30):
        for walk, switch in (("all", "N"), ("skip_levels", "Y")):
            mine = frame[frame["switches"] == f"eager_split_chunk={chunk} split_skip_levels={switch}"]
            for phase, protection, name, number in (("enable", "enable", "enable", 0),
                                                    ("clear[1]", "initially_set", "clear", 1),
                                                    ("clear[2]", "initially_set", "clear", 2)):  # fmt: skip
                cells = mine[(mine["protection"] == protection) & (mine["name"] == name) & (mine["round"] == number)]
                sizes = [int(parse_size(size)) for size in cells["memory_per_vcpu"]]
                times = dict(zip(sizes, cells["total_time_ns"].tolist(), strict=True))
                small, large = min(sizes), max(sizes)
                rows.append((chunk, phase, walk, (large - small) // 4096, float(times[large] - times[small])))
    return pd.DataFrame(rows, columns=["chunk", "phase", "walk", "pages", "measured_ns"])


def lab_counts(phase: str, walk: str, memory: int = LAB.memory, chunk: int = 2**21) -> dict[str, int]:
    """What one of the lab's phases pays for.

    Parameters
    ----------
    phase : str
        ``enable``, ``clear[1]``, ``clear[2]``, or ``clear``: both.
    memory, chunk : int
        Bytes.
    """
    slot = EagerSplit(memory, "thp", ipa_bits=40, chunk=chunk)
    if phase == "enable":
        return dict(slot.enable(walk))
    both, first = slot.clear(walk, 2), slot.clear(walk, 1)
    chosen: Mapping[str, Counts] = {"clear": both, "clear[1]": first}
    if phase in chosen:
        return dict(chosen[phase])
    return {name: both[name] - first[name] for name in both}


def lab_costs() -> tuple[pd.Series, pd.DataFrame]:
    """The lab's own costs in instructions, from all its phases, and how well the counts explain them.

    Returns
    -------
    costs : Series
        Instructions, by `COSTS`.
    cells : DataFrame
        `lab_times` with ``model_ns`` and ``error``, relative.
    """
    cells = lab_times()
    rows = []
    for phase, walk, chunk in zip(cells["phase"], cells["walk"], cells["chunk"], strict=True):
        grown, small = (lab_counts(phase, walk, m * 2**20, min(chunk, m * 2**20)) for m in (128, 32))
        rows.append([grown[name] - small[name] for name in COSTS])
    counts, seen = np.array(rows, dtype=float), cells["measured_ns"].to_numpy(dtype=float)
    # Each cell counts by its relative error.
    found, _ = optimize.nnls(counts / seen[:, None], np.ones(len(seen)))
    model = counts @ found
    return pd.Series(found, COSTS), cells.assign(model_ns=model, error=model / seen - 1)


def lab_test(fits: Sequence[WalkFit]) -> pd.DataFrame:
    """The lab's change by skipping the last level, predicted from each machine's published changes.

    Returns: ``machine``, ``phase`` (``enable``, ``clear``), ``lab_percent`` (of instructions), ``predicted_percent``,
    ``low``, ``high``, ``inside``.
    """
    frame = load("switches-ioctls").frame
    frame = frame[(frame["experiment"] == "split-arm64") & (frame["memory_per_vcpu"] == "128M")]
    rows = []
    for found in fits:
        for phase, protection in (("enable", "enable"), ("clear", "initially_set")):
            cells = frame[(frame["protection"] == protection) & (frame["name"] == phase)]
            times = cells.groupby("switches")["total_time_ns"].sum()
            before, after = (times[f"eager_split_chunk={2**21} split_skip_levels={switch}"] for switch in "NY")
            lab = 100.0 * float(after) / float(before) - 100
            value, low, high = found.predict(lab_counts(phase, "all"), lab_counts(phase, "skip_levels"))
            rows.append((found.machine, phase, lab, value, low, high, bool(low <= lab <= high)))
    columns = ["machine", "phase", "lab_percent", "predicted_percent", "low", "high", "inside"]
    return pd.DataFrame(rows, columns=columns)


def barrier_table(found: WalkFit) -> pd.DataFrame:
    """What the barrier within the walk would have had to cost for the published fall of the time of CLEAR.

    It was executed once for each block that is split, since then once for each word: by the counts there are more of
    them. So one of the old ones must have cost at least as much as the fall, divided by the splits.

    Returns: ``backing``, ``before`` and ``after`` (barriers in two CLEARs), ``least_visits`` (the least that one of the
    old must cost, in visited entries), ``low``, ``high``, ``words`` (the same as a multiple of all that a word costs
    beside its visits, in which the new one is).
    """
    fall = load("arm64-split-walk-barrier").frame["reduction_percent"].iloc[0] / 100
    rows = []
    word = NAMES.index("clear_word")
    for backing in ("thp", "hugetlb-1gb"):
        counts = EagerSplit(TABLES[found.machine][1], BACKINGS[backing]).clear()
        row = np.array(count_row(counts), dtype=float)
        splits, words = counts["split_block"], counts["clear_word"]
        least = fall / (1 - fall) * (row @ found.costs) / splits
        low, high = interval(fall / (1 - fall) * (found.draws @ row) / splits)
        rows.append((backing, splits, words, float(least), low, high, float(least / found.costs[word])))
    return pd.DataFrame(rows, columns=["backing", "before", "after", "least_visits", "low", "high", "words"])


def engine_table(found: WalkFit, memory: int = 2**32, walk_entry: int = 5000) -> pd.DataFrame:
    """The six cases through the engine, with a parked vCPU, beside the closed arithmetic.

    Returns: ``scenario``, ``backing``, ``all_ms`` and ``skip_levels_ms`` (engine), ``apart_ps`` (the larger difference
    from the closed arithmetic), ``change_percent`` (engine, 4 KiB guest pages).

    Parameters
    ----------
    memory : int
        Bytes.
    walk_entry : int
        Picoseconds of a visit; relative changes do not tell it.
    """
    costs = {name: round(walk_entry * ratio) for name, ratio in zip(NAMES, found.costs, strict=True) if name in COSTS}
    rows = []
    for scenario, backing in CASES:
        slot = EagerSplit(memory, BACKINGS[backing])
        clears = scenario == "clear"
        seen, apart = [], []
        for walk in ("all", "skip_levels"):
            case = Scenario.parse(
                {"guest": {"memory": memory, "backing": BACKINGS[backing]},
                 "policy": {"eager_split": True, "split_walk": walk},
                 "workload": {"kind": "eager_split", "initially_set": clears, "iterations": 2 if clears else 1}}
            ).with_costs(guest_access="1ns", **costs)  # fmt: skip
            run = run_scenario(case).metrics["clear_dirty_log_time" if clears else "enable_time"]
            seen.append(run)
            apart.append(abs(round(run * 1e12) - time(slot.clear(walk) if clears else slot.enable(walk), costs)))
        rows.append((scenario, backing, 1e3 * seen[0], 1e3 * seen[1], max(apart), 100 * seen[1] / seen[0] - 100))
    columns = ["scenario", "backing", "all_ms", "skip_levels_ms", "apart_ps", "change_percent"]
    return pd.DataFrame(rows, columns=columns)
