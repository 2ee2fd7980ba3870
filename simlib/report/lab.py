# SPDX-License-Identifier: BSD-3-Clause
"""The lab's own data beside the model: counts, instruction costs, cells under load, what each switch changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from simlib import figures
from simlib.calibration import translation
from simlib.calibration.lab import (
    LABS,
    SWITCHES,
    InstructionCost,
    cost_estimate,
    count_comparison,
    instruction_costs,
    load_comparison,
    repeat_table,
    rows_of,
    switch_effects,
)
from simlib.prediction import LEVEL
from simlib.report.block import Chart, Note, Prose, Table
from simlib.report.page import Section

SWITCH_TITLES = {
    "fast-page-fault": "x86, TDP MMU: how the fast page fault takes the lock",
    "lockless-write-protect": "x86, shadow paging: write-protection without mmu_lock",
    "lock-inside": "x86, shadow paging: the lock outside or inside CLEAR's loop",
    "yield": "x86, shadow paging: when CLEAR lets go",
    "get-batch": "x86, shadow paging: GET without manual protection, pages a hold",
    "ring-reset-batch": "x86, shadow paging: dirty-ring reset, pages a hold",
    "split-x86": "x86, TDP MMU: eager splitting, and where page tables are allocated",
    "split-arm64": "arm64: eager splitting by chunks, and the walk that skips the last level",
    "teardown-arm64": "arm64: maintenance at teardown, for each page or not",
}
"""Title of each experiment's figure."""


@dataclass(frozen=True)
class LabStudy:
    """What the lab's sections show.

    Attributes
    ----------
    counts : DataFrame
        machine, and the columns of `count_comparison`.
    costs : DataFrame
        machine, name, value, low, high (instructions), how, cells.
    load : DataFrame
        machine, and the columns of `load_comparison`; ``held_out`` is true throughout.
    switches : dict of str to DataFrame
        By experiment: `switch_effects`.
    repeats : DataFrame
        `repeat_table`.
    ratios : DataFrame
        `simlib.calibration.translation.ratio_table`.
    """

    counts: pd.DataFrame
    costs: pd.DataFrame
    load: pd.DataFrame
    switches: dict[str, pd.DataFrame]
    repeats: pd.DataFrame
    ratios: pd.DataFrame

    @property
    def errors(self) -> pd.DataFrame:
        """Median and largest error of the cells under load: machine, metric, cells, median, largest, turned."""
        rows = []
        for (machine, metric), cells in self.load.groupby(["machine", "metric"], sort=False):
            error = cells["error"].abs()
            changes = directions(cells)
            rows.append((machine, metric, len(cells), float(error.median()), float(error.max()), changes))
        error = self.load["error"].abs()
        rows.append(
            ("all", "both", len(error), float(error.median()), float(error.max()), sum(row[-1] for row in rows))
        )
        return pd.DataFrame(rows, columns=["machine", "metric", "cells", "median", "largest", "turned"])


def directions(cells: pd.DataFrame) -> int:
    """In how many cells a batch moves the model the other way than the lab, beyond the range of the lab's seeds.

    Parameters
    ----------
    cells : DataFrame
        Cells of one machine and metric, as `load_comparison` gives them.
    """
    wrong = 0
    for _, group in cells.groupby("vcpus"):
        rows = group.set_index("batch")
        whole = rows.loc[0]
        for batch in rows.index[rows.index != 0]:
            cell = rows.loc[batch]
            apart = cell["lab_low"] > whole["lab_high"] or cell["lab_high"] < whole["lab_low"]
            wrong += int(apart and np.sign(cell["lab"] - whole["lab"]) != np.sign(cell["model"] - whole["model"]))
    return wrong


def study(progress: Callable[[str, float], None] | None = None) -> LabStudy:
    """Compute everything from the committed data.

    Parameters
    ----------
    progress : callable, optional
        Called with (what, share done).
    """
    tell = progress or (lambda what, share: None)
    counts, costs, load = [], [], []
    for number, name in enumerate(LABS):
        tell(f"the lab: {name}", number / len(LABS))
        found: list[InstructionCost] = instruction_costs(name)
        costs.append(pd.DataFrame([{"machine": name, **asdict(cost)} for cost in found]))
        counts.append(count_comparison(rows_of("counts-locks", name)).assign(machine=name))
        load.append(load_comparison(name, cost_estimate(found)).assign(machine=name, held_out=True))
    return LabStudy(
        pd.concat(counts, ignore_index=True),
        pd.concat(costs, ignore_index=True),
        pd.concat(load, ignore_index=True),
        {experiment: switch_effects(experiment) for experiment in SWITCHES},
        repeat_table(),
        translation.ratio_table(),
    )


def sections(found: LabStudy) -> list[Section]:
    """The report's sections on the lab."""
    return [_counts(found), _costs(found), _translation(found), _load(found), _switches(found)]


