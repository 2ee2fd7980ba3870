# SPDX-License-Identifier: BSD-3-Clause
"""Choosing a batch: known answers, what the draws share, what rests on which evidence, a sentence for each fault."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections import defaultdict

import numpy as np
import pandas as pd
import pytest

from simlib.cli import main
from simlib.decision import (
    choice,
    choose_batch,
    closed_form,
    comparison,
    standard_architectures,
    standard_scenario,
    trials,
)
from simlib.decision.choice import CHECK, CHECK_RUNS, batches_below, pareto_front
from simlib.decision.priors import load_priors
from simlib.decision.trials import METRICS, Trials, objective_of
from simlib.decision.uncertainty import UncertainCosts, needed_costs
from simlib.errors import InputError
from simlib.fits import CostEstimate
from simlib.measurements import data_dir
from simlib.model.architectures import ARCHITECTURES
from simlib.model.costs import Costs
from simlib.model.scenario import Scenario

COSTS = {
    "fault_exit": "500ns", "fault_hold": "500ns", "split_hold": "500ns", "line_transfer": "20ns", "line_local": "5ns",
    "clear_page": "50ns", "clear_word": "50ns", "clear_ioctl": "1us", "reacquire": "20ns", "flush": "1us",
    "flush_per_vcpu": "100ns", "kick": "500ns", "fault_jitter": 0.3,
}  # fmt: skip
WRITE = {"write_protect_fault": "write", "translation_fault": "write"}
READ = {"write_protect_fault": "read", "translation_fault": "read"}


def scenario(policy=None, costs=None, guest=None, **workload):
    """A guest of 1024 pages that are mapped one by one: four batches and the whole ioctl."""
    return Scenario.parse(
        {
            "guest": {"vcpus": 8, "memory": "4M", "backing": "4k"} | (guest or {}),
            "policy": {"architecture": "x86-shadow"} | (policy or {}),
            "workload": {"kind": "migration", "pass_limit": 2, "downtime": "0ps", "warm_up": "50us",
                         "access": "uniform", "shared": True} | workload,
            "costs": COSTS | (costs or {}),
        }
    )  # fmt: skip


def vague(**changes):
    """The same guest where nothing is known of the costs."""
    return dataclasses.replace(scenario(WRITE, guest={"vcpus": 4, "memory": "1M"}, **changes), costs=Costs())


@pytest.fixture
def short(monkeypatch):
    """Fewer replications, where it is not their number that is tested."""
    for name in ("PILOT_RUNS", "FIRST_RUNS", "CHECK_RUNS"):
        monkeypatch.setattr(choice, name, 6)


def test_where_faults_take_no_lock_the_batch_does_not_matter():
    found = choose_batch(scenario())
    assert not found.matters
    assert found.as_good == (64, 1024)
    assert found.sentence.startswith(
        "it does not matter: any batch from 64 pages to the whole ioctl is as good (within"
    )
    assert found.closed_form.case is None
    assert found.evidence == "costs given by hand"
    assert (found.regrets["share"].abs() < 0.01).all()


def test_where_letting_go_is_dear_the_whole_ioctl_needs_least_time_for_clear():
    """Sixteen times 10 us in each of two passes, against 51 us of work each."""
    found = choose_batch(scenario(WRITE, {"reacquire": "10us"}), objective="clear")
    assert (found.recommended, found.as_good) == (0, (1024, 1024))
    assert found.sentence.startswith("recommended the whole ioctl; no other batch was found as good")
    regrets = found.regrets.set_index("rule")
    assert regrets.loc["whole ioctl", "regret_s"] == 0
    assert regrets.loc["every 64 pages", "regret_s"] > 2 * 15 * 10e-6
    assert regrets.loc["every 64 pages", "low_s"] > found.zone
    assert found.law.endswith("simulation confirms it")


def test_where_many_readers_wait_for_long_holds_a_small_batch_costs_least():
    """Holds of 64 pages are short beside the 20 us between two accesses, that of 4096 pages is twenty times as long."""
    found = choose_batch(scenario(READ, {"clear_page": "100ns"}, {"memory": "16M"}, access_interval="20us",
                                  link="100Gbit/s"))  # fmt: skip
    assert found.recommended == 64
    assert not found.exhausted
    assert found.table["difference_low_s"].iloc[1:].min() > found.zone
    assert found.table["difference_s"].is_monotonic_increasing
    assert found.closed_form.batch == 64


def test_a_longest_stall_leaves_out_long_holds():
    case = scenario(WRITE, {"reacquire": "10us"})
    found = choose_batch(case, objective="clear", max_stall_s=40e-6)
    assert found.recommended == 512
    assert found.table["allowed"].tolist() == [True] * 4 + [False]
    assert found.table["replications"].iloc[-1] == 0
    assert not found.table["as_good"].iloc[-1]
    with pytest.raises(
        InputError, match=r"longest stall allowed = 1us: no batch keeps to it with 90%: the least, of 64"
    ):
        choose_batch(case, max_stall_s=1e-6)


def test_alternatives_of_a_replication_share_costs_and_seed(monkeypatch, short):
    """Common random numbers: within a replication only the batch differs, between two everything does."""
    seen = defaultdict(list)

    def spy(case, *, seed):
        seen[seed].append(case)
        return original(case, seed=seed)

    original = trials.run_scenario
    monkeypatch.setattr(trials, "run_scenario", spy)
    found = choose_batch(vague())
    assert len(seen) >= 18
    assert len({cases[0].costs for cases in seen.values()}) == len(seen)
    for cases in seen.values():
        assert len({case.costs for case in cases}) == 1
        assert len({case.policy.lets_go for case in cases}) == len(cases)
        assert {dataclasses.replace(case.policy, lets_go="never") for case in cases} == {vague().policy}
    assert found.table["batch_pages"].tolist() == [64, 128, 0]


def test_the_seed_alone_decides(monkeypatch, short):
    """Not how many run at a time, nor which batch the scenario's own policy has."""
    monkeypatch.setattr(trials.os, "cpu_count", lambda: 1)
    one = choose_batch(vague(), seed=3)
    monkeypatch.setattr(trials.os, "cpu_count", lambda: 5)
    own = dataclasses.replace(vague().policy, lets_go="pages >= 128")
    five = choose_batch(dataclasses.replace(vague(), policy=own), seed=3)
    pd.testing.assert_frame_equal(one.table, five.table)
    other = choose_batch(vague(), seed=4)
    assert (other.table["objective_s"] != one.table["objective_s"]).all()


