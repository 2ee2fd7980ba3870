# SPDX-License-Identifier: BSD-3-Clause
"""README and tutorial say what simlib says, from Python and from the command line."""

import re
import shlex
import textwrap
import tomllib
from pathlib import Path

import pytest

import simlib
from simlib.measurements import load
from simlib.model.scenario import Scenario

README, TUTORIAL = (
    (Path(__file__).parents[1] / name).read_text(encoding="utf-8") for name in ("README.md", "docs/tutorial.md")
)
TABLES = tomllib.loads(re.sub(r"(?m)^    ", "", re.search(r"<<'EOF'\n(.*?)\n    EOF", TUTORIAL, re.DOTALL)[1]))


def said(pattern):
    """The seconds that the tutorial says behind some words."""
    found = re.search(pattern.replace(" ", r"\s+"), TUTORIAL)
    assert found, f"the tutorial no longer says {pattern!r}"
    return float(found[1])


def test_the_readme_is_one_screen():
    assert len(README.splitlines()) <= 80
    assert len(README.split()) <= 700


def test_a_comparison_prints_what_the_readme_shows(ask):
    line, shown = re.search(r"    simlib (compare .*)\n\n((?:    .*\n)+)", README).groups()
    code, out, _ = ask(*shlex.split(line))
    assert code == 0
    assert [row.split() for row in out.splitlines()] == [row.split() for row in shown.splitlines()]


def test_the_readme_has_the_published_times():
    table = load("arm64-dirty-memory-time").frame.query("series == 'rwlock-fixed-test'")
    times = table.set_index("vcpus")["dirty_memory_time_ms"] / 1e3
    assert f"published times are {times[8]:.4g} s and {times[64]:.4g} s" in README


def test_the_answer_for_an_operator_is_what_the_command_prints(ask, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    line, shown = re.search(r"    simlib (migrate .*)\n\n((?:    .*\n)+)", README).groups()
    code, out, _ = ask(*shlex.split(line))
    assert code == 0
    assert out.startswith(textwrap.dedent(shown))


CHANGES = {
    r"\| none \| ([0-9.]+) s": {},
    r'`write_protect_fault = "write"` \| ([0-9.]+) s': {"write_protect_fault": "write"},
    r'`lock = "ticket"` \| ([0-9.]+) s': {"lock": "ticket"},
    r'`architecture = "loongarch"` \| ([0-9.]+) s': {"architecture": "loongarch"},
}


@pytest.mark.parametrize("pattern", CHANGES)
def test_the_number_that_a_change_of_policy_gives(pattern):
    scenario = Scenario.parse(TABLES).changed({"policy": CHANGES[pattern]})
    frame = simlib.predict(scenario, [16], metrics=["dirty_memory_time"]).frame
    assert f"{frame['estimate'].item():.1f}" == f"{said(pattern):.1f}"


def test_python_and_the_command_line_say_the_same(tmp_path, ask):
    path = tmp_path / "mine.toml"
    path.write_text(Scenario.parse(TABLES).to_toml(), encoding="utf-8")
    run = simlib.simulate(path, vcpus=8)
    assert f"{run.metrics['dirty_memory_time']:.2f}" == f"{said(r'vcpus=8[)] +# ([0-9.]+) s of dirty memory time'):.2f}"
    code, out, _ = ask("simulate", path, "--vcpus", 8, "--unknown-costs", "median", "--format", "csv")
    assert code == 0
    assert f"dirty_memory_time,{run.metrics['dirty_memory_time']}" in out
