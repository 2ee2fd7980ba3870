# SPDX-License-Identifier: BSD-3-Clause
"""Choosing a strategy: known answers, what the draws share, what the guarantee covers, a sentence for each fault."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import tomllib
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from simlib._lib import parallel
from simlib._lib.errors import InputError
from simlib._lib.reading import read_toml
from simlib.analysis.choose import (
    OBJECTIVES,
    Choice,
    choice,
    choose,
    choose_batch,
    closed_form,
    comparison,
    comparison_of_batches,
    grid,
    guests,
    information,
    preset_architectures,
    preset_scenario,
    trials,
    with_guest,
)
from simlib.analysis.choose.batch import batches_below
from simlib.analysis.choose.choice import CHECK, LOOKS, SELECTION, SELECTION_RUNS
from simlib.analysis.choose.evidence import fit_of, grounds
from simlib.analysis.choose.information import value_of_information
from simlib.analysis.choose.objectives import METRICS, objective
from simlib.analysis.choose.ranking import BUDGETS, FRONT, Ranking, Terms, knee, pareto_front
from simlib.analysis.choose.strategies import (
    Strategy,
    patched_kernel_strategies,
    stock_kernel_strategies,
    strategies_of,
    tracking_strategies,
)
from simlib.analysis.choose.trials import Trials
from simlib.analysis.predict import predict
from simlib.measurements import data_dir, load
from simlib.measurements.fits import BOUNDS, CostEstimate, UncertainCosts, find_fit, load_priors
from simlib.model.architectures import ARCHITECTURES
from simlib.model.costs import Costs
from simlib.model.scenario import Scenario
from simlib.simulator.sampling import why_not
from simlib.simulator.workloads import build

COSTS = {
    "fault_unlocked": "500ns",
    "fault_hold": "500ns",
    "split_hold": "500ns",
    "line_transfer": "20ns",
    "line_local": "5ns",
    "clear_page": "50ns",
    "clear_word": "50ns",
    "clear_ioctl": "1us",
    "reacquire": "20ns",
    "flush": "1us",
    "flush_per_vcpu": "100ns",
    "kick": "500ns",
    "fault_jitter": 0.3,
}
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


def vague(policy=None, **changes):
    """A guest of 256 pages where nothing is known of the costs."""
    case = scenario(WRITE | (policy or {}), guest={"vcpus": 4, "memory": "1M"}, **changes)
    return dataclasses.replace(case, costs=Costs())


@pytest.fixture
def short(monkeypatch):
    """Fewer replications, where it is not their number that is tested."""
    monkeypatch.setattr(choice, "SELECTION_RUNS", 4)
    monkeypatch.setattr(choice, "LOOKS", (6, 8))


def of(found, name):
    """What was answered for one objective."""
    return found.answers.set_index("objective").loc[name]


def test_where_faults_take_no_lock_the_batch_does_not_matter():
    found = choose_batch(scenario())
    assert not found.matters
    assert found.certain
    assert found.equivalent == (64, 1024)
    assert found.sentence.startswith(
        "it does not matter; any batch from 64 pages to the whole ioctl is as good (within"
    )
    assert found.closed_form.case is None
    assert found.evidence == "costs given by hand"
    assert (found.regrets["share"].abs() < 0.01).all()
    assert found.choice.answers["any_is_as_good"].all()
    assert found.choice.runs == (SELECTION_RUNS, LOOKS[0])  # one look was enough
    assert found.choice.information.empty  # all costs are known
    assert found.choice.how == "whole"


def test_where_letting_go_is_dear_the_whole_ioctl_needs_least_time_for_clear():
    """Sixteen times 10 us in each of two passes, against 51 us of work each."""
    found = choose_batch(scenario(WRITE, {"reacquire": "10us"}), objective="clear")
    assert (found.recommended, found.equivalent, found.certain) == (0, (1024, 1024), True)
    assert found.sentence.startswith("recommended the whole ioctl; no other batch was found as good")
    regrets = found.regrets.set_index("rule")
    assert regrets.loc["whole ioctl", "regret_s"] == 0
    assert regrets.loc["every 64 pages", "regret_s"] > 2 * 15 * 10e-6
    assert regrets.loc["every 64 pages", "low_s"] > of(found.choice, "clear")["indifference_s"]
    assert found.law.endswith("simulation agrees: it is among the batches that are as good")
    batch = found.closed_form.batch
    for factor, said in ((1.9, "(square-root law: "), (2.1, "(not the square-root law's")):
        for root in (batch / factor, batch * factor):
            law = dataclasses.replace(found.closed_form, square_root=root)
            assert said in dataclasses.replace(found, closed_form=law).law


def test_where_many_readers_wait_for_long_holds_a_small_batch_costs_least():
    """Holds of 64 pages are short beside the 20 us between two accesses, that of 4096 pages is twenty times as long."""
    found = choose_batch(scenario(READ, {"clear_page": "100ns"}, {"memory": "16M"}, access_interval="20us",
                                  link="100Gbit/s"))  # fmt: skip
    assert found.recommended == 64
    assert found.certain
    assert found.table["difference_low_s"].iloc[1:].min() > of(found.choice, "cost")["indifference_s"]
    assert found.table["difference_s"].is_monotonic_increasing
    pairs = found.choice.pairs
    assert (pairs["low_s"] < pairs["value_s"]).all()
    assert pairs["high_s"].tolist() == pytest.approx((2 * pairs["value_s"] - pairs["low_s"]).tolist())
    assert found.closed_form.batch == 64
    assert found.choice.take("cost") == found.choice.take("guest_time_lost") == "every-64"
    assert found.choice.take("clear") == "whole-ioctl"  # what one run answers of all objectives


def test_a_longest_stall_leaves_out_long_holds(short):
    case = scenario(WRITE, {"reacquire": "10us"})
    found = choose_batch(case, objective="clear", max_stall_s=40e-6)
    assert found.recommended == 512
    assert found.table["allowed"].tolist() == [True] * 4 + [False]
    assert not found.table["equivalent"].iloc[-1]
    bounds = found.table["stall_bound_s"]
    assert bounds.iloc[-1] > 1024 * 50e-9 > 40e-6 > bounds.iloc[-2]
    assert "whole-ioctl" not in {*found.choice.answers["take"], *found.choice.budgets["take"]}
    assert not any("whole-ioctl" in good for good in found.choice.answers["equivalent"])
    assert found.choice.readable()["strategy"].iloc[-1] == "whole-ioctl (as it is, stalls too long)"
    with pytest.raises(
        InputError,
        match=r"longest stall allowed = 1us: no strategy keeps to it with 90%: the least, every-64, needs .*us",
    ):
        choose_batch(case, max_stall_s=1e-6)


def test_a_small_chunk_does_not_let_the_whole_ioctl_keep_to_a_bound(short):
    """A whole ioctl of 1 MiB is 256 pages; QEMU's next one has all 1024, which stall for longer than is allowed."""
    case = scenario(WRITE, {"reacquire": "10us"}, clear_chunk="1M")
    found = choose_batch(case, objective="clear", max_stall_s=40e-6)
    table = found.table.set_index("batch_pages")
    assert table.loc[0, "stall_s"] < 40e-6 < table.loc[0, "stall_bound_s"]
    assert table["allowed"].tolist() == [True, True, False]
    assert found.recommended == 128
    assert "whole-ioctl" not in {*found.choice.answers["take"], *found.choice.budgets["take"][:2]}
    large = choose_batch(scenario(WRITE, {"reacquire": "10us"}), objective="clear").table.set_index("batch_pages")
    assert table.loc[0, "stall_bound_s"] == pytest.approx(large.loc[0, "stall_bound_s"], rel=0.2)
    assert found.flags[0].startswith("bounds of the longest stall are those of CLEARs of 4 MiB, which QEMU makes")


