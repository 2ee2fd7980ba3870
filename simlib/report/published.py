# SPDX-License-Identifier: BSD-3-Clause
"""Every published number beside what the model says of it: fitted or held out, how far off, inside its interval or not.

The error is that of the predicted number over the published one; of a published change in percent it is that of the
ratio which the change stands for, (100 + predicted) over (100 + published).
"""

from __future__ import annotations

import pandas as pd

from simlib import figures
from simlib.parallel import Progress, portion
from simlib.prediction import LEVEL
from simlib.report.block import Chart, Note, Prose, Table
from simlib.report.page import Section
from simlib.studies import split_walk, teardown, x86
from simlib.studies.arm64 import altra
from simlib.studies.lockless import kernbench
from simlib.studies.migrations import degraded, drops
from simlib.studies.published import finding, published_table, readable_summary


def quick_table(*, seed: int = 1, draws: int = 2, progress: Progress | None = None) -> pd.DataFrame:
    """The same table from the shipped fits, in a minute or two: nothing is calibrated anew, and intervals are rougher.

    Returns: As of `simlib.studies.published.published_table`.

    Parameters
    ----------
    draws : int
        Of the costs, for the intervals of migrations: too few to judge one number by.
    progress : callable, optional
        Called with (what, share done).
    """
    parts = [
        altra.shipped_numbers(seed), x86.STUDY.found(seed=seed).numbers,
        drops.changes(draws, seed, portion(progress, 0.2, 0.6)),
        degraded.seconds(draws, seed, portion(progress, 0.6, 0.9)).numbers,
        kernbench.published_numbers(), teardown.STUDY.found().numbers, split_walk.STUDY.found(seed=seed).numbers,
    ]  # fmt: skip
    return published_table(parts)


HEADINGS = {"study": "published table", "error_percent": "error, %"}


def section(table: pd.DataFrame) -> Section:
    """The report's first section: the summary, the picture, and all numbers to unfold."""
    shown = table.assign(published=[f"{relation.replace('-', ' ')} {value:g}".strip() for relation, value in
                                    zip(table["relation"], table["published"], strict=True)],
                         vcpus=table["vcpus"].astype("Int64"))  # fmt: skip
    return Section(
        "Every published number",
        [
            Prose(finding(table)),
            Table(
                readable_summary(table),
                "By published table and metric, which are not pooled: their errors differ. Errors of the prediction "
                "against the published number; of a published change in percent, that of the ratio it stands for. "
                "Median of the absolute errors, the worst with its sign. Inside: of the held-out numbers with an "
                "interval, how many lie in it.",
            ),
            Chart(figures.published_errors(table), finding(table)),
            Table(
                shown.drop(columns=["relation", "table"]),
                f"All {len(table)} numbers, each with its prediction, {LEVEL:.0%} interval where one is computed, "
                "error, role and source. The same as published.csv beside this report.",
                headings=HEADINGS,
                folded=True,
            ),
            Note(
                "Fitted: a cost was calibrated to it, or a setting that no source states was chosen on it. Held out: "
                "neither; but where the form of the model was chosen by somebody who knew it, as with x86's faults and "
                "two sockets, it is no blind test, and the section says so. Not predicted: seed 002 states too "
                "little of its guest and machine. Intervals of teardown's bounds are ranges of readings.",
                "What the words mean",
            ),
        ],
    )
