# SPDX-License-Identifier: BSD-3-Clause
"""What the costs of `studies.split_walk.costs` say elsewhere: other walks, other pages, the lab, the barrier.

All are predictions: nothing here was fitted to but the lab's own costs, which are instructions.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import optimize

from simlib.analysis.simulate import run_scenario
from simlib.measurements import load
from simlib.model.costs import UNUSED
from simlib.model.pagetable import SPLIT_WALKS
from simlib.model.quantities import format_size, parse_size
from simlib.model.scenario import Scenario
from studies.split_walk.costs import BACKINGS, CASES, NAMES, TABLES, WalkFit, count_row, interval
from studies.split_walk.theory import COSTS, Counts, SplitCounts, time


def walks_table(found: WalkFit) -> pd.DataFrame:
    """Ways to skip entries, beside the published one: change from the walk as it is, and from skipping levels.

    Returns: ``walk``, ``scenario``, ``backing``, ``change_percent``, ``low``, ``high``, ``slower_percent``,
    ``slower_low``, ``slower_high`` (against ``skip_levels``); guest pages of 4 KiB, 48 bits of address.
    """
    rows = []
    for walk, (scenario, backing) in itertools.product(SPLIT_WALKS[1:], CASES):
        slot = SplitCounts(TABLES[found.machine][1], BACKINGS[backing])
        every, levels, mine = (slot.pays(scenario, name) for name in ("all", "skip_levels", walk))
        rows.append((walk, scenario, backing, *found.predict(every, mine), *found.predict(levels, mine)))
    columns = ["walk", "scenario", "backing", "change_percent", "low", "high", "slower_percent", "slower_low",
               "slower_high"]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def granules_table(found: WalkFit, other: WalkFit) -> pd.DataFrame:
    """What skipping the last level would change with other page sizes of the host.

    Costs of an entry and of a block are taken to be the same; guest pages are the host's.

    Returns: ``page_size``, ``block``, ``scenario``, ``backing``, ``change_percent``, ``low``, ``high``, and
    ``other_percent``: by another reading, to see which predictions depend on it.
    """
    rows = []
    for page, (scenario, backing) in itertools.product((4096, 16384, 65536), CASES):
        if page > 4096 and backing == "hugetlb-1gb":
            continue  # stage 2 then maps the same blocks as with THP
        slot = SplitCounts(64 * 2**30, BACKINGS[backing], page, page)
        old, new = (slot.pays(scenario, walk) for walk in ("all", "skip_levels"))
        block = {"4k-already-split": page, "thp": page * (page // 8), "hugetlb-1gb": 2**30}[backing]
        rows.append((format_size(page), format_size(block), scenario, backing.removeprefix("4k-"),
                     *found.predict(old, new), other.predict(old, new)[0]))  # fmt: skip
    columns = ["page_size", "block", "scenario", "backing", "change_percent", "low", "high", "other_percent"]
    return pd.DataFrame(rows, columns=columns)


LAB_PHASES = {"enable": ("enable", "enable", 0), "clear[1]": ("initially_set", "clear", 1),
              "clear[2]": ("initially_set", "clear", 2)}  # fmt: skip
"""Phases of the lab's experiment: protection, ioctl and round of the rows that have their times."""


def lab_rows() -> pd.DataFrame:
    """Times of the lab's eager splits, with ``bytes`` of the guest and the ``walk``."""
    rows = load("switches-ioctls").rows("experiment == 'split-arm64'")
    walk = rows["switches"].str.endswith("=Y").map({False: "all", True: "skip_levels"})
    chunk = rows["switches"].str.extract(r"eager_split_chunk=(\d+)", expand=False).astype(int)
    return rows.assign(bytes=rows["memory_per_vcpu"].map(parse_size), walk=walk, chunk=chunk)


