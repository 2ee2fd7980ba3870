# SPDX-License-Identifier: BSD-3-Clause
"""Predictions from the costs of `studies.split_walk.costs`: other walks, other page sizes, the lab, the barrier.

Only the lab's costs are fitted here; they are numbers of instructions.
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
from studies.split_walk.theory import COSTS, Counts, SplitCounts, total_time


def walks_table(fit: WalkFit) -> pd.DataFrame:
    """Predict other ways to skip entries: change relative to the unmodified walk, and to skipping levels.

    Returns: ``walk``, ``scenario``, ``backing``, ``change_percent``, ``low``, ``high``, ``slower_percent``,
    ``slower_low``, ``slower_high`` (against ``skip_levels``); guest pages of 4 KiB, 48 bits of address.
    """
    rows = []
    for walk, (scenario, backing) in itertools.product(SPLIT_WALKS[1:], CASES):
        slot = SplitCounts(TABLES[fit.machine][1], BACKINGS[backing])
        unmodified, levels, skipping = (slot.counts_of(scenario, name) for name in ("all", "skip_levels", walk))
        rows.append((walk, scenario, backing, *fit.predict(unmodified, skipping), *fit.predict(levels, skipping)))
    columns = ["walk", "scenario", "backing", "change_percent", "low", "high", "slower_percent", "slower_low",
               "slower_high"]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def granules_table(fit: WalkFit, other: WalkFit) -> pd.DataFrame:
    """Predict the change by skipping the last level for other page sizes of the host.

    The costs of an entry and of a block are assumed to be unchanged; guest pages have the host's size.

    Returns: ``page_size``, ``block``, ``scenario``, ``backing``, ``change_percent``, ``low``, ``high``, and
    ``other_percent``: by another hypothesis, to show which predictions depend on it.
    """
    rows = []
    for page, (scenario, backing) in itertools.product((4096, 16384, 65536), CASES):
        if page > 4096 and backing == "hugetlb-1gb":
            continue  # stage 2 then maps the same blocks as with THP
        slot = SplitCounts(64 * 2**30, BACKINGS[backing], page, page)
        old, new = (slot.counts_of(scenario, walk) for walk in ("all", "skip_levels"))
        block = {"4k-already-split": page, "thp": page * (page // 8), "hugetlb-1gb": 2**30}[backing]
        rows.append((format_size(page), format_size(block), scenario, backing.removeprefix("4k-"),
                     *fit.predict(old, new), other.predict(old, new)[0]))  # fmt: skip
    columns = ["page_size", "block", "scenario", "backing", "change_percent", "low", "high", "other_percent"]
    return pd.DataFrame(rows, columns=columns)


LAB_PHASES = {"enable": ("enable", "enable", 0), "clear[1]": ("initially_set", "clear", 1),
              "clear[2]": ("initially_set", "clear", 2)}  # fmt: skip
"""Phases of the lab's experiment: protection, ioctl and round of their rows."""


def lab_rows() -> pd.DataFrame:
    """Rows of the lab's eager splits, with ``bytes`` of the guest, ``walk`` and ``chunk``."""
    rows = load("switches-ioctls").rows("experiment == 'split-arm64'")
    walk = rows["switches"].str.endswith("=Y").map({False: "all", True: "skip_levels"})
    chunk = rows["switches"].str.extract(r"eager_split_chunk=(\d+)", expand=False).astype(int)
    return rows.assign(bytes=rows["memory_per_vcpu"].map(parse_size), walk=walk, chunk=chunk)


