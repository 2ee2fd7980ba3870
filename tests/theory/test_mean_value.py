# SPDX-License-Identifier: BSD-3-Clause
"""Mean-value analysis: hand-worked networks, conservation laws, and the bounds around it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simlib.theory import asymptotic_bounds, balanced_job_bounds, machine_repairman, mean_value_analysis

times = st.floats(1e-9, 1e3)
networks = st.tuples(st.integers(1, 60), st.one_of(st.just(0.0), times), st.lists(times, min_size=1, max_size=4))


def test_two_stations_by_hand():
    # Z = 2, D = (1, 2).  N=1: R = (1, 2), X = 1/5, Q = (1/5, 2/5).
    # N=2: R = (6/5, 14/5), X = 2/(2 + 4) = 1/3, Q = (2/5, 14/15), U = (1/3, 2/3).
    result = mean_value_analysis(2, 2.0, [1.0, 2.0])
    np.testing.assert_allclose(result.throughput, [1 / 5, 1 / 3], rtol=1e-15)
    np.testing.assert_allclose(result.response_time, [[1, 2], [6 / 5, 14 / 5]], rtol=1e-15)
    np.testing.assert_allclose(result.queue_length, [[1 / 5, 2 / 5], [2 / 5, 14 / 15]], rtol=1e-15)
    np.testing.assert_allclose(result.utilisation, [[1 / 5, 2 / 5], [1 / 3, 2 / 3]], rtol=1e-15)
    np.testing.assert_allclose(result.cycle_time, [5, 6], rtol=1e-15)


def test_balanced_network_without_think_time_has_the_textbook_throughput():
    # K equal stations, Z = 0: X(N) = N / (D (N + K - 1)).
    n = np.arange(1, 101)
    np.testing.assert_allclose(mean_value_analysis(100, 0.0, [0.5] * 7).throughput, n / (0.5 * (n + 6)), rtol=1e-13)


@given(n=st.integers(1, 300), think=times, service=times)
def test_one_station_is_the_machine_repairman(n, think, service):
    exact, chain = mean_value_analysis(n, think, [service]), machine_repairman(n, think, service)
    assert exact.throughput[-1] == pytest.approx(chain.throughput, rel=1e-12)
    assert exact.queue_length[-1, 0] == pytest.approx(chain.mean_at_lock, rel=1e-12)
    assert exact.response_time[-1, 0] == pytest.approx(chain.mean_response, rel=1e-12)
    assert exact.utilisation[-1, 0] == pytest.approx(chain.utilisation, rel=1e-12)


@given(networks)
@settings(max_examples=60)
def test_little_and_conservation(network):
    n, think, demands = network
    result = mean_value_analysis(n, think, demands)
    customers = result.throughput * think + result.queue_length.sum(axis=1)
    np.testing.assert_allclose(customers, result.population, rtol=1e-12)
    np.testing.assert_allclose(result.throughput * result.cycle_time, result.population, rtol=1e-12)
    assert np.all(result.utilisation <= 1 + 1e-12)
    assert np.all(np.diff(result.throughput) >= -1e-12 * result.throughput[1:])


@given(networks)
@settings(max_examples=60)
def test_bounds_enclose_the_exact_throughput_and_nest(network):
    n, think, demands = network
    exact = mean_value_analysis(n, think, demands).throughput[-1]
    wide, tight = asymptotic_bounds(n, think, demands), balanced_job_bounds(n, think, demands)
    slack = 1e-12 * exact
    assert wide.low - slack <= tight.low <= exact + slack
    assert exact - slack <= tight.high <= wide.high + slack


def test_balanced_bounds_by_hand():
    # D = 3, Dmax = 2, Dmean = 3/2: 3 / (5 + 2·2·9/11) and 3 / (5 + 2·3/2·3/5).
    bounds = balanced_job_bounds(3, 2.0, [1.0, 2.0])
    assert bounds == (pytest.approx(33 / 91, rel=1e-15), pytest.approx(3 / 6.8, rel=1e-15))


def test_balanced_bounds_meet_on_a_balanced_network_without_think_time():
    low, high = balanced_job_bounds(9, 0.0, [0.5, 0.5, 0.5])
    assert low == pytest.approx(high, rel=1e-15)
    assert low == pytest.approx(9 / (0.5 * 11), rel=1e-15)


def test_free_stations_leave_only_the_think_time():
    assert mean_value_analysis(4, 2.0, [0.0]).throughput[-1] == 2.0
    assert asymptotic_bounds(4, 2.0, [0.0]) == (2.0, 2.0)
    assert balanced_job_bounds(4, 2.0, [0.0]) == (2.0, 2.0)
