# SPDX-License-Identifier: BSD-3-Clause
"""Conditions on rows: grammar, selected rows, and errors."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simlib._lib.errors import InputError
from simlib.measurements import Clause, RowCondition, parse_condition
from simlib.measurements.condition import RESERVED
from simlib.model.conditions import And, Condition, Not, Or

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
        ("vcpus <= 1 or vcpus == 16", [0, 2]),
        ("vcpus == 1 or vcpus == 2 and series != spin", [0]),  # and binds closer than or
        ("(vcpus == 1 or vcpus == 2) and series != spin", []),
        ("not vcpus == 1 and vcpus <= 2", [1]),  # and not closer than and
        ("not (vcpus == 1 and series == spin)", [1, 2, 3]),
        ("not not vcpus == 1", [0]),
        ("(vcpus>1)and(vcpus<64)", [1, 2]),
        ("vcpus in (2, 16)", [1, 2]),
        ("vcpus in [2,16] or vcpus in 64", [1, 2, 3]),
        ("series in ('rw lock', spin) and (vcpus > 1)", [1, 2]),
        ("vcpus not in (2, 16)", [0, 3]),
        ("not clear_time_s == 2", [0, 3]),  # as with !=: a missing value is neither true nor false
        ("not (clear_time_s > 0 or vcpus > 2)", []),
        ("clear_time_s > 100 or vcpus == 2", [1]),  # true for any value of the missing cell
        ("not (clear_time_s > 100 and vcpus == 64)", [0, 1, 2, 3]),  # and so is this
        ("series == __import__", []),
        ("series == and or vcpus == 64", [3]),  # a word of the grammar may be a value
    ],
)
def test_a_condition_selects_rows(text: str, rows: list[int]) -> None:
    assert np.flatnonzero(parse_condition(text).mask(FRAME)).tolist() == rows


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("vcpus", "expected ==, !=, <=, >=, <, > or in, found 'the end'"),
        ("vcpus <=", "expected a value, found 'the end'"),
        ("vcpus = 8", "found '='"),
        ("vcpus in 1,", "expected a value, found 'the end'"),
        ("and vcpus <= 8", "expected a column, found 'and' (character 1)"),
        ("vcpus <= 8 and or vcpus == 16", "expected a column, found 'or' (character 16)"),
        ("not", "expected a column, found 'the end'"),
        ("()", "expected a column, found ')'"),
        ("(vcpus) <= 8", "expected ==, !=, <=, >=, <, > or in, found ')'"),
        ("vcpus <= 8)", "')' cannot follow here (character 11)"),
        ("vcpus in [1, 2", "'[' is not closed"),
        ("vcpus in (1, 2]", "expected ')', found ']' (character 15)"),
        ("vcpus in ()", "expected a value, found ')'"),
        ("vcpus not == 8", "expected in, found '=='"),
        ("vcpus == (8)", "expected a value, found '('"),
        ("in == 8", "expected a column, found 'in'"),
        ("vcpus <= 8 xor vcpus == 1", "'xor' cannot follow here (character 12)"),
        ("vcpus == 1, 2", "',' cannot follow here"),
        ("8 >= vcpus", "expected a column, found '8'"),
        ("'vcpus' == 8", "expected a column, found"),
        ("series == 'open", 'expected a value, found "\'" (character 11)'),
        ("__import__('os').system('true')", "found '('"),
        ("vcpus == @open('x')", "'(' cannot follow here"),
        ("vcpus & 8", "found '&'"),
        ("vcpus <= 8 or (series == spin", "'(' is not closed"),
        ("(" * 60 + "vcpus == 8" + ")" * 60, "is nested deeper than 50"),
        ("not " * 5000 + "vcpus == 8", "is nested deeper than 50"),
        (" or ".join(["vcpus == 8"] * 5000), "may have at most 200 comparisons"),
    ],
)
def test_invalid_text_is_refused_in_one_sentence_that_names_the_word(text: str, rule: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_condition(text)
    assert rule in caught.value.rule
    assert "write " in caught.value.hint
    assert "\n" not in str(caught.value)


def test_an_unknown_column_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match="vcpu: the column does not exist; did you mean 'vcpus'"):
        parse_condition("vcpu <= 8").mask(FRAME)


def test_a_number_is_not_compared_with_text() -> None:
    with pytest.raises(InputError, match="many: the column contains numbers"):
        parse_condition("vcpus == many").mask(FRAME)
    with pytest.raises(InputError, match="<: the column contains strings"):
        parse_condition("series < spin").mask(FRAME)


_columns = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True).filter(lambda name: name not in RESERVED)
_literals = st.text(st.characters(codec="ascii", exclude_characters="'", min_codepoint=32), max_size=8)
_single = st.builds(Clause, _columns, st.sampled_from(["==", "!=", "<=", ">=", "<", ">"]), st.tuples(_literals))
_several = st.builds(Clause, _columns, st.just("in"), st.lists(_literals, min_size=1, max_size=3).map(tuple))


def _joined(parts: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
    return st.builds(And, parts, parts) | st.builds(Or, parts, parts) | st.builds(Not, parts)


@given(st.recursive(_single | _several, _joined, max_leaves=8) | st.none())
def test_a_condition_is_unchanged_by_writing_and_reading(condition: Condition | None) -> None:
    written = str(RowCondition(condition))
    parsed = parse_condition(written)
    assert str(parsed) == written
    assert parsed.columns() == RowCondition(condition).columns()


_clauses = st.builds(Clause, st.sampled_from(["a", "b"]), st.sampled_from(["==", "<", "in"]), st.tuples(st.just("1")))


@given(st.recursive(_clauses, _joined, max_leaves=8))
def test_conditions_select_the_rows_that_python_selects(condition: Condition) -> None:
    """Python evaluates the same text to the same result if no value is missing; `in` needs a tuple there."""
    frame = pd.DataFrame([(a, b) for a in (0, 1, 2) for b in (0, 1, 2)], columns=["a", "b"])
    text = str(condition).replace("in 1", "in (1,)")
    expected = [eval(text, {}, {"a": int(a), "b": int(b)}) for a, b in frame.to_numpy()]  # noqa: S307  # the text comes from this test
    assert (
        RowCondition(condition).mask(frame).tolist() == parse_condition(str(condition)).mask(frame).tolist() == expected
    )
