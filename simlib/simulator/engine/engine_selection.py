# SPDX-License-Identifier: BSD-3-Clause
"""The compiled engine; before it is compiled or loaded, the reference engine for what that does sooner.

Both give the same result. Compiling takes half a minute of processor time after an installation, loading a third of a
second in each process.
"""

from __future__ import annotations

from collections.abc import Callable

from simlib.model.job import Job
from simlib.simulator.engine import compiled, reference
from simlib.simulator.engine.result import EngineResult

SMALL = 20_000
"""Events of a run that is left to the reference engine, at most: a quarter of a second."""

PAYS = 500_000
"""Events of all of them in this process after which compiling pays: six seconds."""

LOADS = 10_000
"""Events of all of them after which loading pays, where the engine is compiled already."""


class _Spent:
    """Events that the reference engine simulated so far."""

    events = 0


class _TooLongError(Exception):
    """A run is not small."""


def run(job: Job, seed: int = 1, *, trace: int = 0, progress: Callable[[int, int], None] | None = None) -> EngineResult:
    """Run a job; arguments, result and errors as `simlib.simulator.engine.compiled.run`."""
    most = 0 if trace else _most()
    if 0 < most >= job.pages:  # a page has an event at least

        def stop(events: int, now: int) -> None:
            if events > most:
                raise _TooLongError

        try:
            found = reference.run(job, seed, progress=stop)
        except _TooLongError:
            pass
        else:
            _Spent.events += found.events
            return found
    return compiled.run(job, seed, trace=trace, progress=progress)


def _most() -> int:
    """Events that a run may have for the reference engine to end sooner."""
    if compiled.is_loaded():
        return 0
    return min(SMALL, (LOADS if compiled.is_compiled() else PAYS) - _Spent.events)
