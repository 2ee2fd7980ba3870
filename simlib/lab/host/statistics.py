# SPDX-License-Identifier: BSD-3-Clause
"""KVM's statistics over time, from ``query-stats``: differences between samples.

The statistics are those of ``KVM_GET_STATS_FD`` (Documentation/virt/kvm/api.rst, 4.133), which QEMU passes on by name
(qapi/stats.json, since QEMU 7.1) with a description of each (``query-stats-schemas``). With simlib's kernel patches
they include the counters of mmu_lock, which debugfs and the tool kvm_stat do not show.

QEMU reports the last bucket of a histogram first: ``add_kvmstat_entry()`` in its accel/kvm/kvm-all.c prepends each
count to the list (7.1 and 10.0.2). Later versions may differ. The order is therefore checked against the statistic
that is the sum of the histogram's values, where there is one.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import Any, NamedTuple

from simlib.lab.host.threads import INTERVAL
from simlib.measurements.importers.kvm_stats import HISTOGRAM, LOCK, LOCKS, PLACE, WHAT, bounds
from simlib.measurements.importers.tables import Column, DescribedTable, TableRows

_SUBJECT = (
    Column("scope", "text", "vm or vcpu"),
    Column("vcpu", "text", "number of the vCPU; all: statistic of the VM"),
    Column("name", "text", "name of the statistic"),
)
SCALARS = (
    *INTERVAL,
    *_SUBJECT,
    Column("type", "text", "cumulative: value is the increase in the interval; instant, peak: value at the sample"),
    Column("stat_unit", "text", "unit of the value, as KVM describes it"),
    Column("value", "whole", "increase or value (see type); unchanged values have no row", unit="not stated"),
)
LOCK_ROWS = (*INTERVAL, *PLACE, *(column for column in LOCKS if column.name in WHAT))
HISTOGRAMS = (
    *INTERVAL,
    *_SUBJECT,
    Column("stat_unit", "text", "unit of low and high, as KVM describes it"),
    Column("bucket", "whole", "number of the bucket, from 0", unit="1"),
    Column("low", "whole", "smallest value of the bucket", unit="not stated"),
    Column("high", "whole", "first value above the bucket; empty: no limit", optional=True, unit="not stated"),
    Column("count", "whole", "number of values added to the bucket in the interval"),
)
_SMALL = {-3: "ms", -6: "us", -9: "ns"}

StatisticKey = tuple[str, str, str]
SampleTime = tuple[int, float, float]
"""Number of a sample, its time, and the interval since the previous sample, s."""


class Description(NamedTuple):
    """Description of a statistic."""

    kind: str = "not stated"
    """``"cumulative"``, ``"instant"``, ``"peak"``, ``"linear-histogram"`` or ``"log2-histogram"``."""
    unit: str = "not stated"
    bucket_size: int = 0
    """Width of a linear histogram's buckets; 0 for other types."""


