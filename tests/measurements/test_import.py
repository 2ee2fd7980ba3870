# SPDX-License-Identifier: BSD-3-Clause
"""Importers: the numbers of other tools' logs are read completely, and nothing is guessed."""

import json
import string
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simlib._lib.errors import InputError
from simlib._lib.version import __version__
from simlib.measurements import KINDS, check, import_log, import_text, read, write_imported
from simlib.measurements.importers import sniff

SAMPLES = Path(__file__).parent / "samples"
KIND_OF = {
    "lock_stat.txt": "lock-stat",
    "tracefs.txt": "trace-cmd",
    "trace-cmd.txt": "trace-cmd",
    "perf-lock.txt": "perf-lock",
    "perf-lock-x.txt": "perf-lock",
    "perf-lock-addresses.txt": "perf-lock",
    "dirty_log_perf_test.log": "dirty-log-perf-test",
    "perf-kvm.txt": "perf-kvm",
    "perf-trace.txt": "perf-trace",
    "kvm_stat-1.txt": "kvm-stat",
    "kvm_stat-log.txt": "kvm-stat",
    "kvm_stat-log.csv": "kvm-stat",
    "kvm_stats.txt": "kvm-stats",
    "contention_test.jsonl": "contention-test",
}


def rows(frame: pd.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return list(frame[list(columns)].itertuples(index=False, name=None))


def test_every_kind_has_a_sample_that_is_recognised():
    assert set(KIND_OF.values()) == set(KINDS)
    assert {p.name for p in SAMPLES.iterdir()} == set(KIND_OF)
    for name, kind in KIND_OF.items():
        assert sniff((SAMPLES / name).read_text().splitlines()[:64]) == kind


@pytest.mark.parametrize("name", KIND_OF)
def test_written_files_pass_data_check(name: str, tmp_path: Path) -> None:
    kind = KIND_OF[name]
    options = {"histograms": True} if "histograms" in KINDS[kind].options else {}
    imported = import_log(kind, SAMPLES / name, **options).with_columns(
        {"vcpus": "8", "host": "altra", "memory_gib": "1.5"}
    )
    paths = write_imported(imported, tmp_path / "a" / "b", "mine")
    assert [p.stem for p in paths] == ["mine", *(f"mine-{table}" for table in list(imported.tables)[1:])]
    assert len(list(paths[0].parent.iterdir())) == 2 * len(paths)  # nothing half-written beside them
    for path, table in zip(paths, imported.tables.values(), strict=True):
        assert check(path)[0].endswith("types and units from its descriptor")
        written = read(path)
        pd.testing.assert_frame_equal(
            written.frame, table.frame, check_dtype=False, check_index_type=False, check_column_type=False
        )
        assert written.key[:3] == ["vcpus", "host", "memory_gib"]
        assert written.source["subject"] == name
        provenance = {"kind": kind, "table": table.name, "rows": len(table), "version": 1, "simlib": __version__}
        assert written.descriptor["import"] == provenance


# lock_stat ------------------------------------------------------------------------------------------------------------

TIME = st.integers(0, 2**50).map(lambda hundredths: hundredths / 100)
COUNT = st.integers(0, 2**53)
NAME = st.text(string.ascii_letters + string.digits + "&()->_.#/*[]: ", min_size=1, max_size=37).filter(
    lambda name: name == name.strip() and not name.endswith((":", "-R", "-W")) and set(name) - set("-. ")
)
NUMBERS = st.tuples(COUNT, COUNT, TIME, TIME, TIME, TIME, COUNT, COUNT, TIME, TIME, TIME, TIME)


def seq_stats(name: str, write: tuple[Any, ...] | None, read_: tuple[Any, ...] | None) -> str:
    """Print a class like ``seq_stats()`` in ``kernel/locking/lockdep_proc.c``."""
    text = ""
    for numbers, suffix in ((write, "-W" if read_ else ""), (read_, "-R")):
        if numbers is not None:
            cells = [f"{n:14d}" if isinstance(n, int) else f" {n:14.2f}" for n in numbers]
            text += f"{name + suffix:>40}:" + " ".join(cells) + "\n"
    if any(numbers[1] for numbers in (write, read_) if numbers is not None):
        for _ in range(2):
            text += " " * 8 + "-" * len(name) + "\n"
            text += f"{name:>40} {7:14d} {'[<0000000061e1a5b2>]':>29} kvm_vm_ioctl+0x8c1/0x11d0 [kvm]\n"
        text += "\n" + "." * 221 + "\n\n"
    return text


@given(st.lists(st.tuples(NAME, st.none() | NUMBERS, st.none() | NUMBERS), min_size=1, max_size=4))
def test_any_lock_stat_numbers_are_read_back(classes):
    written = [(name, w, r) for name, w, r in classes if w or r]
    text = "lock_stat version 0.4\n" + "-" * 221 + "\n" + "".join(seq_stats(*lock_class) for lock_class in written)
    if not written:
        with pytest.raises(InputError, match="no lock class"):
            import_text("lock-stat", text, lock="all")
        return
    frame = import_text("lock-stat", text, lock="all").main.frame
    expected = [
        (name, mode, *numbers) for name, w, r in written for mode, numbers in (("write", w), ("read", r)) if numbers
    ]
    assert list(frame.iloc[:, 2:].itertuples(index=False, name=None)) == expected


def test_lock_stat_takes_mmu_lock_and_its_call_sites():
    imported = import_log("lock-stat", SAMPLES / "lock_stat.txt")
    assert rows(imported.main.frame, "lock", "mode", "contentions", "hold_total_us") == [
        ("&(kvm)->mmu_lock", "write", 1204, 1904422.91),
        ("&(kvm)->mmu_lock", "read", 41877, 1571092.33),
    ]
    sites = imported.tables["sites"].frame
    assert rows(sites, "role", "contentions")[2:4] == [("waiter", 1204), ("holder", 40110)]
    assert sites["site"].iloc[0] == "kvm_tdp_mmu_map+0x9f/0x610 [kvm]"
    assert len(import_log("lock-stat", SAMPLES / "lock_stat.txt", lock="all").main) == 5
    assert import_log("lock-stat", SAMPLES / "lock_stat.txt", lock="rq->").main.frame["lock"].tolist() == [
        "&rq->__lock"
    ]


def test_lock_stat_without_readers_is_write_and_snapshots_are_numbered():
    text = "lock_stat version 0.4\n" + seq_stats("&kvm->mmu_lock#2", (0, 0, *[0.0] * 4, 1, 2, *[0.5] * 4), None)
    frame = import_text("lock-stat", "$ cat /proc/lock_stat\n" + text + text).main.frame
    assert rows(frame, "snapshot", "lock", "mode") == [
        (1, "&kvm->mmu_lock#2", "write"),
        (2, "&kvm->mmu_lock#2", "write"),
    ]


# traces ---------------------------------------------------------------------------------------------------------------


def test_a_trace_gives_the_waits_with_both_ends():
    imported = import_log("trace-cmd", SAMPLES / "tracefs.txt")
    assert rows(imported.main.frame, "task", "pid", "cpu", "wait_ns", "flags", "ret") == [
        ("CPU 1/KVM", 4102, 3, 2_000, "SPIN", 0),  # an interrupt during the wait for another lock
        ("CPU 0/KVM", 4101, 2, 626_000, "SPIN|READ", 0),
        ("CPU 1/KVM", 4102, 3, 732_000, "SPIN|READ", 0),
        ("<idle>", 0, 7, 2_000, "SPIN", 0),  # not the one of CPU 6, which has the same pid
        ("qemu-system-x86", 4095, 1, 750_000, "MUTEX|SPIN", -4),  # reported again when the thread sleeps
    ]
    assert imported.main.frame["start_s"].iloc[1] == 127.240361
    assert imported.warnings == (
        "events overwritten in the buffer: 1000",
        "events lost while recording: 12 (CPU 5: 12); waits are missing",
        "beginnings before lost events, left out: 1",
        "ends without a beginning, left out: 1",
        "beginnings without an end, left out: 1",
    )


def test_trace_cmd_with_the_events_of_simlibs_patches():
    imported = import_log("trace-cmd", SAMPLES / "trace-cmd.txt")
    assert rows(imported.main.frame, "wait_ns", "lock") == [(878, "0xffff8881042f0ab8")]
    acquired, released = imported.tables["acquired"].frame, imported.tables["released"].frame
    assert rows(acquired, "site", "mode", "contended", "wait_ns") == [
        ("fault_slow", "write", 1, 851),
        ("clear", "read", 0, 0),
        ("clear", "write", 1, 77),  # with unknown fields before, between and after
    ]
    assert rows(released, "site", "mode", "hold_ns") == [("fault_slow", "write", 1903), ("clear", "write", 900)]
    assert (acquired["vm"].tolist(), released["vm"].tolist()) == (["4090-12", "", "4101-12"], ["4090-12", "4101-12"])
    assert [w.partition(" (")[0] for w in imported.warnings[:1]] == ["events lost while recording: 204600"]
    assert imported.warnings[1:] == ("reports of lost events without a number: 1; waits may be missing",)


def test_kvms_other_events_are_counted_by_thread_and_reason():
    events = import_log("trace-cmd", SAMPLES / "trace-cmd.txt").tables["events"].frame
    assert rows(events, "event", "reason", "task", "pid", "events", "first_s", "last_s") == [
        ("kvm_exit", "DABT_LOW", "CPU 1/KVM", 4102, 1, 127.24037, 127.24037),  # the format of arm64
        ("kvm_exit", "EPT_VIOLATION", "CPU 1/KVM", 4102, 2, 127.240366001, 127.2403679),
        ("kvm_page_fault", "none", "CPU 1/KVM", 4102, 1, 127.24036642, 127.24036642),
    ]
    alone = import_text("trace-cmd", " a-1 [000] 1.5: kvm_entry: vcpu 0\n")
    assert rows(alone.main.frame, "event", "events") == [("kvm_entry", 1)]


@given(st.lists(st.tuples(st.sampled_from("be"), st.integers(1, 2), st.sampled_from("ab")), max_size=30))
def test_every_event_of_a_trace_is_paired_or_counted(events):
    formats = {"b": "contention_begin: {} (flags=SPIN)", "e": "contention_end: {} (ret=0)"}
    lines = [f" t-{pid} [000] 1.{n:06d}: {formats[kind].format(lock)}\n" for n, (kind, pid, lock) in enumerate(events)]
    complete = {n for n, (_, *who) in enumerate(events) if [w for w, *o in events[:n] if o == who][-1:] == ["b"]}
    complete = {n for n in complete if events[n][0] == "e"}
    text = "# tracer: nop\n" + "".join(lines)
    if not complete:
        with pytest.raises(InputError, match=r"must contain contention_begin|at least one wait must be complete"):
            import_text("trace-cmd", text)
        return
    imported = import_text("trace-cmd", text)
    assert len(imported.main) == len(complete)
    left_out = sum(int(w.split()[-1]) for w in imported.warnings)
    assert 2 * len(imported.main) + left_out == len(events)


def test_a_long_trace_is_read_in_blocks(tmp_path: Path) -> None:
    """Lines across block boundaries are complete; the share of the file is reported."""
    pair = "  CPU 0/KVM-4101    [002] d..1.   {0}.240361: contention_begin: 0000abcd (flags=SPIN|WRITE)\n"
    pair += "  CPU 0/KVM-4101    [002] d..1.   {0}.240362: contention_end: 0000abcd (ret=0)\n"
    path = tmp_path / "trace.txt"
    path.write_text("".join(pair.format(n) for n in range(20_000)))
    shares: list[float] = []
    imported = import_log("trace-cmd", path, progress=lambda _, share: shares.append(share))
    assert imported.main.frame["wait_ns"].tolist() == [1000] * 20_000
    assert shares == sorted(shares)
    assert len(shares) > 2
    assert shares[-1] == 1.0


# perf, the selftests and statistics -----------------------------------------------------------------------------------


def test_perf_lock_as_table_and_as_values():
    table = import_log("perf-lock", SAMPLES / "perf-lock.txt")
    values = import_log("perf-lock", SAMPLES / "perf-lock-x.txt")
    assert rows(table.main.frame, "contended", "total_wait_ns", "max_wait_ns", "type")[0] == (
        18743, 3_510_000_000, 3_700_000, "rwlock:W",
    )  # fmt: skip
    assert rows(values.main.frame, "contended", "total_wait_ns", "max_wait_ns", "type")[0] == (
        18743, 3_510_020_311, 3_701_991, "rwlock:W",
    )  # fmt: skip
    assert len(table.main) == 5
    older = (SAMPLES / "perf-lock.txt").read_text().replace("debug ===", "debug===")
    pd.testing.assert_frame_equal(import_text("perf-lock", older).main.frame, table.main.frame)
    assert table.warnings == values.warnings == ("perf left out 3 of 18937 contentions (bad sequences)",)
    locks = import_log("perf-lock", SAMPLES / "perf-lock-addresses.txt").main.frame
    assert rows(locks, "symbol", "type") == [("pack_mutex", "mutex"), ("&kmalloc-cg-512", "mutex"), ("", "rwlock")]


def test_dirty_log_perf_test_with_two_guest_modes():
    imported = import_log("dirty-log-perf-test", SAMPLES / "dirty_log_perf_test.log")
    frame = imported.main.frame
    assert rows(frame, "run", "guest_mode", "iteration", "dirty_memory_time_s")[1:3] == [
        (1, "PA-bits:48, VA-bits:48, 4K pages", 2, 0.931002118),
        (2, "PA-bits:40, VA-bits:48, 64K pages", 1, 0.1012204),
    ]
    assert frame["clear_dirty_log_time_s"].isna().tolist() == [False, False, True, True]
    assert imported.tables["runs"].frame["populate_memory_time_s"].tolist() == [1.423904418, 0.20111834]


def test_an_imported_log_can_be_used_for_calibration(tmp_path: Path) -> None:
    imported = import_log("dirty-log-perf-test", SAMPLES / "dirty_log_perf_test.log").with_columns({"vcpus": "4"})
    (path, _) = write_imported(imported, tmp_path)
    table = read(path)
    assert path.name == "dirty_log_perf_test.csv"
    assert table.select("vcpus <= 8 and run == 1").seconds("dirty_memory_time").tolist() == [0.926113004, 0.931002118]


def test_kvm_statistics_in_each_form():
    text = (SAMPLES / "kvm_stats.txt").read_text()
    imported = import_text("kvm-stats", text, histograms=True)
    clear = imported.main.frame.set_index("site").loc["clear"]
    assert clear[["mode", "acquired", "contended", "wait_ns", "hold_ns"]].tolist() == ["write", 96, 12, 48211, 480120]
    assert pd.isna(clear["timed"])
    assert imported.main.frame["site"].tolist() == ["fault_fast", "clear", "ring_reset"]
    buckets = imported.tables["histograms"].frame
    assert rows(buckets[buckets["count"] > 0], "low_ns", "high_ns", "count") == [(1024, 2048, 4), (2048, 4096, 8)]
    assert pd.isna(buckets["high_ns"].iloc[-1])
    assert rows(imported.tables["others"].frame, "name", "value") == [("remote_tlb_flush", 101), ("pages_4k", 16384)]
    assert "histograms" not in import_text("kvm-stats", text).tables
    forms = {
        "kvm_stat -1": "".join(f"{k:<42}{v:>10}{3:>10}\n" for k, _, v in (x.partition(": ") for x in SCALARS)),
        "debugfs": "".join(
            f"/sys/kernel/debug/kvm/4095-11/{k}:{v}\n" for k, _, v in (x.partition(": ") for x in SCALARS)
        ),
        "JSON": "".join(
            json.dumps({"type": "stat", "name": k, "value": int(v), "when": "end"}) + "\n"
            for k, _, v in (x.partition(": ") for x in SCALARS)
        ),
    }
    for text_form in forms.values():
        pd.testing.assert_frame_equal(import_text("kvm-stats", text_form).main.frame, imported.main.frame)


SCALARS = [x for x in (SAMPLES / "kvm_stats.txt").read_text().splitlines() if "_hist" not in x]


def test_the_contention_test():
    imported = import_log("contention-test", SAMPLES / "contention_test.jsonl", histograms=True)
    assert rows(imported.main.frame, "name", "dirty_pages", "duration_ns")[3] == ("clear", 8192, 911002)
    assert rows(imported.tables["vcpus"].frame, "writes", "late_writes") == [(9000, 0), (9001, 7)]
    gaps = imported.tables["gaps"].frame
    assert rows(gaps[gaps["count"] > 0], "vcpu", "low_ns", "high_ns", "count")[:2] == [
        (0, 256, 264, 7),
        (0, 512, 528, 3),
    ]
    assert rows(imported.tables["progress"].frame, "vcpu", "start_ns", "writes")[1] == (0, 10_150_000, 4100)
    assert rows(imported.tables["locks"].frame, "when", "site", "acquired") == [
        ("populated", "fault_slow", 8192),
        ("end", "clear", 96),
    ]
    assert rows(imported.tables["others"].frame, "scope", "name") == [("vm", "remote_tlb_flush"), ("vcpu", "exits")]
    assert imported.setup["guest_clock_hz"] == 2_000_000_000
    assert imported.warnings == ()
    two = (SAMPLES / "contention_test.jsonl").read_text() * 2
    assert import_text("contention-test", two).main.frame["run"].unique().tolist() == [1, 2]
    part = two.replace("70,26,", "7,3,")
    assert import_text("contention-test", part).warnings == (
        "holds timed: 20 of 192 (kvm.mmu_lock_stat_period); hold_ns is the sum of the timed holds",
    )
    lost = two.replace('"lost":0', '"lost":3').replace('"ok":true', '"ok":false')
    first, second = import_text("contention-test", lost).warnings
    assert first.endswith("writes that the log lost: 3")
    assert second.startswith("the test failed")
