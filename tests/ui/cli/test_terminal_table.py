# SPDX-License-Identifier: BSD-3-Clause
"""Tables of the command line: as wide as the terminal at most, numbers whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simlib.ui.cli.output import LONGEST_WORD, fitted

WORDS = st.lists(st.text(st.characters(min_codepoint=97, max_codepoint=122), min_size=1, max_size=30), max_size=12)


@given(st.lists(st.tuples(WORDS.map(" ".join), st.integers(), WORDS.map(" ".join)), min_size=1, max_size=5),
       st.integers(LONGEST_WORD + 2, 120))  # fmt: skip
def test_a_table_keeps_to_the_width_and_loses_no_word(rows, width):
    cells = [[left, str(number), right] for left, number, right in rows]
    text, left_out = fitted(["a", "n", "b"], cells, [False, True, False], width)
    assert max(map(len, text.splitlines())) <= width
    shown = 3 - len(left_out)
    whole = "".join(text.split())
    for row in cells:
        for i, cell in enumerate(row[:shown]):
            if i == 1 or shown == 1:
                assert "".join(cell.split()) in whole


@pytest.mark.parametrize("width", [10, 30])
def test_what_has_no_room_is_left_out_from_the_right(width):
    _, left_out = fitted(["one", "two", "three"], [["1" * 9, "2" * 9, "3" * 9]], [True] * 3, width)
    assert left_out == (["two", "three"] if width == 10 else ["three"] if width < 31 else [])
