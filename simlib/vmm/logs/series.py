# SPDX-License-Identifier: BSD-3-Clause
"""Measurements from samples of a migration: throughput, pages of zeros, and dirty rates pass by pass."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from simlib.model.quantities import size_text
from simlib.vmm.dirtying import ASSUMED_S, DEFAULT_S, DirtyRate
from simlib.vmm.logs.content import MIB, LogContent, RateReading
from simlib.vmm.logs.passes import pool
from simlib.vmm.logs.records import COMPRESSED
from simlib.vmm.qemu_rules import PAGE
from simlib.vmm.samples import MigrationSample, mean_pass

Samples = Sequence[MigrationSample]

_ENDED = frozenset({"completed", "failed", "cancelled"})
_UNTHROTTLED_PASSES = 3
"""First synchronisation at which QEMU may throttle: after two passes that dirty much (migration/ram.c)."""

_SCAN_BYTES = 5e9
"""Memory per second that a scan for zeros passes, and hardly a link, bytes/s."""

_SEEN = 0.98
"""Share of the memory's pages of which normal and zero pages must consist after the first pass."""

_SAME_RATE = 0.05
"""Relative difference of a dirty rate and the throughput that are equal."""

_SHORTEST_S, _ROUNDINGS, _FEW = 0.5, 50, 3
"""Shortest interval of a throughput, s; bytes sent in it, in rounding errors; intervals below which reports count."""

_LAST_PASSES, _LATER_PASSES, _ANY_PASS = 1.3, 2.0, 3.0
"""Largest ratio between the length of a pass and the mean length, which is assumed for a rate without a length: of the
passes between two samples, of all but the first, and of all. A prior."""

_HUGE = 16 * MIB
_LARGE = 2 * MIB


def last_migration(content: LogContent) -> list[MigrationSample]:
    """Return the samples of the last migration; earlier ones become a note.

    A new migration begins where the time, the bytes sent or the passes fall, or after the end of one.
    """
    begin, migrations = 0, 1
    for at, (before, after) in enumerate(pairwise(content.samples), 1):
        falls = any(
            getattr(before, name) is not None and getattr(after, name) is not None
            and getattr(after, name) < 0.99 * getattr(before, name)
            for name in ("time_s", "sent_bytes", "passes")
        )  # fmt: skip
        if falls or (before.status in _ENDED and after.status not in _ENDED):
            begin, migrations = at, migrations + 1
    if migrations > 1:
        content.note(f"{migrations} migrations in {content.tool}: only the last is used")
    return list(content.samples[begin:])


def sustained_bits(samples: Samples, rounding: float = 0.0) -> float:
    """Highest throughput that two successive intervals reached, bit/s; 0 if none is known.

    The bytes sent between two samples count; the reported throughput only if they are not known.

    - `rounding`: rounding error of the bytes sent; an interval is so long that it is small.
    """
    rates: list[float] = []
    first: tuple[float, float] | None = None
    for sample in samples:
        if sample.sent_bytes is None or sample.time_s is None:
            continue
        if first is None:
            first = (sample.time_s, sample.sent_bytes)
            continue
        seconds, sent = sample.time_s - first[0], sample.sent_bytes - first[1]
        if seconds >= _SHORTEST_S and sent >= _ROUNDINGS * rounding:
            rates.append(sent * 8 / seconds)
            first = (sample.time_s, sample.sent_bytes)
    if len(rates) < _FEW:
        rates = [sample.bits_per_s for sample in samples if sample.bits_per_s] or rates
    rates = [rate for rate in rates if rate > 0]
    return max(min(pair) for pair in pairwise(rates)) if len(rates) > 1 else sum(rates)


def zero_bytes(samples: Samples, memory: float, notes: list[str]) -> float | None:
    """Memory that consists of pages of zeros, bytes; None if not known.

    The pages of the first pass are all pages of the memory; later passes send few pages of zeros.
    """
    for sample in samples:
        share, seen = sample.zero_share, (sample.normal_pages or 0) + (sample.zero_pages or 0)
        after_first = (sample.passes or 0) > 1 or sample.status == "completed"
        if share is None or not after_first or not memory:
            continue
        if seen < _SEEN * memory / sample.page_bytes:
            notes.append("normal and zero pages are fewer than the pages of the memory (free-page hinting?): the share "
                         "of zeros is not known")  # fmt: skip
            return None
        zeros = min(1.0, (sample.zero_pages or 0.0) * sample.page_bytes / memory)
        notes.append(f"{100 * zeros:.0f} % of the memory are pages of zeros: zero pages beside normal pages after the "
                     "first pass")  # fmt: skip
        return memory * zeros
    return None