def test_regrets_come_from_replications_that_the_selection_did_not_see(monkeypatch):
    used = defaultdict(list)

    class Spy(Trials):
        def run(self, stage, numbers, alternatives, progress=None):
            used[stage] += [self.drawn(stage, number)[1] for number in numbers]
            return super().run(stage, numbers, alternatives, progress)

    monkeypatch.setattr(choice, "Trials", Spy)
    found = choose_batch(vague())
    seeds = [set(used[stage]) for stage in (choice.PILOT, choice.SELECTION, CHECK)]
    assert [len(s) for s in seeds] == [8, found.table["replications"].max(), CHECK_RUNS]
    assert len(set.union(*seeds)) == sum(len(s) for s in seeds)

    fresh = Trials(UncertainCosts.of(vague()), [64, 128, 0], found.seed).run(CHECK, range(CHECK_RUNS), range(3))
    values = objective_of(fresh, "cost", 1.0, 4)
    best = found.table["batch_pages"].tolist().index(found.recommended)
    expected = [(values[:, i] - values[:, best]).mean() for i in (2, 0, 2)]  # a huge page is more than all of it
    assert found.regrets["regret_s"].tolist() == pytest.approx(expected, abs=1e-15)
    assert found.regrets["share"].tolist() == pytest.approx(np.array(expected) / values[:, best].mean())


