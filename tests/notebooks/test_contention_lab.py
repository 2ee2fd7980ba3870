# SPDX-License-Identifier: BSD-3-Clause
"""The lab's notebook runs from the committed data alone, and what its text says is so."""

from __future__ import annotations

from typing import Any

import pytest
from notebook_run import ROOT, assert_kept_clean, assert_ran_without_complaint, execute, figures_of, told_by

NOTEBOOK = ROOT / "notebooks" / "02-contention-lab.ipynb"

TELL = """
import json
json.dumps({
    "differences": found.counts.loc[found.counts["phase"] != "populate", "difference"].abs().sum().item(),
    "identical": [found.repeats["identical"].sum().item(), found.repeats["repeated"].sum().item()],
    "gain": gain[8].to_dict(),
    "price": price[8].to_dict(),
    "share": share.to_dict(),
    "costs": costs.to_dict(),
    "errors": found.errors.set_index(["machine", "metric"])["median"].xs("both", level="metric").to_dict(),
    "turned": found.errors["turned"].iloc[-1].item(),
    "switches": {name: frame.values.tolist() for name, frame in found.switches.items()},
})
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return execute(NOTEBOOK, TELL, tmp_path_factory.mktemp("notebook"))


@pytest.fixture(scope="module")
def told(run: Any) -> dict[str, Any]:
    return told_by(run)


def test_kept_without_outputs() -> None:
    assert_kept_clean(NOTEBOOK)


def test_every_cell_ran_without_complaint(run: Any) -> None:
    assert_ran_without_complaint(run)


def test_every_figure_says_that_it_is_lab_time(run: Any) -> None:
    drawn = figures_of(run)
    assert len(drawn) == 10
    for figure in drawn:
        subtitle = figure["layout"]["title"]["subtitle"]["text"]
        assert "lab time" in subtitle or "simulated" in subtitle, subtitle


def test_counts_are_equal_and_runs_repeat(told: dict[str, Any]) -> None:
    assert told["differences"] == 0
    identical, repeated = told["identical"]
    assert identical >= 0.95 * repeated > 0


def test_cells_under_load_are_predicted(told: dict[str, Any]) -> None:
    assert told["errors"]["all"] < 0.15
    assert told["turned"] == 0


def test_seeds_on_a_running_kernel(told: dict[str, Any]) -> None:
    """Seed 001: the batch matters where faults take the lock, and only there. Seed 000: readers do not contend."""
    assert told["gain"]["x86-npt"] < 2
    assert min(told["gain"][name] for name in ("x86-shadow", "arm64-read", "arm64-write", "riscv")) > 5
    assert told["price"]["x86-npt"] < 1.1 < told["price"]["x86-shadow"]
    assert told["share"]["read"]["8"] < 0.15
    assert told["share"]["write"]["8"] > 0.5


def test_a_clear_costs_a_tenth_of_a_fault(told: dict[str, Any]) -> None:
    for name in ("x86-npt", "x86-shadow", "arm64-read", "arm64-write"):
        costs = told["costs"][name]
        assert costs["clear_page"] < 0.12 * (costs["fault_exit"] + costs["fault_hold"])
