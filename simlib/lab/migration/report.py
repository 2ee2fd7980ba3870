# SPDX-License-Identifier: BSD-3-Clause
"""Report that ``workload.c`` keeps in a reserved range of the guest's memory."""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simlib._lib.errors import SimlibError
from simlib.lab.migration.progress import Gap, ReadMemory, VcpuCounters

ADDRESS, RESERVED = 0x8000000, 2**17
"""Physical address and size of the range, which the kernel's argument ``memmap`` reserves, bytes."""

MAX_VCPUS, GAPS, SAMPLES = 4, 512, 4096
"""Sizes of the arrays; as in ``workload.c``."""

STARTING, STEADY, FAILED = range(3)
"""States of the workload; as in ``workload.c``."""

_MARK = b"simlibLG"
_HEADER, _VCPU, _PAIR = struct.Struct("<8s4Q24x"), struct.Struct("<3Q40x"), struct.Struct("<2Q")
HEAD_BYTES = _HEADER.size + MAX_VCPUS * _VCPU.size
"""Size of the counters, which the gaps and the samples follow, bytes."""

_SAMPLES_AT = HEAD_BYTES + MAX_VCPUS * GAPS * _PAIR.size


class ReportHead(NamedTuple):
    """Counters of the guest.

    - `state`: ``STARTING``, ``STEADY`` or ``FAILED``. `samples`: number of samples so far.
    - `busy`, `total`: CPU time of all vCPUs as the guest counts it (/proc/stat), jiffies.
    - `vcpus`: counters of each vCPU; for a program, the first vCPU has all operations.
    """

    state: int
    samples: int
    busy: int
    total: int
    vcpus: list[VcpuCounters]


def read_head(read: ReadMemory, vcpus: int) -> ReportHead:
    """Read the counters. Until the guest has mapped the report, its state is ``STARTING``."""
    memory = read(ADDRESS, HEAD_BYTES)
    mark, state, samples, busy, total = _HEADER.unpack_from(memory)
    if mark != _MARK:
        return ReportHead(STARTING, 0, 0, 0, [VcpuCounters(0, 0, 0, STARTING)] * vcpus)
    rows = list(_VCPU.iter_unpack(memory[_HEADER.size :]))[:vcpus]
    counters = [VcpuCounters(operations, last, gaps, state) for operations, last, gaps in rows]
    return ReportHead(state, samples, busy, total, counters)


def read_gaps(read: ReadMemory, counters: list[VcpuCounters]) -> list[list[Gap]]:
    """Read the last `GAPS` delays of each vCPU's timer thread."""
    size = GAPS * _PAIR.size
    logs = [read(ADDRESS + HEAD_BYTES + number * size, size) for number in range(len(counters))]
    stored = [log[: min(vcpu.gaps, GAPS) * _PAIR.size] for log, vcpu in zip(logs, counters, strict=True)]
    return [[Gap(*row) for row in _PAIR.iter_unpack(log)] for log in stored]


def read_samples(read: ReadMemory, samples: int) -> NDArray[np.float64]:
    """Read the last `SAMPLES` samples, the oldest first: rows of time (ticks) and operations."""
    memory = read(ADDRESS + _SAMPLES_AT, min(samples, SAMPLES) * _PAIR.size)
    rows = np.frombuffer(memory, dtype="<u8").reshape(-1, 2).astype(np.float64)
    return rows[np.argsort(rows[:, 0])]


class Period(NamedTuple):
    """Time of a migration, s: its start by the guest's clock, the length of the workload's cycle, and the time in
    which neither side ran the guest, which the guest's clock does not count."""

    start: float
    cycle: float = 1.0
    away: float = 0.0


def slow_share(samples: NDArray[np.float64], rate: float, period: Period) -> float:
    """Share of a migration in which the guest did less than half of its work before.

    The time is divided into parts of the length of a cycle, because a workload with bursts also pauses before.

    - `samples`: rows of time (s) and operations; `rate`: operations per second before.

    Raises `SimlibError` if there are no samples after the start.

    >>> seconds = np.arange(11.0)
    >>> slow_share(np.column_stack([seconds, np.minimum(seconds, 6) * 100]), 100, Period(0))
    0.4
    """
    times, operations = samples.T
    if not len(times) or times[-1] <= period.start:
        raise SimlibError("the guest reported no progress during the migration")
    length = times[-1] - period.start
    edges = np.linspace(period.start, times[-1], max(1, round(length / period.cycle)) + 1)
    slow = np.diff(np.interp(edges, times, operations)) < 0.5 * rate * np.diff(edges)
    return float((slow.mean() * length + period.away) / (length + period.away))
