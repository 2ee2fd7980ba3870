# SPDX-License-Identifier: BSD-3-Clause
"""A bad measurement file raises one sentence with place, value, rule and hint."""

import json
from pathlib import Path
from typing import Any

import pytest

from simlib._lib.errors import InputError
from simlib.measurements import check, read

HEADER = "series,vcpus,dirty_memory_time_ms,contentions\n"
GOOD = HEADER + "spin,1,926,0\nspin,2,1189,4732558\n"
FIELDS: list[dict[str, Any]] = [
    {"name": "series", "type": "string", "unit": "none", "constraints": {"required": True, "enum": ["spin"]}},
    {"name": "vcpus", "type": "integer", "unit": "count", "constraints": {"required": True, "minimum": 1}},
    {"name": "dirty_memory_time_ms", "type": "number", "unit": "ms", "constraints": {"required": True}},
    {"name": "contentions", "type": "integer", "unit": "count"},
]
DESCRIPTOR = {"name": "mine", "schema": {"fields": FIELDS, "primaryKey": ["series", "vcpus"]}}


def message(path: Path) -> str:
    """Message of `check` for a bad file, without the folder."""
    with pytest.raises(InputError) as caught:
        check(path)
    text = str(caught.value)
    assert "\n" not in text
    return text.replace(f"{path.parent}/", "")


@pytest.mark.parametrize("described", [False, True], ids=["bare", "described"])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param("", "a.csv = an empty file: must be a measurement file", id="empty"),
        pytest.param("\n \n", "a.csv = an empty file: must be a measurement file", id="blank"),
        pytest.param(HEADER, "a.csv = a header only: must have at least one row", id="header only"),
        pytest.param(
            GOOD + "spin,2,1200,1\n",
            "a.csv, row 4 = series=spin, vcpus=2: an earlier row has the same series+vcpus; "
            "remove one of the rows, or distinguish repeated runs by a column 'run'",
            id="duplicate row",
        ),
        pytest.param(
            HEADER + "spin,1,NaN,0\n",
            "a.csv, row 2, column dirty_memory_time_ms = NaN: must be a finite number",
            id="nan",
        ),
        pytest.param(
            GOOD + "spin,4,-inf,0\n",
            "a.csv, row 4, column dirty_memory_time_ms = -inf: must be a finite number",
            id="inf",
        ),
        pytest.param(
            HEADER + "spin,1,1e999,0\n",
            "a.csv, row 2, column dirty_memory_time_ms = 1e999: must be a finite number",
            id="overflow",
        ),
        pytest.param(
            HEADER + "spin,1,,0\n",
            "a.csv, row 2, column dirty_memory_time_ms = an empty cell: a value is required",
            id="empty time",
        ),
        pytest.param(
            HEADER + "spin,,926,0\n",
            "a.csv, row 2, column vcpus = an empty cell: a value is required",
            id="empty key",
        ),
        pytest.param(
            GOOD + "spin,4,2.5 s,0\n",
            "a.csv, row 4, column dirty_memory_time_ms = '2.5 s': must be a number",
            id="text in a time",
        ),
        pytest.param(
            HEADER + "spin,1,926,none\nspin,2,926,5\n",
            "a.csv, row 2, column contentions = 'none': must be a number",
            id="text in a count",
        ),
        pytest.param(
            HEADER + "spin,1,-926,0\n",
            "a.csv, row 2, column dirty_memory_time_ms = -926: a time must not be negative",
            id="negative time",
        ),
        pytest.param(
            HEADER + "spin,1,926,-1\n",
            "a.csv, row 2, column contentions = -1: a count or size must not be negative",
            id="negative count",
        ),
        pytest.param(
            HEADER + "spin,1.5,926,0\n",
            "a.csv, row 2, column vcpus = 1.5: must be a whole number",
            id="fraction of a vCPU",
        ),
        pytest.param(
            HEADER + "spin,0,926,0\n",
            "a.csv, row 2, column vcpus = 0: must meet its constraint minimum: 1",
            id="no vCPU",
        ),
        pytest.param(
            GOOD.replace("time_ms", "time_min"),
            "a.csv, column = dirty_memory_time_min: the name of a column of numbers must end with a known "
            "unit; use one of the suffixes _s, _ms, _us, _ns, _ps",
            id="unknown unit",
        ),
        pytest.param(
            GOOD.replace("time_ms", "time"),
            "a.csv, column = dirty_memory_time: the name of a column of numbers must end with a known "
            "unit; use one of the suffixes _s, _ms, _us, _ns, _ps",
            id="no unit",
        ),
        pytest.param(
            GOOD + "spin,4\n",
            "a.csv, row 4 = 2 cells: must have as many cells as the header, 4; is the file truncated?",
            id="too few cells",
        ),
        pytest.param(
            GOOD + "spin,4,2,503,7\n",
            "a.csv, row 4 = 5 cells: must have as many cells as the header, 4; quote a cell that contains a comma",
            id="too many cells",
        ),
        pytest.param(
            GOOD[:-4],
            "a.csv, row 3 = spin,2,1189,4732: the last line must end with a newline",
            id="last line cut",
        ),
        pytest.param(GOOD + '"spin,4,2503,7\n', "a.csv, row 4 = unexpected end of data: must be CSV", id="open quote"),
        pytest.param(
            GOOD.replace(",", ";"),
            "a.csv, header = series;vcpus;dirty_memory_time_ms;contentions: columns must be separated",
            id="semicolons",
        ),
        pytest.param(
            GOOD.replace("contentions", "vcpus"),
            "a.csv, header = vcpus: a column name must be unique",
            id="column twice",
        ),
        pytest.param(GOOD.replace("contentions", ""), "a.csv, header = series,vcpus", id="column without a name"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, content: str, expected: str, described: bool) -> None:
    (tmp_path / "a.csv").write_text(content)
    if described:
        (tmp_path / "a.json").write_text(json.dumps(DESCRIPTOR))
    assert message(tmp_path / "a.csv").startswith(expected)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(
            "series,dirty_memory_time_ms,contentions\nspin,926,0\n",
            "a.csv, header = series,dirty_memory_time_ms,contentions: the column 'vcpus' is missing; add it",
            id="missing column",
        ),
        pytest.param(
            "series,vcpus,dirty_memory_time_ms,contentions,host\nspin,1,926,0,a\n",
            "a.csv, header = host: the descriptor does not describe the column",
            id="unknown column",
        ),
        pytest.param(
            HEADER + "rw,1,926,0\n",
            "a.csv, row 2, column series = rw: must meet its constraint enum: ['spin']",
            id="unknown series",
        ),
    ],
)
def test_a_file_that_does_not_match_its_descriptor_is_refused(tmp_path: Path, content: str, expected: str) -> None:
    (tmp_path / "a.csv").write_text(content)
    (tmp_path / "a.json").write_text(json.dumps(DESCRIPTOR))
    assert message(tmp_path / "a.csv").startswith(expected)


