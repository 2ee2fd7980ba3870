# SPDX-License-Identifier: BSD-3-Clause
"""The command line: its contracts, and one clear sentence for every fault."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from pathlib import Path

import pandas as pd
import pytest

import simlib
from simlib.measurements import data_dir
from simlib.ui.cli.output import WIDTH

ARM64 = data_dir() / "scenarios" / "arm64-ampere-altra.toml"
SMALL = """
[guest]
vcpus = 2
memory_per_vcpu = "2M"
[policy]
architecture = "arm64-spinlock"
[costs]
fault_unlocked = "700ns"
fault_hold = "600ns"
tlb_invalidate = "480ns"
line_transfer = "47ns"
fault_jitter = 0.3
others = "0ns"
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def test_predict_has_the_contract_columns(ask, small):
    code, out, _ = ask("predict", small, "--vcpus", "1,4", "--format", "csv")
    frame = pd.read_csv(io.StringIO(out))
    assert code == 0
    assert frame.columns.tolist() == ["vcpus", "metric", "estimate", "low", "high", "unit"]
    assert set(frame["vcpus"]) == {1, 4}
    assert (frame["low"] <= frame["estimate"]).all()
    assert (frame["estimate"] <= frame["high"]).all()


def test_shipped_fit_predicts_each_variant(ask):
    code, out, err = ask("predict", ARM64, "--vcpus", "16", "--format", "json")
    rows = json.loads(out)
    assert code == 0
    assert "shipped fit for ampere-altra" in err
    assert {r["variant"] for r in rows} == {"spinlock-old-test", "rwlock-old-test", "rwlock-fixed-test"}
    time = next(r for r in rows if r["variant"] == "spinlock-old-test" and r["metric"] == "dirty_memory_time")
    assert time["low"] < 10.340 < time["high"]  # published, held out


def test_both_engines_print_the_same(ask, small):
    results = [ask("simulate", small, "--engine", e, "--seed", 0)[:2] for e in ("compiled", "reference")]
    assert results[0] == results[1]
    assert results[0][0] == 0


def test_simulate_writes_trace_and_tables(ask, small, tmp_path):
    trace, folder = tmp_path / "t" / "trace.json", tmp_path / "tables"
    code, _, _ = ask("simulate", small, "--trace", trace, "--out", folder)
    events = json.loads(trace.read_text())["traceEvents"]
    holds = [e for e in events if e["name"] == "hold mmu_lock"]
    locks = pd.read_csv(folder / "locks.csv")
    assert code == 0
    assert len(holds) == locks.loc[locks["lock"] == "mmu_lock", "acquisitions"].sum()
    assert abs(sum(e["dur"] for e in holds) * 1e-6 - locks.loc[locks["lock"] == "mmu_lock", "hold_s"].sum()) < 1e-9
    assert {p.stem for p in folder.iterdir()} >= {
        "metrics",
        "threads",
        "phases",
        "wait_histogram",
        "queue_over_time",
    }


def test_calibrate_own_numbers(ask, small, tmp_path):
    steady = SMALL.replace("fault_jitter = 0.3", "fault_jitter = 0.05")  # else 512 pages are too noisy a measurement
    small.write_text(steady)
    rows = ["vcpus,dirty_memory_time_s"]
    for n in (1, 2, 3, 4, 6, 8):
        _, out, _ = ask("simulate", small, "--vcpus", n, "--format", "csv", "--seed", 7)
        value = pd.read_csv(io.StringIO(out)).set_index("metric").loc["dirty_memory_time", "value"]
        rows.append(f"{n},{value}")
    table = tmp_path / "mine.csv"
    table.write_text("\n".join(rows) + "\n")
    unknown = small.with_name("unknown.toml")
    text = steady.replace('fault_unlocked = "700ns"\n', "").replace('fault_hold = "600ns"\n', "")
    unknown.write_text(text + '[calibration]\ncosts = ["fault_unlocked", "fault_hold"]\n')
    fit = tmp_path / "fit.json"
    code, out, err = ask("calibrate", unknown, table, "--out", fit, "--format", "csv")
    costs = pd.read_csv(io.StringIO(out)).set_index("name")
    assert code == 0, err
    assert set(costs["unit"]) == {"ns"}
    assert costs.loc["fault_hold", "low"] < 600 < costs.loc["fault_hold", "high"]
    assert costs.loc["fault_unlocked", "low"] < 700 < costs.loc["fault_unlocked", "high"]
    assert ask("predict", unknown, "--fit", fit, "--vcpus", "16")[0] == 0
    page = tmp_path / "fit.html"
    code, report, _ = ask("calibrate", unknown, table, "--out", fit, "--plot", page)
    assert code == 0
    # What a reader sees is what the file says of itself, but for the heading.
    said = simlib.load_fit(fit).summary().split("χ²", 1)[1]
    assert report.split("χ²", 1)[1].strip() == said.strip()
    assert "Calibrated costs" in page.read_text(encoding="utf-8")


