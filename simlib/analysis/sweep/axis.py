# SPDX-License-Identifier: BSD-3-Clause
"""One field of a scenario over the values that a sweep gives it."""

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
    """A range of numbers, in the scenario's own units.

    - `log`: whether steps are ratios.
    - `multiple`: whole multiples of it alone, of a range of whole numbers; 0: any number.
    """

    low: float
    high: float
    log: bool
    multiple: int

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the greatest value within the range; the least is the greater one if there is none.

        >>> Span(90, 300, False, 64).ends, Span(100, 120, False, 64).ends
        ((128, 256), (128, 64))
        """
        if not self.multiple:
            return self.low, self.high
        return -(-self.low // self.multiple) * self.multiple, self.high // self.multiple * self.multiple

    def at(self, share: float) -> float:
        """The value that this share of the range is below, rounded to the nearest within it.

        >>> Span(1, 64, True, 1).at(0.5), Span(0, 10, False, 0).at(0.25)
        (8, 2.5)
        >>> [Span(90, 300, False, 64).at(share) for share in (0.0, 0.5, 1.0)]
        [128, 192, 256]
        """
        ratio, reach = self.high / self.low if self.log else 1.0, self.high - self.low
        value = float(self.low * ratio**share if self.log else self.low + reach * share)
        least, greatest = self.ends
        if share == 1.0:  # to the last digit, as it was written
            return greatest
        return min(max(round(value / self.multiple) * self.multiple if self.multiple else value, least), greatest)


@dataclass(frozen=True)
class Axis:
    """A field and its values.

    - `values`: as a scenario file has them; of a span in a full design its steps.
    - `span`: of a sampled design: any value within.
    """

    section: str
    key: str
    values: tuple[Any, ...]
    span: Span | None = None

    @property
    def column(self) -> str:
        """The field's name in a table: its key, with its section only where two sections have it.

        >>> Axis("guest", "vcpus", ()).column, Axis("costs", "split_alloc", ()).column
        ('vcpus', 'costs.split_alloc')
        """
        return f"{self.section}.{self.key}" if self.key in _SHARED else self.key

    @property
    def unit(self) -> str:
        """What a number in its column counts: ``ps``, ``bytes``, ``bit/s``; empty for what has no unit."""
        return _UNITS.get(_FIELDS[self.section, self.key].metadata["show"], "")

    def at(self, share: float) -> Any:
        """The value that this share of the axis is below, of a sampled design.

        >>> Axis("guest", "backing", ("4k", "thp")).at(0.7)
        'thp'
        """
        if self.span is None:
            return self.values[int(share * len(self.values))]
        return written(self.section, self.key, self.span.at(share))

    def cell(self, value: Any) -> Any:
        """A value as its column has it: in the scenario's own units, or as text."""
        return _cell(self.section, self.key, value)


@lru_cache(maxsize=4096)
def _cell(section: str, key: str, value: Any) -> Any:
    found = _FIELDS[section, key].metadata["parse"](value, f"{section}.{key}")
    return found if isinstance(found, bool | int | float | str) else str(found)


def written(section: str, key: str, number: float) -> Any:
    """A number in the scenario's own units, as its file has it.

    >>> written("workload", "pause", 1_500_000), written("guest", "vcpus", 3.9)
    ('1.5us', 4)
    """
    found = _FIELDS[section, key]
    unit = _UNITS.get(found.metadata["show"])
    if unit is not None:
        return found.metadata["show"](round(number))
    return float(number) if isinstance(found.default, float) or "float" in str(found.type) else round(number)


