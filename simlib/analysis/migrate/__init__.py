# SPDX-License-Identifier: BSD-3-Clause
"""Convergence of a guest's migration, and the settings to use.

`simlib.vmm` has the guest, the targets, the plans with the pre-copy model behind them, and the text to paste.
`migrate` recommends the least drastic plan that meets the targets; `lock` adds what mmu_lock has to do with it.
"""

from simlib.analysis.migrate.answer import Migration, MigrationOptions, migrate
from simlib.vmm.guest import RunningGuest
from simlib.vmm.plans import Plan
from simlib.vmm.targets import Targets

__all__ = ["Migration", "MigrationOptions", "Plan", "RunningGuest", "Targets", "migrate"]
