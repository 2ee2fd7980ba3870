# SPDX-License-Identifier: BSD-3-Clause
"""The interactive what-ifs: widgets over `simlib.simulator.sampling`, `simlib.analysis.migrate` and `simlib.figures`.

Two pages without code (`server` shows them), or cells: `page` is about strategies for mmu_lock, `migration_page` about
one migration, and `tabs` has both. `base` is what they share: `fields` that ask, the `canvas` of figures, and what runs
in the background. `state` and `migration_state` are what is asked, as an address; `answers` computes, `findings` keeps
what is known so far, `drawing` draws it, and `words` says it.

Names are imported when they are first used: the server needs nothing of what its page does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simlib._lib import lazy_imports

if TYPE_CHECKING:
    from simlib.ui.explorer.findings import Findings, find
    from simlib.ui.explorer.migration_findings import find_migration
    from simlib.ui.explorer.migration_page import MigrationPage
    from simlib.ui.explorer.migration_state import MigrationState
    from simlib.ui.explorer.page import Explorer
    from simlib.ui.explorer.state import ExplorerState
    from simlib.ui.explorer.tabs import Tabs

__all__ = ["Explorer", "ExplorerState", "Findings", "MigrationPage", "MigrationState", "Tabs", "find", "find_migration"]

_HOMES = {
    "findings": ("Findings", "find"),
    "migration_findings": ("find_migration",),
    "migration_page": ("MigrationPage",),
    "migration_state": ("MigrationState",),
    "page": ("Explorer",),
    "state": ("ExplorerState",),
    "tabs": ("Tabs",),
}
"""Modules, and the public names that they hold; a test holds them against what type checkers are told above."""

__getattr__ = lazy_imports.lazy_names(__name__, _HOMES)
