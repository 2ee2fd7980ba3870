# SPDX-License-Identifier: BSD-3-Clause
"""The last sentence of a notebook: the answer to its question, with numbers from the tables above it."""

from __future__ import annotations

import pandas as pd

from simlib.comparison import Comparison
from simlib.decision import BatchChoice
from simlib.figures.style import signed
from simlib.fits import Fit
from simlib.report.host import host_answer
from simlib.studies.study import Answer


def change_of(compared: Comparison, policy: str, metric: str, vcpus: int) -> str:
    """How a policy changes a metric against the first one, with its interval, in words."""
    frame = compared.frame
    row = frame[(frame["policy"] == policy) & (frame["metric"] == metric) & (frame["vcpus"] == vcpus)].iloc[0]
    ends = f"{signed(row['change_low'])} to {signed(row['change_high'])} %"
    return f"by {signed(row['change_percent'])} % ({ends})"


def tour(compared: Comparison, policy: str, vcpus: int, decision: BatchChoice) -> Answer:
    """Of 00: what the strategy changes for both sides, and what is to be chosen."""
    stall, clear = (change_of(compared, policy, metric, vcpus) for metric in ("longest_stall", "clear_cpu_time"))
    return Answer(
        f"In this guest, with {vcpus} vCPUs and costs that were assumed, `{policy}` changes the longest stall {stall} "
        f"and the CPU time of CLEAR {clear}; of batches: {decision.sentence}."
    )


def own_host(fit: Fit) -> Answer:
    """Of 10: how well the host's costs predict what was held out."""
    return Answer(host_answer(fit))


def own_strategy(compared: Comparison, idea: str, beside: str, vcpus: int) -> Answer:
    """Of 11: what the idea changes, and what the strategy beside it."""
    said = [
        f"`{policy}` changes the longest stall {change_of(compared, policy, 'longest_stall', vcpus)} and the CPU time "
        f"of CLEAR {change_of(compared, policy, 'clear_cpu_time', vcpus)}"
        for policy in (idea, beside)
    ]
    return Answer(f"Against `{compared.policies[0]}`, with {vcpus} vCPUs: {'; '.join(said)}.")


def running_kernels(load: pd.DataFrame) -> Answer:
    """Of 02: whether the simulator gives what running kernels count and time."""
    median = load.groupby("metric")["error"].apply(lambda error: 100 * float(error.abs().median()))
    return Answer(
        "Once the log is enabled every count of the lock is the kernel's own; of times, held out, CLEAR's is off "
        f"by {median['clear_dirty_log_time']:.2g} % and the longest stall by {median['longest_stall']:.2g} % in the "
        "median."
    )


def drop_cost(changes: pd.DataFrame) -> Answer:
    """Of 03: why the same 64 pages cost so different shares."""
    rows = changes[(changes["metric"] == "clear_cpu_time") & changes["published_percent"].notna()]
    each = ", ".join(
        f"{signed(row['model_percent'])} % where {signed(row['published_percent'])} % was published"
        for row in rows.to_dict("records")
    )
    return Answer(
        "Letting go costs what CLEAR then waits for before it has the lock again: nobody, one round of readers, or one "
        f"writer after another, beside more work or less; the model has {each}."
    )


def degraded(rows: pd.DataFrame) -> Answer:
    """Of 04: how near the seconds of degradation are, fitted and predicted."""
    inside = (rows["published_s"] >= rows["low_s"]) & (rows["published_s"] <= rows["high_s"])
    counts = ", ".join(
        f"{int(inside[rows['role'] == role].sum())} of {int((rows['role'] == role).sum())} {role}"
        for role in dict.fromkeys(rows["role"])
    )
    return Answer(
        "While all vCPUs fault, the guest goes only as fast as faults are served one after another, one for each page "
        f"and pass; of the published seconds {counts} lie in the model's interval."
    )


def swept(table: pd.DataFrame) -> Answer:
    """Of 13: at which share of the places it matters, by mode of the lock, and what is best there."""
    shares = 100 * table.groupby("clear_lock")["matters"].mean()
    modes = ", ".join(f"{shares[name]:.0f} % with the lock held for {name}" for name in ("write", "read"))
    there = table[table["matters"]]
    best = there["policy"].value_counts(normalize=True)
    first = ", ".join(f"`{name}` at {100 * share:.0f} %" for name, share in best.head(3).items())
    where = 100 * there.groupby("variant").size() / table.groupby("variant").size()
    most = str(where.idxmax())
    return Answer(
        f"Of {len(table):,} places it matters at {modes} and {shares['lockless']:.0f} % without it, most often on "
        f"{most} ({where[most]:.0f} %); of the places where it does, {first} have the best one."
    )
