# SPDX-License-Identifier: BSD-3-Clause
"""Records of ``key: value`` lines, and the sample of a migration that a record describes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from simlib.vmm.logs.content import LogContent, LogValue, make_sample
from simlib.vmm.logs.text import SECONDS, digits_error, number, size
from simlib.vmm.qemu_rules import PAGE

DISK = "a disk is migrated, too: only memory is predicted"
DEVICE = "a device's state is migrated, too (VFIO): only memory is predicted, not the downtime of the device"
COMPRESSED = (
    "pages are compressed (XBZRLE or multifd): the throughput counts compressed bytes, but the remaining memory does "
    "not. Compression is not modelled"
)
POSTCOPY = "the migration switched to post-copy: samples after the switch say nothing about dirty rates"

_LARGEST_PAGE = 2**31
"""Bound of a page's size, bytes."""


class Field(NamedTuple):
    """Key of a record, and its meaning.

    - `name`: field of `MigrationSample`; empty if the key only causes a note.
    - `kind`: ``size`` (bytes), ``time`` (s), ``mbps`` (Mbit/s), ``rate`` (bytes/s, kept in bit/s), ``count`` or
      ``text``.
    - `note`: note if the value is above 0.
    """

    name: str
    kind: str = "count"
    note: str = ""


def page_size(size: float | None) -> int:
    """Return a reported size of a page, bytes; 4096 if it is not known or impossible."""
    return int(size) if size is not None and PAGE // 8 <= size < _LARGEST_PAGE else PAGE


class Value(NamedTuple):
    """Value of a key, as it is printed: number or word, and unit."""

    text: str
    unit: str = ""


def converted(field: Field, value: Value) -> Any:
    """Return a value in the unit of `MigrationSample`; None if its unit does not fit.

    >>> converted(Field("sent_bytes", "size"), Value("4", "KiB")), converted(Field("time_s", "time"), Value("5", "ms"))
    (4096.0, 0.005)
    """
    if field.kind == "text":
        return value.text
    if field.kind == "size":
        amount = size(value.text, value.unit or "B")
        return None if math.isnan(amount) and not math.isnan(number(value.text)) else amount
    amount = number(value.text)
    if field.kind == "time":
        return amount * SECONDS[value.unit.lower()] if value.unit.lower() in SECONDS else None
    if field.kind == "mbps":
        return amount * 1e6
    if field.kind == "rate":
        return size(value.text, value.unit) * 8 if value.unit else None
    return amount


def split_records(pairs: Iterable[tuple[str, Value]], first: str) -> Iterator[dict[str, Value]]:
    """Divide pairs into records: a new one begins with the key `first`, or with a key that would be repeated."""
    record: dict[str, Value] = {}
    for key, value in pairs:
        if record and (key == first or key in record):
            yield record
            record = {}
        record[key] = value
    if record:
        yield record


def add_record(content: LogContent, record: Mapping[str, Value], fields: Mapping[str, Field]) -> bool:
    """Append the sample of a record, and its notes and memory, to the content; True if there was a sample."""
    values: dict[str, Any] = {}
    for key, value in record.items():
        field = fields.get(key)
        if field is None:
            continue
        amount = converted(field, value)
        if field.note:
            if isinstance(amount, float) and amount > 0:
                content.note(field.note)
            continue
        values[field.name] = amount
        if field.name == "total_bytes" and amount:
            error = digits_error(value.text, value.unit)
            content.page_error = max(content.page_error, error)
            if 0 < amount < 2**62:
                content.total.append(LogValue(amount, f"{key} of {content.tool}", error))
    values["page_bytes"] = page_size(values.get("page_bytes"))
    passes = values.pop("passes", None)
    if passes is not None and 0 <= passes < 2**31:
        values["passes"] = int(passes)
    status = str(values.get("status", ""))
    if status == "device":
        content.note(DEVICE)
    if status.startswith("postcopy"):
        content.note(POSTCOPY)
    sample = make_sample(content, values)
    if sample is not None:
        content.samples.append(sample)
    return sample is not None
