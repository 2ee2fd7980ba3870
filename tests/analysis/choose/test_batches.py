# SPDX-License-Identifier: BSD-3-Clause
"""Choice of a batch: known answers, common random numbers, the closed form, and the map of strategies."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from choice_cases import READ, WRITE, answer_for, check_stalls_are_listed, scenario, vague

from simlib._lib import parallel
from simlib._lib.errors import InputError
from simlib.analysis.choose import (
    OBJECTIVES,
    choose,
    choose_batch,
    closed_form,
    comparison,
    comparison_of_batches,
    preset_scenario,
    trials,
    with_guest,
)
from simlib.analysis.choose import choice as choice_module
from simlib.analysis.choose.batches import batches_below
from simlib.analysis.choose.choice import CHECK, LOOKS, SELECTION, SELECTION_RUNS
from simlib.analysis.choose.objectives import objective
from simlib.analysis.choose.trials import Trials
from simlib.measurements import load
from simlib.measurements.fits import UncertainCosts
from studies.decision import strategy_map


def test_the_batch_does_not_matter_if_faults_take_no_lock():
    result = choose_batch(scenario())
    assert not result.batches.matters
    assert result.batches.certain
    assert result.batches.equivalent == (64, 1024)
    assert result.batches.sentence.startswith(
        "recommended: any batch; batches from 64 pages to the whole ioctl are equivalent (within"
    )
    assert result.closed_form.case is None
    assert result.evidence == "costs given by hand"
    assert (result.batches.regrets["share"].abs() < 0.01).all()
    assert result.answers["all_equivalent"].all()
    assert result.runs == (SELECTION_RUNS, LOOKS[0])  # one look was enough
    assert result.information.empty  # all costs are known
    assert result.how == "whole"


def test_the_whole_ioctl_minimises_the_time_of_clear_if_reacquiring_is_expensive():
    """Sixteen times 10 us in each of two passes, against 51 us of work each."""
    result = choose_batch(scenario(WRITE, {"reacquire": "10us"}), objective="clear")
    assert (result.batches.recommended, result.batches.equivalent, result.batches.certain) == (0, (1024, 1024), True)
    assert result.batches.sentence.startswith("recommended: the whole ioctl; no other batch is equivalent")
    regrets = result.batches.regrets.set_index("rule")
    assert regrets.loc["whole ioctl", "regret_s"] == 0
    assert regrets.loc["every 64 pages", "regret_s"] > 2 * 15 * 10e-6
    assert regrets.loc["every 64 pages", "low_s"] > answer_for(result, "clear")["indifference_s"]
    assert result.batches.law.endswith("the simulation agrees: this batch is in the equivalent range")
    batch = result.closed_form.batch
    for factor, text in ((1.9, "(square-root law: "), (2.1, "(not the square-root law's")):
        for root in (batch / factor, batch * factor):
            law = dataclasses.replace(result.closed_form, square_root=root)
            assert text in dataclasses.replace(result, closed_form=law).batches.law


def test_a_small_batch_costs_least_if_many_readers_wait():
    """A hold of 64 pages is shorter than the 20 us between two accesses; one of 4096 pages is twenty times as long."""
    result = choose_batch(scenario(READ, {"clear_page": "100ns"}, {"memory": "16M"}, access_interval="20us",
                                  link="100Gbit/s"))  # fmt: skip
    assert result.batches.recommended == 64
    assert result.batches.certain
    assert result.batches.table["difference_low_s"].iloc[1:].min() > answer_for(result, "cost")["indifference_s"]
    assert result.batches.table["difference_s"].is_monotonic_increasing
    pairs = result.pairs
    assert (pairs["low_s"] < pairs["value_s"]).all()
    assert pairs["high_s"].tolist() == pytest.approx((2 * pairs["value_s"] - pairs["low_s"]).tolist())
    assert result.closed_form.batch == 64
    assert result.recommended("cost") == result.recommended("guest_time_lost") == "every-64"
    assert result.recommended("clear") == "whole-ioctl"  # one run answers all objectives


def test_a_limit_of_the_longest_stall_excludes_long_holds(short):
    case = scenario(WRITE, {"reacquire": "10us"})
    result = choose_batch(case, objective="clear", max_stall_s=40e-6)
    assert result.batches.recommended == 512
    assert result.batches.table["allowed"].tolist() == [True] * 4 + [False]
    assert not result.batches.table["equivalent"].iloc[-1]
    bounds = result.batches.table["stall_bound_s"]
    assert bounds.iloc[-1] > 1024 * 50e-9 > 40e-6 > bounds.iloc[-2]
    assert "whole-ioctl" not in {*result.answers["recommended"], *result.budgets["recommended"]}
    assert not any("whole-ioctl" in good for good in result.answers["equivalent"])
    assert result.readable()["strategy"].iloc[-1] == "whole-ioctl (current, stalls too long)"
    with pytest.raises(
        InputError,
        match=r"longest stall allowed = 1us: no strategy satisfies it with a probability of 90 %: the lowest bound "
        r"is .*us, with every-64",
    ):
        choose_batch(case, max_stall_s=1e-6)


def test_a_small_chunk_does_not_make_the_whole_ioctl_satisfy_a_limit(short):
    """A whole ioctl of 1 MiB is 256 pages; QEMU's default covers all 1024, whose stall exceeds the limit."""
    case = scenario(WRITE, {"reacquire": "10us"}, clear_chunk="1M")
    result = choose_batch(case, objective="clear", max_stall_s=40e-6)
    table = result.batches.table.set_index("batch_pages")
    assert table.loc[0, "stall_s"] < 40e-6 < table.loc[0, "stall_bound_s"]
    assert table["allowed"].tolist() == [True, True, False]
    assert result.batches.recommended == 128
    assert "whole-ioctl" not in {*result.answers["recommended"], *result.budgets["recommended"][:2]}
    large = choose_batch(scenario(WRITE, {"reacquire": "10us"}), objective="clear").batches.table.set_index(
        "batch_pages"
    )
    assert table.loc[0, "stall_bound_s"] == pytest.approx(large.loc[0, "stall_bound_s"], rel=0.2)
    assert result.flags[0].startswith("bounds of the longest stall also hold for CLEARs of 4 MiB, QEMU's default")


