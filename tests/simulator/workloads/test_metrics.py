# SPDX-License-Identifier: BSD-3-Clause
"""Each workload owns its metrics: what it declares is what it measures."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from simlib._lib.errors import InputError
from simlib.analysis.simulate import SimulationResult, run_scenario
from simlib.model import workload
from simlib.model.scenario import Scenario
from simlib.simulator.engine.result import FAULTS, PS
from simlib.simulator.workloads import KINDS, find_metric
from simlib.simulator.workloads.cpu_time import cpu_metrics
from simlib.simulator.workloads.degradation import GUEST
from simlib.simulator.workloads.metrics import LOCKS, Metric

COSTS = {"fault_unlocked": "1us", "fault_hold": "500ns", "line_transfer": "20ns", "guest_access": "5ns",
         "clear_page": "10ns", "populate_block": "1us", "walk_entry": "5ns", "split_hold": "500ns",
         "lockless_page": "10ns", "others": "0ns"}  # fmt: skip


def scenario(kind: str, **workload: object) -> Scenario:
    return Scenario.parse(
        {"guest": {"vcpus": 2, "memory_per_vcpu": "4M"}, "costs": {"clear_ioctl": "500ns"} | COSTS,
         "policy": {"architecture": "arm64" if kind == "teardown" else "x86-shadow-paging"},
         "workload": {"kind": kind, "warm_up": "100us", "downtime": "1us", "pass_limit": 2, "pause": "100us"}
         | workload}
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_workload_measures_what_it_declares(kind):
    values, declared = run_scenario(scenario(kind)).metrics, KINDS[kind].metrics
    assert set(values) == {metric.name for metric in declared}
    assert all(math.isfinite(value) for value in values.values())
    assert set(KINDS[kind].default_metrics) <= set(values)
    assert all(metric.definition.endswith(".") and metric.unit for metric in declared)
    assert {metric.scaling for metric in declared} <= {"proportional", "same", "whole"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_dirtying_phase_is_a_stamp(kind):
    phases = {stamp.phase for stamp in KINDS[kind].build(scenario(kind)).stamps}
    assert KINDS[kind].dirtying_phase in {"", *phases}


def test_every_kind_of_a_scenario_is_a_workload():
    assert set(KINDS) == set(workload.KINDS)
    assert all((kind.curve is not None) == workload.KINDS[name].keeps_accessing for name, kind in KINDS.items())


@pytest.mark.parametrize("metric", ["dirty_memory_time", "clear_dirty_log_time"])
def test_iterations_add_up_to_the_sum(metric):
    run = run_scenario(scenario("dirty_log_perf_test", iterations=3))
    values = [run.value(f"{metric}[{i}]") for i in (1, 2, 3)]
    assert sum(values) == pytest.approx(run.value(metric))
    # Everything is dirty to begin with: the first iteration takes no fault.
    if metric == "dirty_memory_time":
        assert values[0] < 0.1 * values[1]


def test_one_iteration_scales_with_the_sample():
    whole, part = (
        run_scenario(scenario("dirty_log_perf_test"), pages_per_vcpu=pages).value("dirty_memory_time[2]")
        for pages in (None, 512)
    )
    assert part == pytest.approx(whole, rel=0.02)


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("dirty_log_perf_test", "dirty_memory_time[3]", r"the workload has iterations 1 to 2; select one of them"),
        ("dirty_log_perf_test", "dirty_memory_time[0]", r"the workload has iterations 1 to 2"),
        (
            "dirty_log_perf_test",
            "contentions[1]",
            r"has no iterations in dirty_log_perf_test; with iterations: dirty_mem",
        ),
        ("dirty_log_perf_test", "dirty_memory_time[two]", r"must be a name, or a name with an iteration; write dirty_"),
        (
            "migration",
            "dirty_memory_time",
            r"migration has no metric of this name; .*known: clear_cpu_time, clear_flush",
        ),
        ("zap", "precopy_duration", r"zap has no metric of this name; known: contentions, guest_throughput"),
    ],
)
def test_an_unknown_metric_is_refused(kind, name, message):
    with pytest.raises(InputError, match=message):
        find_metric(scenario(kind), name)
    with pytest.raises(InputError, match=message):
        run_scenario(scenario(kind)).value(name)


def test_a_sampled_migration_has_no_metrics_of_a_single_stall(monkeypatch):
    monkeypatch.setattr("simlib.simulator.workloads.scaled.SAMPLE_PAGES", 1024)
    whole = scenario("migration", access="uniform", shared=True, clear_chunk="1M", link="5Gbit/s")
    run = run_scenario(whole, pages_per_vcpu=64)
    assert run.scale == 2
    assert "longest_stall" not in run.metrics
    assert run.metrics["precopy_duration"] == pytest.approx(run_scenario(whole).metrics["precopy_duration"], rel=0.15)
    with pytest.raises(InputError, match="needs a run over all memory; simulate without pages_per_vcpu"):
        run.value("longest_stall")


def test_the_documentation_has_every_definition():
    """Metrics of several workloads are in a section of their own, to which the others link."""
    text = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")
    sections = dict(part.split("\n", 1) for part in text.split("\n## ")[1:])
    parts = [dataclasses.replace(metric, scaling="") for metric in cpu_metrics("", "")[1:]]
    shared = {"Every workload": [*LOCKS], "Dirty logging": parts, "A guest that runs": [*GUEST]}
    assert set(sections) == {*shared, *KINDS}
    rows_of = {
        title: [line for line in part.splitlines() if line.startswith("| `")] for title, part in sections.items()
    }
    for title, metrics in shared.items():
        assert rows_of[title] == [documented(metric) for metric in metrics], title
    for name, kind in KINDS.items():
        assert f"Default: {', '.join(f'`{metric}`' for metric in kind.default_metrics)}." in " ".join(
            sections[name].split()
        )
        links = {title for title in shared if f"(#{title.lower().replace(' ', '-')})" in sections[name]}
        links |= {"Every workload"}
        shared_rows = [row for title in links for row in rows_of[title]]
        rows = [
            documented(dataclasses.replace(entry, scaling="") if entry.name in PARTS else entry)
            for entry in kind.metrics
        ]
        assert sorted(rows) == sorted(rows_of[name] + shared_rows), name


def documented(metric: Metric) -> str:
    """The row of docs/metrics.md."""
    name = f"`{metric.name}`" + (" `[i]`" if metric.rounds else "")
    return f"| {name} | {metric.unit} | {metric.definition} |" + (f" {metric.scaling} |" if metric.scaling else "")


PARTS = ("enable_cpu_time", "clear_cpu_time", "fault_cpu_time")
LOGGED = {
    "dirty_log_perf_test": {},
    "clear_under_load": {"pause": "1ms"},
    "get_dirty_log": {"pause": "1ms", "access": "uniform", "shared": True},
    "eager_split": {"pause": "1ms"},
    "migration": {"access": "uniform", "shared": True, "clear_chunk": "4M", "link": "25Gbit/s"},
}
"""Workloads that log dirty pages."""

POLICIES = {
    "eager": {"eager_split": True},
    "on fault": {"eager_split": False},
    "write, every 64": {"architecture": "loongarch", "clear_batch_pages": 64},
    "read": {"architecture": "arm64", "clear_lock": "read"},
    "lockless": {"architecture": "x86-tdp", "clear_lock": "lockless"},
    "regions": {"lock_regions": 2},
}


def logged(kind: str, policy: dict[str, object], costs: dict[str, str] | None = None, **workload: object) -> Scenario:
    given = COSTS | {"enable_page": "10ns", "split_block": "10us", "flush": "5us", "flush_per_vcpu": "500ns",
                     "interrupt": "2us", "kick": "1us", "clear_word": "5ns", "reacquire": "100ns"}  # fmt: skip
    return scenario(kind).changed(
        {"guest": {"backing": "hugetlb_2mb", "vcpus": 4}, "policy": {"architecture": "x86-shadow"} | policy,
         "costs": given | (costs or {}), "workload": {"access_interval": "2us"} | LOGGED[kind] | workload}
    )  # fmt: skip


def picoseconds(run: SimulationResult, *names: str) -> int:
    return sum(round(run.metrics[name] / PS) for name in names)


WAYS = [
    *((kind, {"initially_set": given}) for kind in LOGGED for given in (True, False) if kind != "get_dirty_log"),
    ("get_dirty_log", {}), ("eager_split", {"parked": False}),
    ("migration", {"clear_when": "at_once"}), ("migration", {"clear_when": "at_get"}),
    ("migration", {"clear_when": "ring"}), ("migration", {"clear_threads": 2}),
    ("clear_under_load", {"clear_threads": 2}), ("clear_under_load", {"preempted_vcpus": 1}),
]  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("kind", "workload"), WAYS)
def test_the_sum_is_that_of_its_parts_and_no_time_is_missing(kind, workload, policy):
    """To the picosecond; and a vCPU's time is its accesses, its faults, and what is under way at both ends."""
    one_lock = {"lock_regions": 1} if kind == "eager_split" or workload.get("clear_when") == "ring" else {}  # no other
    run = run_scenario(logged(kind, POLICIES[policy] | one_lock, **workload))
    assert picoseconds(run, *PARTS) == picoseconds(run, "logging_cpu_time")
    assert all(run.metrics[name] >= 0 for name in PARTS)
    assert run.metrics["clear_cpu_time"] > 0
    if run.scenario.workload.keeps_accessing:
        stamps, vcpus = [stamp.phase for stamp in run.job.stamps], run.job.vcpus
        first, last = (stamps.index("undisturbed"), stamps.index("switchover") if kind == "migration" else -1)
        span = int(run.raw.stamp_ps[last] - run.raw.stamp_ps[first]) * PS
        accesses = int(run.raw.stamp_sums[last, -1] - run.raw.stamp_sums[first, -1])
        lost = vcpus * span - accesses * 2e-6
        assert run.metrics["fault_cpu_time"] == pytest.approx(lost, abs=vcpus * (2e-6 + 5e-6))