def pass_rates(samples: Samples, content: LogContent) -> list[RateReading]:
    """Return the dirty rates of the passes, pooled by their lengths; throttled passes are ignored.

    QEMU counts the pages that were dirtied since the last synchronisation; without this count, the memory that remains
    after it and the bytes sent give the pages. If no length of a pass is known, the mean length is assumed.
    """
    running = [sample for sample in samples if sample.status not in _ENDED and not sample.status.startswith("postcopy")]
    passes = _pass_numbers(running)
    timed = [sample for sample in running if sample.time_s is not None]
    steps = [(after.time_s or 0) - (before.time_s or 0) for before, after in pairwise(timed)]
    lengths: list[tuple[float, float]] = []
    begin = 0.0 if passes and passes[0] == 1 and running[0].time_s is not None else None
    for at in range(1, len(running)):
        before, after = running[at - 1], running[at]
        if passes[at] == passes[at - 1] or after.time_s is None:
            continue
        single = passes[at] == passes[at - 1] + 1
        pages = _dirtied(before, after, after.time_s - begin) if begin is not None and single else None
        throttled = bool(before.throttle or after.throttle)
        hidden = content.hidden_throttle and passes[at] > _UNTHROTTLED_PASSES
        if begin is not None and pages and after.time_s > begin and not throttled and not hidden:
            lengths.append((after.time_s - begin, pages))
        begin = after.time_s if single else None
    if lengths:
        rates = pool(lengths, median(steps) if steps else 0.0)
        return [RateReading(rate, _note_of(rate, content.tool)) for rate in rates]
    return _assumed_rate(running, content)


def _note_of(rate: DirtyRate, tool: str) -> str:
    amount = f"{rate.pages * PAGE / MIB / rate.seconds:.4g} MiB/s dirtied over {rate.seconds:.3g} s"
    return f"{amount}: passes of {tool}; the migration slowed the guest"


def _pass_numbers(samples: Samples) -> list[int]:
    """Number of the pass of each sample: as reported, or counted where the remainder or the dirty rate jumps."""
    if any(sample.passes is not None for sample in samples):
        numbers, last = [], 0
        for sample in samples:
            last = sample.passes if sample.passes is not None else last
            numbers.append(last)
        return numbers
    numbers = [1] * len(samples)
    for at, (before, after) in enumerate(pairwise(samples), 1):
        jump = after.dirty_pages_per_s != before.dirty_pages_per_s
        if before.remaining_bytes is not None and after.remaining_bytes is not None:
            jump = after.remaining_bytes > before.remaining_bytes
        numbers[at] = numbers[at - 1] + jump
    return numbers


def _dirtied(before: MigrationSample, after: MigrationSample, seconds: float) -> float | None:
    """Number of pages of 4 KiB that a synchronisation between two samples found dirty."""
    if after.dirty_pages_per_s:
        return after.dirty_pages_per_s * seconds * after.page_bytes / PAGE
    if None in (before.remaining_bytes, after.remaining_bytes, before.sent_bytes, after.sent_bytes):
        return None
    sent = (after.sent_bytes or 0.0) - (before.sent_bytes or 0.0)
    return ((after.remaining_bytes or 0.0) + max(0.0, sent - (before.remaining_bytes or 0.0))) / PAGE


