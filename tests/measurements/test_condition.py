# SPDX-License-Identifier: BSD-3-Clause
"""Conditions on rows: the grammar, what it selects, and what it refuses."""

from contextlib import suppress

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simlib.errors import InputError
from simlib.measurements import Clause, Condition, parse_condition

FRAME = pd.DataFrame(
    {
        "vcpus": [1, 2, 16, 64],
        "series": ["spin", "spin", "rw lock", "it's"],
        "clear_time_s": [0.5, np.nan, 2.0, -1.5],
    }
)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("", [0, 1, 2, 3]),
        ("  ", [0, 1, 2, 3]),
        ("vcpus <= 2", [0, 1]),
        ("vcpus<=2", [0, 1]),
        ("vcpus < 2", [0]),
        ("vcpus > 2", [2, 3]),
        ("vcpus >= 16", [2, 3]),
        ("vcpus == 16.0", [2]),
        ("vcpus != 16", [0, 1, 3]),
        ("vcpus in 2,16, 64", [1, 2, 3]),
        ("vcpus in 2", [1]),
        ("clear_time_s < -1e-3", [3]),
        ("clear_time_s != 2", [0, 3]),  # a missing value meets no condition
        ("series == spin", [0, 1]),
        ("series == 'rw lock'", [2]),
        ('series == "it\'s"', [3]),
        ("series != spin and vcpus > 16", [3]),
        ("series in spin,'rw lock' and vcpus >= 2 and vcpus <= 16", [1, 2]),
        ("series == 'a and b'", []),
    ],
)
def test_a_condition_selects_rows(text: str, rows: list[int]) -> None:
    assert np.flatnonzero(parse_condition(text).mask(FRAME)).tolist() == rows


@pytest.mark.parametrize(
    "text",
    [
        "vcpus",
        "vcpus <=",
        "vcpus = 8",
        "vcpus in",
        "vcpus in 1,",
        "vcpus <= 8 and",
        "and vcpus <= 8",
        "vcpus <= 8 or vcpus == 16",
        "vcpus <= 8 vcpus >= 1",
        "vcpus == 1, 2",
        "8 >= vcpus",
        "'vcpus' == 8",
        "series == 'open",
        "__import__('os').system('true')",
        "vcpus == == 8",
        "vcpus & 8",
    ],
)
def test_anything_else_is_one_sentence(text: str) -> None:
    with pytest.raises(InputError, match=r"must be a comparison .*write `column op value`") as caught:
        parse_condition(text)
    assert "\n" not in str(caught.value)


def test_an_unknown_column_names_the_nearest() -> None:
    with pytest.raises(InputError, match="vcpu: the column does not exist; did you mean 'vcpus'"):
        parse_condition("vcpu <= 8").mask(FRAME)


def test_a_number_is_not_compared_with_text() -> None:
    with pytest.raises(InputError, match="many: the column holds numbers"):
        parse_condition("vcpus == many").mask(FRAME)
    with pytest.raises(InputError, match="<: the column holds text"):
        parse_condition("series < spin").mask(FRAME)


def test_nothing_is_executed() -> None:
    with pytest.raises(InputError):
        parse_condition("vcpus == @open('x')")
    assert not parse_condition("series == __import__").mask(FRAME).any()


_columns = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
_literals = st.text(st.characters(codec="ascii", exclude_characters="'", min_codepoint=32), max_size=8)
_single = st.builds(Clause, _columns, st.sampled_from(["==", "!=", "<=", ">=", "<", ">"]), st.tuples(_literals))
_several = st.builds(Clause, _columns, st.just("in"), st.lists(_literals, min_size=1, max_size=3).map(tuple))


@given(st.lists(_single | _several, max_size=3).map(tuple).map(Condition))
def test_a_condition_reads_back_as_written(condition: Condition) -> None:
    assert parse_condition(str(condition)) == condition


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(InputError):
        assert isinstance(parse_condition(text), Condition)
