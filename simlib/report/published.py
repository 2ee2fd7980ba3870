# SPDX-License-Identifier: BSD-3-Clause
"""Every published number beside what the model says of it: fitted or held out, how far off, inside its interval or not.

The error is that of the predicted number over the published one; of a published change in percent it is that of the
ratio which the change stands for, (100 + predicted) over (100 + published).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from simlib import figures
from simlib.calibration import growth, kernbench, migrations, parked, split_walk, teardown
from simlib.figures.style import plain_number, signed
from simlib.fits import Fit, load_fit
from simlib.measurements import data_dir, load
from simlib.parallel import Progress, portion
from simlib.prediction import LEVEL, PredictionResult, predict
from simlib.report import arm64
from simlib.report.arm64 import Study
from simlib.report.block import Chart, Note, Prose, Table
from simlib.report.growth import GrowthStudy
from simlib.report.lockless import LocklessStudy
from simlib.report.migration import MigrationStudy
from simlib.report.page import Section
from simlib.report.split_walk import SplitWalkStudy
from simlib.report.teardown import TeardownStudy

FITTED, HELD_OUT, COUNTED, NONE = ROLES = ("fitted", "held out", "shown only", "not predicted")
"""What a number is to the model: it was calibrated to or chosen on; it was not; a zero, which has no error; or nothing
published says enough to predict it."""

COLUMNS = ("study", "variant", "vcpus", "metric", "published", "unit", "relation", "predicted", "low", "high",
           "error_percent", "role", "inside", "table", "source")  # fmt: skip
"""Columns of the table; ``relation`` is ``up-to`` or ``below`` where a bound was published, else empty."""

FAR = 10.0
"""Percent of error beyond which a number outside of its interval is named as missed."""

WALK_DRAWS = 60
"""Draws of the published deviation, for the intervals of seed 004 in `quick_table`."""

GRANULES = {"4K pages": "4 KiB pages", "2M blocks": "2 MiB blocks"}


def study_of(table: str) -> str:
    """A published table by its name, behind the seed that it belongs to, if it does.

    Examples
    --------
    >>> study_of("arm64-dirty-memory-time"), study_of("x86-tdp-eager-split")
    ('seed 000: arm64-dirty-memory-time', 'x86-tdp-eager-split')
    """
    seed = load(table).source.get("seed")
    return f"seed {seed}: {table}" if seed else table


def source_of(table: str) -> str:
    """Author, date and Message-ID or commit of a published table."""
    source = load(table).source
    return ", ".join(str(source[key]) for key in ("author", "date", "message_id", "commit") if key in source)


def published_table(
    found: Study,
    grown: GrowthStudy,
    moves: MigrationStudy,
    gets: LocklessStudy,
    ends: TeardownStudy,
    walks: SplitWalkStudy,
    *,
    seed: int = 1,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Every published number that a study of the report uses, with what the model says of it.

    Returns: `COLUMNS`, one row a number; NaN where there is no prediction or no interval.

    Parameters
    ----------
    found, grown, moves, gets, ends, walks
        The studies of the report.
    progress : callable, optional
        Called with (what, share done).
    """
    parts = [
        dirty_memory(found.table.name, found.fit.fitted, found.prediction), fault_times(seed, progress),
        parked_times(grown.parked),
        split_beforehand(grown.split_beforehand), configurations(moves.configurations),
        degradation(moves.seconds), lockless_numbers(gets.budget.means), unmapping(ends.unmap),
        teardown_bounds(ends.predictions), split_walks(walks.fits, walks.outs),
    ]  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def quick_table(*, seed: int = 1, draws: int = 2, progress: Progress | None = None) -> pd.DataFrame:
    """The same table from the shipped fits, in a minute or two: nothing is calibrated anew, and intervals are rougher.

    Returns: As of `published_table`.

    Parameters
    ----------
    draws : int
        Of the costs, for the intervals of migrations: too few to judge one number by.
    progress : callable, optional
        Called with (what, share done).
    """
    fit = load_fit(data_dir() / "fits" / "ampere-altra.json")
    vcpus = sorted({int(n) for n in fit.observations["vcpus"]})
    walks = [split_walk.fit(machine, draws=WALK_DRAWS, seed=seed) for machine in split_walk.TABLES]
    outs = [split_walk.left_out(machine, draws=WALK_DRAWS, seed=seed) for machine in split_walk.TABLES]
    paging = growth.growth_fit("shadow-paging-few").estimate
    changes = migrations.configuration_table(draws, seed=seed, progress=portion(progress, 0.2, 0.6))
    _, seconds = migrations.degradation_table(draws, seed=seed, progress=portion(progress, 0.6, 0.9))
    parts = [
        dirty_memory(arm64.TABLE, fit.observations, predict(fit.scenario, vcpus, fit=fit, seed=seed)),
        fault_times(seed, portion(progress, 0.0, 0.2)), parked_times(parked.parked_times()),
        split_beforehand(growth.split_beforehand(paging)), configurations(changes), degradation(seconds),
        lockless_numbers(kernbench.get_means()), unmapping(teardown.unmap_table(teardown.fits())),
        teardown_bounds(teardown.predictions(teardown.fits(math.inf))), split_walks(walks, outs),
    ]  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def misses(table: pd.DataFrame, beyond: float = FAR) -> pd.DataFrame:
    """Held-out numbers that the model misses, the furthest first: outside of their interval, and by more than `beyond`.

    A number without an interval is missed by its error alone.

    Parameters
    ----------
    table : DataFrame
        As of `published_table`.
    beyond : float
        Percent.

    Examples
    --------
    >>> rows = pd.DataFrame({"role": HELD_OUT, "error_percent": [-30.0, 40.0, 25.0], "inside": [None, True, False]})
    >>> misses(rows)["error_percent"].tolist()
    [-30.0, 25.0]
    """
    outside = ~table["inside"].isin([True])
    far = table["error_percent"].abs() > beyond
    found = table[(table["role"] == HELD_OUT) & outside & far]
    return found.sort_values("error_percent", key=lambda error: -error.abs(), kind="stable")


