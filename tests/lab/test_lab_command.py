# SPDX-License-Identifier: BSD-3-Clause
"""``simlib lab``, as it is met on the command line, on a machine that has nothing."""

from __future__ import annotations

import json

import pytest

from simlib.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of a command."""
    code = 0
    try:
        main([str(a) for a in arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    out = capsys.readouterr()
    return code, out.out, out.err


def test_check_looks_and_never_fails(capsys, only, lab):
    code, out, err = run(capsys, "lab", "check", "--format", "json")
    rows = {row["what"]: row for row in json.loads(out)}
    assert (code, err) == (0, "")
    assert rows["patch series"]["there"] == "yes"
    assert rows["compiler arm64"]["there"] == rows["QEMU arm64"]["there"] == "no"
    assert not lab.exists()
    assert "apt-get install" in run(capsys, "lab", "check")[1]


EXPERIMENT = 'name = "one"\ntarget = "x86_64"\n'


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("run", "nofile.toml"),
            "experiment = nofile.toml: cannot be read (No such file or directory); name a TOML file",
        ),
        (("collect", "nofile.toml", "--out", "here"), "experiment = nofile.toml: cannot be read"),
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
        (("check-series", "--arch", "mips"), "architecture = mips: the lab cannot emulate it"),
        (("check-series",), "checkpatch.pl = perl: not found; apt-get install perl"),
        (("qemu", "--arch", "s390x"), "architecture = s390x"),
        (("qemu", "--arch", "arm64"), "the packages can be fetched on Debian only; install QEMU 9.1 or later"),
        (
            ("run", "good.toml"),
            "qemu-system-x86_64 = not found: QEMU 9.1 or later runs the lab's x86_64; run simlib lab",
        ),
    ],
)
def test_a_fault_is_one_sentence_and_exit_code_2(capsys, tmp_path, monkeypatch, only, lab, arguments, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.toml").write_text(EXPERIMENT)
    code, out, err = run(capsys, "lab", *arguments)
    assert (code, out) == (2, "")
    assert f"simlib: {expected}" in err or expected in err
    assert err.strip().count("\n") == 0
    assert not lab.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "good.toml"]


def test_help_names_every_command(capsys):
    code, out, _ = run(capsys, "lab", "--help")
    assert code == 0
    for command in ("check", "qemu", "build", "check-series", "run", "compare", "collect"):
        assert command in out
        assert "Usage" in run(capsys, "lab", command, "--help")[1]