def _assumed_rate(samples: Samples, content: LogContent) -> list[RateReading]:
    """Return the last rate that is reported, over the mean length of a pass."""
    rated = [sample for sample in samples if sample.dirty_pages_per_s]
    if not rated:
        if any(sample.dirty_pages_per_s == 0 for sample in samples):
            content.note(f"dirty rate of {content.tool} is 0: no pass has ended yet, or nothing is written")
        return []
    sample = next((row for row in reversed(rated) if not row.throttle), rated[-1])
    rate = (sample.dirty_pages_per_s or 0.0) * sample.page_bytes
    bits = sample.bits_per_s or 0.0
    last = samples[-1]
    first_s = 0.0
    if last.total_bytes and last.bits_per_s:
        first_s = max(0.0, last.total_bytes - (last.zero_pages or 0.0) * last.page_bytes) * 8 / last.bits_per_s
    mean = mean_pass(samples, first_s)
    factor = _LAST_PASSES if mean.between else _LATER_PASSES if first_s else _ANY_PASS
    if mean.seconds:
        seconds = max(DEFAULT_S, mean.seconds)
    elif bits and sample.total_bytes:
        seconds = max(DEFAULT_S, sample.total_bytes * 8 / bits)
    else:
        content.note(f"dirty rate of {content.tool}: the length of the pass is not known")
        seconds = DEFAULT_S
    left = sample.remaining_bytes
    if bits and rate * 8 > 2 * bits and left is not None and left * 8 < bits and (sample.passes or 0) > 1:
        content.note(f"{rate / MIB:.4g} MiB/s of {content.tool} is the rate of a short last pass on "
                     f"{size_text(left)}: ignored")  # fmt: skip
        return []
    slowed = f", throttled by {sample.throttle:g} %" if sample.throttle else ""
    note = (
        f"{rate / MIB:.4g} MiB/s dirtied over {seconds:.3g} s: dirty rate of {content.tool}; the time is assumed to "
        f"be the mean time of a pass. The migration slowed the guest{slowed}: calc-dirty-rate before the migration is "
        "more accurate"
    )
    pages = rate * seconds / PAGE
    if sample.total_bytes and pages > sample.total_bytes / PAGE:
        pages, seconds = sample.total_bytes / PAGE / 2, sample.total_bytes / 2 / rate
    between_s = (seconds / factor, seconds * factor) if seconds > DEFAULT_S else ASSUMED_S
    return [RateReading(DirtyRate(pages, seconds, between_s=between_s), note)]


def traps(samples: Samples, content: LogContent, limit_s: float | None = None) -> None:
    """Add notes on numbers of the samples that are easily misread.

    - `limit_s`: downtime limit where a sample has none, s.
    """
    for sample in samples:
        rate, bits = (sample.dirty_pages_per_s or 0.0) * sample.page_bytes * 8, sample.bits_per_s or 0.0
        if rate and bits and abs(rate - bits) < _SAME_RATE * bits:
            content.note(f"the dirty rate of {content.tool} equals its throughput: the guest may rewrite its whole "
                         "working set in each pass, so that this rate measures the link")  # fmt: skip
        normal = (sample.normal_pages or 0.0) * sample.page_bytes
        if sample.sent_bytes and normal > 1.02 * sample.sent_bytes + MIB:
            content.note(COMPRESSED)
        limit, expected = sample.downtime_limit_s or limit_s, sample.expected_downtime_s
        if limit and expected and expected < limit and sample.status == "active" and (sample.passes or 0) > 1:
            content.note("expected downtime is below the limit, but QEMU does not switch over: it uses another "
                         "estimate of the bandwidth")  # fmt: skip
        if limit and sample.downtime_s and sample.downtime_s > 3 * limit:
            content.note(f"the downtime, {sample.downtime_s:g} s, is far above the limit: devices (VFIO, vhost-user) "
                         "may need it; only memory is predicted")  # fmt: skip
    _huge_pages(samples, content)
    _zero_scan(samples, content)


def _huge_pages(samples: Samples, content: LogContent) -> None:
    remainders = {int(sample.remaining_bytes) for sample in samples if sample.remaining_bytes}
    if content.page_error > PAGE or not remainders:
        return
    for size, least in ((_HUGE, 1), (_LARGE, 2)):
        if len(remainders) >= least and all(remainder % size == 0 for remainder in remainders):
            content.note(f"the remaining memory is a whole number of {size // MIB} MiB: huge pages back the guest, and "
                         "a write dirties all of one")  # fmt: skip
            return


def _zero_scan(samples: Samples, content: LogContent) -> None:
    """Add a note if pages of zeros set the pace of the migration."""
    start = MigrationSample(time_s=0.0, normal_pages=0.0, zero_pages=0.0, sent_bytes=0.0)
    for before, after in pairwise([start, *samples]):
        if None in (before.time_s, after.time_s) or (after.time_s or 0) <= (before.time_s or 0):
            continue
        seconds = (after.time_s or 0.0) - (before.time_s or 0.0)
        scanned = sum(
            (getattr(after, name) or 0.0) - (getattr(before, name) or 0.0) for name in ("normal_pages", "zero_pages")
        ) * after.page_bytes / seconds  # fmt: skip
        sent = ((after.sent_bytes or 0.0) - (before.sent_bytes or 0.0)) / seconds
        reported = (after.bits_per_s or 0.0) / 8
        fast = scanned > _SCAN_BYTES and (not sent or scanned > 2 * sent)
        if fast or (after.sent_bytes and reported > _SCAN_BYTES and reported > 2 * sent > 0):
            content.note(f"{content.tool} scans pages of zeros, which are not sent: its speed is not the link's")
            return
