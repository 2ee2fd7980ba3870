# SPDX-License-Identifier: BSD-3-Clause
"""Interface of a guest that is migrated: QEMU's arguments, and the counters of its progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

ReadMemory = Callable[[int, int], bytes]
"""Return a range of the guest's memory, from its physical address and size."""


class VcpuCounters(NamedTuple):
    """Counters of a vCPU.

    - `operations`: writes, or operations of a Linux guest's workload.
    - `last`: time of the last write, or of the last run of a Linux guest's timer thread, ticks of the time stamp
      counter.
    - `gaps`: long gaps so far.
    - `ready`: progress of the start: pages written, or state of a Linux guest.
    """

    operations: int
    last: int
    gaps: int
    ready: int


class Gap(NamedTuple):
    """Long gap between two writes of a vCPU, in ticks of its time stamp counter: its end and its length."""

    end: int
    length: int


class Baseline(NamedTuple):
    """Speeds to which a migration is compared, and its downtime.

    - `operations_per_s`: of all vCPUs before the migration. `ticks_per_s`: frequency of the time stamp counter.
    - `away_s`: time in which neither side ran the guest, which its clock does not count.
    """

    operations_per_s: float
    ticks_per_s: float
    away_s: float


class RunningQemu(Protocol):
    """QEMU that runs a guest: process ID, QMP commands, and the guest's memory."""

    @property
    def pid(self) -> int:
        """Process ID of QEMU."""

    def query(self, command: str, **arguments: Any) -> Any:
        """Return QEMU's answer to a command. Raises `SimlibError` if QEMU refuses the command."""

    def counters(self) -> tuple[float, list[VcpuCounters]]:
        """Read the guest's counters; return them with the time."""

    def read_memory(self, address: int, size: int) -> bytes:
        """Read a range of the guest's memory."""


class MigratedGuest(Protocol):
    """Guest of a migration.

    `start_timeout_s`: maximum time from the start of QEMU until `is_ready`, s.
    """

    @property
    def vcpus(self) -> int:
        """Number of vCPUs."""

    start_timeout_s: ClassVar[float]

    @property
    def keys(self) -> dict[str, Any]:
        """Columns that identify the guest in a table, except vCPUs and memory; sizes in bytes."""

    @property
    def label(self) -> str:
        """Description for progress messages."""

    def check_memory(self, memory: int, where: str) -> None:
        """Raise `InputError` if the guest needs more than `memory` bytes; `where`: the key."""

    def arguments(self, folder: str) -> list[str]:
        """QEMU's arguments for the files that `prepare` writes."""

    def prepare(self, folder: Path, ticks_per_s: float) -> None:
        """Write the files from which the guest boots."""

    def is_ready(self, counters: Sequence[VcpuCounters]) -> bool:
        """Return True once the workload is steady. Raises `SimlibError` if it failed."""

    def counters(self, read: ReadMemory) -> list[VcpuCounters]:
        """Read the counters of each vCPU."""

    def gaps(self, read: ReadMemory, counters: list[VcpuCounters]) -> list[list[Gap]]:
        """Read the long gaps of each vCPU, the last ones."""

    def measure(self, machine: RunningQemu, check: Callable[[], None]) -> dict[str, Any]:
        """Measure the guest before its migration, for at least a second; `check` is called meanwhile."""

    def outcome(self, read: ReadMemory, start: list[VcpuCounters], baseline: Baseline) -> dict[str, Any]:
        """Further columns of the migration's row; `start`: counters at the start of the migration."""