def test_without_enough_replications_there_is_no_guarantee(short):
    found = choose_batch(vague(), zone=1e-5, limit=6)
    assert found.exhausted
    assert found.sentence.endswith("the selection has no guarantee: it ran out of replications")
    assert "after 6 replications the rest was not separated: no guarantee" in found.flags
    assert found.to_dict()["guarantee"] is False


def test_the_front_holds_what_nothing_beats():
    frame = pd.DataFrame({"a": [1, 2, 3, 3, 2, 2], "b": [3, 2, 1, 2, 2, 3], "c": [1, 1, 1, 0, 1, 1]})
    assert pareto_front(frame, ["a", "b", "c"]) == [True, True, True, True, True, False]


def test_batches_double_below_the_chunk():
    assert batches_below(64) == [0]
    assert batches_below(320) == [64, 128, 256, 0]


def test_one_word_leaves_no_choice(short):
    found = choose_batch(vague(clear_chunk="256K"))
    assert found.table["batch_pages"].tolist() == [0]
    assert found.regrets["regret_s"].tolist() == [0, 0, 0]


def test_every_cost_has_a_prior_with_its_source():
    published = {path.stem for path in (data_dir() / "published").glob("*.csv")}
    bounds = {f.name: f.metadata["bounds"] for f in dataclasses.fields(Costs)}
    for name in ARCHITECTURES:
        priors = load_priors(name)
        assert list(priors) == list(bounds)
        for cost, prior in priors.items():
            low, high = bounds[cost]
            assert prior.median == 0 or low <= prior.median / prior.factor
            assert prior.median * prior.factor <= high
            assert set(prior.tables) <= published
            assert len(prior.source) > 3
            if not prior.tables:
                assert prior.source.startswith("assumed")
                assert prior.factor >= 2 or prior.median == 0


def test_draws_follow_prior_and_calibration():
    """Ninety per cent lie within the interval; calibrated costs move together; given ones do not move."""
    names = ("fault_exit", "fault_hold")
    known = CostEstimate(names, np.log([800e3, 500e3]), np.array([[4e-4, -3.8e-4], [-3.8e-4, 4e-4]]), 6, 0.02, {})
    case = Scenario.parse({"policy": {"architecture": "loongarch"}, "costs": {"reacquire": "60ns"}})
    costs = UncertainCosts.of(case, known)
    draws = [Trials(costs, [0], 1).drawn(0, number)[0].costs for number in range(2000)]
    frame = pd.DataFrame([draw.given() for draw in draws])
    assert (frame["reacquire"] == 60e3).all()
    prior = costs.priors["clear_page"]
    inside = frame["clear_page"].between(prior.median / prior.factor, prior.median * prior.factor)
    assert inside.mean() == pytest.approx(0.9, abs=0.02)
    logs = np.log(frame[list(names)])
    assert np.corrcoef(logs.T)[0, 1] == pytest.approx(-0.95, abs=0.02)
    assert logs["fault_exit"].std() == pytest.approx(0.02 * np.sqrt(6 / 4), rel=0.1)  # of a t with six degrees
    assert costs.evidence == "partly calibrated: faults only"


def test_a_prior_replaces_what_a_fit_leaves_open():
    open_ended = CostEstimate(("fault_exit", "clear_page"), np.log([800e3, 50e3]), np.diag([16.0, 1e-4]), 2, 0.02, {})
    costs = UncertainCosts.of(Scenario.parse({"policy": {"architecture": "x86-tdp"}}), open_ended)
    sources = costs.sources()
    assert (sources["fault_exit"], sources["clear_page"]) == ("prior", "calibrated")
    assert costs.evidence == "partly calibrated"
    row = costs.table().set_index("cost").loc["fault_exit"]
    assert (row["value"], row["high"]) == (700e3, 1400e3)


