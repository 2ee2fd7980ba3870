# SPDX-License-Identifier: BSD-3-Clause
"""Every published number beside what the model says of it: how far off it is, and what is missed.

Errors of different tables are not pooled: a median over all would hide the tables that fail.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from simlib.figures.style import plain_number, signed
from simlib.measurements import load
from studies.study import CHANGE, COLUMNS, FITTED, HELD_OUT, NONE, ROLES, Answer, judged

FAR = 10.0
"""Percent of error beyond which a number outside of its interval is named as missed."""


def study_of(table: str) -> str:
    """A published table by its name, behind the posting that it belongs to, if it does.

    >>> study_of("arm64-dirty-memory-time"), study_of("x86-tdp-eager-split")
    ('January 2022 series: arm64-dirty-memory-time', 'x86-tdp-eager-split')
    """
    posting = load(table).source.get("posting")
    return f"{posting}: {table}" if posting else table


def source_of(table: str) -> str:
    """Author, date and Message-ID or commit of a published table."""
    source = load(table).source
    return ", ".join(str(source[key]) for key in ("author", "date", "message_id", "commit") if key in source)


def published_table(numbers: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Every published number of some studies (`Found.numbers`), and the model's: first the postings' tables.

    Returns: ``study``, `studies.study.COLUMNS`, ``error_percent``, ``inside`` and ``source``, one row a number;
    NaN where there is no prediction or no interval.
    """
    rows = judged(pd.concat([one[list(COLUMNS)] for one in numbers if len(one)], ignore_index=True))
    names = list(dict.fromkeys(rows["table"]))
    rows = rows.assign(**{
        column: rows["table"].map({name: of(name) for name in names})
        for column, of in (("study", study_of), ("source", source_of))
    })  # fmt: skip
    rows = rows.sort_values("study", key=lambda names: names.map(lambda name: (": " not in name, name)), kind="stable")
    first, last = COLUMNS[: COLUMNS.index("role")], ("error_percent", "role", "inside", "table", "source")
    return rows[["study", *first, *last]]


def misses(table: pd.DataFrame) -> pd.DataFrame:
    """Held-out numbers that the model misses, the furthest first: outside of their interval, and by more than `FAR`.

    A number without an interval is missed by its error alone.

    - `table`: as of `published_table`.

    >>> rows = pd.DataFrame({"role": HELD_OUT, "error_percent": [-30.0, 40.0, 25.0], "inside": [None, True, False]})
    >>> misses(rows)["error_percent"].tolist()
    [-30.0, 25.0]
    """
    outside = ~table["inside"].isin([True])
    far = table["error_percent"].abs() > FAR
    found = table[(table["role"] == HELD_OUT) & outside & far]
    return found.sort_values("error_percent", key=lambda error: -error.abs(), kind="stable")


def short_summary(table: pd.DataFrame) -> pd.DataFrame:
    """One row a published table: its numbers, those held out and missed, and the one that is furthest off."""
    rows = []
    for study in table["study"].unique():
        mine = table[table["study"] == study]
        held = mine[mine["role"] == HELD_OUT]
        row = {"published table": study, "numbers": len(mine), "fitted": int((mine["role"] == FITTED).sum()),
               "held out": len(held), "missed": len(misses(held)), "furthest": ""}  # fmt: skip
        if held["error_percent"].notna().any():
            worst = held.loc[held["error_percent"].abs().idxmax()]
            vcpus = "" if np.isnan(worst["vcpus"]) else f", {worst['vcpus']:g} vCPUs"
            row["furthest"] = f"{signed(worst['error_percent'])} %: {worst['metric']}, {worst['variant']}{vcpus}"
        rows.append(row)
    return pd.DataFrame(rows)


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
        f"{value:.4g} {unit}"
        for value, unit in zip(missed["published"], missed["unit"].replace(CHANGE, "%"), strict=True)
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


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """One row a study and metric: how many numbers, which of them fitted, errors of those and of the held-out ones.

    Returns: study, metric, numbers, fitted, held_out, not_predicted; fitted_median, fitted_worst, held_out_median,
    held_out_worst (percent, the worst with its sign; bounds have none); with_interval, inside (of the
    held-out ones that have an interval).
    """
    rows = []
    pairs = table[["study", "metric"]].drop_duplicates().itertuples(index=False)
    for study, metric in pairs:
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
        inside = mine.loc[mine["role"] == HELD_OUT, "inside"].dropna()
        row["with_interval"], row["inside"] = len(inside), int(inside.sum())
        rows.append(row)
    return pd.DataFrame(rows)


def finding(table: pd.DataFrame) -> str:
    """What the table says, in a sentence or two."""
    counts = table["role"].value_counts()
    parts = [f"{counts[role]} {role}" for role in ROLES if role in counts]
    held = table[table["role"] == HELD_OUT]
    inside = held["inside"].dropna()
    text = f"{len(table)} published numbers: {', '.join(parts)}."
    if len(inside):
        text += f" Of {len(inside)} held-out numbers with an interval {int(inside.sum())} lie inside it."
    errors = held[held["error_percent"].notna()]
    if len(errors):
        worst = max(errors.to_dict("records"), key=lambda row: abs(row["error_percent"]))
        vcpus = "" if pd.isna(worst["vcpus"]) else f" with {worst['vcpus']:g} vCPUs"
        text += (
            f" Furthest off of the held-out ones: {worst['study']}, {worst['variant']}, {worst['metric']}{vcpus}, "
            f"{signed(worst['error_percent'])} %."
        )
    return text


def answer(table: pd.DataFrame) -> Answer:
    """How many held-out numbers are how near, and how many are missed."""
    held = table[(table["role"] == HELD_OUT) & table["error_percent"].notna()]
    errors, missed = held["error_percent"].abs(), misses(table)
    counts = " and ".join(f"{int((errors <= near).sum())} within {near} %" for near in (10, 20))
    return Answer(
        f"Of {len(held)} published numbers that the model did not see, it predicts {counts}. It misses {len(missed)}, "
        f"in {missed['table'].nunique()} tables: they are off by more than {FAR:g} % and outside of their interval. "
        "If no table covers your machine, workload or strategy, trust the order of strategies more than the distance "
        "between them. Trust neither if the answer depends on a cost that nobody measured."
    )
