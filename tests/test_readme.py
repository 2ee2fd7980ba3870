# SPDX-License-Identifier: BSD-3-Clause
"""The README's own scenario gives the numbers that the README says, from Python and from the command line."""

import re
import tomllib
from pathlib import Path

import pytest

import simlib
from simlib.model.scenario import Scenario

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
TABLES = tomllib.loads(re.sub(r"(?m)^    ", "", re.search(r"<<'EOF'\n(.*?)\n    EOF", README, re.DOTALL)[1]))


def said(pattern):
    """The seconds that the README says behind some words."""
    found = re.search(pattern.replace(" ", r"\s+"), README)
    assert found, f"the README no longer says {pattern!r}"
    return float(found[1])


CHANGES = {
    r"the ([0-9.]+) s of 16 vCPUs become": {},
    r"16 vCPUs become ([0-9.]+) s": {"write_protect_fault": "write"},
    r'`lock = "ticket"` ([0-9.]+) s': {"lock": "ticket"},
    r'\(`architecture = "loongarch"`: ([0-9.]+) s\)': {"architecture": "loongarch"},
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
    code, out, _ = ask("simulate", path, "--vcpus", 8, "--costs", "median", "--format", "csv")
    assert code == 0
    assert f"dirty_memory_time,{run.metrics['dirty_memory_time']}" in out
