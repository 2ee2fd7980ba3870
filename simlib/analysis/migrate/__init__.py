# SPDX-License-Identifier: BSD-3-Clause
"""Will a guest's migration converge, and with which settings.

`guest` is who is asked about, and what is wished. `plans` are ways to migrate it, each simulated by the course of a
migration (`simlib.vmm`). `answer` takes the least drastic one that keeps to the wishes, and `paste` writes it down.
"""

from simlib.analysis.migrate.answer import Migration, migrate
from simlib.vmm.guest import MigratingGuest, Targets
from simlib.vmm.plans import Plan

__all__ = ["MigratingGuest", "Migration", "Plan", "Targets", "migrate"]
