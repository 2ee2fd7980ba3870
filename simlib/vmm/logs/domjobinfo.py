# SPDX-License-Identifier: BSD-3-Clause
"""``virsh domjobinfo``, also with ``--completed``: libvirt's tools/virsh-domain.c cmdDomjobinfo.

Memory sizes have three decimals (`vshPrettyCapacity`), so that they are rounded to 1/1000 of their unit.
"""

from __future__ import annotations

import re

from simlib.vmm.logs.content import LogContent
from simlib.vmm.logs.records import COMPRESSED, DISK, Field, Value, add_record, split_records
from simlib.vmm.logs.text import LogText

MARKS = ("Job type:", "Memory total:", "Memory remaining:", "Memory processed:")

_JOB, _OPERATION = "Job type", "Operation"
_STATUS = {"Unbounded": "active", "Bounded": "active", "Completed": "completed", "Failed": "failed",
           "Cancelled": "cancelled", "None": "none"}  # fmt: skip
_FIELDS = {
    _JOB: Field("status", "text"), "Time elapsed": Field("time_s", "time"),
    "Memory processed": Field("sent_bytes", "size"), "Memory remaining": Field("remaining_bytes", "size"),
    "Memory total": Field("total_bytes", "size"), "Memory bandwidth": Field("bits_per_s", "rate"),
    "Dirty rate": Field("dirty_pages_per_s"), "Page size": Field("page_bytes"), "Iteration": Field("passes"),
    "Constant pages": Field("zero_pages"), "Normal pages": Field("normal_pages"),
    "Expected downtime": Field("expected_downtime_s", "time"), "Total downtime": Field("downtime_s", "time"),
    "Auto converge throttle": Field("throttle"),
    "File total": Field("", "size", DISK), "Compressed pages": Field("", "count", COMPRESSED),
}  # fmt: skip
_STOPPED = re.compile(
    r"\bvirsh [^\n]*\bmigrate(?= )[^\n]*\n(?:[^\n]*\n){0,4}?[^\n]*\^Z|\bStopped +virsh [^\n]*\bmigrate "
)
_UNITS = {"Dirty rate": "pages/s", "Page size": "bytes"}
_LINE = re.compile(
    rf"^.*?\b({'|'.join([*_FIELDS, _OPERATION])}): +([A-Za-z]+|-?[\d.]+)(?: +([A-Za-z/]+))?.*$", re.MULTILINE
)


def read(log: LogText) -> LogContent | None:
    """Read the records of ``virsh domjobinfo``.

    >>> content = read(LogText("Job type: Unbounded \\nTime elapsed: 5000 ms\\nMemory total: 2.004 GiB\\n"))
    >>> content.samples[0].status, content.samples[0].time_s, round(content.samples[0].total_bytes / 2**20)
    ('active', 5.0, 2052)
    """
    content = LogContent("virsh domjobinfo")
    pairs = (
        (match[1], Value(match[2], match[3] or ""))
        for match in _LINE.finditer(log.text)
        if _UNITS.get(match[1]) in (None, match[3])
    )
    for record in split_records(pairs, _JOB):
        operation = record.pop(_OPERATION, Value("Outgoing")).text
        if operation != "Outgoing":
            content.note(f"virsh domjobinfo: the job {operation} is not an outgoing migration: ignored")
            continue
        status = _STATUS.get(record.get(_JOB, Value("")).text, "")
        if status == "none":
            content.note("virsh domjobinfo: no job is running (Job type None)")
            continue
        record[_JOB] = Value(status)
        add_record(content, record, _FIELDS)
    if content.samples and _STOPPED.search(log.text):
        content.note("virsh migrate was stopped (^Z): continue it with fg, since without --p2p it is virsh that starts "
                     "the guest on the destination")  # fmt: skip
    return None if content.empty else content