def test_a_chunk_of_qemus_size_is_not_widened():
    wide = scenario(guest={"memory": "4G"}, clear_chunk="2G")
    assert closed_form.at_qemu_chunk(wide) == wide
    shifts = load("qemu-clear-chunk-defaults").frame.set_index("posting")["shift_bits"]
    assert 4096 << int(shifts["pull-2019-07-12"]) == closed_form.QEMU_CHUNK


def test_what_is_not_allowed_is_advised_nowhere(short):
    """Neither as a knee, nor as what another cost would make better."""
    limit = choose(vague({"eager_split": False}), strategies=["every-64", "every-128", "whole-ioctl"]).table
    limit = limit.set_index("strategy")["stall_bound_s"].drop("whole-ioctl").max()
    found = choose(vague(), strategies=["every-64", "every-128", "whole-ioctl"], max_stall_s=limit * 1.000001)
    assert found.table["allowed"].tolist() == [True, True, False]
    assert found.knee in ("every-64", "every-128")
    assert "whole-ioctl" not in set(found.information["switches_to"])
    take = found.answers.set_index("objective")["take"]
    assert (found.information["switches_to"] != take[found.information["objective"]].to_numpy()).all()


def test_strategies_of_a_replication_share_costs_and_seed(monkeypatch, short):
    """Common random numbers: within a replication only the strategy differs, between two everything does."""
    seen = defaultdict(list)

    def spy(case, *, seed, progress):
        seen[seed].append(case)
        return original(case, seed=seed, progress=progress)

    original = trials.run_scenario
    monkeypatch.setattr(trials, "run_scenario", spy)
    found = choose_batch(vague())
    assert len(seen) == sum(found.choice.runs)
    assert len({cases[0].costs for cases in seen.values()}) == len(seen)
    for cases in seen.values():
        assert len({case.costs for case in cases}) == 1
        assert {str(case.policy.clear_drop_when) for case in cases} == {"pages >= 64", "pages >= 128", "never"}
        assert {dataclasses.replace(case.policy, clear_drop_when="never") for case in cases} == {vague().policy}
    assert found.table["batch_pages"].tolist() == [64, 128, 0]


def test_the_seed_alone_decides(monkeypatch, short):
    """Not how many run at a time, nor in which order, nor which batch the scenario's own policy has.

    The latter is what is kept of batches that are as good, so that differences may be to another one.
    """
    monkeypatch.setattr(choice, "may_be_settled", lambda *_: False)  # what is selected first decides how often it looks
    monkeypatch.setattr(parallel, "cpus", lambda: 1)
    one = choose_batch(vague(), seed=3)
    monkeypatch.setattr(parallel, "cpus", lambda: 5)
    pd.testing.assert_frame_equal(one.table, choose_batch(vague(), seed=3).table)
    owns = choose_batch(vague({"clear_drop_when": "pages >= 128"}), seed=3).table
    simulated = ["batch_pages", "objective_s", "low_s", "high_s", *(f"{name}_s" for name in OBJECTIVES)]
    pd.testing.assert_frame_equal(one.table[simulated], owns[simulated])
    other = choose_batch(vague(), seed=4)
    assert (other.table["objective_s"] != one.table["objective_s"]).all()
    turned = choose(vague(), strategies=["whole-ioctl", "every-128", "every-64"], seed=3)
    means = [f"{name}_s" for name in OBJECTIVES] + ["stall_bound_s"]
    pd.testing.assert_frame_equal(turned.table[means].iloc[::-1].reset_index(drop=True), one.choice.table[means])


def test_what_is_printed_comes_from_all_replications_of_which_none_is_used_twice(monkeypatch):
    used = defaultdict(list)

    class Spy(Trials):
        def run(self, stage, numbers, what="", progress=None):
            if what != "trying one":  # which compiles
                used[stage] += [self.drawn(stage, number)[1] for number in numbers]
            return super().run(stage, numbers, what, progress)

    monkeypatch.setattr(choice, "Trials", Spy)
    monkeypatch.setattr(choice, "LOOKS", (12, 16))
    monkeypatch.setattr(choice, "may_be_settled", lambda *_: True)
    found = choose_batch(vague(), indifference=1e-6)
    assert found.choice.runs == (SELECTION_RUNS, 16)
    assert [len(used[stage]) for stage in (SELECTION, CHECK)] == [SELECTION_RUNS, 16]
    assert len({*used[SELECTION], *used[CHECK]}) == SELECTION_RUNS + 16

    again = Trials(UncertainCosts.of(vague()), found.choice.strategies, 1)
    drawn = np.concatenate([again.run(SELECTION, range(SELECTION_RUNS)), again.run(CHECK, range(16))])
    values = objective("cost").value(drawn, 4, 1.0)
    best = found.table["batch_pages"].tolist().index(found.recommended)
    assert found.table["objective_s"].tolist() == pytest.approx(values.mean(axis=0))
    expected = [(values[:, i] - values[:, best]).mean() for i in (2, 0, 2)]  # a huge page is more than all of it
    assert found.regrets["regret_s"].tolist() == pytest.approx(expected, abs=1e-15)
    assert found.regrets["share"].tolist() == pytest.approx(np.array(expected) / values[:, best].mean())


def test_strategies_that_come_to_the_same_are_compared_once():
    case = scenario(WRITE | {"clear_drop_when": "pages >= 64"})
    names = [
        "every-64",
        "baseline",
        "pages >= 64",
        "whole-ioctl",
        "needbreak-voluntary",
        "held >= 50us",
        "bounded-hold",
    ]
    found = strategies_of(case, names)
    assert [one.name for one in found] == ["every-64", "whole-ioctl", "held >= 50us"]
    assert [one.as_it_is for one in found] == [True, False, False]
    everything = strategies_of(case, patched_kernel_strategies(case))
    assert len({one.applied(case).policy.resolved() for one in everything}) == len(everything)
    assert sum(one.as_it_is for one in everything) == 1
    assert "every-512" in {one.name for one in everything}
    assert "every-4096" not in {one.name for one in everything}  # which is more than all of it
    assert not any("split" in one.name for one in everything)  # there is no block
    assert any("split" in name for name in patched_kernel_strategies(preset_scenario("x86-tdp")))
    assert not any(
        "read-lock" in name for name in patched_kernel_strategies(preset_scenario("loongarch"))
    )  # a spinlock


