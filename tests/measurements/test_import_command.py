# SPDX-License-Identifier: BSD-3-Clause
"""``simlib data import``: tables on stdout, files in a folder; one sentence and exit status 2 for a bad log."""

import io
import json
import sys
from pathlib import Path

import pandas as pd

from simlib.measurements import KINDS, check

SAMPLES = Path(__file__).parent / "samples"


def test_each_output_format_is_printed(ask):
    log = SAMPLES / "dirty_log_perf_test.log"
    code, out, err = ask("data", "import", "dirty-log-perf-test", log, "--set", "vcpus=8", "--format", "csv")
    frame = pd.read_csv(io.StringIO(out))
    assert code == 0
    assert frame["dirty_memory_time_s"].tolist()[:2] == [0.926113004, 0.931002118]
    assert set(frame["vcpus"]) == {8}
    assert "other tables, which --table prints: runs" in err
    code, out, _ = ask("data", "import", "dirty-log-perf-test", log, "--table", "runs", "--format", "json")
    assert json.loads(out)[1]["clear_dirty_log_total_time_s"] is None
    code, out, err = ask("data", "import", "dirty-log-perf-test", log)
    assert code == 0
    assert "enable_dirty_logging_time_s" in out  # the second table too
    assert "NA" not in out
    assert "runs: dirty_log_perf_test: times of each run; rows: 2" in err


def test_files_are_written_with_out(ask, tmp_path):
    code, _, err = ask("data", "import", "trace-cmd", SAMPLES / "trace-cmd.txt", "--out", tmp_path, "--name", "one")
    assert code == 0
    assert "one.csv and its descriptor" in err
    assert "warning: events lost while recording: 204600" in err
    assert sorted(p.stem for p in tmp_path.glob("*.csv")) == ["one", "one-acquired", "one-events", "one-released"]
    for path in tmp_path.glob("*.csv"):
        assert ask("data", "check", path)[0] == 0
    assert "while recording: 204600 (" in json.loads((tmp_path / "one.json").read_text())["caveats"][0]


def test_standard_input_is_read(ask, monkeypatch, tmp_path):
    raw = (SAMPLES / "lock_stat.txt").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
    code, out, _ = ask("data", "import", "lock-stat", "-", "--lock", "all", "--format", "csv", "--out", tmp_path)
    assert code == 0
    assert out.count("\n") == 6
    assert check(tmp_path / "standard-input.csv")


def test_faults_write_no_files(ask, tmp_path):
    log, out = tmp_path / "log", tmp_path / "out"
    log.write_text((SAMPLES / "dirty_log_perf_test.log").read_text()[:-30])
    below = tmp_path / "log" / "below-a-file"
    good = SAMPLES / "lock_stat.txt"
    for arguments, sentence in (
        (("dirty-log-perf-test", log), "the last line must end with a newline"),
        (("lock-stats", log), "did you mean 'lock-stat'"),
        (("lock-stat", SAMPLES / "kvm_stats.txt"), "simlib data import kvm-stats"),
        (("lock-stat", tmp_path / "no"), "the log must exist"),
        (("lock-stat", tmp_path), "must be a readable file"),
        (("lock-stat", good, "--histograms"), "lock-stat; it applies to contention-test and kvm-stats"),
        (("lock-stat", good, "--table", "points"), "known: classes, sites"),
        (("lock-stat", good, "--set", "vcpus"), "must be COLUMN=VALUE"),
        (("lock-stat", good, "--name", "A B"), "contain only lowercase letters, digits and -._"),
    ):
        code, printed, err = ask("data", "import", *arguments, "--out", out)
        assert (code, printed) == (2, ""), (arguments, err)
        assert sentence in err
        assert err.count("\n") == 1
        assert not out.exists()
    code, _, err = ask("data", "import", "lock-stat", good, "--out", below)
    assert code == 2
    assert "cannot be written" in err


def test_progress_is_shown_for_long_imports(ask, monkeypatch):
    log = SAMPLES / "perf-lock.txt"
    assert "reading" not in ask("data", "import", "perf-lock", log)[2]
    monkeypatch.setattr("simlib.ui.cli.output.PATIENCE_S", -1.0)
    assert "perf-lock.txt: 100 %" in ask("data", "import", "perf-lock", log)[2]


def test_help_lists_the_kinds(ask):
    code, out, _ = ask("data", "import", "--help")
    assert code == 0
    assert "simlib data import lock-stat /proc/lock_stat" in out
    for name, kind in KINDS.items():
        assert any(line.split()[:1] == [name] and kind.description in line for line in out.splitlines())
