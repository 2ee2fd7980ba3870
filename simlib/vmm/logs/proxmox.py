# SPDX-License-Identifier: BSD-3-Clause
"""Task log of a migration of Proxmox VE: qemu-server's QemuMigrate.pm, both forms.

Since 2021 a line has the bytes sent and a speed: pages-per-second times the page size, so that it includes pages of
zeros, which are not sent. Before, a line had sent, remaining and total bytes. Proxmox VE turns auto-converge on, and
does not log the throttle.
"""

from __future__ import annotations

import re

from simlib.vmm.logs.content import LogContent, LogValue, make_sample
from simlib.vmm.logs.records import COMPRESSED, DEVICE
from simlib.vmm.logs.text import NUMBER, LogText, digits_error, number, size
from simlib.vmm.qemu_rules import PAGE

MARKS = ("migration active", "migration device", "migration status: ", "migration downtime limit: ",
         "auto-increased downtime", "average migration speed", "migration completed, transferred")  # fmt: skip

_SIZE = rf"({NUMBER}) ([KMGTPE]?i?B)"
_LINE = re.compile(
    rf"migration (?P<status>active|device), transferred {_SIZE} of {_SIZE} VM-state, {_SIZE}/s"
    rf"(?P<vfio> \(\+ [^)\n]*VFIO-state\))?(?:, VM dirties lots of memory: {_SIZE}/s)?"
    r"|migration (?:status: )?(?P<old>[a-z-]+) \(transferred (?P<sent>\d{1,20}), remaining (?P<left>\d{1,20})\), "
    r"total (?P<total>\d{1,20})\)"
    r"|(?P<begin>start migrate command to)"
    r"|migration downtime limit: (?P<limit>\d{1,9}) ms"
    r"|auto-increased downtime to continue migration: (?P<more>\d{1,9}) ms"
    rf"|migration speed limit: {_SIZE}/s"
    r"|(?P<mean>average )?migration speed: [^\n]{1,30}/s - downtime (?P<downtime>\d{1,12}) ms"
    rf"|migration completed, transferred {_SIZE} VM-state"
    r"|migration status: (?P<end>completed|failed|cancelled)|(?P<xbzrle>xbzrle: send updates to [1-9])"
)
_MEAN_SPEED = "average migration speed of Proxmox VE is the memory over the time, not the bytes sent: ignored"


def read(log: LogText) -> LogContent | None:
    """Read a task log of Proxmox VE.

    >>> line = "2026-01-02 10:00:01 migration active, transferred 1.2 GiB of 16.0 GiB VM-state, 112.4 MiB/s"
    >>> content = read(LogText(line))
    >>> round(content.samples[0].sent_bytes / 2**20), content.total[0].value
    (1229, 17179869184.0)
    """
    content = LogContent("the Proxmox VE task log", hidden_throttle=True)
    start: float | None = None
    downtime = limit = None
    for match in _LINE.finditer(log.text):
        time = log.time_at(match.start())
        if match["begin"]:
            start, downtime = time, None
            continue
        if match["xbzrle"]:
            content.note(COMPRESSED)
        if match["limit"] or match["more"]:
            limit = int(match["limit"] or match["more"])
            content.settings["downtime-limit"] = limit
            continue
        if match["mean"]:
            content.note(
                "average migration speed of Proxmox VE is the memory over the time, not the bytes sent: ignored"
            )
        if match["downtime"]:
            downtime = int(match["downtime"]) / 1000
            continue
        values = _values(content, match)
        if not values:
            continue
        if start is None and time is not None:
            start = time - 1.0  # it logs the first line one second after the start
        elapsed = time - start if time is not None and start is not None else None
        values |= {"time_s": elapsed if elapsed is None or elapsed >= 0 else None}
        values |= {"downtime_limit_s": None if limit is None else limit / 1000}
        if values.get("status") == "completed":
            values["downtime_s"] = downtime
        sample = make_sample(content, values)
        if sample is not None:
            content.samples.append(sample)
    if content.samples:
        content.settings["auto-converge"] = True
        content.note("auto-converge on: Proxmox VE turns it on; its log does not show the throttle")
    if limit is not None:
        content.note(f"downtime-limit {limit} ms: the last limit in the Proxmox VE task log")
    return None if content.empty else content


def _values(content: LogContent, match: re.Match[str]) -> dict[str, object]:
    """Values of a sample, from a line with numbers or with the end of the migration."""
    if match["end"]:
        return {"status": match["end"], "remaining_bytes": 0.0 if match["end"] == "completed" else None}
    groups = match.groups()
    if match["status"]:
        sent, total, speed = (size(groups[at], groups[at + 1]) for at in (1, 3, 5))
        if match["vfio"] or match["status"] == "device":
            content.note(DEVICE)
        dirty = size(groups[8], groups[9]) / PAGE if groups[8] else None
        _add_total(content, total, digits_error(groups[3], groups[4]))
        return {"status": match["status"], "sent_bytes": sent, "total_bytes": total, "bits_per_s": speed * 8,
                "dirty_pages_per_s": dirty}  # fmt: skip
    if match["old"]:
        total = number(match["total"])
        _add_total(content, total, 0.0)
        return {"status": match["old"], "sent_bytes": number(match["sent"]), "remaining_bytes": number(match["left"]),
                "total_bytes": total}  # fmt: skip
    speed_at = match.re.groupindex["more"]
    if groups[speed_at]:
        content.settings["max-bandwidth"] = round(size(groups[speed_at], groups[speed_at + 1]))
        content.note("max-bandwidth: migration speed limit of the Proxmox VE task log")
    return {}


def _add_total(content: LogContent, total: float, error: float) -> None:
    if 0 < total < 2**62:
        content.page_error = max(content.page_error, error)
        quantity = LogValue(total, f"VM-state of {content.tool}", error)
        if quantity not in content.total:
            content.total.append(quantity)