def test_several_strategies_together_and_texts():
    both = Strategy("held >= 50us and pages >= 512+ eager-split-drop").applied(preset_scenario("x86-tdp")).policy
    assert (str(both.clear_drop_when), both.eager_split, both.split_alloc) == (
        "held >= 50us and pages >= 512",
        True,
        "drop",
    )
    assert Strategy("baseline").applied(scenario()) == scenario()


@pytest.mark.parametrize(
    ("among", "message"),
    [(["every-64", "every-64"], "among = every-64: is named more than once; name each once"),
     (["every-64", "pages >= 64"], "among = every-64, pages >= 64: there is nothing to choose: they come to the same"),
     ([], "among = none: there is nothing to choose"),
     (["whole-ioctl", "every-64+evry-64"], "policy = evry-64: unknown policy; did you mean 'every-64'"),
     (["whole-ioctl", "every-65"], "policy = every-65: must let go after a multiple of 64 pages"),
     (["whole-ioctl", "zap-batch-10"], "among = zap-batch-10: leaves nothing to CLEAR; name ways of CLEAR"),
     (["whole-ioctl", "get-clears"], "among = get-clears: leaves nothing to CLEAR")],
)  # fmt: skip
def test_what_is_no_choice(among, message):
    with pytest.raises(InputError, match=message.replace("+", r"\+")):
        choose(scenario(), strategies=among)


def check_consistent(found):
    """Answers, pairs, table and budgets say the same."""
    table = found.table.set_index("strategy")
    for name in OBJECTIVES:
        pairs, answer = found.pairs[found.pairs["objective"] == name].set_index("strategy"), of(found, name)
        assert pairs.index.tolist() == table.index.tolist() == [one.name for one in found.strategies]
        assert pairs.index[pairs["selected"]].tolist() == [answer["take"]] == [found.take(name)]
        assert pairs["value_s"].tolist() == pytest.approx(table[f"{name}_s"].tolist())
        assert pairs["allowed"].tolist() == table["allowed"].tolist()
        assert table.loc[answer["take"], "allowed"]
        gap = pairs["value_s"] - answer["value_s"]
        assert np.allclose(gap, pairs["difference_s"], rtol=0, atol=1e-12)
        assert pairs["difference_low_s"].le(pairs["difference_s"] + 1e-18).all()
        assert pairs["difference_low_s"].ge(-answer["value_s"]).all()
        assert pairs["difference_s"].le(pairs["difference_high_s"] + 1e-18).all()
        assert pairs["low_s"].le(pairs["value_s"]).all()
        assert (pairs["indifference_s"] == answer["indifference_s"]).all()
        assert answer["indifference_s"] == max(found.indifference * answer["value_s"], OBJECTIVES[name].floor)
        allowed = pairs[pairs["allowed"]]
        assert answer["regret_at_most_s"] == max(0.0, -allowed["difference_low_s"].min())
        assert answer["certain"] == (answer["regret_at_most_s"] <= answer["indifference_s"])
        good = allowed["difference_high_s"] <= answer["indifference_s"]
        assert allowed["equivalent"].tolist() == good.tolist()
        assert not pairs.loc[~pairs["allowed"], "equivalent"].any()
        assert [*filter(None, answer["equivalent"].split("; "))] == [s for s in good.index[good] if s != answer["take"]]
        assert answer["any_is_as_good"] == good.all()
    assert found.budgets["stall_budget_s"].tolist() == list(BUDGETS)
    taken = of(found, "cost")
    for row in found.budgets.to_dict("records"):
        within = table[table["allowed"] & (table["stall_bound_s"] <= row["stall_budget_s"])]
        if within.empty:
            assert row["take"] == ""
            assert math.isnan(row["cost_s"])
            continue
        assert row["take"] in within.index
        assert row["cost_s"] == table.loc[row["take"], "cost_s"]
        assert row["cost_s"] <= within["cost_s"].min() * (1 + found.indifference)
        assert row["stall_bound_s"] == table.loc[row["take"], "stall_bound_s"]
        assert row["share_more"] == pytest.approx(row["cost_s"] / taken["value_s"] - 1)
        if len(within) == table["allowed"].sum():
            assert row["take"] == taken["take"]
    assert table["knee"].sum() == 1
    assert table.loc[found.knee, "allowed"]
    assert found.guarantee.startswith(f"with {found.confidence * 100:g} % all {9 * (len(table) - 1)} differences")


def check_stalls_are_shown(found):
    """Nobody is told that something is as good without its longest stall."""
    for row, answer in zip(found.readable_answers().to_dict("records"), found.answers.to_dict("records"), strict=True):
        assert row["stall"].endswith("s")
        assert (re.search(r" \([0-9.]+[mun]?s( to [0-9.]+[mun]?s)?\)$", row["as good (stall)"]) is not None) == bool(
            answer["equivalent"]
        )


@pytest.mark.parametrize("allowed_s", [None, 40e-6])
def test_answers_and_differences_and_budgets_say_the_same(short, allowed_s):
    case = scenario(WRITE)
    found = choose(case, strategies=patched_kernel_strategies(case), max_stall_s=allowed_s, confidence=0.975)
    check_consistent(found)
    check_stalls_are_shown(found)
    assert found.table["allowed"].all() == (allowed_s is None)
    assert (found.budgets["take"] == "").any() == (found.table["stall_bound_s"].min() > BUDGETS[0])


def test_what_a_budget_says_where_none_keeps_to_it(short):
    found = choose(scenario(WRITE, {"fault_hold": "5us"}), strategies=["every-64", "whole-ioctl"])
    assert found.budgets["take"].iloc[0] == ""
    assert found.readable_budgets()["take"].iloc[0] == "none keeps to it"
    assert json.loads(json.dumps(found.to_dict()))["budgets"][0]["cost_s"] is None
    check_consistent(found)


def test_as_good_batches_come_with_their_stalls(short):
    found = choose_batch(scenario(WRITE), objective="precopy", indifference=0.5)
    assert not found.matters
    least, most = found.table["stall_s"].min(), found.table["stall_s"].max()
    assert most > 2 * least
    assert f"; longest stall {least * 1e6:.2g}us to {most * 1e6:.2g}us" in found.sentence
    check_stalls_are_shown(found.choice)


def test_a_confidence_is_not_rounded_up(short):
    assert choose(scenario(), strategies=["every-64", "baseline"], confidence=0.999).guarantee.startswith(
        "with 99.9 % all 9 "
    )


MEANS = np.array([[20e-6, 1e-3, 5.0, 10.0, 0.9, 3.0, 2.0, 1.0, 0.4],
                  [25e-6, 1.1e-3, 5.02, 10.1, 0.899, 3.05, 2.2, 0.9, 0.4],
                  [90e-6, 2e-3, 4.9, 9.8, 0.9, 3.1, 2.0, 1.3, 0.5],
                  [20e-6, 1e-3, 5.5, 10.0, 0.89, 2.9, 1.9, 1.0, 0.3]])  # fmt: skip
"""Four strategies, of which the truth is known, in the order of METRICS."""


class Known(Trials):
    """Replications that are drawn from known means; a part of what is drawn is common to all strategies."""

    def run(self, stage, numbers, what="", progress=None):
        found = []
        for number in numbers:
            random = np.random.default_rng([self.seed, stage, number])
            common, own = random.standard_normal(len(METRICS)), random.standard_normal(MEANS.shape)
            found.append(MEANS * (1 + 0.02 * common + 0.02 * own))
        return np.array(found)[:, : len(self.strategies)]


@pytest.mark.study
def test_all_intervals_together_cover_what_is_true(monkeypatch):
    """Of 160 choices, in as many as 80 % promised; and no other strategy is better by more than the regret."""
    monkeypatch.setattr(choice, "Trials", Known)
    monkeypatch.setattr(choice, "LOOKS", (8, 16))
    case, among = scenario(WRITE), ["every-64", "every-128", "every-256", "whole-ioctl"]
    assert METRICS[3:5] == ("precopy_duration", "guest_throughput")  # independent: the mean of a product is known
    truth = {name: one.value(MEANS, case.guest.vcpus, 1.0) for name, one in OBJECTIVES.items()}
    covered, bounded, looks, one_by_one = [], [], set(), []
    for seed in range(160):
        found = choose(case, strategies=among, confidence=0.8, indifference=0.2, seed=seed)
        looks.add(found.runs[1])
        inside = []
        for name, true in truth.items():
            pairs = found.pairs[found.pairs["objective"] == name]
            more = true - true[pairs["selected"].tolist().index(True)]
            inside += [
                low <= value <= high
                for low, value, high in zip(pairs["difference_low_s"], more, pairs["difference_high_s"], strict=True)
            ]
            one_by_one.append(of(found, name)["regret_at_most_s"] >= -more.min() - 1e-15)
        covered.append(all(inside))
        bounded.append(all(one_by_one[-len(truth) :]))
    assert looks == {8, 16}
    assert np.mean(covered) >= 0.8 - 2 * 0.032
    assert np.mean(covered) < 1  # so that the test can fail
    assert np.mean(bounded) >= np.mean(covered)


def test_a_cost_is_worth_what_it_would_save():
    """Strategy 1 differs from the one that is taken by the cost's logarithm, which is standard normal: 1/√(2π)."""
    random = np.random.default_rng(5)
    x, noise = random.standard_normal((2, 4000))
    values = np.column_stack([0 * x, x + 0.05, 0 * x + 3]) + 7 + random.standard_normal((4000, 1))
    found = value_of_information({"noise": noise, "x": x}, values, 0)
    assert found["cost"].tolist() == ["x", "noise"]
    expected = np.exp(-(0.05**2) / 2) / np.sqrt(2 * np.pi) - 0.05 * 0.48  # E max(0, -(x + 0.05))
    assert found["saving"].iloc[0] == pytest.approx(expected, rel=0.05)
    assert found["matters"].tolist()[0]
    assert found["switches_to"].iloc[0] == 1
    assert found["saving"].iloc[1] < 0.01 * found["saving"].iloc[0]
    quadratic = value_of_information({"x": x}, np.column_stack([0 * x, x * x - 0.5]), 0)
    assert quadratic["switches_to"].tolist() == [1]  # best in the middle, which a straight line does not see


def test_a_cost_that_never_changes_the_answer_is_worth_nothing():
    x = np.random.default_rng(6).standard_normal(64)
    found = value_of_information({"x": x}, np.column_stack([x, x + 100.0]), 0)  # the same difference always
    assert (found["saving"].item(), found["matters"].item(), found["switches_to"].item()) == (0, False, -1)
    far = value_of_information({"x": x}, np.column_stack([0 * x, x + 100.0]), 0)
    assert not far["matters"].item()
    assert far["saving"].item() == 0
    logs = dict(zip("abcdefgh", np.random.default_rng(7).standard_normal((8, 64)), strict=True))
    rounded = value_of_information(logs, np.column_stack([0 * x, 0 * x + 0.1]), 1)
    assert (rounded["saving"] == 0).all()  # not the 1e-18 in which two versions of a library differ
    assert rounded["cost"].tolist() == list("abcdefgh")


def test_chance_alone_matters_seldom():
    """Of costs that have nothing to do with the answer one in twenty may look as if."""
    random = np.random.default_rng(7)
    said = []
    for seed in range(300):
        log, values = random.standard_normal(32), random.standard_normal((32, 3))
        said.append(value_of_information({"x": log}, values, 0, seed)["matters"].item())
    assert np.mean(said) < 0.1


def test_what_is_taken_now_is_never_what_one_would_switch_to():
    random = np.random.default_rng(8)
    for seed in range(20):
        x = random.standard_normal(24)
        values = np.column_stack([x, -x, 0.1 * x]) + random.standard_normal((24, 3))
        for chosen in range(3):
            assert value_of_information({"x": x}, values, chosen, seed)["switches_to"].item() != chosen
    assert information.SHUFFLES >= 40


def test_the_front_holds_what_nothing_beats():
    rows = np.array([[1, 3, 1], [2, 2, 1], [3, 1, 1], [3, 2, 0], [2, 2, 1], [2, 3, 1]])
    assert pareto_front(rows).tolist() == [True, True, True, True, True, False]


def test_the_knee_is_near_the_best_in_every_respect():
    assert knee(np.array([[1.0, 100.0], [3.0, 3.0], [100.0, 1.0]])) == 1
    assert knee(np.array([[5.0, 9.0], [5.0, 3.0], [5.0, 4.0]])) == 1  # what is the same for all does not count
    assert knee(np.array([[1.00, 1.0], [1.01, 0.1]])) == 1  # nor does one per cent
    assert knee(np.array([[1.0, 0.0], [1.0, 1.0]])) == 0
    assert knee(np.array([[2.0, 2.0]])) == 0


def test_there_is_a_knee_though_what_is_not_allowed_beats_all_that_is():
    """By its mean a strategy may stall no longer, and yet exceed what is allowed more often."""
    checked = np.ones((3, 2, len(OBJECTIVES)))
    checked[:, 1] = 0.5
    two = (Strategy("every-64"), Strategy("whole-ioctl"))
    table = Ranking(two, [0], Terms(1.0, 0.02, 0.95, None, 1), checked, np.array([1.0, 9.0]), 2).table
    assert table["on_front"].tolist() == [False, True]
    assert table["knee"].tolist() == [True, False]


def test_knee_and_front_of_a_choice(short):
    found = choose(
        scenario(WRITE, {"reacquire": "10us"}), strategies=["every-64", "every-256", "every-512", "whole-ioctl"]
    )
    traded = found.table[[f"{name}_s" for name in FRONT]].to_numpy()
    assert found.table["on_front"].tolist() == pareto_front(traded).tolist()
    assert found.knee == found.table["strategy"][knee(traded)]
    assert found.table.loc[found.table["knee"], "on_front"].all()


