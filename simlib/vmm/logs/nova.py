# SPDX-License-Identifier: BSD-3-Clause
"""Log of OpenStack's nova-compute: nova/virt/libvirt/driver.py and migration.py."""

from __future__ import annotations

import re

from simlib._lib.errors import InputError
from simlib.vmm.logs.content import LogContent, LogValue, make_sample
from simlib.vmm.logs.records import DISK, POSTCOPY
from simlib.vmm.logs.text import LogText, number

MARKS = ("Migration running for ", "Increasing downtime to ", "low watermark", "Migration operation has ",
         "Switching to post-copy")  # fmt: skip

_LINE = re.compile(
    r"Migration running for (?P<secs>\d{1,9}) secs, memory +\d{1,3}% remaining;? \(bytes processed=(?P<sent>\d{1,20}), "
    r"remaining=(?P<left>\d{1,20}), total=(?P<total>\d{1,20})\)"
    r"(?:; disk +\d{1,3}% remaining \(bytes processed=\d+, remaining=\d+, total=(?P<disk>\d{1,20})\))?"
    r"|Increasing downtime to (?P<limit>\d{1,9}) ms after (?P<after>\d{1,9}) sec elapsed time"
    r"|(?P<mark>Data remaining \d+ bytes, low watermark \d+ bytes)"
    r"|Migration operation (?:has|was) (?P<end>completed|aborted|cancelled)|(?P<postcopy>Switching to post-copy)"
)
_INSTANCE = re.compile(r"\[instance: ([0-9a-fA-F-]{8,36})\]")
_STATUS = {"aborted": "failed"}


def read(log: LogText) -> LogContent | None:
    """Read the migration of one instance.

    Raises `InputError` if several instances were migrated.

    >>> line = "Migration running for 60 secs, memory 52% remaining; (bytes processed=7, remaining=8, total=16)"
    >>> sample = read(LogText(line)).samples[0]
    >>> sample.time_s, sample.remaining_bytes
    (60.0, 8.0)
    """
    content = LogContent("the Nova compute log")
    limit: int | None = None
    instances: set[str] = set()
    for match in _LINE.finditer(log.text):
        instances |= {*_INSTANCE.findall(log.line_at(match.start()))}
        if match["mark"]:
            content.note("low watermark of Nova is the remainder at the end of a pass, before the next "
                         "synchronisation: ignored")  # fmt: skip
        if match["postcopy"]:
            content.note(POSTCOPY)
        if match["limit"]:
            limit = int(match["limit"])
        values: dict[str, object] = {}
        if match["end"]:
            values = {"status": _STATUS.get(match["end"], match["end"]), "remaining_bytes": 0.0}
            values |= {} if match["end"] == "completed" else {"remaining_bytes": None}
        elif match["secs"]:
            values = {"status": "active", "time_s": float(match["secs"]), "sent_bytes": number(match["sent"]),
                      "remaining_bytes": number(match["left"]), "total_bytes": number(match["total"])}  # fmt: skip
            total = number(match["total"])
            if (0 < total < 2**62 and not content.total) or (content.total and total != content.total[-1].value):
                content.total.append(LogValue(total, f"total of {content.tool}"))
            if match["disk"] and int(match["disk"]):
                content.note(DISK)
        sample = make_sample(content, values | {"downtime_limit_s": None if limit is None else limit / 1000})
        if sample is not None and (values.get("status") != "failed" or content.samples):
            content.samples.append(sample)
    if len(instances) > 1:
        raise InputError(content.tool, ", ".join(sorted(instances)[:3]), "has several instances",
                         "paste the lines of one instance only")  # fmt: skip
    if limit is not None:
        content.settings["downtime-limit"] = limit
        content.note(f"downtime-limit {limit} ms: the last limit in the Nova compute log, which raises it in steps")
    return None if content.empty else content
