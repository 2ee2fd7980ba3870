# SPDX-License-Identifier: BSD-3-Clause
"""Units in the names of columns."""

import pytest

from simlib._lib.errors import InputError
from simlib.measurements.units import PER_SECOND, SUFFIXES, is_time, stem_of, suffix_of, unit_of


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_suffix_is_recognised_and_removed(suffix: str) -> None:
    column = f"quantity_{suffix}"
    assert suffix_of(column) == suffix
    assert stem_of(column) == "quantity"
    assert unit_of("a.csv", column, SUFFIXES[suffix]) == SUFFIXES[suffix]
    assert is_time(column) == (suffix in PER_SECOND)


@pytest.mark.parametrize("column", ["dirty_memory_time_min", "dirty_memory_time", "latency", "downtime_sec"])
@pytest.mark.parametrize("declared", [None, "count", "ms"])
def test_a_time_without_a_known_suffix_is_refused(column: str, declared: str | None) -> None:
    with pytest.raises(InputError, match=r"_s, _ms, _us, _ns, _ps$"):
        unit_of("a.csv", column, declared)


def test_an_unknown_count_needs_a_descriptor() -> None:
    with pytest.raises(InputError, match="declare a count with unit 'count'"):
        unit_of("a.csv", "zaps")
    assert unit_of("a.csv", "zaps", "count") == "count"
