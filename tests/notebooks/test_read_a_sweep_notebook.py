# SPDX-License-Identifier: BSD-3-Clause
"""Tests of the notebook on sweeps, and of the shipped table that it reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from notebook_run import ROOT, Run, answer_of, assert_ran_without_complaint, figures_of

from simlib.analysis.sweep import load_grid
from studies.decision.sweep import shipped

NOTEBOOK = ROOT / "notebooks" / "13-read-a-sweep.ipynb"


def results(run: Run) -> dict[str, Any]:
    best_policies, sweep = (run["best_policies"], run["small_sweep"])
    return {"sizes": dict(sweep.sizes), "best": best_policies(sweep, "stall")["policy"].tolist()}


@pytest.mark.study
def test_it_runs_and_draws_a_map_for_every_architecture(ran: Any) -> None:
    run = ran(NOTEBOOK)
    assert_ran_without_complaint(run)
    assert len(figures_of(run)) == 7
    computed = results(run)
    assert computed["sizes"] == {"architecture": 1, "vcpus": 3, "access_interval": 2, "policy": 3}
    assert len(computed["best"]) == 6
    answer, table = answer_of(run), shipped()
    assert f"Of the {len(table):,} points" in answer
    share = 100 * table[table["clear_lock"] == "write"]["matters"].mean()
    assert f"in {share:.0f} % of those where CLEAR holds the lock for write" in answer


def test_the_shipped_table_is_that_of_the_shipped_grid() -> None:
    table, grid = shipped(), load_grid(ROOT / "data" / "grids" / "strategies.toml")
    descriptor = json.loads(
        (ROOT / "data" / "sweeps" / "strategies" / "best-policies.json").read_text(encoding="utf-8")
    )
    assert [field["name"] for field in descriptor["schema"]["fields"]] == table.columns.tolist()
    assert f"{grid.points:,} simulated points" in descriptor["title"]
    assert descriptor["grid"] == grid.digest, "the grid, fits or priors changed since: run make strategy-map"
    assert len(table) * len(grid.policies) == grid.points
    assert set(table["variant"]) == set(grid.scenario.variants)
    assert set(table["policy"]) <= set(grid.policies)
    assert (table["value_s"] <= table["against_s"]).all()
