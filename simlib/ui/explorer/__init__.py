# SPDX-License-Identifier: BSD-3-Clause
"""Interactive what-if pages: widgets for `simlib.simulator.sampling`, `simlib.analysis.migrate` and `simlib.figures`.

Two pages, shown by `server` or in a notebook cell: `page` compares strategies for mmu_lock, `migration_page` plans a
migration, and `tabs` contains both. `base` has what they share: the controls (`fields`), the figures (`canvas`) and
the thread that simulates. `state` and `migration_state` hold a page's state and convert it to and from a URL.
`migration_inputs` derives the controls of the migration page from the inputs of the command, and `pasted_log` and
`log_area` accept a log. `answers` computes, `findings` keeps the results, `drawing` draws them, and `words` writes the
sentences.

Names are imported when they are first used, so that the server starts without the simulator.
"""

from typing import TYPE_CHECKING

from simlib._lib import lazy_imports

if TYPE_CHECKING:
    from simlib.ui.explorer.findings import Findings, find, find_migration
    from simlib.ui.explorer.migration_page import MigrationPage
    from simlib.ui.explorer.migration_state import MigrationState
    from simlib.ui.explorer.page import Explorer
    from simlib.ui.explorer.state import ExplorerState
    from simlib.ui.explorer.tabs import Tabs

__all__ = ["Explorer", "ExplorerState", "Findings", "MigrationPage", "MigrationState", "Tabs", "find", "find_migration"]

_HOMES = {
    "findings": ("Findings", "find", "find_migration"),
    "migration_page": ("MigrationPage",),
    "migration_state": ("MigrationState",),
    "page": ("Explorer",),
    "state": ("ExplorerState",),
    "tabs": ("Tabs",),
}
"""Modules, and the public names that they hold; a test compares them with the imports for type checkers above."""

__getattr__ = lazy_imports.lazy_names(__name__, _HOMES)
