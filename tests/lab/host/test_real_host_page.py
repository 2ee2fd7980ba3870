# SPDX-License-Identifier: BSD-3-Clause
"""docs/on-a-real-host.md: every command of simlib on the page runs as written."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from fake_qemu import serving
from test_watch import Guest

from simlib.lab.host import watch_guest
from simlib.measurements import check

PAGE = Path(__file__).parents[3] / "docs" / "on-a-real-host.md"
SAMPLES = Path(__file__).parents[2] / "measurements" / "samples"
TEXT = PAGE.read_text(encoding="utf-8")
COMMANDS = re.findall(r"(?m)^    (simlib (?:host watch|data).*?)(?:   .*)?$", TEXT)
LOGS = {
    "exits.txt": "perf-kvm.txt", "ioctls.txt": "perf-trace.txt", "trace.txt": "trace-cmd.txt",
    "contention.txt": "perf-lock-x.txt",
}  # fmt: skip
"""Sample of the same kind for each recorded file that the page names."""


@pytest.mark.parametrize("command", [command for command in COMMANDS if " data " in command])
def test_an_import(command, tmp_path, monkeypatch, ask):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)[1:]
    name = words[3]
    Path(name).write_bytes((SAMPLES / LOGS[name]).read_bytes())
    assert ask(*words)[0] == 0
    assert [check(path) for path in Path("mine").glob("*.csv")]


@pytest.mark.parametrize("command", [command for command in COMMANDS if " host " in command])
def test_a_watch(command, tmp_path, monkeypatch, ask):
    monkeypatch.chdir(tmp_path)
    socket = tmp_path / "guest.qmp"
    code = "print('x', flush=True); import time; time.sleep(60)"
    with (
        serving(socket, Guest()),
        subprocess.Popen(
            [sys.executable, "-c", code, "-qmp", f"unix:{socket},server=on"], stdout=subprocess.PIPE
        ) as process,
    ):
        assert process.stdout is not None
        process.stdout.readline()
        places = {"/run/guest.qmp": str(socket), "4095": str(process.pid), "30": "0.3"}
        words = [places.get(word, word) for word in shlex.split(command)[1:]]
        try:
            code, out, _ = ask(*words)
        finally:
            process.kill()
    assert code == 0
    assert "migration" in out
    if "--out" in words:
        name = words[words.index("--name") + 1] if "--name" in words else "watch"
        assert (tmp_path / "guest" / f"{name}.csv").is_file()


def test_the_page_names_every_log_and_every_table(tmp_path):
    assert len(COMMANDS) == 3 + len(LOGS)
    with serving(tmp_path / "q", Guest()):
        tables = watch_guest(tmp_path / "q", interval=0.05, events=()).imported.tables
    for name in list(tables)[1:]:
        assert f"| `watch-{name}` |" in TEXT
