# SPDX-License-Identifier: BSD-3-Clause
"""Watches a running QEMU: its live migration, KVM's statistics of it, its threads and its tracepoints.

Everything is only looked at: over QMP nothing but queries is sent, and tracepoints are turned on in an instance of
their own. What one of the sources does not tell is said once, and the others go on.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from simlib._lib.errors import InputError, SimlibError
from simlib._lib.parallel import Progress
from simlib._lib.signals import DeferSignals
from simlib.lab.host import summary
from simlib.lab.host.migration import MigrationWatch, status_of
from simlib.lab.host.process import qmp_sockets
from simlib.lab.host.statistics import VcpuStatistics
from simlib.lab.host.threads import Threads
from simlib.lab.host.tracing import EVENTS, Tracing
from simlib.lab.native import host_provenance
from simlib.measurements.importers.tables import Imported, write_imported
from simlib.vmm.qmp import TIMEOUT, Monitor, MonitorError, refusal

INTERVAL_S = 0.5
"""Time between two samples, s."""

LEAST_INTERVAL_S = 0.05
"""Least time between two samples, s: a sample of many vCPUs takes milliseconds of QEMU's main thread."""


@dataclass(frozen=True, eq=False)
class Watched:
    """What a watch has seen."""

    imported: Imported
    """Its tables, with what was not to be had as warnings."""
    rows: list[dict[str, Any]]
    """What it comes to: ``about``, ``what``, ``value``, ``unit``."""
    ended: str
    """Why it ended."""
    interrupted: bool
    """Whether a signal ended it."""

    def write(self, folder: str | Path, name: str = "watch") -> list[Path]:
        """Write every table as CSV with its descriptor; return the CSV files."""
        return write_imported(self.imported, folder, name)


def watch_guest(
    qmp: str | Path | None = None,
    pid: int | None = None,
    *,
    interval: float = INTERVAL_S,
    duration: float | None = None,
    events: Sequence[str] = EVENTS,
    progress: Progress | None = None,
) -> Watched:
    """Sample a running QEMU until its migration is over.

    Returns: Also after Ctrl-C, with everything that was sampled. Raises `InputError` if neither socket nor process is
    given, or nothing of it can be sampled.

    - `qmp`: a QMP socket of it that nobody else uses.
    - `pid`: its process; the socket is found in its command line. One of the two must be given.
    - `interval`: time between two samples, s.
    - `duration`: end after so long, s, whatever the migration does. Without it, wait for a migration and watch it to
      its end.
    - `events`: tracepoints, ``system:event``; none to leave them out.
    - `progress`: called after each sample with what is seen and the share of `duration` that is over.

    >>> watch_guest()
    Traceback (most recent call last):
    simlib.InputError: qmp = None: a socket or a process must be named; give qmp=PATH or pid=NUMBER
    """
    _check(qmp, pid, interval, duration)
    with ExitStack() as stack:
        watching = _Watch(None if qmp is None else str(qmp), pid, stack, events)
        watching.run(interval, duration, progress)
    return watching.result(interval)


def _check(qmp: str | Path | None, pid: int | None, interval: float, duration: float | None) -> None:
    """Refuse what cannot be watched."""
    if qmp is None and pid is None:
        rule, cure = "a socket or a process must be named", "give qmp=PATH or pid=NUMBER"
        raise InputError("qmp", None, rule, cure, "give --qmp PATH or PID", "--qmp")
    if not LEAST_INTERVAL_S <= interval < float("inf"):
        raise InputError("interval", interval, f"must be at least {LEAST_INTERVAL_S} s", flag="--interval")
    if duration is not None and not 0 < duration < float("inf"):
        raise InputError("duration", duration, "must be above 0 and finite", flag="--duration")


