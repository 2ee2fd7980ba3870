# SPDX-License-Identifier: BSD-3-Clause
"""Records and tables: damaged outputs are refused, results are reused, and files are reproducible."""

from __future__ import annotations

import dataclasses
import errno
import importlib
import json
import threading
import time
from pathlib import Path

import pandas as pd
import pytest
from lab_fakes import OUTPUT, built, cell, outcome, program

from simlib._lib.errors import InputError, RunInterruptedError, SimlibError
from simlib.lab import collect, collect_native, native, tables, write_tables
from simlib.lab.cache import MORE_SPACE
from simlib.lab.experiment import parse_experiment
from simlib.lab.native import run_native
from simlib.lab.qemu import Qemu
from simlib.lab.record_tables import read_gaps
from simlib.lab.records import load_record, save_record
from simlib.measurements import check

collecting = importlib.import_module("simlib.lab.collect")  # the package's own name is the function
PROVENANCE = {"series_sha256": "5e", "kernel": "statistics", "qemu": "10.0.2"}
PERF = (Path(__file__).parents[1] / "measurements" / "samples" / "dirty_log_perf_test.log").read_text("utf-8")


def record(path: Path, repeats: int = 1, **options):
    """Record of a cell."""
    of = cell(**options)
    return save_record(path, of, [outcome(of=of)] * repeats, PROVENANCE)


def test_a_saved_record_is_loaded_unchanged(tmp_path):
    saved = record(tmp_path / "r" / "one.json", repeats=2, parameters={"dirty_log_clear_batch": 64, "eager": True})
    loaded = load_record(tmp_path / "r" / "one.json")
    assert loaded.content == saved.content
    assert (loaded.label, loaded.repeatable, loaded.content["test_line"]) == ("fake", True, 2)
    assert loaded.keys["switches"] == "dirty_log_clear_batch=64 eager=Y"
    assert loaded.keys["protection"] == "initially_set"
    assert [path.name for path in tmp_path.rglob("*.json")] == ["one.json"]


LINES = OUTPUT.splitlines(keepends=True)


BAD_NUMBER = OUTPUT.replace('"first_page":0', '"first_page":-1')


@pytest.mark.parametrize("damaged", ["", LINES[0], "".join(LINES[:-1]), OUTPUT[:3000], BAD_NUMBER])
def test_a_damaged_output_is_refused_and_nothing_is_written(tmp_path, damaged):
    with pytest.raises(SimlibError) as caught:
        save_record(tmp_path / "r" / "one.json", cell(), [outcome(damaged)], PROVENANCE)
    assert str(caught.value).startswith("fake: ")
    assert not (tmp_path / "r").exists()


def test_a_damaged_record_is_named(tmp_path):
    (tmp_path / "one.json").write_text('{"label": "x", "out')
    with pytest.raises(
        SimlibError, match=r"the result .*one\.json is damaged \(.*\): delete it, or run with --restart"
    ):
        load_record(tmp_path / "one.json")
    (tmp_path / "one.json").write_text('{"label": "x", "outputs": []}')
    with pytest.raises(SimlibError, match=r"one\.json is damaged \(it lacks clock, command, digests, .*\): delete it"):
        load_record(tmp_path / "one.json")
    (tmp_path / "one.json").write_text("3")
    with pytest.raises(SimlibError, match=r"one\.json is damaged"):
        load_record(tmp_path / "one.json")


FULL = OSError(errno.ENOSPC, "No space left on device")


def test_tables_of_an_earlier_collection_are_removed(tmp_path):
    write_tables([record(tmp_path / "one.json")], tmp_path / "out", "mine")
    no_stats = "".join(line for line in LINES if '"type":"stat"' not in line)
    made = save_record(tmp_path / "two.json", cell(), [outcome(no_stats)], PROVENANCE)
    names = [path.name for path in write_tables([made], tmp_path / "out", "mine")]
    assert names == ["mine-runs.csv", "mine-ioctls.csv", "mine-stalls.csv"]
    assert sorted(path.name for path in (tmp_path / "out").glob("*.csv")) == sorted(names)


def test_the_tables_hold_what_the_test_printed(tmp_path):
    frames = tables([record(tmp_path / "one.json", repeats=2)])
    locks = frames["locks"][
        ["phase", "site", "lock_mode", "acquisitions", "contentions", "wait_time_ns", "hold_time_ns"]
    ]
    assert sorted(locks.to_numpy().tolist()) == [
        ["populate", "fault_slow", "read", 520, 3, 4100, 612000],
        ["rounds", "clear", "write", 2, 1, 800, 480120],
        ["rounds", "fault_slow", "read", 1024, 2, 5000, 1200000],
    ]
    ioctls = frames["ioctls"].set_index(["name", "round"])
    assert ioctls.loc[("clear", 2), ["calls", "range_pages", "dirty_pages", "total_time_ns"]].tolist() == [
        1,
        512,
        512,
        8673,
    ]
    assert ioctls.loc[("write", 1), "dirty_pages"] == 0
    stall = frames["stalls"].iloc[0]
    assert (stall["vcpu"], stall["writes"], stall["longest_stall_ns"]) == (0, 1024, 25339160)
    gaps = read_gaps([stall["gaps"]])
    assert gaps.iloc[1].tolist() == [53642, 55220, 402]
    assert gaps["count"].sum() == 512
    assert frames["runs"][["repeats", "identical"]].to_numpy().tolist() == [[2, "true"]]


def test_counts_of_a_site_that_only_one_reading_has_stay_integers(tmp_path):
    """The readings of a stock kernel, or of another version of the series, may have different sites."""
    text = "".join(line for line in LINES if not ('"populated"' in line and "clear" in line))
    save_record(tmp_path / "one.json", cell(), [outcome(text)], PROVENANCE)
    locks = tables([load_record(tmp_path / "one.json")])["locks"]
    assert pd.api.types.is_integer_dtype(locks["acquisitions"])
    assert locks.set_index(["phase", "site"]).loc[("rounds", "clear"), "acquisitions"] == 2


@pytest.mark.parametrize("program_name", ["mmu_lock_contention_test", "dirty_log_perf_test"])
@pytest.mark.parametrize(
    "provenance", [PROVENANCE, {"kernel": "6.1", "machine": "x86_64", "patched": False, "cpu": "A CPU", "cpus": 4}]
)
def test_written_tables_are_valid_and_reproducible(tmp_path, program_name, provenance):
    records = []
    for number, parameters in enumerate(({}, {"dirty_log_clear_batch": 64})):
        perf = program_name == "dirty_log_perf_test"
        options = {"program": program_name, "test": {"iterations": 2}} if perf else {}
        table = {"name": "fake", "target": "x86_64", "parameters": parameters, **options}
        of = next(parse_experiment(table).cells())
        records.append(
            save_record(tmp_path / f"{number}.json", of, [outcome(PERF if perf else OUTPUT, of)], provenance)
        )
    names = ["runs"] if program_name == "dirty_log_perf_test" else ["runs", "locks", "ioctls", "stalls", "rounds"]
    first, second = (write_tables(records, tmp_path / folder, "mine") for folder in ("a", "b"))
    assert [path.name for path in first] == [f"mine-{name}.csv" for name in names]
    for path, other in zip(first, second, strict=True):
        assert check(path)[0].startswith(f"{path.stem}: {len(pd.read_csv(path))} rows")
        assert path.read_bytes() == other.read_bytes()
        assert path.with_suffix(".json").read_bytes() == other.with_suffix(".json").read_bytes()
    described = json.loads(first[0].with_suffix(".json").read_text())
    ((name, kernel),) = described["setup"]["kernels"].items()
    assert name.startswith("x86_64-native-" if "cpu" in provenance else "x86_64-npt-statistics")
    assert kernel["kernel"] == provenance["kernel"]
    assert str(tmp_path) not in first[0].with_suffix(".json").read_text()
    assert ("A CPU, 4 CPUs, Linux 6.1" if "cpu" in provenance else "QEMU 10.0.2, TCG") in described["hardware"]
    assert write_tables(records, tmp_path / "a", "mine") == first


def test_records_with_the_same_key_are_not_written(tmp_path):
    pair = [record(tmp_path / f"{pause}.json", test={"pause_us": pause}) for pause in (0, 9)]
    with pytest.raises(
        SimlibError, match=r"'fake' and 'fake' have the same key in the tables, .* put them into separate"
    ):
        write_tables(pair, tmp_path / "out", "mine")
    with pytest.raises(SimlibError, match="no cell has a result: nothing is written"):
        write_tables([], tmp_path / "out", "mine")
    assert not (tmp_path / "out").exists()


class Boots:
    """Count boots; those of some labels fail."""

    def __init__(self):
        self.labels: list[str] = []
        self.fail: dict[str, Exception] = {}
        self.vary = False

    def __call__(self, of, target, kernel, qemu, core, progress):
        self.labels.append(of.label)
        if of.label in self.fail:
            raise self.fail[of.label]
        result = outcome(of=of)
        return dataclasses.replace(result, digest=str(len(self.labels))) if self.vary else result


@pytest.fixture
def boots(tmp_path, monkeypatch):
    """Replace QEMU and the kernels by fakes."""
    fake = Boots()
    monkeypatch.setattr(collecting, "boot", fake)
    monkeypatch.setattr(collecting, "find_qemu", lambda target: Qemu("/qemu", (10, 0, 2)))
    monkeypatch.setattr(collecting, "find_built", lambda target, kernel: built(tmp_path / "built"))
    return fake


def matrix(**changes):
    """An experiment of three cells."""
    return parse_experiment({"name": "m", "target": "x86_64", "test": {"vcpus": [1, 2, 4]}, **changes})


def test_cells_with_results_are_not_run_again(boots):
    shares: list[float] = []
    first = collect([matrix()], jobs=1, progress=lambda label, share: shares.append(share))
    assert boots.labels == ["m vcpus=1", "m vcpus=2", "m vcpus=4"] == [record.label for record in first.records]
    assert shares == pytest.approx([1 / 3, 2 / 3, 1])
    again = collect([matrix()])
    assert [record.content for record in again.records] == [record.content for record in first.records]
    assert len(boots.labels) == 3
    collect([matrix(test={"vcpus": [1, 2, 4, 8]})])
    assert boots.labels[3:] == ["m vcpus=8"]
    collect([matrix()], restart=True)
    assert len(boots.labels) == 7
    twice = collect([matrix(repeats=2)])  # a single run does not show that it is repeatable
    assert len(boots.labels) == 13
    assert [len(record.content["digests"]) for record in twice.records] == [2, 2, 2]
    collect([matrix()])
    assert len(boots.labels) == 13


def test_a_cell_that_fails_stops_no_other(boots):
    boots.fail["m vcpus=2"] = SimlibError("m vcpus=2: not finished after 600 s")
    collected = collect([matrix()])
    assert [record.label for record in collected.records] == ["m vcpus=1", "m vcpus=4"]
    assert collected.failures == {"m vcpus=2": "m vcpus=2: not finished after 600 s"}
    boots.fail.clear()
    assert len(collect([matrix()]).records) == 3
    assert boots.labels.count("m vcpus=2") == 2
    assert len(boots.labels) == 4


def test_a_full_disk_is_a_failed_cell_with_a_hint(boots):
    boots.fail = {"m vcpus=1": FULL, "m vcpus=2": PermissionError(errno.EACCES, "Permission denied", "/tmp/x")}  # noqa: S108  # a name
    collected = collect([matrix()])
    assert collected.failures == {
        "m vcpus=1": f"No space left on device: {MORE_SPACE}",
        "m vcpus=2": "/tmp/x: Permission denied",  # noqa: S108  # the same
    }
    assert len(collected.records) == 1


def test_a_damaged_output_is_a_failed_cell(boots, lab, monkeypatch):
    monkeypatch.setattr(collecting, "boot", lambda *arguments: outcome("Random seed: 1\n"))
    collected = collect([matrix()])
    assert len(collected.failures) == 3
    assert not list(lab.rglob("*.json"))


