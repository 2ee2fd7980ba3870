# SPDX-License-Identifier: BSD-3-Clause
"""Migrate a guest from one QEMU to another on this machine, and record the progress and the guest's writes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from simlib._lib.errors import InputError, SimlibError
from simlib._lib.parallel import Check
from simlib.lab.migration.experiment import MigrationCell
from simlib.lab.migration.guest import GAPS, LOG, STATE, Gap, VcpuCounters, WriteWorkload, read_counters, read_gaps
from simlib.lab.process import started
from simlib.lab.qemu import Qemu
from simlib.vmm.qemu_rules import PAGE
from simlib.vmm.qmp import Monitor, refusal

POLL_S = 0.1
"""Time between two samples of a migration, s."""

GAP_S = 0.005
"""Shortest gap between two writes that the guest records, s."""

_BASELINE_S = 1.0
"""Time over which the guest's write rate is measured before its migration, s."""

_START_TIMEOUT_S = 20.0
"""Maximum time for QEMU to start, and for the guest to write each of its pages once, s."""


def command_line(qemu: Qemu, migration: MigrationCell, firmware: str, monitor: str) -> list[str]:
    """Return QEMU's command for the source of a migration; the destination adds ``-incoming``."""
    accelerator = {"tcg": "tcg,thread=multi", "kvm": "kvm"}[migration.accelerator]
    return [
        qemu.command, *(word for folder in qemu.folders for word in ("-L", folder)),
        *("-accel", accelerator, "-machine", "pc", "-nodefaults", "-display", "none"),
        *("-smp", str(migration.workload.vcpus), "-m", f"{migration.memory >> 20}M"),
        *("-bios", firmware, "-qmp", monitor),
    ]  # fmt: skip


class _MigratingQemu(AbstractContextManager["_MigratingQemu"]):
    """A running QEMU with its monitor."""

    def __init__(self, qemu: Qemu, migration: MigrationCell, firmware: Path, folder: Path, incoming: str = "") -> None:
        self.folder, self.name = folder, "destination" if incoming else "source"
        socket, vcpus = folder / f"{self.name}.qmp", migration.workload.vcpus
        self.vcpus = vcpus
        command = command_line(qemu, migration, str(firmware), f"unix:{socket},server=on,wait=off")
        command += ["-incoming", incoming] if incoming else []
        with ExitStack() as stack:
            self.log = stack.enter_context((folder / f"{self.name}.log").open("w+"))
            self.process = stack.enter_context(started(command, stdout=self.log, stderr=self.log))
            self.monitor = stack.enter_context(self._connect(str(socket)))
            self._open = stack.pop_all()

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
        counters = read_counters(self.read_memory(STATE, 64 * self.vcpus))
        return time.monotonic(), counters

    def gaps(self, counters: list[VcpuCounters]) -> list[list[Gap]]:
        """Read the guest's long gaps, by vCPU."""
        return read_gaps(self.read_memory(LOG, 16 * GAPS * self.vcpus), counters)

    def events(self, name: str) -> list[tuple[float, Any]]:
        """Return the time (s since the Unix epoch) and the data of each event with this name."""
        self.query("query-status")  # reads all events that arrived before
        rows = [row for row in self.monitor.events if row["event"] == name]
        return [(row["timestamp"]["seconds"] + row["timestamp"]["microseconds"] / 1e6, row.get("data")) for row in rows]


def ticks_per_s(qemu: Qemu, accelerator: str) -> float:
    """Measure the frequency of the guest's time stamp counter, ticks per second."""
    probe = MigrationCell("probe", accelerator, 2**25, WriteWorkload(1, 2**20, 0), (), 0, 1)
    with _workspace(probe, 1e9) as (folder, firmware), _MigratingQemu(qemu, probe, firmware, folder) as machine:
        _wait_until_ready(machine, probe)
        begun, first = machine.counters()
        time.sleep(_BASELINE_S)
        ended, last = machine.counters()
    return (last[0].last - first[0].last) / (ended - begun)


@contextmanager
def _workspace(migration: MigrationCell, ticks: float) -> Iterator[tuple[Path, Path]]:
    with tempfile.TemporaryDirectory(prefix="simlib-migrate-") as name:
        firmware = Path(name) / "guest.bin"
        firmware.write_bytes(migration.workload.firmware(ticks, GAP_S))
        yield Path(name), firmware


def _wait_until_ready(machine: _MigratingQemu, migration: MigrationCell) -> None:
    pages = migration.workload.working_set // PAGE // migration.workload.vcpus
    deadline = time.monotonic() + _START_TIMEOUT_S
    while any(vcpu.ready < pages or not vcpu.writes for vcpu in machine.counters()[1]):
        if time.monotonic() > deadline:
            raise SimlibError(f"{migration.label}: the guest failed to start: {machine.last_output()}")
        time.sleep(0.05)


