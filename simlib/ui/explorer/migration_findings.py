# SPDX-License-Identifier: BSD-3-Clause
"""Answer of the page about a migration."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from simlib._lib.parallel import Progress
from simlib.analysis.migrate import Migration, MigrationOptions, migrate
from simlib.ui.explorer.findings import KnownCosts
from simlib.ui.explorer.migration_state import DRAWS, MigrationState


@dataclass
class MigrationFindings(KnownCosts[MigrationState]):
    """Results of the page for one migration."""

    def table(self) -> pd.DataFrame:
        """Return the table of plans (`simlib.analysis.migrate.Migration`); empty until it is simulated."""
        return self.parts["answer"].frame if "answer" in self.parts else pd.DataFrame()


def answer(state: MigrationState, progress: Progress | None = None) -> Migration:
    """Return the answer that the page shows."""
    options = MigrationOptions(draws=DRAWS, lock=False, emit=state.texts["emit"])
    return migrate(state.guest, state.targets, options=options, progress=progress)


def find_migration(state: MigrationState, progress: Progress | None = None) -> MigrationFindings:
    """Find everything about a state; `progress` is called with (what, share done).

    >>> state = MigrationState({"memory": "8G", "working-set": "1G", "link": "100Gbit/s"})
    >>> find_migration(state).table()["plan"].iloc[0]
    'as it is'
    """
    return MigrationFindings(state, parts={"answer": answer(state, progress)})
