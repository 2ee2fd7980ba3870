# SPDX-License-Identifier: BSD-3-Clause
"""90 % intervals cover 85 to 95 %: 200 synthetic data sets, each calibrated as measured ones are.

`make coverage` does it with 300 sets and more runs, for the published design, too, which takes long to simulate. Seeds
are 1 throughout.
"""

import numpy as np
import pytest
from interval_coverage import HALF_WIDTH, UNLIKE, coverage, published_design
from surrogate import fit_surrogate

from simlib.measurements import data_dir
from simlib.measurements.fits import load_fit

pytestmark = pytest.mark.study

FIT = load_fit(data_dir() / "fits" / "ampere-altra.json")
TRUTH = FIT.estimate.logs
SETS = 200


@pytest.fixture(scope="module")
def surrogate():
    width = HALF_WIDTH * np.sqrt(np.diag(FIT.estimate.covariance))
    return fit_surrogate(UNLIKE.problem(FIT), TRUTH, width, runs=256, checked=16, pages=2048)


def test_the_published_design_has_the_rows_that_were_fitted():
    some = FIT.observations[FIT.observations["value"] > 0]  # one vCPU waits for nobody
    rows, kept = (
        table[["variant", "vcpus", "metric", "train"]].sort_values(["variant", "vcpus", "metric"]).to_numpy().tolist()
        for table in (published_design(FIT).problem(FIT).observations, some)
    )
    assert rows == kept


def test_the_polynomials_are_close_to_the_engine(surrogate):
    """They add, in squares, less than a fifth to any row's deviation, and 2 % in the median of the times."""
    _, errors = surrogate
    times = errors[errors["metric"] == "dirty_memory_time"]
    assert len(times) >= 15
    assert np.median(times["rms"]) < 0.2 * UNLIKE.deviations["dirty_memory_time"]
    for metric, rows in errors.groupby("metric"):
        assert np.hypot(1.0, rows["rms"].max() / UNLIKE.deviations[metric]) < 1.2


def test_intervals_cover(surrogate):
    found = coverage(surrogate[0], TRUTH, UNLIKE.deviations, sets=SETS)
    assert found.table["kind"].tolist() == ["cost"] * 7 + ["held-out"] * 2
    assert found.table["covered"].between(0.85, 0.95).all(), found.table.to_string()
    assert found.valid["converged"] > 0.95


def test_intervals_of_another_level_cover_as_often_as_they_say(surrogate):
    """So that what covers 90 % is no accident of wide intervals."""
    half = coverage(surrogate[0], TRUTH, UNLIKE.deviations, sets=100, level=0.5, seed=2).table
    assert half["covered"].mean() == pytest.approx(0.5, abs=0.07)
