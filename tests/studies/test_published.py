# SPDX-License-Identifier: BSD-3-Clause
"""The table of every published number: all of them, once, with errors and roles that can be counted again."""

from __future__ import annotations

import numpy as np
import pytest

from simlib.figures import published_errors
from simlib.measurements import load
from studies import every
from studies.published import finding, misses, published_table, readable_summary, short_summary, summary
from studies.study import COUNTED, FITTED, HELD_OUT, NONE, ROLES

pytestmark = pytest.mark.study


@pytest.fixture(scope="module")
def parts():
    return {study.name: study.found().numbers for study in every()}


@pytest.fixture(scope="module")
def table(parts):
    return published_table(parts.values())


def test_every_number_of_a_published_table_is_there_once(parts):
    gets = ("x86-kernbench-lockless", "x86-get-dirty-log-lockless")
    assert len(parts["lockless"]) == sum(len(load(name).frame) for name in gets)
    for name, rows in parts.items():
        assert not rows.duplicated(["table", "variant", "vcpus", "metric"]).any(), name


def test_each_row_says_what_it_is_and_where_it_comes_from(table):
    assert set(table["role"]) == set(ROLES)
    assert table["source"].str.len().gt(10).all()
    assert {study.split(": ")[0] for study in table["study"] if ": " in study} == {
        "January 2022 series", "April 2024 mail", "2013 series", "December 2019 mail", "June 2026 mail",
    }  # fmt: skip
    assert (table["study"].str.split(": ").str[-1] == table["table"]).all()
    assert table.loc[table["role"] == NONE, "predicted"].isna().all()
    assert table.loc[table["role"].isin([FITTED, HELD_OUT]), "predicted"].notna().all()


def test_errors_and_intervals_are_counted_again(table):
    plain = table[(table["unit"] != "% change") & table["error_percent"].notna()]
    expected = 100 * (plain["predicted"] / plain["published"] - 1)
    np.testing.assert_allclose(plain["error_percent"], expected, rtol=1e-12, atol=1e-9)
    known = table[table["inside"].notna()]
    again = known["published"].between(known["low"], known["high"])
    assert again.tolist() == known["inside"].astype(bool).tolist()
    # What is 0, or a bound, has no error; a bound has no inside either.
    assert table.loc[(table["relation"] != "") | (table["published"] == 0), "error_percent"].isna().all()


def test_the_summary_adds_up_and_pools_nothing(table):
    found = summary(table)
    assert not found.duplicated(["study", "metric"]).any()
    assert found["numbers"].sum() == len(table)
    counted = found[["fitted", "held_out", "not_predicted"]].to_numpy().sum()
    assert counted == (table["role"] != COUNTED).sum()
    postings = found["study"].str.contains(": ").tolist()
    assert postings == sorted(postings, reverse=True)  # they come first
    row, mine = (
        frame[
            frame["study"].str.startswith("January 2022 series: arm64-dirty") & (frame["metric"] == "dirty_memory_time")
        ]
        for frame in (found, table)
    )
    row = row.iloc[0]
    held = mine.loc[mine["role"] == HELD_OUT, "error_percent"]
    assert row["held_out_median"] == pytest.approx(held.abs().median())
    assert abs(row["held_out_worst"]) == pytest.approx(held.abs().max())
    shown = readable_summary(table)
    assert len(shown) == len(found)
    assert f"{row['held_out']}: median {row['held_out_median']:.2g}, worst" in "; ".join(shown["held out: errors, %"])
    assert row["inside"] == mine.loc[mine["role"] == HELD_OUT, "inside"].astype(bool).sum() <= row["with_interval"]


def test_the_sentence_names_the_worst_held_out_number(table):
    text = finding(table)
    held = table[(table["role"] == HELD_OUT) & table["error_percent"].notna()]
    worst = held.loc[held["error_percent"].abs().idxmax()]
    assert text.startswith(f"{len(table)} published numbers")
    assert f"{worst['variant']}, {worst['metric']}" in text
    for role, count in table["role"].value_counts().items():
        assert f"{count} {role}" in text


def test_the_short_table_counts_every_number_and_every_miss(table):
    found = short_summary(table)
    assert found["numbers"].sum() == len(table)
    assert found["missed"].sum() == len(misses(table))
    worst = table[table["role"] == HELD_OUT]["error_percent"].abs().max()
    assert found["furthest"].str.contains(f"{worst:.3g}", regex=False).any()


def test_the_figure_draws_each_error_by_its_role(table):
    figure = published_errors(table)
    drawn = {trace.name: len(trace.x) for trace in figure.data}
    known = table[table["error_percent"].notna()]["role"].value_counts()
    assert drawn == {FITTED: known[FITTED], HELD_OUT: known[HELD_OUT]}
