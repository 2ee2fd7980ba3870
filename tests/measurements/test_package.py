# SPDX-License-Identifier: BSD-3-Clause
"""Data package: complete, described, with the published digits."""

import json
import shutil
from pathlib import Path

import pytest
from frictionless import Package

from simlib._lib.errors import InputError
from simlib.measurements import assemble, check, data_dir, list_tables, load
from simlib.measurements.package import _paths

NAMES = sorted(_paths())


def lines(name: str) -> list[str]:
    """Rows of a published table, as text."""
    return _paths()[name].read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", NAMES)
def test_every_table_is_valid_and_has_a_source(name: str) -> None:
    path = _paths()[name]
    count = len(lines(name)) - 1
    assert check(path)[0].startswith(f"{name}: {count} row{'s' * (count != 1)},")
    descriptor = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    assert descriptor["name"] == path.stem == name
    assert descriptor["kind"] in ("measured", "stated", "constant", "simulated")
    if path.parent.name == "collected":
        for kernel in descriptor["setup"]["kernels"].values():
            assert kernel["command"]
            assert {"sha256", "series_sha256", "configuration_sha256", "compiler", "qemu"} <= set(kernel) or kernel[
                "cpu"
            ]
    elif descriptor["kind"] == "simulated":
        assert {"date", "simlib", "answers", "sha256"} <= set(descriptor)
    else:
        assert {"subject", "author", "date", "message_id"} <= set(descriptor["source"])
    for key in ("title", "hardware", "command"):
        assert descriptor[key]
    for key in ("notes", "caveats"):
        assert all(isinstance(note, str) and note for note in descriptor[key])
    assert descriptor["schema"]["primaryKey"]
    for field in descriptor["schema"]["fields"]:
        assert field["unit"]
        assert field["description"]


def test_the_listing_matches_the_descriptors() -> None:
    folder = data_dir()
    assert assemble(folder) == json.loads((folder / "datapackage.json").read_text(encoding="utf-8"))
    tables = ("published", "collected", "predictions")
    files = {path.stem for table in tables for path in (folder / table).glob("*.csv")}
    assert files == {path.stem for table in tables for path in (folder / table).glob("*.json")} == set(NAMES)
    assert sum(path.stat().st_size for path in (folder / "collected").iterdir()) < 12 * 2**20


def test_any_frictionless_tool_can_validate_the_package() -> None:
    report = Package(str(data_dir() / "datapackage.json")).validate()
    assert report.valid, report.flatten(["name", "row_number", "note"])


def test_the_tables_are_listed_with_their_source() -> None:
    tables = list_tables().set_index("name")
    assert sorted(tables.index) == NAMES
    assert tables.columns.tolist() == ["title", "rows", "source", "hardware", "kind"]
    assert tables.loc["arm64-dirty-memory-time", "rows"] == 21
    assert str(tables.loc["arm64-dirty-memory-time", "source"]).startswith("Jing Zhang: ")
    assert tables.loc["x86-shadow-eager-split-dirty-time", "hardware"] == "not stated"


def test_an_installed_package_lists_and_loads_only_the_tables_that_it_contains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(data_dir() / "datapackage.json", tmp_path)
    shutil.copytree(data_dir() / "published", tmp_path / "published")
    monkeypatch.setenv("SIMLIB_DATA", str(tmp_path))
    monkeypatch.setattr("simlib.measurements.package.checkout", lambda: None)
    published = {name for name in NAMES if (tmp_path / "published" / f"{name}.csv").exists()}
    assert set(list_tables()["name"]) == published < set(NAMES)
    assert len(load("arm64-dirty-memory-time")) == 21
    absent = min(set(NAMES) - published)
    with pytest.raises(InputError) as error:
        load(absent)
    assert str(error.value) == (
        f"table = {absent}: is in simlib's repository, not in the installed package; use a checkout"
    )
    with pytest.raises(InputError, match="is not in the data package; did you mean 'arm64-teardown-64gb'"):
        load("arm64-teardown-64g")


