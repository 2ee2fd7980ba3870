# SPDX-License-Identifier: BSD-3-Clause
"""Live migration over time, from ``query-migrate`` (``MigrationInfo`` in QEMU's qapi/migration.json)."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from simlib.lab.host.threads import TIMES
from simlib.measurements.importers.tables import Column, DescribedTable, TableRows

ENDED = frozenset({"completed", "failed", "cancelled"})
"""Final states of a migration."""


def _number(name: str, description: str, kind: str = "whole") -> Column:
    return Column(name, kind, description, optional=True)


_NUMBERS = {
    "ram.dirty-sync-count": _number("dirty_sync_count", "synchronisations of the dirty bitmap: number of the pass"),
    "ram.transferred": _number("transferred_bytes", "data sent so far"),
    "ram.remaining": _number("remaining_bytes", "memory still to be sent, as QEMU estimates it"),
    "ram.total": _number("total_bytes", "memory of the guest, including display and firmware"),
    "ram.mbps": _number("throughput_mbit_per_s", "recent throughput", "number"),
    "ram.dirty-pages-rate": _number("dirty_pages_per_s", "rate at which the guest dirtied pages, in the last pass"),
    "ram.normal": _number("normal_pages", "pages sent with their content so far"),
    "ram.duplicate": _number("zero_pages", "zero pages so far (QEMU calls them duplicate)"),
    "ram.page-size": _number("page_size_bytes", "size of a page in QEMU's counts"),
    "total-time": _number("total_time_ms", "time since the migration started"),
    "setup-time": _number("setup_time_ms", "time from the start of the migration to its first pass"),
    "expected-downtime": _number("expected_downtime_ms", "downtime that QEMU expects if it stops the guest now"),
    "downtime": _number("downtime_ms", "time for which the guest was stopped"),
    "cpu-throttle-percentage": _number("throttle_percent", "share of the time in which QEMU stops the vCPUs"),
}
"""Numbers of query-migrate: path in the reply, and column of the table."""

COLUMNS = (*TIMES, Column("status", "text", "status of the migration; none: no migration so far"), *_NUMBERS.values())
PASSES = (
    Column("pass", "whole", "number of the pass: ram.dirty-sync-count", unit="1"),
    Column("first_s", "number", "time from the start of the watch to the pass's first sample, up to an interval late"),
    Column("seen_s", "number", "time from first_s to the first sample of the next pass, or to the last sample"),
    Column("transferred_bytes", "whole", "data sent in seen_s"),
    Column("dirty_pages_per_s", "whole", "dirty rate that QEMU reported last while this pass was sent", optional=True),
)


class MigrationWatch:
    """Replies to ``query-migrate``.

    `rows` has a row per sample; `first` and `last` are the first and the last reply, None before the first.
    """

    def __init__(self) -> None:
        self.rows = TableRows(COLUMNS, True)
        self.first: dict[str, Any] | None = None
        self.last: dict[str, Any] | None = None
        self._passes: list[tuple[float, int, int, int | None]] = []
        self._end_s = 0.0

    def record(self, sample: int, time_s: float, reply: dict[str, Any]) -> None:
        """Record a reply."""
        self.first = reply if self.first is None else self.first
        self.last = reply
        numbers = {column.name: _value(reply, path, column.kind == "whole") for path, column in _NUMBERS.items()}
        self.rows.add(sample, time_s, status_of(reply), *numbers.values())
        number, sent, self._end_s = numbers["dirty_sync_count"], numbers["transferred_bytes"], time_s
        earlier = reply == self.first and status_of(reply) in ENDED  # ended before the watch began
        if number is not None and sent is not None and not earlier:
            self._passes.append((time_s, int(number), int(sent), numbers["dirty_pages_per_s"]))

    @property
    def finished(self) -> bool:
        """True if a migration ended during the watch; a migration that ended before the watch does not count."""
        return self.last is not None and status_of(self.last) in ENDED and self.last != self.first

    def table(self) -> DescribedTable:
        """Table with a row per sample."""
        return self.rows.table("migration", "Live migration over time (query-migrate)", ("sample",))

    def passes(self) -> DescribedTable:
        """Table with a row per pass; passes shorter than the sampling interval may be missing."""
        rows = TableRows(PASSES)
        starts = [at for at, row in enumerate(self._passes) if not at or row[1] != self._passes[at - 1][1]]
        for begin, end in pairwise([*starts, len(self._passes)]):
            first_s, number, sent, _ = self._passes[begin]
            last = end == len(self._passes)
            until_s, until_sent = (self._end_s, self._passes[-1][2]) if last else self._passes[end][0:3:2]
            rate = self._passes[end - 1][3]
            rows.add(number, first_s, round(until_s - first_s, 6), max(0, until_sent - sent), rate)
        return rows.table("passes", "Sampled passes of the live migration", ("pass", "first_s"))


def status_of(reply: dict[str, Any]) -> str:
    """Return the state of the migration in a reply; QEMU's reply is empty before the first migration.

    >>> status_of({}), status_of({"status": "active"})
    ('none', 'active')
    """
    return str(reply.get("status") or "none")


def _value(reply: dict[str, Any], path: str, whole: bool) -> Any:
    """Return a number of a reply; if it is missing or invalid, None for a `whole` number, NaN for others."""
    value: Any = reply
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not 0 <= value < 2**53:
        return None if whole else math.nan
    return value
