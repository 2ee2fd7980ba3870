# SPDX-License-Identifier: BSD-3-Clause
"""``simlib lab`` on the command line, on a host without compilers and QEMU."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import pytest
from lab_fakes import built, program

from simlib._lib import checkout
from simlib.lab.build import built_dir
from simlib.measurements import data_dir
from simlib.measurements.fits import load_fit
from simlib.ui.cli import output


def test_check_changes_nothing_and_never_fails(ask, only, lab):
    code, out, err = ask("lab", "check", "--format", "json")
    rows = {row["what"]: row for row in json.loads(out)}
    assert (code, err) == (0, "")
    assert rows["patch series"]["there"] == "yes"
    assert rows["compiler arm64"]["there"] == rows["QEMU arm64"]["there"] == "no"
    assert not lab.exists()
    assert "apt-get install" in ask("lab", "check")[1]


EXPERIMENT = 'name = "one"\ntarget = "x86_64"\n'


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("run", "nofile.toml"),
            "nofile.toml = missing: an experiment (TOML) must exist; check the path",
        ),
        (
            ("collect", "good.toml", "--out", "here", "--name", "../Foo Bar"),
            "--name = ../Foo Bar: must be letters, digits, -, _ and ., and not begin with - or .; choose another name",
        ),
        (("collect", "nofile.toml", "--out", "here"), "nofile.toml = missing: "),
        (
            ("build", "--arch", "s390x"),
            "architecture = s390x: the lab cannot emulate it; known: arm64, riscv64, x86_64",
        ),
        (
            ("build", "--arch", "arm64"),
            "building for arm64 = make, patch, bison, flex, bc, rsync, aarch64-linux-gnu-gcc:",
        ),
        (
            ("build", "--arch", "x86_64", "--kernel", "debug"),
            "--kernel = debug: is not known; known: plain, statistics,",
        ),
        (("build", "--arch", "mips"), "architecture = mips: the lab cannot emulate it"),
        (("qemu", "--arch", "s390x"), "architecture = s390x"),
        (("qemu", "--arch", "arm64"), "the packages can be fetched on Debian 12 only; install QEMU 9.1 or later"),
        (
            ("run", "good.toml"),
            "qemu-system-x86_64 = not found: the lab's target x86_64 needs QEMU 9.1 or later; run simlib lab",
        ),
    ],
)
def test_an_error_is_one_sentence_and_exit_code_2(ask, tmp_path, monkeypatch, only, lab, arguments, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.toml").write_text(EXPERIMENT)
    code, out, err = ask("lab", *arguments)
    assert (code, out) == (2, "")
    assert f"simlib: {expected}" in err or expected in err
    assert err.strip().count("\n") == 0
    assert not lab.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "good.toml"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_boots_and_leaves_no_files(tmp_path, lab, popen, number):
    mark, temporary = tmp_path / "alive", tmp_path / "tmp"
    temporary.mkdir()
    loop = f"case $1 in --version) echo 'QEMU emulator version 10.0.2'; exit;; esac; while :; do echo >> '{mark}'"
    program(tmp_path / "bin" / "qemu-system-x86_64", f"{loop}; sleep 0.05; done")
    built(built_dir("x86_64", "statistics"))
    (built_dir("x86_64", "statistics") / "build.json").write_text('{"key": "", "provenance": {}}')
    (tmp_path / "e.toml").write_text(EXPERIMENT + 'clock = "multithreaded"\n')
    process = popen(
        [sys.executable, "-c", "from simlib.ui.cli import main; main()", "lab", "run", str(tmp_path / "e.toml")],
        env=os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "TMPDIR": str(temporary)},
    )
    while not mark.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    assert list(temporary.iterdir())
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (128 + number, "")
    assert err.splitlines()[-1] == "simlib: interrupted; nothing half-written is left behind"
    assert not list(temporary.iterdir())
    assert not list(lab.rglob("results/**/*.json"))
    size = mark.stat().st_size
    time.sleep(0.3)
    assert mark.stat().st_size == size


def test_a_long_step_prints_a_line_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(output, "QUIET_S", 0.2)
    with output.progress_bar() as progress:
        progress("compiling: a", 0.5)
        time.sleep(1.0)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "simlib: compiling: a …"
    assert set(lines[1:]) <= {"simlib: compiling: a … 0 s", "simlib: compiling: a … 1 s"}
    assert 2 <= len(lines) <= 6


def test_costs_come_from_the_shipped_fits_and_a_recomputation_needs_a_checkout(ask, tmp_path, monkeypatch):
    code, out, _ = ask("lab", "costs", "--format", "json")
    rows = json.loads(out)
    fit = load_fit(data_dir() / "fits" / "lab-riscv.json")
    values = {row["name"]: row["value"] for row in rows if row["machine"] == "lab-riscv"}
    expected = dict(zip(fit.parameters["name"], fit.parameters["value"] / 1000, strict=True))
    assert (code, values) == (0, pytest.approx(expected))
    monkeypatch.setattr(checkout, "checkout", lambda: None)
    code, out, err = ask("lab", "costs", "--out", str(tmp_path / "fits"))
    assert (code, out) == (1, "")
    assert "simlib lab costs --out: needs a checkout" in err
    assert not (tmp_path / "fits").exists()


def test_help_names_every_command(ask):
    code, out, _ = ask("lab", "--help")
    assert code == 0
    for command in ("check", "qemu", "build", "run", "compare", "collect", "try", "costs"):
        assert command in out
        assert "Usage" in ask("lab", command, "--help")[1]
