# SPDX-License-Identifier: BSD-3-Clause
"""The log of the kernel's selftest ``dirty_log_perf_test``.

Printed by ``run_test()`` in ``tools/testing/selftests/kvm/dirty_log_perf_test.c`` and, the guest mode, by
``memstress_create_vm()`` in ``tools/testing/selftests/kvm/lib/memstress.c``.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from simlib.measurements.importers.lines import ForeignText, Lines
from simlib.measurements.importers.tables import Column, Contents, Rows

_RUN = Column("run", "whole", "which of the runs in the log, from 1: one for each guest mode")
_MODE = Column("guest_mode", "text", "address widths and page size of the guest")
ITERATIONS = (
    _RUN,
    _MODE,
    Column("iteration", "whole", "iteration of the test, from 1"),
    Column("dirty_memory_time_s", "number", "until every vCPU had written all its memory"),
    Column("get_dirty_log_time_s", "number", "KVM_GET_DIRTY_LOG of all memslots"),
    Column("clear_dirty_log_time_s", "number", "KVM_CLEAR_DIRTY_LOG of all memslots; empty with -g", optional=True),
)
RUNS = (
    _RUN,
    _MODE,
    Column("iterations", "whole", "iterations of the test"),
    Column("populate_memory_time_s", "number", "until every vCPU had written all its memory the first time"),
    Column("enable_dirty_logging_time_s", "number", "switching dirty logging on for all memslots"),
    Column("disable_dirty_logging_time_s", "number", "switching it off"),
    Column("get_dirty_log_total_time_s", "number", "KVM_GET_DIRTY_LOG, all iterations together"),
    Column("clear_dirty_log_total_time_s", "number", "KVM_CLEAR_DIRTY_LOG, the same; empty with -g", optional=True),
)

_TIME = r"(\d+\.\d{9})s"
_MODE_LINE = re.compile(r"Testing guest mode: (\S.*?)\s*")
_COUNT = re.compile(r"Test iterations: (\d+)\s*")
_PHASE = re.compile(rf"(Populate memory|Enabling dirty logging|Disabling dirty logging) time: {_TIME}\s*")
_ITERATION = re.compile(rf"Iteration (\d+) (dirty memory|get dirty log|clear dirty log) time: {_TIME}\s*")
_TOTAL = re.compile(rf"(Get|Clear) dirty log over (\d+) iterations took {_TIME}\. \(Avg {_TIME}/iteration\)\s*")
_OURS = re.compile(
    r"(?:Testing guest|Test iterations|Populate memory|(?:Enabling|Disabling|Get|Clear) dirty|Iteration \d).*"
)
_FAILED = "==== Test Assertion Failure ===="
_STEPS = ("dirty memory", "get dirty log", "clear dirty log")


@dataclass
class Run:
    """One run of the test while its lines come: times in s of its phases and totals, and of each iteration's steps."""

    mode: str
    phases: dict[str, float] = field(default_factory=dict)
    steps: dict[tuple[int, str], float] = field(default_factory=dict)
    iterations: int = 0

    def missing(self) -> str:
        """First line that the run lacks; empty if it is complete."""
        for phase in ("Populate memory", "Enabling dirty logging", "Disabling dirty logging", "Get"):
            if phase not in self.phases:
                return f"{phase} time" if phase != "Get" else "Get dirty log over … iterations"
        clears = "Clear" in self.phases or any(step == "clear dirty log" for _, step in self.steps)
        if clears and "Clear" not in self.phases:
            return "Clear dirty log over … iterations"
        wanted = [(i, step) for i in range(1, self.iterations + 1) for step in (_STEPS if clears else _STEPS[:2])]
        absent = [f"Iteration {i} {step} time" for i, step in wanted if (i, step) not in self.steps]
        if not absent and len(self.steps) > len(wanted):
            return f"Get dirty log over {max(i for i, _ in self.steps)} iterations"
        return absent[0] if absent else ""


def looks_like(head: list[str]) -> bool:
    """Tell whether the first lines of a text are those of ``dirty_log_perf_test``."""
    patterns = (_COUNT, _PHASE, _ITERATION, _TOTAL)
    return any(pattern.fullmatch(line) for pattern in patterns for line in head)


