# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures of the lab's tests: an own folder for the lab, and a PATH with only fake programs."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the lab."""
    monkeypatch.setenv("SIMLIB_LAB", str(tmp_path / "lab"))
    return tmp_path / "lab"


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder
