# SPDX-License-Identifier: BSD-3-Clause
"""Birth–death chains, the machine repairman and the ticket lock against independent calculations."""

import itertools
import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import ticket_lock
from scipy import linalg

from simlib.analysis.theory import birth_death, closed_lock, machine_repairman

times = st.floats(1e-9, 1e3)
populations = st.integers(1, 200)


def exact_birth_death(arrivals, services):
    """Calculate in integer arithmetic, with one rounding in the last division."""
    below = itertools.accumulate(arrivals, operator.mul, initial=1)
    above = reversed(list(itertools.accumulate(reversed(services), operator.mul, initial=1)))
    weights = [up * down for up, down in zip(below, above, strict=True)]
    total = sum(weights)
    return np.array([weight / total for weight in weights])


@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)), min_size=1, max_size=6))
def test_birth_death_solves_the_generator_matrix(rates):
    arrivals, services = np.array(rates).T
    size = len(rates) + 1
    generator = np.diag(arrivals, 1) + np.diag(services, -1)
    generator -= np.diag(generator.sum(axis=1))
    system = np.vstack([generator.T / np.abs(generator).max(), np.ones(size)])
    solved, *_ = linalg.lstsq(system, np.append(np.zeros(size), 1.0))
    np.testing.assert_allclose(birth_death(arrivals, services), solved, atol=1e-9)


@pytest.mark.parametrize("think", [1, 1_000, 300_000, 10_000_000])
def test_birth_death_is_accurate_with_1024_states_over_thousands_of_decades(think):
    arrivals = [(1024 - k) * (2 + k) for k in range(1024)]  # a ticket lock, both rates × think × service time
    expected = exact_birth_death(arrivals, [think] * 1024)
    np.testing.assert_allclose(birth_death(arrivals, [think] * 1024), expected, rtol=5e-13, atol=1e-290)


def test_birth_death_cannot_pass_a_rate_of_zero():
    np.testing.assert_array_equal(birth_death([1.0, 0.0, 5.0], [1.0, 1.0, 1.0]), [0.5, 0.5, 0.0, 0.0])
    np.testing.assert_array_equal(birth_death([0.0], [1.0]), [1.0, 0.0])
    np.testing.assert_array_equal(birth_death([1e300, 1e-300], [1e-300, 1e300]), [0.0, 1.0, 0.0])


def test_three_threads_by_hand():
    # Z = 2, S = 1: weights 1, 3/2, 3/2, 3/4, sum 19/4.  X = (1 - 4/19) / 1 = 15/19.
    lock = machine_repairman(3, 2.0, 1.0)
    np.testing.assert_allclose(lock.probabilities, np.array([4, 6, 6, 3]) / 19, rtol=1e-15)
    assert lock.throughput == pytest.approx(15 / 19, rel=1e-15)
    assert lock.mean_at_lock == pytest.approx(27 / 19, rel=1e-15)
    assert lock.mean_waiting == pytest.approx(12 / 19, rel=1e-15)
    assert lock.mean_wait == pytest.approx(12 / 15, rel=1e-15)
    # An arrival sees the distribution of N = 2: weights 1, 1, 1/2.
    assert lock.wait_probability == pytest.approx(3 / 5, rel=1e-15)


def test_ticket_lock_by_hand():
    # a = 1, s = 1, c = 2: service 2, 3 in states 1, 2; weights 1, 2·2 = 4, 4·1·3 = 12.
    lock = ticket_lock(2, 1.0, 1.0, 2.0)
    np.testing.assert_allclose(lock.probabilities, np.array([1, 4, 12]) / 17, rtol=1e-15)
    assert lock.speed_up == pytest.approx(2 - 28 / 17, rel=1e-15)
    assert lock.throughput == pytest.approx(4 / 17 / 2 + 12 / 17 / 3, rel=1e-15)


@given(n=populations, think=times, service=times)
def test_ticket_lock_with_free_transfers_is_the_machine_repairman(n, think, service):
    ticket, plain = ticket_lock(n, think, service, 0.0), machine_repairman(n, think, service)
    np.testing.assert_array_equal(ticket.probabilities, plain.probabilities)
    assert ticket.throughput == plain.throughput


@given(n=populations, think=times, service=times, transfer=times)
def test_little_flow_balance_and_arrival_theorem(n, think, service, transfer):
    lock = ticket_lock(n, think, service, transfer)
    states = np.arange(n + 1)
    rates = 1 / (service + transfer * states[1:] / 2)
    assert lock.probabilities.sum() == pytest.approx(1, rel=1e-13)
    assert lock.throughput == pytest.approx(rates @ lock.probabilities[1:], rel=1e-12)  # flow in = flow out
    assert lock.mean_at_lock + lock.throughput * think == pytest.approx(n, rel=1e-12)  # Little, whole cycle
    assert lock.speed_up == pytest.approx(lock.throughput * think, rel=1e-12)
    # Distribution at an arrival, calculated directly: states weighted by the rate of arrivals in them.
    seen = lock.probabilities * (n - states)
    assert lock.wait_probability == pytest.approx(seen[1:].sum() / seen.sum(), rel=1e-11, abs=1e-300)


def test_the_wait_follows_from_the_distribution_at_an_arrival():
    # Exponential service: an arrival that meets k threads waits for k whole services on average.
    others = machine_repairman(6, 3.0, 1.0)
    assert machine_repairman(7, 3.0, 1.0).mean_wait == pytest.approx(others.mean_at_lock, rel=1e-13)


def test_ticket_lock_collapses_and_a_scalable_lock_does_not():
    ticket = [ticket_lock(n, 40e-6, 1e-6, 0.5e-6) for n in (1, 19, 48, 1024)]
    assert np.argmax([lock.throughput for lock in ticket]) == 1
    saturated = 1 / (1e-6 + 0.5e-6 * (1024 - ticket[-1].speed_up) / 2)
    assert ticket[-1].throughput == pytest.approx(saturated, rel=1e-3)
    assert ticket_lock(256, 40e-6, 1e-6, 0.0).throughput == pytest.approx(1e6, rel=1e-12)


def test_no_think_time_and_no_service_time():
    lock = machine_repairman(4, 0.0, 2.0)
    assert (lock.throughput, lock.utilisation, lock.mean_waiting, lock.mean_wait) == (0.5, 1.0, 3.0, 6.0)
    assert (lock.wait_probability, lock.speed_up) == (1.0, 0.0)
    assert machine_repairman(1, 0.0, 2.0).wait_probability == 0.0
    free = machine_repairman(4, 2.0, 0.0)
    assert (free.throughput, free.utilisation, free.mean_wait, free.wait_probability) == (2.0, 0.0, 0.0, 0.0)
    assert machine_repairman(1, 2.225073858507e-311, 85.0).throughput == 1 / 85  # no digits lost
    assert machine_repairman(3, 2.0, 1e-310).throughput == pytest.approx(1.5, rel=1e-15)
    capped = closed_lock(4, 1.0, lambda k: 1.0 if k < 3 else 0.0)
    assert not capped.probabilities[3:].any()
