# SPDX-License-Identifier: BSD-3-Clause
"""A simulation that continues a running migration compared with one that began with it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simlib.vmm.guest import RunningGuest
from simlib.vmm.memory import LinkModel, PassState, WorkingSet, dirty_shares, memory_in_pass, pages_left
from simlib.vmm.precopy import PrecopyStart, precopy_trajectory
from simlib.vmm.running import running_migration, running_starts
from simlib.vmm.samples import MigrationSample
from simlib.vmm.settings import QEMU, Settings

GIB = 2**30
COUNT = 2**18


def working_set(hot, rate, zeros=0.0):
    rows = ([hot, COUNT - hot - zeros, zeros], [rate, 1e-3, 0], [0, 0, 0], [0, 0, 0], [1, 1, 1], [0, 0, 1])
    return WorkingSet(*(np.array(row, float) for row in rows))


def continued(pages, link, settings, share):
    """Simulate up to a share of the time, write down what QEMU would report, and simulate the rest from that."""
    whole = precopy_trajectory(pages, link, settings, 3000.0)
    now = precopy_trajectory(pages, link, settings, share * whole.total_s)
    before = whole.passes[whole.passes[:, 0] <= share * whole.total_s]
    sent = now.sent_bytes / 4104
    first = now.synchronisations == 1
    sample = MigrationSample(
        "active", now.total_s, COUNT * 4096.0, now.sent_bytes, now.left_pages * 4096, sent if first else COUNT, 0.0,
        passes=now.synchronisations, throttle=now.throttle,
    )  # fmt: skip
    earlier = MigrationSample("active", float(before[-1, 0]), passes=len(before) - 1)
    later = MigrationSample("active", float(before[-1, 0]), passes=len(before))
    guest = RunningGuest(1, COUNT * 4096, round(4104 * 8 / link.page_s), settings=settings,
                         running=(earlier, later, sample))  # fmt: skip
    object.__setattr__(guest, "link_of", lambda *_: link)
    start = running_starts(guest, [type("Sample", (), {"pages": pages, "vmm": QEMU})()])[1][0]
    rest = precopy_trajectory(pages, link, settings, 3000.0, start=start)
    return whole, now, rest


@pytest.mark.parametrize("chunk", [0.0, COUNT / 8])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.9])
@pytest.mark.parametrize(("hot", "rate"), [(2_000, 5.0), (50_000, 0.5), (150_000, 0.05)])
def test_a_running_migration_continues_as_it_began(hot, rate, share, chunk):
    link = LinkModel(page_s=4104 * 8 / 1e9, chunk_pages=chunk, switch_s=0.01)
    settings = Settings(max_bandwidth=0, auto_converge=True)
    whole, now, rest = continued(working_set(hot, rate), link, settings, share)
    assert whole.completed
    assert rest.completed
    assert rest.passes[0, 2] == pytest.approx(now.left_pages, rel=0.02)
    assert now.total_s + rest.total_s == pytest.approx(whole.total_s, rel=0.15)
    assert abs(rest.throttle - whole.throttle) <= 10
    assert abs(rest.synchronisations - whole.synchronisations) <= 2 + 0.25 * whole.synchronisations


@given(
    hot=st.floats(1, COUNT / 2), rate=st.floats(1e-3, 100), seconds=st.floats(0.1, 100), left=st.floats(0, 1),
    position=st.floats(0, 0.99), chunk=st.sampled_from([0.0, COUNT / 8]),
)  # fmt: skip
def test_the_state_has_as_many_dirty_pages_as_are_reported(hot, rate, seconds, left, position, chunk):
    pages = working_set(hot, rate, zeros=1000.0)
    shares = dirty_shares(pages, seconds, left * COUNT)
    assert ((shares >= 0) & (shares <= 1)).all()
    assert (pages.number * shares).sum() == pytest.approx(left * COUNT, rel=1e-6, abs=1e-3)
    whole = np.ones(3)
    first, _ = memory_in_pass(pages, chunk, PassState(position, whole, 0 * whole, seconds))
    assert pages_left(first) == pytest.approx((1 - position) * COUNT, rel=1e-6)
    later, _ = memory_in_pass(pages, chunk, PassState(0.0, shares, shares, seconds))
    assert pages_left(later) == pytest.approx(left * COUNT, rel=1e-6, abs=1e-3)
    for state in (first, later):
        assert ((state.clean >= 0) & (state.clean + state.taken <= 1 + 1e-12)).all()


def sample(status="active", left=2.0**30, **more):
    return MigrationSample(status, 60.0, 16.0 * GIB, 8e9, left, **more)


@pytest.mark.parametrize(
    ("samples", "position"),
    [
        ([sample("completed", 0.0)], None),
        ([sample("failed")], None),
        ([sample("postcopy-active")], None),
        ([sample("active", 0.0)], None),
        ([], None),
        ([sample("", 8.0 * GIB)], 0.5),  # Nova's log
        ([sample(passes=3, normal_pages=1.8e6, zero_pages=2.4e6)], 1.0),
        ([sample(left=12.0 * GIB, passes=1, normal_pages=2**19, zero_pages=2**19)], 0.25),
        ([sample(left=GIB), sample(left=2.0 * GIB)], 1.0),  # the remainder rises only at a synchronisation
        ([MigrationSample("active", 60.0, 16.0 * GIB, 4.0 * GIB)], 0.25),  # Proxmox VE's log has no remainder
        ([MigrationSample("active", 150.0, 16.0 * GIB, 18.0 * GIB)], 1.0),
    ],
)
def test_the_last_sample_tells_the_state_of_the_migration(samples, position):
    state = running_migration(RunningGuest(8, 16 * GIB, 10**9, running=tuple(samples)))
    assert (state and state.position) == (position and pytest.approx(position))


def test_a_start_that_is_not_given_is_the_beginning():
    assert running_starts(RunningGuest(8, 16 * GIB, 10**9), [None])[1] == [PrecopyStart()]