def lab_times() -> pd.DataFrame:
    """Measured times of the lab's eager splits, as growth from its smallest guest to its largest.

    Returns: ``chunk`` (bytes), ``phase`` (of `LAB_PHASES`), ``walk``, ``pages`` (by which the guest grows),
    ``measured_ns`` (instructions, by which the time grows).
    """
    cells = lab_rows().set_index("bytes").groupby(["chunk", "walk", "protection", "name", "round"])["total_time_ns"]
    rows = []
    for chunk, walk, phase in itertools.product((2**21, 2**30), ("all", "skip_levels"), LAB_PHASES):
        times = cells.get_group((chunk, walk, *LAB_PHASES[phase])).sort_index()
        grown, measured = times.index[-1] - times.index[0], times.iloc[-1] - times.iloc[0]
        rows.append((chunk, phase, walk, grown // 4096, float(measured)))
    return pd.DataFrame(rows, columns=["chunk", "phase", "walk", "pages", "measured_ns"])


def lab_counts(phase: str, walk: str, memory: int = 128 * 2**20, chunk: int = 2**21) -> Counts:
    """What one of the lab's phases pays for, or both CLEARs (``clear``); by default of its largest guest.

    The test's default mode has 40 bits of address (lib/guest_modes.c).
    """
    slot = SplitCounts(memory, "thp", ipa_bits=40, chunk=chunk)
    both, first = slot.clear(walk, 2), slot.clear(walk, 1)
    second = {name: both[name] - first[name] for name in both}
    return {"enable": slot.enable(walk), "clear": both, "clear[1]": first, "clear[2]": second}[phase]


def lab_costs() -> tuple[pd.Series, pd.DataFrame]:
    """The lab's own costs in instructions, from all its phases, and how well the counts explain them.

    Returns: instructions, by `COSTS`; and `lab_times` with ``model_ns`` and ``error``, relative.
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
    cells = lab_rows().query(f"bytes == {128 * 2**20} and chunk == {2**21}")
    times = cells.groupby(["protection", "name", "walk"])["total_time_ns"].sum()
    rows = []
    for found, (phase, protection) in itertools.product(fits, (("enable", "enable"), ("clear", "initially_set"))):
        before, after = (float(times[protection, phase, walk]) for walk in ("all", "skip_levels"))
        lab = 100.0 * after / before - 100
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
    for backing in ("thp", "hugetlb-1gb"):
        counts = SplitCounts(TABLES[found.machine][1], BACKINGS[backing]).clear()
        row, splits = count_row(counts), counts["split_block"]
        least = float(fall / (1 - fall) * (row @ found.costs) / splits)
        low, high = interval(fall / (1 - fall) * (found.draws @ row) / splits)
        word = float(least / found.costs[NAMES.index("clear_word")])
        rows.append((backing, splits, counts["clear_word"], least, low, high, word))
    return pd.DataFrame(rows, columns=["backing", "before", "after", "least_visits", "low", "high", "words"])


def engine_table(found: WalkFit) -> pd.DataFrame:
    """The six cases of 4 GiB through the engine, with a parked vCPU, beside the closed arithmetic.

    A visit takes 5 ns, which relative changes do not tell.

    Returns: ``scenario``, ``backing``, ``all_ms`` and ``skip_levels_ms`` (engine), ``apart_ps`` (the larger difference
    from the closed arithmetic), ``change_percent`` (engine, 4 KiB guest pages).
    """
    costs = {name: round(5000 * ratio) for name, ratio in zip(NAMES, found.costs, strict=True) if name in COSTS}
    rows = []
    for scenario, backing in CASES:
        slot, clears = SplitCounts(2**32, BACKINGS[backing]), scenario == "clear"
        seen, apart = [], []
        for walk in ("all", "skip_levels"):
            case = Scenario.parse(
                {"guest": {"memory": slot.memory, "backing": slot.backing},
                 "policy": {"eager_split": True, "split_walk": walk},
                 "workload": {"kind": "eager_split", "initially_set": clears, "iterations": 2 if clears else 1}}
            ).with_costs(**dict.fromkeys(UNUSED, 0) | {"guest_access": 1000} | costs)  # fmt: skip
            seen.append(run_scenario(case).metrics["clear_dirty_log_time" if clears else "enable_time"])
            apart.append(abs(round(seen[-1] * 1e12) - time(slot.pays(scenario, walk), costs)))
        rows.append((scenario, backing, 1e3 * seen[0], 1e3 * seen[1], max(apart), 100 * seen[1] / seen[0] - 100))
    columns = ["scenario", "backing", "all_ms", "skip_levels_ms", "apart_ps", "change_percent"]
    return pd.DataFrame(rows, columns=columns)
