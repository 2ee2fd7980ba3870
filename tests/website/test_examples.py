# SPDX-License-Identifier: BSD-3-Clause
"""Every block of code in README, docs/ and the other pages: Python runs, scenarios are read, commands are parsed."""

from __future__ import annotations

import ast
import doctest
import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.main import get_command
from website.blocks import Block, blocks
from website.pages import ROOT, sources

import simlib
from simlib.analysis.sweep import read_grid
from simlib.lab.experiment import parse_experiment
from simlib.measurements import check
from simlib.model.costs import Costs
from simlib.model.job import Job
from simlib.model.pagetable import WORD_PAGES
from simlib.model.program import REGION, Lock, Program
from simlib.model.scenario import Scenario
from simlib.model.steps import ALL, Mode, Scan
from simlib.ui.cli import app

PAGES = sources()
BLOCKS = {name: blocks(path) for name, path in PAGES.items()}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def of_kind(kind: str) -> list[tuple[str, Block]]:
    return [(name, block) for name, listed in BLOCKS.items() for block in listed if block.kind == kind]


def labels(page_blocks: list[tuple[str, Block]]) -> list[str]:
    return [f"{name}:{block.line}" for name, block in page_blocks]


def lines_beginning(*words: str) -> list[str]:
    """Lines of all blocks that begin with a command, without the words that explain it."""
    lines = [line.strip() for listed in BLOCKS.values() for block in listed for line in block.text.splitlines()]
    return [re.split(r" {3,}| +#", line)[0] for line in lines if line.startswith(words)]


@pytest.mark.parametrize("name", sorted({name for name, _ in of_kind("doctest")}))
def test_doctest_examples_of_a_page_pass(name):
    expected = PAGES[name].read_text(encoding="utf-8").count(">>> ")
    results = doctest.testfile(str(PAGES[name]), module_relative=False, optionflags=FLAGS, encoding="utf-8")
    assert (results.failed, results.attempted) == (0, expected)


def test_the_tutorial_s_python(tmp_path, monkeypatch):
    """On less memory than the tutorial's own scenario, whose numbers test_readme.py holds against a run of its size."""
    monkeypatch.chdir(tmp_path)
    page = PAGES["tutorial"].read_text(encoding="utf-8")
    scenario = re.sub(r"(?m)^    ", "", re.search(r"<<'EOF'\n(.*?)\n    EOF", page, re.DOTALL)[1])
    tables = tomllib.loads(scenario.replace('"4G"', '"2M"'))
    added = next(block.text for _, block in of_kind("toml") if "[calibration]" in block.text)
    Path("mine.toml").write_text(Scenario.parse(tables).to_toml(), encoding="utf-8")
    Path("own.toml").write_text(Scenario.parse(tables | tomllib.loads(added)).to_toml(), encoding="utf-8")
    Path("build").mkdir()
    times = {1: 0.8e-3, 2: 1.0e-3, 4: 1.5e-3, 8: 2.9e-3, 16: 5.9e-3}
    pd.DataFrame({"vcpus": times.keys(), "dirty_memory_time_s": times.values()}).to_csv("mine.csv", index=False)
    [(_, block)] = [pair for pair in of_kind("python") if pair[0] == "tutorial"]
    names: dict[str, object] = {}
    exec(compile(block.text, "tutorial.md", "exec"), names)  # noqa: S102  # the page's own example
    assert names["curves"].frame["vcpus"].unique().tolist() == [16, 32, 48]
    assert names["fit"].observations.query("train")["vcpus"].tolist() == [1, 2, 4, 8]


def test_the_explorer_s_python():
    [(_, block)] = [pair for pair in of_kind("python") if pair[0] == "explorer"]
    module = ast.parse(block.text)
    names: dict[str, object] = {}
    exec(compile(module, "explorer.md", "exec"), names)  # noqa: S102  # the page's own example
    assert names["Explorer"].__module__.startswith("simlib.ui.explorer")


def test_the_whole_of_clear_is_a_program():
    """docs/write-a-strategy.md: the blocks that it shows, with the names that it takes for granted."""
    *_, (_, block) = [pair for pair in of_kind("python") if pair[0] == "write-a-strategy"]
    program, lock = Program(), Lock(0, Mode.WRITE)
    names = {
        "program": program, "lock": lock, "region": REGION, "ends": lock.waiters(3), "ALL": ALL, "Scan": Scan,
        "WORD_PAGES": WORD_PAGES, "costs": Costs(clear_page=30_000, reacquire=50_000),
    }  # fmt: skip
    with program.thread() as clear:
        exec(compile(block.text, "write-a-strategy.md", "exec"), names)  # noqa: S102  # the page's own example
    zero = np.zeros(1, int)
    job = Job(
        program.steps(), np.array([clear.first]), np.array([[0, 1024]]), zero, 0, 0, 0, zero,
        pages=1024, thread_names=("clear",),
    )  # fmt: skip
    listing = job.listing()
    for step in (
        "take      mmu_lock, write",
        "waiters, mmu_lock, >= 3",
        "scan      clear, page 30ns",
        "drop      mmu_lock",
    ):
        assert step in listing, step


