# SPDX-License-Identifier: BSD-3-Clause
"""Seed 002: getting the dirty log without mmu_lock; what was measured, what it can mean, what would follow today."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from simlib import figures
from simlib.calibration import get_ways, kernbench, lockless
from simlib.calibration.lockless import VCPUS, Budget, Walk
from simlib.measurements import load
from simlib.model.quantities import parse_size
from simlib.parallel import Progress
from simlib.prediction import LEVEL
from simlib.report.block import Chart, Note, Prose, Table
from simlib.report.page import Section


@dataclass(frozen=True)
class LocklessStudy:
    """What the sections show.

    Attributes
    ----------
    cells, comparison, comparison_without_first : DataFrame
        Of `simlib.calibration.kernbench`; the last without each cell's first run.
    lab, witness : DataFrame
        `simlib.calibration.lockless.lab_comparison` and `witness`.
    rewalks : DataFrame
        `simlib.calibration.lockless.rewalks`, by ``memory``.
    guests, predictions, verdicts : DataFrame
        Of `simlib.calibration.get_ways`.
    """

    cells: pd.DataFrame
    comparison: pd.DataFrame
    comparison_without_first: pd.DataFrame
    walk: Walk
    lab: pd.DataFrame
    witness: pd.DataFrame
    budget: Budget
    rewalks: pd.DataFrame
    guests: pd.DataFrame
    predictions: pd.DataFrame
    verdicts: pd.DataFrame


def study(seed: int = 1, progress: Progress | None = None) -> LocklessStudy:
    """Test, determine, read, predict."""
    walk = lockless.fit_walk()
    predictions = get_ways.predictions(walk, seed=seed, progress=progress)
    return LocklessStudy(
        kernbench.cells(),
        kernbench.comparison(),
        kernbench.comparison(skip=1),
        walk,
        lockless.lab_comparison(walk),
        lockless.witness(walk),
        lockless.budget(walk),
        rewalk_table(),
        get_ways.guests(walk),
        predictions,
        get_ways.verdicts(predictions),
    )


def rewalk_table() -> pd.DataFrame:
    """`simlib.calibration.lockless.rewalks` for guests of two sizes whose vCPUs all fault as fast as they can.

    Examples
    --------
    >>> table = rewalk_table()
    >>> bool((abs(table["counted"] - table["expected"]) < 2).all())
    True
    """
    rows = []
    for memory, rounds in (("3M", 1000), ("48M", 200)):
        case = lockless.get_scenario("EPT off", memory, "1us", "100us", rounds=rounds)
        case = lockless.published_costs().apply(case).changed({"policy": {"clear_lock": "lockless"}})
        rows.append({"memory": memory, "gets": rounds, **lockless.rewalks(case)})
    return pd.DataFrame(rows)


def readings(found: LocklessStudy) -> pd.DataFrame:
    """What could have saved GET's 4.2 ms: what each reading needs, what is known of that, and what would decide.

    Returns: ``reading``, ``needs``, ``known``, ``verdict`` (``excluded``, ``possible``, ``open``), ``decisive``.
    """
    b, w = found.budget, found.witness
    means, saved = b.means, b.means.saved
    wait, ratio = float(w["wait_s"].max()), found.walk.ratio
    fewer = w[w["dirty_ratio"] <= means.ratio]["guest"].unique().tolist()
    rows = [
        ("GET no longer waits for the lock",
         f"{1e3 * saved:.1f} ms of waiting: each of {VCPUS} vCPUs ahead of it in the queue holds the lock for "
         f"{1e6 * b.wait_each:.0f} µs",
         f"a queue is first come first served, and GET takes the lock once; modelled, it waits {1e6 * wait:.0f} µs on "
         "average at most",
         "excluded" if saved > 100 * wait else "open", "lock_stat: wait and hold time of mmu_lock by call site"),
        ("TLBs are flushed outside of the lock", f"{1e3 * saved:.1f} ms of flushing saved",
         f"GET flushes once either way: {1e6 * b.flush:.0f} µs for {VCPUS} vCPUs on the published host",
         "excluded" if saved > 100 * b.flush else "open", "function time of kvm_flush_remote_tlbs"),
        ("the walk itself became faster: another walk of the rmap, one atomic operation for an update of an SPTE",
         f"a page in at most {means.ratio:.2f} of its time; with the lab's ratio {1e3 * b.walk:.1f} ms of walk before, "
         f"{1e-3 * b.walk_pages:.0f} thousand pages at {1e9 * b.page[0]:.0f} ns",
         f"the lab's prototype (another kernel, another walk) takes {ratio[0]:.2f} ({ratio[1]:.2f} to {ratio[2]:.2f}) "
         "of the instructions; instructions are no time, misses of the cache stay",
         "possible" if ratio[1] < means.ratio else "excluded",
         "the new walk with the lock held around it, on the old machine"),
        ("GET found fewer dirty pages", f"{means.ratio:.2f} of the pages",
         f"modelled, it does while blocks are being split ({', '.join(fewer) or 'no guest'}): large SPTEs that are "
         "kept are split by the faults that write, with a flush under the lock each, and the guest is slower. "
         f"Otherwise it finds as many or more ({found.witness['dirty_ratio'].max():.2f} at most)",
         "possible" if fewer else "excluded", "bits set in the bitmap of each GET"),
        ("GET was off its CPU: 12 vCPUs and GET on 12 CPUs", f"{1e3 * saved:.1f} ms more of it before than after",
         "nobody is preempted who holds or waits for a spinlock, so that it is the walk without one that may be",
         "open", "perf sched: run delay of the thread"),
        ("one slow run before", f"nine runs as those after, and one of {1e3 * means.outlier:.0f} ms",
         "no spread is stated", "open", "the twenty single times"),
        ("someone else holds mmu_lock for milliseconds (MMU notifier, zapping)",
         f"a hold of that kind at nearly every GET, {1e3 * saved:.1f} ms left of it on average",
         "no published hold of a fault comes near; nothing states what else ran", "open",
         "lock_stat: longest hold by call site"),
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["reading", "needs", "known", "verdict", "decisive"])


def people(frame: pd.DataFrame) -> pd.DataFrame:
    """A table with GETs in ms and stalls in µs.

    Examples
    --------
    >>> people(pd.DataFrame({"get_time_s": [2e-3], "longest_stall_s": [1e-5]})).iloc[0].to_dict()
    {'get_time_ms': 2.0, 'longest_stall_us': 10.0}
    """
    factors = {"get_time_s": 1e3, "lockless_get_s": 1e3, "longest_stall_s": 1e6, "lockless_stall_s": 1e6}
    scaled = frame.assign(**{name: frame[name] * factor for name, factor in factors.items() if name in frame})
    return scaled.rename(columns={name: f"{name[:-1]}{'ms' if f == 1e3 else 'us'}" for name, f in factors.items()})


def sections(found: LocklessStudy) -> list[Section]:
    """The study as sections of a report."""
    return [_kernbench(found), _get(found), _lab(found), _predictions(found)]


def _kernbench(found: LocklessStudy) -> Section:
    on, off, both = found.comparison.to_dict("records")
    later = found.comparison_without_first.set_index("comparison").loc["EPT on"]
    need = {ept: kernbench.runs_needed(0.5, ept) for ept in ("Y", "N")}
    source = load("x86-kernbench-lockless").source
    first = [f"{time:.2f}" for time in kernbench.runs().query("ept == 'Y' and variant == 'before'")["real_time_s"]]
    return Section(
        "Lockless write-protection: what regression could kernbench have shown?",
        [
            Prose(
                "Seed 002 changes what every fault does (`rcu_assign_pointer`, another layout of the rmap), whether "
                "the log is on or not, and shows twelve runs of kernbench with the log off: EPT on and off, before "
                "and after, three each. It concludes: no performance regression. On x86 `rcu_assign_pointer` is a "
                "store that the compiler may not move: no instruction of its own."
            ),
            Table(found.cells, f"Measured. Source: {source['author']}, seed 002; Intel Xeon X5690, guest of 12 vCPUs "
                               "and 8 GB.", digits=4),
            Chart(
                figures.regression_shown(found.comparison),
                "No difference is significant. The bars' right ends are the slowdowns that the runs do not exclude; "
                "the orange marks are those that a test would have noticed four times in five.",
            ),
            Table(
                found.comparison,
                "Welch's t test of the logarithms, two-sided, with Holm's correction for three comparisons; the "
                "slowdown that a one-sided test at 5 % shows with 80 % power, its range by the 90 % interval of the "
                "standard error, and that of a two-sided test. Percent.",
                digits=3,
                headings={
                    "change_percent": "change", "low_percent": "low", "high_percent": "high", "p_holm": "Holm's p",
                    "shown_percent": "shown", "shown_low_percent": "at least", "shown_high_percent": "at most",
                    "shown_two_sided_percent": "two-sided",
                },
            ),
            Note(
                f"So twelve runs say: with EPT no more than {on['high_percent']:.1f} % slower, without EPT no more "
                f"than {off['high_percent']:.1f} %, both averaged {both['high_percent']:.1f} % (one-sided, 95 %). A "
                f"regression of {on['shown_percent']:.1f} % with EPT ({off['shown_percent']:.1f} % without) would have "
                "been noticed with 80 % power; smaller ones mostly not. Half a percent needs "
                f"{need['Y']} runs of each kernel with EPT, {need['N']} without, if they scatter as these. With EPT "
                f"nearly all of the scatter is before, whose times fall from run to run ({', '.join(first)} s), as "
                "they do when a cache warms up; without each cell's first run it is "
                f"{later['shown_percent']:.1f} %, with two runs a cell. Three runs do not tell a trend from chance.",
                "Power",
                "warning",
            ),
        ],
    )  # fmt: skip


def _get(found: LocklessStudy) -> Section:
    means = found.budget.means
    return Section(
        "Lockless write-protection: what 9.0 and 4.8 ms can be made of",
        [
            Prose(
                f"The mean of {means.runs} GETs fell from {1e3 * means.before:.3f} to {1e3 * means.after:.3f} ms. The "
                "mail states neither the guest nor what it wrote nor the spread. Two means, and no cost of that "
                "machine: nothing can be calibrated. What can be done: what each mechanism would need, against what "
                "is known of it, and all of them together in the model, with the costs of another, later host."
            ),
            Table(readings(found), "Readings. Excluded: short by a factor of 100. Possible: what it needs occurs in "
                                   "the model or the lab. Open: nothing published says anything of it."),
            Chart(
                figures.get_ratios(found.witness, means.ratio),
                "Simulated: 12 vCPUs, memory, writing rate and pause varied, as the mail states none of them. Filled: "
                "a page takes as long without the lock as with it; then only finding fewer pages makes GET shorter. "
                "Open: it takes the lab's ratio of the time.",
            ),
            Note(
                f"The two means differ significantly (5 %, two-sided) if single runs scatter by less than "
                f"{1e3 * means.insignificant_sd:.1f} ms before as after, or with a coefficient of variation below "
                f"{means.insignificant_variation:.0%}. Two numbers, no parameter: every reading has at least one "
                "unknown of its own (pages, ratio, an outlier), so that none of those left can be tested by them.",
                "How many numbers, how many unknowns",
                "warning",
            ),
        ],
    )  # fmt: skip


def _lab(found: LocklessStudy) -> Section:
    walk = found.walk
    free = found.lab[~found.lab["determined"]]
    stall = free[(free["lock"] == "none") & (free["what"] == "longest stall")].iloc[0]
    clears = free[(free["lock"] == "mmu_lock") & free["what"].str.endswith("CLEAR") & (free["unit"] != "count")]
    return Section(
        "Lockless write-protection: the walk of the lab's prototype, in instructions",
        [
            Prose(
                "The lab's prototype (`kernel-patches/` 0016 and 0017) write-protects with cmpxchg under a lock bit of "
                "the page's rmap, in place of RCU and nulls lists. Its cells under load (4 vCPUs, 32 MiB, shadow "
                "paging, three seeds) count instructions of all CPUs. The model with the lab's clock, with costs from "
                "cells whose vCPU is parked, gives the cells with the lock without a parameter; of the cells without "
                "it, one number is determined: instructions a page."
            ),
            Table(
                found.lab,
                "The lab beside the model; median over seeds and their range. Determined: the walk without the lock "
                "comes from these rows.",
                digits=3,
            ),
            Note(
                f"{walk.lockless[0]:.0f} ({walk.lockless[1]:.0f} to {walk.lockless[2]:.0f}, {LEVEL:.0%}) instructions "
                f"a page without the lock, {walk.locked[0]:.0f} with it: {walk.ratio[0]:.2f} ({walk.ratio[1]:.2f} to "
                f"{walk.ratio[2]:.2f}). One parameter stands against {walk.observations} observations (left: "
                f"{walk.deviation:.1%}); its interval has the model's own discrepancy of "
                f"{lockless.shipped_discrepancy():.1%} in the lab's other cells. The lock is taken once a CLEAR: what "
                "is saved is in the code for a page, not in taking the lock; in which part of it, the counts do not "
                "say. Only this ratio is used below, never a count as a time.",
                "How many numbers, how many costs",
            ),
            Note(
                f"With the lock both CLEARs are met within {clears['error'].abs().max():.0%}. Missed: the longest "
                f"stall without the lock, {stall['model']:.0f} against {stall['lab']:.0f} thousand "
                "instructions; it is no longer a wait for CLEAR but of vCPUs for each other, in turns of 2000 "
                "instructions that the model does not have.",
                "What is missed",
                "warning",
            ),
            Table(
                found.rewalks,
                "The walk that begins anew: how often an rmap would have changed while GET walked it, if every fault "
                "changed one, which none of a mapped page does. Simulated, 12 vCPUs; expected: docs/model.md (2.6). It "
                "falls with the memory, and is left out of the programs.",
                digits=3,
            ),
        ],
    )  # fmt: skip


def _predictions(found: LocklessStudy) -> Section:
    base = found.verdicts.query("axis == 'vcpus' and value == '16'").iloc[0]
    most = found.verdicts.sort_values("get_ratio").dropna(subset=["get_ratio"]).iloc[-1]
    pages, split = (
        {row["way"]: row for row in found.guests[found.guests["guest"] == guest].to_dict("records")}
        for guest in ("EPT, pages", "EPT, blocks at first")
    )
    where = ", ".join(f"{key} = {value}" for key, value in get_ways.BASE.items())
    page = found.budget.page[0]
    dense = page * parse_size("256G") / 4096
    return Section(
        "Lockless write-protection: no lock, or the lock in batches?",
        [
            Prose(
                "Predicted, with the costs of the published x86 host (tdp_mmu=N) and its interval; not seed 002's "
                "machine. A page without the lock takes as long as with it, or the lab's ratio of that: nobody has "
                "measured which, and the truth may lie between. Whom the lock matters to depends on who else takes it. "
                f"With EPT a write to a write-protected page takes no lock, and GET meets nobody: "
                f"{1e3 * pages['one hold']['get_time_s']:.2f} ms with and "
                f"{1e3 * pages[get_ways.DEAR]['get_time_s']:.2f} ms without it. While blocks are split, and with "
                "shadow paging (EPT off, nested guests), every such fault takes it."
            ),
            Table(
                people(found.guests),
                f"Three guests of the shadow MMU, {where}; each simulated once, with the best costs.",
                digits=3,
            ),
            Chart(
                figures.get_ways(found.predictions),
                f"EPT off; one thing varied at a time from {where}. GET after {get_ways.PAUSE}; vCPUs write any page.",
            ),
            Table(
                people(found.verdicts),
                "As good to the guest as no lock: throughput within "
                f"{get_ways.AS_GOOD[0]:.0%} of the undisturbed one, longest stall at most {get_ways.AS_GOOD[1]} times "
                "as long; of these the one with the shortest GET, over GET without the lock (a page as dear).",
                digits=3,
            ),
            Note(
                f"One hold stalls a vCPU for as long as GET walks, {base['whole_stall_ratio']:.0f} times as long as "
                f"without the lock with 16 vCPUs. A batch gives nearly all of that back: {base['as_good']} is as good "
                f"to the guest there. What it costs is GET's own time, {base['get_ratio']:.1f} times, since GET queues "
                "behind the vCPUs again for every batch; with "
                f"{most['axis']} = {most['value']}, where the vCPUs keep the lock busy, {most['get_ratio']:.0f} times. "
                "So doing without the lock is worth its complexity where GET's time matters and faults saturate the "
                "lock (shadow paging, many vCPUs); for the guest alone a batch of 512 to 4096 pages does. While blocks "
                "are split, with EPT, the longest stall is no longer GET's: "
                f"{1e6 * split['one hold']['longest_stall_s']:.0f} µs in one hold, "
                f"{1e6 * split[get_ways.DEAR]['longest_stall_s']:.0f} µs without the lock.",
                "Where it is worth it",
            ),
            Note(
                "In these guests few of a batch's pages are dirty, so that its hold is short. Where all are (a GET "
                f"long after the last one), (2.5) counts {1e9 * page:.0f} ns a page: "
                f"{', '.join(f'{1e6 * n * page:.0f} µs for {n} pages' for n in (64, 512, 4096))}, and in one hold "
                f"{dense:.1f} s for 256 GiB, during which every vCPU that faults stands still. There a batch of 64 to "
                "512 is what does as well as no lock, and 4096 is not. With EPT and no blocks left to split, no stall "
                "is GET's either way.",
                "Where all is dirty",
            ),
            Note(
                "Assumed: writes to any page, all memory mapped, one GET; a fault under the lock costs what it does on "
                "the published host with EPT, also with shadow paging; `lockless_page` is free of what vCPUs do to the "
                "same cache lines. Left out: the rmap's lock bit or RCU's cost on the fault path, guest page tables "
                "that are write-protected, MMU notifiers.",
                "What is assumed",
            ),
        ],
    )
