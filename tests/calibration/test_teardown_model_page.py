# SPDX-License-Identifier: BSD-3-Clause
"""The equations of `docs/model.md` on teardown are numbered; tests/website runs its examples."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "model.md"


def section() -> str:
    """Its part on teardown."""
    return PAGE.read_text(encoding="utf-8").partition("### 2.3 ")[2].partition("\n### ")[0]


def test_equations_are_numbered_in_order():
    numbers = re.findall(r"^    \(3\.(\d+)\)", section(), re.MULTILINE)
    assert numbers == [str(n) for n in range(1, len(numbers) + 1)]
    assert len(numbers) == 10
