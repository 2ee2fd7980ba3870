# SPDX-License-Identifier: BSD-3-Clause
"""QEMU's replies about a guest: recognise the query from the form of its reply, and read the numbers.

The fields are those of QEMU's qapi/migration.json and qapi/machine.json.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from simlib._lib.errors import InputError
from simlib.vmm.logs import guestperf
from simlib.vmm.logs.content import LogContent, LogValue, RateReading, make_sample
from simlib.vmm.logs.dirty_rate import rate_reading
from simlib.vmm.logs.records import COMPRESSED, DEVICE, DISK, POSTCOPY, page_size
from simlib.vmm.qmp import one_line, refusal
from simlib.vmm.settings import NAMES

MIGRATE, DIRTY_RATE, CPUS, PARAMETERS, CAPABILITIES, MEMORY, KVM, VERSION = QUERIES = (
    "query-migrate", "query-dirty-rate", "query-cpus-fast", "query-migrate-parameters", "query-migrate-capabilities",
    "query-memory-size-summary", "query-kvm", "query-version",
)  # fmt: skip
"""Queries that are sent over a socket; they are read-only."""

ARCHITECTURES = {
    "x86_64": "x86-tdp", "i386": "x86-tdp", "aarch64": "arm64", "riscv64": "riscv", "loongarch64": "loongarch",
    "ppc64": "ppc-radix", "s390x": "s390",
}  # fmt: skip
"""Names of `simlib.model.architectures`, by QEMU's target."""

ASK = (
    'run virsh qemu-monitor-command DOMAIN \'{"execute": "query-migrate"}\', repeat it with query-dirty-rate and '
    "query-cpus-fast, and paste the output"
)

_DIRTY_STATUS = {"unstarted", "measuring", "measured"}
_SENDING = {"active", "pre-switchover", "device", "completed", "postcopy-active"}
_MIGRATION_STATUS = _SENDING | {
    "none", "setup", "cancelling", "cancelled", "postcopy-paused", "postcopy-recover-setup", "postcopy-recover",
    "failed", "wait-unplug",
}  # fmt: skip
_IDLE = {"none", "setup", "wait-unplug"}
"""States without numbers of a migration."""

_BY_KEYS = (
    (PARAMETERS, {"downtime-limit", "max-bandwidth"}),
    (MEMORY, {"base-memory"}),
    (KVM, {"enabled", "present"}),
    (VERSION, {"qemu", "package"}),
    (guestperf.QUERY, guestperf.KEYS),
)
_VALUE = re.compile(r'\{\s*"|\[\s*[{\[]')
_REPLY = re.compile(r'\{\s*"(?:return|id|status|ram|error|cpu-index|downtime-limit|setup-time)"')
"""Beginning of a reply of QEMU, which must be whole; other JSON in a log may be cut off."""

_LOG_LINE = re.compile(r'^\{"(?:component|level|ts|time|timestamp)": ?"[^\n]*$', re.MULTILINE)
"""Line of a log in JSON; the timestamp of QEMU's events is an object."""

_MOST_BROKEN = 100
"""Number of values that are not JSON after which the rest of a log is not searched."""

_NOT_A_NUMBER = re.compile(r'(?<=": )-?(?:nan|inf)(?=\s*[,}])')
"""Number that is not finite, as old versions of QEMU print it."""

_AS_IT_CAME = "paste the reply as QEMU printed it"
_ONE_GUEST = "paste the replies of one guest only"