def test_a_cell_that_does_not_repeat_itself_is_reported(boots, tmp_path):
    boots.vary = True
    collected = collect([matrix(repeats=2)])
    assert [record.repeatable for record in collected.records] == [False] * 3
    assert tables(collected.records)["runs"]["identical"].tolist() == ["false"] * 3


def test_ctrl_c_ends_the_boots_that_run(boots, monkeypatch):
    ended = threading.Event()

    def hang(of, target, kernel, qemu, core, progress):
        if of.label == "m vcpus=1":
            return outcome(of=of)
        try:
            while True:
                progress(0.0)
                time.sleep(0.01)
        except RunInterruptedError:
            ended.set()
            raise

    def interrupt(label, share):
        time.sleep(0.2)
        raise KeyboardInterrupt

    monkeypatch.setattr(collecting, "boot", hang)
    monkeypatch.setattr(collecting.os, "sched_getaffinity", lambda pid: {0, 1}, raising=True)
    with pytest.raises(KeyboardInterrupt):
        collect([matrix()], progress=interrupt)
    assert ended.wait(5.0)


SWITCHES = {"dirty_log_clear_batch": 64, "eager_page_split": False}


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """A kernel with two of the parameters, lock_stat and the tracepoints."""
    parameters, tracing = tmp_path / "parameters", tmp_path / "tracing"
    parameters.mkdir()
    (parameters / "dirty_log_clear_batch").write_text("0\n")
    (parameters / "eager_page_split").write_text("Y\n")
    for event in ("begin", "end"):
        folder = tracing / "events" / "lock" / f"contention_{event}"
        folder.mkdir(parents=True)
        (folder / "enable").write_text("0")
    (tracing / "trace").write_text("old\n")
    (tmp_path / "lock_stat").write_text("lock_stat version 0.4\n")
    monkeypatch.setattr(native, "PARAMETERS", parameters)
    monkeypatch.setattr(native, "TRACING", tracing)
    monkeypatch.setattr(native, "LOCK_STAT", tmp_path / "lock_stat")
    return parameters


def state(kernel: Path) -> list[str]:
    """Parameters and tracepoints."""
    traced = kernel.parent.joinpath("tracing/events").rglob("enable")
    return [path.read_text().strip() for path in (*sorted(kernel.iterdir()), *sorted(traced))]


def test_a_native_run_restores_the_parameters(kernel, tmp_path):
    (tmp_path / "out").write_text(OUTPUT)
    script = f"cat '{kernel}'/*; echo \"$@\" > '{tmp_path}/words'; cat '{tmp_path}/tracing/events/lock/'*/enable >&2"
    of = cell(SWITCHES)
    result = run_native(of, program(tmp_path / "fake_test", script), tmp_path / "output")
    assert result.outputs == ("", "", "64N")
    assert (tmp_path / "words").read_text() == "-v 1 -b 2M -r 2 -p\n"
    assert result.command == "fake_test -v 1 -b 2M -r 2 -p"
    assert state(kernel) == ["0", "Y", "0", "0"]
    assert sorted(path.name for path in (tmp_path / "output").iterdir()) == ["contention.txt", "lock_stat.txt"]
    test = program(tmp_path / "fake_test", f"cat '{tmp_path}/out'")
    first, second = (run_native(of, test, tmp_path / "output") for _ in range(2))
    assert first.digest == second.digest != result.digest
    assert save_record(tmp_path / "one.json", of, [first, second], {"patched": False, "cpu": "x"}).repeatable


@pytest.mark.parametrize("locks", ["statistics", "lock-stat"])
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo 'no KVM'; exit 4", "fake: the test was skipped: no KVM"),
        ("echo hello; echo 'errno 12' >&2; exit 254", "fake: the test exited with status 254: errno 12"),
        ("exit 1", "fake: the test exited with status 1: it printed nothing"),
        ("exec sleep 100", "fake: timed out after 1 s: raise timeout_s, or test less memory"),
    ],
)
def test_a_native_run_that_fails_leaves_the_kernel_as_it_was(kernel, tmp_path, script, expected, locks):
    of = cell(SWITCHES, timeout_s=1, kernel=locks)
    with pytest.raises(SimlibError) as caught:
        run_native(of, program(tmp_path / "fake_test", script), tmp_path / "output")
    assert str(caught.value) == expected
    assert state(kernel) == ["0", "Y", "0", "0"]


