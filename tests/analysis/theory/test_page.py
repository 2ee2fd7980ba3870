# SPDX-License-Identifier: BSD-3-Clause
"""The page docs/theory.md names all functions; tests/website runs its examples."""

from pathlib import Path

from simlib.analysis import theory

PAGE = Path(__file__).parents[3] / "docs" / "theory.md"


def test_page_names_every_function():
    text = PAGE.read_text(encoding="utf-8")
    functions = {name for name in theory.__all__ if not isinstance(getattr(theory, name), type)}
    assert {name for name in functions if f"`{name}" not in text} == set()