def replies_in(text: str, where: str, notes: list[str], in_log: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield each known reply in a string, with its query; QEMU's error replies become notes.

    Raises `InputError` if a reply is cut off, or is not JSON.

    - `in_log`: True if the text is that of a log, in which values that are not replies of QEMU may be cut off.
    """
    text = _LOG_LINE.sub(lambda match: " " * len(match[0]), text)
    if _NOT_A_NUMBER.search(text):
        text = _NOT_A_NUMBER.sub(lambda match: "NaN".rjust(len(match[0])), text)
    for value in _values(text, where, in_log):
        for row in value if isinstance(value, list) and value and not query_of(value) else [value]:
            known = row if isinstance(row, dict) else {}
            if isinstance(known.get("error"), dict) and "class" in known["error"]:
                notes.append(refusal("", known["error"]))
            reply = known.get("return", row)
            if query := query_of(reply):
                yield query, reply


def query_of(reply: Any) -> str:
    """Return the query that a reply of this form answers; an empty string for any other object."""
    if isinstance(reply, list) and reply and all(isinstance(row, dict) for row in reply):
        if all("cpu-index" in row for row in reply) and not any("limit-rate" in row for row in reply):
            return CPUS
        return CAPABILITIES if all({"capability", "state"} <= {*row} for row in reply) else ""
    if not isinstance(reply, dict):
        return ""
    for query, keys in _BY_KEYS:
        if keys <= {*reply}:
            return query
    status = str(reply.get("status"))
    if status in _DIRTY_STATUS:
        return DIRTY_RATE
    ram = reply.get("ram")
    migrating = status in _MIGRATION_STATUS and "running" not in reply
    return MIGRATE if migrating or (isinstance(ram, dict) and "total" in ram) else ""


def _values(text: str, where: str, in_log: bool) -> Iterator[Any]:
    decoder, end, broken = json.JSONDecoder(strict=False), 0, 0
    for opening in _VALUE.finditer(text):
        start = opening.start()
        if start < end:
            continue
        try:
            value, end = decoder.raw_decode(text, start)
        except (RecursionError, ValueError) as error:
            deep = isinstance(error, RecursionError)
            if not deep and opening[0].endswith("["):
                continue
            if in_log and not _REPLY.match(text, start):
                broken += 1
                if broken > _MOST_BROKEN:
                    return
                newline = text.find("\n", start)
                end = newline if newline >= 0 else len(text)
                continue
            rule = "is nested too deeply for a reply" if deep else f"is not JSON ({error})"
            if isinstance(error, json.JSONDecodeError):
                rule = f"is not JSON ({error.msg}, {_line(text, error.pos, where)})"
                if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated"):
                    rule = "is cut off"
            shown = text[start : start + 40].split("\n", maxsplit=1)[0]
            raise InputError(_line(text, start, where), shown, rule, "paste the whole reply") from None
        yield value


def _line(text: str, position: int, where: str) -> str:
    number = text.count("\n", 0, position) + 1
    return f"{where}, line {number}"


def contents_of(replies: Sequence[tuple[str, Any]]) -> list[LogContent]:
    """Return the content of QMP's replies, and that of each report of guestperf.

    Raises `InputError` if a value is impossible or contradicts another.

    - `replies`: query and reply, in the order in which they came.
    """
    reports = [reply for query, reply in replies if query == guestperf.QUERY]
    return [_content_of(replies), *(guestperf.content_of_report(report) for report in reports)]


def _content_of(replies: Sequence[tuple[str, Any]]) -> LogContent:
    by_query = {query: [reply for name, reply in replies if name == query] for query in QUERIES}
    content = LogContent(MIGRATE)
    measured = [reply for reply in by_query[DIRTY_RATE] if reply["status"] == "measured"]
    _add_cpus(content, by_query[CPUS], measured)
    for reply in by_query[MIGRATE]:
        _add_migration(content, reply)
    for reply in by_query[MEMORY][-1:]:
        memory = sum(_number(reply, key, MEMORY) or 0 for key in ("base-memory", "plugged-memory"))
        content.configured += [LogValue(memory, f"base-memory and plugged-memory of {MEMORY}")] if memory else []
    for reply in by_query[KVM][-1:]:
        content.emulated = reply["enabled"] is False
        if content.emulated:
            content.note(f"the guest runs without KVM: {KVM}")
    for reply in by_query[VERSION][-1:]:
        numbers = reply["qemu"] if isinstance(reply["qemu"], dict) else {}
        major, minor = (_number(numbers, part, VERSION, "qemu.") for part in ("major", "minor"))
        if major is not None and minor is not None:
            content.version = (major, minor)
            content.note(f"QEMU {major}.{minor}: {VERSION}")
    distinct = {str(reply): reply for reply in measured}  # start-time distinguishes measurements
    content.rates += [_dirty_rate(reply) for reply in distinct.values()]
    _add_missing(content, by_query)
    _add_settings(content, by_query[PARAMETERS], by_query[CAPABILITIES])
    return content


def _add_missing(content: LogContent, by_query: dict[str, list[Any]]) -> None:
    """Add the reasons for which numbers are not known."""
    migrations = by_query[MIGRATE]
    content.missing["vCPUs"] = f"no reply to {CPUS}"
    content.missing["memory"] = f"{MIGRATE} has no ram" if migrations else f"no reply to {MIGRATE}"
    content.missing["link"] = f"no reply to {MIGRATE} about a migration"
    if migrations:
        status = one_line(migrations[-1].get("status", "none"))
        why = f"status {status}" if status not in _SENDING else "ram.mbps is 0 or missing"
        content.missing["link"] = f"nothing is being migrated, or not for long enough ({why})"
    content.missing["dirty rate"] = f"neither {DIRTY_RATE} nor {MIGRATE} has one"
    reasons = {"measuring": "is still running: query again when it has ended", "unstarted": "was not started"}
    for reply in by_query[DIRTY_RATE][-1:]:
        if reply["status"] in reasons and not content.rates:
            content.note(f"{DIRTY_RATE}: the measurement (calc-dirty-rate) {reasons[reply['status']]}")


def _add_settings(content: LogContent, parameters: Sequence[Any], capabilities: Sequence[Any]) -> None:
    """Add the modelled settings of the migration, each with its last value."""
    values = {name: value for reply in parameters for name, value in reply.items() if isinstance(value, int)}
    values |= {str(row["capability"]): bool(row["state"]) for reply in capabilities for row in reply}
    for query, given in ((PARAMETERS, parameters), (CAPABILITIES, capabilities)):
        if given:
            content.note(f"current settings: {query}")
    content.settings = {name: value for name, value in values.items() if name in NAMES}
    compression = any(values.get(name) is True for name in ("xbzrle", "compress"))
    if compression or any(reply.get("multifd-compression", "none") != "none" for reply in parameters):
        content.note(COMPRESSED)


def _add_cpus(content: LogContent, replies: Sequence[Any], measured: Sequence[Any]) -> None:
    """Add the number of vCPUs and the architecture.

    - `measured`: replies to query-dirty-rate, which may also count vCPUs.
    """
    counted = [reply.get("vcpu-dirty-rate") for reply in measured[-1:]]
    content.vcpus += [LogValue(len(rows), f"entries of {CPUS}") for rows in replies]
    content.vcpus += [LogValue(len(rows), f"entries of vcpu-dirty-rate of {DIRTY_RATE}")
                      for rows in counted if isinstance(rows, list) and rows]  # fmt: skip
    targets = {str(row["target"]) for reply in replies for row in reply if row.get("target")}
    if len(targets) > 1:
        raise InputError(f"{CPUS} target", " and ".join(sorted(targets)), "must be the same for all vCPUs", _ONE_GUEST)
    if not targets:
        content.architecture_note = f"architecture not known: no target in {CPUS}" if replies else ""
        return
    target = one_line(targets.pop())
    name = content.architecture = ARCHITECTURES.get(target, "")
    if not name:
        content.architecture_note = f"architecture not known: target {target} of {CPUS} is not modelled"
    else:
        doubt = {"x86-tdp": "; QEMU does not report whether KVM uses the TDP MMU"}.get(name, "")
        content.architecture_note = f"architecture {name}: target {target} of {CPUS}{doubt}"


def _dirty_rate(reply: Any) -> RateReading:
    rate, count = _number(reply, "dirty-rate", DIRTY_RATE), _number(reply, "calc-time", DIRTY_RATE)
    if rate is None or count is None:
        raise InputError(DIRTY_RATE, "measured", "must have dirty-rate and calc-time", _AS_IT_CAME)
    unit = reply.get("calc-time-unit", "second")
    if unit not in ("second", "millisecond"):
        raise InputError(f"{DIRTY_RATE} calc-time-unit", one_line(unit), "must be second or millisecond", _AS_IT_CAME)
    if not count:
        rule = "must be more than 0 (whole seconds are rounded down)"
        hint = 'query with "arguments": {"calc-time-unit": "millisecond"}'
        raise InputError(f"{DIRTY_RATE} calc-time", "0", rule, hint)
    seconds = count / (1000 if unit == "millisecond" else 1)
    mode = one_line(reply.get("mode", "page-sampling"))
    pages = _number(reply, "sample-pages", DIRTY_RATE) if mode == "page-sampling" else None
    source = f"dirty-rate and calc-time of {DIRTY_RATE}"
    return rate_reading(rate, seconds, mode, "" if pages is None else str(pages), source)


def _add_migration(content: LogContent, migration: Any) -> None:
    """Add the sample, the memory and the notes of a reply to query-migrate."""
    ram, status = _ram(migration), one_line(migration.get("status", ""))
    total, page = (_number(ram, key, MIGRATE, "ram.") for key in ("total", "page-size"))
    if total:
        content.total.append(LogValue(total, f"ram.total of {MIGRATE}"))
    if page is not None:
        content.note(f"QEMU's page size is {page} bytes (ram.page-size); the scenario keeps its guest.page_size")
    cache = migration.get("xbzrle-cache")
    conditions = (
        (DISK, migration.get("disk")), (DEVICE, migration.get("vfio") or status == "device"),
        (COMPRESSED, migration.get("compression") or (isinstance(cache, dict) and cache.get("pages"))),
        (POSTCOPY, status.startswith("postcopy")),
    )  # fmt: skip
    for note, holds in conditions:
        if holds:
            content.note(note)
    if not ram or status in _IDLE:
        return
    mbps, time = _counter(ram, "mbps"), _seconds(migration, "total-time")
    values = {
        "status": status, "total_bytes": total,
        "time_s": None if time is None else max(0.0, time - (_seconds(migration, "setup-time") or 0.0)),
        "sent_bytes": _counter(ram, "transferred"), "remaining_bytes": _counter(ram, "remaining"),
        "normal_pages": _counter(ram, "normal"), "zero_pages": _counter(ram, "duplicate"),
        "page_bytes": page_size(page), "bits_per_s": mbps * 1e6 if mbps else None,
        "dirty_pages_per_s": _counter(ram, "dirty-pages-rate"),
        "passes": _number(ram, "dirty-sync-count", MIGRATE, "ram."),
        "throttle": _number(migration, "cpu-throttle-percentage", MIGRATE),
        "expected_downtime_s": _seconds(migration, "expected-downtime"),
        "downtime_s": _seconds(migration, "downtime"),
    }  # fmt: skip
    sample = make_sample(content, values)
    if sample is not None:
        content.samples.append(sample)


def _seconds(row: dict[str, Any], key: str) -> float | None:
    milliseconds = _number(row, key, MIGRATE)
    return None if milliseconds is None else milliseconds / 1000


def _counter(row: dict[str, Any], key: str) -> float | None:
    """A number that may be below 0 or not finite by an error of QEMU: `make_sample` ignores it then."""
    value = row.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{MIGRATE} ram.{key}", one_line(value), "must be a number", _AS_IT_CAME)
    return float(value) if abs(value) < 2**80 else math.inf


def _ram(migration: Any) -> dict[str, Any]:
    ram = migration.get("ram", {})
    if not isinstance(ram, dict):
        raise InputError(f"{MIGRATE} ram", one_line(ram), "must be an object", _AS_IT_CAME)
    return ram


def _number(row: dict[str, Any], key: str, query: str, prefix: str = "") -> Any:
    """A number that is not negative; None if it is missing."""
    value = row.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**62:
        rule = "must be a whole number, at least 0 and below 2**62"
        raise InputError(f"{query} {prefix}{key}", one_line(value), rule, _AS_IT_CAME)
    return value
