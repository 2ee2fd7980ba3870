# SPDX-License-Identifier: BSD-3-Clause
"""Coverage of 90 % intervals, 85 to 95 %, over 200 synthetic data sets that are calibrated like measured ones.

`make coverage` uses 300 sets and more runs, and also the published design, which takes long to simulate. All seeds are
1.
"""

import numpy as np
import pytest
from interval_coverage import HALF_WIDTH, NOISY_COUNTS, coverage, published_design
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
    return fit_surrogate(NOISY_COUNTS.problem(FIT), TRUTH, width, runs=256, checked=16, pages=2048)


def test_the_published_design_has_the_rows_that_were_fitted():
    fitted = FIT.observations[FIT.observations["value"] > 0]  # one vCPU never contends
    rows, kept = (
        table[["variant", "vcpus", "metric", "train"]].sort_values(["variant", "vcpus", "metric"]).to_numpy().tolist()
        for table in (published_design(FIT).problem(FIT).observations, fitted)
    )
    assert rows == kept


def test_the_polynomials_are_close_to_the_engine(surrogate):
    """Their errors increase the deviation of any row by less than a fifth, and that of the median time by 2 %."""
    _, errors = surrogate
    times = errors[errors["metric"] == "dirty_memory_time"]
    assert len(times) >= 15
    assert np.median(times["rms"]) < 0.2 * NOISY_COUNTS.deviations["dirty_memory_time"]
    for metric, rows in errors.groupby("metric"):
        assert np.hypot(1.0, rows["rms"].max() / NOISY_COUNTS.deviations[metric]) < 1.2


def test_90_percent_intervals_have_their_coverage(surrogate):
    result = coverage(surrogate[0], TRUTH, NOISY_COUNTS.deviations, sets=SETS)
    assert result.table["kind"].tolist() == ["cost"] * 7 + ["held-out"] * 2
    assert result.table["covered"].between(0.85, 0.95).all(), result.table.to_string()
    assert result.valid["converged"] > 0.95


def test_50_percent_intervals_have_their_coverage(surrogate):
    """Coverage of 90 % is not just a result of wide intervals."""
    half = coverage(surrogate[0], TRUTH, NOISY_COUNTS.deviations, sets=100, level=0.5, seed=2).table
    assert half["covered"].mean() == pytest.approx(0.5, abs=0.07)
