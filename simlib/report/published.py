# SPDX-License-Identifier: BSD-3-Clause
"""Every published number beside what the model says of it: fitted or held out, how far off, inside its interval or not.

The error is that of the predicted number over the published one; of a published change in percent it is that of the
ratio which the change stands for, (100 + predicted) over (100 + published).
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from simlib import figures
from simlib.calibration import migrations
from simlib.parallel import Progress, portion
from simlib.prediction import LEVEL
from simlib.report.block import Chart, Note, Prose, Table
from simlib.report.migration import MigrationStudy
from simlib.report.page import Section
from simlib.studies import split_walk, teardown, x86
from simlib.studies.arm64 import altra
from simlib.studies.lockless import kernbench
from simlib.studies.published import finding, published_table, readable_summary
from simlib.studies.study import FITTED, HELD_OUT, Found, numbers


def all_numbers(founds: Mapping[str, Found], moves: MigrationStudy) -> pd.DataFrame:
    """Every published number that a study of the report uses, with what the model says of it.

    Returns: `COLUMNS`, one row a number; NaN where there is no prediction or no interval.
    """
    first, then = ("arm64", "x86"), ("lockless", "teardown", "split_walk")
    parts = [
        *(founds[name].numbers for name in first), configurations(moves.configurations), degradation(moves.seconds),
        *(founds[name].numbers for name in then),
    ]  # fmt: skip
    return published_table(parts)


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
    changes = migrations.configuration_table(draws, seed=seed, progress=portion(progress, 0.2, 0.6))
    _, seconds = migrations.degradation_table(draws, seed=seed, progress=portion(progress, 0.6, 0.9))
    parts = [
        altra.shipped_numbers(seed), x86.STUDY.found(seed=seed).numbers, configurations(changes), degradation(seconds),
        kernbench.published_numbers(), teardown.STUDY.found().numbers, split_walk.STUDY.found(seed=seed).numbers,
    ]  # fmt: skip
    return published_table(parts)


def configurations(rows: pd.DataFrame) -> pd.DataFrame:
    """Seed 001: what letting go after 64 pages changes, of three configurations."""
    rows = rows[rows["published_percent"].notna()]
    variant = "configuration " + rows["configuration"].astype(str)
    names = {"published_percent": "published", "model_percent": "predicted"}
    role = rows["role"].map({"fitted": FITTED, "predicted": HELD_OUT})
    rows = rows.rename(columns=names).assign(variant=variant, unit="% change", role=role)
    return numbers(rows, "x86-clear-lock-drop-configurations")


def degradation(rows: pd.DataFrame) -> pd.DataFrame:
    """The 48 vCPU migration: seconds above a degradation."""
    metric = "seconds above " + rows["level_percent"].astype(str) + " %"
    role = rows["role"].map({"fitted": FITTED, "predicted": HELD_OUT})
    names = {"series": "variant", "published_s": "published", "model_s": "predicted", "low_s": "low", "high_s": "high"}
    rows = rows.rename(columns=names).assign(metric=metric, unit="s", vcpus=48, role=role)
    return numbers(rows, "arm64-migration-degradation")


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