def read_dirty_log(lines: Lines) -> Contents:
    """Read the log of ``dirty_log_perf_test``.

    Printed by ``run_test()`` in ``tools/testing/selftests/kvm/dirty_log_perf_test.c``. A log holds a run for each
    guest mode, and may hold several logs; it says neither the number of vCPUs nor their memory. Lines of others
    (random seed, memory region, debug output) are passed over.

    Returns: Tables ``iterations`` (a row an iteration of a run) and ``runs``. Raises `InputError` if a line cannot be
    read, a run is not complete, or the test failed.

    Examples
    --------
    >>> text = '''Test iterations: 2
    ... Testing guest mode: PA-bits:ANY, VA-bits:48,  4K pages
    ... Populate memory time: 1.500000000s
    ... Enabling dirty logging time: 0.000020000s
    ...
    ... Iteration 1 dirty memory time: 0.926000000s
    ... Iteration 1 get dirty log time: 0.000100000s
    ... Disabling dirty logging time: 0.002000000s
    ... Get dirty log over 1 iterations took 0.000100000s. (Avg 0.000100000s/iteration)
    ... '''
    >>> read_dirty_log(Lines.of(text)).tables[0].frame[["iteration", "dirty_memory_time_s"]]
       iteration  dirty_memory_time_s
    0          1                0.926
    """
    runs: list[Run] = []
    for line in lines:
        text = line.strip()
        if found := _MODE_LINE.fullmatch(text):
            _check_complete(lines, runs)
            runs.append(Run(re.sub(r"\s+", " ", found[1])))
        elif _FAILED in text:
            raise lines.fault(text, "the test must have passed", "see its message, and run it again")
        elif not text or _COUNT.fullmatch(text) or not _OURS.fullmatch(text):
            continue
        elif not runs:
            raise lines.fault(text, "must come after 'Testing guest mode: …'", "save the whole log")
        elif found := _PHASE.fullmatch(text):
            _put(lines, runs[-1].phases, found[1], found[2])
        elif found := _ITERATION.fullmatch(text):
            number = lines.whole(found[1], "the iteration")
            _put(lines, runs[-1].steps, (number, found[2]), found[3])
        elif found := _TOTAL.fullmatch(text):
            _put(lines, runs[-1].phases, found[1], found[3])
            runs[-1].iterations = lines.whole(found[2], "iterations")
        else:
            raise lines.fault(line, "must be a line of dirty_log_perf_test", "is it complete? save the log again")
    if not runs:
        raise ForeignText("the log of dirty_log_perf_test, with its lines 'Testing guest mode: …'")
    _check_complete(lines, runs)
    return _contents(runs)


def _put(lines: Lines, times: dict[Any, float], key: Any, text: str) -> None:
    """Keep a time, once."""
    if key in times:
        raise lines.fault(lines.where, "a run must say each time once", "do two logs run into each other?")
    times[key] = lines.decimal(text, "a time")


def _check_complete(lines: Lines, runs: list[Run]) -> None:
    """Refuse a run that ends too early."""
    missing = runs[-1].missing() if runs else ""
    if missing:
        raise lines.end_fault("the end of a run", f"the line {missing!r} must stand before it")


def _contents(runs: list[Run]) -> Contents:
    """Tables of all runs."""
    iterations, summary = Rows(ITERATIONS), Rows(RUNS)
    for number, run in enumerate(runs, 1):
        for iteration in range(1, run.iterations + 1):
            times = [run.steps.get((iteration, step), math.nan) for step in _STEPS]
            iterations.add(number, run.mode, iteration, *times)
        phases = ("Populate memory", "Enabling dirty logging", "Disabling dirty logging", "Get", "Clear")
        summary.add(number, run.mode, run.iterations, *(run.phases.get(phase, math.nan) for phase in phases))
    return Contents(
        (
            iterations.table("iterations", "dirty_log_perf_test: times of each iteration", ("run", "iteration")),
            summary.table("runs", "dirty_log_perf_test: times of each run", ("run",)),
        )
    )