def lab_times() -> pd.DataFrame:
    """Measured growth of the lab's eager-split times from its smallest guest to its largest.

    Returns: ``chunk`` (bytes), ``phase`` (of `LAB_PHASES`), ``walk``, ``pages`` (growth of the guest),
    ``measured_ns`` (growth of the time, instructions).
    """
    cells = lab_rows().set_index("bytes").groupby(["chunk", "walk", "protection", "name", "round"])["total_time_ns"]
    rows = []
    for chunk, walk, phase in itertools.product((2**21, 2**30), ("all", "skip_levels"), LAB_PHASES):
        times = cells.get_group((chunk, walk, *LAB_PHASES[phase])).sort_index()
        grown, measured = times.index[-1] - times.index[0], times.iloc[-1] - times.iloc[0]
        rows.append((chunk, phase, walk, grown // 4096, float(measured)))
    return pd.DataFrame(rows, columns=["chunk", "phase", "walk", "pages", "measured_ns"])


def lab_counts(phase: str, walk: str, memory: int = 128 * 2**20, chunk: int = 2**21) -> Counts:
    """Counts of a phase of the lab, or of both CLEARs (``clear``); by default for its largest guest.

    The test's default guest mode has 40 bits of physical address (lib/guest_modes.c).
    """
    slot = SplitCounts(memory, "thp", ipa_bits=40, chunk=chunk)
    total, first = slot.clear(walk, 2), slot.clear(walk, 1)
    second = {name: total[name] - first[name] for name in total}
    return {"enable": slot.enable(walk), "clear": total, "clear[1]": first, "clear[2]": second}[phase]


def lab_costs() -> tuple[pd.Series, pd.DataFrame]:
    """Fit the lab's costs, in numbers of instructions, to the times of all its phases.

    Returns: instructions by `COSTS`; and `lab_times` with ``model_ns`` and the relative ``error``.
    """
    cells = lab_times()
    rows = []
    for phase, walk, chunk in zip(cells["phase"], cells["walk"], cells["chunk"], strict=True):
        grown, small = (lab_counts(phase, walk, m * 2**20, min(chunk, m * 2**20)) for m in (128, 32))
        rows.append([grown[name] - small[name] for name in COSTS])
    counts, measured = np.array(rows, dtype=float), cells["measured_ns"].to_numpy(dtype=float)
    # Cells are weighted by their relative errors.
    costs, _ = optimize.nnls(counts / measured[:, None], np.ones(len(measured)))
    model = counts @ costs
    return pd.Series(costs, COSTS), cells.assign(model_ns=model, error=model / measured - 1)


def lab_test(fits: Sequence[WalkFit]) -> pd.DataFrame:
    """Predict the lab's change by skipping the last level from each machine's published changes.

    Returns: ``machine``, ``phase`` (``enable``, ``clear``), ``lab_percent`` (of instructions), ``predicted_percent``,
    ``low``, ``high``, ``inside``.
    """
    cells = lab_rows().query(f"bytes == {128 * 2**20} and chunk == {2**21}")
    times = cells.groupby(["protection", "name", "walk"])["total_time_ns"].sum()
    rows = []
    for fit, (phase, protection) in itertools.product(fits, (("enable", "enable"), ("clear", "initially_set"))):
        before, after = (float(times[protection, phase, walk]) for walk in ("all", "skip_levels"))
        lab = 100.0 * after / before - 100
        value, low, high = fit.predict(lab_counts(phase, "all"), lab_counts(phase, "skip_levels"))
        rows.append((fit.machine, phase, lab, value, low, high, bool(low <= lab <= high)))
    columns = ["machine", "phase", "lab_percent", "predicted_percent", "low", "high", "inside"]
    return pd.DataFrame(rows, columns=columns)


def barrier_table(fit: WalkFit) -> pd.DataFrame:
    """Minimum cost of the barrier within the walk that would explain the published reduction in CLEAR's time.

    The barrier was executed for each split block, and since the change for each word, which is more often. So an old
    barrier must have cost at least the reduction over the number of splits.

    Returns: ``backing``, ``before`` and ``after`` (barriers in two CLEARs), ``least_visits`` (minimum cost of an old
    barrier, in visited entries), ``low``, ``high``, ``words`` (the minimum over the cost of a word without its visits,
    which includes the new barrier).
    """
    reduction = load("arm64-split-walk-barrier").frame["reduction_percent"].iloc[0] / 100
    rows = []
    for backing in ("thp", "hugetlb-1gb"):
        counts = SplitCounts(TABLES[fit.machine][1], BACKINGS[backing]).clear()
        row, splits = count_row(counts), counts["split_block"]
        least = float(reduction / (1 - reduction) * (row @ fit.costs) / splits)
        ends = interval(reduction / (1 - reduction) * (fit.draws @ row) / splits)
        word = float(least / fit.costs[NAMES.index("clear_word")])
        rows.append((backing, splits, counts["clear_word"], least, *ends, word))
    return pd.DataFrame(rows, columns=["backing", "before", "after", "least_visits", "low", "high", "words"])


def engine_table(fit: WalkFit) -> pd.DataFrame:
    """Simulate the six cases with 4 GiB and a parked vCPU, and compare the engine with the closed form.

    A visit is assumed to take 5 ns, because relative changes do not determine it.

    Returns: ``scenario``, ``backing``, ``all_ms`` and ``skip_levels_ms`` (engine), ``apart_ps`` (the larger difference
    from the closed form), ``change_percent`` (engine, 4 KiB guest pages).
    """
    costs = {name: round(5000 * ratio) for name, ratio in zip(NAMES, fit.costs, strict=True) if name in COSTS}
    rows = []
    for scenario, backing in CASES:
        slot, clears = SplitCounts(2**32, BACKINGS[backing]), scenario == "clear"
        times, differences = [], []
        for walk in ("all", "skip_levels"):
            case = Scenario.parse(
                {"guest": {"memory": slot.memory, "backing": slot.backing},
                 "policy": {"eager_split": True, "split_walk": walk},
                 "workload": {"kind": "eager_split", "initially_set": clears, "iterations": 2 if clears else 1}}
            ).with_costs(**dict.fromkeys(UNUSED, 0) | {"guest_access": 1000} | costs)  # fmt: skip
            times.append(run_scenario(case).metrics["clear_dirty_log_time" if clears else "enable_time"])
            differences.append(abs(round(times[-1] * 1e12) - total_time(slot.counts_of(scenario, walk), costs)))
        before, after = times
        rows.append((scenario, backing, 1e3 * before, 1e3 * after, max(differences), 100 * after / before - 100))
    columns = ["scenario", "backing", "all_ms", "skip_levels_ms", "apart_ps", "change_percent"]
    return pd.DataFrame(rows, columns=columns)