def read_axis(section: str, key: str, given: Any, sampled: bool) -> Axis:
    """An axis from its entry in a grid file.

    Raises `InputError` if the field is unknown, a value breaks its rule, or there is none.
    """
    where = f"axes.{section}.{key}"
    if section not in SECTIONS or section == "calibration":
        known = sorted(set(SECTIONS) - {"calibration"})
        raise InputError(f"axes.{section}", "…", "unknown table", nearest(section, known))
    if (section, key) not in _FIELDS:
        names = [name for table, name in _FIELDS if table == section]
        raise InputError(where, "…", "unknown key", nearest(key, names))
    if (section, key) == ("policy", "architecture"):
        raise InputError(where, "…", "is no axis of its own", "write architectures = […] at the top of the grid")
    parse = _FIELDS[section, key].metadata["parse"]
    if isinstance(given, Mapping):
        span, count = _span(section, key, given, where, sampled)
        if sampled:
            return Axis(section, key, (), span)
        values = [written(section, key, span.at(i / (count - 1))) for i in range(count)]
        different = len(set(values))
        if different < count:
            rounded = f", as all are multiples of {written(section, key, span.multiple)}" if span.multiple else ""
            raise InputError(f"{where}.count", count, f"the range gives fewer different values, {different:,}{rounded}",
                             "write a smaller count or a wider range, or list the values")  # fmt: skip
    elif isinstance(given, list) and given:
        values = given
    else:
        raise InputError(
            where, given, "must be a list of values, or a range", "write [1, 2, 4], or {low = 1, high = 64}"
        )
    found = [parse(value, f"{where}[{number}]") for number, value in enumerate(values)]
    check_distinct(found, values, where)
    return Axis(section, key, tuple(_frozen(value) for value in values))


def check_distinct(found: Sequence[Hashable], given: Sequence[Any], where: str) -> None:
    """Refuse a list in which a value stands twice, however it is written.

    Raises `InputError` that names the later one as it was given.

    >>> check_distinct((1024, 2048, 1024), ("1K", "2K", 1024), "sizes")
    Traceback (most recent call last):
    ...
    simlib.InputError: sizes[2] = 1024: stands twice; leave one of them out
    """
    seen: set[Hashable] = set()
    for number, value in enumerate(found):
        if value in seen:
            raise InputError(f"{where}[{number}]", given[number], "stands twice", "leave one of them out")
        seen.add(value)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(one) for one in value) if isinstance(value, list) else value


def _span(section: str, key: str, given: Mapping[str, Any], where: str, sampled: bool) -> tuple[Span, int]:
    parse = _FIELDS[section, key].metadata["parse"]
    known = {"low", "high", "scale", "multiple"} | (set() if sampled else {"count"})
    for name in given:
        if name not in known:
            raise InputError(f"{where}.{name}", given[name], "unknown key", nearest(name, known))
    missing = {"low", "high"} | (set() if sampled else {"count"})
    for name in sorted(missing - set(given)):
        raise InputError(f"{where}.{name}", "", "is missing", "write {low = …, high = …" + (
            "}" if sampled else ", count = …}"))  # fmt: skip
    ends = [parse(given[name], f"{where}.{name}") for name in ("low", "high")]
    if any(isinstance(end, bool) or not isinstance(end, int | float) for end in ends):
        raise InputError(where, given, "only numbers have a range", "list the values")
    low, high = ends
    if not low < high:
        raise InputError(f"{where}.high", given["high"], "must be more than low")
    log = rules.choice("linear", "log")(given.get("scale", "linear"), f"{where}.scale") == "log"
    if log and low <= 0:
        raise InputError(f"{where}.low", given["low"], "must be above 0 on a log scale", 'or write scale = "linear"')
    whole = not isinstance(low, float)
    multiple = parse(given["multiple"], f"{where}.multiple") if "multiple" in given else int(whole)
    if not whole and multiple:
        raise InputError(f"{where}.multiple", given["multiple"], "only whole numbers have multiples", "leave it out")
    if whole and multiple < 1:
        raise InputError(f"{where}.multiple", given["multiple"], "must be above 0", "leave it out")
    count = 2 if sampled else rules.whole(2, 10**6)(given["count"], f"{where}.count")
    if not math.isfinite(high):
        raise InputError(f"{where}.high", given["high"], "must be finite")
    span = Span(low, high, log, multiple)
    least, greatest = span.ends
    if least > greatest:
        rule = f"no multiple of it lies from {given['low']} to {given['high']}"
        raise InputError(f"{where}.multiple", given["multiple"], rule, "write a wider range")
    return span, count
