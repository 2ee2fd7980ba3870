# SPDX-License-Identifier: BSD-3-Clause
"""Watch a running QEMU: its live migration, KVM's statistics, its threads and its tracepoints.

A watch sends only queries over QMP, and enables tracepoints in a private instance of tracefs.
If a source is not available, the watch notes it once and continues with the others.
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
from simlib.lab.host.statistics import StatisticsWatch
from simlib.lab.host.threads import Threads, qmp_sockets
from simlib.lab.host.tracing import EVENTS, Tracing
from simlib.lab.native import host_provenance
from simlib.measurements.importers.tables import Imported, write_imported
from simlib.vmm.qmp import TIMEOUT, Monitor, MonitorError, refusal

MIN_INTERVAL_S = 0.05
"""Shortest time between two samples, s: a sample of many vCPUs takes milliseconds of QEMU's main thread."""


@dataclass(frozen=True, eq=False)
class WatchResult:
    """Result of a watch."""

    imported: Imported
    """Tables, with warnings about sources that were not available."""
    summary: list[dict[str, Any]]
    """Rows of the summary: ``about``, ``what``, ``value``, ``unit``."""
    ended: str
    interrupted: bool
    """True if a signal ended the watch."""

    def write(self, folder: str | Path, name: str = "watch") -> list[Path]:
        """Write every table as CSV with its descriptor; return the CSV files."""
        return write_imported(self.imported, folder, name)


def watch_guest(
    qmp: str | Path | None = None,
    pid: int | None = None,
    *,
    interval: float = 0.5,
    duration: float | None = None,
    events: Sequence[str] = EVENTS,
    progress: Progress | None = None,
) -> WatchResult:
    """Sample a running QEMU until its migration ends.

    Returns: All samples, also after Ctrl-C. Raises `InputError` if neither socket nor process is given, or the process
    cannot be sampled.

    - `qmp`: a QMP socket of QEMU to which no other client is connected.
    - `pid`: QEMU's process; the socket is taken from its command line. `qmp` or `pid` must be given.
    - `interval`: time between two samples, s.
    - `duration`: end after this time, s, even if a migration is active. By default wait for a migration and watch it
      until it ends.
    - `events`: tracepoints, ``system:event``; empty: no tracepoints.
    - `progress`: called after each sample with the state of the migration and the share of `duration` that has passed.

    >>> watch_guest()
    Traceback (most recent call last):
    simlib.InputError: qmp = None: a socket or a process must be named; give qmp=PATH or pid=NUMBER
    """
    if qmp is None and pid is None:
        rule, hint = "a socket or a process must be named", "give qmp=PATH or pid=NUMBER"
        raise InputError("qmp", None, rule, hint, "give --qmp PATH or PID", "--qmp")
    if not MIN_INTERVAL_S <= interval < float("inf"):
        raise InputError("interval", interval, f"must be at least {MIN_INTERVAL_S} s", flag="--interval")
    if duration is not None and not 0 < duration < float("inf"):
        raise InputError("duration", duration, "must be positive and finite", flag="--duration")
    with ExitStack() as stack:
        watching = _Watch(None if qmp is None else str(qmp), pid, stack, events)
        watching.run(interval, duration, progress)
    return watching.result(interval)


