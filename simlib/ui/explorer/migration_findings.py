# SPDX-License-Identifier: BSD-3-Clause
"""What the page about a migration answers."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from simlib._lib.parallel import Progress
from simlib.analysis.migrate import Migration, migrate
from simlib.ui.explorer.findings import KnownCosts
from simlib.ui.explorer.migration_state import DRAWS, MigrationState


@dataclass
class MigrationFindings(KnownCosts[MigrationState]):
    """What is known about one migration."""

    def table(self) -> pd.DataFrame:
        """A row a plan (`simlib.analysis.migrate.Migration`); empty until it is simulated."""
        return self.parts["found"].frame if "found" in self.parts else pd.DataFrame()


def answer(state: MigrationState, progress: Progress | None = None) -> Migration:
    """The answer that the page shows."""
    return migrate(state.guest, state.wishes, draws=DRAWS, lock=False, target=state.texts["for"], progress=progress)


def find_migration(state: MigrationState, progress: Progress | None = None) -> MigrationFindings:
    """Everything about a state; `progress` is called with what, and the share done.

    >>> asked = MigrationState({"memory": "8G", "working-set": "1G", "link": "100Gbit/s"})
    >>> find_migration(asked).table()["plan"].iloc[0]
    'as it is'
    """
    return MigrationFindings(state, parts={"found": answer(state, progress)})
