# SPDX-License-Identifier: BSD-3-Clause
"""Try a series as a whole, or each of its patches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simlib._lib.parallel import Progress, subprogresses
from simlib.lab.cache import lab_lock
from simlib.lab.trial.options import TrialOptions
from simlib.lab.trial.request import Request
from simlib.lab.trial.result import Trial


def try_series(
    series: str | Path,
    options: TrialOptions | None = None,
    *,
    progress: Progress = lambda what, share: None,
) -> Trial:
    """Build and boot a kernel without a patch series and one with it, and compare their numbers.

    Raises `InputError` for an unknown series, source or MMU mode. Raises `SimlibError` if a patch does not apply or
    compile, if it takes mmu_lock where the statistics do not count it, or if the kernel without the series does not
    run. A failure of the kernel with the series is part of the result.

    - `series`: a folder of patches, a mailbox, a patch, a range of commits of `options.source` such as
      ``HEAD~3..HEAD``, or patches of the bundled series by number (``7``, ``16-17``), on top of those before them.
    - `progress`: called with a description of each step and the completed share.
    """
    request = Request.read(str(series), options or TrialOptions())
    [trial] = _try_parts(request, [(0, len(request.patches))], (), progress)
    return trial


def try_each_patch(
    series: str | Path,
    options: TrialOptions | None = None,
    *,
    progress: Progress = lambda what, share: None,
) -> list[Trial]:
    """Try each patch of a series, compared with the kernel that has the patches before it.

    Returns: a trial for each patch. Raises as `try_series`, and `InputError` for bundled patches or parameters.

    - `series`, `progress`: as in `try_series`.
    """
    flag = "--each-patch"
    request = Request.read(str(series), options or TrialOptions(), flag)
    return _try_parts(request, [(number, number + 1) for number in range(len(request.patches))], [flag], progress)


def _try_parts(
    request: Request, parts: Sequence[tuple[int, int]], flags: Sequence[str], progress: Progress
) -> list[Trial]:
    """Try parts of a series, each given by its first patch and the end of its range."""
    opening, *shares = subprogresses(progress, [0.02, *[0.98 / max(1, len(parts))] * len(parts)])
    with lab_lock(exclusive=True):
        source = request.open(opening)
        request.stage(source, 0, len(request.patches))  # checks that all apply before the first trial takes minutes
        return [request.trial(source, part, flags, share) for part, share in zip(parts, shares, strict=True)]
