# SPDX-License-Identifier: BSD-3-Clause
"""The watch of a QMP server: its answers appear in the tables, and missing answers are tolerated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from fake_qemu import HANG_UP, UNKNOWN, serving

from simlib._lib.errors import InputError, SimlibError
from simlib.lab.host import watch_guest
from simlib.measurements import check, read
from simlib.measurements.importers.kvm_stats import LOCKS

MIB = 2**20
SCHEMAS = [
    {"provider": "kvm", "target": "vm", "stats": [
        {"name": "remote_tlb_flush", "exponent": 0, "type": "cumulative"},
        {"name": "pages_4k", "exponent": 0, "type": "instant"},
        {"name": "mmu_lock_clear_write_acquired", "exponent": 0, "type": "cumulative"},
        {"name": "mmu_lock_clear_write_contended", "exponent": 0, "type": "cumulative"},
        {"name": "mmu_lock_clear_write_wait_ns", "unit": "seconds", "base": 10, "exponent": -9, "type": "cumulative"},
        {"name": "mmu_lock_clear_write_hold_ns", "unit": "seconds", "base": 10, "exponent": -9, "type": "cumulative"},
        {"name": "mmu_lock_clear_write_hold_hist", "unit": "seconds", "base": 10, "exponent": -9,
         "type": "log2-histogram"},
    ]},
    {"provider": "kvm", "target": "vcpu", "stats": [
        {"name": "pf_taken", "exponent": 0, "type": "cumulative"},
        {"name": "guest_mode", "unit": "boolean", "exponent": 0, "type": "instant"},
        {"name": "linear", "exponent": 0, "type": "linear-histogram", "bucket-size": 10},
    ]},
]  # fmt: skip


def migrate(status, passes=1, **ram):
    counters = {"dirty-sync-count": passes, "transferred": 0, "remaining": 0, "total": 64 * MIB, "page-size": 4096}
    return {"status": status, "total-time": 1000, "setup-time": 3, "ram": counters | ram}


MIGRATION = [
    {},
    migrate("active", 1, transferred=1 * MIB, remaining=63 * MIB, mbps=64.5),
    migrate("active", 2, transferred=9 * MIB, remaining=3 * MIB) | {"cpu-throttle-percentage": 20},
    migrate("active", 2, transferred=12 * MIB, remaining=1 * MIB, **{"dirty-pages-rate": 1873}),
    migrate("completed", 4, transferred=13 * MIB) | {"downtime": 7},
]


class Guest:
    """A guest with one vCPU, whose statistics grow from sample to sample."""

    def __init__(self, migration=MIGRATION, **replies):
        self.migration, self.replies, self.sample = migration, replies, -1

    def __call__(self, command, arguments):
        given = self.replies.get(command)
        if given is not None:
            return given(self.sample) if callable(given) else given
        if command == "query-migrate":
            self.sample += 1
            return self.migration[min(self.sample, len(self.migration) - 1)]
        if command == "query-stats":
            return [self.stats(self.sample) if arguments["target"] == "vm" else self.vcpu(self.sample)]
        return {
            "query-kvm": {"enabled": True, "present": True}, "query-stats-schemas": SCHEMAS,
            "query-cpus-fast": [{"cpu-index": 5, "qom-path": "/machine/device[0]", "thread-id": os.getpid()}],
        }[command]  # fmt: skip

    @staticmethod
    def stats(n):
        histogram = [0] * 32
        histogram[13] = 8 * n - int(n == 4)
        histogram[31] = int(n == 4)
        histogram.reverse()  # as QEMU reports it
        values = {"remote_tlb_flush": 100 + 3 * n, "pages_4k": 512 if n else 0, "mmu_lock_clear_write_acquired": 8 * n,
                  "mmu_lock_clear_write_contended": 2 * n, "mmu_lock_clear_write_wait_ns": 1000 * n,
                  "mmu_lock_clear_write_hold_ns": 50_000 * n, "mmu_lock_clear_write_hold_hist": histogram}  # fmt: skip
        return {"provider": "kvm", "stats": [{"name": name, "value": value} for name, value in values.items()]}

    @staticmethod
    def vcpu(n):
        values = {"pf_taken": 1000 * n * n, "guest_mode": n == 2, "linear": [2 * n, 0, n]}
        return {"provider": "kvm", "qom-path": "/machine/device[0]",
                "stats": [{"name": name, "value": value} for name, value in values.items()]}  # fmt: skip


@pytest.fixture
def watched(tmp_path):
    """Watch a guest to its end, as fast as possible."""

    def run(guest, **more):
        with serving(tmp_path / "q", guest) as commands:
            result = watch_guest(tmp_path / "q", interval=0.05, events=(), **more)
        run.commands = commands
        return result

    return run


def rows(result, table, *columns):
    return list(result.imported.tables[table].frame[list(columns)].itertuples(index=False, name=None))


def value(result, about, what):
    return next(row["value"] for row in result.summary if (row["about"], row["what"]) == (about, what))


def test_a_migration_that_completes(watched):
    result = watched(Guest())
    assert (result.ended, result.interrupted) == ("migration completed", False)
    table = result.imported.tables["migration"].frame
    assert table["status"].tolist() == ["none", "active", "active", "active", "completed"]
    assert table["transferred_bytes"].dropna().tolist() == [MIB, 9 * MIB, 12 * MIB, 13 * MIB]
    assert (table["throughput_mbit_per_s"][1], table["throttle_percent"][2], table["downtime_ms"][4]) == (64.5, 20, 7)
    assert table["time_s"].is_monotonic_increasing
    passes = rows(result, "passes", "pass", "transferred_bytes", "dirty_pages_per_s")
    assert [(number, size) for number, size, _ in passes] == [(1, 8 * MIB), (2, 4 * MIB), (4, 0)]
    assert passes[1][2] == 1873
    assert value(result, "migration", "downtime") == 7
    assert value(result, "migration", "passes seen") == 3
    assert result.imported.warnings == ()
    setup = result.imported.setup
    assert (setup["accelerator"], setup["qemu"], setup["samples"]) == ("kvm", "9.2.1", 5)
    assert set(watched.commands) == {
        "qmp_capabilities", "query-kvm", "query-stats-schemas", "query-cpus-fast", "query-migrate", "query-stats",
    }  # fmt: skip


def test_statistics_are_differences(watched):
    result = watched(Guest())
    assert rows(result, "statistics", "sample", "scope", "vcpu", "name", "type", "value") == [
        (2, "vm", "all", "remote_tlb_flush", "cumulative", 3),
        (2, "vm", "all", "pages_4k", "instant", 512),
        (2, "vcpu", "5", "pf_taken", "cumulative", 1000),
        (3, "vm", "all", "remote_tlb_flush", "cumulative", 3),
        (3, "vcpu", "5", "pf_taken", "cumulative", 3000),
        (3, "vcpu", "5", "guest_mode", "instant", 1),
        (4, "vm", "all", "remote_tlb_flush", "cumulative", 3),
        (4, "vcpu", "5", "pf_taken", "cumulative", 5000),
        (4, "vcpu", "5", "guest_mode", "instant", 0),
        (5, "vm", "all", "remote_tlb_flush", "cumulative", 3),
        (5, "vcpu", "5", "pf_taken", "cumulative", 7000),
    ]
    seconds = result.imported.tables["statistics"].frame.groupby("sample")["interval_s"].first().sum()
    assert value(result, "statistics", "pf_taken") == pytest.approx(16000 / seconds, rel=1e-3)


def test_the_table_of_mmu_lock_has_the_importers_columns(watched):
    result = watched(Guest())
    locks = result.imported.tables["locks"]
    assert [c.name for c in locks.columns[3:]] == [c.name for c in LOCKS if c.name not in ("run", "when", "scope")]
    assert rows(result, "locks", "sample", "site", "mode", "acquired", "contended", "wait_ns", "hold_ns") == [
        (sample, "clear", "write", 8, 2, 1000, 50_000) for sample in (2, 3, 4, 5)
    ]
    seconds = locks.frame["interval_s"].sum()
    about = "mmu_lock clear write"
    assert value(result, about, "contended") == 25.0
    assert value(result, about, "held") == pytest.approx(100 * 200_000 / seconds / 1e9, rel=1e-3)
    assert value(result, about, "longest hold, at least") == 2**30
    assert not [row for row in result.summary if "timed" in row["what"]]


def test_untimed_holds_count_as_long_as_timed_ones(watched):
    class OneOfFour(Guest):
        @staticmethod
        def stats(n):
            reply = Guest.stats(n)
            reply["stats"][-2:] = [
                {"name": "mmu_lock_clear_write_hold_ns", "value": 12_500 * n},
                {"name": "mmu_lock_clear_write_hold_hist", "value": [0] * 18 + [2 * n] + [0] * 13},
            ]
            return reply

    result, about = watched(OneOfFour()), "mmu_lock clear write"
    seconds = result.imported.tables["locks"].frame["interval_s"].sum()
    assert value(result, about, "held") == pytest.approx(100 * 200_000 / seconds / 1e9, rel=1e-3)
    assert value(result, about, "timed holds (held is an estimate)") == 8


def test_histograms_are_differences_by_bucket(watched):
    result = watched(Guest())
    name, columns = "histograms", ("sample", "scope", "name", "stat_unit", "bucket", "low", "count")
    kept = [row for row in rows(result, name, *columns) if row[0] == 5]
    assert kept == [
        (5, "vm", "mmu_lock_clear_write_hold_hist", "ns", 13, 4096, 7),
        (5, "vm", "mmu_lock_clear_write_hold_hist", "ns", 31, 2**30, 1),
        (5, "vcpu", "linear", "count", 0, 0, 1),
        (5, "vcpu", "linear", "count", 2, 20, 2),
    ]
    highs = result.imported.tables[name].frame["high"].iloc[-4:]
    assert (highs.iloc[0], highs.isna().tolist()) == (8192, [False, True, False, True])


def test_the_order_of_buckets_is_detected_from_the_sum(watched):
    def stats(sample):
        reply = Guest.stats(sample)
        reply["stats"][-1]["value"].reverse()
        return reply

    first_first = Guest()
    first_first.replies["query-stats"] = lambda sample: [stats(sample)]
    columns = ("sample", "bucket", "low", "count")
    histogram_rows = [row for row in rows(watched(first_first), "histograms", *columns, "scope") if row[-1] == "vm"]
    assert histogram_rows == [row for row in rows(watched(Guest()), "histograms", *columns, "scope") if row[-1] == "vm"]
    assert histogram_rows[0] == (2, 13, 4096, 8, "vm")


def test_a_vcpus_thread_is_identified_by_its_thread_id(watched):
    busy = threading.Event()

    def spin():
        while not busy.is_set():
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        guest = Guest(**{"query-cpus-fast": [{"cpu-index": 5, "qom-path": "/machine/device[0]",
                                              "thread-id": thread.native_id}]})  # fmt: skip
        result = watched(guest)
    finally:
        busy.set()
        thread.join()
    frame = result.imported.tables["threads"].frame
    assert frame.loc[frame["vcpu"] == "5", "tid"].unique().tolist() == [thread.native_id]
    assert set(frame["vcpu"]) == {"5", "none"}
    vcpu = frame[frame["vcpu"] == "5"]
    assert vcpu["cpu_ns"].sum() > 0
    share = 100 * vcpu["cpu_ns"].sum() / 1e9 / (frame.groupby("sample")["interval_s"].first().sum())
    assert value(result, "threads", "vCPU on a CPU, mean") == pytest.approx(share, rel=0.05)


def test_written_tables_are_measurement_files(watched, tmp_path):
    result = watched(Guest())
    paths = result.write(tmp_path / "out", "vm")
    tables = list(result.imported.tables)
    assert [path.stem for path in paths] == ["vm", *(f"vm-{name}" for name in tables[1:])]
    for path, name in zip(paths, tables, strict=True):
        assert check(path)[0].endswith("types and units from its descriptor")
        assert len(read(path).frame) == len(result.imported.tables[name])
        assert path.read_text() == result.imported.tables[name].frame.to_csv(index=False, lineterminator="\n")
    described = json.loads((tmp_path / "out" / "vm.json").read_text())
    assert described["command"] == "simlib host watch"
    assert described["setup"]["accelerator"] == "kvm"
    assert described["source"] == {"subject": "a watch of a running QEMU"}


def test_a_migration_that_ended_before_the_watch_does_not_end_it(watched):
    before = migrate("completed", 9, transferred=5 * MIB)
    result = watched(Guest([before, before, migrate("active", 1), migrate("failed", 2)]))
    assert result.ended == "migration failed"
    assert result.imported.tables["migration"].frame["status"].tolist()[:3] == ["completed", "completed", "active"]
    assert [row[0] for row in rows(result, "passes", "pass")] == [1, 2]


def test_samples_survive_a_lost_connection(watched):
    guest = Guest()
    guest.replies["query-stats"] = lambda sample: HANG_UP if sample == 2 else [Guest.stats(sample)]
    result = watched(guest)
    assert result.ended == "QEMU closed the connection"
    assert result.imported.tables["migration"].frame["status"].tolist() == ["none", "active", "active"]
    assert "hung up" in result.imported.warnings[0]


def test_a_missing_command_is_reported_once(watched):
    result = watched(Guest(**{"query-stats": UNKNOWN, "query-stats-schemas": UNKNOWN}))
    assert [w for w in result.imported.warnings if "query-stats:" in w] == [
        "QEMU refused query-stats: The command has not been found; QEMU has had it since 7.1"
    ]
    assert watched.commands.count("query-stats") == 1
    assert result.ended == "migration completed"
    assert "statistics" not in result.imported.tables


def test_a_guest_without_kvm_is_marked(watched):
    result = watched(Guest(**{"query-kvm": {"enabled": False, "present": True}, "query-stats": []}))
    assert result.imported.setup["accelerator"] == "not kvm"
    assert "KVM's statistics and events are missing" in result.imported.warnings[0]
    assert "no statistics: QEMU has them only with KVM" in result.imported.warnings


def test_a_kernel_without_the_series_is_reported(watched):
    stats = [{"provider": "kvm", "stats": [{"name": "remote_tlb_flush", "value": 1}]}]
    result = watched(Guest(**{"query-stats": stats}))
    assert "no counters of mmu_lock: the kernel lacks CONFIG_KVM_MMU_LOCK_STAT (kernel-patches/)" in (
        result.imported.warnings
    )


def test_a_sample_without_an_answer_is_counted(watched, monkeypatch):
    monkeypatch.setattr("simlib.lab.host.watch.TIMEOUT", 0.15)
    guest = Guest()
    guest.replies["query-stats"] = lambda sample: None if sample == 2 else [Guest.stats(sample)]
    result = watched(guest)
    assert result.ended == "migration completed"
    assert "samples without an answer from QEMU within 0.15 s: 1" in result.imported.warnings


def test_without_a_migration_the_duration_ends_it(watched):
    seen = []
    result = watched(Guest([{}]), duration=0.2, progress=lambda what, share: seen.append((what, share)))
    assert result.ended == "0.2 s have passed"
    assert result.summary[0] == {"about": "watch", "what": "ended", "value": "0.2 s have passed", "unit": ""}
    assert seen[-1] == ("watching: migration none, pass 0", 1.0)
    assert "passes" not in result.imported.tables


def test_nothing_to_sample_is_an_error(watched, monkeypatch):
    monkeypatch.setattr("simlib.vmm.qmp._listener", lambda connection: None)
    commands = ("query-migrate", "query-stats", "query-kvm", "query-stats-schemas", "query-cpus-fast")
    refused = dict.fromkeys(commands, UNKNOWN)
    with pytest.raises(SimlibError, match="nothing was sampled; QEMU refused query-kvm") as fault:
        watched(Guest(**refused), duration=0.1)
    assert "threads and tracepoints are not sampled: the socket does not identify its process" in str(fault.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "qmp = None: a socket or a process must be named"),
        ({"qmp": "q", "interval": 0.0}, "interval = 0.0: must be at least 0.05 s"),
        ({"qmp": "q", "duration": -1.0}, "duration = -1.0: must be positive and finite"),
        ({"pid": 2**30}, "PID = 1073741824: is not a process"),
        ({"pid": os.getpid()}, "its command line names no QMP socket; give QEMU another QMP socket"),
    ],
)
def test_invalid_arguments_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        watch_guest(**arguments)


def test_a_process_without_a_socket_path_gives_its_threads():
    code = "open('/proc/self/comm', 'w').write('CPU 7/KVM'); print('x', flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            result = watch_guest(pid=process.pid, interval=0.05, duration=0.3, events=())
        finally:
            process.kill()
    assert list(result.imported.tables) == ["threads"]
    assert set(result.imported.tables["threads"].frame["vcpu"]) == {"7"}
    assert "migration and statistics are not sampled: its command line names no QMP" in result.imported.warnings[0]


def test_a_process_that_ends_ends_the_watch():
    code = "open('/proc/self/comm', 'w').write('CPU 0/KVM'); print('x', flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        threading.Thread(target=process.wait).start()  # else it stays as a zombie
        samples = iter(range(3))

        def ended_later(*_: object) -> None:
            if next(samples, None) is None:
                process.kill()

        result = watch_guest(pid=process.pid, interval=0.05, duration=60, events=(), progress=ended_later)
    assert result.ended == "the process ended"


def test_the_command_prints_and_writes(tmp_path, ask):
    with serving(tmp_path / "q", Guest()):
        words = ["--qmp", tmp_path / "q", "--interval", "0.05", "--events", "", "--out", tmp_path / "out"]
        code, out, err = ask("host", "watch", *words, "--format", "json")
    assert code == 0
    printed = json.loads(out)
    assert {"about": "watch", "what": "ended", "value": "migration completed", "unit": ""} in printed
    assert "watch.csv and its descriptor" in err
    assert (tmp_path / "out" / "watch-locks.csv").is_file()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_watch_and_keeps_the_samples(tmp_path, popen, number):
    out = tmp_path / "out"
    words = ["--qmp", tmp_path / "q", "--interval", "0.05", "--events", "", "--out", out]
    with serving(tmp_path / "q", Guest([{}, migrate("active", 1)])) as commands:
        watch = [sys.executable, "-m", "simlib", "host", "watch", *map(str, words)]
        process = popen(watch, cwd=Path(__file__).parents[3])
        while commands.count("query-migrate") < 5 and process.poll() is None:
            time.sleep(0.02)
        sent = time.monotonic()
        process.send_signal(number)
        printed, err = process.communicate(timeout=30)
        took = time.monotonic() - sent
    assert process.returncode == 128 + number, err
    assert took < 1.0
    assert err.endswith("simlib: interrupted; nothing half-written is left behind\n")
    assert "interrupted" in printed
    assert len(read(out / "watch.csv").frame) >= 4
    assert not list(out.glob(".*"))
