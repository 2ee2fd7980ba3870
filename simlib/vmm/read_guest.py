# SPDX-License-Identifier: BSD-3-Clause
"""Read a running guest from QEMU's replies, from logs of migrations, from a recorded migration, or over a QMP socket.

Supported queries of QEMU's machine protocol (QMP): ``query-migrate`` (memory, throughput, pages dirtied during the
migration), ``query-dirty-rate`` (the measurement of ``calc-dirty-rate``), ``query-cpus-fast`` (vCPUs, architecture),
``query-migrate-parameters`` and ``query-migrate-capabilities`` (current settings), and ``query-memory-size-summary``
(memory before a migration). `simlib.vmm.logs.readers` lists the formats of logs.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from dataclasses import replace
from pathlib import Path

from simlib._lib.errors import InputError
from simlib.vmm.guest import RunningGuest
from simlib.vmm.logs.merge import guest_of_contents
from simlib.vmm.logs.names import names_in
from simlib.vmm.logs.readers import READERS, read_logs
from simlib.vmm.logs.text import LogText
from simlib.vmm.qmp import TIMEOUT, Monitor, one_line, refusal
from simlib.vmm.replies import ASK, CPUS, DIRTY_RATE, MIGRATE, QUERIES, contents_of, query_of, replies_in

_LIMIT = 2**26
_TABLE = re.compile(rb"(?:\xef\xbb\xbf)?[^\n]*\btime_s\b[^\n]*\bdirty_sync_count\b[^\n]*(?:\n|$)")
"""Header of the table watch.csv of `simlib host watch`."""


def read_guest(source: str | Path) -> RunningGuest:
    """Read a guest from a file or standard input, or query its QEMU.

    Raises `InputError` if the source cannot be read, does not answer, or has no supported content.

    - `source`: a text file with replies and logs (see `parse_guest`), ``"-"`` for standard input, the table watch.csv
      of `simlib host watch`, or a unix domain socket of QMP. Over the socket only `QUERIES` are sent; all must be
      answered within a total of `TIMEOUT` seconds.

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
        raise InputError(where, reason, "must be a readable text file or QMP socket") from None
    if len(data) > _LIMIT:
        raise InputError(where, f"more than {_LIMIT} bytes", "is too long for replies or a log", "paste its end only")
    if _TABLE.match(data):
        if where == "standard input":
            raise InputError(where, "a table", "must be a text: the table has a descriptor beside it", "give its path")
        from simlib.vmm.watched_migration import read_watched_guest  # noqa: PLC0415  # imports pandas

        return read_watched_guest(where)
    return parse_guest(data.decode("utf-8-sig", errors="replace"), where)


def parse_guest(text: str, where: str = "text") -> RunningGuest:
    """Read a guest from QMP replies and logs of migrations.

    Raises `InputError` if nothing is recognised, a reply is cut off, or a value is impossible or contradicts another.

    - `text`: replies and records of any supported format, in any order. A reply is a JSON value with or without its
      ``{"return": ...}``. Prompts, commands, events, other replies and other lines may lie between them.
    - `where`: name of the text in errors.

    >>> guest = parse_guest('''
    ... (QEMU) query-cpus-fast
    ... {"return": [{"cpu-index": 0, "target": "x86_64"}, {"cpu-index": 1, "target": "x86_64"}]}
    ... (QEMU) query-dirty-rate
    ... {"return": {"status": "measured", "dirty-rate": 100, "mode": "dirty-bitmap", "calc-time": 2,
    ...             "start-time": 5, "sample-pages": 0}}
    ... ''')
    >>> guest.vcpus, guest.architecture, guest.dirty[0].pages, guest.dirty[0].seconds, guest.link
    (2, 'x86-tdp', 51200.0, 2.0, 0)
    >>> for note in (*guest.notes, *guest.missing.values()): print(note)
    2 vCPUs: entries of query-cpus-fast
    architecture x86-tdp: target x86_64 of query-cpus-fast; QEMU does not report whether KVM uses the TDP MMU
    100 MiB/s dirtied over 2 s: dirty-rate and calc-time of query-dirty-rate, mode dirty-bitmap: by KVM's dirty log
    memory not known: no reply to query-migrate
    link not known: no reply to query-migrate about a migration
    """
    notes: list[str] = []
    log = LogText.clean(text)
    contents = read_logs(log)
    replies = list(replies_in(text, where, notes, in_log=bool(contents)))
    if replies:
        contents = [*contents_of(replies), *contents]
    if not contents:
        formats = ", ".join(reader.title for reader in READERS)
        rule = "; ".join([f"has no reply to {MIGRATE}, {DIRTY_RATE} or {CPUS}, and no {formats}", *notes])
        raise InputError(where, one_line(text) or "empty", rule, ASK)
    return replace(guest_of_contents(contents, notes), names=names_in(log.text))


def _ask(path: str) -> RunningGuest:
    replies, notes = [], []
    with Monitor(path, TIMEOUT) as monitor:
        for query in QUERIES:
            answer = monitor.ask(query)
            reply = answer.get("return")
            if query == DIRTY_RATE and isinstance(reply, dict) and reply.get("calc-time-unit") == "second":
                answer = monitor.ask(query, {"calc-time-unit": "millisecond"})  # exact, if QEMU supports units
                reply = answer.get("return")
            if query == MIGRATE and reply == {}:
                reply = {"status": "none"}
            if "error" in answer:
                notes.append(refusal(query, answer["error"]))
            elif query_of(reply) == query:
                replies.append((query, reply))
            else:
                raise InputError(f"{path}, {query}", one_line(reply), "is not a reply to this query", ASK)
    if not replies:
        raise InputError(path, "only errors", "; ".join(notes), ASK)
    return guest_of_contents(contents_of(replies), notes)