def test_a_chunk_of_qemus_size_is_not_widened():
    wide = scenario(guest={"memory": "4G"}, clear_chunk="2G")
    assert closed_form.at_qemu_chunk(wide) == wide
    shifts = load("qemu-clear-chunk-defaults").frame.set_index("posting")["shift_bits"]
    assert 4096 << int(shifts["pull-2019-07-12"]) == closed_form.QEMU_CHUNK


def test_strategies_of_a_replication_share_costs_and_seed(monkeypatch, short):
    """Common random numbers: only the strategy differs within a replication; everything differs between two."""
    cases_by_seed = defaultdict(list)

    def spy(case, *, seed, progress):
        cases_by_seed[seed].append(case)
        return original(case, seed=seed, progress=progress)

    original = trials.run_scenario
    monkeypatch.setattr(trials, "run_scenario", spy)
    result = choose_batch(vague())
    assert len(cases_by_seed) == sum(result.runs)
    assert len({cases[0].costs for cases in cases_by_seed.values()}) == len(cases_by_seed)
    for cases in cases_by_seed.values():
        assert len({case.costs for case in cases}) == 1
        assert {str(case.policy.clear_drop_when) for case in cases} == {"pages >= 64", "pages >= 128", "never"}
        assert {dataclasses.replace(case.policy, clear_drop_when="never") for case in cases} == {vague().policy}
    assert result.batches.table["batch_pages"].tolist() == [64, 128, 0]


