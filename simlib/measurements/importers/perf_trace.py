# SPDX-License-Identifier: BSD-3-Clause
"""``perf trace``: system calls with their durations, and the summary.

``trace__sys_exit()`` in ``tools/perf/builtin-trace.c`` prints the line of a call, and
``trace__fprintf_entry_head()`` its beginning; a call that is interrupted by other output has two lines
(``trace__printf_interrupted_entry()``). ``trace__fprintf_thread_summary()`` prints the summary (``-s`` or ``-S``).
"""

from __future__ import annotations

import re
import sys

from simlib.measurements.importers.lines import ForeignText, Lines
from simlib.measurements.importers.tables import Column, Contents, TableRows

CALLS = (
    Column("call", "whole", "number of the call, in the order of the lines, from 1"),
    Column("start_ms", "number", "start, relative to the start of the trace, or on the trace's clock (-T)"),
    Column("task", "text", "name of the thread, at most 14 characters; empty for a single thread", optional=True),
    Column("tid", "whole", "thread ID", optional=True, unit="1"),
    Column("syscall", "text", "the system call"),
    Column("request", "text", "request of an ioctl (KVM_CLEAR_DIRTY_LOG …)", optional=True),
    Column("took_ms", "number", "time from entry to exit, to the microsecond"),
    Column("result", "text", "return value"),
)
SUMMARY = (
    Column("task", "text", "name of the thread"),
    Column("tid", "whole", "thread ID; 0 for the sum over all threads", unit="1"),
    Column("syscall", "text", "the system call"),
    Column("calls", "whole", "number of calls"),
    Column("errors", "whole", "number of failed calls"),
    Column("total_ms", "number", "total time"),
    Column("min_ms", "number", "shortest time"),
    Column("mean_ms", "number", "mean time"),
    Column("max_ms", "number", "longest time"),
    Column("error_percent", "number", "relative standard error of the mean, as perf computes it"),
)

_HEAD = r"\s*(?P<start_ms>\d+\.\d{3}) \((?:\s*(?P<took_ms>\d+\.\d{3}) ms|\s+)\): (?:(?P<task>\S.*?)/(?P<tid>\d+) )?"
_LINE = re.compile(rf"{_HEAD}(?P<continued>\s*\.\.\. \[continued\]: )?(?P<syscall>[a-z]\w*)\((?P<text>.*)", re.ASCII)
_EXIT = re.compile(r"(?P<arguments>.*)\)\s+= (?P<result>\S.*)")
_UNFINISHED = re.compile(r"(?P<arguments>.*)\)\s+\.\.\.\s*")
_REQUEST = re.compile(r"\bcmd: (?P<request>\(?[\w, ()]*?\w+\)?)(?=, arg:|$)", re.ASCII)
_THREAD = re.compile(r" (?:(?P<task>.*) \((?P<tid>\d+)\)|total), \d+ events(?:, .*)?", re.ASCII)
_ROW = re.compile(
    r"   (?P<syscall>\w+) +(?P<calls>\d+) +(?P<errors>\d+) +(?P<total_ms>\d+\.\d{3}) +(?P<min_ms>\d+\.\d{3}) +"
    r"(?P<mean_ms>\d+\.\d{3}) +(?P<max_ms>\d+\.\d{3}) +(?P<error_percent>\d+\.\d{2})%\s*",
    re.ASCII,
)
_LOST = re.compile(r"LOST (\d+) events!\s*", re.ASCII)
_COLOUR = re.compile(r"\\x1b\[[\d;]*m")
_TABLE = re.compile(r"   syscall +calls +errors +total +min +avg +max +stddev\s*")


def looks_like(head: list[str]) -> bool:
    """True if the first lines of a file are output of ``perf trace``."""
    return any(line.strip() == "Summary of events:" or _LINE.fullmatch(_COLOUR.sub("", line)) for line in head)


def read_log(lines: Lines) -> Contents:
    """Read the output of ``perf trace``: one line per call, a summary, or both.

    Calls whose beginning or end is not in the trace have no time or no result; they are counted and left out. Lines of
    other events are skipped.
    """
    reader, recognised = _TraceReader(), False
    for raw in lines:
        line = _COLOUR.sub("", raw)
        recognised = reader.take(lines, line) or recognised
    if not recognised:
        raise ForeignText("the output of perf trace")
    if reader.in_table:
        raise lines.end_fault("the end", "a thread's table must have rows")
    warnings = [f"events lost while recording: {reader.lost}; calls are missing"] if reader.lost else []
    unfinished = len(reader.unfinished)
    warnings += [f"calls left out, since they do not end in the trace: {unfinished}"] if unfinished else []
    warnings += [f"calls left out, since they began before the trace: {reader.unknown}"] if reader.unknown else []
    calls = reader.calls.table("calls", "perf trace: system calls", ("call",))
    summary = reader.summary.table("summary", "perf trace: system calls by thread", ("task", "tid", "syscall"))
    return Contents((calls, summary), tuple(warnings))


class _TraceReader:
    def __init__(self) -> None:
        self.calls, self.summary, self.lost, self.unknown = TableRows(CALLS), TableRows(SUMMARY), 0, 0
        self.unfinished: dict[tuple[str | None, str], str] = {}
        self.thread, self.in_table = ("total", 0), False

    def take(self, lines: Lines, line: str) -> bool:
        """Add a line; return True if perf trace printed it."""
        if match := _LINE.fullmatch(line):
            return self._call(lines, match)
        if match := _THREAD.fullmatch(line):
            self.thread = (match["task"], lines.whole(match["tid"], "tid")) if match["tid"] else ("total", 0)
        elif _TABLE.fullmatch(line):
            self.in_table = True
        elif match := _ROW.fullmatch(line):
            self.in_table = False
            self.summary.take(lines, match, task=self.thread[0], tid=self.thread[1])
        elif self.in_table and line.startswith("   ") and not line.strip().startswith(("(msec)", "-")):
            raise lines.fault(line, "must be SYSCALL CALLS ERRORS TOTAL MIN AVG MAX STDDEV%", "is the line complete?")
        elif match := _LOST.fullmatch(line):
            self.lost += lines.whole(match[1], "lost events")
        return line.strip() == "Summary of events:"

    def _call(self, lines: Lines, match: re.Match[str]) -> bool:
        """Add a line with a whole call, or with the beginning or the end of a call."""
        key = (match["tid"], match["syscall"])
        if unfinished := _UNFINISHED.fullmatch(match["text"]):
            self.unfinished[key] = unfinished["arguments"]
            return True
        ended = _EXIT.fullmatch(match["text"])
        if ended is None:
            return False
        arguments = self.unfinished.pop(key, "") if match["continued"] else ended["arguments"]
        if match["took_ms"] is None:
            self.unknown += 1
            return True
        ioctl = _REQUEST.search(arguments)
        request, result = sys.intern(ioctl["request"] if ioctl else ""), sys.intern(ended["result"].strip())
        self.calls.take(lines, match, call=len(self.calls) + 1, request=request, result=result)
        return True
