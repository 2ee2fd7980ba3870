# SPDX-License-Identifier: BSD-3-Clause
"""The log of the kernel's selftest ``dirty_log_perf_test``.

``run_test()`` in ``tools/testing/selftests/kvm/dirty_log_perf_test.c`` prints it, except for the guest mode, which
``memstress_create_vm()`` in ``tools/testing/selftests/kvm/lib/memstress.c`` prints.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, field

from simlib.measurements.importers.lines import ForeignText, Lines, any_line
from simlib.measurements.importers.tables import Column, Contents, TableRows

_RUN = Column("run", "whole", "number of the run in the log, from 1; each guest mode is a run")
_MODE = Column("guest_mode", "text", "address widths and page size of the guest")
ITERATIONS = (
    _RUN,
    _MODE,
    Column("iteration", "whole", "iteration of the test, from 1"),
    Column("dirty_memory_time_s", "number", "time until every vCPU had accessed all its memory"),
    Column("get_dirty_log_time_s", "number", "time of KVM_GET_DIRTY_LOG for all memslots"),
    Column("clear_dirty_log_time_s", "number", "time of KVM_CLEAR_DIRTY_LOG for all memslots; empty with -g", True),
)
RUNS = (
    _RUN,
    _MODE,
    Column("iterations", "whole", "iterations of the test"),
    Column("populate_memory_time_s", "number", "time until every vCPU had written all its memory once"),
    Column("enable_dirty_logging_time_s", "number", "time to enable dirty logging for all memslots"),
    Column("disable_dirty_logging_time_s", "number", "time to disable dirty logging for all memslots"),
    Column("get_dirty_log_total_time_s", "number", "total time of KVM_GET_DIRTY_LOG over all iterations"),
    Column("clear_dirty_log_total_time_s", "number", "total time of KVM_CLEAR_DIRTY_LOG; empty with -g", optional=True),
)

_PHASES = ("Populate memory time", "Enabling dirty logging time", "Disabling dirty logging time")
_STEPS = ("dirty memory", "get dirty log", "clear dirty log")
_TIME = r"(?P<seconds>\d+\.\d{9})s"
_MODE_LINE = re.compile(r"Testing guest mode: (\S.*?)\s*")
_COUNT = re.compile(r"Test iterations: (\d+)\s*")
_TIMED = re.compile(rf"(?P<what>{'|'.join(_PHASES)}|Iteration \d+ (?:{'|'.join(_STEPS)}) time): {_TIME}\s*")
_TOTAL = re.compile(
    rf"(?P<what>Get|Clear) dirty log over (?P<count>\d+) iterations took {_TIME}\. \(Avg [\d.]+s/iteration\)\s*"
)
_OURS = re.compile(
    r"(?:Testing guest|Test iterations|Populate memory|(?:Enabling|Disabling|Get|Clear) dirty|Iteration \d).*"
)
looks_like = any_line(_COUNT, _TIMED, _TOTAL)
_FAILED = "==== Test Assertion Failure ===="


@dataclass
class TestRun:
    """One run of the test, filled line by line; `times`, in s, have the labels of the lines as keys."""

    mode: str
    times: dict[str, float] = field(default_factory=dict)
    iterations: int = 0

    def put(self, lines: Lines, label: str, seconds: str) -> None:
        """Store a time; refuse a second time with the same label."""
        if label in self.times:
            raise lines.fault(lines.where, "each time must occur only once in a run", "does the file contain two logs?")
        self.times[label] = lines.decimal(seconds, "a time")

    def check_complete(self, lines: Lines) -> None:
        """Refuse an incomplete run."""
        clears = any("clear dirty log" in label.lower() for label in self.times)
        steps, totals = (_STEPS, 2) if clears else (_STEPS[:2], 1)
        per_iteration = (f"Iteration {i} {step} time" for i in range(1, self.iterations + 1) for step in steps)
        required = itertools.chain(_PHASES, map(_total, ("Get", "Clear")[:totals]), per_iteration)
        missing = next((label for label in required if label not in self.times), "")
        if missing:
            raise lines.end_fault("the end of a run", f"the line {missing!r} must come before it")
        if len(self.times) > len(_PHASES) + totals + self.iterations * len(steps):
            rule = f"must have no times of iterations after the last one of its total ({self.iterations})"
            raise lines.fault("the run", rule, "does the file contain two logs?")


def _total(ioctl: str) -> str:
    return f"{ioctl} dirty log over … iterations"


def read_log(lines: Lines) -> Contents:
    """Read one or several logs of ``dirty_log_perf_test``, each with one run per guest mode.

    The log states neither the number of vCPUs nor their memory. Other lines (random seed, debug output) are skipped.
    """
    runs: list[TestRun] = []
    for line in lines:
        text = line.strip()
        if match := _MODE_LINE.fullmatch(text):
            for run in runs[-1:]:
                run.check_complete(lines)
            runs.append(TestRun(re.sub(r"\s+", " ", match[1])))
        elif _FAILED in text:
            raise lines.fault(text, "the test must have passed", "see its message, and run the test again")
        elif not text or _COUNT.fullmatch(text) or not _OURS.fullmatch(text):
            continue
        elif not runs:
            raise lines.fault(text, "must come after 'Testing guest mode: …'", "save the whole log")
        elif match := _TIMED.fullmatch(text):
            runs[-1].put(lines, match["what"], match["seconds"])
        elif match := _TOTAL.fullmatch(text):
            runs[-1].put(lines, _total(match["what"]), match["seconds"])
            runs[-1].iterations = lines.whole(match["count"], "iterations")
        else:
            raise lines.fault(line, "must be a line of dirty_log_perf_test", "is it complete? save the log again")
    if not runs:
        raise ForeignText("the log of dirty_log_perf_test, with its lines 'Testing guest mode: …'")
    runs[-1].check_complete(lines)
    iterations, summary = TableRows(ITERATIONS), TableRows(RUNS)
    for number, run in enumerate(runs, 1):
        for iteration in range(1, run.iterations + 1):
            times = [run.times.get(f"Iteration {iteration} {step} time", math.nan) for step in _STEPS]
            iterations.add(number, run.mode, iteration, *times)
        phases = (*_PHASES, _total("Get"), _total("Clear"))
        summary.add(number, run.mode, run.iterations, *(run.times.get(phase, math.nan) for phase in phases))
    rounds = iterations.table("iterations", "dirty_log_perf_test: times of each iteration", ("run", "iteration"))
    return Contents((rounds, summary.table("runs", "dirty_log_perf_test: times of each run", ("run",))))
