# SPDX-License-Identifier: BSD-3-Clause
"""Migrate a guest from one QEMU to another on this machine, and record the progress and the guest's work."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

from simlib._lib.errors import SimlibError
from simlib._lib.parallel import Check
from simlib.lab.migration.experiment import MigrationCell
from simlib.lab.migration.machine import MigratingQemu, workspace
from simlib.lab.migration.measurement import OtherWork
from simlib.lab.migration.progress import Baseline, VcpuCounters
from simlib.lab.qemu import Qemu

POLL_S = 0.1
"""Time between two samples of a migration, s."""

BeforeMigration = Callable[[dict[str, Any]], dict[str, Any]]
"""Called with a guest's measurement before its migration; the result, such as a prediction, is stored."""


class Recording(NamedTuple):
    """Samples of a migration.

    - `reply`: last answer of ``query-migrate``. `passes`: values of the last sample in each pass, by its number.
    - `samples`: all answers with their times since the start, s.
    """

    reply: dict[str, Any]
    passes: dict[int, dict[str, Any]]
    samples: list[dict[str, Any]]


def migrate(
    migration: MigrationCell, qemu: Qemu, ticks: float, check: Check, before: BeforeMigration | None = None
) -> dict[str, Any]:
    """Migrate the guest once.

    Returns: ``runs``, one row of the columns of the guest's table (`simlib.lab.migration.tables`), ``passes``, rows of
    ``PASSES``, ``measurement`` and ``prediction``, and ``samples``, the answers of ``query-migrate``. Raises
    `SimlibError` if a QEMU fails to start or refuses a setting, or the migration fails.

    - `ticks`: from `simlib.lab.migration.machine.measure_ticks`; `check`: called again and again.
    - `before`: called with the measurement, which also has the ``keys`` of the migration.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(workspace(migration, ticks))
        source = stack.enter_context(MigratingQemu(qemu, migration, folder))
        source.wait_until_ready(check)
        _configure(source, migration)
        begun, first = source.counters()
        measurement = {"keys": migration.keys, **migration.guest.measure(source, check)}
        ended, last = source.counters()
        rate = _work(first, last) / (ended - begun)
        if rate <= 0:
            raise SimlibError(f"{migration.label}: the workload did nothing while it was measured")
        prediction = before(measurement) if before else {}
        uri = f"unix:{folder / 'stream'}"
        destination = stack.enter_context(MigratingQemu(qemu, migration, folder, uri))
        _configure(destination, migration)
        _, at_start = source.counters()
        others = OtherWork([source.pid, destination.pid])
        source.query("migrate", uri=uri)
        recording = _poll_migration(source, migration, check)
        other_cpu = {"other_cpu_percent": others.percent()}
        row = _outcome(source, destination, recording, at_start, Baseline(rate, ticks, 0.0))
        return {
            "runs": [row | other_cpu],
            "passes": [{"pass": number, **values} for number, values in sorted(recording.passes.items())],
            "measurement": measurement,
            "prediction": prediction,
            "samples": recording.samples,
        }


def _configure(machine: MigratingQemu, migration: MigrationCell) -> None:
    """Set capabilities and parameters, and enable the events of a migration."""
    states = [{"capability": name, "state": on} for name, on in {**migration.capabilities, "events": True}.items()]
    machine.query("migrate-set-capabilities", capabilities=states)
    if migration.parameters:
        machine.query("migrate-set-parameters", **migration.parameters)


def _work(start: list[VcpuCounters], end: list[VcpuCounters]) -> int:
    """Operations between two readings of the counters."""
    return sum(b.operations - a.operations for a, b in zip(start, end, strict=True))


def _poll_migration(source: MigratingQemu, migration: MigrationCell, check: Check) -> Recording:
    """Sample a migration until it ends or exceeds its limit."""
    begun, switched = time.monotonic(), False
    passes, samples = dict[int, dict[str, Any]](), list[dict[str, Any]]()
    while True:
        reply = source.query("query-migrate")
        status, ram, now = reply.get("status"), reply.get("ram", {}), time.monotonic() - begun
        samples.append({"at_s": round(now, 3), "return": reply})
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
            return Recording(reply, passes, samples)
        if migration.postcopy_after_s and not switched and now > migration.postcopy_after_s and status == "active":
            source.query("migrate-start-postcopy")
            switched = True
        time.sleep(POLL_S)


def _outcome(
    source: MigratingQemu, destination: MigratingQemu, recording: Recording, at_start: list[VcpuCounters],
    baseline: Baseline,
) -> dict[str, Any]:  # fmt: skip
    """Return the row of a migration."""
    last, passes, ticks = recording.reply, recording.passes, baseline.ticks_per_s
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
    expected = baseline.operations_per_s * (active + blackout)
    further = machine.guest.outcome(machine.read_memory, at_start, baseline._replace(away_s=blackout))
    return {
        "outcome": "completed" if completed else "gave_up",
        "measured_writes_per_s": round(baseline.operations_per_s, 1),
        "synchronisations": ram["dirty-sync-count"],
        "throttle_percent": max(throttles, default=0),
        "setup_ms": last.get("setup-time", 0),
        "total_ms": last["total-time"],
        "downtime_ms": last.get("downtime", 0),
        "blackout_ms": round(blackout * 1e3, 3),
        "longest_gap_ms": round(max(*gaps_s, blackout, 0.0) * 1e3, 3),
        "gaps": len(gaps_s),
        "guest_ratio": round(_work(at_start, at_end) / expected, 4),
        "transferred_bytes": ram["transferred"],
        "precopy_bytes": ram["precopy-bytes"],
        "downtime_bytes": ram["downtime-bytes"],
        "postcopy_bytes": ram["postcopy-bytes"],
        "postcopy_requests": ram["postcopy-requests"],
        "normal_pages": ram["normal"],
        "zero_pages": ram["duplicate"],
        "throughput_mbit_per_s": round(ram["mbps"], 2),
        "dirty_pages_per_s": ram["dirty-pages-rate"],
        **further,
    }