class StatisticsWatch:
    """Statistics of a VM and its vCPUs, sampled repeatedly.

    `descriptions` has descriptions by target (``vm``, ``vcpu``) and name. `totals` and `buckets` are sums of
    differences by scope and name, `lock_totals` sums for mmu_lock's counters by site and mode, all over `seconds`.
    `decreased` counts cumulative statistics that decreased, whose differences are excluded. `last_first` is true if
    QEMU reports the last bucket of a histogram first.
    """

    def __init__(self) -> None:
        self.descriptions: dict[tuple[str, str], Description] = {}
        self.scalars, self.locks, self.histograms = (TableRows(c, True) for c in (SCALARS, LOCK_ROWS, HISTOGRAMS))
        self.totals = Counter[tuple[str, str]]()
        self.lock_totals = defaultdict[tuple[str, str], Counter[str]](Counter)
        self.buckets = defaultdict[tuple[str, str], Counter[int]](Counter)
        self.decreased, self.last_first, self.seconds, self._order_known = 0, True, 0.0, False
        self._previous: dict[StatisticKey, Any] = {}
        self._times: dict[tuple[str, str], float] = {}

    def read_schemas(self, reply: Any) -> None:
        """Read the reply to ``query-stats-schemas``."""
        for provider in _objects(reply):
            for schema in _objects(provider.get("stats")):
                size = schema.get("bucket-size", 0)
                size = size if type(size) is int and size > 0 else 0
                description = Description(str(schema.get("type", "not stated")), unit_of(schema), size)
                self.descriptions[str(provider.get("target")), str(schema.get("name"))] = description

    @property
    def has_locks(self) -> bool:
        """True if the statistics include the counters of mmu_lock."""
        return any(LOCK.fullmatch(name) for _, _, name in self._previous)

    def record(self, sample: int, time_s: float, scope: str, reply: Any, vcpus: dict[str, str]) -> None:
        """Record a reply to ``query-stats`` for the `scope` ``"vm"`` or ``"vcpu"``.

        `vcpus`: number of each vCPU, by its ``qom-path``.
        """
        for entry in _objects(reply):
            if entry.get("provider", "kvm") != "kvm":
                continue
            path = str(entry.get("qom-path", ""))
            vcpu = "all" if scope == "vm" else vcpus.get(path, path.rpartition("/")[2] or "?")
            before_s = self._times.get((scope, vcpu), time_s)
            self._times[scope, vcpu] = time_s
            when = sample, time_s, round(time_s - before_s, 6)
            self.seconds += when[2] if scope == "vm" else 0.0
            locks: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
            values = {str(stat.get("name")): stat.get("value") for stat in _objects(entry.get("stats"))}
            self._detect_bucket_order(scope, values)
            for name, value in values.items():
                key = scope, vcpu, name
                before = self._previous.get(key)
                if isinstance(value, list) and all(type(count) is int for count in value):
                    self._previous[key] = counts = value[::-1] if self.last_first else value
                    if before is not None and len(before) == len(counts):
                        self._record_histogram(when, key, before, counts, locks)
                elif isinstance(value, int):
                    self._previous[key] = int(value)
                    self._record_scalar(when, key, before, int(value), locks)
            for (site, mode), row in locks.items():
                self.lock_totals[site, mode].update(row)
                if any(row.values()):
                    self.locks.add(*when, site, mode, *(row.get(what) for what in WHAT))

    def _detect_bucket_order(self, scope: str, values: dict[str, Any]) -> None:
        """Determine the order of buckets from the first histogram whose sum only one order can give."""
        for name, counts in values.items():
            total = values.get(f"{name.removesuffix('_hist')}_ns")
            if not self._order_known and name.endswith("_hist") and isinstance(counts, list) and isinstance(total, int):
                stat = self._description((scope, name))
                last, first = (sum_is_possible(order, total, stat) for order in (counts[::-1], counts))
                if last != first:
                    self.last_first, self._order_known = last, True

    def _description(self, key: tuple[str, ...]) -> Description:
        """Description of the statistic whose key begins with its scope and ends with its name."""
        return self.descriptions.get((key[0], key[-1]), Description())

    def _record_scalar(self, when: SampleTime, key: StatisticKey, before: Any, value: int, locks: Any) -> None:
        scope, _, name = key
        stat = self._description(key)
        if stat.kind in ("instant", "peak"):
            if value != (before or 0):
                self.scalars.add(*when, *key, stat.kind, stat.unit, value)
            return
        difference = 0 if before is None else value - before
        if difference < 0:
            self.decreased += 1
        elif before is not None and (lock := LOCK.fullmatch(name)):
            locks[lock["site"], lock["mode"]][lock["what"]] = difference
        elif difference:
            self.totals[scope, name] += difference
            self.scalars.add(*when, *key, stat.kind, stat.unit, difference)

    def _record_histogram(self, when: SampleTime, key: StatisticKey, before: Any, value: list[int], locks: Any) -> None:
        if (lock := HISTOGRAM.fullmatch(key[2])) and lock["what"] == "hold":
            locks[lock["site"], lock["mode"]]["timed"] = max(sum(value) - sum(before), 0)
        stat = self._description(key)
        for bucket, (old, new) in enumerate(zip(before, value, strict=True)):
            if new > old:
                bounds = bucket_bounds(bucket, len(value), stat)
                self.histograms.add(*when, *key, stat.unit, bucket, *bounds, new - old)
                self.buckets[key[0], key[2]][bucket] += new - old
            self.decreased += new < old

    def highest_bucket(self, scope: str, name: str) -> tuple[int, int | None] | None:
        """Bounds of a histogram's highest non-empty bucket; None if all buckets are empty."""
        counts = self.buckets.get((scope, name))
        sizes = [len(v) for (s, _, n), v in self._previous.items() if (s, n) == (scope, name) and isinstance(v, list)]
        if not counts or not sizes:
            return None
        return bucket_bounds(max(counts), sizes[0], self._description((scope, name)))

    def tables(self) -> tuple[DescribedTable, ...]:
        """Tables ``locks``, ``statistics`` and ``histograms``."""
        key = ("sample", "scope", "vcpu", "name")
        return (
            self.locks.table("locks", "mmu_lock by call site, mode and interval", ("sample", "site", "mode")),
            self.scalars.table("statistics", "KVM statistics, by interval", key),
            self.histograms.table("histograms", "KVM statistics: histograms, by interval", (*key, "bucket")),
        )


def bucket_bounds(bucket: int, buckets: int, description: Description) -> tuple[int, int | None]:
    """Bounds of a bucket: the smallest value in it, and the first value above it (None: no limit).

    ``kvm_stats_linear_hist_update()`` and ``kvm_stats_log_hist_update()`` in ``include/linux/kvm_host.h`` count values
    beyond the last bucket in that bucket.

    >>> [bucket_bounds(bucket, 8, Description("linear-histogram", "count", 10)) for bucket in (2, 7)]
    [(20, 30), (70, None)]
    >>> bucket_bounds(3, 32, Description("log2-histogram", "ns"))
    (4, 8)
    """
    if description.kind != "linear-histogram":
        return bounds(bucket, buckets)
    low = bucket * description.bucket_size
    return low, None if bucket == buckets - 1 else low + description.bucket_size


def sum_is_possible(counts: list[int], total: int, description: Description) -> bool:
    """Return True if the values in a histogram can add up to `total`.

    >>> sum_is_possible([0, 0, 3], 7, Description()), sum_is_possible([0, 0, 3], 2, Description())
    (True, False)
    """
    spans = [(count, *bucket_bounds(bucket, len(counts), description)) for bucket, count in enumerate(counts) if count]
    minimum = sum(count * low for count, low, _ in spans)
    maximum = sum(count * (math.inf if high is None else high) for count, _, high in spans)
    return minimum <= total <= maximum


def unit_of(schema: dict[str, Any]) -> str:
    """Return the unit of a statistic from its description.

    >>> unit_of({"unit": "seconds", "base": 10, "exponent": -9}), unit_of({"exponent": 0}), unit_of({"unit": "bytes"})
    ('ns', 'count', 'bytes')
    >>> unit_of({"unit": "bytes", "base": 2, "exponent": 10})
    '2^10 bytes'
    """
    unit, exponent, base = schema.get("unit", "count"), schema.get("exponent", 0), schema.get("base", 10)
    if not exponent:
        return str(unit)
    if unit == "seconds" and base == 10 and exponent in _SMALL:
        return _SMALL[exponent]
    return f"{base}^{exponent} {unit}"


def _objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list; an empty list if `value` is not a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
