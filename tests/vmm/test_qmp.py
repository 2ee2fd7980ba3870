# SPDX-License-Identifier: BSD-3-Clause
"""The QMP client. What decision/qemu.py asks with it is tested there, faults of the other side included."""

from __future__ import annotations

import os

import pytest
from fake_qemu import HANG_UP, UNKNOWN, serving

from simlib._lib.errors import InputError
from simlib.lab.host.threads import qmp_sockets, sockets_in
from simlib.vmm.qmp import Monitor, MonitorError


def test_version_listener_and_answers(tmp_path):
    with serving(tmp_path / "q", lambda command, arguments: {command: arguments}) as asked:
        with Monitor(str(tmp_path / "q")) as monitor:
            assert (monitor.version, monitor.pid) == ("9.2.1", os.getpid())
            assert monitor.ask("query-stats", {"target": "vm"})["return"] == {"query-stats": {"target": "vm"}}
    assert asked == ["qmp_capabilities", "query-stats"]


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_ones(tmp_path):
    def answer(command, arguments):
        return None if command == "query-kvm" else command

    with serving(tmp_path / "q", answer), Monitor(str(tmp_path / "q")) as monitor:
        monitor.allow(0.1)
        with pytest.raises(MonitorError, match=r"no answer: must answer within 0.1 s; waited for query-kvm") as fault:
            monitor.ask("query-kvm")
        assert not fault.value.lost
        monitor.allow(5)
        assert monitor.ask("query-migrate")["return"] == "query-migrate"


def test_an_error_is_an_answer_and_the_end_of_a_connection_none(tmp_path):
    def answer(command, arguments):
        return UNKNOWN if command == "query-stats" else HANG_UP

    with serving(tmp_path / "q", answer), Monitor(str(tmp_path / "q")) as monitor:
        assert monitor.ask("query-stats")["error"] == UNKNOWN["error"]
        with pytest.raises(MonitorError, match="hung up") as fault:
            monitor.ask("query-migrate")
        assert fault.value.lost
        with pytest.raises(MonitorError) as again:
            monitor.ask("query-migrate")
        assert again.value.lost


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["-qmp", "unix:a,server=on,wait=off"], ["a"]),
        (["--qmp-pretty", "unix:/b"], ["/b"]),
        (["-qmp", "tcp:localhost:4444,server"], []),
        (["-monitor", "unix:/hmp,server"], []),
        (["-chardev", "socket,id=m,path=/c,server=on", "-mon", "chardev=m,id=x,mode=control"], ["/c"]),
        (["-chardev", "socket,id=m,path=/c,server=on", "-qmp", "chardev:m"], ["/c"]),
        (["-chardev", "socket,id=m,path=/c", "-mon", "chardev=m,mode=readline"], []),
        (
            ["-chardev", "socket,id=charmonitor,fd=34,server=on", "-mon", "chardev=charmonitor,mode=control"],
            [],
        ),  # libvirt
    ],
)
def test_sockets_in_a_command_line(words, found):
    assert sockets_in(["qemu-system-x86_64", *words]) == found


def test_a_relative_path_is_the_processs_own(tmp_path, monkeypatch):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cmdline").write_bytes(b"qemu\0-qmp\0unix:run/a.sock,server=on\0")
    (tmp_path / "7" / "cwd").symlink_to("/srv")
    monkeypatch.setattr("simlib.lab.host.threads.PROC", tmp_path)
    assert qmp_sockets(7) == ["/srv/run/a.sock"]
    with pytest.raises(InputError, match="PID = 8: is not a process; give the PID of QEMU"):
        qmp_sockets(8)
