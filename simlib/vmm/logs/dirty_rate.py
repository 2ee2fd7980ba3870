# SPDX-License-Identifier: BSD-3-Clause
"""``info dirty_rate`` of QEMU's human monitor: migration/dirtyrate.c hmp_info_dirty_rate."""

from __future__ import annotations

import re

from simlib.vmm.logs.content import LogContent, RateReading, rounded_rate
from simlib.vmm.logs.text import SECONDS, LogText

MARKS = ("Dirty rate: ",)
SAMPLE_PAGES = 512
"""Number of pages in each GiB that calc-dirty-rate samples by default: migration/dirtyrate.h."""

MODES = {
    "page-sampling": "changed contents among {pages} pages of each GiB", "dirty-bitmap": "by KVM's dirty log",
    "dirty-ring": "migrations of this guest also use the ring (workload.clear_when)",
}  # fmt: skip
"""Methods of the modes, for notes."""

_ENTRY = re.compile(
    r"(?P<status>Status: (?:unstarted|measuring|measured))|Sample Pages: (?P<pages>\d{1,9}) \(per GB\)"
    r"|Period: (?P<period>\d{1,9}) \((?P<unit>sec|ms)\)|Mode: (?P<mode>[a-z-]+)|Start Time: (?P<start>\d{1,18})"
    r"|vcpu\[\d{1,4}\], Dirty rate: \d+|Dirty rate: (?P<rate>\d{1,12}) \(MB/s\)"
)


def rate_reading(mib_per_s: float, seconds: float, mode: str, pages: str, source: str) -> RateReading:
    """Return a reading of calc-dirty-rate with its note.

    - `pages`: number of pages that are sampled in each GiB, as printed; empty if not known.
    - `source`: fields and tool that report it.
    """
    samples = 0.0
    if mode == "page-sampling":
        samples = float(pages if pages.isascii() and pages.isdigit() else SAMPLE_PAGES)
    shown = f"{mib_per_s:g}" if mib_per_s else "less than 1"
    method = MODES.get(mode, "")
    note = f"{shown} MiB/s dirtied over {seconds:g} s: {source}, mode {mode}"
    note += f": {method.format(pages=pages or 'some')}" if method else ""
    return RateReading(rounded_rate(mib_per_s, seconds, samples), note, mode)


def read(log: LogText) -> LogContent | None:
    """Read the measurements of ``info dirty_rate``.

    >>> text = "Status: measured\\nStart Time: 9 (ms)\\nPeriod: 10 (sec)\\nMode: dirty-bitmap\\nDirty rate: 25 (MB/s)"
    >>> read(LogText(text)).rates[0].rate.pages
    64000.0
    """
    content = LogContent("info dirty_rate")
    record: dict[str, str] = {}
    measured: set[tuple[str, ...]] = set()
    for match in _ENTRY.finditer(log.text):
        if match["status"]:
            record = {}
            if match["status"] != "Status: measured":
                content.missing["dirty rate"] = "the measurement of calc_dirty_rate has not ended"
        record |= {name: text for name, text in match.groupdict().items() if text}
        if not match["rate"]:
            continue
        seconds = int(record.get("period", "0")) * SECONDS[record.get("unit", "sec")]
        key = tuple(record.get(name, "") for name in ("start", "period", "mode", "rate"))
        if not seconds:
            content.note("info dirty_rate: a rate without its period is ignored")
        elif not record.get("start") or key not in measured:
            measured.add(key)
            source = "Dirty rate and Period of info dirty_rate"
            mode = record.get("mode", "page-sampling")
            content.rates.append(rate_reading(float(match["rate"]), seconds, mode, record.get("pages", ""), source))
    return None if content.empty else content
