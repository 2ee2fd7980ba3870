# SPDX-License-Identifier: BSD-3-Clause
"""``perf kvm stat report``: why guests were left, how often, and how long each time.

The table is printed by ``print_result()`` and ``print_vcpu_info()`` in ``tools/perf/builtin-kvm.c``; the first column
is ``VM-EXIT``, or what ``--event`` asked for.
"""

from __future__ import annotations

import re

from simlib.measurements.importers.lines import ForeignText, Lines, any_line
from simlib.measurements.importers.tables import Column, Contents, TableRows

EXITS = (
    Column("report", "whole", "number of the table in the text, from 1: perf kvm stat live prints one a second"),
    Column("target", "text", "whose events: all VMs, or pids"),
    Column("vcpu", "text", "number of the vCPU, or all"),
    Column("what", "text", "what is counted: VM-EXIT, MMIO Access, IO Port Access …"),
    Column("name", "text", "reason of the exit, address or port"),
    Column("samples", "whole", "how many"),
    Column("samples_percent", "number", "share of all samples"),
    Column("time_percent", "number", "share of the time of all"),
    Column("min_us", "number", "shortest"),
    Column("max_us", "number", "longest"),
    Column("mean_us", "number", "mean"),
    Column("error_percent", "number", "relative standard error of the mean, as perf computes it", optional=True),
)
TOTALS = (
    *EXITS[:4],
    Column("samples", "whole", "samples of all reasons"),
    Column("handled_us", "number", "time of all together: from an exit to the next entry"),
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


def read_perf_kvm(lines: Lines) -> Contents:
    """Read the tables of ``perf kvm stat report``, one or several after each other: each must have an end."""
    exits, totals, warnings = TableRows(EXITS), TableRows(TOTALS), []
    place, report, what = {"target": "not stated", "vcpu": "all"}, 0, ""
    for line in lines:
        if found := _TARGET.fullmatch(line):
            place = {"target": found["target"], "vcpu": found["vcpu"] or "all"}
        elif found := _HEAD.fullmatch(line):
            if what:
                raise lines.fault(line, "the table before has no line Total Samples", "save the report again")
            report, what = report + 1, found["what"]
        elif found := _TOTAL.fullmatch(line):
            if not what:
                raise lines.fault(line, "a table must stand before its total", "save the report again")
            totals.take(lines, found, report=report, what=what, **place)
            what = ""
        elif found := _LOST.fullmatch(line.strip()):
            warnings.append(f"{lines.whole(found[1], 'lost events')} events were lost while recording")
        elif what and line.strip():
            if (found := _ROW.fullmatch(line)) is None:
                raise lines.fault(line, "must be NAME SAMPLES % % MIN MAX MEAN ( +- % )", "is the line complete?")
            exits.take(lines, found, report=report, what=what, **place)
    if not report:
        raise ForeignText("the table of perf kvm stat report")
    if what:
        raise lines.end_fault("the end", "a table must end with a line Total Samples")
    if not len(exits):
        warnings.append("no event: was the guest running, and was perf kvm stat record given its process?")
    key = ("report", "target", "vcpu", "what")
    return Contents(
        (
            exits.table("exits", "perf kvm stat: reasons for which guests were left", (*key, "name")),
            totals.table("totals", "perf kvm stat: all reasons together", key),
        ),
        tuple(warnings),
    )
