# SPDX-License-Identifier: BSD-3-Clause
"""Report of QEMU's guestperf: tests/migration-stress/guestperf, Report.serialize and Progress.serialize."""

from __future__ import annotations

from typing import Any

from simlib.vmm.logs.content import LogContent, LogValue, make_sample

QUERY = "guestperf"
"""Name of the report among the replies of QEMU."""

KEYS = frozenset({"progress_history", "hardware", "scenario"})
"""Keys of a report by which it is recognised."""


_NUMBERS = {
    "transferred_bytes": "sent_bytes", "remaining_bytes": "remaining_bytes", "total_bytes": "total_bytes",
    "duplicate_pages": "zero_pages", "normal_pages": "normal_pages", "dirty_rate_pps": "dirty_pages_per_s",
}  # fmt: skip
_SCENARIO = {"auto_converge": "auto-converge", "multifd": "multifd", "post_copy": "postcopy-ram"}


def content_of_report(report: dict[str, Any]) -> LogContent:
    """Return the samples of a report, its vCPUs, its settings and the CPU use before the migration.

    Values that are not numbers are ignored.
    """
    content = LogContent("guestperf")
    hardware, scenario = (report[key] if isinstance(report[key], dict) else {} for key in ("hardware", "scenario"))
    if _number(hardware.get("cpus")):
        content.vcpus.append(LogValue(int(hardware["cpus"]), "cpus of guestperf"))
    for key, name in _SCENARIO.items():
        if isinstance(scenario.get(key), bool):
            content.settings[name] = scenario[key]
    if limit := _number(scenario.get("downtime")):
        content.settings["downtime-limit"] = round(limit)
    if channels := _number(scenario.get("multifd_channels")):
        content.settings["multifd-channels"] = round(channels)
    history = report["progress_history"] if isinstance(report["progress_history"], list) else []
    for progress in history:
        if isinstance(progress, dict) and isinstance(progress.get("ram"), dict):
            _add_progress(content, progress, progress["ram"])
    _add_cpu_use(content, report.get("vcpu_timings"), history)
    return content


def _add_progress(content: LogContent, progress: dict[str, Any], ram: dict[str, Any]) -> None:
    values: dict[str, Any] = {name: _number(ram.get(key)) for key, name in _NUMBERS.items()}
    duration, rate = _number(progress.get("duration")), _number(ram.get("transfer_rate_mbs"))
    passes, down = _number(ram.get("iterations")), _number(progress.get("downtime"))
    values |= {
        "status": str(progress.get("status", ""))[:40], "time_s": None if duration is None else duration / 1000,
        "bits_per_s": None if not rate else rate * 1e6, "throttle": _number(progress.get("throttle_pcent")),
        "passes": int(passes) if passes is not None and 0 <= passes < 2**31 else None,
        "downtime_s": down / 1000 if down else None,
    }  # fmt: skip
    sample = make_sample(content, values)
    if sample is not None:
        content.samples.append(sample)
        if sample.total_bytes:
            content.total.append(LogValue(sample.total_bytes, "total_bytes of guestperf"))


def _add_cpu_use(content: LogContent, timings: Any, history: list[Any]) -> None:
    """Add the CPU use of the vCPU threads before the migration began."""
    first = next((row for row in history if isinstance(row, dict)), {})
    now, duration = _number(first.get("now")), _number(first.get("duration"))
    if now is None or duration is None or not isinstance(timings, list):
        return
    threads: dict[str, list[tuple[float, float]]] = {}
    for row in timings:
        if isinstance(row, dict):
            stamp, value = _number(row.get("timestamp")), _number(row.get("value"))
            if stamp is not None and value is not None and stamp <= now - duration / 1000:
                threads.setdefault(str(row.get("tid")), []).append((stamp, value))
    uses = [
        (rows[-1][1] - rows[0][1]) / 1000 / (rows[-1][0] - rows[0][0])
        for rows in threads.values() if rows[-1][0] > rows[0][0]
    ]  # fmt: skip
    if uses and 0 <= sum(uses) / len(uses) <= 1.1:
        content.cpu.append(LogValue(min(1.0, sum(uses) / len(uses)), "vcpu_timings of guestperf"))


def _number(value: Any) -> float | None:
    """Value as a number; None if it is something else, or huge."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 2**80 else None
