# SPDX-License-Identifier: BSD-3-Clause
"""What is said of the lab's data beside the model: sentences with numbers from the tables they stand under."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from simlib.analysis.prediction_options import LEVEL
from simlib.figures.style import plain_number, signed
from simlib.lab.hardware.load import MAIN_METRICS, METRICS, SMALL_BATCH, load_errors
from simlib.lab.hardware.machines import FINE_TURN
from simlib.model.quantities import seconds_text
from studies.lab.figures import metric_title
from studies.lab.switches import SWITCHES, clear_instructions
from studies.lab.translation import statistics_own
from studies.study import HELD_OUT

RULE = 0.1
"""How close a time of a reset is to be."""


def load_told(load: pd.DataFrame) -> str:
    """How far the cells under load are from the simulator, in words: with 64 pages a hold, and the worst of these."""
    errors = load_errors(load)
    mine = errors[errors["machine"] == "all"].set_index("metric")
    small = load[load["batch"] == SMALL_BATCH].reset_index(drop=True)
    *_, worst = small.iloc[small["error"].abs().argsort()].to_dict("records")
    each = ", ".join(f"{METRICS[name]} {_percent(mine['median_64'][name])}" for name in MAIN_METRICS)
    vcpus = f"{worst['vcpus']} vCPU{'s' if worst['vcpus'] > 1 else ''}"
    return (
        f"Median errors with {SMALL_BATCH} pages a hold, of all machines: {each}. The worst of these cells is the "
        f"{METRICS[worst['metric']]} of {worst['machine']} with {vcpus}: {signed(100 * worst['error'])} %."
    )


def rings_told(rings: pd.DataFrame) -> str:
    """What dirty rings showed, in words.

    - `rings`: as `studies.lab.rings.ring_table` gives it.
    """
    settled, held = rings[rings["decided"]], rings[rings["role"] == HELD_OUT]
    counts = ["resets", "entries", "runs"]
    same = (settled[counts].to_numpy() == settled[[f"{what}_model" for what in counts]].to_numpy()).all(axis=1)
    close = (held["error"].abs() < RULE).sum()
    *_, worst = held.iloc[held["error"].abs().argsort()].to_dict("records")
    simulated = settled["simulated"].dropna()
    return (
        f"In {same.sum()} of {len(settled)} cells that turns do not decide, the kernel has as many resets, entries and "
        "runs as follow from the order of the test's accesses; so has the simulator in "
        f"{int(simulated.sum())} of {len(simulated)}, those with sequential ones. A fault that fills its ring leaves "
        "before its page is written: that page is protected again, and logged twice. Times are costs (an entry, a run, "
        "a page between those of a run, a reset for each vCPU) times the kernel's own counts. The costs are from "
        f"{len(rings) - len(held)} cells with one vCPU, without the smallest rings. Of {len(held)} others {close} are "
        f"within {RULE * 100:.0f} %, in the median off by {_percent(held['error'].abs().median())}. The worst is "
        f"{worst['machine']} with {worst['vcpus']} vCPUs, {worst['memory_per_vcpu']}, {worst['access']}, rings of "
        f"{worst['ring_entries']}: {signed(100 * worst['error'])} %. There faults of vCPUs that run take the lock, too."
    )


def ledger_told(cells: pd.DataFrame) -> str:
    """How the predictions of the ledger fared, in words.

    - `cells`: as `simlib.lab.hardware.ledger.load_ledger` gives them.
    """
    known, said = cells.dropna(subset=["lab"]), []
    for name, own in known.groupby("ledger", sort=False):
        missed = own["error"].abs().groupby(own["metric"]).median()
        each = ", ".join(f"{METRICS[metric]} {_percent(missed[metric])}" for metric in MAIN_METRICS)
        said.append(
            f"{name}, predicted on {own['date'].iloc[0]}: {own['inside'].sum()} of {len(own)} answers are within their "
            f"{LEVEL:.0%} interval. Median errors: {each}."
        )
    if waiting := len(cells) - len(known):
        said.append(f"{waiting} have no answer yet.")
    return " ".join(said)


def turns_told(cells: pd.DataFrame) -> str:
    """From which length of a turn on the lab's longest stall stays the same, in words."""
    stalls = cells[cells["metric"] == "longest_stall"]
    longest = stalls.pivot_table(index="machine", columns="turn", values="lab")
    least, usual, most = longest.columns.min(), FINE_TURN, longest.columns.max()
    more, moved = longest[most] / longest[usual], longest[usual] / longest[least] - 1
    return (
        f"With turns of {most} instructions the longest stall is {more.min():.1f} to {more.max():.1f} times that with "
        f"{usual}. From {usual} to {least} it changes by {_percent(moved.abs().max())} at most. The simulator's is off "
        f"by {_percent(stalls['error'].abs().median())} in the median of all lengths."
    )


def batch_told(load: pd.DataFrame) -> str:
    """What letting go every 64 pages does to the longest stall in the lab, in words."""
    stall = load[load["metric"] == "longest_stall"].pivot_table(
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

    - `experiment`: one of `studies.lab.switches.SWITCHES`.
    - `frame`: its `switch_effects`.
    """
    said = [SWITCHES[experiment].why]
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
    text = seconds_text if time else plain_number
    if most["low"] <= least["high"] or most["value"] <= 1.01 * least["value"]:
        return f"no difference beyond the seeds' range ({text(part['low'].min())} to {text(part['high'].max())})"
    return f"from {text(least['value'])} ({least['setting']}) to {text(most['value'])} ({most['setting']})"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %" if value < 0.1 else f"{100 * value:.0f} %"


def statistics_told(machines: Sequence[str]) -> str:
    """How many instructions the statistics themselves execute."""
    own = [statistics_own(name)["drop"] for name in machines]
    return f"They are {min(own):.0f} to {max(own):.0f} each time the lock is taken."


def translation_told(ratios: pd.DataFrame) -> str:
    """How far each kind of action translates, with each architecture left out."""
    worst = ratios.groupby("kind")["factor"].max()
    return (
        f"Exits and CLEAR translate within a factor of {worst['exit']:.2f} and {worst['clear']:.2f} with each "
        f"architecture left out, holds within {worst['hold']:.1f}, which is more than the 2 that was asked for: "
        "arm64's hold is few instructions that take long (barriers, a local invalidation), x86's many."
    )
