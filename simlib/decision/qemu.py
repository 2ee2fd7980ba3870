# SPDX-License-Identifier: BSD-3-Clause
"""The numbers of a running guest, from what QEMU says of it.

Three queries of QEMU's machine protocol (QMP) are understood, pasted as text or asked over its socket:
``query-migrate`` (memory, throughput, what the guest dirties meanwhile), ``query-dirty-rate`` (what ``calc-dirty-rate``
measured) and ``query-cpus-fast`` (vCPUs, architecture). The fields are those of QEMU's qapi/migration.json and
qapi/machine.json.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq

from simlib.errors import InputError
from simlib.host.qmp import TIMEOUT, Monitor, one_line, refusal
from simlib.model.pagetable import WORD_PAGES, PageTable
from simlib.model.quantities import PS_PER_S, format_bandwidth
from simlib.model.scenario import Scenario
from simlib.sampling.course import touches_of

MIGRATE, DIRTY_RATE, CPUS = QUERIES = ("query-migrate", "query-dirty-rate", "query-cpus-fast")
"""What is asked over a socket; none of them changes anything."""

ARCHITECTURES = {
    "x86_64": "x86-tdp", "i386": "x86-tdp", "aarch64": "arm64", "riscv64": "riscv", "loongarch64": "loongarch",
    "ppc64": "ppc-radix", "s390x": "s390",
}  # fmt: skip
"""Names of `simlib.model.architectures`, by QEMU's target."""

_LIMIT = 2**22
_MIB = 2**20
_DIRTY_STATUS = {"unstarted", "measuring", "measured"}
_SENDING = {"active", "pre-switchover", "device", "completed", "postcopy-active"}
_MIGRATION_STATUS = _SENDING | {
    "none", "setup", "cancelling", "cancelled", "postcopy-paused", "postcopy-recover-setup", "postcopy-recover",
    "failed", "wait-unplug",
}  # fmt: skip
_HUMAN = re.compile(
    r"^\s*(?:Migration status: |Status: |total ram: |throughput: |Throughput \(Mbps\): |Dirty rate: |\*? ?CPU #\d+:).*",
    re.MULTILINE,
)
_RETURN, _VALUE = re.compile(r'\{\s*"return"'), re.compile(r'\{\s*"[a-z]|\[\s*\{')
_ASK = (
    'run virsh qemu-monitor-command DOMAIN \'{"execute": "query-migrate"}\', the same with query-dirty-rate and '
    "query-cpus-fast, and paste what they print"
)
_AS_IT_CAME = "paste the reply as QEMU gave it"


@dataclass(frozen=True)
class RunningGuest:
    """What QEMU says of a guest; None where it said nothing, so that a scenario's own value stands.

    Attributes
    ----------
    memory_bytes : int or None
        All memory that a migration sends: also that of the display and of firmware.
    page_size : int or None
        Bytes of a page as QEMU counts them, which may be smaller than those of the host.
    link_bits : int or None
        Bits a second that a migration reached; None if nothing is migrated.
    dirty_bytes_per_s : float or None
        Distinct pages written in `dirty_seconds`, in bytes, over that time.
    dirty_seconds : float or None
        The time over which they were counted.
    architecture : str or None
        Its name in `simlib.model.architectures`.
    notes : tuple of str
        Where each number comes from, and what was not there.
    """

    vcpus: int | None = None
    memory_bytes: int | None = None
    page_size: int | None = None
    link_bits: int | None = None
    dirty_bytes_per_s: float | None = None
    dirty_seconds: float | None = None
    architecture: str | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """A rate of distinct pages says nothing without its time."""
        rate, seconds = self.dirty_bytes_per_s, self.dirty_seconds
        if (rate is None) != (seconds is None):
            raise InputError("dirty_seconds", seconds, "must be given if dirty_bytes_per_s is, and only then")
        if rate is not None and not 0 <= rate < math.inf:
            raise InputError("dirty_bytes_per_s", rate, "must be finite and at least 0")
        if seconds is not None and not 0 < seconds < math.inf:
            raise InputError("dirty_seconds", seconds, "must be finite and above 0")


