# SPDX-License-Identifier: BSD-3-Clause
"""Runs a trial of a series, or of each of its patches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simlib._lib.parallel import Progress, subprogresses
from simlib.lab.cache import at_work
from simlib.lab.trial.kernels import COUNTED
from simlib.lab.trial.machine import How
from simlib.lab.trial.request import Request
from simlib.lab.trial.result import Trial


def try_series(
    series: str | Path,
    *,
    source: str | Path | None = None,
    machines: Sequence[str] = (),
    quick: bool = False,
    parameters: Mapping[str, Any] | None = None,
    of_both: Mapping[str, Any] | None = None,
    kernel: str = COUNTED,
    jobs: int = 0,
    progress: Progress = lambda what, share: None,
) -> Trial:
    """Try a series of patches: a kernel without it and one with it are built and booted, and what differs is told.

    Raises `InputError` for what is no series, no source or no machine. Raises `SimlibError` if a patch does not apply
    or compile, if it takes mmu_lock where nothing counts it, or if the kernel without the series does not run. What
    the changed kernel does wrong stands in the result.

    - `series`: a folder of patches, a mailbox or a patch, a range of commits of `source` such as ``HEAD~3..HEAD``, or
      patches of ours by number (``7``, ``16-17``), on top of those before them.
    - `source`: a kernel tree, in which nothing is written. Default: the source package.
    - `machines`: of `simlib.lab.trial.cells.MACHINES`, or architectures. Default: those that the series can touch.
    - `quick`: the small matrix: minutes on two cores.
    - `parameters`: of the module kvm, set for the changed kernel.
    - `of_both`: those that are set for both kernels.
    - `kernel`: of `simlib.lab.build.KERNELS`: with the statistics of the lab; ``plain``, for times without any; or
      ``lock-stat``, which counts by lock where the statistics do not fit, and has no times but waits.
    - `jobs`: boots at a time; 0: one for every core.
    - `progress`: told what is being done, and the share that is done.
    """
    asked = Request.read(str(series), source, machines, How(quick, parameters or {}, of_both or {}, kernel, jobs))
    [found] = _tried(asked, [(0, len(asked.patches))], (), progress)
    return found


def try_each_patch(
    series: str | Path,
    *,
    source: str | Path | None = None,
    machines: Sequence[str] = (),
    quick: bool = False,
    kernel: str = COUNTED,
    jobs: int = 0,
    progress: Progress = lambda what, share: None,
) -> list[Trial]:
    """Try each patch of a series beside the kernel with those before it, so that the one that makes a difference shows.

    Returns: A trial for each patch. Raises as `try_series`.

    - `series`, `source`, `machines`, `quick`, `kernel`, `jobs`, `progress`: as in `try_series`; no patches of ours.
    """
    each = "--each-patch"
    asked = Request.read(str(series), source, machines, How(quick, kernel=kernel, jobs=jobs)).piecewise(each)
    return _tried(asked, [(number, number + 1) for number in range(len(asked.patches))], [each], progress)


def _tried(asked: Request, parts: Sequence[tuple[int, int]], more: Sequence[str], progress: Progress) -> list[Trial]:
    """A trial of each part of a series: from which patch, and before which."""
    opening, *shares = subprogresses(progress, [0.02, *[0.98 / max(1, len(parts))] * len(parts)])
    with at_work(alone=True):
        source = asked.open(opening)
        asked.both(source, 0, len(asked.patches))  # all of them apply, before minutes are spent on the first
        return [asked.trial(source, *part, more, share) for part, share in zip(parts, shares, strict=True)]
