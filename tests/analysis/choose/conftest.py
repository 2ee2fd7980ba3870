# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures for tests of choices."""

from __future__ import annotations

import pytest

from simlib.analysis.choose import choice as choice_module


@pytest.fixture
def short(monkeypatch):
    """Reduce the replications for tests that do not depend on their number."""
    monkeypatch.setattr(choice_module, "SELECTION_RUNS", 4)
    monkeypatch.setattr(choice_module, "LOOKS", (6, 8))