def read_guest(source: str | Path) -> RunningGuest:
    """Read a guest's numbers from pasted replies, or ask its QEMU.

    Raises `InputError` if it cannot be read, does not answer, or says nothing that is understood or possible.

    Parameters
    ----------
    source : str or Path
        A text file with replies (see `parse_guest`), ``"-"`` for standard input, or a unix domain socket of QMP. Over
        the socket only `QUERIES` are sent, and an answer is waited for `TIMEOUT` seconds.

    Examples
    --------
    >>> read_guest("no-such-file")
    Traceback (most recent call last):
    simlib.errors.InputError: no-such-file = missing: must be a text file or a QMP socket; check the path
    """
    where = str(source)
    try:
        if where == "-":
            return parse_guest(_text(sys.stdin.buffer.read(_LIMIT + 1), "standard input"), "standard input")
        if stat.S_ISSOCK(os.stat(where).st_mode):
            return _ask(where)
        with open(where, "rb") as file:
            return parse_guest(_text(file.read(_LIMIT + 1), where), where)
    except FileNotFoundError:
        raise InputError(where, "missing", "must be a text file or a QMP socket", "check the path") from None
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(where, reason, "must be a text file or a QMP socket that can be read") from None


def parse_guest(text: str, where: str = "text") -> RunningGuest:
    """Read a guest's numbers from QMP replies that were pasted.

    Raises `InputError` if no reply is understood, one is cut off, or a value is impossible or contradicts another.

    Parameters
    ----------
    text : str
        Replies in any order, each a JSON value with or without its ``{"return": ...}``. Prompts, commands, events and
        replies to other queries may stand between them. Of several replies to one query the last counts.
    where : str
        How errors call the text.

    Examples
    --------
    >>> guest = parse_guest('''
    ... (QEMU) query-cpus-fast
    ... {"return": [{"cpu-index": 0, "target": "x86_64"}, {"cpu-index": 1, "target": "x86_64"}]}
    ... (QEMU) query-dirty-rate
    ... {"return": {"status": "measured", "dirty-rate": 100, "mode": "dirty-bitmap", "calc-time": 2,
    ...             "start-time": 5, "sample-pages": 0}}
    ... ''')
    >>> guest.vcpus, guest.architecture, guest.dirty_bytes_per_s, guest.dirty_seconds, guest.link_bits
    (2, 'x86-tdp', 104857600.0, 2.0, None)
    >>> for note in guest.notes: print(note)
    2 vCPUs: entries of query-cpus-fast
    architecture x86-tdp: target x86_64 of query-cpus-fast; whether KVM uses another MMU on this host is not said there
    memory not known: no reply of query-migrate
    link not known: no reply of query-migrate
    100 MiB/s dirtied over 2 s: dirty-rate and calc-time of query-dirty-rate, mode dirty-bitmap: writes faulted
    """
    notes: list[str] = []
    replies = list(_replies(text, where, notes))
    human = _HUMAN.search(text)
    if not replies:
        if human is not None:
            raise InputError(
                where, one_line(human[0]),
                "is the human monitor's text, which rounds, and differs between versions", _ASK,
            )  # fmt: skip
        first = one_line(text)
        rule = f"has no reply to {', '.join(QUERIES[:-1])} or {QUERIES[-1]}"
        raise InputError(where, first or "empty", "; ".join([rule, *notes]), _ASK)
    if human is not None:
        notes.append(f"not read: the human monitor's text ({one_line(human[0])!r}); only JSON is")
    return _guest(replies, notes)