@pytest.mark.parametrize("preempted", [0, 2])
@pytest.mark.parametrize("kind", ["dirty_log_perf_test", "clear_under_load"])
def test_faults_are_all_that_the_guest_does_besides_its_accesses(kind, preempted):
    """Without a lock a fault takes its exit and its hold, however often the guest looks at its pages again."""
    free = dict.fromkeys(("line_transfer", "flush", "flush_per_vcpu", "interrupt", "kick"), "0ns")
    workload = {"preempted_vcpus": preempted, "iterations": 3} if kind == "clear_under_load" else {"iterations": 3}
    run = run_scenario(logged(kind, POLICIES["lockless"] | {"eager_split": True}, free, **workload))
    stamps = [stamp.phase for stamp in run.job.stamps]
    faults = run.raw.stamp_sums[-1, FAULTS] - run.raw.stamp_sums[stamps.index("populated"), FAULTS]
    assert faults.sum() > 1000
    assert faults.sum() == faults[1]
    retries = int(run.raw.lock_stats[:, :, 1].sum())
    under_way = run.job.vcpus if kind == "clear_under_load" else 0
    assert 0 <= faults.sum() + retries - run.metrics["fault_cpu_time"] / 1.5e-6 <= under_way
    quiet = run_scenario(
        logged(kind, POLICIES["lockless"], free | {"fault_unlocked": "0ns", "fault_hold": "0ns"}, **workload)
    )
    assert quiet.metrics["fault_cpu_time"] == 0


@pytest.mark.parametrize("when", ["lazy", "at_once"])
def test_work_that_only_moves_changes_no_total(when):
    """Splitting and write-protecting at enabling, or at the first CLEAR, of a guest that writes nothing."""
    nothing = ("line_transfer", "flush", "flush_per_vcpu", "interrupt", "kick", "clear_word", "clear_ioctl")
    idle = {"access_interval": "60s", "clear_when": when}
    early, late = (
        run_scenario(
            logged("migration", POLICIES["eager"], dict.fromkeys(nothing, "0ns"), initially_set=given, **idle)
        ).metrics
        for given in (False, True)
    )
    assert early["enable_cpu_time"] == pytest.approx(late["clear_cpu_time"])
    assert early["clear_cpu_time"] == late["enable_cpu_time"] == 0
    assert early["fault_cpu_time"] == late["fault_cpu_time"] == 0
    assert round(early["logging_cpu_time"] / PS) == round(late["logging_cpu_time"] / PS) > 0
    assert early["enable_time"] > late["enable_time"] == 0
