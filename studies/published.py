# SPDX-License-Identifier: BSD-3-Clause
"""All published numbers with their predictions: errors by table, and the numbers that the model misses.

Errors of different tables are not pooled, because an overall median would hide the tables that the model misses.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from simlib.figures import style
from simlib.figures.fit import ROLE_LOOKS
from simlib.figures.frame import TEXT, checked, in_order, number, reads
from simlib.figures.results import Answer
from simlib.figures.style import plain_number, signed
from simlib.measurements import load
from studies.study import CHANGE, COLUMNS, FITTED, HELD_OUT, NOT_PREDICTED, ROLES, with_errors

MISS_PERCENT = 10.0
"""Error beyond which a number outside its interval counts as missed, percent."""


def study_of(table: str) -> str:
    """Name of a published table, preceded by its posting if it belongs to one.

    >>> study_of("arm64-dirty-memory-time"), study_of("x86-tdp-eager-split")
    ('January 2022 series: arm64-dirty-memory-time', 'x86-tdp-eager-split')
    """
    posting = load(table).source.get("posting")
    return f"{posting}: {table}" if posting else table


def source_of(table: str) -> str:
    """Author, date, and Message-ID or commit of a published table."""
    source = load(table).source
    return ", ".join(str(source[key]) for key in ("author", "date", "message_id", "commit") if key in source)


def published_table(numbers: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Combine the published numbers of several studies (`StudyFindings.numbers`); tables of postings come first.

    Returns: ``study``, `studies.study.COLUMNS`, ``error_percent``, ``inside`` and ``source``, one row for each number;
    NaN where there is no prediction or no interval.
    """
    rows = with_errors(pd.concat([part[list(COLUMNS)] for part in numbers if len(part)], ignore_index=True))
    for column, describe in (("study", study_of), ("source", source_of)):
        rows[column] = rows["table"].map({name: describe(name) for name in rows["table"].unique()})
    rows = rows.sort_values("study", key=lambda names: names.map(lambda name: (": " not in name, name)), kind="stable")
    first, last = COLUMNS[: COLUMNS.index("role")], ("error_percent", "role", "inside", "table", "source")
    return rows[["study", *first, *last]]


def misses(table: pd.DataFrame) -> pd.DataFrame:
    """Held-out numbers that the model misses, largest error first.

    A number is missed if it is outside its interval and off by more than `MISS_PERCENT`; without an interval only the
    error decides.

    - `table`: rows of `published_table`.

    >>> rows = pd.DataFrame({"role": HELD_OUT, "error_percent": [-30.0, 40.0, 25.0], "inside": [None, True, False]})
    >>> misses(rows)["error_percent"].tolist()
    [-30.0, 25.0]
    """
    outside, far = ~table["inside"].isin([True]), table["error_percent"].abs() > MISS_PERCENT
    missed = table[(table["role"] == HELD_OUT) & outside & far]
    return missed.sort_values("error_percent", key=lambda error: -error.abs(), kind="stable")


def short_summary(table: pd.DataFrame) -> pd.DataFrame:
    """Count the numbers of each published table, and name its largest held-out error."""
    rows = []
    for study, numbers in table.groupby("study", sort=False):
        held = numbers[numbers["role"] == HELD_OUT]
        row = {"published table": study, "numbers": len(numbers), "fitted": int((numbers["role"] == FITTED).sum()),
               "held out": len(held), "missed": len(misses(held)), "furthest": ""}  # fmt: skip
        if held["error_percent"].notna().any():
            worst = held.iloc[int(held["error_percent"].abs().argmax())]
            vcpus = "" if np.isnan(worst["vcpus"]) else f", {worst['vcpus']:g} vCPUs"
            row["furthest"] = f"{signed(worst['error_percent'])} %: {worst['metric']}, {worst['variant']}{vcpus}"
        rows.append(row)
    return pd.DataFrame(rows)


