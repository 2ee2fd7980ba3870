# SPDX-License-Identifier: BSD-3-Clause
"""Import of kvm_stat, perf kvm stat and perf trace. The samples are synthetic, in the formats of the tools."""

from pathlib import Path

import pytest

from simlib.measurements import import_log, import_text

SAMPLES = Path(__file__).parent / "samples"


def rows(table, *columns):
    return list(table.frame[list(columns)].itertuples(index=False, name=None))


def test_perf_kvm_stat():
    imported = import_log("perf-kvm", SAMPLES / "perf-kvm.txt")
    exits = imported.tables["exits"]
    assert rows(exits, "report", "target", "vcpu", "what", "name", "samples", "max_us", "mean_us") == [
        (1, "pid(s) 4095", "all", "VM-EXIT", "EPT_VIOLATION", 90211, 812.44, 3.07),
        (1, "pid(s) 4095", "all", "VM-EXIT", "HLT", 4100, 10003.2, 107.11),
        (1, "pid(s) 4095", "all", "VM-EXIT", "EXTERNAL_INTERRUPT", 1, 2.2, 2.2),
        (2, "all VMs", "3", "MMIO Access", "0xfee00380:W", 64, 1.9, 0.77),
    ]
    assert exits.frame["error_percent"].isna().tolist() == [False, False, True, False]
    assert rows(exits, "samples_percent", "time_percent", "min_us")[0] == (71.2, 38.4, 0.81)
    assert rows(imported.tables["totals"], "report", "samples", "handled_us") == [
        (1, 126701, 721009.55),
        (2, 64, 49.28),
    ]
    assert imported.warnings == ("events lost while recording: 12",)


def test_perf_trace_lines():
    imported = import_log("perf-trace", SAMPLES / "perf-trace.txt")
    assert rows(imported.main, "start_ms", "task", "tid", "request", "took_ms") == [
        (0.0, "CPU 0/KVM", 4101, "KVM_RUN", 0.031),
        (0.437, "live_migration", 4120, "KVM_GET_DIRTY_LOG", 2.016),
        (2.604, "live_migration", 4120, "KVM_CLEAR_DIRTY_LOG", 1.25),
        (0.12, "CPU 1/KVM", 4102, "KVM_RUN", 4.9),  # printed in two lines
    ]
    assert imported.main.frame["result"].tolist()[1:3] == ["0", "-1 ENOENT (No such file or directory)"]
    assert imported.warnings == (
        "events lost while recording: 3; calls are missing",
        "calls left out, since they do not end in the trace: 1",
        "calls left out, since they began before the trace: 1",
    )
    alone = import_text("perf-trace", "    12.000 ( 0.750 ms): ioctl(fd: 11, cmd: KVM_CLEAR_DIRTY_LOG)   = 0\n").main
    assert rows(alone, "task", "request", "took_ms") == [("", "KVM_CLEAR_DIRTY_LOG", 0.75)]
    assert alone.frame["tid"].isna().all()


def test_perf_trace_summary():
    summary = import_log("perf-trace", SAMPLES / "perf-trace.txt").tables["summary"]
    assert rows(summary, "task", "tid", "syscall", "calls", "errors", "total_ms", "min_ms", "mean_ms", "max_ms") == [
        ("live_migration", 4120, "ioctl", 96, 1, 140.25, 0.02, 1.461, 12.004),
        ("live_migration", 4120, "sendmsg", 12, 0, 1.2, 0.05, 0.1, 0.21),
        ("CPU 0/KVM", 4101, "ioctl", 45, 0, 1600.125, 0.011, 35.558, 158.042),
    ]


def test_kvm_stat_once():
    imported = import_log("kvm-stat", SAMPLES / "kvm_stat-1.txt")
    assert rows(imported.main, "name", "reason", "value", "difference")[:3] == [
        ("kvm_exit", "all", 120455, 60211),
        ("kvm_exit", "EPT_VIOLATION", 90211, 45100),
        ("kvm_exit", "HLT", 4100, 2051),
    ]
    assert imported.warnings == ("lines left out, since their two numbers are not separated: 1",)


@pytest.mark.parametrize("name", ["kvm_stat-log.txt", "kvm_stat-log.csv"])
def test_kvm_stat_log(name):
    log = import_log("kvm-stat", SAMPLES / name).main
    assert len(log) == 9
    assert rows(log, "sample", "time", "name", "reason", "difference")[3:6] == [
        (2, "2026-01-05 10:00:00", "kvm_exit", "all", 60002),
        (2, "2026-01-05 10:00:00", "kvm_exit", "EPT_VIOLATION", 45001),
        (2, "2026-01-05 10:00:00", "pages_4k", "all", -64),
    ]
