# SPDX-License-Identifier: BSD-3-Clause
"""Choose the engine: the reference engine for small runs until the compiled one is loaded.

Both give the same result. Compiling takes half a minute of CPU time, once per installation. Loading takes a third of a
second in each process.
"""

from __future__ import annotations

from simlib.model.job import Job
from simlib.simulator.engine import compiled, reference
from simlib.simulator.engine.result import EngineResult, Progress

MAX_REFERENCE_EVENTS = 20_000
"""Maximum number of events of a run on the reference engine, which simulates them in a quarter of a second."""

COMPILE_AFTER_EVENTS = 500_000
"""Number of events of reference runs in this process (about six seconds) after which compiling pays off."""

LOAD_AFTER_EVENTS = 10_000
"""Number of events of reference runs after which loading pays off, if the engine is already compiled."""


class _ReferenceEvents:
    """Number of events that the reference engine has simulated in this process."""

    events = 0


class _TooLongError(Exception):
    """The run has too many events for the reference engine."""


def run(job: Job, seed: int = 1, *, trace: int = 0, progress: Progress | None = None) -> EngineResult:
    """Run a job; arguments (except `ledger`), result and errors are those of `simlib.simulator.engine.compiled.run`."""
    budget = 0
    if not (trace or compiled.is_loaded()):
        limit = LOAD_AFTER_EVENTS if compiled.is_compiled() else COMPILE_AFTER_EVENTS
        budget = min(MAX_REFERENCE_EVENTS, limit - _ReferenceEvents.events)
    if 0 < budget >= job.pages:  # there is at least one event per page

        def stop(events: int, now: int) -> None:
            if events > budget:
                raise _TooLongError

        try:
            result = reference.run(job, seed, progress=stop)
        except _TooLongError:
            pass
        else:
            _ReferenceEvents.events += result.events
            return result
    return compiled.run(job, seed, trace=trace, progress=progress)
