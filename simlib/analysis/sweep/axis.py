# SPDX-License-Identifier: BSD-3-Clause
"""Axis of a sweep: a field of a scenario and its values."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from simlib._lib.errors import InputError, nearest
from simlib.model import rules
from simlib.model.quantities import format_bandwidth, format_duration, format_size
from simlib.model.scenario import SECTIONS

_FIELDS = {(section, f.name): f for section, kind in SECTIONS.items() for f in dataclasses.fields(kind)}
_SHARED = {name for name, times in Counter(name for _, name in _FIELDS).items() if times > 1}
_UNITS = {format_duration: "ps", format_size: "bytes", format_bandwidth: "bit/s"}


@dataclass(frozen=True)
class Span:
    """Range of numbers in the internal units of a scenario.

    - `log`: True if steps are ratios.
    - `multiple`: number that divides all values of a range of whole numbers; 0: any number is a value.
    """

    low: float
    high: float
    log: bool
    multiple: int

    @property
    def ends(self) -> tuple[float, float]:
        """Smallest and largest value within the range; the first exceeds the second if the range contains no value.

        >>> Span(90, 300, False, 64).ends, Span(100, 120, False, 64).ends
        ((128, 256), (128, 64))
        """
        if not self.multiple:
            return self.low, self.high
        return -(-self.low // self.multiple) * self.multiple, self.high // self.multiple * self.multiple

    def at(self, share: float) -> float:
        """Return the value at a share of the range (0: `low`), rounded to the nearest valid one.

        >>> Span(1, 64, True, 1).at(0.5), Span(0, 10, False, 0).at(0.25)
        (8, 2.5)
        >>> [Span(90, 300, False, 64).at(share) for share in (0.0, 0.5, 1.0)]
        [128, 192, 256]
        """
        ratio, width = self.high / self.low if self.log else 1.0, self.high - self.low
        value = float(self.low * ratio**share if self.log else self.low + width * share)
        smallest, largest = self.ends
        if share == 1.0:  # exactly the value that was given
            return largest
        return min(max(round(value / self.multiple) * self.multiple if self.multiple else value, smallest), largest)


@dataclass(frozen=True)
class Axis:
    """Field of a scenario and its values.

    - `values`: values in the format of a scenario file; the steps of a range in a full design.
    - `span`: range of a sampled design.
    """

    section: str
    key: str
    values: tuple[Any, ...]
    span: Span | None = None

    @property
    def column(self) -> str:
        """Column name of the field: its key, with its section only if two sections have that key.

        >>> Axis("guest", "vcpus", ()).column, Axis("costs", "split_alloc", ()).column
        ('vcpus', 'costs.split_alloc')
        """
        return f"{self.section}.{self.key}" if self.key in _SHARED else self.key

    @property
    def unit(self) -> str:
        """Unit of the numbers in its column: ``ps``, ``bytes``, ``bit/s``; empty without a unit."""
        return _UNITS.get(_FIELDS[self.section, self.key].metadata["show"], "")

    def at(self, share: float) -> Any:
        """Return the value at a share of the axis, for a sampled design.

        >>> Axis("guest", "backing", ("4k", "thp")).at(0.7)
        'thp'
        """
        if self.span is None:
            return self.values[int(share * len(self.values))]
        return file_value(self.section, self.key, self.span.at(share))

    def cell(self, value: Any) -> Any:
        """Convert a value for its column: to the internal unit of the scenario, or to a string."""
        return _cell(self.section, self.key, value)


@lru_cache(maxsize=4096)
def _cell(section: str, key: str, value: Any) -> Any:
    parsed = _FIELDS[section, key].metadata["parse"](value, f"{section}.{key}")
    return parsed if isinstance(parsed, bool | int | float | str) else str(parsed)


def file_value(section: str, key: str, number: float) -> Any:
    """Convert a number in the internal unit of a scenario to the format of a scenario file.

    >>> file_value("workload", "pause", 1_500_000), file_value("guest", "vcpus", 3.9)
    ('1.5us', 4)
    """
    field = _FIELDS[section, key]
    unit = _UNITS.get(field.metadata["show"])
    if unit is not None:
        return field.metadata["show"](round(number))
    return float(number) if isinstance(field.default, float) or "float" in str(field.type) else round(number)


def read_axis(section: str, key: str, given: Any, sampled: bool) -> Axis:
    """Read an axis from its entry in a grid file.

    Raises `InputError` if the field is unknown, a value is invalid, or there is no value.
    """
    where = f"axes.{section}.{key}"
    if section not in SECTIONS or section == "calibration":
        known = sorted(set(SECTIONS) - {"calibration"})
        raise InputError(f"axes.{section}", "…", "unknown table", nearest(section, known))
    if (section, key) not in _FIELDS:
        names = [name for table, name in _FIELDS if table == section]
        raise InputError(where, "…", "unknown key", nearest(key, names))
    if (section, key) == ("policy", "architecture"):
        raise InputError(where, "…", "cannot be an axis", "write architectures = […] at the top of the grid")
    parse = _FIELDS[section, key].metadata["parse"]
    if isinstance(given, Mapping):
        span, count = _span(section, key, given, where, sampled)
        if sampled:
            return Axis(section, key, (), span)
        values = [file_value(section, key, span.at(i / (count - 1))) for i in range(count)]
        distinct = len(set(values))
        if distinct < count:
            rounded = f", all multiples of {file_value(section, key, span.multiple)}" if span.multiple else ""
            raise InputError(f"{where}.count", count, f"the range has fewer distinct values ({distinct:,}){rounded}",
                             "write a smaller count or a wider range, or list the values")  # fmt: skip
    elif isinstance(given, list) and given:
        values = given
    else:
        raise InputError(
            where, given, "must be a list of values, or a range", "write [1, 2, 4], or {low = 1, high = 64}"
        )
    parsed = [parse(value, f"{where}[{number}]") for number, value in enumerate(values)]
    check_distinct(parsed, values, where)
    return Axis(section, key, tuple(_frozen(value) for value in values))


def check_distinct(parsed: Sequence[Hashable], given: Sequence[Any], where: str) -> None:
    """Refuse a list in which a value occurs twice, in whatever format.

    Raises `InputError`, which names the second occurrence as it was given.

    >>> check_distinct((1024, 2048, 1024), ("1K", "2K", 1024), "sizes")
    Traceback (most recent call last):
    ...
    simlib.InputError: sizes[2] = 1024: occurs twice; remove one of them
    """
    values: set[Hashable] = set()
    for number, value in enumerate(parsed):
        if value in values:
            raise InputError(f"{where}[{number}]", given[number], "occurs twice", "remove one of them")
        values.add(value)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def _span(section: str, key: str, given: Mapping[str, Any], where: str, sampled: bool) -> tuple[Span, int]:
    parse = _FIELDS[section, key].metadata["parse"]
    required = {"low", "high"} if sampled else {"low", "high", "count"}
    known = required | {"scale", "multiple"}
    for name in given:
        if name not in known:
            raise InputError(f"{where}.{name}", given[name], "unknown key", nearest(name, known))
    for name in sorted(required - set(given)):
        raise InputError(f"{where}.{name}", "", "is missing", "write {low = …, high = …" + (
            "}" if sampled else ", count = …}"))  # fmt: skip
    ends = [parse(given[name], f"{where}.{name}") for name in ("low", "high")]
    if any(isinstance(end, bool) or not isinstance(end, int | float) for end in ends):
        raise InputError(where, given, "only numbers have a range", "list the values")
    low, high = ends
    if not low < high:
        raise InputError(f"{where}.high", given["high"], "must be greater than low")
    log = rules.choice("linear", "log")(given.get("scale", "linear"), f"{where}.scale") == "log"
    if log and low <= 0:
        raise InputError(f"{where}.low", given["low"], "must be above 0 on a log scale", 'or write scale = "linear"')
    is_whole = not isinstance(low, float)
    multiple = parse(given["multiple"], f"{where}.multiple") if "multiple" in given else int(is_whole)
    if not is_whole and multiple:
        raise InputError(f"{where}.multiple", given["multiple"], "only whole numbers have multiples", "remove it")
    if is_whole and multiple < 1:
        raise InputError(f"{where}.multiple", given["multiple"], "must be above 0", "remove it")
    count = 2 if sampled else rules.whole(2, 10**6)(given["count"], f"{where}.count")
    if not math.isfinite(high):
        raise InputError(f"{where}.high", given["high"], "must be finite")
    span = Span(low, high, log, multiple)
    smallest, largest = span.ends
    if smallest > largest:
        rule = f"the range from {given['low']} to {given['high']} contains no multiple of it"
        raise InputError(f"{where}.multiple", given["multiple"], rule, "write a wider range")
    return span, count
