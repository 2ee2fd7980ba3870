# SPDX-License-Identifier: BSD-3-Clause
"""90 % intervals cover 85 to 95 %: 200 synthetic data sets a design, each calibrated as measured ones are.

`make coverage` does it with 400 sets and more runs; seeds are 1 throughout.
"""

import dataclasses

import numpy as np
import pytest

from simlib.calibration.coverage import HALF_WIDTH, UNLIKE, coverage, published_design
from simlib.calibration.surrogate import fit_surrogate
from simlib.fits import load_fit
from simlib.measurements import data_dir

FIT = load_fit(data_dir() / "fits" / "ampere-altra.json")
TRUTH = FIT.estimate.logs
SETS = 200


def only_to_16(design):
    """The same design without the many vCPUs, which take long to simulate."""
    fewer = {name: tuple(n for n in vcpus if n <= 16) for name, vcpus in design.vcpus.items()}
    return dataclasses.replace(design, vcpus=fewer)


DESIGNS = {"published": only_to_16(published_design(FIT)), "unlike": UNLIKE}


@pytest.fixture(scope="module")
def surrogates():
    width = HALF_WIDTH * np.sqrt(np.diag(FIT.estimate.covariance))
    return {
        name: fit_surrogate(design.problem(FIT), TRUTH, width, runs=256, checked=16, pages=2048)
        for name, design in DESIGNS.items()
    }


@pytest.mark.parametrize("name", DESIGNS)
def test_the_polynomials_are_close_to_the_engine(surrogates, name):
    """Well below the deviations that are put on them; counts of two vCPUs are the roughest."""
    _, errors = surrogates[name]
    times = errors[errors["metric"] == "dirty_memory_time"]
    assert len(times) >= 15
    assert np.median(times["rms"]) < 0.002
    assert times["rms"].max() < 0.006
    assert errors[errors["metric"] == "contentions"]["rms"].max() < 0.01


@pytest.mark.parametrize("name", DESIGNS)
def test_intervals_cover(surrogates, name):
    found = coverage(surrogates[name][0], TRUTH, DESIGNS[name].deviations, sets=SETS)
    assert found.table["kind"].tolist() == ["cost"] * 7 + ["held-out"] * 2
    assert found.table["covered"].between(0.85, 0.95).all(), found.table.to_string()
    assert found.valid["converged"] > 0.95


def test_intervals_of_another_level_cover_as_often_as_they_say(surrogates):
    """So that what covers 90 % is no accident of wide intervals."""
    half = coverage(surrogates["unlike"][0], TRUTH, UNLIKE.deviations, sets=100, level=0.5, seed=2).table
    assert half["covered"].mean() == pytest.approx(0.5, abs=0.07)