def test_an_interrupted_native_run_leaves_the_kernel_as_it_was(kernel, tmp_path, monkeypatch):
    test = program(tmp_path / "fake_test", "exit 0")
    (tmp_path / "output" / "contention.txt").mkdir(parents=True)  # the trace cannot be written
    with pytest.raises(IsADirectoryError):
        run_native(cell(SWITCHES), test, tmp_path / "output")
    assert state(kernel) == ["0", "Y", "0", "0"]

    def interrupted(*arguments, **options):
        assert state(kernel) == ["64", "N", "1", "1"]
        raise KeyboardInterrupt

    monkeypatch.setattr(native, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_native(cell(SWITCHES), test, tmp_path / "other")
    assert state(kernel) == ["0", "Y", "0", "0"]


def test_a_parameter_that_this_kernel_does_not_have_is_refused(kernel, tmp_path):
    expected = (
        r"parameters\.no_such = 1: Linux .* has no such parameter; boot a kernel with the patch series .*chunk_pages"
    )
    with pytest.raises(InputError, match=expected):
        run_native(cell({**SWITCHES, "no_such": 1}), program(tmp_path / "fake_test", "exit 0"), tmp_path / "output")
    assert state(kernel) == ["0", "Y", "0", "0"]
    (kernel / "no_such").mkdir()
    with pytest.raises(
        InputError, match=r"parameters\.no_such = 1: was rejected \(Is a directory\); run as root, and c"
    ):
        run_native(cell({"no_such": 1}), program(tmp_path / "fake_test", "exit 0"), tmp_path / "output")


def test_a_native_matrix(kernel, tmp_path, monkeypatch):
    (tmp_path / "out").write_text(OUTPUT)
    script = f"case \"$*\" in *'-v 2'*) exit 4;; esac; cat '{tmp_path}/out'"
    monkeypatch.setattr(collecting, "native_target", lambda: "x86_64")
    monkeypatch.setattr(collecting, "find_program", lambda target, name: program(tmp_path / name, script))
    collected = collect_native([matrix(parameters=SWITCHES, repeats=2)])
    assert [record.label for record in collected.records] == ["m vcpus=1", "m vcpus=4"]
    assert collected.failures == {"m vcpus=2": "m vcpus=2: the test was skipped: it printed nothing"}
    paths = write_tables(collected.records, tmp_path / "tables", "native")
    assert [check(path)[0].split(",")[0] for path in paths[:1]] == ["native-runs: 2 rows"]
    with pytest.raises(InputError, match="m: target = arm64: this host is x86_64; omit --native"):
        collect_native([matrix(target="arm64")])


@pytest.mark.parametrize(("emulated", "has_caveat"), [(3, False), (5000, True)])
def test_only_an_emulated_guest_has_the_caveat(tmp_path, emulated, has_caveat):
    """KVM always emulates some instructions: their number counts relative to reads and writes, not only to writes."""
    statistic = f'{{"type":"stat","scope":"vcpu","when":"end","name":"insn_emulation","value":{emulated}}}\n'
    reads = OUTPUT.replace('"writes":1024,"reads":0', '"writes":1,"reads":1023')
    text = reads.replace('{"type":"end"', statistic + '{"type":"end"')
    host = {"cpu": "A CPU", "cpus": 4, "kernel": "6.1", "patched": False}
    written = write_tables([save_record(tmp_path / "one.json", cell(), [outcome(text)], host)], tmp_path / "t", "mine")
    described = json.loads(written[0].with_suffix(".json").read_text())
    assert any("emulated all instructions" in caveat for caveat in described["caveats"]) == has_caveat