@pytest.mark.parametrize(
    ("name", "row"),
    [
        # the January 2022 series and the mail that completes it
        ("arm64-dirty-memory-time", "spinlock-old-test,1,926,0"),
        ("arm64-dirty-memory-time", "spinlock-old-test,2,1189,4732558"),
        ("arm64-dirty-memory-time", "spinlock-old-test,64,40994,201442478"),
        ("arm64-dirty-memory-time", "rwlock-old-test,64,15783,"),
        ("arm64-dirty-memory-time", "rwlock-fixed-test,1,803,"),
        ("arm64-dirty-memory-time", "rwlock-fixed-test,64,12190,"),
        ("arm64-migration-degradation", "arm64-before,99,about,105"),
        ("arm64-migration-degradation", "x86-reference,10,equal,27"),
        ("arm64-migration-degradation", "arm64-after,50,equal,58"),
        # the April 2024 mail
        ("x86-clear-lock-drop-configurations", "1,Y,N,Y,x86,-1,-1,6"),
        ("x86-clear-lock-drop-configurations", "2,Y,Y,Y,arm64,-1,1,123"),
        (
            "x86-clear-lock-drop-configurations",
            "3,N,N,N,loongarch-lockless-write-protect,32,158,5200",
        ),
        ("x86-clear-dips-64-page-drop", "160,8,before,dips"),
        # the 2013 series
        ("x86-get-dirty-log-lockless", "before,10,9009483"),
        ("x86-get-dirty-log-lockless", "after,10,4807343"),
        ("x86-kernbench-lockless", "before,Y,1,85.58"),
        ("x86-kernbench-lockless", "after,Y,1,83.40"),
        ("x86-kernbench-lockless", "after,N,3,138.94"),
        # the December 2019 mail
        ("arm64-teardown-64gb", "before,64,up-to,12"),
        ("arm64-teardown-64gb", "after,64,below,1"),
        ("arm64-teardown-cost-share", "cache-maintenance-on-unmap,99"),
        # the June 2026 mail
        ("arm64-split-walk-skip-levels", "enable,4k-already-split,-35.47,5.63"),
        ("arm64-split-walk-skip-levels", "clear,thp,-12.05,0.37"),
        ("arm64-split-walk-skip-levels", "clear,hugetlb-1gb,-13.87,0.86"),
        # beside the seeds
        ("arm64-split-walk-thunderx2", "enable,4k-already-split,-44.01,2.80"),
        ("arm64-split-walk-thunderx2", "clear,hugetlb-1gb,-24.24,0.65"),
        ("x86-shadow-eager-split-dirty-time", "Y,100,N,2,0.310786549"),
        ("x86-shadow-eager-split-dirty-time", "Y,5,Y,64,0.017575228"),
        ("x86-shadow-eager-split-dirty-time", "N,50,Y,64,9.158492731"),
        ("x86-shadow-eager-split-dirty-time", "N,5,N,64,21.052654299"),
        ("x86-shadow-eager-split-ioctl-time", "clear-iteration-1,Y,64,64,2.664388025"),
        ("x86-shadow-eager-split-ioctl-time", "enable-dirty-log,N,8,8,0.006247177"),
        ("x86-tdp-eager-split", "N,dirty-memory-iteration-1,before,2.943733325"),
        ("x86-disable-dirty-log-flushes", "before,14.334453428,131072"),
        ("x86-clear-dirty-log-160-vcpus", "before,1,3.638543593"),
        ("arm64-tlbi-range-by-memory", "128,series,306.86,0.090"),
        ("arm64-enable-dirty-log-chunks", "4K,before,650"),
        ("qemu-auto-converge", "off,active,1487503,,383749347,67551"),
        ("core-to-core-latency", "Power7,cross-socket,443,2.5"),
    ],
)
def test_digits_are_those_published(name: str, row: str) -> None:
    assert row in lines(name)