def migrate(migration: MigrationCell, qemu: Qemu, ticks: float, check: Check) -> dict[str, Any]:
    """Migrate the guest once.

    Returns: ``runs``, one row of `simlib.lab.migration.collect.RUNS`, and ``passes``, rows of ``PASSES``.
    Raises `SimlibError` if a QEMU fails to start or refuses a setting, or the migration fails.

    - `ticks`: from `ticks_per_s`; `check`: called during the migration.
    """
    with ExitStack() as stack:
        folder, firmware = stack.enter_context(_workspace(migration, ticks))
        source = stack.enter_context(_MigratingQemu(qemu, migration, firmware, folder))
        _wait_until_ready(source, migration)
        begun, before = source.counters()
        time.sleep(_BASELINE_S)
        ended, at_start = source.counters()
        rate = sum(b.writes - a.writes for a, b in zip(before, at_start, strict=True)) / (ended - begun)
        uri = f"unix:{folder / 'stream'}"
        destination = stack.enter_context(_MigratingQemu(qemu, migration, firmware, folder, uri))
        states = [{"capability": name, "state": on} for name, on in {**migration.capabilities, "events": True}.items()]
        for machine in (source, destination):
            machine.query("migrate-set-capabilities", capabilities=states)
            if migration.parameters:
                machine.query("migrate-set-parameters", **migration.parameters)
        source.query("migrate", uri=uri)
        last, passes = _poll_migration(source, migration, check)
        return {
            "runs": [_outcome(migration, source, destination, last, passes, at_start, rate, ticks)],
            "passes": [{"pass": number, **row} for number, row in sorted(passes.items())],
        }


def _poll_migration(
    source: _MigratingQemu, migration: MigrationCell, check: Check
) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
    """Sample a migration until it ends or exceeds its limit; return the last reply and the last sample of each pass."""
    begun, passes, switched = time.monotonic(), dict[int, dict[str, Any]](), False
    while True:
        reply = source.query("query-migrate")
        status, ram, now = reply.get("status"), reply.get("ram", {}), time.monotonic() - begun
        check()
        if "dirty-sync-count" in ram:
            row = passes.setdefault(ram["dirty-sync-count"], {"seen_s": round(now, 3)})
            row |= {
                "throttle_percent": reply.get("cpu-throttle-percentage", 0), "transferred_bytes": ram["transferred"],
                "remaining_bytes": ram["remaining"], "dirty_pages_per_s": ram["dirty-pages-rate"],
            }  # fmt: skip
        if status == "failed":
            reason = reply.get("error-desc", "QEMU gives no reason")
            raise SimlibError(f"{migration.label}: the migration failed: {reason}")
        if status in ("completed", "cancelled") or now > migration.limit_s:
            return reply, passes
        if migration.postcopy_after_s and not switched and now > migration.postcopy_after_s and status == "active":
            source.query("migrate-start-postcopy")
            switched = True
        time.sleep(POLL_S)


def _outcome(
    migration: MigrationCell, source: _MigratingQemu, destination: _MigratingQemu, last: dict[str, Any],
    passes: dict[int, dict[str, Any]], at_start: list[VcpuCounters], rate: float, ticks: float,
) -> dict[str, Any]:  # fmt: skip
    """Return a row with the columns of `simlib.lab.migration.collect.RUNS`."""
    completed, ram = last["status"] == "completed", last["ram"]
    machine = destination if completed else source
    stopped = [at for at, _ in source.events("STOP")]
    resumed = [at for at, _ in destination.events("RESUME")]
    begun = source.events("MIGRATION")[0][0]
    for at, data in source.events("MIGRATION_PASS"):
        passes.setdefault(data["pass"], {})["began_s"] = round(at - begun, 4)
    throttles = [row.get("throttle_percent", 0) for row in passes.values()]
    _, at_end = machine.counters()
    logs = zip(at_start, machine.gaps(at_end), strict=True)
    gaps_s = [gap.length / ticks for first, gaps in logs for gap in gaps if gap.end > first.last]
    blackout = resumed[0] - stopped[0] if completed and stopped and resumed else 0.0
    active = max((end.last - start.last) / ticks for end, start in zip(at_end, at_start, strict=True))
    writes = sum(end.writes - start.writes for end, start in zip(at_end, at_start, strict=True))
    return {
        "outcome": "completed" if completed else "gave_up",
        "measured_writes_per_s": round(rate, 1),
        "synchronisations": ram["dirty-sync-count"],
        "throttle_percent": max(throttles, default=0),
        "setup_ms": last.get("setup-time", 0),
        "total_ms": last["total-time"],
        "downtime_ms": last.get("downtime", 0),
        "blackout_ms": round(blackout * 1e3, 3),
        "longest_gap_ms": round(max(*gaps_s, blackout, 0.0) * 1e3, 3),
        "gaps": len(gaps_s),
        "guest_ratio": round(writes / (rate * (active + blackout)), 4),
        "transferred_bytes": ram["transferred"],
        "precopy_bytes": ram["precopy-bytes"],
        "downtime_bytes": ram["downtime-bytes"],
        "postcopy_bytes": ram["postcopy-bytes"],
        "postcopy_requests": ram["postcopy-requests"],
        "normal_pages": ram["normal"],
        "zero_pages": ram["duplicate"],
        "throughput_mbit_per_s": round(ram["mbps"], 2),
        "dirty_pages_per_s": ram["dirty-pages-rate"],
    }
