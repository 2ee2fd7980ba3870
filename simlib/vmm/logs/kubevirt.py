# SPDX-License-Identifier: BSD-3-Clause
"""Log of KubeVirt's virt-launcher: LogMigrationInfo in pkg/virt-launcher/virtwrap/live-migration-source.go.

The first version (2022) printed bytes and bytes/s. From August 2023, versions divided bytes/s by 8 and printed the
result as Mbps, 1/64 of the bandwidth. Newer versions multiply by 8. The mean bandwidth, DataProcessed over
TimeElapsed, shows which version printed a line.
"""

from __future__ import annotations

import math
import re
from typing import Any

from simlib._lib.errors import InputError
from simlib.vmm.logs.content import LogContent
from simlib.vmm.logs.records import COMPRESSED, DISK, Field, Value, add_record, converted
from simlib.vmm.logs.text import NUMBER, LogText

MARKS = ("Migration info for ",)

_LINE = re.compile(r"Migration info for (?P<uid>[\w-]*): *(?P<pairs>TimeElapsed:[^\n\"]*)")
_PAIR = re.compile(rf"([A-Za-z]+):({NUMBER})([A-Za-z/]*)")
_FIELDS = {
    "TimeElapsed": Field("time_s", "time"), "MemoryProcessed": Field("sent_bytes", "size"),
    "MemoryRemaining": Field("remaining_bytes", "size"), "MemoryTotal": Field("total_bytes", "size"),
    "MemoryBandwidth": Field("bits_per_s"), "DirtyRate": Field("dirty_pages_per_s"), "Iteration": Field("passes"),
    "ConstantPages": Field("zero_pages"), "NormalPages": Field("normal_pages"),
    "ExpectedDowntime": Field("expected_downtime_s", "time"), "Downtime": Field("downtime_s", "time"),
    "DiskMbps": Field("", "count", DISK), "DiskBps": Field("", "count", DISK),
    "CompressionRatio": Field("", "count", COMPRESSED),
}  # fmt: skip
_NEEDED = {"TimeElapsed", "MemoryTotal", "ConstantPages"}
"""Keys of a line that is not cut off."""

_FACTORS = (1.0, 8.0, 64.0)
_CLOSE = 2.5
"""Largest factor between the current and the mean bandwidth."""

_LONGEST_S = 1e7
_PAGE_BITS = 4096 * 8


def read(log: LogText) -> LogContent | None:
    """Read the lines ``Migration info for``.

    Raises `InputError` if the lines are those of several migrations.
    """
    content = LogContent("virt-launcher")
    uids: set[str] = set()
    for match in _LINE.finditer(log.text):
        record = {pair[1]: Value(pair[2], pair[3]) for pair in _PAIR.finditer(match["pairs"])}
        if not {*record} >= _NEEDED:
            content.note("a line of virt-launcher that is cut off is ignored")
            continue
        uids.add(match["uid"])
        elapsed = record["TimeElapsed"]
        if elapsed.unit.startswith("s") and float(elapsed.text) > _LONGEST_S:
            content.note("TimeElapsed of virt-launcher is in ns, although it prints s")
            record["TimeElapsed"] = Value(elapsed.text, "ns")
        _correct_rates(content, record)
        record["Status"] = Value("completed" if "Downtime" in record else "active")
        add_record(content, record, _FIELDS | {"Status": Field("status", "text")})
    if len(uids) > 1:
        raise InputError("virt-launcher", ", ".join(sorted(uids)[:3]), "has several migrations",
                         "paste the lines of one migration only")  # fmt: skip
    return None if content.empty else content


def _correct_rates(content: LogContent, record: dict[str, Value]) -> None:
    """Replace bandwidth and dirty rate by bit/s and pages/s; remove them if their unit is not sure."""
    rates: dict[str, float] = {}
    for key in ("MemoryBandwidth", "DirtyRate"):
        value = record.pop(key, Value("nan"))
        factor = {"Mbps": 1e6, "B/s": 8.0, "Bps": 8.0, "": 8.0}.get(value.unit, math.nan)
        rates[key] = converted(Field("", "count"), value) * factor
    sent = converted(Field("", "size"), record.get("DataProcessed", Value("nan")))
    seconds = converted(Field("", "time"), record["TimeElapsed"])
    mean = sent * 8 / seconds if sent and seconds else math.nan
    current, scale = rates["MemoryBandwidth"], 1.0
    if mean > 0 and current > 0:
        scale = min(_FACTORS, key=lambda factor: abs(math.log(current * factor / mean)))
        if not 1 / _CLOSE < current * scale / mean < _CLOSE:
            content.note("MemoryBandwidth of virt-launcher differs from DataProcessed over TimeElapsed: ignored, with "
                         "its DirtyRate")  # fmt: skip
            return
    if scale != 1:
        content.note(f"Mbps of virt-launcher are multiplied by {scale:g}: DataProcessed over TimeElapsed is that much "
                     "higher (versions of 2023 print bytes/s divided by 8)")  # fmt: skip
    results: dict[str, Any] = {"MemoryBandwidth": current * scale, "DirtyRate": rates["DirtyRate"] * scale / _PAGE_BITS}
    for key, value in results.items():
        if math.isfinite(value) and (value or key != "MemoryBandwidth"):
            record[key] = Value(repr(value))
