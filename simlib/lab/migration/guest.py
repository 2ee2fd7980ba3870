# SPDX-License-Identifier: BSD-3-Clause
"""Guest of a real migration: firmware that writes to memory at a known rate, and its counters.

``guest.S`` is the program. Nothing else runs in the guest, so the written pages and their rates are known.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from simlib._lib.errors import InputError
from simlib.lab.migration.progress import Baseline, Gap, ReadMemory, RunningQemu, VcpuCounters
from simlib.lab.process import build_once
from simlib.vmm.qemu_rules import PAGE

BASE = 2**20
"""Address of the guest's first page."""

STATE, LOG, GAPS = 0x9000, 0x10000, 1024
"""Addresses of the counters and of the long gaps, and the number of gaps stored per vCPU; as in ``guest.S``."""

MAX_VCPUS = (0xA0000 - LOG) // (16 * GAPS)
"""Maximum number of vCPUs whose gaps fit below the VGA memory."""

GAP_S = 0.005
"""Shortest gap between two writes that the guest records, s."""

_BASELINE_S = 1.0
"""Time over which the guest's write rate is measured before its migration, s."""

_STATE, _GAP = struct.Struct("<QQI20xI20x"), struct.Struct("<QQ")
_MARK = b"simlib-migration"


@dataclass(frozen=True)
class WriteWorkload:
    """Guest that only writes: the pages that it writes, and their rates.

    - `vcpus`: number of vCPUs; each writes to its own part of the working set.
    - `working_set`: total of all vCPUs, bytes.
    - `rate`: writes per second, each to one page, total of all vCPUs.
    - `pattern`: ``sweep``, one page after the other, or ``random``.
    - `hot_set`: bytes at the start of each vCPU's part, total of all vCPUs.
    - `hot_percent`: share of the writes that go to the hot set.
    """

    vcpus: int = 1
    working_set: int = 2**26
    rate: int = 10_000
    pattern: str = "sweep"
    hot_set: int = 0
    hot_percent: int = 0
    start_timeout_s: ClassVar[float] = 20.0

    @property
    def keys(self) -> dict[str, Any]:
        """Columns that identify the guest in a table, except vCPUs and memory; sizes in bytes."""
        return {
            "working_set_bytes": self.working_set, "pattern": self.pattern, "writes_per_s": self.rate,
            "hot_set_bytes": self.hot_set, "hot_percent": self.hot_percent,
        }  # fmt: skip

    @property
    def label(self) -> str:
        """Description for progress messages."""
        return f"{self.rate} writes/s over {self.working_set >> 20}M, {self.pattern}"

    def check_memory(self, memory: int, where: str) -> None:
        """Raise `InputError` if the working set does not fit."""
        if self.working_set + BASE > memory:
            rule, hint = "must exceed the working set by at least 1 MiB", "give the guest more memory"
            raise InputError(where, memory, rule, hint)

    def arguments(self, folder: str) -> list[str]:
        """QEMU's arguments for the firmware that `prepare` writes."""
        return ["-bios", f"{folder}/guest.bin"]

    def prepare(self, folder: Path, ticks_per_s: float) -> None:
        """Write the firmware."""
        (folder / "guest.bin").write_bytes(self.firmware(ticks_per_s, GAP_S))

    def is_ready(self, counters: Sequence[VcpuCounters]) -> bool:
        """Return True once each vCPU has written all of its pages."""
        pages = self.working_set // PAGE // self.vcpus
        return all(vcpu.ready >= pages and vcpu.operations for vcpu in counters)

    def counters(self, read: ReadMemory) -> list[VcpuCounters]:
        """Read the counters of each vCPU."""
        return read_counters(read(STATE, _STATE.size * self.vcpus))

    def gaps(self, read: ReadMemory, counters: list[VcpuCounters]) -> list[list[Gap]]:
        """Read the last long gaps of each vCPU."""
        return read_gaps(read(LOG, GAPS * _GAP.size * self.vcpus), counters)

    def measure(self, machine: RunningQemu, check: Callable[[], None]) -> dict[str, Any]:
        """Let the guest write for a second, in which its rate is measured."""
        check()
        time.sleep(_BASELINE_S)
        return {}

    def outcome(self, read: ReadMemory, start: list[VcpuCounters], baseline: Baseline) -> dict[str, Any]:
        """No further columns."""
        return {}

    def firmware(self, ticks_per_s: float, gap_s: float) -> bytes:
        """Return the guest's program with this workload; it records gaps of at least `gap_s`."""
        rom = bytearray(assembled().read_bytes())
        interval = round(ticks_per_s * self.vcpus / self.rate) if self.rate else 0
        numbers = (
            self.vcpus, self.working_set // PAGE // self.vcpus, self.hot_set // PAGE // self.vcpus, self.hot_percent,
            int(self.pattern == "random"), interval, round(gap_s * ticks_per_s),
        )  # fmt: skip
        struct.pack_into(f"<{len(numbers)}I", rom, rom.index(_MARK) + len(_MARK), *numbers)
        return bytes(rom)


def read_counters(memory: bytes) -> list[VcpuCounters]:
    """Parse the counters of each vCPU from the guest's memory at `STATE`.

    >>> read_counters(_STATE.pack(7, 5000, 1, 1024))
    [VcpuCounters(operations=7, last=5000, gaps=1, ready=1024)]
    """
    return [VcpuCounters(*row) for row in _STATE.iter_unpack(memory)]


def read_gaps(memory: bytes, counters: list[VcpuCounters]) -> list[list[Gap]]:
    """Parse the long gaps of each vCPU, the last `GAPS` of them, from the guest's memory at `LOG`."""
    size = GAPS * _GAP.size
    logs = [memory[at * size : at * size + min(vcpu.gaps, GAPS) * _GAP.size] for at, vcpu in enumerate(counters)]
    return [[Gap(*row) for row in _GAP.iter_unpack(log)] for log in logs]


def assembled() -> Path:
    """Assemble the guest's program; return the firmware's path. Raises `InputError` if there is no assembler."""
    source = Path(__file__).resolve().parent / "guest.S"
    commands = [
        ["as", "--32", "-o", "{between}", "{source}"],
        ["ld", "-m", "elf_i386", "-Ttext=0xffff0000", "--oformat=binary", "-o", "{part}", "{between}"],
    ]
    return build_once(source, ".bin", "assembling the guest of a migration", "apt-get install binutils", commands)