def readable_summary(table: pd.DataFrame) -> pd.DataFrame:
    """Format `summary` for display: errors of fitted and of held-out numbers, and the coverage of the intervals."""

    def errors(row: dict[Any, Any], key: str) -> str:
        if np.isnan(row[f"{key}_median"]):
            return f"{row[key]}, without an error"
        median, worst = plain_number(float(f"{row[f'{key}_median']:.2g}")), signed(row[f"{key}_worst"])
        return f"1: {worst}" if row[key] == 1 else f"{row[key]}: median {median}, worst {worst}"

    rows = []
    for row in summary(table).to_dict("records"):
        fitted = errors(row, "fitted") if row["fitted"] else ""
        held = errors(row, "held_out") if row["held_out"] else "not predicted" if row["not_predicted"] else ""
        inside = f"{row['inside']} of {row['with_interval']}" if row["with_interval"] else ""
        rows.append((row["study"], row["metric"], row["numbers"], fitted, held, inside))
    return pd.DataFrame(rows, columns=["published table", "metric", "numbers", "fitted: errors, %",
                                       "held out: errors, %", "held out, inside"])  # fmt: skip


def readable_misses(missed: pd.DataFrame) -> pd.DataFrame:
    """Format rows of `misses` for display."""
    rows = []
    for row in missed.to_dict("records"):
        ends = "" if np.isnan(row["low"]) else f"{row['low']:.4g} to {row['high']:.4g}"
        published = f"{row['published']:.4g} {'%' if row['unit'] == CHANGE else row['unit']}"
        vcpus = "" if np.isnan(row["vcpus"]) else f"{row['vcpus']:g}"
        numbers = (published, f"{row['predicted']:.4g}", ends, signed(row["error_percent"]))
        rows.append((row["study"], row["variant"], vcpus, row["metric"], *numbers))
    columns = ["published table", "variant", "vCPUs", "metric", "published", "predicted", "interval", "error, %"]
    return pd.DataFrame(rows, missed.index, columns)


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each study and metric: counts, and errors of the fitted and of the held-out numbers.

    Returns: study, metric, numbers, fitted, held_out, not_predicted; fitted_median, fitted_worst, held_out_median,
    held_out_worst (percent: medians of the absolute error, the worst with its sign; bounds have no error);
    with_interval and inside (held-out numbers that have an interval, and those inside it).
    """
    rows = []
    for (study, metric), numbers in table.groupby(["study", "metric"], sort=False):
        row: dict[str, Any] = {"study": study, "metric": metric, "numbers": len(numbers)}
        for role in (FITTED, HELD_OUT):
            part, key = numbers[numbers["role"] == role], role.replace(" ", "_")
            errors = part["error_percent"].dropna()
            row[key] = len(part)
            row[f"{key}_median"] = float(errors.abs().median()) if len(errors) else np.nan
            row[f"{key}_worst"] = max(errors.tolist(), key=abs, default=np.nan)
        row["not_predicted"] = int((numbers["role"] == NOT_PREDICTED).sum())
        inside = numbers.loc[numbers["role"] == HELD_OUT, "inside"].dropna()
        row["with_interval"], row["inside"] = len(inside), int(inside.sum())
        rows.append(row)
    return pd.DataFrame(rows)


def caption(table: pd.DataFrame) -> str:
    """Return a caption that counts the numbers of a table by role, and names the largest error."""
    counts = table["role"].value_counts()
    parts = [f"{counts[role]} {role}" for role in ROLES if role in counts]
    held = table[table["role"] == HELD_OUT]
    inside = held["inside"].dropna()
    text = f"{len(table)} published numbers: {', '.join(parts)}."
    if len(inside):
        text += f" {int(inside.sum())} of {len(inside)} held-out numbers with an interval lie inside it."
    errors = held[held["error_percent"].notna()]
    if len(errors):
        worst = max(errors.to_dict("records"), key=lambda row: abs(row["error_percent"]))
        vcpus = "" if pd.isna(worst["vcpus"]) else f" with {worst['vcpus']:g} vCPUs"
        text += (
            f" The largest held-out error: {worst['study']}, {worst['variant']}, {worst['metric']}{vcpus}, "
            f"{signed(worst['error_percent'])} %."
        )
    return text


_DRAWN = dict.fromkeys(("study", "variant", "metric", "role"), TEXT)
_DRAWN |= dict.fromkeys(("vcpus", "error_percent"), number(gaps=True))


@reads("table", _DRAWN)
def published_errors(table: pd.DataFrame, title: str = "Predicted against published") -> go.Figure:
    """Signed errors, one line per study and metric; filled: fitted, open: held out.

    Raises `InputError` if there is no row with an error.

    - `table`: columns ``study``, ``variant``, ``metric``, ``vcpus`` (or NaN), ``role``, ``error_percent`` (NaN: not
      drawn).

    >>> rows = pd.DataFrame({"study": "the January 2022 series", "variant": "a", "metric": "m", "vcpus": [1, 64],
    ...                      "role": ["fitted", "held out"], "error_percent": [1.0, -7.5]})
    >>> [(trace.name, trace.x.tolist()) for trace in published_errors(rows).data]
    [('fitted', [1.0]), ('held out', [-7.5])]
    """
    rows = table[np.isfinite(table["error_percent"]) & table["role"].isin(ROLE_LOOKS)]
    rows = checked(rows, _DRAWN, "table")
    rows["line"] = rows["study"] + "<br>" + rows["metric"]
    lines = in_order(rows["line"])
    figure = go.Figure()
    for i, (role, colour) in enumerate(zip(ROLE_LOOKS, (style.MUTED, style.PALETTE[0]), strict=True)):
        role_rows = rows[rows["role"] == role]
        if role_rows.empty:
            continue
        vcpus = ["" if np.isnan(n) else f", {n:g} vCPUs" for n in role_rows["vcpus"]]
        figure.add_scatter(
            x=role_rows["error_percent"],
            y=[lines.index(line) + (0.14 if i else -0.14) for line in role_rows["line"]],
            mode="markers", name=role, marker={"size": 8, "color": colour, **ROLE_LOOKS[role]}, cliponaxis=False,
            text=[f"{variant}{n}" for variant, n in zip(role_rows["variant"], vcpus, strict=True)],
            hovertemplate=f"%{{text}}: %{{x:+.1f}} %<extra>{role}</extra>",
        )  # fmt: skip
    near = 10  # half-width of the band, percent
    figure.add_vrect(x0=-near, x1=near, fillcolor=style.translucent(style.MUTED, 0.13), line_width=0, layer="below")
    figure.update_xaxes(title="predicted − published, % of published", zeroline=True, zerolinecolor=style.INK)
    figure.update_yaxes(style.row_axis(lines) | {"tickfont": {"size": 10}})
    figure.update_layout(height=max(style.HEIGHT, 36 * len(lines) + 220))
    subtitle = f"right of 0: predicted longer, or more, than published; shaded: within {near} %"
    return style.titled(figure, title, subtitle, entries_per_row=5)


def answer(table: pd.DataFrame) -> Answer:
    """Return the conclusion: counts of the held-out numbers within 10 % and 20 %, and of the missed numbers."""
    held = table[(table["role"] == HELD_OUT) & table["error_percent"].notna()]
    errors, missed = held["error_percent"].abs(), misses(table)
    counts = " and ".join(f"{int((errors <= limit).sum())} within {limit} %" for limit in (10, 20))
    return Answer(
        f"Of {len(held)} held-out published numbers, the model predicts {counts}. It misses {len(missed)}, in "
        f"{missed['table'].nunique()} tables: they are off by more than {MISS_PERCENT:g} % and outside their interval. "
        "Where no table covers your machine, workload or strategy, the order of strategies is more reliable than the "
        "differences between them. Neither is reliable if it depends on a cost that nobody measured."
    )
