# SPDX-License-Identifier: BSD-3-Clause
"""Sampled guests compared with the measurements that they must explain, and with guests whose writes are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simlib._lib.errors import InputError
from simlib.vmm.dirtying import DirtyingGuess, DirtyRate
from simlib.vmm.guest import RunningGuest
from simlib.vmm.memory import active_time
from simlib.vmm.population import sample_guests
from simlib.vmm.qemu_rules import PAGE

MEMORY = 2.0**20
MIB = 256
"""Pages in a MiB."""


def reported(pages, seconds, samples_per_gib, random):
    """The rate that QEMU reports: of sampled pages those that changed, in whole MiB/s, rounded down."""
    samples = round(samples_per_gib * MEMORY / 2**18)
    changed = random.binomial(samples, pages / MEMORY)
    rate = int(changed / samples * MEMORY / MIB / seconds)
    return DirtyRate(float(rate * MIB * seconds), seconds, 0.02, MIB * seconds, samples_per_gib=samples_per_gib)


def written(guest, seconds):
    return guest.distinct_pages(active_time.py_func(seconds, guest))


@pytest.mark.parametrize("zipf", [0.0, 0.9])
def test_sampled_guests_write_as_much_as_was_measured(zipf):
    true = DirtyingGuess(50_000, 2e5, zipf=zipf).pages(MEMORY)
    measured = [DirtyRate(true.distinct_pages(t), t) for t in (1.0, 10.0, 60.0)]
    guests = sample_guests(measured, MEMORY, 200, np.random.default_rng(1))
    assert all(guest.number.sum() == pytest.approx(MEMORY) for guest in guests)
    steady = [guest for guest in guests if not guest.pause_s]
    assert len(steady) > 100
    for seconds in (1.0, 4.0, 10.0, 30.0, 60.0):
        low, middle, high = np.quantile([guest.distinct_pages(seconds) for guest in steady], [0.05, 0.5, 0.95])
        assert low <= 1.02 * true.distinct_pages(seconds) <= 1.04 * high
        assert middle == pytest.approx(true.distinct_pages(seconds), rel=0.15)


def test_the_range_of_sampled_guests_contains_the_guest_that_was_measured():
    """Guests from the population itself, measured as QEMU measures: 90 % ranges contain at least 80 % of them."""
    random = np.random.default_rng(2)
    truths = sample_guests([DirtyRate(30_000.0, 2.0, 0.5)], MEMORY, 60, random)
    inside, widths = [], []
    for true in truths:
        measured = [reported(written(true, seconds), seconds, 4096, random) for seconds in (1.0, 10.0, 60.0)]
        guests = sample_guests(measured, MEMORY, 60, random)
        low, high = np.quantile([written(guest, 20.0) for guest in guests], [0.05, 0.95])
        inside.append(low <= written(true, 20.0) * 1.001 and written(true, 20.0) <= high * 1.001)
        widths.append(high / max(low, 1.0))
    assert np.mean(inside) >= 0.8
    assert np.median(widths) < 2  # of 1e3 in the population


def test_a_rate_of_zero_is_a_measurement():
    rates = [DirtyRate(0.0, seconds, 0.02, MIB * seconds, samples_per_gib=512) for seconds in (1.0, 10.0, 60.0)]
    guests = sample_guests(rates, MEMORY, 100, np.random.default_rng(3))
    assert np.quantile([written(guest, 60.0) for guest in guests], 0.9) < 1.3 * 60 * MIB


def test_a_small_sample_of_pages_says_less():
    def spread(samples_per_gib):
        rate = DirtyRate(2_000.0, 1.0, 0.02, samples_per_gib=samples_per_gib)
        counts = [written(guest, 1.0) for guest in sample_guests([rate], MEMORY, 400, np.random.default_rng(4))
                  if not guest.pause_s]  # fmt: skip
        return np.std(np.log(counts))

    assert spread(512) > 1.3 * spread(16_384)


def test_measurements_that_contradict_each_other_widen_the_range():
    def ratio(second):
        rates = [DirtyRate(50_000.0, 1.0), DirtyRate(second, 1.0)]
        guests = sample_guests(rates, MEMORY, 200, np.random.default_rng(5))
        counts = [written(guest, 1.0) for guest in guests if not guest.pause_s]
        return np.quantile(counts, 0.95) / np.quantile(counts, 0.05)

    assert ratio(100_000.0) > 1.2 * ratio(51_000.0)


def test_more_pages_than_the_memory_has_are_refused():
    with pytest.raises(InputError, match="more pages than fit"):
        sample_guests([DirtyRate(2 * MEMORY, 1.0)], MEMORY, 1, np.random.default_rng(6))


def test_resident_memory_and_cpu_use_narrow_the_samples():
    guest = RunningGuest(4, round(MEMORY * PAGE), 10**10, (DirtyRate(1_000.0, 1.0),))
    unknown = guest.samples(100)
    zeros = [float(one.pages.number @ one.pages.zero) for one in unknown]
    assert min(zeros) < 0.1 * MEMORY < 0.7 * MEMORY < max(zeros)
    uses = [one.pages.cpu for one in unknown]
    assert min(uses) < 0.4
    assert max(uses) == 1.0
    known = replace(guest, resident=2**31, cpu=0.2).samples(100)
    zeros = [float(one.pages.number @ one.pages.zero) for one in known]
    assert min(zeros) >= 0.5 * MEMORY
    assert max(zeros) <= 0.62 * MEMORY
    assert min(one.pages.cpu for one in known) == pytest.approx(0.2)
    exact = replace(guest, zeros=2**30).samples(3)
    assert [float(one.pages.number @ one.pages.zero) for one in exact] == pytest.approx([2**18] * 3)
