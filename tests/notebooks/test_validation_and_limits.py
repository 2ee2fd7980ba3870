# SPDX-License-Identifier: BSD-3-Clause
"""Notebook 12 runs, and its answer counts the misses of the table."""

from __future__ import annotations

from typing import Any

import pytest
from notebook_run import ROOT, Run, answer_of, assert_ran_without_complaint, figures_of

pytestmark = pytest.mark.study

NOTEBOOK = ROOT / "notebooks" / "12-validation-and-limits.ipynb"


def results(run: Run) -> dict[str, Any]:
    missed, numbers = run["missed"], run["numbers"]
    held = numbers[(numbers["role"] == "held out") & numbers["error_percent"].notna()]
    return {
        "roles": numbers["role"].value_counts().to_dict(),
        "errors": held["error_percent"].tolist(),
        "inside": [inside is True for inside in held["inside"]],
        "tables": held["table"].tolist(),
        "missed": missed["error_percent"].tolist(),
        "missed_tables": sorted(set(missed["table"])),
    }


@pytest.fixture(scope="module")
def run(ran: Any) -> Run:
    return ran(NOTEBOOK)


def test_it_runs_without_errors(run: Run) -> None:
    assert_ran_without_complaint(run)
    assert len(figures_of(run)) == 1


def test_the_answer_counts_all_misses(run: Run) -> None:
    computed = results(run)
    far = sorted(abs(error) for error, inside in zip(computed["errors"], computed["inside"], strict=True)
                 if abs(error) > 10 and not inside)  # fmt: skip
    assert sorted(map(abs, computed["missed"])) == far
    assert far  # without misses the notebook would be empty
    near = sum(abs(error) <= 20 for error in computed["errors"])
    answer = answer_of(run)
    assert f"Of {len(computed['errors'])} held-out published numbers" in answer
    assert f"{near} within 20 %" in answer
    assert f"{len(far)}, in {len(computed['missed_tables'])} tables" in answer


def test_causes_are_given_only_for_missed_tables(run: Run) -> None:
    missed = " ".join(results(run)["missed_tables"])
    for table in ("x86-shadow-eager-split-ioctl-time", "arm64-tlbi-range-by-memory", "arm64-migration-degradation"):
        assert table in missed
