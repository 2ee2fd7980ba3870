# SPDX-License-Identifier: BSD-3-Clause
"""Migrates a guest from one QEMU to another on this machine, and watches both."""

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
from simlib.lab.migration.guest import GAPS, LOG, PAGE, STATE, Gap, Habit, Writes, read_gaps, read_writes
from simlib.lab.process import started
from simlib.lab.qemu import Qemu
from simlib.vmm.qmp import Monitor, refusal

LOOK_S = 0.1
"""Time between two looks at a migration, s."""

GAP_S = 0.005
"""Shortest gap between two writes that the guest keeps, s."""

_SETTLE_S = 1.0
"""Time over which the guest's rate of writing is taken before its migration, s."""

_BEGIN_S = 20.0
"""How long QEMU may take to begin, and the guest to write all its pages once, s."""

_OVER = ("completed", "failed", "cancelled")


def command_line(qemu: Qemu, migration: MigrationCell, firmware: str, monitor: str) -> list[str]:
    """QEMU's command for the source of a migration; the destination has ``-incoming``, too."""
    accelerator = {"tcg": "tcg,thread=multi", "kvm": "kvm"}[migration.accelerator]
    return [
        qemu.command, *(word for place in qemu.folders for word in ("-L", place)),
        *("-accel", accelerator, "-machine", "pc", "-nodefaults", "-display", "none"),
        *("-smp", str(migration.habit.vcpus), "-m", f"{migration.memory >> 20}M", "-bios", firmware, "-qmp", monitor),
    ]  # fmt: skip


class _Machine(AbstractContextManager["_Machine"]):
    """A QEMU that runs, with its monitor."""

    def __init__(self, qemu: Qemu, migration: MigrationCell, firmware: Path, folder: Path, incoming: str = "") -> None:
        self.folder, self.name = folder, "destination" if incoming else "source"
        socket, vcpus = folder / f"{self.name}.qmp", migration.habit.vcpus
        self.vcpus = vcpus
        command = command_line(qemu, migration, str(firmware), f"unix:{socket},server=on,wait=off")
        command += ["-incoming", incoming] if incoming else []
        with ExitStack() as stack:
            self.log = stack.enter_context((folder / f"{self.name}.log").open("w+"))
            self.process = stack.enter_context(started(command, stdout=self.log, stderr=self.log))
            self.monitor = stack.enter_context(self._connect(str(socket)))
            self._open = stack.pop_all()

    def _connect(self, path: str) -> Monitor:
        """Its monitor, as soon as it listens."""
        until = time.monotonic() + _BEGIN_S
        while True:
            try:
                return Monitor(path, _BEGIN_S)
            except InputError as error:
                if self.process.poll() is not None or time.monotonic() > until:
                    raise SimlibError(f"QEMU does not begin: {self.last_words()}") from error
                time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def last_words(self) -> str:
        """What it printed last."""
        self.log.seek(0)
        lines = self.log.read(2**16).strip().splitlines()
        return lines[-1] if lines else "it printed nothing"

    def ask(self, command: str, **arguments: Any) -> Any:
        """What QEMU answers.

        Raises `SimlibError` if it refuses.
        """
        self.monitor.allow(_BEGIN_S)
        named = {name.replace("_", "-"): value for name, value in arguments.items()}
        answer = self.monitor.ask(command, named or None)
        if "error" in answer:
            raise SimlibError(refusal(command, answer["error"]))
        return answer["return"]

    def memory(self, address: int, size: int) -> bytes:
        """The guest's memory."""
        place = self.folder / "memory"
        self.ask("pmemsave", val=address, size=size, filename=str(place))
        return place.read_bytes()

    def writes(self) -> tuple[float, list[Writes]]:
        """What the guest has counted, and when."""
        found = read_writes(self.memory(STATE, 64 * self.vcpus))
        return time.monotonic(), found

    def gaps(self, writes: list[Writes]) -> list[list[Gap]]:
        """Its long gaps."""
        return read_gaps(self.memory(LOG, 16 * GAPS * self.vcpus), writes)

    def events(self, name: str) -> list[tuple[float, Any]]:
        """Time, s since 1970, and data of each event of a name."""
        self.ask("query-status")  # all that came before it has been read then
        rows = [row for row in self.monitor.events if row["event"] == name]
        return [(row["timestamp"]["seconds"] + row["timestamp"]["microseconds"] / 1e6, row.get("data")) for row in rows]


def ticks_per_s(qemu: Qemu, accelerator: str) -> float:
    """Ticks of the guest's time stamp counter a second."""
    probe = MigrationCell("probe", accelerator, 2**25, Habit(1, 2**20, 0), (), 0, 1)
    with _places(probe, 1e9) as (folder, firmware), _Machine(qemu, probe, firmware, folder) as machine:
        _ready(machine, probe)
        begun, first = machine.writes()
        time.sleep(_SETTLE_S)
        ended, last = machine.writes()
    return (last[0].last - first[0].last) / (ended - begun)


@contextmanager
def _places(migration: MigrationCell, ticks: float) -> Iterator[tuple[Path, Path]]:
    """A folder for a while, and the guest's firmware in it."""
    with tempfile.TemporaryDirectory(prefix="simlib-migrate-") as name:
        firmware = Path(name) / "guest.bin"
        firmware.write_bytes(migration.habit.firmware(ticks, GAP_S))
        yield Path(name), firmware


