# SPDX-License-Identifier: BSD-3-Clause
"""Strategies: parsing, canonical text, and errors that name the wrong word."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simlib._lib.errors import InputError
from simlib.model.grammar import leaves
from simlib.model.policy import Policy
from simlib.model.scenario import Scenario
from simlib.model.strategy import QUANTITIES, Adaptive, Threshold, strategy

COMPARISONS = st.sampled_from(
    ["pages >= 512", "held>=50us", "held > 1.5ms", "waiters < 4", "vcpus>0", "blocks <= 3", "not pages >= 64",
     "pages >= adaptive(64, 4096)"]
)  # fmt: skip
CONDITIONS = st.recursive(
    COMPARISONS,
    lambda inner: st.tuples(inner, st.sampled_from(["and", "or"]), inner).map("({0[0]}) {0[1]} {0[2]}".format),
)
VALUES = st.fixed_dictionaries({name: st.integers(0, 5000) for name in (*QUANTITIES, "batch")})


def holds(text, values):
    """True if a condition holds, by Python's own grammar, which has the same precedences."""
    text = re.sub(r"adaptive\([^)]*\)", "batch", text)
    text = re.sub(r"([0-9.]+)(us|ms)", lambda match: f"{match[1]}e{6 if match[2] == 'us' else 9}", text)
    return bool(eval(text, {}, values | {"held": values["held"] * 10**6}))  # noqa: S307  # a test's own text


@given(text=CONDITIONS, values=VALUES)
def test_a_strategy_reads_back_equal_and_has_python_s_truth_value(text, values):
    condition = strategy(text)
    again = str(Policy(clear_drop_when=text).clear_drop_when)
    assert strategy(again) == condition
    assert str(condition) == again
    assert holds(again, values) == holds(text, values)
    assert all(isinstance(leaf, (Threshold, Adaptive)) for leaf in leaves(condition))


@pytest.mark.parametrize(
    ("text", "word"),
    [("", "ends where a quantity is expected"), ("hold >= 5us", "unknown word 'hold'; did you mean 'held'?"),
     ("pages", "expected >=, >, <= or <, found 'the end'"), ("pages = 64", "expected >=.* found '='"),
     ("pages >= 65", r"multiple of 64 \(got 65\)"),
     ("pages >= many", "expected a whole number, found 'many'"), ("held >= 50", "needs a unit"),
     ("held >= fifty", "expected a duration, found 'fifty'"), ("waiters >= 0", r"from 1 to .*\(got 0\)"),
     ("pages >= 64 waiters >= 1", r"'waiters' cannot follow here \(character 13\); join conditions with"),
     ("(pages >= 64", r"'\(' is not closed; .*close every"), ("pages >= 64 or never", "'never' cannot be combined"),
     ("pages >= adaptive(64)", "',' is missing"),
     ("pages >= adaptive(100, 200)", r"bounds must be powers of two, at least 64"),
     ("pages >= adaptive(64, 128) or pages >= adaptive(64, 256)", "the same bounds everywhere"),
     ("(" * 60 + "pages >= 64" + ")" * 60, "nested deeper than 50"),
     (" or ".join(["held > 1us"] * 201), "at most 200 comparisons"), ("__import__('os')", "unknown word '__import__'")],
)  # fmt: skip
def test_an_error_names_the_wrong_word(text, word):
    with pytest.raises(InputError, match=word) as caught:
        Policy(clear_drop_when=text)
    assert caught.value.what.startswith("policy.clear_drop_when")
    assert caught.value.value in (text, "50")


@pytest.mark.parametrize("value", [64, True, ["pages >= 64"], None])
def test_a_value_that_is_not_a_text_is_refused(value):
    with pytest.raises(InputError, match="must be a condition in quotation marks"):
        Scenario.parse({"policy": {"clear_drop_when": value}})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"clear_batch_pages": 0}, {"clear_drop_when": "never"}),
        ({"clear_batch_pages": 512}, {"clear_drop_when": "pages >= 512"}),
    ],
)  # fmt: skip
def test_a_batch_reads_as_a_strategy(old, new):
    assert Scenario.parse({"policy": old}) == Scenario.parse({"policy": new})
    with pytest.raises(InputError, match=r"cannot be combined with policy\.clear_batch_pages = \d+; give only one"):
        Scenario.parse({"policy": old | new})
