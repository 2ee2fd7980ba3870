# SPDX-License-Identifier: BSD-3-Clause
"""Real migrations: experiments are checked, the guest is what it says, and its counters are read back."""

from __future__ import annotations

import json
import shutil
import struct

import pandas as pd
import pytest

from simlib._lib.errors import InputError, SimlibError
from simlib.lab import collect_migrations, load_migrations, predict_linux, write_migrations
from simlib.lab.migration import collect
from simlib.lab.migration.guest import GAPS, WriteWorkload, read_counters, read_gaps
from simlib.lab.migration.initramfs import initramfs_files
from simlib.lab.migration.linux import parse_linux
from simlib.lab.migration.measurement import READINGS
from simlib.lab.migration.progress import Baseline, Gap
from simlib.lab.migration.tables import LINUX_RUNS, RUNS
from simlib.lab.migration.workloads import WORKLOADS
from simlib.lab.qemu import Qemu
from simlib.measurements import check

HEAD = '[[experiment]]\nname = "n"\n'
SETTINGS = "[experiment.settings]\nmax-bandwidth = 1000\n"
BAD = {
    "no table": ("name = 1", "write [[experiment]]"),
    "no name": ("[[experiment]]\n" + SETTINGS, "name = : must be letters"),
    "an unknown key": (HEAD + "limit = 3\n", "did you mean 'limit_s'"),
    "a text for a table": (HEAD + 'guest = "all"\n', "must be a table"),
    "an unknown habit": (HEAD + "[experiment.guest]\nrat = 3\n", "did you mean 'rate'"),
    "an unknown pattern": (HEAD + '[experiment.guest]\npattern = "up"\n', "one of sweep, random"),
    "a working set beyond the memory": (
        HEAD + 'memory = "32M"\n[experiment.guest]\nworking_set = "32M"\n',
        "must exceed the working set by at least 1 MiB",
    ),
    "a share without a set": (HEAD + "[experiment.guest]\nhot_percent = 5\n", "also set hot_percent"),
    "half a page": (HEAD + '[experiment.guest]\nvcpus = 3\nworking_set = "1M"\n', "a whole number of pages per vCPU"),
    "a setting that is a text": (HEAD + '[experiment.settings]\nauto-converge = "on"\n', "a boolean"),
    "a value twice": (HEAD + "repeats = [1, 1]\n", "lists a value twice"),
    "no accelerator": (HEAD + 'accelerator = "xen"\n', "one of tcg, kvm"),
    "no time": (HEAD + "limit_s = 0\n", "must be from 1 to 3600"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_with_an_experiment_is_one_sentence(name, tmp_path):
    text, why = BAD[name]
    path = tmp_path / "e.toml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        load_migrations(path)
    assert why in str(error.value)


def test_lists_span_a_matrix_and_truths_are_capabilities_but_one(tmp_path):
    path = tmp_path / "e.toml"
    path.write_text(HEAD + "repeats = 2\n[experiment.guest]\nrate = [1, 2]\n[experiment.settings]\n"
                    "auto-converge = true\ncpu-throttle-tailslow = true\ndowntime-limit = [1, 2, 3]\n")  # fmt: skip
    cells = load_migrations(path)
    assert len(cells) == 2 * 2 * 3
    assert cells[0].capabilities == {"auto-converge": True}
    assert cells[0].parameters == {"cpu-throttle-tailslow": True, "downtime-limit": 1}


@pytest.mark.skipif(not (shutil.which("as") and shutil.which("ld")), reason="needs binutils")
def test_the_firmware_has_a_reset_vector_and_the_habit(lab):
    rom = WriteWorkload(2, 2**23, 10_000, "random", 2**20, 30).firmware(2e9, 0.005)
    assert len(rom) == 2**16
    assert rom[0xFFF0] == 0xE9  # a near jump, to the first byte
    assert (0xFFF3 + struct.unpack_from("<h", rom, 0xFFF1)[0]) % 2**16 == 0
    at = rom.index(b"simlib-migration") + 16
    assert struct.unpack_from("<7I", rom, at) == (2, 1024, 128, 30, 1, 400_000, 10_000_000)


def test_gaps_are_those_of_each_vcpu():
    state = struct.Struct("<QQI20xI20x")
    writes = read_counters(state.pack(5, 100, 1, 9) + state.pack(6, 200, 0, 9))
    log = bytearray(2 * 16 * GAPS)
    struct.pack_into("<QQ", log, 0, 90, 40)
    assert read_gaps(bytes(log), writes) == [[Gap(90, 40)], []]


def test_results_are_kept_failures_are_reported_and_tables_are_valid(tmp_path, monkeypatch, lab):
    path = tmp_path / "e.toml"
    path.write_text(HEAD + "[experiment.guest]\nrate = [1, 2]\n" + SETTINGS)
    ran = []

    def migrate(cell, qemu, ticks, check, before):
        check()
        ran.append(cell.guest.rate)
        if cell.guest.rate == 2:
            raise SimlibError("it burned")
        run = {column.name: 1.0 if column.kind == "number" else 1 for column in RUNS} | {"outcome": "completed"}
        return {"runs": [run], "passes": [{"pass": 1, "began_s": 0.0}]}

    monkeypatch.setattr(collect, "find_qemu", lambda target: Qemu("/q/qemu-system-x86_64", (10, 0, 2)))
    monkeypatch.setattr(collect, "measure_ticks", lambda qemu, accelerator: 1e9)
    monkeypatch.setattr(collect, "migrate", migrate)
    for _ in range(2):
        migrated = collect_migrations(load_migrations(path))
        assert list(migrated.failures.values()) == ["it burned"]
    assert ran == [1, 2, 2]  # the first one is kept
    runs, passes = write_migrations(migrated, tmp_path, "mine")
    assert check(runs)[0].startswith("mine-runs: 1 row,")
    assert pd.read_csv(passes)["pass"].tolist() == [1]
    described = json.loads(runs.with_suffix(".json").read_text())
    assert "/q/" not in json.dumps(described)


# -- Linux guests --------------------------------------------------------------------------------------

LINUX = HEAD + SETTINGS + "[experiment.linux]\n"


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_workload_has_defaults_that_fit_a_guest(workload, tmp_path):
    path = tmp_path / "e.toml"
    path.write_text(HEAD + 'memory = "1G"\n' + SETTINGS + "[experiment.linux]\n" + f'workload = "{workload}"\n')
    cell = load_migrations(path)[0]
    lines = cell.guest.lines(1e9)
    assert lines[0] == f"workload {workload}"
    assert all(len(line) < 1024 for line in lines)  # the length of a line that workload.c reads
    assert cell.keys["parameters"] == cell.guest.parameters


@pytest.mark.parametrize(
    ("text", "message"),
    [("workload = 'uniform'\nsett = '1M'", "did you mean 'set'"), ("workload = 'unifrom'", "did you mean 'uniform'"),
     ("workload = 'uniform'\nset = '100G'", "must be from"), ("workload = 'redis'\ncommand = 'reboot'", "one of set"),
     ("workload = 'hot-cold'\nset = '8M'\nhot_set = '8M'", "must be smaller than the set"),
     ("workload = 'uniform'\nset = '1G'", "must exceed set and fill")],
)  # fmt: skip
def test_a_linux_guest_that_cannot_run_is_refused(text, message, tmp_path):
    path = tmp_path / "e.toml"
    path.write_text(LINUX + text + "\n")
    with pytest.raises(InputError, match=message):
        load_migrations(path)


def test_the_report_is_read_as_the_guest_writes_it():
    """Two vCPUs, of which the second was delayed once; it did less than half of its work in the last second."""
    memory = bytearray(2**17)
    struct.pack_into("<8s4Q", memory, 0, b"simlibLG", 1, 3, 30, 100)
    struct.pack_into("<3Q", memory, 64, 500, 9_000, 0)
    struct.pack_into("<3Q", memory, 128, 600, 9_100, 1)
    struct.pack_into("<2Q", memory, 64 + 4 * 64 + 512 * 16, 8_000, 70)
    for number, sample in enumerate([(1_000, 0), (2_000, 100), (3_000, 110)]):
        struct.pack_into("<2Q", memory, 64 + 4 * 64 + 4 * 512 * 16 + 16 * number, *sample)

    def read(address, size):
        return bytes(memory[address - 0x8000000 :][:size])

    guest = parse_linux({"workload": "uniform", "vcpus": 2}, "e.toml: linux")
    counters = guest.counters(read)
    assert guest.is_ready(counters)
    assert [(vcpu.operations, vcpu.gaps) for vcpu in counters] == [(500, 0), (600, 1)]
    assert guest.gaps(read, counters) == [[], [Gap(8_000, 70)]]
    start = [vcpu._replace(last=1_000) for vcpu in counters]
    assert guest.outcome(read, start, Baseline(100, 1_000, 0.0)) == {"slow_percent": 50.0}


@pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("readelf")), reason="needs gcc and binutils")
def test_a_linux_guest_is_predicted_from_its_measurement(tmp_path, monkeypatch, lab):
    """Values of a guest whose migration took 5.1 s (workload zipf, 150 MB/s); the prediction has a table of its own."""
    path = tmp_path / "e.toml"
    path.write_text(HEAD + 'memory = "1G"\nlimit_s = 60\n' + SETTINGS + "[experiment.linux]\nworkload = 'zipf'\n")
    rates = {1: 20, 10: 24, 60: 7}
    replies = [
        {"status": "measured", "sample-pages": 512, "dirty-rate": rate, "mode": "page-sampling", "calc-time": seconds}
        for seconds, rate in rates.items()
    ]
    replies += [[{"cpu-index": 0, "target": "x86_64"}], {"base-memory": 2**30, "plugged-memory": 0},
                {"downtime-limit": 300, "max-bandwidth": 150_000_000}]  # fmt: skip
    columns = {column.name: 1 if column.kind == "whole" else 1.0 for column in READINGS} | {"mode": "page-sampling"}
    readings = [columns | {"reading": number, "vcpu_cpu_percent": 12.0} for number in (1, 2, 3)]

    def migrate(cell, qemu, ticks, check, before):
        measurement = {"keys": cell.keys, "readings": readings, "resident_bytes": 752_828_416,
                       "replies": [{"return": reply} for reply in replies]}  # fmt: skip
        run = {column.name: 1.0 if column.kind == "number" else 1 for column in LINUX_RUNS} | {"outcome": "completed"}
        return {"runs": [run], "passes": [], "measurement": measurement, "prediction": before(measurement)}

    monkeypatch.setattr(collect, "find_qemu", lambda target: Qemu("/q/qemu-system-x86_64", (10, 0, 2)))
    monkeypatch.setattr(collect, "measure_ticks", lambda qemu, accelerator: 1e9)
    monkeypatch.setattr(collect, "migrate", migrate)
    migrated = collect_migrations(load_migrations(path), before_migration=predict_linux)
    files = {table.stem: table for table in write_migrations(migrated, tmp_path, "mine")}
    assert set(files) == {"mine-runs", "mine-passes", "mine-measured", "mine-forecast"}
    assert check(files["mine-forecast"])[0].startswith("mine-forecast: 1 row,")
    assert json.loads(files["mine-forecast"].with_suffix(".json").read_text())["kind"] == "simulated"
    row = pd.read_csv(files["mine-forecast"]).iloc[0]
    assert row["completed_share_ratio"] > 0.9
    assert row["low_total_ms"] < 5062 < row["high_total_ms"] < 2 * row["low_total_ms"]


def test_the_initramfs_has_the_program_and_its_libraries(tmp_path, lab):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/busybox").write_bytes(b"box")
    files = initramfs_files(tmp_path, [], "workload uniform\n")
    assert {"init", "bin/busybox", "workload"} == set(files)
    assert files["init"][:4] == b"\x7fELF"
