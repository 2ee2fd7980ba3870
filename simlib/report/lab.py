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
    METRICS,
    SWITCHES,
    InstructionCost,
    clear_instructions,
    cost_estimate,
    count_comparison,
    instruction_costs,
    load_comparison,
    repeat_table,
    rows_of,
    switch_effects,
)
from simlib.figures.lab import metric_title
from simlib.figures.style import plain_number, seconds
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
        """`load_errors` of the cells under load."""
        return load_errors(self.load)


def load_errors(load: pd.DataFrame) -> pd.DataFrame:
    """Median and largest error of cells under load: machine, metric, cells, median, largest, turned."""
    rows = []
    for (machine, metric), cells in load.groupby(["machine", "metric"], sort=False):
        error = cells["error"].abs()
        rows.append((machine, metric, len(cells), float(error.median()), float(error.max()), directions(cells)))
    for metric, cells in load.groupby("metric", sort=False):
        error, turned = cells["error"].abs(), sum(row[-1] for row in rows if row[1] == metric)
        rows.append(("all", metric, len(error), float(error.median()), float(error.max()), turned))
    return pd.DataFrame(rows, columns=["machine", "metric", "cells", "median", "largest", "turned"])


def under_load() -> pd.DataFrame:
    """The cells under load of every machine, beside the simulator with its instruction costs: all held out."""
    parts = [load_comparison(name, cost_estimate(instruction_costs(name))).assign(machine=name) for name in LABS]
    return pd.concat(parts, ignore_index=True).assign(held_out=True)


def contended_share(machine: str) -> pd.Series:
    """Of the acquisitions by faults while the guest writes and CLEAR holds on, the share that had to wait, by vCPUs.

    Parameters
    ----------
    machine : str
        One of the lab's, ``arm64-read`` say; the median over its seeds.
    """
    rows = rows_of("load-locks", machine)
    whole = rows["switches"].str.endswith("batch=0")
    faults = rows[(rows["phase"] == "rounds") & rows["site"].str.startswith("fault") & whole]
    sums = faults.groupby(["vcpus", "seed"])[["contentions", "acquisitions"]].sum().groupby("vcpus").median()
    return sums["contentions"] / sums["acquisitions"]


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


REASONS = {
    "fast-page-fault": "A lockless fault waits for nobody. With the lock held for read, or with every fault slow, a "
    "vCPU waits until a whole CLEAR is over.",
    "lockless-write-protect": "Without `mmu_lock` CLEAR makes nobody wait. The faults still take the lock, and meet "
    "each other there.",
    "lock-inside": "The architecture takes the lock for one word at a time, and lets the vCPUs in between: CLEAR waits "
    "for them, and nobody waits for all of CLEAR.",
    "yield": "`needbreak` lets go on a preemptible kernel alone (include/linux/spinlock.h rwlock_needbreak); on the "
    "lab's it equals `never`. The other two let go, and the longest stall is shorter.",
    "get-batch": "Letting go within GET trades its time for the longest stall.",
    "ring-reset-batch": "The same trade, in the reset of the dirty ring; today it lets go for each mask of 64 pages.",
    "split-x86": "Where everything begins dirty (initially_set), blocks that are not split ahead cost an acquisition "
    "for each page, and split ones are split by the first CLEAR. Where enabling write-protects, it splits. Where the "
    "tables are allocated decides how often the lock is let go, and hardly how long it is held.",
    "split-arm64": "Chunks matter little to the sum; skipping the last level makes both enabling and the CLEAR that "
    "splits shorter.",
    "teardown-arm64": "Each kind of maintenance for each page makes teardown longer, cleaning the cache by more.",
}  # fmt: skip
"""What each experiment shows, and why: no numbers, which `switch_told` adds."""


