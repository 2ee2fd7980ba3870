# SPDX-License-Identifier: BSD-3-Clause
"""Tests of the scaling laws: they recover known parameters, and no other start gives a better fit."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from studies.arm64.scalability import (
    amdahl,
    fit_amdahl,
    fit_universal_scalability,
    from_time_per_vcpu_work,
    universal_scalability,
)

VCPUS = np.array([1, 2, 4, 8, 16, 32, 48])


def test_curves_by_hand():
    np.testing.assert_allclose(amdahl([1, 10], 0.1), [1, 10 / 1.9], rtol=1e-15)
    np.testing.assert_allclose(universal_scalability([10], 0.1, 0.01), [10 / 2.8], rtol=1e-15)
    np.testing.assert_array_equal(universal_scalability(VCPUS, 0, 0), VCPUS)
    np.testing.assert_array_equal(from_time_per_vcpu_work([1, 8], [2.0, 4.0]), [0.5, 2.0])


@given(single=st.floats(1e-3, 1e6), serial=st.floats(1e-3, 0.999))
@settings(max_examples=40)
def test_amdahl_recovers_its_parameters(single, serial):
    fit = fit_amdahl(VCPUS, single * amdahl(VCPUS, serial))
    assert (fit.single, fit.contention) == (pytest.approx(single, rel=1e-8), pytest.approx(serial, rel=1e-8))
    assert fit.coherency == 0


@given(single=st.floats(1e-3, 1e6), contention=st.floats(1e-3, 2.0), coherency=st.floats(1e-5, 0.5))
@settings(max_examples=40)
def test_universal_law_recovers_its_parameters(single, contention, coherency):
    fit = fit_universal_scalability(VCPUS, single * universal_scalability(VCPUS, contention, coherency))
    assert fit.single == pytest.approx(single, rel=1e-7)
    assert fit.contention == pytest.approx(contention, rel=1e-6)
    assert fit.coherency == pytest.approx(coherency, rel=1e-6)
    np.testing.assert_allclose(
        fit.predict([96]), single * universal_scalability([96], contention, coherency), rtol=1e-6
    )


def test_the_peak_is_the_maximum_of_the_curve():
    fit = fit_universal_scalability(VCPUS, universal_scalability(VCPUS, 0.19, 0.01))
    assert fit.peak == pytest.approx(9.0, rel=1e-6)
    fine = np.linspace(1, 48, 4701)
    assert fine[np.argmax(fit.predict(fine))] == pytest.approx(9.0, abs=0.011)
    assert fit_amdahl(VCPUS, amdahl(VCPUS, 0.3)).peak == math.inf


def log_law(n, single, contention, coherency=0.0):
    return np.log(single * n / (1 + contention * (n - 1) + coherency * n * (n - 1)))


def test_no_other_start_finds_a_better_fit():
    rng = np.random.default_rng(3)
    for _ in range(20):  # unlike a scalability law, so that local minima exist
        random_data = np.exp(rng.normal(0, 1, VCPUS.size))
        fit = fit_universal_scalability(VCPUS, random_data)
        for _ in range(5):
            other = optimize.least_squares(
                lambda x, random_data=random_data: log_law(VCPUS, np.exp(x[0]), x[1], x[2]) - np.log(random_data),
                [rng.normal(), rng.exponential(), 0.1 * rng.exponential()],
                bounds=([-np.inf, 0, 0], np.inf),
                x_scale="jac",
            )
            assert np.sum(np.log(fit.predict(VCPUS) / random_data) ** 2) <= 2 * other.cost * (1 + 1e-7)


def test_a_parameter_stays_on_its_bound():
    fit = fit_universal_scalability(VCPUS, 3.0 * VCPUS**1.1)  # superlinear: neither cost helps
    assert (fit.contention, fit.coherency) == (pytest.approx(0, abs=1e-6), pytest.approx(0, abs=1e-6))
    retrograde = fit_amdahl([1, 2, 4], [1.0, 0.8, 0.5])  # below one thread: more than Amdahl can explain
    assert retrograde.contention == pytest.approx(1, abs=1e-6)


def test_as_many_points_as_parameters_fit():
    assert fit_amdahl([1, 4], [1.0, 2.0]).contention == pytest.approx(1 / 3, rel=1e-9)
