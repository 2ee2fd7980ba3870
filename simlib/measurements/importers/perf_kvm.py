# SPDX-License-Identifier: BSD-3-Clause
"""``perf kvm stat report``: exit reasons of guests, with counts and times.

The table is printed by ``print_result()`` and ``print_vcpu_info()`` in ``tools/perf/builtin-kvm.c``; the first column
is ``VM-EXIT``, or the event given by ``--event``.
"""

from __future__ import annotations

import re

from simlib.measurements.importers.lines import ForeignText, Lines, any_line
from simlib.measurements.importers.tables import Column, Contents, TableRows

EXITS = (
    Column("report", "whole", "number of the table in the output, from 1; perf kvm stat live prints one per second"),
    Column("target", "text", "origin of the events: all VMs, or process IDs"),
    Column("vcpu", "text", "number of the vCPU, or all"),
    Column("what", "text", "counted event: VM-EXIT, MMIO Access, IO Port Access …"),
    Column("name", "text", "exit reason, address or port"),
    Column("samples", "whole", "number of samples"),
    Column("samples_percent", "number", "share of all samples"),
    Column("time_percent", "number", "share of the total time"),
    Column("min_us", "number", "shortest time"),
    Column("max_us", "number", "longest time"),
    Column("mean_us", "number", "mean time"),
    Column("error_percent", "number", "relative standard error of the mean, as perf computes it", optional=True),
)
TOTALS = (
    *EXITS[:4],
    Column("samples", "whole", "number of samples of all reasons"),
    Column("handled_us", "number", "total time, from an exit to the next entry"),
)

_TARGET = re.compile(r"Analyze events for (?P<target>.*), (?:all VCPUs|VCPU (?P<vcpu>\d+)):\s*", re.ASCII)
_HEAD = re.compile(r"\s*(?P<what>\S.*?)\s+Samples\s+Samples%\s+Time%\s+Min Time\s+Max Time\s+Avg time\s*", re.ASCII)
_NUMBER = r"\d+(?:\.\d+)?"
_ROW = re.compile(
    rf"\s*(?P<name>\S.*?)\s+(?P<samples>\d+)\s+(?P<samples_percent>{_NUMBER})%\s+(?P<time_percent>{_NUMBER})%\s+"
    rf"(?P<min_us>{_NUMBER})us\s+(?P<max_us>{_NUMBER})us\s+(?P<mean_us>{_NUMBER})us\s+"
    rf"\(\s*\+-\s*(?:(?P<error_percent>{_NUMBER})|-?nan|-?inf)%\s*\)\s*",
    re.ASCII,
)
_TOTAL = re.compile(
    rf"Total Samples:(?P<samples>\d+), Total events handled time:(?P<handled_us>{_NUMBER})us\.\s*", re.ASCII
)
_LOST = re.compile(r"Lost events: (\d+)\s*", re.ASCII)
looks_like = any_line(_TARGET, _HEAD)


def read_log(lines: Lines) -> Contents:
    """Read one or several tables of ``perf kvm stat report``, each of which must be complete."""
    exits, totals, warnings = TableRows(EXITS), TableRows(TOTALS), []
    place, report, event = {"target": "not stated", "vcpu": "all"}, 0, ""
    for line in lines:
        if match := _TARGET.fullmatch(line):
            place = {"target": match["target"], "vcpu": match["vcpu"] or "all"}
        elif match := _HEAD.fullmatch(line):
            if event:
                raise lines.fault(line, "the previous table has no line Total Samples", "save the report again")
            report, event = report + 1, match["what"]
        elif match := _TOTAL.fullmatch(line):
            if not event:
                raise lines.fault(line, "a table must come before its total", "save the report again")
            totals.take(lines, match, report=report, what=event, **place)
            event = ""
        elif match := _LOST.fullmatch(line.strip()):
            warnings.append(f"events lost while recording: {lines.whole(match[1], 'lost events')}")
        elif event and line.strip():
            if (match := _ROW.fullmatch(line)) is None:
                raise lines.fault(line, "must be NAME SAMPLES % % MIN MAX MEAN ( +- % )", "is the line complete?")
            exits.take(lines, match, report=report, what=event, **place)
    if not report:
        raise ForeignText("the table of perf kvm stat report")
    if event:
        raise lines.end_fault("the end", "a table must end with a line Total Samples")
    if not len(exits):
        warnings.append("no events: was the guest running, and did perf kvm stat record its process?")
    key = ("report", "target", "vcpu", "what")
    reasons = exits.table("exits", "perf kvm stat: exit reasons of guests", (*key, "name"))
    return Contents(
        (reasons, totals.table("totals", "perf kvm stat: totals over all exit reasons", key)), tuple(warnings)
    )
