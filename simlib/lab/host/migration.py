# SPDX-License-Identifier: BSD-3-Clause
"""A live migration over time, as ``query-migrate`` tells it (``MigrationInfo`` in QEMU's qapi/migration.json)."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from simlib.lab.host.threads import TIMES
from simlib.measurements.importers.tables import Column, ImportedTable, TableRows

ENDED = frozenset({"completed", "failed", "cancelled"})
"""States in which a migration is over."""


def _number(name: str, description: str, kind: str = "whole") -> Column:
    return Column(name, kind, description, optional=True)


_NUMBERS = {
    "ram.dirty-sync-count": _number("dirty_sync_count", "how often the dirty log was got: the pass that is sent"),
    "ram.transferred": _number("transferred_bytes", "sent so far"),
    "ram.remaining": _number("remaining_bytes", "still to be sent, as far as QEMU knows"),
    "ram.total": _number("total_bytes", "memory of the guest, that of the display and firmware included"),
    "ram.mbps": _number("throughput_mbit_per_s", "throughput of the last moments", "number"),
    "ram.dirty-pages-rate": _number("dirty_pages_per_s", "pages that the guest dirtied, of the last pass"),
    "ram.normal": _number("normal_pages", "pages sent whole so far"),
    "ram.duplicate": _number("zero_pages", "pages of zeros so far (QEMU calls them duplicate)"),
    "ram.page-size": _number("page_size_bytes", "size of a page as QEMU counts them"),
    "total-time": _number("total_time_ms", "since the migration began"),
    "setup-time": _number("setup_time_ms", "from its beginning to the first pass"),
    "expected-downtime": _number("expected_downtime_ms", "downtime if it stopped the guest now"),
    "downtime": _number("downtime_ms", "time for which the guest stood"),
    "cpu-throttle-percentage": _number("throttle_percent", "share of the time for which QEMU stops vCPUs"),
}
"""Numbers of query-migrate: where each stands in the reply, and its column."""

COLUMNS = (*TIMES, Column("status", "text", "state of the migration; none before one began"), *_NUMBERS.values())
PASSES = (
    Column("pass", "whole", "its number: ram.dirty-sync-count", unit="1"),
    Column("first_s", "number", "when it was first seen, since the watch began; it began up to an interval before"),
    Column("seen_s", "number", "from then until the next was seen, or the last sample"),
    Column("transferred_bytes", "whole", "sent in that time"),
    Column("dirty_pages_per_s", "whole", "pages dirtied, as QEMU said last while this pass was sent", optional=True),
)


class MigrationWatch:
    """Replies to ``query-migrate``.

    `rows` has a row a sample; `first` and `last` are the first and the last reply, None before it.
    """

    def __init__(self) -> None:
        self.rows = TableRows(COLUMNS, True)
        self.first: dict[str, Any] | None = None
        self.last: dict[str, Any] | None = None
        self._passes: list[tuple[float, int, int, int | None]] = []
        self._end_s = 0.0

    def take(self, sample: int, time_s: float, reply: dict[str, Any]) -> None:
        """Take a reply."""
        self.first = reply if self.first is None else self.first
        self.last = reply
        told = {column.name: _value(reply, path, column.kind == "whole") for path, column in _NUMBERS.items()}
        self.rows.add(sample, time_s, status_of(reply), *told.values())
        number, sent, self._end_s = told["dirty_sync_count"], told["transferred_bytes"], time_s
        old = reply == self.first and status_of(reply) in ENDED  # a migration that was over before the watch began
        if number is not None and sent is not None and not old:
            self._passes.append((time_s, int(number), int(sent), told["dirty_pages_per_s"]))

    @property
    def over(self) -> bool:
        """Whether a migration ended while it was watched: one that was over before does not count."""
        return self.last is not None and status_of(self.last) in ENDED and self.last != self.first

    def table(self) -> ImportedTable:
        """A row a sample."""
        return self.rows.table("migration", "Live migration over time (query-migrate)", ("sample",))

    def passes(self) -> ImportedTable:
        """A row for each pass that was seen; shorter ones than an interval may be missing."""
        rows = TableRows(PASSES)
        starts = [at for at, row in enumerate(self._passes) if not at or row[1] != self._passes[at - 1][1]]
        for begin, end in pairwise([*starts, len(self._passes)]):
            first_s, number, sent, _ = self._passes[begin]
            ended = end == len(self._passes)
            until_s, until_sent = (self._end_s, self._passes[-1][2]) if ended else self._passes[end][0:3:2]
            rate = self._passes[end - 1][3]
            rows.add(number, first_s, round(until_s - first_s, 6), max(0, until_sent - sent), rate)
        return rows.table("passes", "Passes of the live migration, to an interval", ("pass", "first_s"))


def status_of(reply: dict[str, Any]) -> str:
    """State of the migration in a reply; an empty reply means that there was none.

    >>> status_of({}), status_of({"status": "active"})
    ('none', 'active')
    """
    return str(reply.get("status") or "none")


def _value(reply: dict[str, Any], path: str, whole: bool) -> Any:
    """A number of a reply; None (NaN where it is not whole) if it is not there or no such number."""
    found: Any = reply
    for key in path.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    if isinstance(found, bool) or not isinstance(found, int if whole else (int, float)) or not 0 <= found < 2**53:
        return None if whole else math.nan
    return found
