# SPDX-License-Identifier: BSD-3-Clause
"""Each workload owns its metrics: what it declares is what it measures."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from simlib.errors import InputError
from simlib.model import workload
from simlib.model.scenario import Scenario
from simlib.simulation import run_scenario
from simlib.workloads import KINDS, find_metric
from simlib.workloads.metrics import Metric

COSTS = {"fault_exit": "1us", "fault_hold": "500ns", "line_transfer": "20ns", "guest_access": "5ns",
         "clear_page": "10ns", "populate_block": "1us", "walk_entry": "5ns"}  # fmt: skip


def scenario(kind: str, **workload: object) -> Scenario:
    return Scenario.parse(
        {"guest": {"vcpus": 2, "memory_per_vcpu": "4M"}, "costs": {"clear_ioctl": "500ns"} | COSTS,
         "policy": {"architecture": "arm64" if kind == "teardown" else "x86-shadow-paging"},
         "workload": {"kind": kind, "warm_up": "100us", "downtime": "1us", "pass_limit": 2, "pause": "100us"}
         | workload}
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_workload_measures_what_it_declares(kind):
    found, declared = run_scenario(scenario(kind)).metrics, KINDS[kind].metrics
    assert set(found) == {metric.name for metric in declared}
    assert all(math.isfinite(value) for value in found.values())
    assert set(KINDS[kind].default) <= set(found)
    assert all(metric.definition.endswith(".") and metric.unit for metric in declared)
    assert {metric.memory for metric in declared} <= {"proportional", "same", "whole"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_phase_of_its_own_is_a_stamp(kind):
    phases = {stamp.phase for stamp in KINDS[kind].build(scenario(kind)).stamps}
    assert KINDS[kind].dirtying in {"", *phases}


def test_every_kind_of_a_scenario_is_a_workload():
    assert set(KINDS) == set(workload.KINDS)
    assert all((kind.curve is not None) == workload.KINDS[name].works_on for name, kind in KINDS.items())


@pytest.mark.parametrize("metric", ["dirty_memory_time", "clear_dirty_log_time"])
def test_iterations_add_up_to_the_sum(metric):
    run = run_scenario(scenario("dirty_log_perf_test", iterations=3))
    each = [run.value(f"{metric}[{i}]") for i in (1, 2, 3)]
    assert sum(each) == pytest.approx(run.value(metric))
    # Everything is dirty to begin with: the first iteration takes no fault.
    if metric == "dirty_memory_time":
        assert each[0] < 0.1 * each[1]


def test_one_iteration_scales_with_the_sample():
    whole, part = (
        run_scenario(scenario("dirty_log_perf_test"), pages_per_vcpu=pages).value("dirty_memory_time[2]")
        for pages in (None, 512)
    )
    assert part == pytest.approx(whole, rel=0.02)


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("dirty_log_perf_test", "dirty_memory_time[3]", r"the workload has iterations 1 to 2; ask for one of them"),
        ("dirty_log_perf_test", "dirty_memory_time[0]", r"the workload has iterations 1 to 2"),
        (
            "dirty_log_perf_test",
            "contentions[1]",
            r"has no iterations in dirty_log_perf_test; those that do: dirty_mem",
        ),
        ("dirty_log_perf_test", "dirty_memory_time[two]", r"must be a name, or a name with an iteration; write dirty_"),
        ("migration", "dirty_memory_time", r"migration has none of this name; .*known: clear_cpu_time, clear_flush"),
        ("zap", "precopy_duration", r"zap has none of this name; known: contentions, guest_throughput"),
    ],
)
def test_a_metric_that_is_not_there_is_a_sentence(kind, name, message):
    with pytest.raises(InputError, match=message):
        find_metric(scenario(kind), name)
    with pytest.raises(InputError, match=message):
        run_scenario(scenario(kind)).value(name)


def test_a_sampled_migration_says_nothing_of_a_single_stall(monkeypatch):
    monkeypatch.setattr("simlib.workloads.scaled.SAMPLE_PAGES", 1024)
    whole = scenario("migration", access="uniform", shared=True, clear_chunk="1M", link="5Gbit/s")
    run = run_scenario(whole, pages_per_vcpu=64)
    assert run.scale == 2
    assert "longest_stall" not in run.metrics
    assert run.metrics["precopy_duration"] == pytest.approx(run_scenario(whole).metrics["precopy_duration"], rel=0.15)
    with pytest.raises(InputError, match="a part of the memory does not tell it; simulate without pages_per_vcpu"):
        run.value("longest_stall")


def test_the_documentation_has_every_definition():
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    for name, kind in KINDS.items():
        section = text.partition(f"## {name}\n")[2].partition("\n## ")[0]
        rows = [line for line in section.splitlines() if line.startswith("| `")]
        assert rows == [documented(metric, metric.name in kind.default) for metric in kind.metrics]


def documented(metric: Metric, default: bool) -> str:
    """The row of docs/metrics.md."""
    name = f"`{metric.name}`" + (", `[i]`" if metric.rounds else "") + (" *" if default else "")
    return f"| {name} | {metric.unit} | {metric.definition} | {metric.memory} |"
