# SPDX-License-Identifier: BSD-3-Clause
"""Reader/writer bounds against a simulation of a FIFO reader/writer lock behind a FIFO cache line."""

import heapq
import math

import numpy as np
import pytest

from simlib.theory import cache_line_limit, machine_repairman, reader_writer_bounds

MEANS = {"think": 3.0, "read": 1.0, "write": 0.5}
ACQUISITIONS = 20_000


def simulated_throughput(draw, n, is_write, line=0.0):
    """Acquisitions per second of `n` threads; `draw(kind)` gives times, `is_write(thread)` the mode.

    Threads pass line and lock in the order of arrival, so one pass in that order is exact.
    """
    arrivals = [(draw("think"), thread) for thread in range(n)]
    heapq.heapify(arrivals)
    line_free = entered = writer_end = readers_end = 0.0
    for _ in range(ACQUISITIONS):
        arrived, thread = heapq.heappop(arrivals)
        line_free = max(line_free, arrived) + line
        if is_write(thread):
            entered = max(line_free, entered, writer_end, readers_end)
            end = writer_end = entered + draw("write")
        else:
            entered = max(line_free, entered, writer_end)
            end = entered + draw("read")
            readers_end = max(readers_end, end)
        heapq.heappush(arrivals, (end + draw("think"), thread))
    return ACQUISITIONS / max(readers_end, writer_end)


class TwoPoint:
    """Times of 0 mostly and `spread` means seldom (constant for 1), and the means that were in fact drawn."""

    def __init__(self, spread, share):
        self.rng, self.spread, self.share = np.random.default_rng(11), spread, share
        self.drawn = {kind: [] for kind in MEANS}

    def __call__(self, kind):
        time = MEANS[kind] * self.spread * (self.rng.random() < 1 / self.spread)
        self.drawn[kind].append(time)
        return time

    def is_write(self, _):
        return self.rng.random() < self.share

    def mean(self, kind):
        return float(np.mean(self.drawn[kind] or 0.0))


@pytest.mark.parametrize("n", [1, 2, 5, 16])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("line", [0.0, 0.2])
@pytest.mark.parametrize("spread", [1, 4, 10])
def test_bounds_of_the_means_enclose_a_simulated_lock(n, share, line, spread):
    draw = TwoPoint(spread, share)
    measured = simulated_throughput(draw, n, draw.is_write, line)
    bounds = reader_writer_bounds(
        n,
        draw.mean("think"),
        read_hold=draw.mean("read"),
        write_hold=draw.mean("write"),
        write_share=len(draw.drawn["write"]) / ACQUISITIONS,
        line=line,
    )
    ends = 2 * n * spread / ACQUISITIONS  # cycles cut at the start and the end of the run
    assert bounds.low * (1 - ends) <= measured <= bounds.high * (1 + ends)


def test_the_batch_limit_is_tight_for_a_crowd_of_constant_holds():
    rng, times = np.random.default_rng(7), {"think": 0.0, "read": 1.0, "write": 0.5}
    bounds = reader_writer_bounds(256, 0.0, read_hold=1.0, write_hold=0.5, write_share=0.3, independent_fifo=True)
    assert bounds.limited_by == "batch"
    measured = simulated_throughput(times.__getitem__, 256, lambda _: rng.random() < 0.3)
    assert measured == pytest.approx(bounds.high, rel=0.02)


def test_two_fixed_writers_side_by_side_beat_the_batch_limit_which_is_why_it_is_optional():
    # 2 of 16 threads write and none thinks: rounds of two writers and one batch of 14 readers, 2 s each.
    times = {"think": 0.0, "read": 1.0, "write": 0.5}
    arguments = {"read_hold": 1.0, "write_hold": 0.5, "write_share": 2 / 16}
    plain = reader_writer_bounds(16, 0.0, **arguments)
    measured = simulated_throughput(times.__getitem__, 16, lambda thread: thread < 2)
    assert measured == pytest.approx(8.0, rel=1e-3)
    assert plain.batch_limit == math.inf
    assert plain.low <= measured <= plain.high
    assert reader_writer_bounds(16, 0.0, **arguments, independent_fifo=True).high < 6


def test_waiters_move_the_line_under_a_write_hold_so_the_exclusive_limit_is_no_bound_here():
    bounds = reader_writer_bounds(16, 0.0, read_hold=0.0, write_hold=0.5, write_share=1.0, line=0.2)
    times = {"think": 0.0, "write": 0.5}
    measured = simulated_throughput(times.__getitem__, 16, lambda _: True, line=0.2)
    assert measured == pytest.approx(bounds.high, rel=1e-3)
    assert measured > 1.3 * bounds.exclusive_limit


def test_limits_by_hand():
    # p = 1/4, S = 1/4·4 + 3/4·1 + 0.25 = 2.
    bounds = reader_writer_bounds(6, 2.0, read_hold=1.0, write_hold=4.0, write_share=0.25, line=0.25)
    assert (bounds.low, bounds.population_limit, bounds.writer_limit) == (6 / 14, 6 / 4, 1.0)
    assert (bounds.line_limit, bounds.exclusive_limit, bounds.high, bounds.limited_by) == (
        4.0,
        0.8,
        1.0,
        "writer",
    )
    assert bounds.serialised == machine_repairman(6, 2.0, 2.0).throughput
    assert cache_line_limit(2, 0.125) == 4.0


def test_with_one_thread_or_writers_only_nothing_is_left_open():
    one = reader_writer_bounds(1, 2.0, read_hold=1.0, write_hold=4.0, write_share=0.5, line=0.5)
    assert one.low == one.high == 1 / 5
    assert one.serialised == pytest.approx(1 / 5, rel=1e-15)
    writers = reader_writer_bounds(1000, 1.0, read_hold=9.0, write_hold=1.0, write_share=1.0)
    assert writers.high == 1.0
    assert writers.low == pytest.approx(1, rel=2e-3)