def test_results_depend_on_the_seed_alone(monkeypatch, short):
    """The number of parallel runs, the order and the batch of the scenario's policy have no effect.

    The last one is preferred among equivalent batches, so that differences may refer to another one.
    """
    # The selected batch affects the number of looks.
    monkeypatch.setattr(choice_module, "may_be_settled", lambda *_: False)
    monkeypatch.setattr(parallel, "cpus", lambda: 1)
    first = choose_batch(vague(), seed=3)
    monkeypatch.setattr(parallel, "cpus", lambda: 5)
    pd.testing.assert_frame_equal(first.batches.table, choose_batch(vague(), seed=3).batches.table)
    same = choose_batch(vague({"clear_drop_when": "pages >= 128"}), seed=3).batches.table
    simulated = ["batch_pages", "objective_s", "low_s", "high_s", *(f"{name}_s" for name in OBJECTIVES)]
    pd.testing.assert_frame_equal(first.batches.table[simulated], same[simulated])
    other = choose_batch(vague(), seed=4)
    assert (other.batches.table["objective_s"] != first.batches.table["objective_s"]).all()
    reversed_order = choose(vague(), strategies=["whole-ioctl", "every-128", "every-64"], seed=3)
    means = [f"{name}_s" for name in OBJECTIVES] + ["stall_bound_s"]
    pd.testing.assert_frame_equal(reversed_order.table[means].iloc[::-1].reset_index(drop=True), first.table[means])


def test_printed_values_use_every_replication_once(monkeypatch):
    used = defaultdict(list)

    class RecordedTrials(Trials):
        def run(self, stage, numbers, what="", progress=None):
            if what != "trying one":  # this run compiles
                used[stage] += [self.draw(stage, number)[1] for number in numbers]
            return super().run(stage, numbers, what, progress)

    monkeypatch.setattr(choice_module, "Trials", RecordedTrials)
    monkeypatch.setattr(choice_module, "LOOKS", (12, 16))
    monkeypatch.setattr(choice_module, "may_be_settled", lambda *_: True)
    result = choose_batch(vague(), indifference=1e-6)
    assert result.runs == (SELECTION_RUNS, 16)
    assert [len(used[stage]) for stage in (SELECTION, CHECK)] == [SELECTION_RUNS, 16]
    assert len({*used[SELECTION], *used[CHECK]}) == SELECTION_RUNS + 16

    again = Trials(UncertainCosts.of(vague()), result.strategies, 1)
    drawn = np.concatenate([again.run(SELECTION, range(SELECTION_RUNS)), again.run(CHECK, range(16))])
    values = objective("cost").value(drawn, 4, 1.0)
    best = result.batches.table["batch_pages"].tolist().index(result.batches.recommended)
    assert result.batches.table["objective_s"].tolist() == pytest.approx(values.mean(axis=0))
    expected = [(values[:, i] - values[:, best]).mean() for i in (2, 0, 2)]  # a huge page is larger than the chunk
    assert result.batches.regrets["regret_s"].tolist() == pytest.approx(expected, abs=1e-15)
    assert result.batches.regrets["share"].tolist() == pytest.approx(np.array(expected) / values[:, best].mean())


def test_equivalent_batches_are_listed_with_their_stalls(short):
    result = choose_batch(scenario(WRITE), objective="precopy", indifference=0.5)
    assert not result.batches.matters
    least, most = result.batches.table["stall_s"].min(), result.batches.table["stall_s"].max()
    assert most > 2 * least
    assert f"; longest stall {least * 1e6:.2g}us to {most * 1e6:.2g}us" in result.batches.sentence
    check_stalls_are_listed(result)


def test_batches_double_below_the_chunk():
    assert batches_below(64) == [0]
    assert batches_below(320) == [64, 128, 256, 0]


def test_a_chunk_of_one_word_is_refused():
    with pytest.raises(InputError, match=r"clear_chunk = .*: one CLEAR covers at most 64 pages, so there is no batch"):
        choose_batch(vague(clear_chunk="256K"))


def test_uncalibrated_answers_are_labelled_facts_alone(short):
    """POWER neither faults on write-protected pages nor has CLEAR; the answer assumes both, and has a flag."""
    small = {"guest": {"memory": "4M"}, "workload": {"downtime": "0ps"}}
    choices = {name: choose_batch(with_guest(preset_scenario(name, vcpus=2), small)) for name in ("ppc-radix", "arm64")}
    flags = choices["ppc-radix"].flags
    assert choices["ppc-radix"].grounds.startswith("no cost that affects the result was calibrated; all are published")
    assert any("computed as if write_protect_fault were 'write', although" in flag for flag in flags)
    assert any("it is assumed that they apply to arm64" in flag for flag in choices["arm64"].flags)
    table = comparison_of_batches(choices).set_index("architecture")
    assert table["evidence"].tolist() == ["facts alone", "partly calibrated: faults only"]
    assert table.loc["arm64", "regret_64_share"] == choices["arm64"].batches.regrets["share"].iloc[1]
    rows = comparison(choices)
    assert rows["architecture"].tolist() == ["ppc-radix"] * len(OBJECTIVES) + ["arm64"] * len(OBJECTIVES)
    assert rows["knee"].tolist()[:: len(OBJECTIVES)] == [choice.knee for choice in choices.values()]
    costs = choices["arm64"].table.set_index("strategy")["stall_s"]
    assert rows["stall_s"].tolist()[len(OBJECTIVES) :] == [
        costs[name] for name in choices["arm64"].answers["recommended"]
    ]