@pytest.mark.parametrize("name", standard_architectures())
def test_the_standard_guest_runs_on_every_architecture_with_all_its_costs(name):
    case = standard_scenario(name).changed({"guest": {"memory": "32M"}})
    drawn, seed = Trials(UncertainCosts.of(case), [64, 0], 1).drawn(0, 0)
    assert set(needed_costs(case)) <= set(drawn.costs.given())
    values = Trials(UncertainCosts.of(case), [64, 0], 1).run(0, [0], [0, 1])
    assert np.isfinite(values).all()
    assert (values[0, :, METRICS.index("clear_cpu_time")] > 0).all()
    assert seed > 0


def test_what_rests_on_facts_alone_says_so(short):
    """And POWER, which neither faults on write-protected pages nor has CLEAR, is answered as if it did."""
    power = standard_scenario("ppc-radix", vcpus=2).changed({"guest": {"memory": "4M"}})
    arm64 = standard_scenario("arm64", vcpus=2).changed({"guest": {"memory": "4M"}})
    choices = {"ppc-radix": choose_batch(power), "arm64": choose_batch(arm64)}
    flags = choices["ppc-radix"].flags
    assert "ppc-radix rests on facts alone: no cost that decides was calibrated" in flags[0]
    assert any("as if write_protect_fault were 'write': POWER" in flag for flag in flags)
    assert "that they hold for arm64 is assumed" in choices["arm64"].flags[1]
    table = comparison(choices).set_index("architecture")
    assert table["evidence"].tolist() == ["facts alone", "partly calibrated: faults only"]
    assert table.loc["arm64", "word_share"] == choices["arm64"].regrets["share"].iloc[1]


def test_the_law_sees_the_scenario_as_documented():
    """16384 pages, 8 vCPUs that access one every 10 us: cleared pages are written again within 20 ms."""
    case = closed_form.batching(scenario(READ, {"reacquire": "60ns", "clear_word": "320ns"}, {"memory": "64M"},
                                         access_interval="10us", link="1Mbit/s"))  # fmt: skip
    x = 16384 * 55e-9 / (16384 * 10e-6 / 8)
    share = (1 - (1 - np.exp(-x)) / x) / x
    assert case.pages == 16384
    assert case.work == pytest.approx(55e-9)
    assert case.reacquire == pytest.approx(100e-9)
    assert (case.service, case.drain) == pytest.approx((40e-9, 500e-9))
    assert case.think == pytest.approx(10e-6 / share + 500e-9)
    exclusive = closed_form.batching(scenario(WRITE | {"fault_lock_sections": 2}))
    assert (exclusive.service, exclusive.drain) == pytest.approx((580e-9, 0))
    slow = closed_form.batching(scenario({"translation_fault": "read"}, slow_fault_every=100, access_interval="1us"))
    assert slow.think == pytest.approx(100.5e-6)


def test_a_loongarch_fault_of_a_write_protected_page_takes_the_lock_once():
    """Other faults take it twice there (kvm_map_page); this one if the policy says so (kvm_map_page_fast)."""
    own, twice = (
        closed_form.batching(scenario({"architecture": "loongarch", "fault_lock_sections": n})) for n in (0, 2)
    )
    assert own.service == pytest.approx(500e-9 + 2 * 20e-9)
    assert twice.service == pytest.approx(500e-9 + 4 * 20e-9)


def test_slow_faults_invalidate_nothing():
    policy, costs = {"architecture": "arm64-2022", "translation_fault": "read"}, {"tlb_invalidate": "300ns"}
    without = closed_form.batching(scenario(policy, costs))
    mixed = closed_form.batching(scenario(policy, costs, slow_fault_every=10))
    assert without.service == pytest.approx(340e-9)
    assert 40e-9 < mixed.service < 340e-9


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [({"kind": "dirty_log_perf_test"}, {}, 'dirty_log_perf_test: a batch is chosen for a migration; write kind = "mig'),
     ({"clear_when": "at_get"}, {}, r"clear_when = at_get: GET clears the whole slot in one hold: there is no batch"),
     ({"downtime": "1s"}, {}, "downtime = 1s: all of the memory can be sent within it, .* shorten it"),
     ({}, {"objective": "costs"}, "objective = costs: unknown objective; did you mean 'cost'"),
     ({}, {"zone": 0.0}, "zone = 0.0: must lie between 0 and 1"),
     ({}, {"weight": -1.0}, "weight = -1.0: must be finite and at least 0"),
     ({}, {"max_stall_s": 0.0}, "max_stall_s = 0.0: must be finite and above 0"),
     ({}, {"confidence": 1.0}, "confidence = 1.0: must lie between"),
     ({}, {"seed": -1}, "seed = -1: must be at least 0")],
)  # fmt: skip
def test_a_sentence_for_each_fault(change, options, message):
    with pytest.raises(InputError, match=message):
        choose_batch(scenario(**change), **options)


