# SPDX-License-Identifier: BSD-3-Clause
"""The pages on choosing say what the code does; tests/website runs their examples."""

import re
import textwrap
from pathlib import Path
from typing import get_type_hints

import pytest

from simlib.analysis.choose import (
    DEFAULT_GUEST,
    OBJECTIVES,
    RULES,
    choose_batch,
    comparison_of_batches,
    guests,
    preset_architectures,
    preset_scenario,
    ranking,
)
from simlib.analysis.choose import choice as choosing
from simlib.analysis.choose.information import SHUFFLES
from simlib.analysis.choose.strategies import CHUNKS, HOLDS, SPLITS, patched_kernel_strategies, strategies_of
from simlib.model.policies import BASELINE
from simlib.model.quantities import format_bandwidth, format_duration, format_size
from simlib.model.scenario import Scenario
from simlib.simulator.sampling import WHOLE_PAGES
from simlib.ui.cli import decide

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "choose.md").read_text(encoding="utf-8")
WORDS = " ".join(PAGE.split())


def rows(heading):
    """The cells of the table under a heading."""
    part = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    table = [line for line in part.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1:]]


def test_the_page_has_all_objectives_as_they_are_defined():
    expected = [
        [f"`{row.name}`", row.title, row.definition, format_duration(row.floor * 1e12) if row.floor else ""]
        for row in OBJECTIVES.values()
    ]
    assert rows("Objectives") == expected
    assert f"for each of the {len(OBJECTIVES)} objectives" in WORDS


def test_the_page_has_all_guests_as_they_are():
    listed = {}
    for name, *cells, meaning in rows("The guest"):
        listed[name.split("`")[1]] = cells
        title = guests()[name.split("`")[1]].title
        words = set(re.findall(r"[a-z0-9]+", meaning.lower()))
        assert len(words & set(re.findall(r"[a-z0-9]+", title.lower()))) >= len(words) / 2
    base = preset_scenario("x86-tdp")
    expected = {}
    for name, guest in guests().items():
        case = guest.in_place_of(base)
        work = case.workload
        expected[name] = [
            str(case.guest.vcpus), format_size(case.guest.memory), format_duration(work.access_interval), work.access,
            f"{work.write_percent} %", format_bandwidth(work.link), format_size(work.clear_chunk),
        ]  # fmt: skip
    assert listed == expected
    assert f"`{DEFAULT_GUEST}` (default)" in PAGE
    slow = [name for name, guest in guests().items() if guest.in_place_of(base).workload.slow_fault_every]
    assert slow == ["mysql-1g", "mysql-8g"]  # those on a host with NX huge pages
    assert (base.guest.backing, base.workload.shared, base.workload.pass_limit) == ("hugetlb_2mb", True, 3)
    assert "in at most three passes" in WORDS
    assert f"with a downtime limit of {base.workload.downtime // 10**9} ms" in WORDS


def test_the_command_names_all_guests():
    option = get_type_hints(decide.Subject, include_extras=True)["guest"].__metadata__[0]
    assert all(name in option.help for name in guests())


def test_the_page_has_all_strategies():
    text = PAGE.split("## Strategies")[1].split("\n## ")[0]
    for name in (*HOLDS, *(part for split in SPLITS for part in split.split("+")), BASELINE, "read-lock-clear"):
        assert f"`{name}`" in text
    for architecture in preset_architectures():
        case = preset_scenario(architecture)
        for strategy in strategies_of(case, patched_kernel_strategies(case)):
            assert all(f"`{part}`" in text for part in strategy.name.split("+"))
    assert re.findall(r"`(chunk-\w+)`", text)[: len(CHUNKS) - 1] == [*CHUNKS[1:]]


def test_the_page_has_the_numbers_of_the_procedure():
    first, second = choosing.LOOKS
    for sentence in (
        f"{choosing.SELECTION_RUNS} replications to find the strategies that satisfy",
        f"{first} new replications of every strategy, and {second - first} more if",
        f"all {choosing.SELECTION_RUNS + first} or {choosing.SELECTION_RUNS + second} replications.",
        f"120 × {len(OBJECTIVES)} × {len(choosing.LOOKS)} = {120 * len(OBJECTIVES) * len(choosing.LOOKS):,} intervals",
        f"0.05 / {120 * len(OBJECTIVES) * len(choosing.LOOKS):,}",
        f"95 % of {SHUFFLES} random permutations",
        f"probability of more than {1 - choosing.STALL_LEVEL:.0%}".replace("%", " %"),
        f"Migrations of up to {WHOLE_PAGES * 4096 >> 30} GiB are simulated in full",
    ):
        assert sentence in WORDS
    assert "for stall limits of 10us, 100us, 1ms, 10ms and 100ms" in WORDS
    assert ranking.BUDGETS == (10e-6, 100e-6, 1e-3, 10e-3, 100e-3)
    assert len(ranking.FRONT) == 4
    statistics = " ".join((ROOT / "docs" / "statistics.md").read_text(encoding="utf-8").split())
    assert (
        f"{choosing.SELECTION_RUNS} replications select the strategies that satisfy `--max-stall`, {first} new ones "
        f"compare them, and {second - first} more follow" in statistics
    )


@pytest.mark.study
@pytest.mark.parametrize("name", ["choose", "choose-batch"])
def test_a_page_shows_what_the_command_prints(name, ask, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    line, shown = re.search(r"    simlib (choose.*)\n\nprints\n\n((?:    .*\n|\n)+)", page).groups()
    code, out, _ = ask(*line.split())
    assert code == 0
    assert textwrap.dedent(shown).strip() in out


def test_the_page_on_batches_has_the_simple_rules():
    page = (ROOT / "docs" / "choose-batch.md").read_text(encoding="utf-8")
    assert f"({', '.join(RULES.values())})" in page


def test_the_page_on_batches_defines_every_column(monkeypatch):
    monkeypatch.setattr(choosing, "SELECTION_RUNS", 3)
    monkeypatch.setattr(choosing, "LOOKS", (4, 5))
    case = Scenario.parse(
        {"guest": {"vcpus": 2, "memory": "1M", "backing": "4k"}, "policy": {"architecture": "x86-shadow-paging"},
         "workload": {"kind": "migration", "pass_limit": 1, "downtime": "0s", "warm_up": "10us"}}
    )  # fmt: skip
    choice = choose_batch(case)
    page = (ROOT / "docs" / "choose-batch.md").read_text(encoding="utf-8")
    objectives = {f"{name}_s" for name in OBJECTIVES}  # defined in choose.md
    columns = {*choice.batches.table.columns, *comparison_of_batches({"x86": choice}).columns} - objectives
    columns |= {*choice.batches.regrets.columns} - {"rule"}
    documented = {"architecture", "evidence", "matters", "certain", *re.findall(r"`(\w+)`", page)}
    assert not columns - documented
    assert {f"{name}_s" for name in ("stall", "p999", "clear", "guest_time_lost", "precopy")} <= set(
        re.findall(r"`(\w+)`", page)
    )
    rules = choice.batches.readable_regrets()
    assert rules["longest stall"].str.endswith("s").all()  # a stall beside each rule
    costs = choice.readable_costs()
    assert set(costs["unit"]) == {"ns", "ratio"}
    exact = choice.costs.set_index("cost")["value"]
    assert costs.set_index("cost").loc["fault_hold", "value"] == exact["fault_hold"] / 1000
    assert costs.set_index("cost").loc["fault_jitter", "value"] == exact["fault_jitter"]
