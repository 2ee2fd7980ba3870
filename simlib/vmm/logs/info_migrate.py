# SPDX-License-Identifier: BSD-3-Clause
"""``info migrate`` of QEMU's human monitor, in its three layouts.

Up to QEMU 10.0 a line has one ``key: value unit`` (hmp_info_migrate in hmp.c, later migration/migration-hmp-cmds.c).
QEMU 10.1 prints several ``key=value`` a line, sizes in KB or, in later versions, with a unit each. All but the last
round sizes down to whole KiB.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from simlib.vmm.logs.content import LogContent
from simlib.vmm.logs.records import COMPRESSED, DEVICE, DISK, Field, Value, add_record, split_records
from simlib.vmm.logs.text import NUMBER, LogText

MARKS = ("Migration status:", "total ram:", "remaining ram:", "transferred ram:", "RAM info:", "Time (ms):",
         "transferred=", "dirty_syncs=")  # fmt: skip

ROUNDED = "info migrate rounds sizes to KiB: the pages that remain are known to less than a page"

_STATUS = "Migration status"
_LINES = {
    _STATUS: Field("status", "text"), "total time": Field("time_s", "time"),
    "expected downtime": Field("expected_downtime_s", "time"), "downtime": Field("downtime_s", "time"),
    "transferred ram": Field("sent_bytes", "size"), "throughput": Field("bits_per_s", "mbps"),
    "remaining ram": Field("remaining_bytes", "size"), "total ram": Field("total_bytes", "size"),
    "duplicate": Field("zero_pages"), "normal": Field("normal_pages"), "dirty sync count": Field("passes"),
    "page size": Field("page_bytes", "size"), "dirty pages rate": Field("dirty_pages_per_s"),
    "cpu throttle percentage": Field("throttle"),
    "total disk": Field("", "size", DISK), "vfio device transferred": Field("", "size", DEVICE),
    "xbzrle pages": Field("", "count", COMPRESSED), "compression pages": Field("", "count", COMPRESSED),
}  # fmt: skip
_UNITS = {**dict.fromkeys(("duplicate", "normal", "dirty pages rate"), "pages"), "throughput": "mbps"}
_LINE = re.compile(
    rf"^[^\n:=]*?(?<![\w-])({'|'.join(sorted(_LINES, key=len, reverse=True))}): ({NUMBER}|(?<=status: )[a-z-]+)"
    r"(?: (kbytes|bytes|ms|milliseconds|seconds|mbps|pages))?[ ]*(?:\([^\n]*\)[ ]*)?$",
    re.MULTILINE,
)
_KEYS = {
    "Status": Field("status", "text"), "total_time": Field("time_s", "time"),
    "exp_down": Field("expected_downtime_s", "time"), "down": Field("downtime_s", "time"),
    "Throughput (Mbps)": Field("bits_per_s", "mbps"), "total": Field("total_bytes", "size"),
    "transferred": Field("sent_bytes", "size"), "remain": Field("remaining_bytes", "size"),
    "normal": Field("normal_pages"), "zero": Field("zero_pages"), "psize": Field("page_bytes", "size"),
    "pagesize": Field("page_bytes", "size"), "dirty_syncs": Field("passes"),
    "dirty_pages_rate": Field("dirty_pages_per_s"), "dirty": Field("dirty_pages_per_s"),
    "CPU Throttle (%)": Field("throttle"), "vfio": Field("", "size", DEVICE),
    "xbzrle_pages": Field("", "count", COMPRESSED),
}  # fmt: skip
_GROUP = re.compile(
    r"^[^\n=]{0,80}?(?P<group>Time \(ms\)|Sizes \(KB\)|Sizes|Transfers|Channels|Page Types|Pages|Page Rates \(pps\)"
    r"|Others|XBZRLE|Throughput \([Mm]bps\)|CPU Throttle \(%\)|Status): *(?P<pairs>[^\n]*)$"
    r"|^ *(?P<more>(?:[a-z_]+=[^\n]*))$",
    re.MULTILINE,
)
_PAIR = re.compile(rf"([a-z_]+)=({NUMBER})(?: ?([KMGTPE]?i?B))?(?=[\s,]|$)")
_TIMES = {"total": "total_time"}


def read(log: LogText) -> LogContent | None:
    """Read the records of ``info migrate`` in any layout.

    >>> text = "Migration status: active\\ntotal time: 5000 milliseconds\\ntotal ram: 4195328 kbytes\\n"
    >>> sample = read(LogText(text)).samples[0]
    >>> sample.status, sample.time_s, sample.total_bytes
    ('active', 5.0, 4296015872.0)
    """
    content = LogContent("info migrate")
    pairs = (
        (match[1], Value(match[2], match[3] or ""))
        for match in _LINE.finditer(log.text)
        if _UNITS.get(match[1]) in (None, match[3])
    )
    has_samples = False
    for record in split_records(pairs, _STATUS):
        status = record.get(_STATUS, Value("")).text
        if len(record) > 1 and status not in ("none", "setup"):
            has_samples = add_record(content, record, _LINES) or has_samples
        elif status:
            content.note(f"info migrate: status {status}, no numbers")
    for record in split_records(_groups(log), "Status"):
        has_samples = (len(record) > 1 and add_record(content, record, _KEYS)) or has_samples
    if has_samples:
        content.note(ROUNDED)
    return None if content.empty else content


def _groups(log: LogText) -> Iterator[tuple[str, Value]]:
    """Pairs of QEMU 10.1 and newer; a line without the name of its group continues the group."""
    group = ""
    if "RAM info" not in log.text and "Time (ms)" not in log.text and "dirty_syncs=" not in log.text:
        return
    for match in _GROUP.finditer(log.text):
        group = match["group"] or group
        remainder = (match["pairs"] if match["group"] else match["more"]).strip()
        if match["group"] in ("Status", "CPU Throttle (%)") or (match["group"] and group.startswith("Throughput")):
            word = re.match(rf"{NUMBER}|[a-z-]+", remainder)
            if (word and (group == "Status") == word[0][0].isalpha()) or (word and word[0] in ("nan", "-nan")):
                name = "Throughput (Mbps)" if group.startswith("Throughput") else group
                yield name, Value(word[0])
            continue
        for pair in _PAIR.finditer(remainder):
            key = _TIMES.get(pair[1], pair[1]) if group == "Time (ms)" else pair[1]
            if group == "XBZRLE":
                key = f"xbzrle_{key}"
            unit = "ms" if group == "Time (ms)" else pair[3] or ("KB" if group == "Sizes (KB)" else "")
            yield key, Value(pair[2], unit)
