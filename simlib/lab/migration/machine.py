# SPDX-License-Identifier: BSD-3-Clause
"""QEMU processes that run a guest before and after its migration."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from simlib._lib.errors import InputError, RunInterruptedError, SimlibError
from simlib._lib.parallel import Check
from simlib.lab.migration.experiment import MigrationCell
from simlib.lab.migration.guest import WriteWorkload
from simlib.lab.migration.progress import Gap, VcpuCounters
from simlib.lab.process import started
from simlib.lab.qemu import Qemu
from simlib.vmm.qmp import Monitor, refusal

_START_TIMEOUT_S = 20.0
"""Maximum time for QEMU to start, and to answer a command, s."""

_PROBE_S = 1.0
"""Time over which the frequency of the time stamp counter is measured, s."""


def command_line(qemu: Qemu, migration: MigrationCell, folder: str, monitor: str) -> list[str]:
    """Return QEMU's command for the source of a migration; the destination adds ``-incoming``.

    - `folder`: folder with the guest's files; `monitor`: character device of the QMP socket.
    """
    accelerator = {"tcg": "tcg,thread=multi", "kvm": "kvm"}[migration.accelerator]
    return [
        qemu.command, *(word for folder in qemu.folders for word in ("-L", folder)),
        *("-accel", accelerator, "-machine", "pc", "-nodefaults", "-display", "none"),
        *("-smp", str(migration.guest.vcpus), "-m", f"{migration.memory >> 20}M"),
        *(*migration.guest.arguments(folder), "-qmp", monitor),
    ]  # fmt: skip


class MigratingQemu(AbstractContextManager["MigratingQemu"]):
    """A running QEMU with its monitor."""

    def __init__(self, qemu: Qemu, migration: MigrationCell, folder: Path, incoming: str = "") -> None:
        self.folder, self.guest = folder, migration.guest
        self.name = "destination" if incoming else "source"
        socket = folder / f"{self.name}.qmp"
        command = command_line(qemu, migration, str(folder), f"unix:{socket},server=on,wait=off")
        command += ["-incoming", incoming] if incoming else []
        with ExitStack() as stack:
            self.log = stack.enter_context((folder / f"{self.name}.log").open("w+"))
            self.process = stack.enter_context(started(command, stdout=self.log, stderr=self.log))
            self.monitor = stack.enter_context(self._connect(str(socket)))
            self._open = stack.pop_all()

    @property
    def pid(self) -> int:
        """Process ID of QEMU."""
        return int(self.process.pid)

    def _connect(self, path: str) -> Monitor:
        """Connect to QEMU's monitor as soon as it listens."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                return Monitor(path, _START_TIMEOUT_S)
            except InputError as error:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise SimlibError(f"QEMU failed to start: {self.last_output()}") from error
                time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def last_output(self) -> str:
        """Return the last line that QEMU printed."""
        self.log.seek(0)
        lines = self.log.read(2**16).strip().splitlines()
        return lines[-1] if lines else "it printed nothing"

    def query(self, command: str, **arguments: Any) -> Any:
        """Return QEMU's answer to a command. Raises `SimlibError` if QEMU refuses the command."""
        self.monitor.allow(_START_TIMEOUT_S)
        named = {name.replace("_", "-"): value for name, value in arguments.items()}
        answer = self.monitor.ask(command, named or None)
        if "error" in answer:
            raise SimlibError(refusal(command, answer["error"]))
        return answer["return"]

    def read_memory(self, address: int, size: int) -> bytes:
        """Read a range of the guest's memory."""
        path = self.folder / "memory"
        self.query("pmemsave", val=address, size=size, filename=str(path))
        return path.read_bytes()

    def counters(self) -> tuple[float, list[VcpuCounters]]:
        """Read the guest's counters; return them with the time."""
        counters = self.guest.counters(self.read_memory)
        return time.monotonic(), counters

    def gaps(self, counters: list[VcpuCounters]) -> list[list[Gap]]:
        """Read the guest's long gaps, by vCPU."""
        return self.guest.gaps(self.read_memory, counters)

    def events(self, name: str) -> list[tuple[float, Any]]:
        """Return the time (s since the Unix epoch) and the data of each event with this name."""
        self.query("query-status")  # reads all events that arrived before
        rows = [row for row in self.monitor.events if row["event"] == name]
        return [(row["timestamp"]["seconds"] + row["timestamp"]["microseconds"] / 1e6, row.get("data")) for row in rows]

    def wait_until_ready(self, check: Check) -> None:
        """Wait until the guest's work is steady. Raises `SimlibError` if it fails or takes too long."""
        deadline = time.monotonic() + self.guest.start_timeout_s
        try:
            while not self.guest.is_ready(self.counters()[1]):
                check()
                if time.monotonic() > deadline:
                    raise SimlibError(f"{self.guest.label}: not steady after {self.guest.start_timeout_s:g} s")
                time.sleep(0.05)
        except SimlibError as error:
            if isinstance(error, InputError | RunInterruptedError):
                raise
            raise SimlibError(f"{error}: {self.last_output()}") from None


@contextmanager
def workspace(migration: MigrationCell, ticks: float) -> Iterator[Path]:
    """Make a temporary folder with the files from which a guest boots."""
    with tempfile.TemporaryDirectory(prefix="simlib-migrate-") as name:
        migration.guest.prepare(Path(name), ticks)
        yield Path(name)


def measure_ticks(qemu: Qemu, accelerator: str) -> float:
    """Measure the frequency of the guest's time stamp counter, ticks per second."""
    probe = MigrationCell("probe", accelerator, 2**25, WriteWorkload(1, 2**20, 0), (), 0, 1)
    with workspace(probe, 1e9) as folder, MigratingQemu(qemu, probe, folder) as machine:
        machine.wait_until_ready(lambda: None)
        begun, first = machine.counters()
        time.sleep(_PROBE_S)
        ended, last = machine.counters()
    return (last[0].last - first[0].last) / (ended - begun)