def _schema(**changes: Any) -> str:
    return json.dumps({"schema": {"fields": FIELDS, **changes}})


def _fields(at: int, **changes: Any) -> str:
    fields = [dict(field) for field in FIELDS]
    fields[at] |= changes
    return _schema(fields=fields)


@pytest.mark.parametrize(
    ("descriptor", "expected"),
    [
        ("", "a.json = an empty file: must be a descriptor (JSON)"),
        ("{", "a.json, line 1 = Expecting property name"),
        ("[" * 100_000, "a.json = nested too deeply: must be a descriptor (JSON)"),
        ("[]", "a.json = no schema with fields: a descriptor must be a Frictionless table resource"),
        ('{"schema": {"fields": [{"type": "number"}]}}', "a.json = no schema with fields"),
        (json.dumps({**DESCRIPTOR, "path": "b.csv"}), "a.json, path = b.csv: must be the CSV file next to it"),
        (_schema(primaryKey="vcpu"), "a.json, primaryKey = vcpu: must be a field; did you mean 'vcpus'"),
        (_schema(missingValues=3), "a.json, missingValues = 3: must be a list of strings"),
        (json.dumps({**DESCRIPTOR, "caveats": 5}), "a.json, caveats = 5: must be a list of strings"),
        (json.dumps({**DESCRIPTOR, "notes": {"a": 1}}), "a.json, notes = {'a': 1}: must be a list of strings"),
        (_schema(fields=[*FIELDS, FIELDS[0]]), "a.json, field = series: must occur once"),
        (_fields(0, type="words"), "a.json = schema: must be a Frictionless table schema"),
        (_fields(0, constraints={"pattern": "("}), "a.json = schema: must be a Frictionless table schema"),
        (_fields(1, constraints={"minimum": "x"}), "a.json = schema: must be a Frictionless table schema"),
        (_fields(2, unit="s"), "a.csv, column dirty_memory_time_ms = s: the descriptor's unit must equal"),
        (_fields(2, type="string"), "a.csv, column dirty_memory_time_ms = string: a time must have the type"),
        (_fields(3, unit="pieces"), "a.csv, column = contentions: the name of a column of numbers must end"),
    ],
)
def test_a_bad_descriptor_is_one_sentence(tmp_path: Path, descriptor: str, expected: str) -> None:
    (tmp_path / "a.csv").write_text(GOOD)
    (tmp_path / "a.json").write_text(descriptor)
    assert message(tmp_path / "a.csv").startswith(expected)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert message(tmp_path / "no.csv") == "no.csv = missing: a measurement file (CSV) must exist; check the path"


def test_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").mkdir()
    assert message(tmp_path / "a.csv").startswith("a.csv = a directory: must be a measurement file")


def test_a_device_is_refused() -> None:
    assert message(Path("/dev/null")).startswith("null = a device or pipe")


def test_bytes_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(GOOD.encode() + b"sp\xefn,4,2503,7\n")
    assert message(tmp_path / "a.csv") == "a.csv, line 4 = byte 0xef: must be UTF-8 text; save the file as UTF-8"


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(GOOD.encode(), id="plain"),
        pytest.param(GOOD.encode("utf-8-sig"), id="byte order mark"),
        pytest.param(GOOD.replace("\n", "\r\n").encode(), id="Windows"),
        pytest.param(GOOD.replace(",", " , ").encode(), id="blanks"),
        pytest.param(GOOD.replace("spin", '"spin"').encode(), id="quotes"),
        pytest.param((GOOD + "\n\n").encode(), id="blank lines"),
    ],
)
@pytest.mark.parametrize("described", [False, True], ids=["bare", "described"])
def test_a_good_file_is_read_in_any_encoding_and_layout(tmp_path: Path, content: bytes, described: bool) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    if described:
        (tmp_path / "a.json").write_text(json.dumps(DESCRIPTOR))
    table = read(tmp_path / "a.csv")
    assert table.seconds("dirty_memory_time").tolist() == [0.926, 1.189]
    assert table.column("contentions").tolist() == [0, 4732558]
    assert table.key == ["series", "vcpus"]
    assert table.units["dirty_memory_time_ms"] == "ms"
