# SPDX-License-Identifier: BSD-3-Clause
"""Real migrations beside what was predicted of them before they ran, and the published one."""

from __future__ import annotations

import pandas as pd
import pytest

from simlib.lab.migration import model
from simlib.lab.migration.forecast import FIT_TABLES, load_predicted
from simlib.measurements import load
from studies import converge
from studies.converge import published
from studies.study import with_errors


@pytest.mark.parametrize(("name", "migrations"), [(converge.FIRST, 48), (converge.AGAIN, 42)])
def test_predictions_stand_as_they_were_and_most_came_true(name, migrations):
    both = load_predicted(name)
    found = model.score(both).set_index("what")["value"]
    assert len(both) == migrations
    assert not both["total_ms_expected"].isna().any()
    assert found["converges or not, share right"] == 1.0
    assert found["synchronisations, median off by"] <= 1
    assert found["throttle_percent, median off by"] <= 10
    assert found["total_ms, median error"] < 0.03
    assert found["transferred_bytes, median error"] < 0.02


def test_intervals_that_know_what_was_left_over_hold_what_they_should():
    """Those of the first ones did not: 65 % of the times."""
    inside = model.score(load_predicted(converge.AGAIN)).set_index("what")["inside"]
    assert 0.8 <= inside["total_ms, median error"] <= 0.97
    assert 0.8 <= inside["transferred_bytes, median error"] <= 0.97


def test_no_setting_that_was_predicted_had_been_used_to_build_the_course():
    keys = ["settings", "working_set_bytes", "pattern", "writes_per_s", "hot_set_bytes", "vcpus", "postcopy_after_s"]
    built, first, again = (load(f"{name}-runs").frame[keys] for name in (*FIT_TABLES, converge.AGAIN))
    assert built.merge(first, on=keys).empty
    assert pd.concat([built, first]).merge(again, on=keys).empty


def test_the_course_expects_what_it_was_built_on():
    runs = load(f"{FIT_TABLES[0]}-runs").frame.query("repeat == 1")
    found = model.score(
        model.compare_with_expected(runs, model.predict_migrations(runs, model.fit_host(runs)))
    ).set_index("what")["value"]
    assert found["converges or not, share right"] > 0.9
    assert found["total_ms, median error"] < 0.03


def test_linux_guests_that_were_measured_came_out_as_predicted():
    guests = converge.linux.held_out()
    found = converge.linux.score(guests).set_index("what")["value"]
    assert len(guests) == 30
    assert found["verdict given"] >= 0.8
    assert found["verdict right, where one is given"] >= 0.95
    assert 0.8 <= found["total time inside its interval"] <= 0.97
    assert found["total time, median error"] <= 0.15
    assert found["total time, median half width"] <= 0.35
    assert found["passes inside"] >= 0.8
    assert found["last throttle within 10 points"] >= 0.9
    keys = ["workload", "parameters", "settings"]
    assert guests[keys].merge(load(f"{converge.linux.DEVELOPED}-runs").frame[keys], on=keys).empty


def test_the_published_migration_has_no_end_without_throttling_and_one_with_it():
    rows = with_errors(published.published_numbers(draws=12)).set_index("metric")
    assert rows.loc["ends within 1487.5 s", "predicted"] < 0.5
    assert abs(rows.loc["total time", "error_percent"]) < 30
    assert rows.loc["sent", "predicted"] == pytest.approx(rows.loc["sent", "published"], rel=0.01)
