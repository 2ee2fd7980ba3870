# SPDX-License-Identifier: BSD-3-Clause
"""docs/write-a-strategy.md is short enough, and its command line works; tests/website runs its examples."""

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "write-a-strategy.md"


def test_twenty_lines_from_idea_to_curve():
    idea = PAGE.read_text(encoding="utf-8").partition("## When a condition")[0]
    lines = [line for line in idea.splitlines() if line.startswith(("    >>> ", "    ... "))]
    assert 5 < len(lines) <= 20


def test_a_condition_is_accepted_in_place_of_a_policy_s_name(ask, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'cost_group = "fixed test"\n[host]\nname = "ampere-altra"\n[workload]\nkind = "migration"\n',
        encoding="utf-8",
    )
    strategy = "held >= 20us and waiters >= 1"
    code, listing, _ = ask("simulate", path, "--policy", strategy, "--listing")
    assert code == 0
    assert "test      held, >= 20us, else" in listing
    assert "test      waiters, mmu_lock, >= 1, else" in listing
    code, _, errors = ask("simulate", path, "--policy", "hold >= 20us")
    assert code == 2
    assert "unknown word 'hold'; did you mean 'held'?" in errors
