# SPDX-License-Identifier: BSD-3-Clause
"""Grids: ranges, limits, and the unfinished points."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simlib._lib.errors import InputError
from simlib.analysis.sweep import driver, read_grid, run
from simlib.analysis.sweep.axis import Span, read_axis
from simlib.analysis.sweep.batch import Batch
from simlib.analysis.sweep.grid import MAX_COORDINATES
from simlib.analysis.sweep.point import Points
from simlib.analysis.sweep.store import Store


@pytest.mark.parametrize(
    ("section", "key", "range_", "values"),
    [
        ("workload", "clear_threads", {"low": 0, "high": 64, "count": 3}, (0, 32, 64)),
        ("workload", "clear_threads", {"low": 0, "high": 4, "count": 5}, (0, 1, 2, 3, 4)),
        ("workload", "pause", {"low": "0ps", "high": "1us", "count": 2}, ("0ps", "1us")),
        ("guest", "memory", {"low": "90M", "high": "300M", "count": 3, "multiple": "64M"}, ("128M", "192M", "256M")),
        (
            "workload",
            "zipf_exponent",
            {"low": 0.1, "high": 0.7, "count": 3, "scale": "log"},
            (0.1, 0.7**0.5 * 0.1**0.5, 0.7),
        ),
    ],
)
def test_a_range_has_the_expected_values(section, key, range_, values):
    parsed = read_axis(section, key, range_, sampled=False).values
    assert parsed == (values[0], *map(pytest.approx, values[1:-1]), values[-1])


@given(
    low=st.integers(0, 2**61), reach=st.integers(1, 2**61), multiple=st.integers(1, 2**62), log=st.booleans(),
    share=st.floats(0, 1),
)  # fmt: skip
def test_values_of_a_span_are_multiples_within_it(low, reach, multiple, log, share):
    span = Span(low + log, low + log + reach, log, multiple)
    if span.ends[0] <= span.ends[1]:
        value = span.at(share)
        assert span.low <= value <= span.high
        assert value % multiple == 0


@pytest.mark.parametrize(
    ("section", "key", "range_", "sentence"),
    [
        ("guest", "memory", {"low": "100M", "high": "120M", "multiple": "64M", "count": 2},
         "axes.guest.memory.multiple = 64M: the range from 100M to 120M contains no multiple of it; write a wider "
         "range"),
        ("guest", "memory", {"low": "100M", "high": "180M", "multiple": "64M", "count": 2},
         "axes.guest.memory.count = 2: the range has fewer distinct values (1), all multiples of 64M; write a "
         "smaller count or a wider range, or list the values"),
        ("guest", "vcpus", {"low": 1, "high": 8, "count": 6, "scale": "log"},
         "axes.guest.vcpus.count = 6: the range has fewer distinct values (5), all multiples of 1; write a "
         "smaller count or a wider range, or list the values"),
        ("workload", "clear_threads", {"low": 0, "high": 8, "count": 3, "multiple": 0},
         "axes.workload.clear_threads.multiple = 0: must be above 0; remove it"),
    ],
)  # fmt: skip
def test_a_range_without_enough_values_is_refused(section, key, range_, sentence):
    with pytest.raises(InputError) as error:
        read_axis(section, key, range_, sampled=False)
    assert str(error.value) == sentence


def test_a_repeated_value_is_refused_as_it_was_written():
    with pytest.raises(InputError, match=r"axes\.guest\.memory\[2\] = 1024K: occurs twice"):
        read_axis("guest", "memory", ["1M", "2M", "1024K"], sampled=False)
    with pytest.raises(InputError, match=r"policies\[1\] = baseline: occurs twice"):
        read_grid({"policies": ["baseline", "baseline"]})


def test_a_sampled_design_has_a_limited_number_of_coordinates():
    ends = {"low": "1ns", "high": "1us"}
    names = [
        "fault_unlocked", "fault_hold", "split_hold", "populate_block", "tlb_invalidate", "line_transfer", "clear_page",
        "clear_word", "clear_unsplit",
    ]  # fmt: skip
    design = {"kind": "sobol", "points": MAX_COORDINATES // 8}
    assert read_grid({"axes": {"costs": dict.fromkeys(names[:8], ends)}, "design": design}).points == design["points"]
    with pytest.raises(InputError, match=r"at most 8,388,608 coordinates \(points × axes\), not 9,437,184; use fewer"):
        read_grid({"axes": {"costs": dict.fromkeys(names, ends)}, "design": design})


def test_the_driver_of_a_hundred_million_points_needs_little_memory(tmp_path):
    times = {"low": "1ns", "high": "100ns", "count": 100}
    counts = {"low": 1, "high": 100, "count": 100}
    axes = {
        "guest": {"vcpus": counts},
        "host": {"cores": counts},
        "costs": {"fault_unlocked": times, "fault_hold": times},
    }
    tracemalloc.start()
    store = Store(tmp_path, read_grid({"axes": axes}))
    assert driver._Remaining(store, 2).next_batch() is not None
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (store.grid.points, peak < 200 * 2**20) == (10**8, True)


def test_the_number_of_workers_is_limited(grid, tmp_path):
    with pytest.raises(InputError, match="workers = 1025: must be a whole number from 0 to 1024"):
        run(grid, tmp_path / "out", workers=1025)
    assert not (tmp_path / "out").exists()


def completed_points(store: Store) -> list[int]:
    """Points in the order of their completion, if each batch finishes only its first half."""
    remaining, points, numbers = driver._Remaining(store, 2), Points(store.grid), []
    while (task := remaining.next_batch()) is not None:
        _, _, begin, end, _ = task
        done = begin + (end - begin + 1) // 2
        numbers += points.numbers(begin, done).tolist()
        remaining.record(Batch(begin, done, None, None, 0.01 * (done - begin)), end)
    assert remaining.points == 0
    return numbers


def test_unfinished_points_are_given_out_once_and_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "BLOCK", 64)
    count = {"low": 1, "high": 20, "count": 20}
    grid = read_grid({"axes": {"guest": {"vcpus": count}, "host": {"cores": count}}})
    store = Store(tmp_path, grid)
    store.done[:] = np.random.default_rng(1).random(400) < 0.4
    order = Points(grid).numbers(0, 400)
    assert completed_points(store) == [number for number in order.tolist() if not store.done[number]]
    store.done[:] = True
    assert completed_points(store) == []


def test_a_large_sweep_needs_one_byte_per_point(tmp_path):
    thousand = {"low": "1us", "high": "1ms", "count": 1000}
    grid = read_grid({"axes": {"guest": {"vcpus": {"low": 1, "high": 100, "count": 100}},
                               "workload": {"access_interval": thousand, "warm_up": thousand}}})  # fmt: skip
    tracemalloc.start()
    try:
        driver._Remaining(Store(tmp_path, grid), 2).next_batch()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grid.points == 10**8 < peak < 1.1 * 10**8
