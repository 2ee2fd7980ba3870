# SPDX-License-Identifier: BSD-3-Clause
"""Simulation of scenarios, and the tables of a run."""

from __future__ import annotations

import pytest

import simlib
from simlib import InputError, Scenario
from simlib.analysis.simulate import run_scenario
from simlib.measurements.fits import CostEstimate, find_fit

README = """
cost_group = "fixed test"
[host]
name = "ampere-altra"
[guest]
vcpus = 2
memory_per_vcpu = "4M"
memslot_aligned = false
[policy]
architecture = "arm64-2022"
"""


@pytest.fixture
def scenario_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(README)
    return path


def test_a_file_gets_the_shipped_costs_of_its_host(scenario_file):
    result = simlib.simulate(scenario_file)
    estimate = find_fit(simlib.load_scenario(scenario_file)).estimate
    assert result.raw == run_scenario(estimate.apply(simlib.load_scenario(scenario_file))).raw
    assert result.metrics["dirty_memory_time"] > 0
    assert result.flags[0].startswith("costs: the shipped fit for ampere-altra (arm64-dirty-memory-time")
    assert (
        simlib.simulate(str(scenario_file)).raw
        == simlib.simulate(simlib.load_scenario(scenario_file)).raw
        == result.raw
    )


def test_a_fit_may_be_a_file_a_fit_or_its_costs(scenario_file):
    fit = find_fit(simlib.load_scenario(scenario_file))
    path = simlib.measurements.data_dir() / "fits" / "ampere-altra.json"
    first, *others = (simlib.simulate(scenario_file, fit=given) for given in (fit, path, str(path), fit.estimate))
    assert isinstance(fit.estimate, CostEstimate)
    assert all(other.raw == first.raw for other in others)
    assert not any("shipped" in flag for flag in first.flags)


def test_missing_costs_are_refused_with_a_hint_for_python_if_costs_must_be_exact():
    with pytest.raises(InputError, match=r"scenario\.with_costs\(fault_hold=.*pass fit=") as caught:
        simlib.simulate(Scenario(), unknown_costs="exact")
    assert "--fit" not in str(caught.value)
    assert "give them under [costs], calibrate and pass --fit" in caught.value.cli_message()


def test_a_policy_and_vcpus_may_be_chosen(scenario_file):
    result = simlib.simulate(scenario_file, policy="loongarch-two-acquisitions", vcpus=3)
    assert (result.scenario.guest.vcpus, result.scenario.policy.architecture) == (3, "loongarch")
    assert any("it is assumed that they apply to loongarch" in flag for flag in result.flags)


def test_a_variant_is_named():
    scenario = Scenario.parse({"variants": {"a": {"guest": {"vcpus": 2}}}})
    with pytest.raises(InputError, match="variant = none: the scenario has variants; name one; known: a"):
        simlib.simulate(scenario)
    with pytest.raises(InputError, match="variant = b: the scenario has no variants"):
        simlib.simulate(Scenario(), variant="b")


def test_a_wrong_type_of_scenario_is_refused():
    with pytest.raises(InputError, match="scenario = dict: must be a Scenario or the path of a scenario file"):
        simlib.simulate({"guest": {}})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def contended():
    scenario = Scenario.parse(
        {
            "guest": {"vcpus": 8, "memory_per_vcpu": "2M"},
            "policy": {"architecture": "x86-shadow-paging"},
            "costs": {"fault_unlocked": "700ns", "fault_hold": "600ns", "line_transfer": "50ns"},
        }
    )
    return run_scenario(scenario)


def test_histograms_are_those_of_the_locks_table(contended):
    locks, tables = contended.locks().set_index(["lock", "mode"]), contended.tables()
    for what in ("wait", "hold"):
        result = tables[f"{what}_histogram"].groupby(["lock", "mode"])
        assert set(result.groups) == set(locks.index)
        for place, bins in result:
            row = locks.loc[place]
            assert bins["count"].sum() == row["acquisitions"]
            longest = bins["up_to_s"].max()
            assert longest / 2 <= row[f"{what}_max_s"] <= longest, (place, what)


def test_tables_agree_on_times(contended):
    tables, end_s = contended.tables(), contended.raw.end_ps * 1e-12
    row = contended.locks().set_index(["lock", "mode"]).loc["mmu_lock", "write"]  # nobody reads
    assert row["utilisation"] * end_s == pytest.approx(row["hold_s"], rel=0.01)
    passing_s = 50e-9 * row["acquisitions"]  # at most: the lock's line is on its way to one that no longer queues
    assert row["wait_s"] - 4 * passing_s <= row["mean_queue"] * end_s <= row["wait_s"]
    threads = tables["threads"]
    spent = threads[[name for name in threads if name.endswith("_s") and name != "end_s"]].sum(axis=1)
    assert spent.tolist() == pytest.approx(threads["end_s"].tolist())
    assert threads["end_s"].max() == pytest.approx(end_s)


def test_tables_over_time_hold_the_whole_run(contended):
    raw, tables = contended.raw, contended.tables()
    queue, pages = (tables[name] for name in ("queue_over_time", "progress_over_time"))
    queued_ps = queue.groupby("lock", sort=False)["queue"].sum() * raw.bin_ps
    assert queued_ps.tolist() == pytest.approx(raw.queue_ps.sum(axis=1).tolist())
    assert queued_ps.max() > raw.end_ps  # on the average, more than one vCPU waits
    assert pages.groupby("thread", sort=False)["pages"].sum().tolist() == raw.progress.sum(axis=1).tolist()
    for table in (queue, pages):
        assert table["time_s"].min() == pytest.approx(raw.bin_ps / 2 * 1e-12)
        assert abs(table["time_s"].max() - raw.end_ps * 1e-12) <= raw.bin_ps / 2 * 1e-12
