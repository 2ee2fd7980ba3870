# SPDX-License-Identifier: BSD-3-Clause
"""A bad log raises one sentence with place, value, rule and hint, and nothing is written."""

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simlib._lib.errors import InputError
from simlib.measurements import KINDS, import_log, import_text, read, write_imported
from simlib.measurements.importers import sniff
from simlib.measurements.importers.lines import Lines

SAMPLES = Path(__file__).parent / "samples"
KIND_OF = {path.name: sniff(path.read_text().splitlines()[:64]) for path in sorted(SAMPLES.iterdir())}


def message(kind: str, raw: bytes | str, tmp_path: Path, **options: Any) -> str:
    """Message of the error that the import of a bad log raises."""
    path = tmp_path / "log"
    path.write_bytes(raw if isinstance(raw, bytes) else raw.encode())
    with pytest.raises(InputError) as caught:
        import_log(kind, path, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text.replace(f"{tmp_path}/", "")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        pytest.param(b"", "log = empty: must contain measurements", id="empty"),
        pytest.param(b"\n \n", "log = empty", id="blank"),
        pytest.param(b"\x17\x08\x44tracing6\0", "log = a trace.dat of trace-cmd: must be text; print", id="trace.dat"),
        pytest.param(b"PERFILE2\0", "log = a perf.data: must be text", id="perf.data"),
        pytest.param(b"\x1f\x8b\x08\0", "log = gzip data: must be text; unpack it", id="gzip"),
        pytest.param(b"one\ntwo\0\n", "log, line 2 = 'a byte 0': must be text", id="binary"),
        pytest.param(b"hello world\n", "log = a file that begins with 'hello world': must be ", id="foreign"),
        pytest.param(b"vcpus,clear_time_s\n1,0.5\n", "log = a CSV table: must be ", id="csv"),
        pytest.param(b"hello", "log, line 1 = 'hello': the last line must end with a newline", id="cut"),
    ],
)
def test_a_text_that_is_no_log_is_refused(kind, raw, expected, tmp_path):
    assert message(kind, raw, tmp_path).startswith(expected)


@pytest.mark.parametrize("name", KIND_OF)
@pytest.mark.parametrize("kind", KINDS)
def test_a_log_of_another_kind_is_named(name, kind, tmp_path):
    if kind == KIND_OF[name] or (kind, name) == ("kvm-stats", "contention_test.jsonl"):  # it contains statistics
        return
    text = message(kind, (SAMPLES / name).read_bytes(), tmp_path)
    assert f"import it with: simlib data import {KIND_OF[name]} " in text