def load_told(load: pd.DataFrame) -> str:
    """How far the cells under load are from the simulator, in words: CLEAR time and stalls apart, by machine."""
    said, errors = [], load_errors(load)
    for metric, title in METRICS.items():
        mine = errors[errors["metric"] == metric].set_index("machine")["median"]
        each = ", ".join(f"{name} {_percent(value)}" for name, value in mine.drop("all").items())
        said.append(f"{title} {_percent(mine['all'])} ({each})")
    stalls = load[(load["metric"] == "longest_stall") & (load["batch"] == 64)]
    short = -stalls.groupby("machine")["error"].median()
    where = "on every machine" if (short > 0).all() else f"on {int((short > 0).sum())} of {len(short)} machines"
    return (
        f"Median errors under load, predicted from instruction costs alone: {said[0]}; {said[1]}. With 64 pages a "
        f"hold the simulated stall is too short {where}, by {100 * short.min():.0f} to {_percent(short.max())} in the "
        "median."
    )


def batch_told(found: LabStudy) -> str:
    """What letting go every 64 pages does to the longest stall in the lab, in words."""
    stall = found.load[found.load["metric"] == "longest_stall"].pivot_table(
        index="machine", columns=["batch", "vcpus"], values="lab"
    )
    gain = stall[0] / stall[64]
    taken, alone = (gain[gain.index.isin(["x86-npt"]) == which].to_numpy() for which in (False, True))
    return (
        f"Where faults take the lock, letting go every 64 pages makes the longest stall {taken.min():.0f} to "
        f"{taken.max():.0f} times as short. Where they do not (x86 with nested paging) there is nothing to "
        f"shorten: {alone.min():.1f} to {alone.max():.1f} times."
    )


def switch_told(experiment: str, frame: pd.DataFrame) -> str:
    """What one experiment shows: why, and the extremes of each metric where the seeds' ranges do not overlap.

    Parameters
    ----------
    experiment : str
        One of `simlib.calibration.lab.SWITCHES`.
    frame : DataFrame
        Its `switch_effects`.

    Examples
    --------
    >>> told = switch_told("get-batch", switch_effects("get-batch"))
    >>> told.startswith("Letting go within GET trades"), "Longest stall: from" in told
    (True, True)
    """
    said = [REASONS[experiment]]
    for metric, part in frame.groupby("metric", sort=False):
        title = metric_title(str(metric))
        said.append(f"{title[0].upper()}{title[1:]}: {_extremes(part, str(metric).endswith('_s'))}.")
    if experiment == "fast-page-fault":
        said.append(clock_told(experiment, frame, "x86-npt"))
    return " ".join(said)


def clock_told(experiment: str, frame: pd.DataFrame, machine: str) -> str:
    """What the lab's clock makes of a CLEAR of the same work: it counts the instructions of all CPUs, in words."""
    own = clear_instructions(experiment, machine)
    shown = frame[frame["metric"] == "clear_time_s"]
    each = ", ".join(f"{row['value'] / own:.1f} times ({row['setting']})" for row in shown.to_dict("records"))
    return (
        f"The time of CLEAR is the clock's doing. The clearing thread executes {1e3 * own:.1f} ms of instructions "
        f"with any setting (from parked cells), but the clock adds up all CPUs: it showed {each}. vCPUs that wait for "
        "the lock give their turns away and add nothing; those that never wait all run on."
    )


def _extremes(part: pd.DataFrame, time: bool) -> str:
    least, *_, most = part.sort_values("value").to_dict("records")
    text = seconds if time else plain_number
    if most["low"] <= least["high"] or most["value"] <= 1.01 * least["value"]:
        return f"no difference beyond the seeds' range ({text(part['low'].min())} to {text(part['high'].max())})"
    return f"from {text(least['value'])} ({least['setting']}) to {text(most['value'])} ({most['setting']})"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %" if value < 0.1 else f"{100 * value:.0f} %"


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
                "Nanoseconds an instruction, and each architecture's time predicted from the others; `factor`: how "
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
            Prose(f"{load_told(found.load)} {batch_told(found)}"),
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
            "nothing random; under load points are medians over three seeds. The clock adds up the instructions of "
            "all CPUs, so that a CLEAR during which more vCPUs run shows a longer time. Of enabling the time is shown "
            "for which the lock is held: the ioctl also waits for a grace period, of any length, which says nothing "
            "about a switch."
        )
    ]
    for experiment, frame in found.switches.items():
        title = SWITCH_TITLES[experiment]
        blocks.append(Chart(figures.switch_effects(frame, title), f"{title}. {switch_told(experiment, frame)}"))
    return Section("The lab: what each switch changes", blocks)
