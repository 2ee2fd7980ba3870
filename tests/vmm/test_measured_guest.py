# SPDX-License-Identifier: BSD-3-Clause
"""The measurement of a running guest, with a QMP server whose process and thread are those of the test."""

from __future__ import annotations

import threading
import time

import pytest
from fake_qemu import UNKNOWN, serving

from simlib._lib.errors import InputError
from simlib.vmm.measure import WINDOWS_S, measure
from simlib.vmm.read_guest import parse_guest

GIB = 2**30
REPLIES = {
    "query-memory-size-summary": {"base-memory": 4 * GIB, "plugged-memory": 4 * GIB},
    "query-migrate": {},
    "query-migrate-parameters": {"downtime-limit": 500, "max-bandwidth": 10**9},
    "query-migrate-capabilities": [{"capability": "auto-converge", "state": True}],
    "query-kvm": {"enabled": True, "present": True},
    "query-version": {"qemu": {"micro": 4, "minor": 2, "major": 7}, "package": ""},
}


class Guest:
    """Answers of a QEMU that dirties 100 MiB/s; `old`: True if it does not know milliseconds."""

    def __init__(self, old=False):
        self.old, self.measured, self.started = old, {}, []

    def __call__(self, command, arguments):
        if command == "query-cpus-fast":
            return [{"cpu-index": 0, "thread-id": threading.main_thread().native_id, "target": "x86_64"}]
        if self.old and "calc-time-unit" in arguments:
            return {"error": {"class": "GenericError", "desc": "Parameter 'calc-time-unit' is unexpected"}}
        if command == "calc-dirty-rate":
            self.started.append(arguments)
            self.measured = {"status": "measured", "dirty-rate": 100, "mode": arguments["mode"], "start-time": 7,
                             "sample-pages": arguments["sample-pages"], "calc-time": arguments["calc-time"],
                             "calc-time-unit": arguments.get("calc-time-unit", "second")}  # fmt: skip
            return {}
        return self.measured if command == "query-dirty-rate" else REPLIES.get(command, UNKNOWN)


@pytest.mark.parametrize("old", [False, True])
def test_a_guest_is_measured(tmp_path, old):
    calls, qemu = [], Guest(old)

    def progress(what, share):
        calls.append(what)
        until = time.thread_time() + 0.02
        while time.thread_time() < until:  # the CPU time of a vCPU
            pass

    with serving(tmp_path / "q", qemu):
        text = measure(str(tmp_path / "q"), progress)
    guest = parse_guest(text)
    assert [rate.seconds for rate in guest.dirty] == pytest.approx(WINDOWS_S[int(old) :])
    assert all(rate.pages == pytest.approx(25_600 * rate.seconds) for rate in guest.dirty)
    assert {call["sample-pages"] for call in qemu.started} == {16_384}  # of 8 GiB: 2^17 pages
    assert (guest.vcpus, guest.memory, guest.version) == (1, 8 * GIB, (7, 2))
    assert 0 < guest.cpu <= 1
    assert 2**24 < guest.resident < 2**33
    assert (guest.settings.max_bandwidth, guest.settings.auto_converge) == (10**9, True)
    assert calls == [f"measuring for {seconds:g} s" for seconds in WINDOWS_S[int(old) :]]


def test_a_refused_measurement_is_reported(tmp_path):
    qemu = Guest()

    def answer(command, arguments):
        busy = {"error": {"class": "GenericError", "desc": "the dirty rate is already being measured"}}
        return busy if command == "calc-dirty-rate" else qemu(command, arguments)

    with serving(tmp_path / "q", answer), pytest.raises(InputError, match="already being measured"):
        measure(str(tmp_path / "q"))