@pytest.mark.parametrize(
    ("name", "complete"), [("lock_stat.txt", {2}), ("dirty_log_perf_test.log", {2, 4}), ("contention_test.jsonl", {4})]
)
def test_a_log_truncated_anywhere_is_refused_or_has_the_same_rows(name, complete, tmp_path):
    """In a format with an end, a truncated log is refused (unless it ends after a complete guest mode)."""
    raw = (SAMPLES / name).read_bytes()
    complete_frame = import_text(KIND_OF[name], raw.decode()).main.frame
    lines = raw.splitlines(keepends=True)
    row_counts = set()
    for number, line in enumerate(lines):
        for part in (b"", line[: len(line) // 2], line[:-1], line):
            (tmp_path / "log").write_bytes(b"".join(lines[:number]) + part)
            try:
                frame = import_log(KIND_OF[name], tmp_path / "log").main.frame
            except InputError:
                continue
            row_counts.add(len(frame))
            assert frame.equals(complete_frame.iloc[: len(frame)])
    assert row_counts == complete


LOCK_STAT = "lock_stat version 0.4\n&kvm->mmu_lock: 1 0 0.1 0.2 0.3 0.4 5 6 0.7 0.8 0.9 1.0\n"
TRACE = " a-1 [000] 1.000001: contention_begin: ab (flags=SPIN)\n a-1 [000] 1.000002: contention_end: ab (ret=0)\n"
RELEASED = " a-1 [000] 1.5: kvm_mmu_lock_released: site clear mode both hold 1 ns\n"
PERF = " contended   total wait     max wait     avg wait         type   caller\n\n"
DIRTY = (SAMPLES / "dirty_log_perf_test.log").read_text()
CONFIG = '{"type": "config", "version": 1}\n'
STAT = '{"type": "stat", "name": "x", "value": 1}\n'
VCPU = '{"type": "vcpu", "id": 0, "writes": 1, "reads": 0, "longest_ns": 5, "gap_hist": []}\n'
EXITS = "   VM-EXIT    Samples  Samples%     Time%    Min Time    Max Time         Avg time\n"
CALLS = " Summary of events:\n   syscall            calls  errors  total       min       avg       max       stddev\n"
BAD = {
    "lock-stat": [
        (LOCK_STAT.replace("0.4\n", "0.3\n", 1), "line 1 = 'lock_stat version 0.3': must be version 0.4"),
        (LOCK_STAT.split("\n", 1)[1], "line 1 = '&kvm->mmu_lock: 1 0 0.1 0.2 0.3 0.4 5 6 0.7"),
        (LOCK_STAT.replace(" 1.0", ""), "line 2 = '&kvm->mmu_lock: 1 0 0.1 0.2 0.3 0.4 5 6 0.7 0.8 0.9': must be a"),
        (LOCK_STAT.replace(" 1 0", " 1 3"), "line 2 = '&kvm->mmu_lock': the call sites of a contended class must"),
        (LOCK_STAT.replace(" 6 ", " 99999999999999999 "), "line 2 = '99999999999999999': acquisitions must be at"),
        (LOCK_STAT.replace(" 0.9", " 9" + "9" * 400), "line 2 = '9999"),
        (LOCK_STAT.replace("mmu_lock", "mmap_lock"), "= lock classes: 1: must include mmu_lock"),
        ("lock_stat version 0.4\n", "= no lock class: must have at least one lock class"),
    ],
    "trace-cmd": [
        ("# tracer: nop\n a-1 [000] 1.5: sched_switch: x\n", "= a trace without lock events: must contain contention"),
        (TRACE.splitlines()[0] + "\n", "= beginnings without an end: 1: at least one wait must be complete"),
        (TRACE.replace("(flags=SPIN)", "(flags"), "line 1 = 'ab (flags': contention_begin must have"),
        (TRACE.replace("1.000001", "1000001"), "line 1 = 'a-1 [000] 1000001: contention_begin: ab"),
        (TRACE.replace("[000] 1.0", "0d..1. 1.0"), "line 1 = 'a-1 0d..1. 1.000001: contention_begin: ab"),
        (TRACE.replace("1.000001", "9" * 20 + ".000001"), "line 1 = '99999999999999999999': seconds must be at most"),
        (RELEASED, "line 1 = 'site clear mode both hold 1 ns': kvm_mmu_lock_released must have site"),
    ],
    "perf-lock": [
        (PERF, "= a header only: must have at least one contention"),
        (PERF + " 7 77.48 us 16.09 us\n", "line 3 = '7 77.48 us 16.09 us': must have contended, total wait"),
        (PERF + " 1 9999999999.00 h 1 ns 1 ns mutex f\n", "line 3 = '9999999999.00 h': total wait must be at most"),
        (PERF.replace("caller", "cellar"), "= a file that begins with"),
    ],
    "perf-kvm": [
        (EXITS + "  HLT  12\n", "line 2 = 'HLT  12': must be NAME SAMPLES"),
        (EXITS, "line 1 = 'the end': a table must end with a line Total Samples"),
        (EXITS + EXITS, "line 2 = 'VM-EXIT"),
        ("Total Samples:1, Total events handled time:1.00us.\n", "line 1 = 'Total Samples:1, Total"),
        ("hello\n", "= a file that begins with 'hello': must be the table of perf kvm stat report"),
    ],
    "perf-trace": [
        (CALLS + "   ioctl   12  x\n", "line 3 = 'ioctl   12  x': must be SYSCALL CALLS"),
        (CALLS, "line 2 = 'the end': a thread's table must have rows"),
        ("hello\n", "= a file that begins with 'hello': must be the output of perf trace"),
    ],
    "kvm-stat": [
        ("kvm_exit kvm_fpu \n2026-01-05 10:00:00  3\n", "line 2 = '2026-01-05 10:00:00  3': must have as many numbers"),
        ("timestamp,kvm_exit\n2026-01-05 10:00:00,1x\n", "line 2 = '2026-01-05 10:00:00,1x': must be a time and"),
        ("2026-01-05 10:00:00,3\n", "line 1 = '2026-01-05 10:00:00,3': must have as many numbers"),
        ("kvm_exit  12  3\nkvm_exit  12  3\n", "line 2 = 'kvm_exit': must occur once"),
        ("kvm_exit  12  3\n%%\n", "line 2 = '%%': is not a line of kvm_stat"),
        ("a a \n2026-01-05 10:00:00 1 2\n", "line 1 = 'a a': each name must be unique"),
        ("hello%\n", "= a file that begins with 'hello%': must be the output of kvm_stat -1, -l or -c -l"),
    ],
    "dirty-log-perf-test": [
        (DIRTY.replace("Disabling", "Iteration 1 dis", 1), "line 14 = 'Iteration 1 dis dirty"),
        (DIRTY.replace("0.931002118s", "0.93s"), "line 11 = 'Iteration 2 dirty memory time: 0.93s': must be a line"),
        (DIRTY.rsplit("Get dirty", 1)[0], "line 26 = 'the end of a run': the line 'Get dirty log over"),
        (DIRTY + "==== Test Assertion Failure ====\n", "line 28 = '==== Test Assertion Failure ====': the test must"),
    ],
    "kvm-stats": [
        ("mmu_lock_clear_write_acquired: 9x\n", "line 1 = 'mmu_lock_clear_write_acquired: 9x': must be NAME: VALUE"),
        ("mmu_lock_a_read_acquired: 1\n" * 2, "line 2 = 'mmu_lock_a_read_acquired': must occur only once in a reading"),
        ("mmu_lock_a_read_wait_ns: 99999999999999999999\n", "line 1 = '99999999999999999999': mmu_lock_a_read_wait"),
        (STAT.replace("1", "1e999"), "line 1 = '1e999': a number must be finite"),
        (STAT.replace("1", "NaN"), "line 1 = 'NaN': a number must be finite"),
        (STAT.replace("1", "true"), "line 1 = '[True]': x must have only whole numbers"),
        (STAT[:18] + "\n", "line 1 = '"),
        (STAT.replace("x", r"\ud83d"), "line 1 = '{"),
        ("Mem: 12\n", "= a file that begins with 'Mem: 12': must be KVM statistics"),
        (CONFIG + STAT, "line 2 = 'the end': a run must end with a line of type 'end'"),
    ],
    "contention-test": [
        (CONFIG, "line 1 = 'the end': a run must end with a line of type 'end'"),
        (CONFIG + '{"type": "vcpu", "id": -1}\n', "line 2 = '-1': 'id' must be a whole number of at least 0"),
        (CONFIG.replace("1}", r'"\udc00"}'), "line 1 = '{"),
        (CONFIG + VCPU.replace("[]", "[[1, 2]]"), "line 2 = '[1, 2]': 'gap_hist' must be a list of [from, to, count]"),
        (CONFIG + '{"a":' * 100_000 + "\n", 'line 2 = \'{"a":{"a":'),
        (CONFIG + '{"type": "end", "ok": true}\n', "= options only: must contain measurements"),
    ],
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_log_is_one_sentence(kind, tmp_path):
    for text, expected in BAD[kind]:
        separator = " " if expected.startswith("=") else ", "
        assert message(kind, text, tmp_path).startswith(f"log{separator}{expected}")


def test_unknown_kinds_options_and_columns_are_refused(tmp_path):
    assert "did you mean 'perf-lock'" in message("perf-locks", "x\n", tmp_path)
    assert "lock = rq: does not apply to perf-lock; it applies to lock-stat" in message(
        "perf-lock", "x\n", tmp_path, lock="rq"
    )
    assert "did you mean '&kvm->mmu_lock'" in message("lock-stat", LOCK_STAT, tmp_path, lock="kvm->mmu_look")
    imported = import_text("lock-stat", LOCK_STAT)
    for values, sentence in (
        ({"mode": "x"}, "already has this column"),
        ({"Mode": "x"}, "contain only lowercase letters"),
        ({"vcpus": "-1"}, r"from 0 to 2\^53"),
        ({"vcpus": "nan"}, r"from 0 to 2\^53"),
        ({"clear_time": "1"}, "must end with a known unit"),
        ({"host": ""}, "must be a number, or a string"),
    ):
        with pytest.raises(InputError, match=sentence):
            imported.with_columns(values)
    with pytest.raises(InputError, match=r"name = \.\./x: must begin with a lowercase letter or a digit"):
        write_imported(imported, tmp_path, "../x")


def test_an_import_replaces_only_an_import(tmp_path):
    log = tmp_path / "mine.csv"
    log.write_bytes((SAMPLES / "perf-lock-x.txt").read_bytes())
    imported = import_log("perf-lock", log)
    with pytest.raises(InputError, match="the file exists and was not written by an import"):
        write_imported(imported, tmp_path)
    assert log.read_bytes() == (SAMPLES / "perf-lock-x.txt").read_bytes()
    (first,) = write_imported(imported, tmp_path, "other")
    assert write_imported(imported, tmp_path, "other") == [first]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.csv", "other.csv", "other.json"]


def test_unusual_bytes_in_a_task_name_are_kept_as_text(tmp_path):
    """Bytes that are not UTF-8, control characters, quotes and commas are escaped or kept."""
    (tmp_path / "log").write_bytes(TRACE.encode().replace(b" a-1", b' =1,"\xff\x1b-1'))
    imported = import_log("trace-cmd", tmp_path / "log")
    assert imported.main.frame["task"].tolist() == [r'=1,"\xff\x1b']
    (path,) = write_imported(imported, tmp_path, "mine")
    assert read(path).frame["task"].tolist() == [r'=1,"\xff\x1b']


@given(st.binary(max_size=300).map(lambda raw: raw.replace(b"\0", b"0")))
def test_any_bytes_but_0_are_lines_if_a_newline_ends_them(raw):
    lines = list(Lines(io.BytesIO(b"a" + raw + b"\n"), "log"))
    assert len(lines) == raw.count(b"\n") + 1
    assert all("\r" not in line and "\x1b" not in line for line in lines)
