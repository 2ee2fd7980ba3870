# SPDX-License-Identifier: BSD-3-Clause
"""The trajectory of pre-copy compared with a simulation page by page, and with what must hold for all numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_by_page import Replay

from simlib._lib.errors import InputError
from simlib.analysis.simulate import run_scenario
from simlib.model.scenario import Scenario
from simlib.vmm.dirtying import parse_dirty
from simlib.vmm.memory import LinkModel, WorkingSet
from simlib.vmm.postcopy import postcopy
from simlib.vmm.precopy import LEFT, LOST, NEW, SENT, TIME, precopy_trajectory
from simlib.vmm.settings import QEMU, VMMS, Settings

COUNT = 2**14


def pages(rate, sweep=False, count=COUNT):
    return WorkingSet(*(np.array([float(x)]) for x in (count, rate / count, sweep, 0, 1, 0)))


def line(**more):
    return LinkModel(page_s=1e-9, **more)


RANDOM = [(rate, False, chunk) for rate in (3000, 9000, 20000) for chunk in (0, COUNT // 8)]
SWEEPS = [(3000, True, 0), (20000, True, 0)]
"""Not cleared chunk by chunk: where such a sweep is decides, which no mean has."""


@pytest.mark.parametrize("auto", [False, True])
@pytest.mark.parametrize(("rate", "sweep", "chunk"), RANDOM + SWEEPS)
def test_the_trajectory_is_that_of_single_pages(rate, sweep, auto, chunk):
    """64 MiB at 40 MB/s. What takes longest is near to where it would not end: times within 6 %."""
    settings = Settings(max_bandwidth=40_000_000, downtime_limit=200, auto_converge=auto)
    found = precopy_trajectory(pages(rate, sweep), line(chunk_pages=float(chunk)), settings, 60.0)
    single = Replay(COUNT, rate, sweep, limit=40e6, downtime=0.2, auto=auto, chunk=chunk)
    assert found.completed == single.completed
    assert abs(found.throttle - single.throttle) <= 10
    for name in ("total_s", "sent_bytes", "guest_s"):
        assert getattr(found, name) == pytest.approx(getattr(single, name), rel=0.06, abs=0.21), name
    if single.completed:
        assert abs(found.synchronisations - single.synchronisations) <= 2 + 0.2 * single.synchronisations


@pytest.mark.parametrize("vmm", VMMS)
@pytest.mark.parametrize(
    ("rate", "cpu_use"), [*((rate, 1.0) for rate in (3000, 9000, 20000, 60000)), (20000, 0.3), (60000, 0.3)]
)
def test_the_trajectory_is_that_of_the_engine(vmm, rate, cpu_use):
    """64 MiB at 40 MB/s, simulated access by access, with the throttle as a thread that has the vCPU sleep."""
    scenario = Scenario.parse(
        {"guest": {"vcpus": 1, "memory": "64M"}, "policy": {"architecture": "x86-tdp"},
         "workload": {"kind": "migration", "link": "320Mbit/s", "access": "uniform", "clear_when": "at_get",
                      "access_interval": f"{1e6 / rate}us", "cpu_use": cpu_use, "downtime": "20ms", "warm_up": "0ms",
                      "pass_limit": 100, "throttle": vmm}}
    )  # fmt: skip
    single = run_scenario(scenario).metrics
    settings = Settings(max_bandwidth=0, downtime_limit=20, auto_converge=True)
    guest = pages(rate)._replace(cpu=cpu_use)
    found = precopy_trajectory(guest, LinkModel(page_s=4096 / 40e6), settings, 90.0, VMMS[vmm])
    assert found.completed == single["converged"] == 1
    assert abs(found.throttle - single["throttle"]) <= 10
    assert found.total_s - found.downtime_s == pytest.approx(single["precopy_duration"], rel=0.05)
    assert found.guest_s / found.total_s == pytest.approx(single["guest_throughput"], abs=0.03)


@given(
    rate=st.floats(10, 1e6), share=st.floats(0.05, 1), sweep=st.booleans(), auto=st.booleans(),
    chunk=st.sampled_from([0, 512, 4096]), limit=st.sampled_from([0, 20_000_000, 200_000_000]),
)  # fmt: skip
def test_no_page_is_lost_and_none_is_sent_that_was_not_found(rate, share, sweep, auto, chunk, limit):
    hot = COUNT * share
    guest = WorkingSet(*(np.array(x, float) for x in (
        [hot, COUNT - hot], [rate / hot, 0], [sweep, 0], [0, 0], [1, 1], [0, 0])))  # fmt: skip
    found = precopy_trajectory(
        guest,
        line(chunk_pages=float(chunk))._replace(page_s=1e-5),
        Settings(max_bandwidth=limit, auto_converge=auto),
        30.0,
    )
    rows = found.passes
    sent = np.diff(rows[:, SENT], append=found.sent_bytes) / 4104
    assert (rows[:, LEFT] <= COUNT * (1 + 1e-9)).all()
    assert (rows[:, NEW] <= COUNT * (1 + 1e-9)).all()
    whole = found.synchronisations <= len(rows)
    if whole and found.completed and len(rows) > 1:
        assert COUNT + rows[1:, NEW].sum() <= sent.sum() + 1 + found.left_pages
    assert (np.diff(rows[:-1, TIME]) >= 0).all()
    assert 0 < found.guest_s <= found.total_s + 1e-9
    assert ((found.missing >= -1e-9) & (found.missing <= 1 + 1e-9)).all()


def test_periodic_synchronisation_is_younger_than_9_2():
    """A pass of 40 s: since 9.2 the bitmap is looked at within it, and the guest is throttled earlier."""
    slow = Settings(max_bandwidth=10_000_000, auto_converge=True)
    guest = pages(40_000, count=2**17)
    new, old = (
        precopy_trajectory(guest, line(), slow, 170.0, *vmm)
        for vmm in ((), (QEMU._replace(throttle=QEMU.throttle._replace(sync_every=0)),))
    )
    assert new.synchronisations > old.synchronisations
    assert new.throttle > old.throttle


def test_a_dirty_limit_holds_each_vcpu_to_its_quota():
    guest, host = pages(400_000, count=2**20), line(vcpus=4.0, ring_entries=4096.0)._replace(page_s=4e-6)
    plain = precopy_trajectory(guest, host, Settings(max_bandwidth=0, downtime_limit=100), 60.0)
    limited = precopy_trajectory(
        guest, host, Settings(max_bandwidth=0, downtime_limit=100, dirty_limit=True, vcpu_dirty_limit=50), 60.0
    )
    assert not plain.completed
    assert limited.completed
    assert limited.sleep_s > 0
    runs = 1 - limited.passes[:, LOST].max() / 100
    each = guest.distinct_pages(runs) * 4096 / 2**20 / 4  # MiB/s of a vCPU, where it is limited most
    assert guest.distinct_pages(1.0) * 4096 / 2**20 / 4 > 300
    assert each <= 50 + 25  # QEMU leaves alone what is within 25 MiB/s of the quota


def test_after_postcopy_every_page_comes_once():
    """2e4 pages, and 3e4 of zeros that need 9 bytes each."""
    guest = WorkingSet(*(np.array(x, float) for x in (
        [1e4, 2e4, 3e4], [1, 0.01, 0], [0, 0, 0], [0, 0, 0], [1, 1, 1], [0, 0, 1])))  # fmt: skip
    missing = np.array([1.0, 0.5, 1.0])
    found = postcopy(guest, missing, 4.0, line()._replace(page_s=1e-5), 0.0, 1e-3)
    assert found.total_s == pytest.approx(2e4 * 1e-5, rel=0.03)
    assert 0 < found.requests < 2e4
    assert found.sent_bytes == 2e4 * 4104 + 3e4 * 9
    slow = postcopy(guest, missing, 4.0, line()._replace(page_s=1e-5), 40e6, 1e-3)
    assert slow.total_s == pytest.approx(2e4 * 4104 / 40e6, rel=0.03)


@pytest.mark.parametrize("text", ["250000", "foo", "-1/s", "250000/s in 0s", "250000/s over", "1/s over 4G, lru"])
def test_a_rate_that_cannot_be_read_is_one_sentence(text):
    with pytest.raises(InputError, match="--dirty"):
        parse_dirty(text)


def test_settings_are_qemus():
    assert Settings.of({"downtime-limit": 500, "auto-converge": True}).downtime_limit == 500
    wrong = [
        ({"downtme-limit": 1}, "did you mean 'downtime-limit'"),
        ({"max-cpu-throttle": 100}, "from 1 to 99"),
        ({"multifd": True, "postcopy-ram": True}, "refuses post-copy with multifd"),
    ]
    for named, why in wrong:
        with pytest.raises(InputError, match=why):
            Settings.of(named).check()
