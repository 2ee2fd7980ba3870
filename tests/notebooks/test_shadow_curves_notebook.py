# SPDX-License-Identifier: BSD-3-Clause
"""The notebook on x86's curves runs, and its prose says what its cells compute."""

from __future__ import annotations

from typing import Any

import pytest
from notebook_run import ROOT, Run, assert_ran_without_complaint, figures_of

pytestmark = pytest.mark.study

NOTEBOOK = ROOT / "notebooks" / "06-x86-shadow-curves.ipynb"


def tell(run: Run) -> dict[str, Any]:
    alone, flush, free, growth, parked, table = (
        run["alone"],
        run["flush"],
        run["free"],
        run["growth"],
        run["parked"],
        run["table"],
    )
    errors = table.set_index("reading")[["at_32", "at_64"]].abs().max(axis=1)
    return {
        "free": free.iloc[-1, 1],
        "errors": errors.to_dict(),
        "flush_us": flush / 1000,
        "published_us": {
            str(n): float(v)
            for n, v in growth.curves()
            .query("kind == 'measured' and panel.str.contains('EPT')")
            .set_index("vcpus")["us_per_page"]
            .items()
        },
        "flat": parked[parked["memory_gib"] <= 32].groupby("what")["ms a GiB"].agg(lambda v: v.max() / v.min()).max(),
        "jump": (
            parked[parked["memory_gib"] == 64].set_index("what")["ms a GiB"]
            / parked[parked["memory_gib"] == 32].set_index("what")["ms a GiB"]
        ).min(),
        "missed": sorted(alone[~alone["within"]]["what"].unique()),
        "half": parked[parked["memory_gib"] == 2].set_index("what")["ms a GiB"].to_dict(),
    }


@pytest.fixture(scope="module")
def run(ran: Any) -> Run:
    return ran(NOTEBOOK)


def test_it_runs_without_complaint(run: Run) -> None:
    assert_ran_without_complaint(run)
    assert len(figures_of(run)) == 2


def test_its_prose_says_what_it_computes(run: Run) -> None:
    told = tell(run)
    assert told["free"] == pytest.approx(1.43, abs=0.005)
    assert told["published_us"]["4"] == pytest.approx(0.40, abs=0.005)
    assert told["published_us"]["64"] == pytest.approx(0.98, abs=0.005)
    assert told["published_us"]["64"] / told["published_us"]["4"] == pytest.approx(2.5, abs=0.05)
    assert told["flush_us"] == pytest.approx(73, abs=0.5)
    assert told["flat"] < 1.1 < told["jump"]
    without = ("constant", "busy", "sockets", "clusters-of-4", "clusters-of-8")
    assert min(told["errors"][name] for name in without) > 0.12 > told["errors"]["chosen"]
    for what in ("enabling that splits", "of unsplit blocks", "160 vCPUs"):
        assert any(what in missed for missed in told["missed"]), what
    half = told["half"]
    assert half["enable-dirty-log, eager split Y"] < half["clear-iteration-1, eager split Y"] / 2