class _Watch:
    """A watch while it runs."""

    def __init__(self, path: str | None, pid: int | None, stack: ExitStack, events: Sequence[str]) -> None:
        self.notes: list[str] = []
        self.migration, self.statistics = MigrationWatch(), VcpuStatistics()
        self.threads: Threads | None = None
        self.tracing: Tracing | None = None
        self.accelerator, self.samples, self.unanswered = "not stated", 0, 0
        self.vcpus: dict[str, str] = {}  # number by path
        self.vcpu_tids: dict[int, str] = {}  # number by thread
        self.ended, self.interrupted, self._refused = "", False, set[str]()
        self.began, self.start_s, self.last_s = datetime.now(UTC), time.monotonic(), 0.0
        self.monitor = self._connect(path, pid, stack)
        self._look(pid or (self.monitor.pid if self.monitor else None), stack, events)

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes:
            self.notes.append(text)

    def _connect(self, path: str | None, pid: int | None, stack: ExitStack) -> Monitor | None:
        """The monitor: at the given socket, or at one that the process's command line names."""
        if path is not None:
            return stack.enter_context(Monitor(path, TIMEOUT))
        assert pid is not None  # noqa: S101  # _check has seen to it
        faults = []
        for found in qmp_sockets(pid):
            try:
                return stack.enter_context(Monitor(found, TIMEOUT))
            except InputError as error:
                faults.append(str(error))
        cure = "give QEMU another QMP socket (-qmp unix:PATH,server=on,wait=off; docs/on-a-real-host.md), and name it"
        rule = "; ".join(faults) or "its command line names no QMP socket"
        threads = Threads(pid)
        if all(threads.vcpu_of(tid, threads.name(tid)) == "none" for tid in threads.tids()):
            raise InputError("PID", pid, rule, f"{cure}: qmp=PATH", f"{cure}: --qmp PATH")
        self.note(f"no migration and no statistics: {rule}; {cure}")
        return None

    def _look(self, pid: int | None, stack: ExitStack, events: Sequence[str]) -> None:
        """Find out what can be sampled."""
        if self.monitor is not None:
            kvm = self._ask("query-kvm")
            if isinstance(kvm, dict) and isinstance(kvm.get("enabled"), bool):
                self.accelerator = "kvm" if kvm["enabled"] else "not kvm"
            if self.accelerator == "not kvm":
                self.note("the guest does not run under KVM: this tests the watch, and measures nothing of KVM")
            self.statistics.describe(self._ask("query-stats-schemas", {"provider": "kvm"}))
            self._name_vcpus()
        if pid is None:
            self.note("threads and tracepoints: the socket does not say which process it is of")
            return
        threads = Threads(pid)
        if not threads.alive() or (self.vcpu_tids and self.vcpu_tids.keys().isdisjoint(threads.tids())):
            self.note(f"threads and tracepoints: process {pid}, which opened the socket, does not run the vCPUs")
            return
        self.threads, threads.vcpus = threads, self.vcpu_tids
        if events:
            try:
                with DeferSignals():  # else a signal between the two would leave the instance behind
                    self.tracing = stack.enter_context(Tracing(events, threads.tids()))
            except InputError as error:
                self.note(str(error))

    def _name_vcpus(self) -> None:
        """Which vCPU has which path and thread."""
        cpus = self._ask("query-cpus-fast")
        rows = [one for one in cpus if isinstance(one, dict)] if isinstance(cpus, list) else []
        self.vcpus = {str(one.get("qom-path")): str(one.get("cpu-index")) for one in rows}
        tids = {one.get("thread-id"): str(one.get("cpu-index")) for one in rows}
        self.vcpu_tids = {tid: number for tid, number in tids.items() if isinstance(tid, int)}
        if self.threads is not None:
            self.threads.vcpus = self.vcpu_tids

    def _ask(self, command: str, arguments: dict[str, Any] | None = None) -> Any:
        """What QEMU answers; None, and a note the first time, if it refuses."""
        if self.monitor is None or command in self._refused:
            return None
        self.monitor.allow(TIMEOUT)
        answer = self.monitor.ask(command, arguments)
        if "error" in answer:
            self._refused.add(command)
            old = "; QEMU has it since 7.1" if command.startswith("query-stats") else ""
            self.note(f"{refusal(command, answer['error'])}{old}")
            return None
        return answer["return"]

    def run(self, interval: float, duration: float | None, progress: Progress | None) -> None:
        """Sample until the end; a signal is one."""
        try:
            due = time.monotonic()
            while not self.ended:
                self.sample()
                passed = time.monotonic() - self.start_s
                if duration is not None and passed >= duration:
                    self.ended = self.ended or f"{duration:g} s are over"
                if progress is not None:
                    progress(self._state(), min(1.0, passed / duration) if duration else 0.0)
                due = max(due + interval, time.monotonic())
                if not self.ended:
                    limit = due if duration is None else min(due, self.start_s + duration)
                    time.sleep(max(0.0, limit - time.monotonic()))
        except KeyboardInterrupt:
            self.ended, self.interrupted = "interrupted", True

    def _state(self) -> str:
        """The migration in a few words."""
        last = self.migration.last
        if last is None:
            return f"watching: {self.samples} samples"
        ram = last.get("ram")
        told = ram if isinstance(ram, dict) else {}
        left = told.get("remaining")
        size = f", {left / 2**20:.0f} MiB remain" if isinstance(left, int) else ""
        return f"watching: migration {status_of(last)}, pass {told.get('dirty-sync-count', 0)}{size}"

    def sample(self) -> None:
        """Ask every source once, and write it down."""
        number = self.samples + 1
        try:
            self._sample_qemu(number)
        except InputError as error:
            if isinstance(error, MonitorError) and not error.lost:
                self.unanswered += 1
            else:
                self.ended = "QEMU closed the connection" if isinstance(error, MonitorError) else "no QMP any more"
                self.note(f"after sample {self.samples}: {error.what} = {error.value}: {error.rule}")
        if self.threads is not None and not self._sample_threads(number):
            self.ended = self.ended or "the process ended"
        if self.tracing is not None:
            self.tracing.take()
        self.samples, self.last_s = number, self._now()
        if self.migration.over:
            self.ended = f"migration {status_of(self.migration.last or {})}"

    def _now(self) -> float:
        """Seconds since the beginning, to a microsecond."""
        return round(time.monotonic() - self.start_s, 6)

    def _sample_qemu(self, number: int) -> None:
        """Migration and statistics; vCPUs first, as some may have come."""
        if self.monitor is None:
            return
        self._name_vcpus()
        reply = self._ask("query-migrate")
        with DeferSignals():
            if isinstance(reply, dict):
                self.migration.take(number, self._now(), reply)
        for scope in ("vm", "vcpu"):
            found = self._ask("query-stats", {"target": scope, "providers": [{"provider": "kvm"}]})
            with DeferSignals():
                self.statistics.take(number, self._now(), scope, found, self.vcpus)

    def _sample_threads(self, number: int) -> bool:
        """Threads; whether the process is still there."""
        assert self.threads is not None  # noqa: S101  # the caller has looked
        try:
            with DeferSignals():
                self.threads.take(number, self._now())
        except OSError as error:
            self.note(f"threads: {error.strerror}: /proc/PID/task/TID/schedstat must be there (CONFIG_SCHED_INFO)")
        return self.threads.alive()

    def result(self, interval: float) -> Watched:
        """Tables, notes and the summary; called when all sources are closed."""
        traced = self.tracing.contents() if self.tracing is not None else None
        tables = [self.migration.table(), self.migration.passes(), *self.statistics.tables()]
        tables += [self.threads.table()] if self.threads is not None else []
        tables += list(traced.tables) if traced is not None else []
        kept = {table.name: table for table in tables if len(table)}
        warnings = [*self.notes, *self._lacking(), *(traced.warnings if traced is not None else ())]
        if not kept:
            raise SimlibError("; ".join(["nothing was sampled", *warnings]))
        host = host_provenance()
        setup = {
            "began": self.began.isoformat(timespec="milliseconds"), "began_monotonic_s": self.start_s,
            "ended": self.ended, "interval_s": interval, "samples": self.samples, "accelerator": self.accelerator,
            "qemu": self.monitor.version if self.monitor else "not stated", "vcpus": len(self.vcpus) or None,
            "tracepoints": list(self.tracing.enabled) if self.tracing is not None else [], "host": host,
        }  # fmt: skip
        hardware = f"{host['cpu']}, {host['cpus']} CPUs, Linux {platform.release()}"
        imported = Imported(
            "host-watch", "a watch of a running QEMU", "", kept, tuple(warnings), setup, hardware, "simlib host watch"
        )
        return Watched(imported, self._digest(), self.ended, self.interrupted)

    def _lacking(self) -> list[str]:
        """What could have been there and was not."""
        said = []
        if self.monitor is not None and "query-stats" not in self._refused:
            if not self.statistics.seconds:
                said.append("no statistics: QEMU has none without KVM")
            elif not self.statistics.has_locks:
                said.append("no counters of mmu_lock: a kernel without CONFIG_KVM_MMU_LOCK_STAT (kernel-patches/)")
        if self.unanswered:
            said.append(f"{self.unanswered} samples without an answer of QEMU within {TIMEOUT:g} s")
        if self.statistics.fallen:
            said.append(f"{self.statistics.fallen} statistics fell that should only rise, left out")
        return said

    def _digest(self) -> list[dict[str, Any]]:
        """What the watch comes to."""
        watched = [("ended", self.ended, ""), ("samples", self.samples, "count"), ("time", round(self.last_s, 3), "s"),
                   ("accelerator", self.accelerator, "")]  # fmt: skip
        rows = [{"about": "watch", "what": what, "value": value, "unit": unit} for what, value, unit in watched]
        rows += summary.of_migration(self.migration)
        rows += summary.of_statistics(self.statistics)
        rows += summary.of_threads(self.threads) if self.threads is not None else []
        rows += summary.of_trace(self.tracing.trace) if self.tracing is not None else []
        return rows
