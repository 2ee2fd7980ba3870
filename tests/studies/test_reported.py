# SPDX-License-Identifier: BSD-3-Clause
"""Migrations that others reported: form of the table, and the study that predicts them (not its score)."""

from __future__ import annotations

import pandas as pd
import pytest

from simlib import InputError
from simlib.measurements import load
from studies.converge import reported

INPUTS = ["source", "vcpus", "memory_kib", "link", "settings", "ring_entries", "dirty", "inputs", "cpu_percent", "vmm"]


def test_the_runs_of_a_migration_have_the_same_inputs():
    table = load(reported.TABLE).frame
    assert table.groupby("migration")[INPUTS].nunique().to_numpy().max() == 1
    completed = table["outcome"] == "completed"
    assert table.loc[completed | (table["outcome"] == "active"), "total_ms"].notna().all()
    assert table.loc[table["outcome"] == "not-converging", "total_ms"].isna().all()


def test_a_migration_is_refused_exactly_if_an_input_is_missing():
    for name, row in reported.migrations().iterrows():
        if row["inputs"] == "missing":
            with pytest.raises(InputError, match="must be given"):
                reported.guest_of(row)
        else:
            assert reported.guest_of(row).memory == row["memory_kib"] * 1024, name


def test_the_study_predicts_migrations_of_several_sources(monkeypatch):
    names = ["random-24g", "idle-16g-multifd-4", "stress-1g-2g", "hugepages-8g-power8", "testpmd-1g"]
    rows = reported.migrations().loc[names]
    monkeypatch.setattr(reported, "migrations", lambda: rows)
    judged = reported.judge(draws=6)
    assert list(judged.index) == names[:-1]
    assert judged["refused"].eq("").all()
    assert judged["verdict"].isin(reported.VERDICTS).all()
    assert judged["inside"].isna().tolist() == [False, False, True, True]
    timed = judged.dropna(subset="low_s")
    assert (timed["low_s"] <= timed["middle_s"]).all()
    assert (timed["middle_s"] <= timed["high_s"]).all()
    assert reported.score(judged).loc["all", "migrations"] == 4


def test_outcomes_are_compared_with_the_time_at_which_a_migration_was_active():
    run = reported.PlanOutcome(True, 50.0, 0.1, 3, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert reported._compare([run], "active", 40.0)["verdict"] == reported.NO
    assert reported._compare([run], "active", 60.0)["right"] is False
    late = reported._compare([run], "completed", 40.0)
    assert (late["right"], late["inside"]) == (True, False)
    assert pd.isna(reported._compare([run._replace(completed=False)], "not-converging", float("nan"))["low_s"])