def test_data_commands(ask):
    code, out, _ = ask("data", "list", "--format", "json")
    names = [row["name"] for row in json.loads(out)]
    assert code == 0
    assert "arm64-dirty-memory-time" in names
    code, out, err = ask("data", "show", "arm64-dirty-memory-time", "--where", "vcpus == 64", "--format", "csv")
    assert code == 0
    assert "spinlock-old-test,64,40994,201442478" in out
    assert "caveat" in err
    assert ask("data", "check", data_dir() / "published" / "arm64-dirty-memory-time.csv")[0] == 0


BAD = {
    "unknown key": ("[guest]\nvcpu = 2\n", "did you mean 'vcpus'"),
    "unknown table": ("[gest]\nvcpus = 2\n", "did you mean 'guest'"),
    "unit": ('[costs]\nfault_unlocked = "7 parsecs"\n', "unknown unit 'parsecs'"),
    "no vcpus": ("[guest]\nvcpus = 0\n", "guest.vcpus = 0"),
    "negative cost": ('[costs]\nfault_unlocked = "-1us"\n', "must not be negative"),
    "not a number": ("[costs]\nfault_jitter = nan\n", "finite"),
    "not TOML": ("[guest\n", "not TOML: "),
    "no mmu_lock": ('[policy]\narchitecture = "s390"\n', "does not take mmu_lock"),
    "batch": ("[policy]\nclear_batch_pages = 65\n", "multiple of 64"),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_scenario(ask, tmp_path, fault):
    text, sentence = BAD[fault]
    path = tmp_path / "bad.toml"
    path.write_text(text)
    code, out, err = ask("simulate", path)
    assert (code, out) == (2, "")
    assert sentence in err
    assert "Traceback" not in err
    assert err.strip().count("\n") == 0


def test_bad_arguments(ask, small, tmp_path):
    for arguments, sentence in (
        (("predict", small, "--vcpus", "16,many"), "whole numbers"),
        (
            ("predict", small, "--vcpus", "16", "--metrics", "speed"),
            "has no metric of this name; known: clear_cpu_time, clear_dirty_log_time",
        ),
        (("predict", small, "--vcpus", "16", "--fit", small), "must be a fit file (JSON)"),
        (("simulate", ARM64), "name one"),
        (("simulate", small, "--vcpus", "2000"), "from 1 to 1023"),
        (("calibrate", small, "no-such-table", "--out", tmp_path / "f.json"), "no-such-table"),
        (("data", "show", "arm64-dirty-memory-tim"), "did you mean"),
        (("simulate", tmp_path), "must be a scenario file (TOML); name a file inside it"),
        (("simulate", small, "--out", small / "below-a-file"), "cannot be written"),
        (("reproduce", "--out", small / "below-a-file"), "cannot be written"),
    ):
        code, out, err = ask(*arguments)
        assert code == 2, (arguments, err)
        assert sentence in err, (arguments, err)
        assert "Traceback" not in err + out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--trace", "small.toml"), "it would be read and replaced"),
        (("--trace", "sub/../small.toml"), "it would be read and replaced"),
        (("--trace", "both.html", "--plot", "both.html"), "it would be written twice"),
        (("--out", "link", "--trace", "both"), "it would be written twice"),
    ],
)
def test_a_file_is_not_named_twice_if_it_is_written(ask, small, tmp_path, monkeypatch, words, why):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to("both")
    for given in (("small.toml", *words), (*words, "small.toml")):
        code, _, error = ask("simulate", *given)
        assert code == 2
        assert why in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "small.toml", "sub"]
    assert small.read_text() == SMALL


