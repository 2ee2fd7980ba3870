# SPDX-License-Identifier: BSD-3-Clause
"""The last sentence of a notebook: the answer to its question, with numbers from the tables above it."""

from __future__ import annotations

import pandas as pd

from simlib.analysis.choose import BatchChoice
from simlib.analysis.compare import Comparison
from simlib.figures.style import signed
from simlib.measurements.fits import Fit
from simlib.ui.report.host import host_answer
from studies.study import Answer


def _changes_of(compared: Comparison, policy: str, vcpus: int) -> str:
    """How a policy changes stalls and CLEAR against the first one, with intervals, as a sentence."""
    rows = compared.frame.query("policy == @policy and vcpus == @vcpus").drop_duplicates("metric").set_index("metric")
    said = {}
    for metric, more in (("longest_stall", "longer"), ("clear_cpu_time", "more")):
        change, low, high = rows.loc[[metric], ["change_percent", "change_low", "change_high"]].iloc[0].astype(float)
        less = "shorter" if more == "longer" else "less"
        size = signed(abs(change)).removeprefix("+")
        said[metric] = (f"{size} % {more if change > 0 else less} "
                        f"({compared.level:.0%}: {signed(low)} to {signed(high)} %)")  # fmt: skip
    stall, clear = said["longest_stall"], said["clear_cpu_time"]
    return f"With `{policy}` the longest stall is {stall}, and CLEAR takes {clear} CPU time"


def tour(compared: Comparison, policy: str, vcpus: int, decision: BatchChoice) -> Answer:
    """Of 00: what the strategy changes for both sides, and what is to be chosen."""
    said = _changes_of(compared, policy, vcpus)
    return Answer(f"This guest has {vcpus} vCPUs and assumed costs. {said}. Of batches: {decision.sentence}.")


def own_host(fit: Fit) -> Answer:
    """Of 10: how well the host's costs predict what was held out."""
    return Answer(host_answer(fit))


def own_strategy(compared: Comparison, idea: str, beside: str, vcpus: int) -> Answer:
    """Of 11: what the idea changes, and what the strategy beside it."""
    said = ". ".join(_changes_of(compared, policy, vcpus) for policy in (idea, beside))
    return Answer(f"`{compared.policies[0]}` is compared with two others, on {vcpus} vCPUs. {said}.")


def swept(table: pd.DataFrame) -> Answer:
    """Of 13: at which share of the places it matters, by mode of the lock, and what is best there."""
    shares = 100 * table.groupby("clear_lock")["matters"].mean()
    modes = ", ".join(f"{shares[name]:.0f} % where it holds the lock for {name}" for name in ("write", "read"))
    there = table[table["matters"]]
    best = there["policy"].value_counts(normalize=True)
    first = ", ".join(f"`{name}` in {100 * share:.0f} %" for name, share in best.head(3).items())
    where = 100 * there.groupby("variant").size() / table.groupby("variant").size()
    most = str(where.idxmax())
    return Answer(
        f"The sweep has {len(table):,} places. When CLEAR lets go matters in {modes} and {shares['lockless']:.0f} % "
        f"where it takes no lock; most often on {most} ({where[most]:.0f} %). Where it matters, the best policy "
        f"is {first}."
    )