def test_the_python_of_sweeps(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    for name, block in of_kind("python"):
        if name == "sweeps":
            exec(compile(block.text, "sweeps.md", "exec"), names)  # noqa: S102  # the page's own example
    dataset = names["sweep_and_load"](tmp_path / "first")
    assert len(names["results"](tmp_path / "first")) == dataset["seed"].size == 108
    assert names["best"](tmp_path / "first").sel(architecture="riscv").dims == ("vcpus", "write_percent")
    assert callable(names["choose_with_processes"])


def test_every_other_block_of_python_is_run_above():
    assert {name for name, _ in of_kind("python")} == {"tutorial", "explorer", "write-a-strategy", "sweeps"}


@pytest.mark.parametrize(("name", "block"), of_kind("toml"), ids=labels(of_kind("toml")))
def test_a_scenario_or_grid_is_read(name, block):
    tables = tomllib.loads(block.text)
    if name == "sweeps":
        assert read_grid(tables).points == 120
    elif name == "lab":
        assert parse_experiment(tables).size == 2
    else:
        assert Scenario.parse(tables).to_toml() != Scenario.parse({}).to_toml()


def test_the_sentence_of_a_bad_measurement(tmp_path, monkeypatch):
    """docs/data.md: the error of a file that breaks a rule."""
    monkeypatch.chdir(tmp_path)
    Path("mine.csv").write_text("vcpus,dirty_memory_time_min\n1,2\n", encoding="utf-8")
    [message] = [block.text for name, block in of_kind("text") if name == "data"]
    with pytest.raises(simlib.InputError) as error:
        check(Path("mine.csv"))
    assert str(error.value) == message


@pytest.fixture(scope="module")
def command():
    """The command line as it is, except that a command hands back what it was given instead of running."""
    whole = get_command(app)

    def disarm(group, words):
        for name, inner in getattr(group, "commands", {}).items():
            disarm(inner, (*words, name))
        if not hasattr(group, "commands"):
            group.callback = lambda **given: (words, given)

    disarm(whole, ())
    return whole


COMMANDS = sorted(set(lines_beginning("simlib ")))


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_parsed(line, command):
    """Its name, arguments and options, with their values converted; nothing is executed."""
    words = shlex.split(line)[1:]
    assert command.main(words, prog_name="simlib", standalone_mode=False)[0] == tuple(words[: len(command_of(words))])
    assert not [word for word in words if word.startswith("data/") and "/" in word[5:] and not (ROOT / word).exists()]


def command_of(words: list[str]) -> list[str]:
    """The leading words that name a command: two in a group, else one."""
    return words[: 2 if words[0] in {group.name for group in app.registered_groups} else 1]


def test_pages_have_commands_and_a_wrong_command_is_refused(command):
    assert len(COMMANDS) > 40
    for words in (["predictt", "mine.toml"], ["predict", "mine.toml", "--cpus", "4"], ["predict"],
                  ["simulate", "mine.toml", "--vcpus", "many"]):  # fmt: skip
        with pytest.raises(Exception, match=r"(?i)no such|missing|valid integer"):
            command.main(words, prog_name="simlib", standalone_mode=False)


IN_PROSE = sorted({
    " ".join(text.split())
    for path in PAGES.values()
    for text in re.findall(r"`(simlib [a-z][^`]*)`", path.read_text(encoding="utf-8"))
})  # fmt: skip


@pytest.mark.parametrize("text", IN_PROSE)
def test_a_command_in_prose_has_its_options(text, command):
    """There arguments may be missing: the command must exist, and each option that is named."""
    words = shlex.split(text)[1:]
    inner = command
    for word in words:
        if word in getattr(inner, "commands", {}):
            inner = inner.commands[word]
    assert inner is not command
    known = {option for parameter in inner.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known | {"--help"}


def test_targets_of_make_and_scripts_exist():
    lines = [line for line in lines_beginning("make ") if not line.startswith("make -C")]
    assert len(lines) > 5
    assert {line.split()[1] for line in lines} <= TARGETS
    scripts = [line.split() for line in lines_beginning("python -m pytest ", ".venv/bin/python ")]
    assert scripts
    assert all((ROOT / next(word for word in words if word.endswith(".py"))).is_file() for words in scripts)
