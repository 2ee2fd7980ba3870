# SPDX-License-Identifier: BSD-3-Clause
"""The oracles of tests/oracles.py against hand calculations, the exact chain, and independent simulations."""

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import deterministic_lock, mean_value_analysis, reader_writer_bounds

from simlib.analysis.theory import machine_repairman

times = st.floats(1e-9, 1e3)


def test_two_stations_by_hand():
    # Z = 2, D = (1, 2).  N=1: R = (1, 2), X = 1/5, Q = (1/5, 2/5).  N=2: R = (6/5, 14/5), X = 2/(2 + 4) = 1/3.
    result = mean_value_analysis(2, 2.0, [1.0, 2.0])
    np.testing.assert_allclose(result.throughput, [1 / 5, 1 / 3], rtol=1e-15)
    np.testing.assert_allclose(result.response_time, [[1, 2], [6 / 5, 14 / 5]], rtol=1e-15)
    np.testing.assert_allclose(result.queue_length, [[1 / 5, 2 / 5], [2 / 5, 14 / 15]], rtol=1e-15)


def test_balanced_network_without_think_time_has_the_textbook_throughput():
    # K equal stations, Z = 0: X(N) = N / (D (N + K - 1)).
    n = np.arange(1, 101)
    np.testing.assert_allclose(mean_value_analysis(100, 0.0, [0.5] * 7).throughput, n / (0.5 * (n + 6)), rtol=1e-13)


@given(n=st.integers(1, 300), think=times, service=times)
def test_one_station_is_the_machine_repairman(n, think, service):
    exact, chain = mean_value_analysis(n, think, [service]), machine_repairman(n, think, service)
    assert exact.throughput[-1] == pytest.approx(chain.throughput, rel=1e-12)
    assert exact.queue_length[-1, 0] == pytest.approx(chain.mean_at_lock, rel=1e-12)
    assert exact.response_time[-1, 0] == pytest.approx(chain.mean_at_lock / chain.throughput, rel=1e-12)
    assert chain.throughput <= n / deterministic_lock(n, think, service)[0] * (1 + 1e-12)


@given(
    phases=st.lists(st.integers(0, 500), min_size=1, max_size=12),
    think=st.integers(0, 100),
    service=st.integers(1, 20),
)
def test_every_later_cycle_of_constant_times_is_the_closed_form_whatever_the_phases(phases, think, service):
    cycle, wait = deterministic_lock(len(phases), float(think), float(service))
    arrivals = [(phase, thread) for thread, phase in enumerate(phases)]
    heapq.heapify(arrivals)
    free, last, settled = 0, {}, max(phases) + 2 * (think + len(phases) * service)
    checked = 0
    while checked < 3 * len(phases):
        arrived, thread = heapq.heappop(arrivals)
        free = max(free, arrived) + service
        if arrived > settled:
            assert free - last[thread] == cycle
            assert free - service - arrived == wait
            checked += 1
        last[thread] = free
        heapq.heappush(arrivals, (free + think, thread))


MEANS = {"think": 3.0, "read": 1.0, "write": 0.5}
ACQUISITIONS = 20_000


def simulated_throughput(draw, n, is_write, line):
    """Acquisitions per second of `n` threads; `draw(kind)` gives times, `is_write()` the mode.

    Threads pass line and lock in the order of arrival, so one pass in that order is exact.
    """
    arrivals = [(draw("think"), thread) for thread in range(n)]
    heapq.heapify(arrivals)
    line_free = entered = writer_end = readers_end = 0.0
    for _ in range(ACQUISITIONS):
        arrived, thread = heapq.heappop(arrivals)
        line_free = max(line_free, arrived) + line
        if is_write():
            entered = max(line_free, entered, writer_end, readers_end)
            end = writer_end = entered + draw("write")
        else:
            entered = max(line_free, entered, writer_end)
            end = entered + draw("read")
            readers_end = max(readers_end, end)
        heapq.heappush(arrivals, (end + draw("think"), thread))
    return ACQUISITIONS / max(readers_end, writer_end)


@pytest.mark.parametrize("n", [1, 2, 5, 16])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("line", [0.0, 0.2])
@pytest.mark.parametrize("spread", [1, 4, 10])
def test_bounds_of_the_means_enclose_a_simulated_reader_writer_lock(n, share, line, spread):
    """Times are usually 0 and rarely `spread` times the mean; the bounds use the means of the sample."""
    rng, drawn = np.random.default_rng(11), {kind: [] for kind in MEANS}

    def draw(kind):
        drawn[kind].append(MEANS[kind] * spread * (rng.random() < 1 / spread))
        return drawn[kind][-1]

    measured = simulated_throughput(draw, n, lambda: rng.random() < share, line)
    think, read, write = (float(np.mean(drawn[kind] or 0.0)) for kind in ("think", "read", "write"))
    written = len(drawn["write"]) / ACQUISITIONS
    bounds = reader_writer_bounds(n, think, read_hold=read, write_hold=write, write_share=written, line=line)
    ends = 2 * n * spread / ACQUISITIONS  # cycles cut at the start and the end of the run
    assert bounds.low * (1 - ends) <= measured <= bounds.high * (1 + ends)


def test_reader_writer_limits_by_hand():
    # p = 1/4, S = 1/4·4 + 3/4·1 + 0.25 = 2.
    bounds = reader_writer_bounds(6, 2.0, read_hold=1.0, write_hold=4.0, write_share=0.25, line=0.25)
    assert (bounds.low, bounds.limits) == (6 / 14, {"population": 6 / 4, "writer": 1.0, "line": 4.0})
    assert (bounds.high, bounds.limited_by) == (1.0, "writer")
    single = reader_writer_bounds(1, 2.0, read_hold=1.0, write_hold=4.0, write_share=0.5, line=0.5)
    assert single.low == single.high == 1 / 5
