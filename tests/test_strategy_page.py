# SPDX-License-Identifier: BSD-3-Clause
"""docs/write-a-strategy.md runs as it stands, and its command line gives what it says."""

import doctest
from pathlib import Path

import pytest

from simlib.cli import main

PAGE = Path(__file__).parents[1] / "docs" / "write-a-strategy.md"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def test_the_page_runs():
    found = doctest.testfile(str(PAGE), module_relative=False, optionflags=FLAGS)
    assert found.attempted > 5
    assert found.failed == 0
    idea = PAGE.read_text(encoding="utf-8").partition("## When words")[0]
    lines = [line for line in idea.splitlines() if line.startswith(("    >>> ", "    ... "))]
    assert len(lines) <= 20, "twenty lines from idea to compared curve"


def test_a_strategy_stands_where_a_policy_s_name_does(capsys, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[machine]\nname = "ampere-altra"\n[workload]\nkind = "migration"\n', encoding="utf-8")
    strategy = "held >= 20us and waiters >= 1"
    with pytest.raises(SystemExit) as end:
        main(["simulate", str(path), "--policy", strategy, "--listing"])
    assert end.value.code == 0
    listing = capsys.readouterr().out
    assert "test      held, >= 20us, else" in listing
    assert "test      waiters, mmu_lock, >= 1, else" in listing
    with pytest.raises(SystemExit) as end:
        main(["simulate", str(path), "--policy", "hold >= 20us"])
    assert end.value.code == 2
    assert "unknown word 'hold'; did you mean 'held'?" in capsys.readouterr().err
