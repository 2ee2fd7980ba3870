# SPDX-License-Identifier: BSD-3-Clause
"""Uncertain costs: every cost that a program spends has a value and a source."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simlib._lib.errors import InputError
from simlib.analysis.predict import predict
from simlib.analysis.simulate import simulate
from simlib.measurements import data_dir
from simlib.measurements.fits import UncertainCosts, choose_fit, complete, describe_costs, load_fit
from simlib.model.architectures import ARCHITECTURES
from simlib.model.costs import UNUSED
from simlib.model.job import Job
from simlib.model.policies import BASELINE, POLICIES, apply
from simlib.model.scenario import Scenario
from simlib.simulator.workloads import KINDS, build

FITS = sorted(path.stem for path in (data_dir() / "fits").glob("*.json"))


def differs(first: Job, second: Job) -> bool:
    """True if the jobs differ in a field that an engine reads."""
    fields = (field.name for field in dataclasses.fields(Job) if field.name != "costs")
    return any(not np.array_equal(getattr(first, name), getattr(second, name)) for name in fields)


def built(kind: str, architecture: str, name: str = BASELINE, **changes: dict[str, object]) -> Scenario:
    """A small guest; raises `InputError` where this workload, architecture and policy do not go together."""
    tables: dict[str, dict[str, object]] = {
        "guest": {"vcpus": 2, "memory": "8M"}, "workload": {"kind": kind}, "policy": {"architecture": architecture},
    }  # fmt: skip
    small = {section: tables.get(section, {}) | changes.get(section, {}) for section in {**tables, **changes}}
    scenario = apply(Scenario.parse(small), name)
    build(scenario)
    return scenario


def everything(kind: str) -> list[Scenario]:
    """Every scenario of this workload that can be built, over all architectures and policies."""
    scenarios = []
    for architecture in ARCHITECTURES:
        for name in (BASELINE, *POLICIES):
            try:
                scenarios.append(built(kind, architecture, name))
            except InputError:
                continue
    return scenarios


@pytest.mark.parametrize("kind", KINDS)
def test_every_cost_that_a_program_spends_has_a_value_and_a_source(kind):
    """All policies, architectures and shipped fits."""
    scenarios = everything(kind)
    assert len(scenarios) > 10
    hosts = [(None, "", "")]
    for name in FITS:
        fit = load_fit(data_dir() / "fits" / f"{name}.json")
        hosts += [(fit, fit.scenario.host, group) for group in fit.estimate.groups() or {""}]
    for scenario in scenarios:
        for fit, host, group in hosts:
            try:
                case = scenario if fit is None else dataclasses.replace(scenario, host=host, cost_group=group)
            except InputError:  # this workload needs a clock that all CPUs share
                continue
            known = UncertainCosts.of(case, None if fit is None else fit.estimate)
            values, sources = known.central().costs.given(), known.sources()
            assert set(known.used) == set(sources) <= set(values)
            for cost, source in sources.items():
                assert source in ("given", "calibrated", "fixed") or len(known.priors[cost].source) > 3, cost


CASES = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(sorted(KINDS)),
        "architecture": st.sampled_from(sorted(ARCHITECTURES)),
        "name": st.sampled_from([BASELINE, *POLICIES]),
        "backing": st.sampled_from(["4k", "thp", "hugetlb_1gb"]),
        "initially_set": st.booleans(),
        "clear_when": st.sampled_from(["lazy", "at_once", "at_get", "ring"]),
        "parked": st.booleans(),
        "guest_runs": st.booleans(),
        "eager_split": st.booleans(),
        "interrupt": st.sampled_from(["0ns", "1us"]),
    }
)


@settings(max_examples=150)
@given(case=CASES)
def test_a_program_changes_with_the_costs_that_it_spends_and_with_no_other(case):
    """Each cost in turn is increased by a microsecond; ``Job.costs`` must be the costs that change the job."""
    kind = case["kind"]
    its = {"migration": "clear_when", "eager_split": "parked", "teardown": "guest_runs"}
    workload = {key: case[key] for key in ("initially_set", its.get(kind)) if key in case}
    memory = "2G" if case["backing"] == "hugetlb_1gb" else "8M"
    try:
        scenario = built(
            kind, case["architecture"], case["name"], guest={"backing": case["backing"], "memory": memory},
            workload=workload, policy={"eager_split": case["eager_split"]}, costs={"interrupt": case["interrupt"]},
        )  # fmt: skip
    except InputError:
        assume(False)
    whole = UncertainCosts.of(scenario).central()
    job = build(whole)
    moved = {
        name for name, value in whole.costs.given().items()
        if differs(job, build(whole.with_costs(**{name: value + (0.1 if name == "fault_jitter" else 1_000_000)})))
    }  # fmt: skip
    assert moved == set(job.costs)


@pytest.mark.parametrize("kind", KINDS)
def test_complete_and_uncertain_costs_build_the_same_programs(kind):
    """`run_scenario` uses `complete`, and `simulate` uses `UncertainCosts.central`."""
    for scenario in everything(kind)[::7]:
        assert not differs(build(complete(scenario)), build(UncertainCosts.of(scenario).central())), scenario


SMALL = Scenario.parse(
    {"guest": {"vcpus": 2, "memory_per_vcpu": "2M"}, "policy": {"architecture": "x86-shadow-paging"},
     "workload": {"initially_set": False}, "costs": {"fault_unlocked": "1us", "kick": "1us"}}
)  # fmt: skip


def test_costs_from_priors_widen_the_answer_and_are_refused_if_costs_must_be_exact():
    run = simulate(SMALL)
    known = run.known
    assert known is not None
    assert {"fault_hold", "clear_page", "enable_page"} <= set(known.drawn)
    assert not {"fault_unlocked", "kick", "zap_block"} & set(known.drawn)
    table = run.table()
    assert ((table["low"] <= table["value"]) & (table["value"] <= table["high"])).all()
    assert (table["high"] > table["low"])[table["metric"] == "dirty_memory_time"].all()
    for ask in (simulate, lambda scenario, unknown_costs: predict(scenario, [2], unknown_costs=unknown_costs)):
        with pytest.raises(InputError) as caught:
            ask(SMALL, unknown_costs="exact")
        assert str(caught.value).partition(": ")[0] == f"costs = {', '.join(known.drawn)}"


def test_with_every_cost_given_there_is_no_range():
    medians = UncertainCosts.of(SMALL).central()
    run, drawn = simulate(medians, unknown_costs="exact"), simulate(SMALL, unknown_costs="median")
    assert list(run.table()) == list(drawn.table()) == ["metric", "value", "unit"]
    assert run.metrics == drawn.metrics


def test_others_of_0_sets_every_cost_that_is_not_named():
    """Costs that are not named are 0: none is drawn, and none is reported as unused."""
    scenario = Scenario.parse({"costs": {"fault_unlocked": "1us", "fault_jitter": 0.2, "others": "0ns"}})
    costs = scenario.costs.given()
    assert list(costs) == list(UNUSED)
    assert {name: value for name, value in costs.items() if value} == {"fault_unlocked": 1_000_000, "fault_jitter": 0.2}
    assert UncertainCosts.of(scenario).drawn == ()
    with pytest.raises(InputError, match=r'costs\.others = 1ns: must be "0ns"; name each cost that is not 0'):
        Scenario.parse({"costs": {"others": "1ns"}})


def test_given_costs_that_are_not_used_are_reported():
    scenario = Scenario.parse({"policy": {"architecture": "x86-tdp"}, "costs": {"zap_block": "1us", "flush": "1us"}})
    assert describe_costs(UncertainCosts.of(scenario))[1:] == ("zap_block is not used: nothing is zapped",)


def test_costs_that_a_shipped_fit_lacks_come_from_priors():
    """Costs of a shipped fit are calibrated; those that it does not have are drawn."""
    scenario = Scenario.parse({"host": {"name": "lab-riscv"}, "policy": {"architecture": "riscv-spinlock"}})
    sources = UncertainCosts.of(scenario, choose_fit(scenario)[0]).sources()
    assert {"calibrated", "prior"} <= set(sources.values())
