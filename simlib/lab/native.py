# SPDX-License-Identifier: BSD-3-Clause
"""Run a cell on this host's ``/dev/kvm``.

A patched kernel has the series' parameters and statistics. On a stock kernel, vary ``test.chunk_pages``.
``/proc/lock_stat`` and the tracepoints ``contention_begin`` and ``contention_end`` are read if the kernel has them.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

from simlib._lib.errors import InputError, SimlibError
from simlib.lab.boot import BootOutcome
from simlib.lab.experiment import Cell, parameter_text
from simlib.lab.process import TimeReport, run, silent

PARAMETERS = Path("/sys/module/kvm/parameters")
LOCK_STAT = Path("/proc/lock_stat")
TRACING = Path("/sys/kernel/tracing")

NATIVE_TARGETS = {"x86_64": "x86_64", "aarch64": "arm64", "riscv64": "riscv64"}


def native_target() -> str:
    """Target of this host.

    Raises `InputError` if the lab does not support its architecture, or ``/dev/kvm`` cannot be used.
    """
    machine = platform.machine()
    if machine not in NATIVE_TARGETS:
        known = f"known: {', '.join(NATIVE_TARGETS)}"
        raise InputError("this host", machine, "the lab does not support this machine", known, flag="--native")
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        hint = "load the kvm module, or join the group kvm"
        raise InputError("this host", "/dev/kvm", "is missing or not accessible", hint, flag="--native")
    return NATIVE_TARGETS[machine]


def run_native(cell: Cell, program: Path, output: Path | None = None, progress: TimeReport = silent) -> BootOutcome:
    """Run a cell on this host.

    Raises `InputError` if the experiment sets parameters that this kernel does not have. Raises `SimlibError` if the
    test fails, skips itself or does not end.

    `program`: the selftest, built for this host. `output`: folder for ``lock_stat.txt`` and ``contention.txt``, if the
    kernel has lock_stat and the tracepoints. `progress`: called about once a second.
    """
    script = cell.script().splitlines()
    words = next(line for line in script if line.startswith("run ")).split()[2:]
    with ExitStack() as undo:  # restores the kernel's settings, even after an error
        set_parameters(cell, undo)
        has_lock_stat = output is not None and _writable(LOCK_STAT)
        if has_lock_stat:
            LOCK_STAT.write_text("0")
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
            _trace(output / "contention.txt", undo)
        start = time.monotonic()
        printed = run_test(cell, [str(program), *words], progress)
        wall_s = time.monotonic() - start
        if output is not None and has_lock_stat:
            (output / "lock_stat.txt").write_text(LOCK_STAT.read_text())
    outputs = tuple(printed if line.startswith("run ") else "" for line in script)
    digest = hashlib.sha256(printed.encode()).hexdigest()
    return BootOutcome(outputs, digest, " ".join([program.name, *words]), wall_s, wall_s)


def run_test(cell: Cell, command: list[str], progress: TimeReport = silent) -> str:
    """Run the test, and return its output. Raises `SimlibError` if it fails, skips itself or does not end."""
    limit = cell.experiment.timeout_s

    def check(seconds: float) -> None:
        progress(seconds)
        if seconds > limit:
            raise SimlibError(f"{cell.label}: timed out after {limit} s: raise timeout_s, or test less memory")

    done = run(command, check, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
    if done.returncode:
        last_line = ((done.stderr or done.stdout).strip().splitlines() or ["it printed nothing"])[-1]
        end = "was skipped" if done.returncode == 4 else f"exited with status {done.returncode}"
        raise SimlibError(f"{cell.label}: the test {end}: {last_line}")
    return str(done.stdout)


def set_parameters(cell: Cell, undo: ExitStack) -> None:
    """Set the experiment's module parameters on the running kernel, until `undo` is closed.

    Raises `InputError` if the kernel does not have a parameter, or rejects the value.
    """
    for name, value in cell.parameters.items():
        path = PARAMETERS / name
        if not path.exists():
            rule = f"Linux {platform.release()} has no such parameter"
            hint = "boot a kernel with the patch series (kernel-patches/README.md), or vary test.chunk_pages instead"
            raise InputError(f"parameters.{name}", value, rule, hint)
        try:
            _set(path, parameter_text(value), undo)
        except OSError as error:
            rule = f"was rejected ({error.strerror})"
            raise InputError(f"parameters.{name}", value, rule, "run as root, and check the value") from None


def host_provenance() -> dict[str, object]:
    """Description of the host of a native data set: kernel and CPUs, without the host's name."""
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": cpu_model(Path("/proc/cpuinfo").read_text("utf-8")),
        "cpus": len(os.sched_getaffinity(0)),
        "patched": is_patched(),
    }


def cpu_model(info: str) -> str:
    """Model of the CPU, from the contents of /proc/cpuinfo."""
    for line in info.splitlines():
        if line.startswith(("model name", "CPU part", "uarch")):
            return line.partition(":")[2].strip()
    return "not stated"


def is_patched() -> bool:
    """True if the running kernel has the patch series."""
    return (PARAMETERS / "dirty_log_clear_batch").exists()


def _writable(path: Path) -> bool:
    return os.access(path, os.R_OK | os.W_OK)


def _set(path: Path, text: str, undo: ExitStack) -> None:
    """Write a parameter of the kernel; `undo` restores the old value, unless the write was rejected."""
    before = path.read_text("utf-8").strip()

    def restore() -> None:
        if path.read_text("utf-8").strip() != before:
            path.write_text(before)

    undo.callback(restore)  # before the write: a signal may arrive right after it
    path.write_text(text)


def _trace(output: Path, undo: ExitStack) -> None:
    """Enable the lock tracepoints, if the kernel has them; `undo` disables them and saves the trace in `output`."""
    switches = [TRACING / f"events/lock/contention_{event}/enable" for event in ("begin", "end")]
    if all(_writable(path) for path in switches):
        (TRACING / "trace").write_text("")
        undo.callback(lambda: output.write_text((TRACING / "trace").read_text()))
        for path in switches:
            _set(path, "1", undo)
