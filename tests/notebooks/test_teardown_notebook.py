# SPDX-License-Identifier: BSD-3-Clause
"""The teardown notebook runs, and its prose says what its cells compute."""

from __future__ import annotations

from typing import Any

import pytest
from notebook_run import ROOT, Run, assert_ran_without_complaint, figures_of

pytestmark = pytest.mark.study

NOTEBOOK = ROOT / "notebooks" / "08-teardown.ipynb"


def tell(run: Run) -> dict[str, Any]:
    costs, counts, every, readings, stalls, unmap = (
        run["costs"],
        run["counts"],
        run["every"],
        run["readings"],
        run["stalls"],
        run["unmap"],
    )
    held = unmap[unmap["held_out"]]
    return {
        "errors": {table: part["error"].abs().max() for table, part in held.groupby("table")},
        "outside": {table: int((~part["covered"]).sum()) for table, part in held.groupby("table")},
        "block_over_page": [
            float(costs.query(f"table == '2M blocks' and cost == '{cost}'")["value_us"].iloc[0])
            / float(costs.query(f"table == '4K pages' and cost == '{cost}'")["value_us"].iloc[0])
            for cost in ("unmap_entry", "tlb_invalidate")
        ],
        "ratios": readings.set_index("mapping")[["ratio_low", "ratio_high"]].to_numpy().tolist(),
        "invalidations_s": float(
            counts.query("mapping == '4K pages' and way == 'no cache maintenance'")["TLB invalidations"].iloc[0]
            * every["4K pages"].interval("tlb_invalidate")[0]
        ),
        "stalls": stalls["longest_stall_s"].tolist(),
    }


@pytest.fixture(scope="module")
def run(ran: Any) -> Run:
    return ran(NOTEBOOK)


def test_it_runs_without_complaint(run: Run) -> None:
    assert_ran_without_complaint(run)
    assert len(figures_of(run)) == 2


def test_its_prose_says_what_it_computes(run: Run) -> None:
    told = tell(run)
    assert told["errors"]["4K pages"] == pytest.approx(0.022, abs=0.0005)
    assert told["errors"]["2M blocks"] == pytest.approx(0.21, abs=0.005)
    assert told["outside"]["2M blocks"] == 5
    assert all(2 <= ratio <= 3.3 for ratio in told["block_over_page"])
    (pages_low, _), (blocks_low, blocks_high) = told["ratios"]
    assert pages_low > 100
    assert 1 / 3 < blocks_low < blocks_high < 3
    assert told["invalidations_s"] == pytest.approx(25, abs=0.5)
    assert told["stalls"][0] == pytest.approx(0.7, abs=0.05)
    assert told["stalls"][2] == pytest.approx(0.1, abs=0.05)
    assert told["stalls"][5] == pytest.approx(0.0007, abs=0.00005)
