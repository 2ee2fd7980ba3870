# SPDX-License-Identifier: BSD-3-Clause
"""The guest of a real migration: firmware that writes to memory at a known rate, and the counters that it keeps.

``guest.S`` is the program. Nothing else runs in the guest, so which pages it writes, and how often, is known.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from simlib.lab.process import built_once

PAGE = 4096
"""Bytes of a page."""

BASE = 2**20
"""Where the pages of the guest begin, bytes."""

STATE, LOG, GAPS = 0x9000, 0x10000, 1024
"""Where it keeps its counters and its long gaps, and how many of each vCPU; as ``guest.S`` has them."""

MOST_VCPUS = (0xA0000 - LOG) // (16 * GAPS)
"""vCPUs whose gaps have room below the memory of the display."""

_STATE, _GAP = struct.Struct("<QQI20xI20x"), struct.Struct("<QQ")
_MARK = b"simlib-migration"


class Writes(NamedTuple):
    """What a vCPU has counted: its writes, when it made the last one, in ticks, its long gaps, and its first pages."""

    writes: int
    last: int
    gaps: int
    ready: int


class Gap(NamedTuple):
    """A long time between two writes of a vCPU, in ticks of its time stamp counter: when it ended, and its length."""

    end: int
    length: int


@dataclass(frozen=True)
class Habit:
    """Which pages are written, and how often.

    - `vcpus`: each writes to its own part of the working set.
    - `working_set`: of all vCPUs together, bytes.
    - `rate`: writes a second, each to one page; of all vCPUs together.
    - `pattern`: ``sweep``, one page after the other, or ``random``.
    - `hot_set`: bytes at the beginning of each vCPU's part, all together.
    - `hot_percent`: of the writes that go there.
    """

    vcpus: int = 1
    working_set: int = 2**26
    rate: int = 10_000
    pattern: str = "sweep"
    hot_set: int = 0
    hot_percent: int = 0

    def firmware(self, ticks_per_s: float, gap_s: float) -> bytes:
        """The guest's program with this habit; gaps of `gap_s` and longer are kept."""
        rom = bytearray(assembled().read_bytes())
        interval = round(ticks_per_s * self.vcpus / self.rate) if self.rate else 0
        numbers = (
            self.vcpus, self.working_set // PAGE // self.vcpus, self.hot_set // PAGE // self.vcpus, self.hot_percent,
            int(self.pattern == "random"), interval, round(gap_s * ticks_per_s),
        )  # fmt: skip
        struct.pack_into(f"<{len(numbers)}I", rom, rom.index(_MARK) + len(_MARK), *numbers)
        return bytes(rom)


def read_writes(memory: bytes) -> list[Writes]:
    """Counters of each vCPU, from the guest's memory at `STATE`.

    >>> read_writes(_STATE.pack(7, 5000, 1, 1024))
    [Writes(writes=7, last=5000, gaps=1, ready=1024)]
    """
    return [Writes(*row) for row in _STATE.iter_unpack(memory)]


def read_gaps(memory: bytes, writes: list[Writes]) -> list[list[Gap]]:
    """Long gaps of each vCPU, from the guest's memory at `LOG`: the last `GAPS` of them."""
    size = GAPS * _GAP.size
    each = [memory[at * size : at * size + min(one.gaps, GAPS) * _GAP.size] for at, one in enumerate(writes)]
    return [[Gap(*row) for row in _GAP.iter_unpack(one)] for one in each]


def assembled() -> Path:
    """The guest's program as firmware.

    Raises `InputError` if there is no assembler.
    """
    source = Path(__file__).resolve().parent / "guest.S"
    commands = [
        ["as", "--32", "-o", "{between}", "{source}"],
        ["ld", "-m", "elf_i386", "-Ttext=0xffff0000", "--oformat=binary", "-o", "{part}", "{between}"],
    ]
    return built_once(source, ".bin", "assembling the guest of a migration", "apt-get install binutils", commands)
