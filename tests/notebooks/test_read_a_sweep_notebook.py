# SPDX-License-Identifier: BSD-3-Clause
"""The notebook on sweeps runs, and what it says of the shipped table is that table's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from notebook_run import ROOT, Run, answer_of, assert_ran_without_complaint, figures_of

from simlib.analysis.sweep import load_grid
from simlib.analysis.sweep.strategies import shipped

NOTEBOOK = ROOT / "notebooks" / "13-read-a-sweep.ipynb"


def tell(run: Run) -> dict[str, Any]:
    best_policies, found = (run["best_policies"], run["found"])
    return {"sizes": dict(found.sizes), "best": best_policies(found, "stall")["policy"].tolist()}


@pytest.mark.study
def test_it_runs_and_draws_a_map_for_every_architecture(ran: Any) -> None:
    run = ran(NOTEBOOK)
    assert_ran_without_complaint(run)
    assert len(figures_of(run)) == 7
    told = tell(run)
    assert told["sizes"] == {"architecture": 1, "vcpus": 3, "access_interval": 2, "policy": 3}
    assert len(told["best"]) == 6
    assert f"The sweep has {len(shipped()):,} places" in answer_of(run)


def test_the_shipped_table_is_that_of_the_shipped_grid() -> None:
    table, grid = shipped(), load_grid(ROOT / "data" / "grids" / "strategies.toml")
    about = json.loads((ROOT / "data" / "sweeps" / "strategies" / "best-policies.json").read_text(encoding="utf-8"))
    assert [field["name"] for field in about["schema"]["fields"]] == table.columns.tolist()
    assert f"{grid.points:,} simulated points" in about["title"]
    assert about["grid"] == grid.digest, "the grid, fits or priors changed since: run make strategy-map"
    assert len(table) * len(grid.policies) == grid.points
    assert set(table["variant"]) == set(grid.scenario.variants)
    assert set(table["policy"]) <= set(grid.policies)
    assert (table["value_s"] <= table["against_s"]).all()
