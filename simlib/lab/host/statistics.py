# SPDX-License-Identifier: BSD-3-Clause
"""KVM's statistics over time, as ``query-stats`` tells them: differences between samples.

They are those of ``KVM_GET_STATS_FD`` (Documentation/virt/kvm/api.rst, 4.133), which QEMU hands on by name
(qapi/stats.json, since QEMU 7.1) with a description of each (``query-stats-schemas``). With simlib's kernel patches the
counters of mmu_lock are among them; debugfs and the tool kvm_stat do not show those.

QEMU gives a histogram's last bucket first: ``add_kvmstat_entry()`` in its accel/kvm/kvm-all.c puts each count before
those that it has (7.1; 10.0.2 does so too). A later QEMU may not, so the order is judged by the statistic that is the
sum of the histogram's values, where there is one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from simlib.lab.host.threads import INTERVAL
from simlib.measurements.importers.kvm_stats import HISTOGRAM, LOCK, LOCKS, PLACE, WHAT, bounds
from simlib.measurements.importers.tables import Column, ImportedTable, TableRows

_WHO = (
    Column("scope", "text", "vm or vcpu"),
    Column("vcpu", "text", "number of the vCPU; all for the VM"),
    Column("name", "text", "name of the statistic"),
)
OTHERS = (
    *INTERVAL,
    *_WHO,
    Column("type", "text", "cumulative: value is the difference; instant, peak: value is what it was then"),
    Column("stat_unit", "text", "unit of the value, as KVM describes it"),
    Column("value", "whole", "the difference, or the value; no row: none, or unchanged", unit="not stated"),
)
LOCK_ROWS = (*INTERVAL, *PLACE, *(column for column in LOCKS if column.name in WHAT))
HISTOGRAMS = (
    *INTERVAL,
    *_WHO,
    Column("stat_unit", "text", "unit of low and high, as KVM describes it"),
    Column("bucket", "whole", "number of the bucket, from 0", unit="1"),
    Column("low", "whole", "least value of the bucket", unit="not stated"),
    Column("high", "whole", "first value above the bucket; empty: no limit", optional=True, unit="not stated"),
    Column("count", "whole", "how many came into the bucket in the interval"),
)
_SMALL = {-3: "ms", -6: "us", -9: "ns"}

When = tuple[int, float, float]
"""Of a sample: its number, its time, and the interval since the one before, s."""


class Description(NamedTuple):
    """What a statistic is."""

    kind: str = "not stated"
    """``"cumulative"``, ``"instant"``, ``"peak"``, ``"linear-histogram"`` or ``"log2-histogram"``."""
    unit: str = "not stated"
    bucket_size: int = 0
    """Of a linear histogram; else 0."""


@dataclass
class VcpuStatistics:
    """Statistics of a VM and its vCPUs from sample to sample."""

    described: dict[tuple[str, str], Description] = field(default_factory=dict)
    """By target (``vm``, ``vcpu``) and name."""
    others: TableRows = field(default_factory=lambda: TableRows(OTHERS, True))
    locks: TableRows = field(default_factory=lambda: TableRows(LOCK_ROWS, True))
    histograms: TableRows = field(default_factory=lambda: TableRows(HISTOGRAMS, True))
    totals: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Sum of the differences, by scope and name."""
    lock_totals: dict[tuple[str, str], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """The same of mmu_lock's, by site and mode."""
    buckets: dict[tuple[str, str], Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    """Sum of a histogram's differences, by scope and name."""
    fallen: int = 0
    """Cumulative statistics that fell, which were left out."""
    last_first: bool = True
    """Whether histograms come with their last bucket first."""
    seconds: float = 0.0
    """Time over which the sums are."""
    _judged: bool = False
    _before: dict[tuple[str, str, str], Any] = field(default_factory=dict)
    _times: dict[tuple[str, str], float] = field(default_factory=dict)

    def describe(self, reply: Any) -> None:
        """Take the reply to ``query-stats-schemas``."""
        for provider in _objects(reply):
            for one in _objects(provider.get("stats")):
                size = one.get("bucket-size", 0)
                self.described[str(provider.get("target")), str(one.get("name"))] = Description(
                    str(one.get("type", "not stated")), unit_of(one), size if type(size) is int and size > 0 else 0
                )

    @property
    def has_locks(self) -> bool:
        """Whether the counters of mmu_lock are among what was read."""
        return any(LOCK.fullmatch(name) for _, _, name in self._before)

    def take(self, sample: int, time_s: float, scope: str, reply: Any, vcpus: dict[str, str]) -> None:
        """Take a reply to ``query-stats`` of the `scope` ``"vm"`` or ``"vcpu"``.

        `vcpus`: number of each vCPU by its ``qom-path``.
        """
        for one in _objects(reply):
            if one.get("provider", "kvm") != "kvm":
                continue
            path = str(one.get("qom-path", ""))
            who = "all" if scope == "vm" else vcpus.get(path, path.rpartition("/")[2] or "?")
            before_s = self._times.get((scope, who), time_s)
            self._times[scope, who] = time_s
            when = sample, time_s, round(time_s - before_s, 6)
            self.seconds += when[2] if scope == "vm" else 0.0
            locks: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
            values = {str(stat.get("name")): stat.get("value") for stat in _objects(one.get("stats"))}
            self._judge_order(scope, values)
            for name, value in values.items():
                key = scope, who, name
                before = self._before.get(key)
                if isinstance(value, list) and all(type(count) is int for count in value):
                    self._before[key] = counts = value[::-1] if self.last_first else value
                    if before is not None and len(before) == len(counts):
                        self._histogram(when, key, before, counts, locks)
                elif isinstance(value, int):
                    self._before[key] = int(value)
                    self._number(when, key, before, int(value), locks)
            for (site, mode), row in locks.items():
                self.lock_totals[site, mode].update(row)
                if any(row.values()):
                    self.locks.add(*when, site, mode, *(row.get(what) for what in WHAT))

    def _judge_order(self, scope: str, values: dict[str, Any]) -> None:
        """Judge the order of buckets by the first histogram whose sum fits one order alone."""
        for name, counts in values.items():
            total = values.get(f"{name.removesuffix('_hist')}_ns")
            if not self._judged and name.endswith("_hist") and isinstance(counts, list) and isinstance(total, int):
                last, first = (fits(order, total, self._about((scope, name))) for order in (counts[::-1], counts))
                if last != first:
                    self.last_first, self._judged = last, True

    def _about(self, key: tuple[str, ...]) -> Description:
        """What a statistic is, by its scope (first) and name (last)."""
        return self.described.get((key[0], key[-1]), Description())

    def _number(self, when: When, key: tuple[str, str, str], before: Any, value: int, locks: Any) -> None:
        """Take one number of a reply."""
        scope, _, name = key
        about = self._about(key)
        if about.kind in ("instant", "peak"):
            if value != (before or 0):
                self.others.add(*when, *key, about.kind, about.unit, value)
            return
        difference = 0 if before is None else value - before
        if difference < 0:
            self.fallen += 1
        elif before is not None and (lock := LOCK.fullmatch(name)):
            locks[lock["site"], lock["mode"]][lock["what"]] = difference
        elif difference:
            self.totals[scope, name] += difference
            self.others.add(*when, *key, about.kind, about.unit, difference)

    def _histogram(self, when: When, key: tuple[str, str, str], before: Any, value: list[int], locks: Any) -> None:
        """Take one histogram of a reply."""
        if (of := HISTOGRAM.fullmatch(key[2])) and of["what"] == "hold":
            locks[of["site"], of["mode"]]["timed"] = max(sum(value) - sum(before), 0)
        about = self._about(key)
        for bucket, (old, new) in enumerate(zip(before, value, strict=True)):
            if new > old:
                self.histograms.add(*when, *key, about.unit, bucket, *span(bucket, len(value), about), new - old)
                self.buckets[key[0], key[2]][bucket] += new - old
            self.fallen += new < old

    def longest(self, scope: str, name: str) -> tuple[int, int | None] | None:
        """Bounds of the highest bucket of a histogram into which anything came; None if nothing did."""
        counts = self.buckets.get((scope, name))
        sizes = [len(v) for (s, _, n), v in self._before.items() if (s, n) == (scope, name) and isinstance(v, list)]
        if not counts or not sizes:
            return None
        return span(max(counts), sizes[0], self._about((scope, name)))

    def tables(self) -> tuple[ImportedTable, ...]:
        """The tables ``locks``, ``statistics`` and ``histograms``."""
        who = ("sample", "scope", "vcpu", "name")
        return (
            self.locks.table("locks", "mmu_lock by call site and mode, by interval", ("sample", "site", "mode")),
            self.others.table("statistics", "KVM statistics, by interval", who),
            self.histograms.table("histograms", "KVM statistics: histograms, by interval", (*who, "bucket")),
        )


def span(bucket: int, buckets: int, about: Description) -> tuple[int, int | None]:
    """Values of a bucket: from the first, below the second.

    ``kvm_stats_linear_hist_update()`` and ``kvm_stats_log_hist_update()`` in ``include/linux/kvm_host.h`` put whatever
    is above the last bucket into it.

    >>> [span(bucket, 8, Description("linear-histogram", "count", 10)) for bucket in (2, 7)]
    [(20, 30), (70, None)]
    >>> span(3, 32, Description("log2-histogram", "ns"))
    (4, 8)
    """
    if about.kind != "linear-histogram":
        return bounds(bucket, buckets)
    low = bucket * about.bucket_size
    return low, None if bucket == buckets - 1 else low + about.bucket_size


def fits(counts: list[int], total: int, about: Description) -> bool:
    """Whether a histogram's values can have a sum.

    >>> fits([0, 0, 3], 7, Description()), fits([0, 0, 3], 2, Description())
    (True, False)
    """
    spans = [(count, *span(bucket, len(counts), about)) for bucket, count in enumerate(counts) if count]
    least = sum(count * low for count, low, _ in spans)
    return least <= total and (
        total <= sum(count * (high or 0) for count, _, high in spans) or any(high is None for _, _, high in spans)
    )


def unit_of(described: dict[str, Any]) -> str:
    """Unit of a statistic from its description.

    >>> unit_of({"unit": "seconds", "base": 10, "exponent": -9}), unit_of({"exponent": 0}), unit_of({"unit": "bytes"})
    ('ns', 'count', 'bytes')
    >>> unit_of({"unit": "bytes", "base": 2, "exponent": 10})
    '2^10 bytes'
    """
    unit, exponent, base = described.get("unit", "count"), described.get("exponent", 0), described.get("base", 10)
    if not exponent:
        return str(unit)
    if unit == "seconds" and base == 10 and exponent in _SMALL:
        return _SMALL[exponent]
    return f"{base}^{exponent} {unit}"


def _objects(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; none if it is no list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
