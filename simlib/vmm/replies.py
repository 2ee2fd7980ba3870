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
from simlib.model.quantities import format_bandwidth, size_text
from simlib.vmm.dirtying import DirtyRate
from simlib.vmm.guest import RunningGuest
from simlib.vmm.qemu_rules import PAGE
from simlib.vmm.qmp import one_line, refusal
from simlib.vmm.settings import NAMES, Settings

MIGRATE, DIRTY_RATE, CPUS, PARAMETERS, CAPABILITIES, MEMORY = QUERIES = (
    "query-migrate", "query-dirty-rate", "query-cpus-fast", "query-migrate-parameters", "query-migrate-capabilities",
    "query-memory-size-summary",
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

_MIB = 2**20
_EXACT = 0.02
"""Relative standard error of a rate if every dirtied page is counted: above 0, as no guest's rate is constant."""

_SAMPLE_PAGES = 512
"""Number of pages in each GiB that calc-dirty-rate samples by default: migration/dirtyrate.h."""

_DIRTY_STATUS = {"unstarted", "measuring", "measured"}
_SENDING = {"active", "pre-switchover", "device", "completed", "postcopy-active"}
_MIGRATION_STATUS = _SENDING | {
    "none", "setup", "cancelling", "cancelled", "postcopy-paused", "postcopy-recover-setup", "postcopy-recover",
    "failed", "wait-unplug",
}  # fmt: skip
_BY_KEYS = ((PARAMETERS, {"downtime-limit", "max-bandwidth"}), (MEMORY, {"base-memory"}))
_VALUE = re.compile(r'\{\s*"|\[\s*\{')
_AS_IT_CAME = "paste the reply as QEMU printed it"
_ONE_GUEST = "paste the replies of one guest only"


def replies_in(text: str, where: str, notes: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield each known reply in a string, with its query; QEMU's error replies become notes.

    Raises `InputError` if a reply is cut off, or is not JSON.
    """
    for value in _values(text, where):
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


def _values(text: str, where: str) -> Iterator[Any]:
    decoder, end = json.JSONDecoder(strict=False), 0
    for opening in re.finditer(r"[{\[]", text):
        start = opening.start()
        if start < end:
            continue
        try:
            value, end = decoder.raw_decode(text, start)
        except (RecursionError, ValueError) as error:
            deep = isinstance(error, RecursionError)
            if not deep and not _VALUE.match(text, start):
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


def guest_of(replies: Sequence[tuple[str, Any]], notes: Sequence[str]) -> RunningGuest:
    """Return the guest that replies describe; its notes name the source of each number.

    Raises `InputError` if a value is impossible or contradicts another.

    - `replies`: query and reply, in the order in which they came.
    - `notes`: notes to append to the guest's notes.
    """
    by_query = {query: [reply for name, reply in replies if name == query] for query in QUERIES}
    migration = by_query[MIGRATE][-1] if by_query[MIGRATE] else None
    sources: list[str] = []
    measured = [reply for reply in by_query[DIRTY_RATE] if reply["status"] == "measured"]
    vcpus, architecture = _cpus(by_query[CPUS], measured, sources)
    memory, page_size = _memory(by_query[MIGRATE], by_query[MEMORY], sources)
    link = _link(migration, sources)
    rates: dict[float, DirtyRate] = {}
    for reply in measured:  # the last reply for each time; the newest reply at the end
        rate = _dirty_rate(reply, sources)
        rates.pop(rate.seconds, None)
        rates[rate.seconds] = rate
    dirty = tuple(rates.values())
    if not measured:
        reasons = {"measuring": "is still running: query again when it has ended", "unstarted": "was not started"}
        sources += [f"{DIRTY_RATE}: the measurement (calc-dirty-rate) {reasons[reply['status']]}"
                    for reply in by_query[DIRTY_RATE][-1:]]  # fmt: skip
        dirty = _rate_of_migration(migration, page_size, sources)
        if not dirty:
            sources.append(f"dirty rate not known: neither {DIRTY_RATE} nor {MIGRATE} has one")
    settings = _settings(by_query[PARAMETERS], by_query[CAPABILITIES], sources)
    return RunningGuest(
        vcpus, memory, link, dirty, settings=settings, architecture=architecture, notes=(*sources, *notes)
    )


def _settings(parameters: Sequence[Any], capabilities: Sequence[Any], notes: list[str]) -> Settings:
    """Modelled settings of the migration, each with its last value."""
    values = {name: value for reply in parameters for name, value in reply.items() if isinstance(value, int)}
    values |= {str(row["capability"]): bool(row["state"]) for reply in capabilities for row in reply}
    notes += [f"current settings: {query}" for query, given in ((PARAMETERS, parameters), (CAPABILITIES, capabilities))
              if given]  # fmt: skip
    known = {name: value for name, value in values.items() if name in NAMES}
    if known.get("max-bandwidth", 0) >= 2**62:  # libvirt's value for no limit
        known["max-bandwidth"] = 0
    if known.get("max-bandwidth") == Settings().max_bandwidth:
        del known["max-bandwidth"]
        notes.append("max-bandwidth is QEMU's default, which libvirt lifts when it migrates: assumed to be unlimited "
                     "(if the default applies, give --current max-bandwidth=134217728)")  # fmt: skip
    return Settings.of({"max-bandwidth": 0} | known)


def _cpus(replies: Sequence[Any], measured: Sequence[Any], notes: list[str]) -> tuple[int, str]:
    """Number of vCPUs and architecture; `measured`: replies to query-dirty-rate, which may also count vCPUs."""
    counted = [reply.get("vcpu-dirty-rate") for reply in measured[-1:]]
    counts = {len(rows) for rows in (*replies, *counted) if isinstance(rows, list) and rows}
    if len(counts) > 1:
        given = " and ".join(map(str, sorted(counts)))
        raise InputError("vCPUs", given, "the replies contradict each other", _ONE_GUEST)
    if not counts:
        notes.append(f"vCPUs and architecture not known: no reply to {CPUS}")
        return 0, ""
    vcpus = counts.pop()
    plural = "vCPU" if vcpus == 1 else "vCPUs"
    notes.append(f"{vcpus} {plural}: entries of {CPUS if replies else f'vcpu-dirty-rate of {DIRTY_RATE}'}")
    targets = {str(row["target"]) for reply in replies for row in reply if row.get("target")}
    if len(targets) > 1:
        raise InputError(f"{CPUS} target", " and ".join(sorted(targets)), "must be the same for all vCPUs", _ONE_GUEST)
    if not targets:
        notes.append(f"architecture not known: no target in {CPUS}")
        return vcpus, ""
    target = one_line(targets.pop())
    name = ARCHITECTURES.get(target, "")
    if not name:
        notes.append(f"architecture not known: target {target} of {CPUS} is not modelled")
    else:
        doubt = {"x86-tdp": "; QEMU does not report whether KVM uses the TDP MMU"}.get(name, "")
        notes.append(f"architecture {name}: target {target} of {CPUS}{doubt}")
    return vcpus, name


def _dirty_rate(reply: Any, notes: list[str]) -> DirtyRate:
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
    shown = f"{rate:g}" if rate else "less than 1"
    note = f"{shown} MiB/s dirtied over {seconds:g} s: dirty-rate and calc-time of {DIRTY_RATE}, mode {mode}"
    method = {
        "page-sampling": f": changed contents among {one_line(reply.get('sample-pages', 'some'))} pages of each GiB",
        "dirty-bitmap": ": by KVM's dirty log",
        "dirty-ring": ": migrations of this guest also use the ring (workload.clear_when)",
    }  # fmt: skip
    notes.append(note + method.get(mode, ""))
    sampled = _number(reply, "sample-pages", DIRTY_RATE) if mode == "page-sampling" else 0
    changed = rate * seconds / 1024 * (sampled or _SAMPLE_PAGES)  # of the pages that were compared
    error = max(_EXACT, 1 / math.sqrt(max(changed, 1.0))) if mode == "page-sampling" else _EXACT
    return DirtyRate(rate * _MIB * seconds / PAGE, seconds, error)


def _memory(replies: Sequence[Any], summaries: Sequence[Any], notes: list[str]) -> tuple[int, int]:
    """Memory and page size, bytes. All replies to query-migrate must agree; without one, `summaries` is used."""
    rams = [_ram(reply) for reply in replies]
    sizes = [(_number(ram, "total", MIGRATE, "ram."), _number(ram, "page-size", MIGRATE, "ram.")) for ram in rams]
    totals = {(total, page) for total, page in sizes if total}
    if len(totals) > 1:
        given = " and ".join(str(total) for total, _ in sorted(totals, key=str))
        raise InputError(f"{MIGRATE} ram.total", given, "the replies contradict each other", _ONE_GUEST)
    for reply in [] if totals else summaries[-1:]:
        memory = sum(_number(reply, key, MEMORY) or 0 for key in ("base-memory", "plugged-memory"))
        notes.append(f"memory {size_text(memory)}: base-memory and plugged-memory of {MEMORY}")
        return memory, 0
    if not totals:
        notes.append(f"memory not known: {f'{MIGRATE} has no ram' if replies else f'no reply to {MIGRATE}'}")
        return 0, 0
    total, page_size = totals.pop()
    notes.append(f"memory {size_text(total)}: ram.total of {MIGRATE}, including display and firmware")
    if page_size is not None:
        notes.append(f"QEMU's page size is {page_size} bytes (ram.page-size); the scenario keeps its guest.page_size")
    return total, page_size or 0


def _link(migration: Any, notes: list[str]) -> int:
    """Throughput that a migration reached, bit/s."""
    if migration is None:
        notes.append(f"link not known: no reply to {MIGRATE} about a migration")
        return 0
    status = one_line(migration.get("status", "none"))
    mbps = _number(_ram(migration), "mbps", MIGRATE, "ram.", whole=False)
    bits = round(mbps * 1e6) if mbps else 0
    if status not in _SENDING or bits < 1:
        why = f"status {status}" if status not in _SENDING else "ram.mbps is 0 or missing"
        notes.append(f"link not known: nothing is being migrated, or not for long enough ({why})")
        return 0
    when = "the whole migration" if status == "completed" else "the last moments"
    notes.append(f"link {format_bandwidth(bits)}: ram.mbps of {MIGRATE}, for {when}; the link may be faster")
    return bits


def _rate_of_migration(migration: Any, page_size: int, notes: list[str]) -> tuple[DirtyRate, ...]:
    """Dirty rate during a migration, over the mean time of a pass; QEMU does not report this time."""
    if migration is None or str(migration.get("status")) not in _SENDING - {"completed", "postcopy-active"}:
        return ()
    ram = _ram(migration)
    rate, syncs = (_number(ram, key, MIGRATE, "ram.") for key in ("dirty-pages-rate", "dirty-sync-count"))
    total = _number(migration, "total-time", MIGRATE)
    if not rate or not syncs or not total or not page_size:
        notes.append(f"ram.dirty-pages-rate of {MIGRATE} is 0 or missing: no pass has ended yet, or nothing is written")
        return ()
    setup = _number(migration, "setup-time", MIGRATE) or 0
    seconds = max(1.0, (total - setup) / 1000 / syncs)
    throttle = _number(migration, "cpu-throttle-percentage", MIGRATE)
    slowed = f", throttled by {throttle:g} %" if throttle else ""
    notes.append(
        f"{rate * page_size / _MIB:.4g} MiB/s dirtied over {seconds:.3g} s: ram.dirty-pages-rate of {MIGRATE}; the "
        f"time is assumed to be the mean time of a pass, total-time over dirty-sync-count. The migration slowed the "
        f"guest{slowed}: calc-dirty-rate before the migration is more accurate"
    )
    return (DirtyRate(rate * page_size * seconds / PAGE, seconds),)


def _ram(migration: Any) -> dict[str, Any]:
    ram = migration.get("ram", {})
    if not isinstance(ram, dict):
        raise InputError(f"{MIGRATE} ram", one_line(ram), "must be an object", _AS_IT_CAME)
    return ram


def _number(row: dict[str, Any], key: str, query: str, prefix: str = "", *, whole: bool = True) -> Any:
    """A number that is not negative; None if it is missing."""
    value = row.get(key)
    if value is None:
        return None
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value < 2**62:
        rule = f"must be a {'whole ' if whole else ''}number, at least 0 and below 2**62"
        raise InputError(f"{query} {prefix}{key}", one_line(value), rule, _AS_IT_CAME)
    return value
