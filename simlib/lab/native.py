# SPDX-License-Identifier: BSD-3-Clause
"""Runs a cell on this host's own ``/dev/kvm``, with whatever its kernel offers.

A patched kernel has the switches and the statistics. A stock one has neither: there the
ioctl's range stands in for the batch, and ``/proc/lock_stat`` and the tracepoints
``contention_begin`` and ``contention_end`` are read where the kernel has them.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from simlib.errors import InputError, SimlibError
from simlib.lab.boot import Outcome
from simlib.lab.experiment import Cell, parameter_text

PARAMETERS = Path("/sys/module/kvm/parameters")
LOCK_STAT = Path("/proc/lock_stat")
TRACING = Path("/sys/kernel/tracing")

NATIVE_TARGETS = {"x86_64": "x86_64", "aarch64": "arm64", "riscv64": "riscv64"}
"""Target of each machine that Python names."""


def native_target() -> str:
    """The target that this host is.

    Raises
    ------
    InputError
        If the lab has no such target, or ``/dev/kvm`` cannot be used.
    """
    machine = platform.machine()
    if machine not in NATIVE_TARGETS:
        raise InputError("--native", machine, "the lab has no such target", f"known: {', '.join(NATIVE_TARGETS)}")
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        raise InputError(
            "--native", "/dev/kvm", "is missing or not accessible", "load the kvm module, or join the group kvm"
        )
    return NATIVE_TARGETS[machine]


def run_native(
    cell: Cell, program: Path, output: Path, progress: Callable[[float], None] = lambda seconds: None
) -> Outcome:
    """Run a cell on this host.

    Parameters
    ----------
    cell : Cell
    program : Path
        The selftest, built for this host.
    output : Path
        Folder for the lock's own records: ``lock_stat.txt`` and ``contention.txt``, where the kernel has them.
    progress : callable
        Told the seconds since the start.

    Returns
    -------
    Outcome

    Raises
    ------
    InputError
        If the experiment sets switches that this kernel does not have.
    SimlibError
        If the test fails, skips itself or does not end.
    """
    script = cell.script().splitlines()
    words = next(line for line in script if line.startswith("run ")).split()[2:]
    output.mkdir(parents=True, exist_ok=True)
    before: dict[Path, str] = {}
    traced = False
    try:
        set_parameters(cell, before)
        locks = _writable(LOCK_STAT)
        if locks:
            LOCK_STAT.write_text("0")
        traced = _trace_begin()
        begun = time.monotonic()
        out = _run(cell, [str(program), *words], progress)
        wall = time.monotonic() - begun
        if locks:
            (output / "lock_stat.txt").write_text(LOCK_STAT.read_text())
    finally:  # the next cell, and the host, get the kernel as it was
        if traced:
            _trace_end(output / "contention.txt")
        for path, text in before.items():
            path.write_text(text)
    outputs = tuple(out if line.startswith("run ") else "" for line in script)
    digest = hashlib.sha256(out.encode()).hexdigest()
    return Outcome(outputs, digest, " ".join([program.name, *words]), wall, wall)


def _run(cell: Cell, command: list[str], progress: Callable[[float], None]) -> str:
    """Run the test to its end or its time; return what it printed."""
    begun = time.monotonic()
    process = subprocess.Popen(  # noqa: S603  # the project's own selftest, with options from checked fields
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    try:
        while True:
            try:
                out, err = process.communicate(timeout=1.0)
                break
            except subprocess.TimeoutExpired:
                progress(time.monotonic() - begun)
                if time.monotonic() - begun > cell.experiment.timeout_s:
                    limit = cell.experiment.timeout_s
                    raise SimlibError(
                        f"{cell.label}: no end after {limit} s: raise timeout_s, or test less memory"
                    ) from None
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    if process.returncode:
        last = ((err or out).strip().splitlines() or ["it printed nothing"])[-1]
        what = "skipped itself" if process.returncode == 4 else f"ended with {process.returncode}"
        raise SimlibError(f"{cell.label}: the test {what}: {last}")
    return out


def set_parameters(cell: Cell, before: dict[Path, str]) -> None:
    """Set the experiment's switches on the running kernel.

    Parameters
    ----------
    cell : Cell
    before : dict
        Receives what the switches were, by their files.

    Raises
    ------
    InputError
        If the kernel does not have one of them, or it may not be written.
    """
    for name, value in cell.parameters.items():
        path = PARAMETERS / name
        if not path.exists():
            raise InputError(
                f"parameters.{name}",
                value,
                f"Linux {platform.release()} has no such parameter",
                "boot a kernel with the patch series (kernel-patches/README.md), or vary test.chunk_pages instead",
            )
        try:
            known = path.read_text("utf-8").strip()
            path.write_text(parameter_text(value))
            before[path] = known
        except OSError as error:
            raise InputError(
                f"parameters.{name}", value, f"was refused ({error.strerror})", "run as root; check the value"
            ) from None


def host_provenance() -> dict[str, object]:
    """What a native data set says about its host: kernel, CPU, CPUs; no names."""
    model = "not stated"
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith(("model name", "CPU part", "uarch")):
            model = line.partition(":")[2].strip()
            break
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": model,
        "cpus": len(os.sched_getaffinity(0)),
        "patched": (PARAMETERS / "dirty_log_clear_batch").exists(),
    }


def _writable(path: Path) -> bool:
    """Whether a file of the kernel's can be read and reset."""
    return os.access(path, os.R_OK | os.W_OK)


def _trace_begin() -> bool:
    """Turn the lock tracepoints on, where there are any."""
    switches = [TRACING / f"events/lock/contention_{which}/enable" for which in ("begin", "end")]
    if not all(_writable(path) for path in switches):
        return False
    (TRACING / "trace").write_text("")
    for path in switches:
        path.write_text("1")
    return True


def _trace_end(output: Path) -> None:
    """Turn them off and keep what they wrote."""
    for which in ("begin", "end"):
        (TRACING / f"events/lock/contention_{which}/enable").write_text("0")
    with (TRACING / "trace").open() as trace, output.open("w") as out:
        for line in trace:
            out.write(line)
