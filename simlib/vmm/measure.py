# SPDX-License-Identifier: BSD-3-Clause
"""Measurement of a running guest from outside: dirty rates, CPU time of the vCPUs, and resident memory.

The guest is not changed: QEMU compares checksums of sampled pages (``calc-dirty-rate`` in mode page-sampling,
migration/dirtyrate.c), and CPU time and resident memory are read from ``/proc`` (proc(5)). Mode dirty-bitmap, which
counts exactly, write-protects the guest's memory, and counts nothing under TCG.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from simlib._lib.errors import InputError, SimlibError
from simlib._lib.parallel import Progress, subprogress
from simlib.vmm import replies
from simlib.vmm.qmp import TIMEOUT, Monitor, refusal

WINDOWS_S = (0.3, 1.0, 3.0, 10.0, 60.0)
"""Lengths of the measurements of the dirty rate, s: from QEMU's default downtime limit to its longest measurement."""

QUERIES = tuple(query for query in replies.QUERIES if query not in (replies.CPUS, replies.DIRTY_RATE))
"""Queries whose replies belong to a measurement, in addition to those that measure."""

Ask = Callable[[str, dict[str, Any]], Any]
"""Send a QMP command with its arguments; return the value of its ``return``."""

_SAMPLES = 2**17
"""Number of pages that QEMU samples in all, and reads twice: a total of 1 GiB."""

_LEAST_SAMPLES, _MOST_SAMPLES = 512, 16_384
"""QEMU's default of sample-pages, and its maximum, in a GiB (migration/dirtyrate.h)."""

_MILLISECONDS = {"calc-time-unit": "millisecond"}
"""Arguments for a time below 1 s; QEMU 8.2 and newer."""

_POLL_S = 0.05
_EXTRA_S = 60.0
"""Time beyond a window after which QEMU must have answered, s; page sampling reads the sampled pages twice."""


def sample_pages(memory: float) -> int:
    """Number of pages in each GiB to sample; `memory`: bytes.

    >>> sample_pages(2**30), sample_pages(2**35), sample_pages(2**40)
    (16384, 4096, 512)
    """
    return int(min(_MOST_SAMPLES, max(_LEAST_SAMPLES, _SAMPLES * 2**30 / memory)))


def start_dirty_rate(ask: Ask, window_s: float, memory: float) -> None:
    """Start the measurement of a dirty rate. Raises the errors of `ask`, for example if QEMU refuses a unit."""
    time_s: dict[str, Any] = {"calc-time": round(window_s)} if window_s >= 1 else {
        "calc-time": round(1000 * window_s), **_MILLISECONDS
    }  # fmt: skip
    ask("calc-dirty-rate", {**time_s, "mode": "page-sampling", "sample-pages": sample_pages(memory)})


def wait_for_dirty_rate(ask: Ask, window_s: float, check: Callable[[], None]) -> dict[str, Any]:
    """Wait until QEMU has measured a dirty rate; return its reply to query-dirty-rate.

    Raises `SimlibError` if QEMU does not answer in time.

    - `check`: called again and again.
    """
    deadline = time.monotonic() + window_s + _EXTRA_S
    while time.monotonic() < deadline:
        check()
        reply: dict[str, Any] = ask("query-dirty-rate", {} if window_s >= 1 else _MILLISECONDS)
        if reply["status"] == "measured":
            return reply
        time.sleep(_POLL_S)
    raise SimlibError(f"QEMU did not measure a dirty rate over {window_s:g} s within {window_s + _EXTRA_S:g} s")


def cpu_times(pid: int, vcpus: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """CPU time of each vCPU's thread by the number of the vCPU, s.

    Raises `OSError` if a thread of query-cpus-fast is not one of the process.
    """
    tasks = Path("/proc") / str(pid) / "task"
    return {str(vcpu["cpu-index"]): cpu_time((tasks / str(vcpu["thread-id"]) / "stat").read_text()) for vcpu in vcpus}


def cpu_time(stat: str) -> float:
    """User and system time of a thread or process, s; `stat`: text of its ``stat`` in ``/proc`` (proc(5)).

    >>> fields = "41 (CPU 0/TCG) S 1 41 41 0 -1 4194368 900 0 0 0 250 50 0 0 20 0 4 0"
    >>> cpu_time(fields) * os.sysconf("SC_CLK_TCK")
    300.0
    """
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Memory of a process that has contents, bytes: resident, in huge pages, or swapped out (``/proc/PID/status``).

    Raises `OSError` if there is no such process.

    >>> 2**22 < resident_bytes(os.getpid()) < 2**40
    True
    """
    lines = (line.split() for line in (Path("/proc") / str(pid) / "status").read_text().splitlines())
    return sum(int(words[1]) << 10 for words in lines if words[0] in ("VmRSS:", "HugetlbPages:", "VmSwap:"))


def measure(path: str, progress: Progress | None = None) -> str:
    """Measure the guest of a QMP socket for about 75 s.

    Returns: QEMU's replies, and the CPU times and the resident memory in the form of ``virsh domstats``, for
    `simlib.vmm.read_guest.parse_guest`. CPU times and resident memory are missing if QEMU's process is not visible, for
    example from a container.

    Raises `InputError` if QEMU does not answer, or refuses to measure.
    """
    with Monitor(path, TIMEOUT) as monitor:

        def ask(command: str, arguments: dict[str, Any]) -> Any:
            monitor.allow(TIMEOUT)
            answer = monitor.ask(command, arguments)
            if "error" in answer:
                raise InputError(
                    path, refusal(command, answer["error"]), "must measure dirty rates (QEMU 6.2 or newer)"
                )
            return answer["return"]

        vcpus = ask("query-cpus-fast", {})
        size = ask("query-memory-size-summary", {})
        memory = float(size["base-memory"] + size.get("plugged-memory", 0))
        parts = [_reply(vcpus), _process_state(monitor.pid, vcpus)]
        total, done = sum(WINDOWS_S), 0.0
        for window_s in WINDOWS_S:
            part = subprogress(progress, done / total, (done + window_s) / total)
            begun = time.monotonic()

            def check(part: Progress | None = part, begun: float = begun, window_s: float = window_s) -> None:
                if part is not None:
                    part(f"measuring for {window_s:g} s", min(1.0, (time.monotonic() - begun) / window_s))

            done += window_s
            try:
                start_dirty_rate(ask, window_s, memory)
            except InputError:
                if window_s >= 1:
                    raise
                continue  # QEMU before 8.2
            parts.append(_reply(wait_for_dirty_rate(ask, window_s, check)))
        parts.append(_process_state(monitor.pid, vcpus))
        return "\n".join([*parts, *(_reply(ask(query, {}) or {"status": "none"}) for query in QUERIES)]) + "\n"


def _reply(value: Any) -> str:
    return json.dumps({"return": value})


def _process_state(pid: int | None, vcpus: Sequence[Mapping[str, Any]]) -> str:
    """Return the time, CPU times and resident memory, as ``date`` and ``virsh domstats`` print them."""
    if pid is None:
        return ""
    try:
        times, resident = cpu_times(pid, vcpus), resident_bytes(pid)
    except (OSError, KeyError):
        return ""
    lines = [f"{time.time():.3f}", f"vcpu.current={len(vcpus)}", f"balloon.rss={resident >> 10}"]
    return "\n".join([*lines, *(f"vcpu.{number}.time={round(seconds * 1e9)}" for number, seconds in times.items())])
