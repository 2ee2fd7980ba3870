# SPDX-License-Identifier: BSD-3-Clause
"""D/D/1//N against an event-by-event count, in whole numbers so that equality is exact."""

import heapq
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simlib.theory import asymptotic_bounds, deterministic_lock, machine_repairman


@given(
    phases=st.lists(st.integers(0, 500), min_size=1, max_size=12),
    think=st.integers(0, 100),
    service=st.integers(1, 20),
)
def test_every_later_cycle_is_the_closed_form_whatever_the_phases(phases, think, service):
    lock = deterministic_lock(len(phases), float(think), float(service))
    arrivals = [(phase, thread) for thread, phase in enumerate(phases)]
    heapq.heapify(arrivals)
    free, last, settled = 0, {}, max(phases) + 2 * (think + len(phases) * service)
    checked = 0
    while checked < 3 * len(phases):
        arrived, thread = heapq.heappop(arrivals)
        free = max(free, arrived) + service
        if arrived > settled:
            assert free - last[thread] == lock.cycle_time
            assert free - service - arrived == lock.mean_wait
            checked += 1
        last[thread] = free
        heapq.heappush(arrivals, (free + think, thread))


@given(n=st.integers(1, 100), think=st.floats(0, 1e3), service=st.floats(1e-6, 1e3))
def test_no_distribution_does_better(n, think, service):
    best = deterministic_lock(n, think, service)
    assert best.throughput == pytest.approx(asymptotic_bounds(n, think, [service]).high, rel=1e-14)
    assert machine_repairman(n, think, service).throughput <= best.throughput * (1 + 1e-12)
    assert best.utilisation == pytest.approx(best.throughput * service, rel=1e-14)
    assert best.speed_up + best.throughput * (service + best.mean_wait) == pytest.approx(n, rel=1e-9)


def test_saturation_is_the_knee():
    knee = deterministic_lock(3, 2.0, 1.0)
    assert (knee.saturation, knee.throughput, knee.utilisation, knee.mean_wait) == (3.0, 1.0, 1.0, 0.0)
    assert deterministic_lock(2, 2.0, 1.0).utilisation < 1
    assert deterministic_lock(4, 2.0, 1.0).mean_wait == 1.0
    assert deterministic_lock(4, 2.0, 0.0).saturation == math.inf