def command(capsys, *arguments):
    """Exit code, stdout, stderr of ``simlib choose-batch``."""
    code = 0
    try:
        main(["choose-batch", *map(str, arguments)])
    except SystemExit as end:
        code = int(end.code or 0)
    out = capsys.readouterr()
    return code, out.out, out.err


def test_the_command_gives_the_same_in_all_forms(capsys, tmp_path, short):
    file = tmp_path / "mine.toml"
    file.write_text(scenario(WRITE).to_toml())
    options = (file, "--memory", "1M", "--vcpus", 4, "--write-interval", "2us", "--objective", "clear")
    code, text, messages = command(capsys, *options, "--format", "json", "--out", tmp_path / "out")
    result = json.loads(text)
    assert code == 0
    assert "written to" in messages
    assert json.loads((tmp_path / "out" / "choose-batch.json").read_text()) == result
    table = pd.read_csv(tmp_path / "out" / "alternatives.csv")
    assert table["objective_s"].tolist() == pytest.approx([row["objective_s"] for row in result["alternatives"]])
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "alternatives.csv", "choose-batch.json", "costs.csv", "regrets.csv"]  # fmt: skip
    asked = Scenario.parse(tomllib.loads(result["scenario"]))
    assert (asked.guest.vcpus, asked.workload.access_interval) == (4, 2_000_000)

    code, text, _ = command(capsys, *options)
    assert code == 0
    assert text.splitlines()[0] == result["sentence"]
    assert "every 64 pages" in text


def test_all_architectures_in_one_table(capsys, tmp_path, short):
    code, text, messages = command(capsys, "--all", "--memory", "2M", "--vcpus", 1, "--out", tmp_path)
    table = pd.read_csv(tmp_path / "architectures.csv")
    choices = json.loads((tmp_path / "choose-batch.json").read_text())
    assert code == 0
    assert table["architecture"].tolist() == list(choices) == list(standard_architectures())
    assert table["evidence"].tolist() == [choice["evidence"] for choice in choices.values()]
    assert {"facts alone", "partly calibrated: faults only"} <= set(table["evidence"])
    rows = {line.split()[0]: line for line in text.splitlines()[1:]}
    assert list(rows) == list(choices)
    assert "whole" in rows["x86-tdp"]
    assert "512" not in rows["x86-tdp"]  # all of the chunk goes by that name
    assert "simlib: ppc-radix: as if write_protect_fault were 'write'" in messages


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((), "choose-batch = nothing: give one of SCENARIO.toml, --architecture NAME, --all"),
     (("--all", "--architecture", "arm64"), "choose-batch = --architecture --all: give one of"),
     (("--architecture", "arm46"), "policy.architecture = arm46: unknown architecture; did you mean 'arm64'"),
     (("--architecture", "s390"), "policy.lock = default: s390 does not take mmu_lock here"),
     (("--architecture", "arm64", "--chunk", "1G"), "clear_chunk = 1G: is larger than the guest's memory of 128M"),
     (("--architecture", "arm64", "--link", "0Gbit/s"), "--link = 0Gbit/s: must be at least 1 bit/s"),
     (("--architecture", "arm64", "--max-stall", "soon"), "--max-stall = soon: a duration needs a unit")],
)  # fmt: skip
def test_the_command_names_each_fault(capsys, arguments, message):
    code, text, messages = command(capsys, *arguments)
    assert (code, text) == (2, "")
    assert message in messages
