# SPDX-License-Identifier: BSD-3-Clause
"""Convergence of a guest's migration, and the settings to use.

`simlib.vmm` describes the guest and the targets, simulates plans with a model of pre-copy, and formats the settings.
`migrate` recommends the least drastic plan that meets the targets; `lock` adds the effect of mmu_lock.
"""

from simlib.analysis.migrate.answer import Migration, MigrationOptions, migrate
from simlib.vmm.guest import RunningGuest
from simlib.vmm.plans import Plan
from simlib.vmm.targets import Targets

__all__ = ["Migration", "MigrationOptions", "Plan", "RunningGuest", "Targets", "migrate"]