def apply(guest: RunningGuest, scenario: Scenario) -> Scenario:
    """The scenario of a migration with a running guest's numbers, as far as they are known.

    vCPUs, memory (rounded up to whole blocks for each vCPU) and link are taken over. The interval between two accesses
    becomes such that this guest dirties as many distinct pages, undisturbed and in the same time, as were counted; how
    it spreads its accesses remains the scenario's. The architecture does, too. A chunk becomes no larger than the
    memory.

    Raises `InputError` if the scenario is no migration or has variants, or its guest cannot dirty so much, or never so
    little.

    Examples
    --------
    >>> scenario = Scenario.parse({"guest": {"memory": "128M"}, "workload": {"kind": "migration", "access": "uniform"}})
    >>> guest = RunningGuest(vcpus=3, memory_bytes=1_000_000_000, dirty_bytes_per_s=100e6, dirty_seconds=1.0)
    >>> print(apply(guest, scenario).to_toml())
    [guest]
    vcpus = 3
    memory = "954M"
    <BLANKLINE>
    [workload]
    kind = "migration"
    access = "uniform"
    access_interval = "116.630304us"
    """
    workload = scenario.workload
    if workload.kind != "migration":
        raise InputError(
            "workload.kind", workload.kind, "a running guest's numbers go into a migration",
            'write kind = "migration" under [workload]',
        )  # fmt: skip
    if scenario.variants:
        raise InputError(
            "variants", ", ".join(scenario.variants), "a running guest is one scenario", "name one of them"
        )
    sized = _sized(guest, scenario)
    if guest.dirty_bytes_per_s is None or guest.dirty_seconds is None:
        return sized
    interval = _interval(sized, guest.dirty_bytes_per_s, guest.dirty_seconds)
    return replace(sized, workload=replace(sized.workload, access_interval=interval))


def distinct_pages(scenario: Scenario, accesses: float) -> float:
    """Pages that a migration's guest has written once or more after so many accesses of all vCPUs; their expectation.

    Examples
    --------
    >>> s = Scenario.parse({"guest": {"memory": "4M"}, "workload": {"kind": "migration", "access": "uniform"}})
    >>> round(distinct_pages(s, 1024)), distinct_pages(s.changed({"workload": {"access": "sequential"}}), 1000)
    (647, 1000.0)
    """
    guest, workload = scenario.guest, scenario.workload
    pages = guest.pages
    if workload.access == "sequential":
        # Each vCPU walks an arc from a random page: of all the memory, or of a part that is its own.
        round_share = min(1.0, accesses / pages / (guest.vcpus if workload.shared else 1))
        touched = 1 - (1 - round_share) ** (guest.vcpus if workload.shared else 1)
    else:
        touches = touches_of(scenario)
        touched = -float(touches.pages @ np.expm1(-accesses * touches.rate))
    return pages * workload.write_percent / 100 * touched


