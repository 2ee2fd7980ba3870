# SPDX-License-Identifier: BSD-3-Clause
"""Options of a trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simlib.lab.trial.kernels import STATISTICS_KERNEL


@dataclass(frozen=True)
class TrialOptions:
    """Options of `simlib.lab.try_series`, `try_each_patch` and `bisect_series`.

    - `source`: a kernel tree, which is only read. Default: the source package.
    - `mmu_modes`: of `simlib.lab.trial.cells.MMU_MODES`, or architectures. Default: those that the series can touch.
    - `quick`: run the small matrix: minutes on two cores.
    - `parameters`: of the module kvm, for the kernel with the series. `shared_parameters`: for both kernels. Only
      `try_series` accepts them.
    - `kernel`: of `simlib.lab.build.KERNELS`: with the lab's statistics; ``plain``, which has only times; or
      ``lock-stat``, which counts by lock where the statistics do not fit, and has no times except waits.
    - `jobs`: concurrent boots; 0: one for every core.
    """

    source: str | Path | None = None
    mmu_modes: Sequence[str] = ()
    quick: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)
    shared_parameters: Mapping[str, Any] = field(default_factory=dict)
    kernel: str = STATISTICS_KERNEL
    jobs: int = 0
