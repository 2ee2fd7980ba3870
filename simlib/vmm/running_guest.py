# SPDX-License-Identifier: BSD-3-Clause
"""The numbers of a running guest, from what QEMU says of it.

Queries of QEMU's machine protocol (QMP) are understood, pasted as text or asked over its socket: ``query-migrate``
(memory, throughput, what the guest dirties meanwhile), ``query-dirty-rate`` (what ``calc-dirty-rate`` measured),
``query-cpus-fast`` (vCPUs, architecture), ``query-migrate-parameters`` and ``-capabilities`` (settings that stand).
"""

from __future__ import annotations

import math
import os
import re
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import scipy  # its parts are imported when they are first used

from simlib._lib.errors import InputError
from simlib.model.pagetable import WORD_PAGES, PageTable
from simlib.model.quantities import PS_PER_S, say_size
from simlib.model.scenario import Scenario
from simlib.simulator.sampling.fluid_model import touches_of
from simlib.vmm.qmp import TIMEOUT, Monitor, one_line, refusal
from simlib.vmm.replies import ASK, CPUS, DIRTY_RATE, MIGRATE, QUERIES, Counted, numbers_in, query_of, replies_in

_LIMIT = 2**22
_HUMAN = re.compile(
    r"^\s*(?:Migration status: |Status: |total ram: |throughput: |Throughput \(Mbps\): |Dirty rate: |\*? ?CPU #\d+:).*",
    re.MULTILINE,
)


@dataclass(frozen=True)
class RunningGuest:
    """What QEMU says of a guest; None where it said nothing, so that a scenario's own value stands."""

    vcpus: int | None = None
    memory_bytes: int | None = None
    """All memory that a migration sends: also that of the display and of firmware."""
    page_size: int | None = None
    """Bytes of a page as QEMU counts them, which may be smaller than those of the host."""
    link_bits: int | None = None
    """Bits a second that a migration reached; None if nothing is migrated."""
    dirty_bytes_per_s: float | None = None
    """Distinct pages written in `dirty_seconds`, in bytes, over that time."""
    dirty_seconds: float | None = None
    """The time over which they were counted."""
    counted: tuple[Counted, ...] = ()
    """All that calc-dirty-rate measured, of each time the last."""
    settings: Mapping[str, int | bool] = field(default_factory=dict)
    """Of migrations, by QEMU's names."""
    architecture: str | None = None
    """Its name in `simlib.model.architectures`."""
    notes: tuple[str, ...] = ()
    """Where each number comes from, and what was not there."""

    def __post_init__(self) -> None:
        """A rate of distinct pages says nothing without its time."""
        if (self.dirty_bytes_per_s is None) != (self.dirty_seconds is None):
            raise InputError(
                "dirty_seconds", self.dirty_seconds, "must be given if dirty_bytes_per_s is, and only then"
            )


def read_guest(source: str | Path) -> RunningGuest:
    """Read a guest's numbers from pasted replies, or ask its QEMU.

    Raises `InputError` if it cannot be read, does not answer, or says nothing that is understood or possible.

    - `source`: a text file with replies (see `parse_guest`), ``"-"`` for standard input, or a unix domain socket of
      QMP. Over the socket only `QUERIES` are sent, and an answer is waited for `TIMEOUT` seconds.

    >>> read_guest("no-such-file")
    Traceback (most recent call last):
    simlib.InputError: no-such-file = missing: must be a text file or a QMP socket; check the path
    """
    where = str(source)
    try:
        if where == "-":
            where, data = "standard input", sys.stdin.buffer.read(_LIMIT + 1)
        elif stat.S_ISSOCK(os.stat(where).st_mode):
            return _ask(where)
        else:
            with open(where, "rb") as file:
                data = file.read(_LIMIT + 1)
    except FileNotFoundError:
        raise InputError(where, "missing", "must be a text file or a QMP socket", "check the path") from None
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(where, reason, "must be a text file or a QMP socket that can be read") from None
    if len(data) > _LIMIT:
        raise InputError(where, f"more than {_LIMIT} bytes", "is too long for replies of QMP", ASK)
    return parse_guest(data.decode("utf-8-sig", errors="replace"), where)