def _translation(found: LabStudy) -> Section:
    own = {name: translation.statistics_own(name)["letting go"] for name in LABS}
    worst = found.ratios.groupby("kind")["factor"].max()
    priors = []
    for kind, cost in translation.KINDS.items():
        counted = translation.instructions("riscv")[kind].value
        time, factor = translation.translate(kind, counted, found.ratios)
        priors.append({"cost": cost, "instructions": counted, "median, ns": time, "factor (90 %)": factor})
    return Section(
        "From instructions to time",
        [
            Prose(
                "Where a count of the lab's and a published time exist of the same kind of action, their ratio says "
                "what an instruction takes on hardware: caches, barriers and invalidations that emulated time leaves "
                "out are in it. The statistics' own instructions are taken off, by running the same cells on kernels "
                f"without them: {min(own.values()):.0f} to {max(own.values()):.0f} each time the lock is taken."
            ),
            Table(
                found.ratios.drop(columns="source"),
                "Nanoseconds an instruction, and each architecture's time as the others would have it; `factor`: how "
                "far that is off. Of letting go there is one time only.",
                digits=3,
            ),
            Table(
                pd.DataFrame(priors),
                "riscv's costs, which nobody has timed, as the others translate them; the factor from the spread "
                "between architectures, pooled over the kinds. They are the priors of a choice on riscv.",
                digits=3,
            ),
            Note(
                f"Exits and CLEAR translate within a factor of {worst['exit']:.2f} and {worst['clear']:.2f} with each "
                f"architecture left out, holds within {worst['hold']:.1f}, which is more than the 2 that was asked "
                "for: arm64's hold is few instructions that take long (barriers, a local invalidation), x86's many. "
                "arm64's CLEAR is the time of write-protecting at enable, on another host. LoongArch, which no "
                "emulator runs as a hypervisor, and POWER are left wide.",
                "How far to believe it",
            ),
        ],
    )


def count_summary(counts: pd.DataFrame) -> pd.DataFrame:
    """Cells and differences by machine, phase and what takes the lock: how many counts are equal."""
    groups = counts.groupby(["machine", "phase", "what", "lock_mode"], sort=False)
    table = groups.agg(
        cells=("difference", "size"),
        equal=("difference", lambda d: int((d == 0).sum())),
        smallest=("difference", "min"),
        largest=("difference", "max"),
    )
    return table.reset_index()


def _counts(found: LabStudy) -> Section:
    return Section(
        "The lab: whose counts are right?",
        [
            Prose(
                "Patched kernels (`kernel-patches/`) count every acquisition of `mmu_lock` by call site and mode. "
                "With the vCPUs parked during GET and CLEAR the number is decided by the code, not by chance, so the "
                "simulator must give the same one: not about the same."
            ),
            Table(
                count_summary(found.counts),
                "Kernel less simulator, over batches of 0, 512 and 64 pages, 1 and 4 vCPUs, protection at the first "
                "CLEAR or at enable. While the guest populates its memory it also touches its own code, stacks, page "
                "tables and records, which the model does not have: those are the differences in that phase.",
            ),
            Table(found.repeats, "Deterministic runs that were repeated, and how many gave the same bytes each time."),
        ],
    )


def _costs(found: LabStudy) -> Section:
    return Section(
        "The lab: what actions cost, in instructions",
        [
            Prose(
                "The lab's clock counts instructions, one a nanosecond, summed over all CPUs that run. It knows no "
                "cache, no line transfer, no TLB invalidation that takes time: these are relative costs of code "
                "paths. They are slopes over 16 to 128 MiB with one vCPU, so that everything that happens once drops "
                "out. The statistics' own instructions are in them."
            ),
            Table(
                found.costs.drop(columns="cells"),
                f"Instruction costs with {LEVEL:.0%} intervals of the slopes.",
                digits=4,
            ),
        ],
    )


def _load(found: LabStudy) -> Section:
    return Section(
        "The lab: CLEAR while the guest writes",
        [
            Prose(
                "Now the vCPUs keep writing. The simulator has the lab's clock and the costs above, and nothing else: "
                "no cell under load was used to calibrate anything. Points are the lab's median over three seeds (x86 "
                "with nested paging: six) with their range, lines the simulator's. The ranges of two cells that do "
                "not differ are disjoint by chance in one case of ten with three seeds, in one of 460 with six: of "
                "the comparisons below some are such."
            ),
            Chart(figures.under_load(found.load), "The lab under load, and the simulator from instruction costs."),
            Table(
                found.errors,
                "Error of the simulator, relative, over the cells of each machine; `turned`: cells in which a batch "
                "moves it the other way than the lab, beyond the range of the seeds.",
            ),
            Note(
                "Three things, and each is seen in the table. On x86 with nested paging faults take no lock: the "
                "longest gap is not a wait for one but a fault that meets the remote TLB flush at CLEAR's end, which "
                "the model charges to the clearing thread only. With 64 pages a hold the model's stalls are too "
                "short: a CPU of the lab that waits notices at its next turn only, some thousand instructions later, "
                "that the lock is free; the model hands over at once. And riscv's CLEAR fences every page under the "
                "lock, which throws running vCPUs out of the guest; the cost per page was measured while they were "
                "parked.",
                "What the model leaves out",
            ),
        ],
    )


def _switches(found: LabStudy) -> Section:
    blocks: list[Prose | Chart] = [
        Prose(
            "Each switch of the patch series, tried on a running kernel. With one vCPU and a parked guest there is "
            "nothing random; under load points are medians over three seeds. Enabling the log also waits for a grace "
            "period, which depends on where the timer's tick falls: on x86, several milliseconds of its time are that."
        )
    ]
    for experiment, frame in found.switches.items():
        title = SWITCH_TITLES[experiment]
        blocks.append(Chart(figures.switch_effects(frame, title), title + "."))
    return Section("The lab: what each switch changes", blocks)
