# SPDX-License-Identifier: BSD-3-Clause
"""The examples on the page `docs/theory.md` print what it says."""

import doctest
from pathlib import Path

from simlib import theory

PAGE = Path(__file__).parents[2] / "docs" / "theory.md"


def test_page():
    assert doctest.testfile(str(PAGE), module_relative=False).failed == 0


def test_page_names_every_function():
    text = PAGE.read_text(encoding="utf-8")
    functions = {name for name in theory.__all__ if not isinstance(getattr(theory, name), type)}
    assert {name for name in functions if f"`{name}" not in text} == set()