def test_the_arm64_table_is_complete_and_has_its_caveat() -> None:
    table = load("arm64-dirty-memory-time")
    assert lines(table.name)[0] == "series,vcpus,dirty_memory_time_ms,contentions"
    assert table.frame["series"].unique().tolist() == [
        "spinlock-old-test",
        "rwlock-old-test",
        "rwlock-fixed-test",
    ]
    for _, rows in table.frame.groupby("series"):
        assert rows["vcpus"].tolist() == [1, 2, 4, 8, 16, 32, 64]
    assert any("rwlock-fixed-test" in caveat and "like for like" in caveat for caveat in table.caveats)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("x86-shadow-eager-split-dirty-time", 60),
        ("x86-shadow-eager-split-ioctl-time", 36),
        ("x86-tdp-eager-split", 10),
        ("x86-populate-memslot-lookup", 12),
        ("arm64-tlbi-range-by-memory", 16),
        ("arm64-tlbi-range-by-vcpus", 16),
        ("arm64-tlbi-range-unmap-4k", 16),
        ("x86-yield-hang-outcomes", 5),
        ("qemu-dirty-ring-migration", 12),
        ("x86-get-dirty-log-cycles", 12),
        ("core-to-core-latency", 20),
    ],
)
def test_a_published_grid_is_complete(name: str, rows: int) -> None:
    assert len(load(name)) == rows


def test_published_averages_are_those_of_the_published_runs() -> None:
    runs = load("x86-clear-dirty-log-160-vcpus")
    average = load("x86-clear-dirty-log-160-vcpus-average")
    for variant in ("before", "after"):
        mean = runs.select(f"variant == {variant}").seconds("clear_time").mean()
        assert mean == pytest.approx(average.select(f"variant == {variant}").seconds("clear_time")[0], abs=2e-9)


def test_an_unknown_table_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'arm64-dirty-memory-time'"):
        load("arm64-dirty-memory-times")
    with pytest.raises(InputError, match="is not in the data package"):
        load("../../etc/passwd")


def test_the_environment_variable_selects_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMLIB_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"SIMLIB_DATA = .*: must be a folder with a datapackage.json"):
        data_dir()
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.csv").write_text("vcpus,clear_time_s\n1,0.5\n")
    fields = [
        {"name": "vcpus", "type": "integer", "unit": "count"},
        {"name": "clear_time_s", "type": "number"},
    ]
    (tmp_path / "own" / "mine.json").write_text(json.dumps({"name": "mine", "schema": {"fields": fields}}))
    (tmp_path / "datapackage.json").write_text('{"name": "own", "resources": []}')
    (tmp_path / "datapackage.json").write_text(json.dumps(assemble(tmp_path)))
    assert data_dir() == tmp_path
    assert list_tables()["name"].tolist() == ["mine"]
    assert load("mine").seconds("clear_time").tolist() == [0.5]


@pytest.mark.parametrize("listing", ["{", "[]", "{}", '{"resources": [{"name": "a"}]}', '{"resources": 3}'])
def test_a_broken_listing_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listing: str) -> None:
    (tmp_path / "datapackage.json").write_text(listing)
    monkeypatch.setenv("SIMLIB_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"datapackage\.json"):
        list_tables()


def test_a_loaded_table_is_a_copy_and_follows_its_files(tmp_path, monkeypatch):
    name = "arm64-teardown-64gb"
    shutil.copytree(data_dir(), tmp_path / "data", ignore=shutil.ignore_patterns("collected", "sweeps", "guests"))
    monkeypatch.setenv("SIMLIB_DATA", str(tmp_path / "data"))
    first = load(name)
    first.frame.iloc[:, -1] = 0
    first.descriptor["title"] = "mine"
    reloaded = load(name)
    assert reloaded.frame.iloc[:, -1].gt(0).all()
    assert reloaded.title != "mine"
    text = reloaded.path.read_text(encoding="utf-8")
    reloaded.path.write_text(text.rpartition(",")[0] + ",7\n", encoding="utf-8")
    assert load(name).frame.iloc[-1, -1] == 7
    reloaded.path.unlink()
    with pytest.raises(InputError, match="arm64-teardown-64gb"):
        load(name)