def parse_guest(text: str, where: str = "text") -> RunningGuest:
    """Read a guest's numbers from QMP replies that were pasted.

    Raises `InputError` if no reply is understood, one is cut off, or a value is impossible or contradicts another.

    - `text`: replies in any order, each a JSON value with or without its ``{"return": ...}``. Prompts, commands, events
      and replies to other queries may stand between them. Of several replies to one query the last counts; those to
      query-dirty-rate are kept in `RunningGuest.counted`, too.
    - `where`: how errors call the text.

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
    replies = list(replies_in(text, where, notes))
    if not replies:
        if human := _HUMAN.search(text):
            rule = "is the human monitor's text, which rounds, and differs between versions"
            raise InputError(where, one_line(human[0]), rule, ASK)
        rule = f"has no reply to {MIGRATE}, {DIRTY_RATE} or {CPUS}"
        raise InputError(where, one_line(text) or "empty", "; ".join([rule, *notes]), ASK)
    return RunningGuest(**numbers_in(replies, notes))


def apply(guest: RunningGuest, scenario: Scenario) -> Scenario:
    """The scenario of a migration with a running guest's numbers, as far as they are known.

    vCPUs, memory (rounded up to whole blocks for each vCPU) and link are taken over. The interval between two accesses
    becomes such that this guest dirties as many distinct pages, undisturbed and in the same time, as were counted; how
    it spreads its accesses remains the scenario's. The architecture does, too. A chunk becomes no larger than the
    memory.

    Raises `InputError` if the scenario is no migration or has variants, or its guest cannot dirty so much, or never so
    little.
    """
    workload = scenario.workload
    if workload.kind != "migration":
        rule = "a running guest's numbers go into a migration"
        raise InputError("workload.kind", workload.kind, rule, 'write kind = "migration" under [workload]')
    if scenario.variants:
        rule = "a running guest is one scenario"
        raise InputError("variants", ", ".join(scenario.variants), rule, "name one of them")
    sized = _sized(guest, scenario)
    if guest.dirty_bytes_per_s is None or guest.dirty_seconds is None:
        return sized
    interval = _interval(sized, guest.dirty_bytes_per_s, guest.dirty_seconds)
    return replace(sized, workload=replace(sized.workload, access_interval=interval))


def distinct_pages(scenario: Scenario, accesses: float) -> float:
    """Expected pages that a migration's guest has written once or more after so many accesses of all vCPUs."""
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
    said = f"{say_size(rate)}/s over {seconds:g} s"
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
            f"is {say_size(wanted * guest.page_size)} of distinct pages, and the guest must write more than that: it "
            f"writes {workload.write_percent} % of {say_size(guest.pages * guest.page_size)}",
            f"{shorter}, or set guest.memory and workload.write_percent as they are",
            f"{shorter}, or set --memory and the scenario's write_percent as they are",
        )  # fmt: skip
    high = wanted
    while distinct_pages(scenario, high) <= wanted:
        high *= 2
    accesses = float(scipy.optimize.brentq(lambda n: distinct_pages(scenario, n) - wanted, 0.0, high, rtol=1e-12))
    interval = round(guest.vcpus * seconds * PS_PER_S / accesses)
    if not interval:
        raise InputError(
            "dirty_bytes_per_s", said, "a vCPU would have to touch pages faster than one a picosecond",
            f"{shorter}, or take a lower workload.zipf_exponent",
        )  # fmt: skip
    return interval


def _ask(path: str) -> RunningGuest:
    """Connect to QEMU, and send the queries."""
    replies, notes = [], []
    with Monitor(path, TIMEOUT) as monitor:
        for query in QUERIES:
            answer = monitor.ask(query)
            reply = answer.get("return")
            if query == DIRTY_RATE and isinstance(reply, dict) and reply.get("calc-time-unit") == "second":
                answer = monitor.ask(query, {"calc-time-unit": "millisecond"})  # exact, where QEMU knows units
                reply = answer.get("return")
            if query == MIGRATE and reply == {}:
                reply = {"status": "none"}
            if "error" in answer:
                notes.append(refusal(query, answer["error"]))
            elif query_of(reply) == query:
                replies.append((query, reply))
            else:
                raise InputError(f"{path}, {query}", one_line(reply), "is no reply to it", ASK)
    if not replies:
        raise InputError(path, "errors alone", "; ".join(notes), ASK)
    return RunningGuest(**numbers_in(replies, notes))