def test_the_closed_form_maps_a_scenario_as_documented():
    """16384 pages, 8 vCPUs that access a page every 10 us: cleared pages are written again within 20 ms."""
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


def test_chunks_that_are_not_yet_cleared_are_protected():
    """The guest writes so rarely that, of four chunks, only half of the current one is writable."""
    case = closed_form.batching(scenario(READ, access_interval="1s", clear_chunk="1M"))
    assert case.think == pytest.approx(1 / (7 / 8), rel=1e-3)


@pytest.mark.parametrize(("more", "sure"), [(0.80, False), (0.88, True)])
def test_a_cell_of_the_map_corrects_for_its_number_of_comparisons(monkeypatch, more, sure):
    """Two strategies beside the best one, over 8 runs: t at 1 - 0.05 / 2 over the root of 8 is 0.836."""
    noise = np.sqrt(7 / 8) * np.array([1, -1] * 4)
    values = 100 + np.stack([np.zeros(8), more + noise, more + noise], axis=1)
    monkeypatch.setattr(strategy_map, "OBJECTIVES", {"cost": SimpleNamespace(value=lambda *_: values)})
    names = ["whole-ioctl", "every-64", "every-128"]
    cells = strategy_map.best_strategy_grid(vague(), [(2, 1e5)], strategies=names, runs=8)
    assert cells["distinguished"].tolist() == [sure]


def test_a_loongarch_fault_of_a_write_protected_page_takes_the_lock_once():
    """Other faults take it twice there (kvm_map_page); this one only if the policy says so (kvm_map_page_fast)."""
    once, twice = (
        closed_form.batching(scenario({"architecture": "loongarch", "fault_lock_sections": n})) for n in (0, 2)
    )
    assert once.service == pytest.approx(500e-9 + 2 * 20e-9)
    assert twice.service == pytest.approx(500e-9 + 4 * 20e-9)


def test_slow_faults_invalidate_nothing():
    policy, costs = {"architecture": "arm64-2022", "translation_fault": "read"}, {"tlb_invalidate": "300ns"}
    without = closed_form.batching(scenario(policy, costs))
    mixed = closed_form.batching(scenario(policy, costs, slow_fault_every=10))
    assert without.service == pytest.approx(340e-9)
    assert 40e-9 < mixed.service < 340e-9


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [({"kind": "dirty_log_perf_test"}, {}, 'dirty_log_perf_test: strategies are chosen for migrations only; write'),
     ({"clear_when": "at_get"}, {}, r"clear_when = at_get: GET clears the whole slot: there is no CLEAR to divide"),
     ({"downtime": "1s"}, {}, "downtime = 1s: all memory can be sent within this time, .* shorten it"),
     ({}, {"objective": "costs"}, "objective = costs: unknown objective; did you mean 'cost'"),
     ({}, {"indifference": 0.0}, "indifference = 0.0: must lie between 0 and 1"),
     ({}, {"weight": -1.0}, "weight = -1.0: must be finite and at least 0"),
     ({}, {"max_stall_s": 0.0}, "max_stall_s = 0.0: must be finite and above 0"),
     ({}, {"confidence": 1.0}, "confidence = 1.0: must lie between"),
     ({}, {"seed": -1}, "seed = -1: must be at least 0")],
)  # fmt: skip
def test_wrong_input_is_refused(change, options, message):
    with pytest.raises(InputError, match=message):
        choose_batch(scenario(**change), **options)
