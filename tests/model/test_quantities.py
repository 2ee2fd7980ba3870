# SPDX-License-Identifier: BSD-3-Clause
"""Sizes and durations: formatted values read back, and invalid texts are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simlib._lib.errors import InputError
from simlib.model.quantities import format_duration, format_size, parse_duration, parse_size


@given(digits=st.integers(1, 999_999), exponent=st.integers(0, 12))
def test_a_duration_of_six_digits_reads_back(digits, exponent):
    ps = digits * 10**exponent
    assert parse_duration(format_duration(ps)) == ps


@given(ps=st.integers(0, 4_503_599_627_370_495))
def test_any_duration_reads_back_equal_to_six_digits(ps):
    assert abs(parse_duration(format_duration(ps)) - ps) <= 0.5e-5 * ps


@given(size=st.one_of(st.integers(1, 2**50), st.integers(1, 2**12).map(lambda n: n * 2**30)))
def test_any_size_reads_back(size):
    assert parse_size(format_size(size)) == size
    assert parse_size(size) == size


@pytest.mark.parametrize(
    ("text", "ps"),
    [("1ps", 1), ("1ns", 10**3), ("1us", 10**6), ("1µs", 10**6), ("1ms", 10**9), ("1s", 10**12), (" 4.7e1 ns ", 47_000),
     (".5ns", 500), ("0s", 0), ("+2ns", 2_000), (0, 0), ("0.4ps", 0), ("1.5ps", 2)],
)  # fmt: skip
def test_durations(text, ps):
    assert parse_duration(text) == ps


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("4K", 4096), ("4k", 4096), ("1.5GiB", 3 * 2**29), ("2GB", 2**31), ("1T", 2**40), (" 3 M ", 3 * 2**20)],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("12", "a duration needs a unit"), ("0", "a duration needs a unit"), (12, "a duration needs a unit"),
        (1.5, "a duration needs a unit"), (True, "a duration needs a unit"), (False, "a duration needs a unit"),
        (None, "a duration needs a unit"), ("", "a duration needs a unit"), ("us", "a duration needs a unit"),
        ("1 2us", "a duration needs a unit"), ("1,2us", "a duration needs a unit"),
        ("nan us", "a duration needs a unit"), ("inf us", "a duration needs a unit"),
        ("1min", "unknown unit 'min'"), ("1US", "unknown unit 'US'"), ("1sec", "unknown unit 'sec'"),
        ("1M", "unknown unit 'M'"), ("-1ns", "must not be negative"), ("-1e-9s", "must not be negative"),
    ],
)  # fmt: skip
def test_a_bad_duration_is_named(text, rule):
    with pytest.raises(InputError) as caught:
        parse_duration(text, "costs.flush")
    assert (caught.value.what, caught.value.value) == ("costs.flush", text)
    assert caught.value.rule.startswith(rule)
    if rule != "must not be negative":
        assert caught.value.rule.endswith("write ps, ns, us, ms or s")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("2X", "unknown unit 'X'"), ("2Gi", "unknown unit 'Gi'"), ("2ns", "unknown unit 'ns'"),
        ("2P", "unknown unit 'P'"), ("", "a size is a number"), ("G", "a size is a number"),
        (2.0, "a size is a number"), (True, "a size is a number"), (None, "a size is a number"),
        ("nan", "a size is a number"), ("0", "must be a whole, positive"), (0, "must be a whole, positive"),
        (-4096, "must be a whole, positive"), ("-2G", "must be a whole, positive"),
        ("1.5", "must be a whole, positive"), ("0.3K", "must be a whole, positive"),
        ("1e400", "must be a whole, positive"),
        pytest.param(10**400, "must be a whole, positive", id="an integer beyond float"),
    ],
)  # fmt: skip
def test_a_bad_size_is_named(text, rule):
    with pytest.raises(InputError) as caught:
        parse_size(text, "guest.memory")
    assert caught.value.what == "guest.memory"
    assert caught.value.rule.startswith(rule)
