# SPDX-License-Identifier: BSD-3-Clause
"""Every published number beside what the model says of it: fitted or held out, how far off, inside its interval or not.

The error is that of the predicted number over the published one; of a published change in percent it is that of the
ratio which the change stands for, (100 + predicted) over (100 + published).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from simlib import figures
from simlib.calibration import growth, parked
from simlib.fits import Fit, load_fit
from simlib.measurements import data_dir
from simlib.parallel import Progress, portion
from simlib.prediction import LEVEL, PredictionResult, predict
from simlib.report import arm64
from simlib.report.arm64 import Study
from simlib.report.block import Chart, Note, Prose, Table
from simlib.report.growth import GrowthStudy
from simlib.report.page import Section
from simlib.studies import split_walk, teardown
from simlib.studies.lockless import kernbench
from simlib.studies.migrations import degraded, drops
from simlib.studies.published import finding, published_table, readable_summary
from simlib.studies.study import COUNTED, FITTED, HELD_OUT, Found, numbers


def all_numbers(
    found: Study,
    grown: GrowthStudy,
    others: Iterable[Found],
    *,
    seed: int = 1,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Every published number that a study of the report uses, with what the model says of it.

    Returns: `COLUMNS`, one row a number; NaN where there is no prediction or no interval.

    Parameters
    ----------
    found, grown
        The studies of the report.
    others : iterable of Found
        Those of `simlib.studies`.
    progress : callable, optional
        Called with (what, share done).
    """
    parts = [
        dirty_memory(found.table.name, found.fit.fitted, found.prediction), fault_times(seed, progress),
        parked_times(grown.parked),
        split_beforehand(grown.split_beforehand), *(each.numbers for each in others),
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
    fit = load_fit(data_dir() / "fits" / "ampere-altra.json")
    vcpus = sorted({int(n) for n in fit.observations["vcpus"]})
    paging = growth.growth_fit("shadow-paging-few").estimate
    parts = [
        dirty_memory(arm64.TABLE, fit.observations, predict(fit.scenario, vcpus, fit=fit, seed=seed)),
        fault_times(seed, portion(progress, 0.0, 0.2)), parked_times(parked.parked_times()),
        split_beforehand(growth.split_beforehand(paging)),
        drops.changes(draws, seed, portion(progress, 0.2, 0.6)),
        degraded.seconds(draws, seed, portion(progress, 0.6, 0.9)).numbers,
        kernbench.published_numbers(), teardown.STUDY.found().numbers,
        split_walk.STUDY.found(seed=seed).numbers,
    ]  # fmt: skip
    return published_table(parts)


def dirty_memory(table: str, observations: pd.DataFrame, prediction: PredictionResult) -> pd.DataFrame:
    """Seed 000: dirty memory time and contentions."""
    rows = observations.rename(columns={"value": "published"})
    frame = prediction.frame.rename(columns={"estimate": "predicted"})
    rows = rows.merge(frame[["variant", "vcpus", "metric", "predicted", "low", "high", "unit"]],
                      on=["variant", "vcpus", "metric"], how="left")  # fmt: skip
    role = np.where(rows["train"], FITTED, np.where(rows["published"] > 0, HELD_OUT, COUNTED))
    return numbers(rows.assign(role=role), table)


def fault_times(seed: int = 1, progress: Progress | None = None) -> pd.DataFrame:
    """x86: splitting on fault, from few vCPUs to many, by the reading that the report uses, and shadow paging."""
    parts = []
    for name in (f"{growth.CHOSEN}-few", "shadow-paging-few"):
        fit = growth.growth_fit(name)
        rows = with_intervals(fit, seed, progress)
        if name.startswith("shadow"):
            rows["metric"] += ", ept=N"
        tables = rows["table"] if "table" in rows else ["x86-shadow-eager-split-dirty-time"] * len(rows)
        role = np.where(rows["train"].astype(bool), FITTED, HELD_OUT)
        parts.append(numbers(rows.assign(role=role, unit="s"), list(tables)))
    return pd.concat(parts, ignore_index=True)


def with_intervals(fit: Fit, seed: int = 1, progress: Progress | None = None) -> pd.DataFrame:
    """A fit's observations with the prediction of each, and its interval."""
    rows = fit.observations.rename(columns={"value": "published"})
    parts = []
    for variant, mine in rows.groupby("variant", sort=False):
        vcpus = sorted({int(n) for n in mine["vcpus"]})
        metrics = list(dict.fromkeys(mine["metric"].astype(str)))
        label = str(variant)
        found = predict(fit.scenario, vcpus, variant=label, fit=fit, metrics=metrics, seed=seed, progress=progress)
        frame = found.frame.assign(variant=label).rename(columns={"estimate": "predicted"})
        parts.append(mine.merge(frame.drop(columns="unit"), on=["variant", "vcpus", "metric"], how="left"))
    return pd.concat(parts, ignore_index=True)


def parked_times(parked: pd.DataFrame) -> pd.DataFrame:
    """x86: what one thread does while the vCPUs are parked."""
    role = parked["role"].map({"fitted": FITTED, "predicted": HELD_OUT})
    metric = parked["phase"] + ", eager_page_split=" + parked["split"].map({True: "Y", False: "N"})
    rows = parked.rename(columns={"what": "variant", "value": "published", "model": "predicted"})
    return numbers(rows.assign(metric=metric, role=role, unit="s"), list(parked["table"]))


def split_beforehand(rows: pd.DataFrame) -> pd.DataFrame:
    """x86: shadow paging with everything split beforehand."""
    metric, variant = "dirty_memory_time, ept=N, eager_page_split=Y", rows["write_percent"].astype(str) + " % written"
    rows = rows.rename(columns={"value": "published", "model": "predicted"})
    rows = rows.assign(variant=variant, metric=metric, unit="s", role=HELD_OUT)
    return numbers(rows, "x86-shadow-eager-split-dirty-time")


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
