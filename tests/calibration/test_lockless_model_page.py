# SPDX-License-Identifier: BSD-3-Clause
"""The examples of `docs/model.md` on getting the dirty log without the lock print what it says."""

import doctest
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "model.md"


def section() -> str:
    """Its part on seed 002."""
    return PAGE.read_text(encoding="utf-8").partition("### 2.2 ")[2].partition("\n### ")[0]


def test_examples():
    examples = doctest.DocTestParser().get_doctest(section(), {}, "model.md 2.2", str(PAGE), 0)
    assert len(examples.examples) >= 4
    assert doctest.DocTestRunner().run(examples).failed == 0


def test_equations_are_numbered_in_order():
    numbers = re.findall(r"^    \(2\.(\d+)\)", section(), re.MULTILINE)
    assert numbers == [str(n) for n in range(1, len(numbers) + 1)]
    assert len(numbers) == 10
