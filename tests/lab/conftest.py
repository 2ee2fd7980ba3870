# SPDX-License-Identifier: BSD-3-Clause
"""Every test of the lab has a lab of its own, and a PATH that it can empty."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The lab's folder."""
    monkeypatch.setenv("SIMLIB_LAB", str(tmp_path / "lab"))
    return tmp_path / "lab"


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder
