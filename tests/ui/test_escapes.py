# SPDX-License-Identifier: BSD-3-Clause
"""What a file says is text: it makes no HTML, obeys no terminal, and breaks no encoding."""

from __future__ import annotations

import dataclasses
import json
import os
import pty
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from simlib.measurements import data_dir, read
from simlib.measurements.fits import CostEstimate, load_fit
from simlib.model.scenario import Scenario
from simlib.ui.cli.output import Format, progress_bar, say, show
from simlib.ui.explorer import answers
from simlib.ui.explorer.findings import Findings
from simlib.ui.explorer.state import ExplorerState
from simlib.ui.explorer.words import answer, grounds_in_words
from studies.arm64.sliders import what_if

BAD = "<script>alert(1)</script>&"
SHIPPED = data_dir() / "fits" / "ampere-altra.json"


def escaped(html: str) -> bool:
    return "<script" not in html and "&lt;script" in html


def test_a_fit_escapes_what_its_file_says(tmp_path):
    content = json.loads(SHIPPED.read_text())
    for key in ("dataset", "train", "date"):
        (tmp_path / "fit.json").write_text(json.dumps(content | {key: BAD}))
        assert escaped(load_fit(tmp_path / "fit.json")._repr_html_())
    rows = [row | {"metric": BAD, "variant": BAD} for row in content["observations"]]
    (tmp_path / "fit.json").write_text(json.dumps(content | {"observations": rows, "valid": {BAD: False}}))
    assert escaped(load_fit(tmp_path / "fit.json")._repr_html_())


def test_a_table_escapes_what_its_descriptor_says(tmp_path):
    (tmp_path / "a.csv").write_text(f"series,vcpus,clear_time_s\n{BAD},1,2\n")
    fields = [{"name": "series", "type": "string"}, {"name": "vcpus", "type": "integer", "unit": "count"},
              {"name": "clear_time_s", "type": "number", "unit": "s"}]  # fmt: skip
    described = {"title": BAD, "hardware": BAD, "caveats": [BAD], "source": {"subject": BAD, "author": BAD, "date": 3},
                 "schema": {"fields": fields}}  # fmt: skip
    (tmp_path / "a.json").write_text(json.dumps(described))
    assert escaped(read(tmp_path / "a.csv")._repr_html_())


def test_scenarios_and_widgets_escape_names(monkeypatch):
    scenario = Scenario.parse({"host": {"name": BAD}, "cost_group": BAD})
    assert escaped(scenario._repr_html_())
    start = dataclasses.replace(ExplorerState.of("arm64").scenario, cost_group=BAD)
    start = start.changed({"host": {"name": BAD}}).with_costs(
        fault_hold="1us", fault_unlocked="1us", line_transfer="50ns", tlb_invalidate="1us"
    )
    monkeypatch.setattr("studies.arm64.sliders.calibrated_scenario", lambda _estimate: start)
    monkeypatch.setattr("studies.arm64.sliders.compare", lambda *_: pd.DataFrame())
    monkeypatch.setattr("studies.arm64.sliders.figure", lambda _curves: None)
    monkeypatch.setattr("studies.arm64.sliders.as_widget", lambda _figure: __import__("ipywidgets").HTML())
    reset = what_if(CostEstimate((), np.zeros(0), np.zeros((0, 0)), 1, 0.1, {})).children[2]
    assert escaped(reset.children[1].value)


def test_the_explorer_s_sentences_are_escaped():
    state = ExplorerState.of("arm64").changed(strategy="held <1us")
    walks = answers.trips(state, [state.strategy], lambda *_: None)
    found = Findings(state, parts={"baseline": walks, "trips": walks})
    assert "held &lt;" in answer(found)
    assert "held <" not in answer(found)
    found.parts["reason"] = BAD
    found.theory = found.theory._replace(evidence=BAD)
    assert escaped(answer(found))
    assert escaped(grounds_in_words(found))


@pytest.mark.parametrize("how", Format)
def test_no_escape_sequence_reaches_a_terminal(how):
    """Through a real one: tables, messages, progress."""
    reader, writer = pty.openpty()
    code = """
import sys
from simlib.ui.cli.output import *
say("\\x1b[31mred \\udcff")
with progress_bar() as progress:
    progress("\\x9b31m[/]reading \\x1b]0;title\\x07", 0.5)
show([{"na\\x1b[2Jme": "\\x1b[31mred", "µ": 1.5}], Format(sys.argv[1]))
"""
    done = subprocess.Popen([sys.executable, "-c", code, how.value], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    seen = b""
    try:
        while part := os.read(reader, 4096):
            seen += part
    except OSError:  # its other end is closed
        pass
    os.close(reader)
    error = done.communicate()[1]
    assert done.returncode == 0, error.decode()
    assert b"\x1b" not in seen + error
    assert b"\x9b" not in (seen + error).replace("\x9b".encode(), b"")
    assert b"\\x1b[31mred" in error
    assert b"[2J" in seen


def test_what_is_left_is_told_from_where_shares_are_known(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("simlib.ui.cli.output.time", SimpleNamespace(monotonic=lambda: now[0]))
    with progress_bar() as progress:
        for at, what, share in ((100.0, "building", 0.0), (160.0, "linking", 0.0), (170.0, "running", 0.25)):
            now[0] = at
            progress(what, share)
    assert [line.removeprefix("simlib: ") for line in capsys.readouterr().err.splitlines()] == [
        "building …", "linking …", "running …, about 30 s left",
    ]  # fmt: skip


def test_what_came_before_the_first_line_does_not_make_it_slow(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("simlib.ui.cli.output.time", SimpleNamespace(monotonic=lambda: now[0]))
    with progress_bar() as progress:
        for at, what, share in ((160.0, "first", 0.25), (170.0, "second", 0.5)):
            now[0] = at
            progress(what, share)
    told = [line.removeprefix("simlib: ") for line in capsys.readouterr().err.splitlines()]
    assert told == ["first …", "second …, about 20 s left"]


def test_a_progress_bar_takes_names_as_they_are(capsys):
    say("[/]")
    with progress_bar() as progress:
        progress("[/] [red]", 0.1)
    show([{"a": "[/]"}], Format.TABLE)
    assert "[/]" in capsys.readouterr().out


SURROUNDINGS = {
    "no cache": "from numba.core import caching; caching.CacheImpl._locator_classes = []",
    "full cache": "from numba.core import caching, errors\n"
    "def full(*_): raise OSError(28, 'No space left on device')\n"
    "caching.IndexDataCacheFile.save = full",
    "damaged cache": "from numba.core import caching\n"
    "def damaged(*_): raise EOFError('Ran out of input')\n"
    "caching.IndexDataCacheFile.load = damaged",
}


@pytest.mark.parametrize("what", SURROUNDINGS)
def test_without_a_cache_of_compiled_code(what, tmp_path):
    """Small functions, whose compilation takes no seconds: those of the engine are made by the same decorator."""
    code = f"{SURROUNDINGS[what]}\nfrom simlib.simulator.sampling.fluid_model import compiled_function\n"
    (tmp_path / "job.py").write_text(f"{code}\n@compiled_function\ndef twice(x):\n    return 2 * x\nprint(twice(4))\n")
    done = subprocess.run(
        [sys.executable, tmp_path / "job.py"], capture_output=True, text=True, check=False,
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "8\n"), done.stderr


def test_an_output_that_is_full_and_one_that_knows_no_greek():
    command = [sys.executable, "-m", "simlib", "policies"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "simlib: standard output: No space left on device")
    done = subprocess.run(command, capture_output=True, check=False, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.isascii()
