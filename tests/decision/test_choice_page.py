# SPDX-License-Identifier: BSD-3-Clause
"""The example on the page `docs/choose-batch.md` prints what it says."""

import doctest
from pathlib import Path


def test_page():
    page = Path(__file__).parents[2] / "docs" / "choose-batch.md"
    found = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert found.attempted > 3
    assert found.failed == 0
