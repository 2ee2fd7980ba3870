# SPDX-License-Identifier: BSD-3-Clause
"""Tests of the table of all published numbers: completeness, errors, roles and summaries."""

from __future__ import annotations

import numpy as np
import pytest

from simlib.measurements import load
from studies import all_studies
from studies.published import (
    caption,
    misses,
    published_errors,
    published_table,
    readable_summary,
    short_summary,
    summary,
)
from studies.study import FITTED, HELD_OUT, NOT_PREDICTED, ROLES, SHOWN_ONLY

pytestmark = pytest.mark.study


@pytest.fixture(scope="module")
def parts():
    return {study.name: study.load_or_compute().numbers for study in all_studies()}


@pytest.fixture(scope="module")
def table(parts):
    return published_table(parts.values())


def test_each_published_number_occurs_once(parts):
    tables = ("x86-kernbench-lockless", "x86-get-dirty-log-lockless")
    assert len(parts["lockless"]) == sum(len(load(name).frame) for name in tables)
    for name, rows in parts.items():
        assert not rows.duplicated(["table", "variant", "vcpus", "metric"]).any(), name


def test_each_row_has_a_role_and_a_source(table):
    assert set(table["role"]) == set(ROLES)
    assert table["source"].str.len().gt(10).all()
    assert {study.split(": ")[0] for study in table["study"] if ": " in study} == {
        "January 2022 series", "April 2024 mail", "2013 series", "December 2019 mail", "June 2026 mail",
    }  # fmt: skip
    assert (table["study"].str.split(": ").str[-1] == table["table"]).all()
    assert table.loc[table["role"] == NOT_PREDICTED, "predicted"].isna().all()
    assert table.loc[table["role"].isin([FITTED, HELD_OUT]), "predicted"].notna().all()


def test_errors_and_coverage_match_a_recomputation(table):
    plain = table[(table["unit"] != "% change") & table["error_percent"].notna()]
    expected = 100 * (plain["predicted"] / plain["published"] - 1)
    np.testing.assert_allclose(plain["error_percent"], expected, rtol=1e-12, atol=1e-9)
    known = table[table["inside"].notna()]
    inside = known["published"].between(known["low"], known["high"])
    assert inside.tolist() == known["inside"].astype(bool).tolist()
    # A bound and a published zero have no error.
    assert table.loc[(table["relation"] != "") | (table["published"] == 0), "error_percent"].isna().all()


def test_the_summary_adds_up_without_pooling_tables(table):
    summaries = summary(table)
    assert not summaries.duplicated(["study", "metric"]).any()
    assert summaries["numbers"].sum() == len(table)
    counted = summaries[["fitted", "held_out", "not_predicted"]].to_numpy().sum()
    assert counted == (table["role"] != SHOWN_ONLY).sum()
    postings = summaries["study"].str.contains(": ").tolist()
    assert postings == sorted(postings, reverse=True)  # postings come first
    row, numbers = (
        frame[
            frame["study"].str.startswith("January 2022 series: arm64-dirty") & (frame["metric"] == "dirty_memory_time")
        ]
        for frame in (summaries, table)
    )
    row = row.iloc[0]
    held = numbers.loc[numbers["role"] == HELD_OUT, "error_percent"]
    assert row["held_out_median"] == pytest.approx(held.abs().median())
    assert abs(row["held_out_worst"]) == pytest.approx(held.abs().max())
    readable = readable_summary(table)
    assert len(readable) == len(summaries)
    assert f"{row['held_out']}: median {row['held_out_median']:.2g}, worst" in "; ".join(
        readable["held out: errors, %"]
    )
    assert (
        row["inside"] == numbers.loc[numbers["role"] == HELD_OUT, "inside"].astype(bool).sum() <= row["with_interval"]
    )


def test_the_caption_names_the_largest_held_out_error(table):
    text = caption(table)
    held = table[(table["role"] == HELD_OUT) & table["error_percent"].notna()]
    worst = held.loc[held["error_percent"].abs().idxmax()]
    assert text.startswith(f"{len(table)} published numbers")
    assert f"{worst['variant']}, {worst['metric']}" in text
    for role, count in table["role"].value_counts().items():
        assert f"{count} {role}" in text


def test_the_short_summary_counts_numbers_and_misses(table):
    summaries = short_summary(table)
    assert summaries["numbers"].sum() == len(table)
    assert summaries["missed"].sum() == len(misses(table))
    worst = table[table["role"] == HELD_OUT]["error_percent"].abs().max()
    assert summaries["furthest"].str.contains(f"{worst:.3g}", regex=False).any()


def test_the_figure_draws_errors_by_role(table):
    figure = published_errors(table)
    drawn = {trace.name: len(trace.x) for trace in figure.data}
    known = table[table["error_percent"].notna()]["role"].value_counts()
    assert drawn == {FITTED: known[FITTED], HELD_OUT: known[HELD_OUT]}