class _Watch:
    """A running watch."""

    def __init__(self, path: str | None, pid: int | None, stack: ExitStack, events: Sequence[str]) -> None:
        self.notes: list[str] = []
        self.migration, self.statistics = MigrationWatch(), StatisticsWatch()
        self.threads: Threads | None = None
        self.tracing: Tracing | None = None
        self.accelerator, self.samples, self.unanswered = "not stated", 0, 0
        self.vcpus: dict[str, str] = {}  # number by QOM path
        self.vcpu_tids: dict[int, str] = {}  # number by thread ID
        self.ended, self.interrupted, self._refused = "", False, set[str]()
        self.began, self.start_s, self.last_s = datetime.now(UTC), time.monotonic(), 0.0
        self.monitor = self._connect(path, pid, stack)
        self._open_sources(pid or (self.monitor.pid if self.monitor else None), stack, events)

    def note(self, text: str) -> None:
        """Add a note, unless it was added before."""
        if text not in self.notes:
            self.notes.append(text)

    def _connect(self, path: str | None, pid: int | None, stack: ExitStack) -> Monitor | None:
        """Connect to the given QMP socket, or to one that the process's command line names."""
        if path is not None:
            return stack.enter_context(Monitor(path, TIMEOUT))
        assert pid is not None  # noqa: S101  # watch_guest refuses that
        faults = []
        for socket in qmp_sockets(pid):
            try:
                return stack.enter_context(Monitor(socket, TIMEOUT))
            except InputError as error:
                faults.append(str(error))
        hint = "give QEMU another QMP socket (-qmp unix:PATH,server=on,wait=off; docs/on-a-real-host.md), and name it"
        rule = "; ".join(faults) or "its command line names no QMP socket"
        threads = Threads(pid)
        if all(threads.vcpu_of(tid, threads.name(tid)) == "none" for tid in threads.tids()):
            raise InputError("PID", pid, rule, f"{hint}: qmp=PATH", f"{hint}: --qmp PATH")
        self.note(f"migration and statistics are not sampled: {rule}; {hint}")
        return None

    def _open_sources(self, pid: int | None, stack: ExitStack, events: Sequence[str]) -> None:
        if self.monitor is not None:
            kvm = self._query("query-kvm")
            if isinstance(kvm, dict) and isinstance(kvm.get("enabled"), bool):
                self.accelerator = "kvm" if kvm["enabled"] else "not kvm"
            if self.accelerator == "not kvm":
                self.note("the guest does not run under KVM, so KVM's statistics and events are missing")
            self.statistics.read_schemas(self._query("query-stats-schemas", {"provider": "kvm"}))
            self._read_vcpus()
        if pid is None:
            self.note("threads and tracepoints are not sampled: the socket does not identify its process")
            return
        threads = Threads(pid)
        if not threads.alive() or (self.vcpu_tids and self.vcpu_tids.keys().isdisjoint(threads.tids())):
            self.note(f"threads and tracepoints are not sampled: process {pid} opened the socket but has no vCPUs")
            return
        self.threads, threads.vcpus = threads, self.vcpu_tids
        if events:
            try:
                with DeferSignals():  # else a signal before enter_context would leave the instance behind
                    self.tracing = stack.enter_context(Tracing(events, threads.tids()))
            except InputError as error:
                self.note(str(error))

    def _read_vcpus(self) -> None:
        """Read the QOM path and the thread ID of each vCPU."""
        cpus = self._query("query-cpus-fast")
        rows = [cpu for cpu in cpus if isinstance(cpu, dict)] if isinstance(cpus, list) else []
        self.vcpus = {str(cpu.get("qom-path")): str(cpu.get("cpu-index")) for cpu in rows}
        tids = {cpu.get("thread-id"): str(cpu.get("cpu-index")) for cpu in rows}
        self.vcpu_tids = {tid: number for tid, number in tids.items() if isinstance(tid, int)}
        if self.threads is not None:
            self.threads.vcpus = self.vcpu_tids

    def _query(self, command: str, arguments: dict[str, Any] | None = None) -> Any:
        """Return QEMU's answer; None if QEMU refuses the command, with a note the first time."""
        if self.monitor is None or command in self._refused:
            return None
        self.monitor.allow(TIMEOUT)
        answer = self.monitor.ask(command, arguments)
        if "error" in answer:
            self._refused.add(command)
            since = "; QEMU has had it since 7.1" if command.startswith("query-stats") else ""
            self.note(f"{refusal(command, answer['error'])}{since}")
            return None
        return answer["return"]

    def run(self, interval: float, duration: float | None, progress: Progress | None) -> None:
        """Sample until the migration or `duration` ends, or a signal arrives."""
        try:
            due = time.monotonic()
            while not self.ended:
                self.sample()
                passed = time.monotonic() - self.start_s
                if duration is not None and passed >= duration:
                    self.ended = self.ended or f"{duration:g} s have passed"
                if progress is not None:
                    progress(self._progress_text(), min(1.0, passed / duration) if duration else 0.0)
                due = max(due + interval, time.monotonic())
                if not self.ended:
                    limit = due if duration is None else min(due, self.start_s + duration)
                    time.sleep(max(0.0, limit - time.monotonic()))
        except KeyboardInterrupt:
            self.ended, self.interrupted = "interrupted", True

    def _progress_text(self) -> str:
        last = self.migration.last
        if last is None:
            return f"watching: {self.samples} samples"
        ram = last.get("ram")
        counters = ram if isinstance(ram, dict) else {}
        remaining = counters.get("remaining")
        size = f", {remaining / 2**20:.0f} MiB remain" if isinstance(remaining, int) else ""
        return f"watching: migration {status_of(last)}, pass {counters.get('dirty-sync-count', 0)}{size}"

    def sample(self) -> None:
        """Sample every source once."""
        number = self.samples + 1
        try:
            self._sample_qemu(number)
        except InputError as error:
            if isinstance(error, MonitorError) and not error.lost:
                self.unanswered += 1
            else:
                closed = isinstance(error, MonitorError)
                self.ended = "QEMU closed the connection" if closed else "the QMP connection failed"
                self.note(f"after sample {self.samples}: {error.what} = {error.value}: {error.rule}")
        if self.threads is not None:
            try:
                with DeferSignals():
                    self.threads.sample(number, self._now())
            except OSError as error:
                self.note(f"threads: cannot read /proc/PID/task/TID/schedstat (CONFIG_SCHED_INFO): {error.strerror}")
            if not self.threads.alive():
                self.ended = self.ended or "the process ended"
        if self.tracing is not None:
            self.tracing.read()
        self.samples, self.last_s = number, self._now()
        if self.migration.finished:
            self.ended = f"migration {status_of(self.migration.last or {})}"

    def _now(self) -> float:
        """Time since the start of the watch, s, rounded to a microsecond."""
        return round(time.monotonic() - self.start_s, 6)

    def _sample_qemu(self, number: int) -> None:
        """Sample migration and statistics; read the vCPUs first, as QEMU may have hot-plugged some."""
        if self.monitor is None:
            return
        self._read_vcpus()
        reply = self._query("query-migrate")
        with DeferSignals():
            if isinstance(reply, dict):
                self.migration.record(number, self._now(), reply)
        for scope in ("vm", "vcpu"):
            reply = self._query("query-stats", {"target": scope, "providers": [{"provider": "kvm"}]})
            with DeferSignals():
                self.statistics.record(number, self._now(), scope, reply, self.vcpus)

    def result(self, interval: float) -> WatchResult:
        """Return tables, notes and the summary; all sources must be closed before."""
        traced = self.tracing.contents() if self.tracing is not None else None
        tables = [self.migration.table(), self.migration.passes(), *self.statistics.tables()]
        tables += [self.threads.table()] if self.threads is not None else []
        tables += list(traced.tables) if traced is not None else []
        filled = {table.name: table for table in tables if len(table)}
        warnings = [*self.notes, *self._missing_sources(), *(traced.warnings if traced is not None else ())]
        if not filled:
            raise SimlibError("; ".join(["nothing was sampled", *warnings]))
        host = host_provenance()
        setup = {
            "began": self.began.isoformat(timespec="milliseconds"), "began_monotonic_s": self.start_s,
            "ended": self.ended, "interval_s": interval, "samples": self.samples, "accelerator": self.accelerator,
            "qemu": self.monitor.version if self.monitor else "not stated", "vcpus": len(self.vcpus) or None,
            "tracepoints": list(self.tracing.enabled) if self.tracing is not None else [], "host": host,
        }  # fmt: skip
        hardware = f"{host['cpu']}, {host['cpus']} CPUs, Linux {platform.release()}"
        about = ("host-watch", "a watch of a running QEMU", "")
        imported = Imported(*about, filled, tuple(warnings), setup, hardware, "simlib host watch")
        return WatchResult(imported, self._summary(), self.ended, self.interrupted)

    def _missing_sources(self) -> list[str]:
        warnings = []
        if self.monitor is not None and "query-stats" not in self._refused:
            if not self.statistics.seconds:
                warnings.append("no statistics: QEMU has them only with KVM")
            elif not self.statistics.has_locks:
                warnings.append("no counters of mmu_lock: the kernel lacks CONFIG_KVM_MMU_LOCK_STAT (kernel-patches/)")
        if self.unanswered:
            warnings.append(f"samples without an answer from QEMU within {TIMEOUT:g} s: {self.unanswered}")
        if self.statistics.decreased:
            warnings.append(f"decreases in cumulative statistics, which are excluded: {self.statistics.decreased}")
        return warnings

    def _summary(self) -> list[dict[str, Any]]:
        rows: list[summary.Row] = [("watch", "ended", self.ended, ""), ("watch", "samples", self.samples, "count")]
        rows += [("watch", "time", round(self.last_s, 3), "s"), ("watch", "accelerator", self.accelerator, "")]
        rows += summary.migration_summary(self.migration)
        rows += summary.statistics_summary(self.statistics)
        rows += summary.threads_summary(self.threads) if self.threads is not None else []
        rows += summary.trace_summary(self.tracing.trace) if self.tracing is not None else []
        return [dict(zip(("about", "what", "value", "unit"), row, strict=True)) for row in rows]
