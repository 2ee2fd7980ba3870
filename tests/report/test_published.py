# SPDX-License-Identifier: BSD-3-Clause
"""The table of every published number: all of them, once, with errors and roles that can be counted again."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from simlib.figures import published_errors
from simlib.measurements import load
from simlib.report import Chart, Report, Table, published
from simlib.studies import study
from simlib.studies.arm64 import altra
from simlib.studies.lockless import kernbench
from simlib.studies.migrations import degraded, drops
from simlib.studies.published import finding, published_table, readable_summary, summary
from simlib.studies.study import CHANGE, COUNTED, FITTED, HELD_OUT, NONE, ROLES, judged, numbers

pytestmark = pytest.mark.study


@pytest.fixture(scope="module")
def parts():
    seconds = pd.DataFrame({"variant": "arm64-after", "metric": ["seconds above 99 %", "seconds above 10 %"],
                            "published": [30.0, 0.0], "predicted": [33.0, 1.0], "low": [29.0, 0.0],
                            "high": [34.0, 2.0], "role": [HELD_OUT, FITTED], "unit": "s", "vcpus": 48})  # fmt: skip
    change = pd.DataFrame({"variant": ["configuration 3"], "metric": "clear_cpu_time", "published": 5200.0,
                           "predicted": 3526.0, "low": 2888.0, "high": 3600.0, "role": FITTED,
                           "unit": CHANGE})  # fmt: skip
    return {
        "dirty": altra.shipped_numbers(),
        "x86": study("x86").found().numbers,
        "changes": numbers(change, drops.TABLE),
        "seconds": numbers(seconds, degraded.TABLE),
        "gets": kernbench.published_numbers(),
        "teardown": study("teardown").found().numbers,
        "walks": study("split_walk").found().numbers,
    }


@pytest.fixture(scope="module")
def table(parts):
    return published_table(parts.values())


def test_every_number_of_a_published_table_is_there_once(parts):
    gets = ("x86-kernbench-lockless", "x86-get-dirty-log-lockless")
    assert len(parts["gets"]) == sum(len(load(name).frame) for name in gets)
    for name, rows in parts.items():
        assert not rows.duplicated(["table", "variant", "vcpus", "metric"]).any(), name


def test_each_row_says_what_it_is_and_where_it_comes_from(table):
    assert set(table["role"]) == set(ROLES)
    assert table["source"].str.len().gt(10).all()
    assert {study[:8] for study in table["study"] if study.startswith("seed ")} == {f"seed 00{n}" for n in range(5)}
    assert (table["study"].str.split(": ").str[-1] == table["table"]).all()
    assert table.loc[table["role"] == NONE, "predicted"].isna().all()
    assert table.loc[table["role"].isin([FITTED, HELD_OUT]), "predicted"].notna().all()


def test_errors_and_intervals_are_counted_again(parts, table):
    plain = table[(table["unit"] != "% change") & table["error_percent"].notna()]
    expected = 100 * (plain["predicted"] / plain["published"] - 1)
    np.testing.assert_allclose(plain["error_percent"], expected, rtol=1e-12, atol=1e-9)
    known = table[table["inside"].notna()]
    again = known["published"].between(known["low"], known["high"])
    assert again.tolist() == known["inside"].astype(bool).tolist()
    change = judged(parts["changes"]).iloc[0]  # 53 times published, 36.26 predicted
    assert change["error_percent"] == pytest.approx(100 * (36.26 / 53 - 1))
    assert change["inside"] is False
    # What is 0, or a bound, has no error; a bound has no inside either.
    assert table.loc[(table["relation"] != "") | (table["published"] == 0), "error_percent"].isna().all()


def test_the_summary_adds_up_and_pools_nothing(table):
    found = summary(table)
    assert not found.duplicated(["study", "metric"]).any()
    assert found["numbers"].sum() == len(table)
    counted = found[["fitted", "held_out", "not_predicted"]].to_numpy().sum()
    assert counted == (table["role"] != COUNTED).sum()
    seeds = found["study"].str.startswith("seed ").tolist()
    assert seeds == sorted(seeds, reverse=True)  # the seeds come first
    row, mine = (
        frame[frame["study"].str.startswith("seed 000: arm64-dirty") & (frame["metric"] == "dirty_memory_time")]
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


def test_the_section_has_the_summary_first_and_all_numbers_folded(table):
    section = published.section(table)
    tables = [block for block in section.blocks if isinstance(block, Table)]
    charts = [block for block in section.blocks if isinstance(block, Chart)]
    assert [block.folded for block in tables] == [False, True]
    assert len(tables[1].rows) == len(table)
    assert len(tables[1].rows) == len(tables[1].frame)
    assert charts[0].caption == finding(table)
    html = Report("r", sections=[section]).to_html()
    assert html.index("By published table and metric") < html.index("<details")
    assert "up to 12" in html  # a bound is shown as one


def test_the_figure_draws_each_error_by_its_role(table):
    figure = published_errors(table)
    drawn = {trace.name: len(trace.x) for trace in figure.data}
    known = table[table["error_percent"].notna()]["role"].value_counts()
    assert drawn == {FITTED: known[FITTED], HELD_OUT: known[HELD_OUT]}