@pytest.mark.parametrize("suffix", [".csv", ".json"])
def test_a_fit_does_not_replace_its_measurements(ask, tmp_path, suffix):
    mine = tmp_path / "mine.csv"
    mine.write_text("vcpus,dirty_memory_time_s\n1,1.0\n")
    out = mine.with_suffix(suffix)
    code, _, error = ask("calibrate", ARM64, "arm64-dirty-memory-time", mine, "--out", out)
    assert (code, "would be read and replaced" in error) == (2, True)


def test_a_device_takes_several_outputs(ask, small, tmp_path):
    (tmp_path / "null.html").symlink_to(os.devnull)
    both = tmp_path / "null.html"
    assert ask("simulate", small, "--trace", both, "--plot", both)[0] == 0


def test_interrupt_leaves_nothing_half_written(tmp_path, popen):
    """Ctrl-C in a long run: one sentence, exit code 130, no file."""
    scenario = tmp_path / "long.toml"
    text = SMALL.replace('memory_per_vcpu = "2M"', 'memory_per_vcpu = "8G"').replace("vcpus = 2", "vcpus = 64")
    scenario.write_text(text)
    out = tmp_path / "out"
    process = popen(
        [sys.executable, "-c", "from simlib.ui.cli import main; main()", "simulate", str(scenario), "--out", str(out)],
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    first = process.stderr.readline()  # the run reports progress, so it has begun
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 130, first + rest
    assert "interrupted" in rest
    assert "Traceback" not in first + rest
    assert not out.exists()


def test_help_teaches(ask):
    for command in ([], ["calibrate"], ["predict"], ["simulate"], ["reproduce"], ["explore"], ["data"]):
        code, out, _ = ask(*command, "--help")
        assert code == 0
        assert "Usage" in out


def test_predict_and_compare_take_policies(ask, small):
    _, own, _ = ask("predict", small, "--vcpus", "8", "--format", "csv")
    code, other, _ = ask("predict", small, "--vcpus", "8", "--policy", "fast-path-read-lock", "--format", "csv")
    assert code == 0
    assert own.splitlines()[0] == other.splitlines()[0]
    code, out, _ = ask("compare", small, "baseline", "every-64", "--vcpus", "1,8", "--format", "json")
    rows = json.loads(out)
    assert code == 0
    assert [(row["policy"], row["vcpus"]) for row in rows[::2]] == [
        ("baseline", 1),
        ("baseline", 8),
        ("every-64", 1),
        ("every-64", 8),
    ]
    code, out, _ = ask("compare", small, "baseline", "every-64", "--vcpus", "8")
    assert code == 0
    assert "of the change" in out.splitlines()[0]
    assert ask("compare", small, "baseline", "evry-64", "--vcpus", "8")[0] == 2


def test_errors_name_options(ask, tmp_path):
    path = tmp_path / "bare.toml"
    path.write_text("[guest]\nvcpus = 2\n")
    code, _, err = ask("predict", path, "--vcpus", "2", "--unknown-costs", "exact")
    assert code == 2
    assert "calibrate and pass --fit" in err
    path.write_text('[guest]\nmemory_per_vcpu = "1T"\n[workload]\niterations = 1000\n'
                    '[costs]\nfault_unlocked = "1us"\nfault_hold = "1us"\nline_transfer = "1ns"\n')  # fmt: skip
    code, _, err = ask("simulate", path)
    assert code == 1
    assert "or sample the pages (--pages)" in err
    code, _, err = ask("simulate", path, "--sample", 2, "--pages", 64, "--engine", "reference")
    assert code == 2
    assert "--sample = 2: cannot be combined with --pages, --engine; omit one of them" in err


@pytest.mark.parametrize("command", [("policies",), ("lab", "check"), ("data", "list"), ("choose-batch", "--help")])
def test_tables_fit(ask, command):
    code, out, _ = ask(*command)
    assert code == 0
    assert max(len(line) for line in out.splitlines()) <= WIDTH
    if command[-1] != "--help":
        assert len(ask(*command, "--format", "csv")[1]) > 0


def test_what_finds_no_room_is_named(ask, monkeypatch):
    monkeypatch.setattr("simlib.ui.cli.output.terminal_width", lambda: 40)
    _, out, err = ask("policies")
    assert max(len(line) for line in out.splitlines()) <= 40
    assert "no room for" in err
    assert "use a wider terminal, or --format csv" in err
