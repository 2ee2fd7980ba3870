# SPDX-License-Identifier: BSD-3-Clause
"""Tracepoints: settings of an instance, its events, and its removal."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from simlib._lib.errors import InputError
from simlib.lab.host import tracing
from simlib.lab.host.tracing import TRACING, Tracing

BEGIN = " CPU 0/KVM-41 [002] d..1. 127.240361: contention_begin: 00000000610328f2 (flags=SPIN|WRITE)\n"
END = " CPU 0/KVM-41 [002] d..1. 127.240987: contention_end: 00000000610328f2 (ret=0)\n"
FAULT = " CPU 0/KVM-41 [002] d..1. 127.241000: kvm_page_fault: vcpu 0 rip 0x1 address 0x2 error_code 0x182\n"


@pytest.fixture
def tracefs(tmp_path, monkeypatch):
    """A folder like tracefs, whose instances have two events and a pipe that is never at its end."""
    (tmp_path / "instances").mkdir()
    pipes = []

    def make(folder):
        for event in ("lock/contention_begin", "lock/contention_end", "kvm/kvm_page_fault"):
            (folder / "events" / event).mkdir(parents=True)
            (folder / "events" / event / "enable").write_text("0")
        (folder / "events" / "enable").write_text("0")
        (folder / "options").mkdir()
        os.mkfifo(folder / "trace_pipe")
        pipes.append(os.open(folder / "trace_pipe", os.O_RDWR | os.O_NONBLOCK))

    removed = []

    def remove(folder):
        if folder.exists():
            removed.append({str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()})
            shutil.rmtree(folder)

    monkeypatch.setattr(tracing, "_make", make)
    monkeypatch.setattr(tracing, "_remove", remove)
    yield tmp_path, pipes, removed
    for pipe in pipes:
        os.close(pipe)


def test_an_instance_from_beginning_to_end(tracefs):
    root, pipes, removed = tracefs
    with Tracing(["lock:contention_*", "kvm:kvm_page_fault", "kvm:kvm_none"], [41, 42], root) as traced:
        assert traced.enabled == ("lock:contention_begin", "lock:contention_end", "kvm:kvm_page_fault")
        os.write(pipes[0], (BEGIN + END[:30]).encode())  # a piece ends within a line
        traced.read()
        os.write(pipes[0], (END[30:] + FAULT + "contention_begin: nonsense\n").encode())
        traced.read()
        os.write(pipes[0], FAULT.encode())  # read when the watch ends
    contents = traced.contents()
    waits, _, _, events = (table.frame for table in contents.tables)
    assert waits[["task", "pid", "wait_ns"]].to_numpy().tolist() == [["CPU 0/KVM", 41, 626000]]
    assert events[["event", "events"]].to_numpy().tolist() == [["kvm_page_fault", 2]]
    assert contents.warnings == ("trace lines that could not be parsed: 1",)
    (last,) = removed
    assert last == {
        "trace_clock": "mono", "buffer_size_kb": "4096", "options/event-fork": "1", "set_event_pid": "41 42",
        "events/enable": "0", "events/lock/contention_begin/enable": "1", "events/lock/contention_end/enable": "1",
        "events/kvm/kvm_page_fault/enable": "1",
    }  # fmt: skip
    assert not list((root / "instances").iterdir())


@pytest.mark.parametrize("fault", [KeyboardInterrupt, RuntimeError])
def test_the_instance_is_removed_whatever_happens(tracefs, fault):
    root, _, removed = tracefs
    with pytest.raises(fault), Tracing(["lock:*"], [41], root):
        raise fault
    assert removed[0]["events/enable"] == "0"
    assert not list((root / "instances").iterdir())


def test_a_start_that_fails_leaves_nothing(tracefs, monkeypatch):
    root, _, removed = tracefs
    with pytest.raises(InputError, match="tracepoints = kvm:no_such: this kernel has no such event; give others: --ev"):
        Tracing(["kvm:no_such"], [41], root)

    def refused(self, name, text):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Tracing, "_write", refused)
    with pytest.raises(InputError, match="tracepoints = Operation not permitted: cannot be enabled; run as root"):
        Tracing(["lock:*"], [41], root)
    assert len(removed) == 2
    assert not list((root / "instances").iterdir())


def test_the_instance_of_a_killed_watch_is_removed(tracefs):
    root, _, removed = tracefs
    alive = f"simlib-watch-{os.getppid()}"
    for name in ("simlib-watch-1073741824", alive, "of-somebody-else"):
        (root / "instances" / name).mkdir()
    Tracing(["lock:*"], [41], root).close()
    assert sorted(p.name for p in (root / "instances").iterdir()) == [
        "of-somebody-else",
        f"simlib-watch-{os.getppid()}",
    ]
    assert len(removed) == 2


def real() -> bool:
    return os.access(TRACING / "instances", os.W_OK) and (TRACING / "events/lock/contention_begin").is_dir()


@pytest.mark.skipif(not real(), reason="needs a tracefs that may be written, with lock:contention_begin")
def test_the_kernels_own_tracefs():
    switch = TRACING / "events/lock/contention_begin/enable"
    before = switch.read_text()
    with Tracing(["lock:contention_begin", "lock:contention_end"], [os.getpid()]) as traced:
        assert traced.enabled == ("lock:contention_begin", "lock:contention_end")
        assert (traced.folder / "set_event_pid").read_text().split() == [str(os.getpid())]
        assert (traced.folder / "events/lock/contention_begin/enable").read_text().strip() == "1"
        assert switch.read_text() == before
        traced.read()
        assert Path(traced.folder).is_dir()
    assert not traced.folder.exists()
