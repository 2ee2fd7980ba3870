# SPDX-License-Identifier: BSD-3-Clause
"""Measurement table: seconds, rows, and its representations."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from simlib._lib.errors import InputError
from simlib.measurements import MeasurementTable, check, load, read


@pytest.fixture(scope="module")
def arm64() -> MeasurementTable:
    return load("arm64-dirty-memory-time")


@pytest.mark.parametrize(
    ("suffix", "cell"), [("s", "0.926"), ("ms", "926"), ("us", "926e3"), ("ns", "926000000"), ("ps", "926e9")]
)
def test_seconds_do_not_depend_on_the_unit(tmp_path: Path, suffix: str, cell: str) -> None:
    (tmp_path / "a.csv").write_text(f"vcpus,clear_time_{suffix}\n1,{cell}\n")
    table = read(tmp_path / "a.csv")
    assert table.seconds("clear_time").tolist() == [0.926]
    assert table.seconds(f"clear_time_{suffix}").tolist() == [0.926]


def test_an_unknown_time_is_refused_with_the_nearest_name(arm64: MeasurementTable) -> None:
    with pytest.raises(InputError, match="does not exist; did you mean 'dirty_memory_time'"):
        arm64.seconds("dirty_time")
    with pytest.raises(InputError, match="did you mean 'vcpus'"):
        arm64.column("vcpu")


def test_a_time_in_two_units_must_be_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("vcpus,clear_time_s,clear_time_ms\n1,1,1000\n")
    table = read(tmp_path / "a.csv")
    with pytest.raises(InputError, match="several columns contain this time: clear_time_s, clear_time_ms"):
        table.seconds("clear_time")
    assert table.seconds("clear_time_ms").tolist() == [1.0]


def test_rows_and_selection(arm64: MeasurementTable) -> None:
    few = arm64.select("vcpus <= 8 and series == 'rwlock-old-test'")
    assert few.column("vcpus").tolist() == [1, 2, 4, 8]
    assert few.seconds("dirty_memory_time").tolist() == [0.965, 1.006, 1.128, 2.005]
    assert np.isnan(few.column("contentions")).all()
    assert few.frame.index.tolist() == [0, 1, 2, 3]
    assert few.source == arm64.source
    assert arm64.rows("vcpus in 16,32")["series"].nunique() == 3
    assert len(arm64.select("vcpus > 64")) == 0


def test_a_table_is_frozen_and_its_columns_are_copies(arm64: MeasurementTable) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        arm64.name = "other"
    arm64.seconds("dirty_memory_time")[:] = 0
    arm64.column("vcpus")[:] = 0
    assert arm64.column("vcpus").min() == 1
    assert arm64.seconds("dirty_memory_time").min() == 0.803


def test_html_has_source_and_caveats_escaped(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("series,clear_time_s\n<b>x</b>,1\n")
    assert "<b>x</b>" not in read(tmp_path / "a.csv")._repr_html_()
    html = load("arm64-dirty-memory-time")._repr_html_()
    assert "Jing Zhang" in html
    assert "Ampere Altra" in html
    assert "like for like" in html
    assert "NaN" not in html


def test_the_report_of_a_file_without_descriptor_names_the_origin_of_units(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("vcpus,contentions,clear_time_s\n1,,0.5\n2,7,0.25\n")
    assert check(tmp_path / "a.csv") == [
        "a: 2 rows, 3 columns, types and units from the names of its columns",
        "key: vcpus",
        "vcpus: 1 to 2, unit count",
        "contentions: 7 to 7, unit count, 1 empty",
        "clear_time_s: 0.25 to 0.5, unit s",
    ]
    assert read(tmp_path / "a.csv").hardware == "not stated"


def test_importing_measurements_does_not_import_frictionless() -> None:
    code = "import sys, simlib.measurements; sys.exit('frictionless' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