def test_batches_double_below_the_chunk():
    assert batches_below(64) == [0]
    assert batches_below(320) == [64, 128, 256, 0]


def test_one_word_leaves_no_choice():
    with pytest.raises(InputError, match=r"clear_chunk = .*: one CLEAR covers 64 pages: there is no batch to choose"):
        choose_batch(vague(clear_chunk="256K"))


@pytest.mark.parametrize("name", guests())
def test_a_named_guest_can_be_asked_about_on_every_architecture(name):
    """With every strategy, at its real size, within what a CLEAR can cover."""
    assert len(guests()[name].title) > 20
    for architecture in preset_architectures():
        case = guests()[name].in_place_of(preset_scenario(architecture))
        costs, compared = (
            UncertainCosts.of(case),
            strategies_of(case, [*patched_kernel_strategies(case), *stock_kernel_strategies(case)[1:5]]),
        )
        assert len(compared) >= 10
        assert Trials(costs, compared, 1).how == "sampled"
        drawn = Trials(costs, compared, 1).drawn(0, 0)[0]
        for one in compared:
            assert not why_not(one.applied(drawn))
            assert set(build(one.applied(drawn)).costs) <= set(drawn.costs.given())
        choice.check_scenario(case)


def test_large_guests_that_cannot_be_sampled_are_simulated_whole_and_that_is_said(monkeypatch, short):
    """Less memory that stands for all of it would not tell the longest stall."""
    case = scenario(WRITE, clear_chunk="1M")
    monkeypatch.setattr(trials, "WHOLE_PAGES", 512)
    assert Trials(UncertainCosts.of(case), strategies_of(case, ["every-64", "baseline"]), 1).how == "sampled"
    said = []
    found = choose(case, strategies=["every-64", "lock-regions"], announce=said.append)  # the selection with 4M, too
    assert found.how == "whole"
    assert said[0] == (
        "2 strategies, 28 to 32 simulations: whole migrations (locks by region are not sampled (policy.lock_regions))"
    )
    assert found.table.notna().all().all()
    assert choose(scenario(WRITE, clear_when="at_once"), strategies=["every-64", "baseline"]).how == "whole"


def test_sampled_choices_are_as_sure_of_themselves(monkeypatch, short):
    """The same guest sampled by windows: the same answers, and the same consistency."""
    case = scenario(WRITE, {"reacquire": "10us"}, {"memory": "64M"}, clear_chunk="4M", access_interval="5us")
    among = ["every-64", "every-256", "whole-ioctl"]
    whole = choose(case, strategies=among)
    monkeypatch.setattr(trials, "WHOLE_PAGES", 512)
    windows = choose(case, strategies=among)
    assert (whole.how, windows.how) == ("whole", "sampled")
    check_consistent(windows)
    for name in ("guest_time_lost", "stall", "clear", "precopy", "cost"):
        assert windows.take(name) == whole.take(name)
        assert windows.table[f"{name}_s"].tolist() == pytest.approx(whole.table[f"{name}_s"].tolist(), rel=0.1)