def tidy(rows: pd.DataFrame, table: str | Sequence[str], *, change: bool = False) -> pd.DataFrame:
    """Rows of one study with all of `COLUMNS`: error, and whether the interval holds the published number.

    Parameters
    ----------
    rows : DataFrame
        variant, metric, published, unit, role; vcpus, relation, predicted, low and high where there are any.
    table : str, or one of each row
        Names of the published tables.
    change : bool
        Whether the numbers are changes in percent.

    Examples
    --------
    >>> rows = pd.DataFrame({"variant": ["a"], "metric": "m", "published": 10.0, "unit": "s", "role": "held out",
    ...                      "predicted": 11.0, "low": 10.5, "high": 12.0})
    >>> tidy(rows, "arm64-dirty-memory-time")[["error_percent", "inside"]].round(6).to_numpy().tolist()
    [[10.0, False]]
    >>> round(tidy(rows.assign(unit="%"), "arm64-dirty-memory-time", change=True)["error_percent"].item(), 3)
    0.909
    """
    usual: dict[str, Any] = {"vcpus": np.nan, "relation": "", "predicted": np.nan, "low": np.nan, "high": np.nan}
    rows = rows.assign(**{name: value for name, value in usual.items() if name not in rows})
    tables = [table] * len(rows) if isinstance(table, str) else list(table)
    base = 100.0 if change else 0.0
    published, model = (base + rows[name].to_numpy(dtype=float) for name in ("published", "predicted"))
    exact = (rows["relation"] == "").to_numpy() & (published > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.where(exact, 100 * (model / published - 1), np.nan)
    known = rows[["low", "high"]].notna().all(axis=1) & exact
    inside = (rows["published"] >= rows["low"]) & (rows["published"] <= rows["high"])
    rows = rows.assign(
        error_percent=error, inside=inside.astype(object).where(known, None), table=tables,
        study=[study_of(name) for name in tables], source=[source_of(name) for name in tables],
    )  # fmt: skip
    return rows[list(COLUMNS)].reset_index(drop=True)


def dirty_memory(table: str, observations: pd.DataFrame, prediction: PredictionResult) -> pd.DataFrame:
    """Seed 000: dirty memory time and contentions."""
    rows = observations.rename(columns={"value": "published"})
    frame = prediction.frame.rename(columns={"estimate": "predicted"})
    rows = rows.merge(frame[["variant", "vcpus", "metric", "predicted", "low", "high", "unit"]],
                      on=["variant", "vcpus", "metric"], how="left")  # fmt: skip
    role = np.where(rows["train"], FITTED, np.where(rows["published"] > 0, HELD_OUT, COUNTED))
    return tidy(rows.assign(role=role), table)


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
        parts.append(tidy(rows.assign(role=role, unit="s"), list(tables)))
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
    return tidy(rows.assign(metric=metric, role=role, unit="s"), list(parked["table"]))


def split_beforehand(rows: pd.DataFrame) -> pd.DataFrame:
    """x86: shadow paging with everything split beforehand."""
    metric, variant = "dirty_memory_time, ept=N, eager_page_split=Y", rows["write_percent"].astype(str) + " % written"
    rows = rows.rename(columns={"value": "published", "model": "predicted"})
    rows = rows.assign(variant=variant, metric=metric, unit="s", role=HELD_OUT)
    return tidy(rows, "x86-shadow-eager-split-dirty-time")


def configurations(rows: pd.DataFrame) -> pd.DataFrame:
    """Seed 001: what letting go after 64 pages changes, of three configurations."""
    rows = rows[rows["published_percent"].notna()]
    variant = "configuration " + rows["configuration"].astype(str)
    names = {"published_percent": "published", "model_percent": "predicted"}
    role = rows["role"].map({"fitted": FITTED, "predicted": HELD_OUT})
    rows = rows.rename(columns=names).assign(variant=variant, unit="% change", role=role)
    return tidy(rows, "x86-clear-lock-drop-configurations", change=True)


def degradation(rows: pd.DataFrame) -> pd.DataFrame:
    """The 48 vCPU migration: seconds above a degradation."""
    metric = "seconds above " + rows["level_percent"].astype(str) + " %"
    role = rows["role"].map({"fitted": FITTED, "predicted": HELD_OUT})
    names = {"series": "variant", "published_s": "published", "model_s": "predicted", "low_s": "low", "high_s": "high"}
    rows = rows.rename(columns=names).assign(metric=metric, unit="s", vcpus=48, role=role)
    return tidy(rows, "arm64-migration-degradation")


def lockless_numbers(means: kernbench.Means) -> pd.DataFrame:
    """Seed 002: nothing of it can be predicted; its numbers are tested and read instead."""
    runs = load("x86-kernbench-lockless").frame
    variant = runs["variant"] + ", EPT " + runs["ept"].map({"Y": "on", "N": "off"}) + ", run " + runs["run"].astype(str)
    kernbench = pd.DataFrame({"variant": variant, "vcpus": 12, "metric": "kernbench", "published": runs["real_time_s"]})
    two = pd.DataFrame({"variant": ["before", "after"], "vcpus": 12, "metric": "mean GET",
                        "published": [means.before, means.after]})  # fmt: skip
    parts = ((kernbench, "x86-kernbench-lockless"), (two, "x86-get-dirty-log-lockless"))
    return pd.concat([tidy(rows.assign(unit="s", role=NONE), table) for rows, table in parts], ignore_index=True)


def unmapping(rows: pd.DataFrame) -> pd.DataFrame:
    """Unmapping on arm64, by the memory."""
    tables = [teardown.TABLES[name][0] for name in rows["table"]]
    variant = rows["variant"] + ", " + rows["table"].map(GRANULES) + ", " + rows["memory_gb"].map("{:g} GB".format)
    role = np.where(rows["held_out"], HELD_OUT, FITTED)
    names = {"published_s": "published", "model_s": "predicted", "low_s": "low", "high_s": "high"}
    rows = rows.drop(columns=["table", "variant"]).rename(columns=names)
    return tidy(rows.assign(variant=variant, metric="unmap time", unit="s", role=role), tables)


def teardown_bounds(predictions: pd.DataFrame) -> pd.DataFrame:
    """Seed 003: two bounds, by the reading that blocks map the memory; the cost of a line was read from the first."""
    name = "arm64-teardown-64gb"
    ways = {"before": "both for each entry", "after": "one whole-VM invalidation"}
    mine = predictions.query("memory == '64G' and page_size == '4K' and mapping == 'blocks'").set_index("way")
    rows = []
    for row in load(name).frame.to_dict("records"):
        estimate, low, high = mine.loc[ways[row["variant"]], ["estimate_s", "low_s", "high_s"]]
        rows.append(
            {"variant": f"{row['variant']}, {row['memory_gb']:g} GB", "metric": "teardown time", "unit": "s",
             "published": float(row["teardown_time_s"]), "relation": row["relation"], "predicted": estimate, "low": low,
             "high": high, "role": FITTED if row["variant"] == "before" else HELD_OUT}
        )  # fmt: skip
    return tidy(pd.DataFrame(rows), name)


def split_walks(fits: Sequence[split_walk.WalkFit], outs: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Seed 004: each published change, predicted from the other five of its machine."""
    parts = []
    for fit, out in zip(fits, outs, strict=True):
        variant = f"{fit.machine}, " + out["backing"]
        names = {"scenario": "metric", "published_percent": "published", "predicted_percent": "predicted"}
        rows = out.rename(columns=names).assign(variant=variant, unit="% change", role=HELD_OUT)
        parts.append(tidy(rows, split_walk.TABLES[fit.machine][0], change=True))
    return pd.concat(parts, ignore_index=True)


def readable_summary(table: pd.DataFrame) -> pd.DataFrame:
    """The same, for people to read: what was fitted, what was held out, and how many of those intervals hold."""
    rows = []
    for row in summary(table).to_dict("records"):
        said = {}
        for key in ("fitted", "held_out"):
            median, worst = row[f"{key}_median"], signed(row[f"{key}_worst"])
            several = f": median {plain_number(float(f'{median:.2g}'))}, worst {worst}"
            said[key] = f"{row[key]}" + (", without an error" if np.isnan(median) else several)
            said[key] = f"1: {worst}" if row[key] == 1 and not np.isnan(median) else said[key]
        inside = f"{row['inside']} of {row['with_interval']}" if row["with_interval"] else ""
        rows.append(
            {"published table": row["study"], "metric": row["metric"], "numbers": row["numbers"],
             "fitted: errors, %": said["fitted"] if row["fitted"] else "", "held out: errors, %":
             said["held_out"] if row["held_out"] else "not predicted" if row["not_predicted"] else "",
             "held out, inside": inside}
        )  # fmt: skip
    return pd.DataFrame(rows)


def readable_misses(missed: pd.DataFrame) -> pd.DataFrame:
    """What `misses` names, for people to read."""
    with_unit = [
        f"{value:.4g} {unit}" for value, unit in zip(missed["published"], missed["unit"].map(_unit), strict=True)
    ]
    model = [f"{value:.4g}" for value in missed["predicted"]]
    ends = [
        "" if np.isnan(low) else f"{low:.4g} to {high:.4g}"
        for low, high in zip(missed["low"], missed["high"], strict=True)
    ]
    vcpus = ["" if np.isnan(n) else f"{n:g}" for n in missed["vcpus"]]
    return pd.DataFrame(
        {"published table": missed["study"], "what": missed["variant"], "vCPUs": vcpus, "metric": missed["metric"],
         "published": with_unit, "predicted": model, "interval": ends,
         "error, %": [signed(error) for error in missed["error_percent"]]}
    )  # fmt: skip


def _unit(unit: str) -> str:
    return {"% change": "%"}.get(unit, unit)


def in_order(study: str) -> tuple[bool, str]:
    """Key that puts the seeds before what stands beside them."""
    return not study.startswith("seed "), study


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """One row a study and metric: how many numbers, which of them fitted, errors of those and of the held-out ones.

    Returns: study, metric, numbers, fitted, held_out, not_predicted; fitted_median, fitted_worst, held_out_median,
    held_out_worst (percent, the worst with its sign; bounds have none); with_interval, inside (of all that have an
    interval), held_out_inside.
    """
    rows = []
    pairs = table[["study", "metric"]].drop_duplicates().itertuples(index=False)
    for study, metric in sorted(pairs, key=lambda pair: in_order(pair[0])):
        mine = table[(table["study"] == study) & (table["metric"] == metric)]
        row: dict[str, Any] = {"study": study, "metric": metric, "numbers": len(mine)}
        for role in (FITTED, HELD_OUT):
            part = mine[mine["role"] == role]
            errors = part["error_percent"].dropna()
            key = role.replace(" ", "_")
            row[key] = len(part)
            row[f"{key}_median"] = float(errors.abs().median()) if len(errors) else np.nan
            row[f"{key}_worst"] = max(errors.tolist(), key=abs, default=np.nan)
        row["not_predicted"] = int((mine["role"] == NONE).sum())
        judged = mine[(mine["role"] == HELD_OUT) & mine["inside"].notna()]
        row["with_interval"], row["inside"] = len(judged), int(judged["inside"].astype(bool).sum())
        rows.append(row)
    return pd.DataFrame(rows)


def finding(table: pd.DataFrame) -> str:
    """What the table says, in a sentence or two.

    Examples
    --------
    >>> rows = pd.DataFrame({"study": "seed 000", "variant": "a", "vcpus": [1, 64], "metric": "m", "role": ["fitted",
    ...                      "held out"], "error_percent": [1.0, -7.5], "inside": [None, True]})
    >>> print(finding(rows))
    2 published numbers: 1 fitted, 1 held out. Of 1 held-out numbers with an interval 1 lie inside it. Furthest ...
    """
    counts = table["role"].value_counts()
    parts = [f"{counts[role]} {role}" for role in ROLES if role in counts]
    held = table[table["role"] == HELD_OUT]
    judged = held[held["inside"].notna()]
    text = f"{len(table)} published numbers: {', '.join(parts)}."
    if len(judged):
        inside = int(judged["inside"].astype(bool).sum())
        text += f" Of {len(judged)} held-out numbers with an interval {inside} lie inside it."
    errors = held[held["error_percent"].notna()]
    if len(errors):
        worst = max(errors.to_dict("records"), key=lambda row: abs(row["error_percent"]))
        vcpus = "" if pd.isna(worst["vcpus"]) else f" with {worst['vcpus']:g} vCPUs"
        text += (
            f" Furthest off of the held-out ones: {worst['study']}, {worst['variant']}, {worst['metric']}{vcpus}, "
            f"{signed(worst['error_percent'])} %."
        )
    return text


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
