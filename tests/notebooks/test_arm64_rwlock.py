# SPDX-License-Identifier: BSD-3-Clause
"""The notebook runs from top to bottom, says what it should, and is kept without anything that it computed."""

from __future__ import annotations

from typing import Any

import pytest
from notebook_run import (
    ROOT,
    Run,
    assert_ran_without_complaint,
    code_cells,
    figures_of,
)

pytestmark = pytest.mark.study

NOTEBOOK = ROOT / "notebooks" / "01-arm64-rwlock.ipynb"


def tell(run: Run) -> dict[str, Any]:
    contentions, faster, held_out, latency, line, pages, seconds = (
        run["contentions"],
        run["faster"],
        run["held_out"],
        run["latency"],
        run["line"],
        run["pages"],
        run["seconds"],
    )
    return {
        "error_percent": held_out["simlib_percent"].tolist(),
        "usl_percent": held_out["usl_percent"].tolist(),
        "amdahl_percent": held_out["amdahl_percent"].tolist(),
        "covered": held_out["covered"].tolist(),
        "vcpus": held_out["vcpus"].tolist(),
        "line_ns": [line.value, line.low, line.high],
        "published_line_ns": latency["Graviton2"],
        "like_for_like": faster["rwlock-old-test"].tolist(),
        "contentions_per_page": (contentions / contentions.index / pages).tolist(),
        "seconds": seconds.to_dict(),
    }


@pytest.fixture(scope="module")
def run(ran: Any) -> Run:
    return ran(NOTEBOOK)


@pytest.fixture(scope="module")
def told(run: Run) -> dict[str, Any]:
    return tell(run)


def test_every_cell_ran_without_complaint(run: Run) -> None:
    assert_ran_without_complaint(run)


def test_every_figure_says_where_its_points_come_from(run: Run) -> None:
    drawn = figures_of(run)
    assert len(drawn) == 7
    for figure in drawn:
        subtitle = figure["layout"]["title"]["subtitle"]["text"]
        assert any(word in subtitle for word in ("measured", "simulated", "calibrated", "predicted")), subtitle


def test_the_what_if_is_shown(run: Run) -> None:
    last = code_cells(run)[-2]
    assert any("application/vnd.jupyter.widget-view+json" in o.get("data", {}) for o in last.outputs)


def test_nine_held_out_points_are_predicted(told: dict[str, Any]) -> None:
    errors = [abs(e) for e in told["error_percent"]]
    assert told["vcpus"] == [16, 32, 64] * 3
    assert max(errors) <= 6
    assert sum(errors) / 9 <= 4
    assert sum(told["covered"]) >= 8


def test_the_scaling_laws_are_beaten(told: dict[str, Any]) -> None:
    model, usl, amdahl = (sum(map(abs, told[name])) for name in ("error_percent", "usl_percent", "amdahl_percent"))
    assert model < amdahl
    assert model < usl


def test_line_transfer_agrees_with_the_published_latency(told: dict[str, Any]) -> None:
    _, low, high = told["line_ns"]
    assert low < told["published_line_ns"] < high


def test_what_the_prose_says(told: dict[str, Any]) -> None:
    """Statements of the text that the data or the model could contradict."""
    assert told["like_for_like"][-1] == pytest.approx(2.6, abs=0.01)
    assert told["contentions_per_page"][-3:] == pytest.approx([6, 6, 6], abs=0.005)
    seconds = {name: {int(n): s for n, s in curve.items()} for name, curve in told["seconds"].items()}
    spin, ticket, rwlock, lockless = seconds.values()
    assert all(ticket[n] > spin[n] for n in (8, 16, 32, 64))
    assert all(0.95 < lockless[n] / rwlock[n] < 0.99 for n in (2, 4))
    assert all(lockless[n] == pytest.approx(rwlock[n], rel=0.005) for n in (8, 16, 32, 64))