def test_the_memory_is_rounded_up_to_whole_blocks_for_each_vcpu():
    mib, base = 2**20, preset_scenario("arm64")
    assert base.guest.memory == 256 * 1024 * mib
    hundred = with_guest(base, {"guest": {"vcpus": 100}})
    assert (hundred.guest.memory, hundred.workload.clear_chunk) == (262200 * mib, 1024 * mib)
    assert hundred.guest.memory % (100 * 2 * mib) == 0
    assert with_guest(base, {"guest": {"vcpus": 32}}).guest.memory == base.guest.memory
    small = with_guest(base, {"guest": {"vcpus": 3, "memory": "600M"}})
    assert (small.guest.memory, small.workload.clear_chunk) == (600 * mib, 600 * mib)
    given = with_guest(base, {"guest": {"memory": "64G"}, "workload": {"clear_chunk": "2G"}})
    assert (given.guest.memory // 2**30, given.workload.clear_chunk // 2**30) == (64, 2)
    assert with_guest(base, {}) == base
    with pytest.raises(InputError, match="clear_chunk = 2G: is larger than the guest's memory of 1G"):
        with_guest(base, {"guest": {"memory": "1G"}, "workload": {"clear_chunk": "2G"}})


def test_every_cost_has_a_prior_with_its_source():
    file = read_toml(data_dir() / "priors" / "costs.toml", "priors")
    for name in ARCHITECTURES:
        priors = load_priors(name)
        assert list(priors) == list(BOUNDS)
        for cost, prior in priors.items():
            low, high = BOUNDS[cost]
            assert prior.median == 0 or low <= prior.median / prior.factor <= prior.median * prior.factor <= high
            tables = file[cost].get(name.partition("-")[0], file[cost]).get("tables", [])
            assert all((data_dir() / "published" / f"{table}.csv").is_file() for table in tables)
            assert len(prior.source) > 3
            if not tables:
                assert prior.source.startswith(("assumed", "translated"))
                assert prior.factor >= 2 or prior.median == 0


def test_draws_follow_prior_and_calibration():
    """Ninety per cent lie within the interval; calibrated costs move together; given ones do not move."""
    names = ("fault_unlocked", "fault_hold")
    known = CostEstimate(names, np.log([800e3, 500e3]), np.array([[4e-4, -3.8e-4], [-3.8e-4, 4e-4]]), 6, 0.02, {})
    case = Scenario.parse({"policy": {"architecture": "loongarch"}, "costs": {"reacquire": "60ns"}})
    costs = UncertainCosts.of(case, known)
    draws = [Trials(costs, [Strategy("baseline")], 1).drawn(0, number)[0].costs for number in range(2000)]
    frame = pd.DataFrame([draw.given() for draw in draws])
    assert (frame["reacquire"] == 60e3).all()
    prior = costs.priors["clear_page"]
    inside = frame["clear_page"].between(prior.median / prior.factor, prior.median * prior.factor)
    assert inside.mean() == pytest.approx(0.9, abs=0.02)
    logs = np.log(frame[list(names)])
    assert np.corrcoef(logs.T)[0, 1] == pytest.approx(-0.95, abs=0.02)
    assert logs["fault_unlocked"].std() == pytest.approx(0.02 * np.sqrt(6 / 4), rel=0.1)  # of a t with six degrees
    assert costs.evidence == "partly calibrated: faults only"


def test_what_only_a_fit_knows_of_is_not_taken_for_zero():
    """x86's hand-over grows, which no prior says of any architecture."""
    standard = preset_scenario("x86-shadow")
    costs = UncertainCosts.of(standard, find_fit(standard).estimate)
    assert costs.sources()["queue_length_penalty"] == "calibrated"
    assert costs.draw(np.random.default_rng(1)).costs.queue_length_penalty > 50_000


@pytest.mark.parametrize("name", preset_architectures())
def test_the_standard_guest_runs_on_every_architecture_with_all_its_costs(name):
    case = with_guest(preset_scenario(name, vcpus=4), {"guest": {"memory": "64M"}, "workload": {"downtime": "1ms"}})
    compared = strategies_of(case, patched_kernel_strategies(case))
    tried = Trials(UncertainCosts.of(case), compared, 1)
    values = tried.run(0, [0])
    assert values.shape == (1, len(compared), len(METRICS))
    assert np.isfinite(values).all()
    assert (values[0, :, METRICS.index("clear_cpu_time")] > 0).all()
    assert tried.drawn(0, 0)[1] > 0


def test_what_rests_on_facts_alone_says_so(short):
    """And POWER, which neither faults on write-protected pages nor has CLEAR, is answered as if it did."""
    small = {"guest": {"memory": "4M"}, "workload": {"downtime": "0ps"}}
    choices = {name: choose_batch(with_guest(preset_scenario(name, vcpus=2), small)) for name in ("ppc-radix", "arm64")}
    flags = choices["ppc-radix"].flags
    assert choices["ppc-radix"].grounds.startswith("no cost that decides was calibrated; all are published or assumed")
    assert any("as if write_protect_fault were 'write': POWER" in flag for flag in flags)
    assert any("that they hold for arm64 is assumed" in flag for flag in choices["arm64"].flags)
    table = comparison_of_batches(choices).set_index("architecture")
    assert table["evidence"].tolist() == ["facts alone", "partly calibrated: faults only"]
    assert table.loc["arm64", "regret_64_share"] == choices["arm64"].regrets["share"].iloc[1]
    rows = comparison({name: found.choice for name, found in choices.items()})
    assert rows["architecture"].tolist() == ["ppc-radix"] * len(OBJECTIVES) + ["arm64"] * len(OBJECTIVES)
    assert rows["knee"].tolist()[:: len(OBJECTIVES)] == [found.choice.knee for found in choices.values()]
    costs = choices["arm64"].choice.table.set_index("strategy")["stall_s"]
    assert rows["stall_s"].tolist()[len(OBJECTIVES) :] == [
        costs[take] for take in choices["arm64"].choice.answers["take"]
    ]


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


def test_chunks_that_are_not_cleared_yet_are_protected():
    """The guest writes so seldom that of four chunks only half of the one that is being cleared can be written to."""
    case = closed_form.batching(scenario(READ, access_interval="1s", clear_chunk="1M"))
    assert case.think == pytest.approx(1 / (7 / 8), rel=1e-3)


@pytest.mark.parametrize(("more", "sure"), [(0.80, False), (0.88, True)])
def test_a_cell_of_the_map_allows_for_as_many_comparisons_as_it_makes(monkeypatch, more, sure):
    """Two strategies beside the best one, over 8 runs: t at 1 - 0.05 / 2 over the root of 8 is 0.836."""
    noise = np.sqrt(7 / 8) * np.array([1, -1] * 4)
    values = 100 + np.stack([np.zeros(8), more + noise, more + noise], axis=1)
    monkeypatch.setattr(grid, "OBJECTIVES", {"cost": SimpleNamespace(value=lambda *_: values)})
    among = ["whole-ioctl", "every-64", "every-128"]
    cells = grid.best_strategy_grid(vague(), [2], [1e5], strategies=among, runs=8)
    assert cells["distinguished"].tolist() == [sure]


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
    [({"kind": "dirty_log_perf_test"}, {}, 'dirty_log_perf_test: a strategy is chosen for a migration; write kind'),
     ({"clear_when": "at_get"}, {}, r"clear_when = at_get: GET clears the whole slot: there is no CLEAR to divide"),
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


def test_a_scenario_with_variants_is_refused():
    case = Scenario.parse({"workload": {"kind": "migration"}, "variants": {"a": {}, "b": {"guest": {"vcpus": 2}}}})
    with pytest.raises(InputError, match="variants = a, b: one scenario at a time"):
        choose(case)


def test_the_command_gives_the_same_in_all_forms(ask, tmp_path, short):
    file = tmp_path / "mine.toml"
    file.write_text(scenario(WRITE).to_toml())
    options = ("choose-batch", file, "--memory", "1M", "--vcpus", 4, "--write-interval", "2us", "--objective", "clear")
    code, text, messages = ask(*options, "--format", "json", "--out", tmp_path / "out")
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

    code, text, _ = ask(*options)
    assert code == 0
    words = " ".join(text.split())
    assert words.startswith(result["advice"][""])
    assert result["sentence"][1:] in words
    assert "every 64 pages" in words
    columns = re.search(r"(?m)^pages a hold .*", text)[0]
    code, text, _ = ask(*options, "--verbose")
    assert code == 0
    assert set(columns.split()) < set(re.search(r"(?m)^pages a hold .*", text)[0].split())
    assert result["guarantee"] in " ".join(text.split())


def test_choose_gives_the_same_in_all_forms(ask, tmp_path, short):
    file = tmp_path / "mine.toml"
    file.write_text(scenario(WRITE).to_toml())
    among = [word for name in ("every-64", "whole-ioctl", "held >= 50us", "baseline") for word in ("--strategy", name)]
    options = ("choose", file, "--memory", "1M", "--vcpus", 4, "--confidence", 0.9, *among)
    code, text, messages = ask(*options, "--format", "json", "--out", tmp_path / "out")
    result = json.loads(text)
    assert code == 0
    assert "3 strategies, 30 to 36 simulations: whole migrations" in messages
    assert [row["strategy"] for row in result["strategies"]] == ["every-64", "whole-ioctl", "held >= 50us"]
    assert [row["as_it_is"] for row in result["strategies"]] == [False, True, False]
    assert [row["objective"] for row in result["answers"]] == list(OBJECTIVES)
    assert (result["simulated"], result["confidence"], result["evidence"]) == ("whole", 0.9, "costs given by hand")
    names = ["answers", "budgets", "costs", "differences", "information", "strategies"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        ["choose.json", *(f"{name}.csv" for name in names)]
    )
    assert json.loads((tmp_path / "out" / "choose.json").read_text()) == result
    for name in names[:-2] + names[-1:]:
        table = pd.read_csv(tmp_path / "out" / f"{name}.csv")
        assert len(table) == len(result[name])
        for column in table.select_dtypes("number"):
            there = [math.nan if row[column] is None else row[column] for row in result[name]]
            assert table[column].tolist() == pytest.approx(there, nan_ok=True)

    code, text, _ = ask(*options, "--objective", "clear", "--format", "json")
    led = json.loads(text)
    assert led["answers"] == result["answers"]
    assert led["advice"][""].startswith(
        "Leave KVM as it is (whole-ioctl): of 3 ways that were simulated none lowers CPU"
    )
    assert led["advice"] != result["advice"]

    code, text, _ = ask(*options, "--format", "csv")
    assert code == 0
    assert text.splitlines()[0].startswith("strategy,as_it_is,allowed,stall_bound_s,cost_s,lost_s,stall_s")
    assert len(text.splitlines()) == 4

    code, text, _ = ask(*options)
    assert code == 0
    words = " ".join(text.split())
    assert words.startswith(result["advice"][""])
    assert "Guest: x86-shadow, 4 vCPUs, 1 MiB (4k), CLEARs of 1 MiB; each vCPU accesses another page every " in words
    assert f"Evidence: {result['grounds']}. " in words
    assert "To know any one cost better would not change the answer." in words
    assert result["guarantee"] not in words
    code, text, _ = ask(*options, "-v")
    assert code == 0
    assert result["guarantee"] in " ".join(text.split())
    for one in OBJECTIVES.values():
        assert one.title in text


@pytest.mark.parametrize(
    ("names", "said", "to_do"),
    [("read-lock-clear", "Let CLEAR hold mmu_lock for read (read-lock-clear): the longest stall falls from 1 ms to "
      "1 µs, the CPU time in all from 8 s to 2 s; but the CPU time of CLEAR rises from 1 s to 3 s",
      "no kernel has this yet; patches for arm64 were posted in June 2023, but not merged"),
     ("chunk-16M", "Let CLEAR cover 16M at a time (chunk-16M): ",
      "start QEMU with -global migration.x-clear-bitmap-shift=12"),
     ("no-eager-split", "Use no-eager-split: ", "nothing, unless QEMU has eager-split-size"),
     ("every-512+eager-split-drop", "Let CLEAR drop mmu_lock after every 512 pages and let an eager split drop "
      "mmu_lock to allocate its table (every-512+eager-split-drop): ", "every-512: no kernel has this yet; the patch "
      "is kernel-patches/0007, with kvm.dirty_log_clear_batch=512; eager-split-drop: start QEMU with -accel "
      "kvm,eager-split-size=2M")],
)  # fmt: skip
def test_the_advice_says_what_to_set_what_it_changes_and_what_it_costs(names, said, to_do):
    values = np.ones((8, 2, len(OBJECTIVES)))
    for name, pair in {"cost": (8, 2), "stall": (1e-3, 1e-6), "clear": (1, 3)}.items():
        values[:, :, list(OBJECTIVES).index(name)] = pair
    ways = (Strategy("whole-ioctl", 0), Strategy(names))
    ranking = Ranking(ways, [0, 1], Terms(1.0, 0.02, 0.95, None, 1), values, np.ones(2), 2)
    case = preset_scenario("arm64")
    found = Choice(case, ways, 1.0, 0.02, 0.95, 1, "whole", (1, 1), ranking.table, ranking.pairs, ranking.answers,
                   ranking.budgets, choice._information({}, ranking), pd.DataFrame(), "", "known", ())  # fmt: skip
    advice = found.advice()
    assert advice[""].startswith(said)
    assert advice["To do so"] == to_do
    assert ("Without a patch" in advice) == ("no kernel has this yet" in to_do)
    assert advice["How sure"] == "95 % that no other of the 2 simulated needs less CPU time in all"
    assert advice["Other goals"] == "for CPU time of CLEAR take whole-ioctl (as it is; longest stall then 1 ms)"
    assert advice["Longest stall"] == (
        f"1 ms as it is (in 90 % of migrations at most 1 s; 99.9 % of stalls at most 1 s); "
        f"shortest with {names}, 1 µs (1 s)"
    )
    assert found.advice()["Limits"].startswith("stalls are the model's: trust their order more than their size")
    assert any(note.startswith("If no stall may exceed 10us: none keeps to it (90 % bound of the least: 1s); ")
               for note in found.notes)  # fmt: skip
    assert found.readable("cost")["strategy"].tolist() == [f"{names} (recommended)", "whole-ioctl (as it is)"]
    assert list(found.readable("cost")) == ["strategy", "CPU in all", "stall", "CLEAR"]


def test_where_the_best_needs_a_patch_the_best_without_one_is_named():
    values = np.ones((8, 4, len(OBJECTIVES)))
    values[:, :, list(OBJECTIVES).index("cost")] = (8, 2, 5, 4)
    values[:, :, list(OBJECTIVES).index("stall")] = (1e-3, 1e-6, 1e-4, 1e-5)
    names = ("whole-ioctl", "read-lock-clear", "chunk-64M", "chunk-16M")
    ways = tuple(Strategy(name, *[0] * (not number)) for number, name in enumerate(names))
    ranking = Ranking(ways, [0, 1, 2, 3], Terms(1.0, 0.02, 0.95, None, 1), values, np.ones(4), 2)
    found = Choice(preset_scenario("arm64"), ways, 1.0, 0.02, 0.95, 1, "whole", (1, 1), ranking.table, ranking.pairs,
                   ranking.answers, ranking.budgets, choice._information({}, ranking), pd.DataFrame(), "", "known",
                   ())  # fmt: skip
    assert found.take("cost") == "read-lock-clear"
    assert found.advice()["Without a patch"] == (
        "chunk-16M has the least CPU time in all, 4 s (longest stall 10 µs): start QEMU with -global "
        "migration.x-clear-bitmap-shift=12"
    )


@pytest.mark.parametrize("columns", [60, 80])
def test_the_first_lines_fit_the_columns_of_a_pipe(ask, tmp_path, short, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    file = tmp_path / "mine.toml"
    file.write_text(scenario(WRITE).to_toml())
    code, text, _ = ask("choose", file, "--memory", "1M", "--vcpus", 4, "--kernel")
    assert code == 0
    assert max(map(len, text.splitlines())) <= columns
    assert not re.search(r"[0-9]\n *([nµm]?s|%|[MG]iB)\b", text)


@pytest.mark.parametrize("name", ["choose", "choose-batch"])
def test_all_architectures_in_one_table(ask, tmp_path, short, name):
    file = {"choose": "answers", "choose-batch": "architectures"}[name]
    case = ("--all", "--memory", "2M", "--vcpus", 1, "--link", "1Mbit/s", "--write-interval", "10ms")
    among = ("--strategy", "every-64", "--strategy", "whole-ioctl") if name == "choose" else ()
    code, text, messages = ask(name, *case, *among, "--out", tmp_path)
    assert code == 0
    table = pd.read_csv(tmp_path / f"{file}.csv")
    choices = json.loads((tmp_path / f"{name}.json").read_text())
    assert list(dict.fromkeys(table["architecture"])) == list(choices) == list(preset_architectures())
    evidence = table.drop_duplicates("architecture")["evidence"].tolist()
    assert evidence == [choice["evidence"] for choice in choices.values()]
    assert {"facts alone", "partly calibrated: faults only"} <= set(evidence)
    rows = {line.split()[0]: line for line in text.splitlines()[1:] if line.split()[0] in choices}
    assert list(rows) == list(choices)
    assert "simlib: ppc-radix: as if write_protect_fault were 'write'" in messages
    if name == "choose-batch":
        assert "whole" in rows["x86-tdp"]
        assert "512" not in rows["x86-tdp"]  # all of the chunk goes by that name
    else:
        assert re.search(r"\([0-9.]+[mun]?s\)", text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((), "choose-batch = nothing: give one of SCENARIO.toml, --architecture NAME, --all"),
     (("--all", "--architecture", "arm64"), "choose-batch = --architecture --all: give one of"),
     (("--architecture", "arm46"), "policy.architecture = arm46: unknown architecture; did you mean 'arm64'"),
     (("--architecture", "s390"), "policy.lock = default: s390 does not take mmu_lock here"),
     (("--architecture", "arm64", "--memory", "1G", "--chunk", "2G"),
      "clear_chunk = 2G: is larger than the guest's memory of 1G"),
     (("--architecture", "arm64", "--guest", "databse"), "guest = databse: unknown guest; did you mean 'database'"),
     (("--architecture", "arm64", "--objective", "stalls"), "objective = stalls: unknown objective; did you mean"),
     (("--architecture", "arm64", "--link", "0Gbit/s"), "--link = 0Gbit/s: must be at least 1 bit/s"),
     (("--architecture", "arm64", "--max-stall", "soon"), "--max-stall = soon: a duration needs a unit")],
)  # fmt: skip
def test_the_command_names_each_fault(ask, arguments, message):
    code, text, messages = ask("choose-batch", *arguments)
    assert (code, text) == (2, "")
    assert message in messages


def test_a_file_has_its_own_guest(ask, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(scenario().to_toml())
    code, text, messages = ask("choose", file, "--guest", "web")
    assert (code, text) == (2, "")
    assert "--guest = web: a scenario has its own guest; give --architecture instead of a file" in messages
    code, _, messages = ask("choose", file, "--kernel", "--strategy", "baseline", "--strategy", "every-sixty")
    assert code == 2
    assert "policy = every-sixty: unknown policy" in messages


@pytest.mark.parametrize(
    ("machine", "fit", "said"),
    [("x86-published", None, "calibrated on published tables of hosts whose hardware no source states (x86-published)"),
     ("ampere-altra", None, "calibrated on ampere-altra (arm64-dirty-memory-time)"),
     ("unnamed", "host-amd-epyc-2", "calibrated on what simlib measured (host-pvm: AMD EPYC, 2 CPUs, Linux 6.18"),
     ("unnamed", "lab-riscv", "calibrated on kernels in an emulator, which is no host (lab-riscv)")],
)  # fmt: skip
def test_the_sentence_behind_a_word_names_the_host(machine, fit, said):
    case = Scenario.parse({"host": {"name": machine}})
    found = fit_of(case, fit and data_dir() / "fits" / f"{fit}.json")
    assert grounds("calibrated", found).startswith(said)
    assert fit_of(case, found.estimate) is None


def test_a_fit_that_does_not_determine_a_cost_is_not_trusted(short):
    good = find_fit(preset_scenario("arm64"))
    assert good.doubt == ""
    parameters = good.parameters.assign(determined=good.parameters["name"] != "fault_hold")
    bad = dataclasses.replace(
        good.with_meta(valid={"all_determined": False, "converged": False}), parameters=parameters
    )
    hold = bad.costs().set_index("name").loc["fault_hold"]
    doubt = (f"your fit did not pass 'converged' and does not determine fault_hold ({hold['low']:.5g} to "
             f"{hold['high']:.5g} ns): do not trust this answer before it does")  # fmt: skip
    small = with_guest(preset_scenario("arm64", vcpus=2), {"guest": {"memory": "4M"}, "workload": {"downtime": "0ps"}})
    assert choose(small, strategies=["every-64", "whole-ioctl"], fit=bad).grounds.endswith(f"; but {doubt}")
    assert f"warning: {doubt}" in predict(small, [2], fit=bad, metrics=["clear_cpu_time"]).flags


def test_a_host_that_is_not_stated_is_not_called_calibrated_without_a_word(short):
    small = {"guest": {"memory": "4M"}, "workload": {"downtime": "0ps"}}
    found = choose(with_guest(preset_scenario("x86-tdp", vcpus=2), small), strategies=["every-64", "whole-ioctl"])
    assert found.evidence == "calibrated"
    assert found.evidence_shown == "calibrated, host not stated"
    assert found.grounds in found.summary()
    assert found.to_dict()["grounds"] == found.grounds


RINGED = {"dirty_set": "100ns", "log_exit": "2us", "log_entry": "30ns", "log_kick": "300ns", "ring_exit": "2us",
          "ring_entry": "20ns", "reset_entry": "10ns"}  # fmt: skip


def test_rings_stand_beside_the_bitmap_and_hardware_that_logs(ask, tmp_path, short):
    """A scenario of the user's says its own tracking; what is chosen among are all that its x86 has."""
    file = tmp_path / "mine.toml"
    file.write_text(scenario({"architecture": "x86-tdp"}, RINGED).to_toml())
    code, text, messages = ask("choose", file, "--rings", "--format", "json")
    assert code == 0, messages
    names = ["baseline", "write-protect", "pml", "dirty-ring-1024", "dirty-ring-4096", "dirty-ring-65536"]
    assert [row["strategy"] for row in json.loads(text)["strategies"]] == [
        name for name in names if name != "write-protect"
    ]  # as it is
    own = json.loads(text)["strategies"][0]
    assert own["as_it_is"]
    code, text, _ = ask("choose", file, "--dirty-tracking", "pml", "--strategy", "baseline", "--strategy", "every-64")
    assert code == 0
    assert text.startswith("With PML: ")


def test_ways_of_tracking_are_those_of_the_architecture():
    assert tracking_strategies(preset_scenario("arm64"))[:3] == ("baseline", "write-protect", "hdbss")
    assert tracking_strategies(preset_scenario("riscv"))[:3] == ("baseline", "write-protect", "dirty-ring-1024")


def test_where_nothing_matters_the_command_says_so_and_no_more(ask, tmp_path):
    """Faults take no lock, and letting go costs next to nothing."""
    file = tmp_path / "mine.toml"
    file.write_text(scenario(costs={"reacquire": "10ps", "line_transfer": "1ps", "line_local": "1ps"}).to_toml())
    among = [word for name in ("every-256", "every-512", "baseline") for word in ("--strategy", name)]
    code, text, _ = ask("choose", file, *among)
    assert code == 0
    words = " ".join(text.split())
    ways = "of 3 ways that were simulated none changes anything by more than"
    assert re.match(rf"Leave KVM as it is \(own\): {ways} [0-9.]+ % \(95 % sure", words)
    assert len(text.splitlines()) < 16
    assert "baseline, every-256, every-512 (recommended, as it is)" in words


def test_a_parabola_below_nothing_saves_nothing():
    """What is taken is 0 throughout, another now and then more: there is nothing to save, whatever a curve says."""
    x = np.linspace(-2, 2, 60)
    other = np.where(np.arange(60) % 20 == 19, np.exp(2 * x), 0.0)
    found = value_of_information({"x": x}, np.column_stack([0 * x, other]), 0)
    design = np.column_stack([np.ones(60), x, x * x])
    assert (design @ np.linalg.lstsq(design, other, rcond=None)[0]).min() < 0
    assert (found["saving"].item(), found["switches_to"].item(), found["matters"].item()) == (0, -1, False)
