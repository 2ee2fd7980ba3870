# SPDX-License-Identifier: BSD-3-Clause
"""A sweep that takes seconds, and its undisturbed result."""

from __future__ import annotations

import pytest
from small_sweep import TABLES

from simlib.analysis.sweep import read_grid, run, store


@pytest.fixture(scope="session")
def grid():
    return read_grid(TABLES)


@pytest.fixture(scope="session")
def undisturbed(grid, tmp_path_factory):
    """Folder with one part for each architecture, however long the run takes."""
    folder = tmp_path_factory.mktemp("sweep") / "undisturbed"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "FLUSH_INTERVAL_S", 3600.0)
        run(grid, folder, workers=1)
    return folder