def _ready(machine: _Machine, migration: MigrationCell) -> None:
    """Wait until all vCPUs have written all their pages once."""
    pages, until = migration.habit.working_set // PAGE // migration.habit.vcpus, time.monotonic() + _BEGIN_S
    while any(one.ready < pages or not one.writes for one in machine.writes()[1]):
        if time.monotonic() > until:
            raise SimlibError(f"{migration.label}: the guest does not begin: {machine.last_words()}")
        time.sleep(0.05)


def migrate(migration: MigrationCell, qemu: Qemu, ticks: float, check: Check) -> dict[str, Any]:
    """Migrate the guest once.

    Returns: ``runs``, one row of `simlib.lab.migration.collect.RUNS`, and ``passes``, rows of ``PASSES``.
    Raises `SimlibError` if a QEMU does not begin, refuses a setting, or the migration fails.

    - `ticks`: what `ticks_per_s` gave.
    - `check`: called while it lasts.
    """
    with ExitStack() as stack:
        folder, firmware = stack.enter_context(_places(migration, ticks))
        source = stack.enter_context(_Machine(qemu, migration, firmware, folder))
        _ready(source, migration)
        begun, before = source.writes()
        time.sleep(_SETTLE_S)
        ended, at_start = source.writes()
        rate = sum(b.writes - a.writes for a, b in zip(before, at_start, strict=True)) / (ended - begun)
        to = f"unix:{folder / 'stream'}"
        destination = stack.enter_context(_Machine(qemu, migration, firmware, folder, to))
        states = [{"capability": name, "state": on} for name, on in {**migration.capabilities, "events": True}.items()]
        for machine in (source, destination):
            machine.ask("migrate-set-capabilities", capabilities=states)
            if migration.parameters:
                machine.ask("migrate-set-parameters", **migration.parameters)
        source.ask("migrate", uri=to)
        last, passes = _watch(source, migration, check)
        return {
            "runs": [_outcome(migration, source, destination, last, passes, at_start, rate, ticks)],
            "passes": [{"pass": number, **row} for number, row in sorted(passes.items())],
        }


def _watch(
    source: _Machine, migration: MigrationCell, check: Check
) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
    """Look at a migration until it is over, or has had its time; what was seen last, and of each pass."""
    begun, passes, switched = time.monotonic(), dict[int, dict[str, Any]](), False
    while True:
        reply = source.ask("query-migrate")
        status, ram, now = reply.get("status"), reply.get("ram", {}), time.monotonic() - begun
        check()
        if "dirty-sync-count" in ram:
            row = passes.setdefault(ram["dirty-sync-count"], {"seen_s": round(now, 3)})
            row |= {
                "throttle_percent": reply.get("cpu-throttle-percentage", 0), "transferred_bytes": ram["transferred"],
                "remaining_bytes": ram["remaining"], "dirty_pages_per_s": ram["dirty-pages-rate"],
            }  # fmt: skip
        if status == "failed":
            raise SimlibError(
                f"{migration.label}: the migration failed: {reply.get('error-desc', 'QEMU says no more')}"
            )
        if status in _OVER or now > migration.limit_s:
            return reply, passes
        if migration.postcopy_after_s and not switched and now > migration.postcopy_after_s and status == "active":
            source.ask("migrate-start-postcopy")
            switched = True
        time.sleep(LOOK_S)


def _outcome(
    migration: MigrationCell, source: _Machine, destination: _Machine, last: dict[str, Any],
    passes: dict[int, dict[str, Any]], at_start: list[Writes], rate: float, ticks: float,
) -> dict[str, Any]:  # fmt: skip
    """What a migration came to."""
    over, ram = last["status"] == "completed", last["ram"]
    now = destination if over else source
    stopped = [at for at, _ in source.events("STOP")]
    resumed = [at for at, _ in destination.events("RESUME")]
    begun = source.events("MIGRATION")[0][0]
    for at, data in source.events("MIGRATION_PASS"):
        passes.setdefault(data["pass"], {})["began_s"] = round(at - begun, 4)
    throttles = [row.get("throttle_percent", 0) for row in passes.values()]
    _, counted = now.writes()
    since = [
        gap.length / ticks
        for first, each in zip(at_start, now.gaps(counted), strict=True)
        for gap in each
        if gap.end > first.last
    ]
    blackout = resumed[0] - stopped[0] if over and stopped and resumed else 0.0
    active = max((one.last - first.last) / ticks for one, first in zip(counted, at_start, strict=True))
    made = sum(one.writes - first.writes for one, first in zip(counted, at_start, strict=True))
    return {
        "outcome": "completed" if over else "gave_up",
        "measured_writes_per_s": round(rate, 1),
        "synchronisations": ram["dirty-sync-count"],
        "throttle_percent": max(throttles, default=0),
        "setup_ms": last.get("setup-time", 0),
        "total_ms": last["total-time"],
        "downtime_ms": last.get("downtime", 0),
        "blackout_ms": round(blackout * 1e3, 3),
        "longest_gap_ms": round(max(*since, blackout, 0.0) * 1e3, 3),
        "gaps": len(since),
        "guest_ratio": round(made / (rate * (active + blackout)), 4),
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
