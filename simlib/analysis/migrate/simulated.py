# SPDX-License-Identifier: BSD-3-Clause
"""Simulated plans for a guest's migration, before they are put into words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from simlib.vmm.guest import RunningGuest
from simlib.vmm.plans import Plan, PlanOutcome
from simlib.vmm.running import RunningMigration, running_migration
from simlib.vmm.targets import Targets

if TYPE_CHECKING:
    from simlib.analysis.migrate.lock import LockAnswer


@dataclass(frozen=True, repr=False)
class SimulatedMigration:
    """Simulated outcomes of the plans for a guest's migration, and the recommended plan.

    - `frame`: one row per plan: medians, ends of 90 % intervals, shares of the working sets that meet each target, and
      the plan's cost as a clause.
    - `passes`: passes of the recommended plan and of the current settings, for some working sets: plan, guest, time_s,
      new_bytes, left_bytes, lost_percent, sent_bytes.
    - `plans`: the plans that were simulated, the least severe first.
    - `recommended`: the least severe plan that meets the targets, or the one that comes nearest.
    - `meets_targets`: True if the recommended plan meets them.
    - `lock`: effect of mmu_lock, or why it is not simulated; empty if not requested.
    - `kernel`: effect of a patched kernel; empty if not requested.
    - `emit`: output format that the settings must have; empty: any.
    """

    guest: RunningGuest
    targets: Targets
    plans: tuple[Plan, ...]
    outcomes: Mapping[str, list[PlanOutcome]]
    frame: pd.DataFrame
    passes: pd.DataFrame
    recommended: Plan
    meets_targets: bool
    seed: int
    lock: LockAnswer | str = ""
    kernel: str = ""
    emit: str = ""

    def row(self, plan: str) -> dict[str, Any]:
        """Return a plan's row of `frame`."""
        return {str(name): value for name, value in self.frame.set_index("plan").loc[plan].items()}

    @property
    def running(self) -> RunningMigration | None:
        """State of the migration that is running; None if the answer is about a new one."""
        return running_migration(self.guest)
