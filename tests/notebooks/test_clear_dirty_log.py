# SPDX-License-Identifier: BSD-3-Clause
"""Seed 001's notebook runs, and its prose says what its cells compute."""

from __future__ import annotations

from typing import Any

import pytest
from notebook_run import ROOT, Run, assert_ran_without_complaint, figures_of

pytestmark = pytest.mark.study

NOTEBOOK = ROOT / "notebooks" / "03-clear-dirty-log.ipynb"


def tell(run: Run) -> dict[str, Any]:
    changes, costs, each, loongarch, nine, sensitivity, sentences, split = (
        run["changes"],
        run["costs"],
        run["each"],
        run["loongarch"],
        run["nine"],
        run["sensitivity"],
        run["sentences"],
        run["split"],
    )
    return {
        "changes": {f"{r.configuration} {r.metric}": r.model_percent for r in changes.itertuples()},
        "interval": loongarch[["low", "model_percent", "high"]].to_numpy().tolist(),
        "each": each["one reacquisition µs"].tolist(),
        "work": each["work of a word before µs"].tolist(),
        "sums": [abs(split[["work s", "wait s", "flush and reacquire s"]].sum(axis=1) - split["all s"]).max()],
        "roles": nine["role"].tolist(),
        "sensitivity": sensitivity.xs("CPU time of CLEAR", axis=1, level="metric").to_numpy().tolist(),
        "told": [sentences.changes_told(changes), sentences.costs_told(costs), sentences.settings_told(nine, 480)],
        "bars": changes.query("metric == 'clear_cpu_time'")[["published_percent", "low", "high"]]
        .to_numpy()
        .tolist()[:3],
    }


@pytest.fixture(scope="module")
def run(ran: Any) -> Run:
    return ran(NOTEBOOK)


def test_it_runs_without_complaint(run: Run) -> None:
    assert_ran_without_complaint(run)
    assert len(figures_of(run)) == 2


def test_what_it_says_is_what_it_computed(run: Run) -> None:
    """The bars of the three configurations; 0.07, 1.8 and 11 µs a reacquisition, 1.2 and 0.3 µs of work before it."""
    told = tell(run)
    changes = told["changes"]
    assert 1 < changes["1 clear_cpu_time"] < 11
    assert 80 < changes["2 clear_cpu_time"] < 180
    assert 3000 < changes["3 clear_cpu_time"] < 8000
    assert 20 < changes["3 precopy_duration"] < 45
    assert 100 < changes["3 dirty_left"] < 240
    assert told["each"] == pytest.approx([0.071, 1.75, 10.6], rel=0.05)
    assert told["work"] == pytest.approx([1.19, 1.19, 0.28], rel=0.05)
    assert told["sums"][0] < 1e-9
    for low, centre, high in told["interval"]:
        assert low <= centre <= high  # the estimate is in it, also where it is the largest
        assert low < high
    assert told["roles"].count("predicted") == 7
    assert told["roles"][-2:] == ["not determined", "missed"]
    for first, second, third in told["sensitivity"]:  # orders of magnitude apart, whatever was chosen
        assert 3 * first < second
        assert 10 * second < third
    changes_told, costs_told, settings_told = told["told"]
    out = [published for published, low, high in told["bars"] if not low <= published <= high]
    assert ("The interval excludes the published" in changes_told) == bool(out)
    excluded = changes_told.partition("excludes the published ")[2].partition(". ")[0]
    assert excluded.count("%") == len(out)
    assert all(f"+{published:.0f} %" in excluded for published in out)
    assert "for clear_unsplit[tdp], split_block[tdp] and flush_per_vcpu" in costs_told
    assert "Missed: 3's CPU time of CLEAR." in settings_told
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    said = [changes[f"{n} clear_cpu_time"] for n in (1, 2, 3)]
    assert f"comes out as +{said[0]:.0f}, +{said[1]:.0f} and +{round(said[2], -2):.0f} %" in readme