def _sized(guest: RunningGuest, scenario: Scenario) -> Scenario:
    """vCPUs, memory and link."""
    old, workload = scenario.guest, scenario.workload
    vcpus = old.vcpus if guest.vcpus is None else guest.vcpus
    new = replace(old, vcpus=vcpus)
    given = old.memory if guest.memory_bytes is None else guest.memory_bytes
    if given is not None:
        word = WORD_PAGES * old.page_size
        unit = word if old.backing == "4k" else PageTable(old.page_size).block_bytes()
        whole = math.lcm(unit * vcpus, max(1, workload.clear_threads) * word)
        new = replace(new, memory=-(-given // whole) * whole, memory_per_vcpu=None)
    chunk = workload.clear_chunk
    if chunk is not None:
        chunk = min(chunk, new.pages * new.page_size)
    link = workload.link if guest.link_bits is None else guest.link_bits
    return replace(scenario, guest=new, workload=replace(workload, clear_chunk=chunk, link=link))


def _interval(scenario: Scenario, rate: float, seconds: float) -> int:
    """Picoseconds between two accesses of a vCPU with which so much is dirtied in this time."""
    guest, workload = scenario.guest, scenario.workload
    said = f"{_shown(rate)}/s over {seconds:g} s"
    wanted = rate * seconds / guest.page_size
    if wanted <= 0:
        raise InputError(
            "dirty_bytes_per_s", said, "the guest of a migration writes now and then",
            "measure while it works, or leave the reply of query-dirty-rate out: the scenario's access_interval stands",
        )  # fmt: skip
    most = guest.pages * workload.write_percent / 100
    shorter = "measure over a shorter time (calc-dirty-rate with a smaller calc-time)"
    if wanted > most - 0.5:
        raise InputError(
            "dirty_bytes_per_s", said,
            f"is {_shown(wanted * guest.page_size)} of distinct pages, and the guest must write more than that: it "
            f"writes {workload.write_percent} % of {_shown(guest.pages * guest.page_size)}",
            f"{shorter}, or set guest.memory and workload.write_percent as they are",
            f"{shorter}, or set --memory and the scenario's write_percent as they are",
        )  # fmt: skip
    high = wanted
    while distinct_pages(scenario, high) <= wanted:
        high *= 2
    accesses = float(brentq(lambda n: distinct_pages(scenario, n) - wanted, 0.0, high, rtol=1e-12))
    interval = round(guest.vcpus * seconds * PS_PER_S / accesses)
    if not interval:
        raise InputError(
            "dirty_bytes_per_s", said, "a vCPU would have to touch pages faster than one a picosecond",
            f"{shorter}, or take a lower workload.zipf_exponent",
        )  # fmt: skip
    return interval


# What the replies say.


def _guest(replies: Sequence[tuple[str, Any]], notes: Sequence[str] = ()) -> RunningGuest:
    """The numbers in replies, each with its query."""
    by_query = {query: [reply for name, reply in replies if name == query] for query in QUERIES}
    told: list[str] = []
    of_rate: list[str] = []
    rate = _dirty_rate(by_query[DIRTY_RATE], of_rate)
    vcpus, architecture = _cpus(by_query[CPUS], rate.vcpus, told)
    memory = _memory(by_query[MIGRATE], told)
    migration = by_query[MIGRATE][-1] if by_query[MIGRATE] else None
    link = _link(migration, told)
    if rate.bytes_per_s is None:
        rate = _rate_of_migration(migration, memory.page_size, of_rate)
        if rate.bytes_per_s is None:
            of_rate.append("rate of dirtying not known: neither query-dirty-rate nor query-migrate has one")
    return RunningGuest(
        vcpus=vcpus, memory_bytes=memory.total, page_size=memory.page_size, link_bits=link,
        dirty_bytes_per_s=rate.bytes_per_s, dirty_seconds=rate.seconds, architecture=architecture,
        notes=(*told, *of_rate, *notes),
    )  # fmt: skip


class _Rate(NamedTuple):
    """Distinct bytes a second, and over which time; vCPUs that were measured each by itself."""

    bytes_per_s: float | None = None
    seconds: float | None = None
    vcpus: int | None = None


class _Memory(NamedTuple):
    """Bytes in all, and of a page."""

    total: int | None = None
    page_size: int | None = None


def _cpus(replies: Sequence[Any], measured: int | None, notes: list[str]) -> tuple[int | None, str | None]:
    """vCPUs, and the architecture."""
    counts = {len(reply) for reply in replies} | ({measured} if measured else set())
    if 0 in counts:
        raise InputError(CPUS, "[]", "a guest has at least 1 vCPU", _AS_IT_CAME)
    if len(counts) > 1:
        given = " and ".join(map(str, sorted(counts)))
        raise InputError("vCPUs", given, "the replies contradict each other", "paste those of one guest")
    if not counts:
        notes.append(f"vCPUs and architecture not known: no reply of {CPUS}")
        return None, None
    vcpus = counts.pop()
    numbers = [row.get("cpu-index") for reply in replies[-1:] for row in reply]
    if len(set(map(repr, numbers))) < len(numbers):
        raise InputError(f"{CPUS} cpu-index", str(numbers), "each vCPU must have its own", _AS_IT_CAME)
    plural = "vCPU" if vcpus == 1 else "vCPUs"
    notes.append(f"{vcpus} {plural}: entries of {CPUS if replies else f'vcpu-dirty-rate of {DIRTY_RATE}'}")
    targets = {str(row.get("target", "")) for reply in replies for row in reply} - {""}
    if len(targets) > 1:
        raise InputError(f"{CPUS} target", " and ".join(sorted(targets)), "must be the same for all vCPUs", _AS_IT_CAME)
    if not targets:
        notes.append(f"architecture not known: no target in {CPUS}")
        return vcpus, None
    target = one_line(targets.pop())
    name = ARCHITECTURES.get(target)
    if name is None:
        notes.append(f"architecture not known: target {target} of {CPUS} is none that is modelled")
    else:
        doubt = {"x86-tdp": "; whether KVM uses another MMU on this host is not said there"}.get(name, "")
        notes.append(f"architecture {name}: target {target} of {CPUS}{doubt}")
    return vcpus, name


def _dirty_rate(replies: Sequence[Any], notes: list[str]) -> _Rate:
    """What the last finished measurement found."""
    done = [reply for reply in replies if reply.get("status") == "measured"]
    if not done:
        for reply in replies[-1:]:
            why = {"measuring": "still runs: ask again when it is over", "unstarted": "was not started"}
            said = why.get(str(reply.get("status")), "has no known status")
            notes.append(f"{DIRTY_RATE}: the measurement (calc-dirty-rate) {said}")
        return _Rate()
    reply = done[-1]
    rate, count = _number(reply, "dirty-rate", DIRTY_RATE), _number(reply, "calc-time", DIRTY_RATE)
    if rate is None or count is None:
        raise InputError(DIRTY_RATE, "measured", "must have dirty-rate and calc-time", _AS_IT_CAME)
    unit = reply.get("calc-time-unit", "second")
    if unit not in ("second", "millisecond"):
        raise InputError(f"{DIRTY_RATE} calc-time-unit", one_line(unit), "must be second or millisecond", _AS_IT_CAME)
    if not count:
        raise InputError(
            f"{DIRTY_RATE} calc-time", "0", "must be more than 0 (whole seconds are rounded down)",
            'ask with "arguments": {"calc-time-unit": "millisecond"}',
        )  # fmt: skip
    seconds = count / (1000 if unit == "millisecond" else 1)
    mode = one_line(reply.get("mode", "page-sampling"))
    each = reply.get("vcpu-dirty-rate")
    shown = f"{rate:g}" if rate else "less than 1"
    said = f"{shown} MiB/s dirtied over {seconds:g} s: dirty-rate and calc-time of {DIRTY_RATE}, mode {mode}"
    about = {
        "page-sampling": f": changed contents among {one_line(reply.get('sample-pages', 'some'))} pages of each GiB",
        "dirty-bitmap": ": writes faulted",
        "dirty-ring": ": migrations of this guest use the ring, too (workload.clear_when)",
    }  # fmt: skip
    notes.append(said + about.get(mode, ""))
    return _Rate(float(rate * _MIB), seconds, len(each) if isinstance(each, list) and each else None)


def _memory(replies: Sequence[Any], notes: list[str]) -> _Memory:
    """Memory and its pages; all replies must agree."""
    found = set()
    for reply in replies:
        ram = _ram(reply)
        total, page = _number(ram, "total", MIGRATE, "ram."), _number(ram, "page-size", MIGRATE, "ram.")
        left = _number(ram, "remaining", MIGRATE, "ram.")
        if total is not None and not total:
            raise InputError(f"{MIGRATE} ram.total", "0", "a guest has memory", _AS_IT_CAME)
        if page is not None and (not page or int(page) & (int(page) - 1)):
            raise InputError(f"{MIGRATE} ram.page-size", int(page), "must be a power of two", _AS_IT_CAME)
        if total is not None and left is not None and left > total:
            raise InputError(
                f"{MIGRATE} ram.remaining", int(left), f"must not be more than ram.total, {int(total)}", _AS_IT_CAME
            )
        if total is not None:
            found.add((int(total), None if page is None else int(page)))
    if len(found) > 1:
        given = " and ".join(f"{total}" for total, _ in sorted(found, key=str))
        raise InputError(f"{MIGRATE} ram.total", given, "the replies contradict each other", "paste those of one guest")
    if not found:
        notes.append(f"memory not known: {f'{MIGRATE} has no ram' if replies else f'no reply of {MIGRATE}'}")
        return _Memory()
    total_bytes, page_size = found.pop()
    notes.append(
        f"memory {_shown(total_bytes)}: ram.total of {MIGRATE}, all that is sent, the display's and firmware's too"
    )
    if page_size is not None:
        notes.append(f"QEMU counts pages of {page_size} bytes: ram.page-size; the scenario's guest.page_size stands")
    return _Memory(total_bytes, page_size)


def _link(migration: Any, notes: list[str]) -> int | None:
    """What a migration reached."""
    if migration is None:
        notes.append(f"link not known: no reply of {MIGRATE}")
        return None
    status = one_line(migration.get("status", "none"))
    mbps = _number(_ram(migration), "mbps", MIGRATE, "ram.", whole=False)
    bits = round(mbps * 1e6) if mbps else 0
    if status not in _SENDING or bits < 1:
        why = f"status {status}" if status not in _SENDING else "ram.mbps is 0 or missing"
        notes.append(f"link not known: nothing is being migrated, or not for long enough ({why})")
        return None
    when = "all of the migration" if status == "completed" else "the last moments"
    notes.append(f"link {format_bandwidth(bits)}: ram.mbps of {MIGRATE}, reached in {when}; the line may be faster")
    return bits


def _rate_of_migration(migration: Any, page_size: int | None, notes: list[str]) -> _Rate:
    """What the guest dirties while it is migrated, over the time of a pass, which QEMU does not say."""
    if migration is None or str(migration.get("status")) not in _SENDING - {"completed", "postcopy-active"}:
        return _Rate()
    ram = _ram(migration)
    rate, syncs = _number(ram, "dirty-pages-rate", MIGRATE, "ram."), _number(ram, "dirty-sync-count", MIGRATE, "ram.")
    total = _number(migration, "total-time", MIGRATE)
    if not rate or not syncs or not total or page_size is None:
        notes.append(f"ram.dirty-pages-rate of {MIGRATE} is 0 or missing: no pass is over yet, or nothing is written")
        return _Rate()
    setup = _number(migration, "setup-time", MIGRATE) or 0.0
    seconds = max(1.0, (total - setup) / 1000 / syncs)
    throttle = _number(migration, "cpu-throttle-percentage", MIGRATE)
    slowed = f", throttled by {throttle:g} %" if throttle else ""
    notes.append(
        f"{rate * page_size / _MIB:.4g} MiB/s dirtied over {seconds:.3g} s: ram.dirty-pages-rate of {MIGRATE}; the "
        f"time is supposed to be that of a mean pass, total-time over dirty-sync-count, and the guest was slowed by "
        f"the migration{slowed}: {DIRTY_RATE} before it is better"
    )
    return _Rate(rate * page_size, seconds)


def _ram(migration: Any) -> dict[str, Any]:
    ram = migration.get("ram", {})
    if not isinstance(ram, dict):
        raise InputError(f"{MIGRATE} ram", one_line(ram), "must be an object", _AS_IT_CAME)
    return ram


def _number(row: dict[str, Any], key: str, query: str, prefix: str = "", *, whole: bool = True) -> float | None:
    """A number that is not negative; None if it is not there."""
    value = row.get(key)
    if value is None:
        return None
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value < 2**62:
        rule = f"must be a {'whole ' if whole else ''}number, at least 0 and below 2**62"
        raise InputError(f"{query} {prefix}{key}", one_line(value), rule, _AS_IT_CAME)
    return value


def _shown(size: float) -> str:
    """Bytes for people.

    Examples
    --------
    >>> _shown(3 * 2**30), _shown(100e6), _shown(0)
    ('3 GiB', '95.37 MiB', '0 MiB')
    """
    return f"{size / 2**30:.4g} GiB" if size >= 2**30 else f"{size / _MIB:.4g} MiB"


# Replies in a text.


def _replies(text: str, where: str, notes: list[str]) -> Iterator[tuple[str, Any]]:
    """Each reply that is understood, with its query; errors that QEMU gave become notes."""
    asked = ""
    for value, before in _values(text, where):
        named = [name for name in re.findall(r"[a-z]+(?:-[a-z]+)+", before) if name.startswith(("query-", "calc-"))]
        asked = named[-1] if named else asked
        rows = value if isinstance(value, list) and not _is_cpus(value) else [value]
        for row in rows or [value]:
            if isinstance(row, dict) and "execute" in row:
                asked = str(row["execute"])
            elif isinstance(row, dict) and isinstance(row.get("error"), dict) and "class" in row["error"]:
                notes.append(refusal(asked, row["error"]))
                asked = ""
            elif not isinstance(row, dict) or not {"event", "QMP"} & row.keys():
                wrapped = isinstance(row, dict) and "return" in row
                reply = row["return"] if wrapped else row
                query = _query_of(reply, asked, wrapped)
                if query:
                    yield query, reply
                asked = ""


def _is_cpus(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(r, dict) and "cpu-index" in r for r in value)


def _query_of(reply: Any, asked: str, wrapped: bool) -> str:
    """The query that a reply belongs to, by its form; if it has none, the one that was asked."""
    if _is_cpus(reply) and not any("limit-rate" in row for row in reply):
        return CPUS
    if reply == [] and (asked == CPUS or (wrapped and not asked)):
        return CPUS
    if not isinstance(reply, dict):
        return ""
    status = reply.get("status")
    if isinstance(status, str) and status in _DIRTY_STATUS:
        return DIRTY_RATE
    migrating = isinstance(status, str) and status in _MIGRATION_STATUS and "running" not in reply
    if (
        migrating
        or (isinstance(reply.get("ram"), dict) and "total" in reply["ram"])
        or (not reply and asked == MIGRATE)
    ):
        return MIGRATE
    return ""


def _values(text: str, where: str) -> Iterator[tuple[Any, str]]:
    """Objects and lists of JSON in a text, each with what stands before it."""
    decoder = json.JSONDecoder(strict=False)
    start = end = 0
    for opening in re.finditer(r"[{\[]", text):
        start = opening.start()
        if start < end:
            continue
        try:
            value, stop = decoder.raw_decode(text, start)
        except RecursionError:
            raise InputError(_line(text, start, where), "…", "is nested too deep for a reply", _AS_IT_CAME) from None
        except json.JSONDecodeError as error:
            shown = text[start : start + 40].split("\n", maxsplit=1)[0]
            cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
            if _RETURN.match(text, start) or (cut and _VALUE.match(text, start)):
                rule = "is cut off" if cut else f"is no JSON ({error.msg}, {_line(text, error.pos, where)})"
                raise InputError(_line(text, start, where), shown, rule, "paste all of the reply") from None
            continue
        except ValueError:  # a number of thousands of digits
            raise InputError(_line(text, start, where), "…", "has a number that is too long", _AS_IT_CAME) from None
        yield value, text[end:start]
        end = stop


def _line(text: str, position: int, where: str) -> str:
    number = text.count("\n", 0, position) + 1
    return f"{where}, line {number}"


def _text(data: bytes, where: str) -> str:
    if len(data) > _LIMIT:
        raise InputError(where, f"more than {_LIMIT} bytes", "is too long for replies of QMP", _ASK)
    return data.decode("utf-8-sig", errors="replace")


# Replies over a socket.


def _ask(path: str) -> RunningGuest:
    """Connect to QEMU, and send the queries."""
    with Monitor(path, TIMEOUT) as monitor:
        replies, notes = [], []
        for query in QUERIES:
            answer = monitor.ask(query)
            reply = answer.get("return")
            if query == DIRTY_RATE and isinstance(reply, dict) and reply.get("calc-time-unit") == "second":
                answer = monitor.ask(query, {"calc-time-unit": "millisecond"})  # exact, where QEMU knows units
            if "error" in answer:
                notes.append(refusal(query, answer["error"]))
            else:
                replies.append((query, _of_form(query, answer["return"], path)))
    if not replies:
        raise InputError(path, "errors alone", "; ".join(notes), _ASK)
    return _guest(replies, notes)


def _of_form(query: str, reply: Any, path: str) -> Any:
    """A reply that is what its query gives."""
    if _query_of(reply, query, True) == query or (query != CPUS and isinstance(reply, dict)):
        return reply
    raise InputError(f"{path}, {query}", one_line(reply), "is no reply to it", _ASK)
