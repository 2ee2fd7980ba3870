# SPDX-License-Identifier: BSD-3-Clause
"""The compiled engine; before it is compiled, the reference engine for what that does sooner.

Both give the same result. Compiling takes half a minute of processor time after an installation.
"""

from __future__ import annotations

from collections.abc import Callable

from simlib.engine import compiled, reference
from simlib.engine.result import EngineResult
from simlib.model.job import Job

SMALL = 20_000
"""Events of a run that is left to the reference engine, at most: a quarter of a second."""

PAYS = 500_000
"""Events of all of them in this process after which compiling pays: six seconds."""


class _Spent:
    """Events that the reference engine simulated so far."""

    events = 0


class _TooLongError(Exception):
    """A run is not small."""


def run(job: Job, seed: int = 1, *, trace: int = 0, progress: Callable[[int, int], None] | None = None) -> EngineResult:
    """Run a job; arguments, result and errors as `simlib.engine.compiled.run`."""
    if not trace and job.pages <= SMALL and _Spent.events < PAYS and not compiled.is_compiled():
        try:
            found = reference.run(job, seed, progress=_stop)
        except _TooLongError:
            pass
        else:
            _Spent.events += found.events
            return found
    return compiled.run(job, seed, trace=trace, progress=progress)


def _stop(events: int, now: int) -> None:
    if events > SMALL:
        raise _TooLongError
