# SPDX-License-Identifier: BSD-3-Clause
"""Choice of a strategy: known answers, random draws, the guarantee, and refused input."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from choice_cases import WRITE, answer_for, check_consistent, check_stalls_are_listed, scenario, vague

from simlib._lib.errors import InputError
from simlib._lib.reading import read_toml
from simlib.analysis.choose import (
    OBJECTIVES,
    choose,
    guests,
    information,
    preset_architectures,
    preset_scenario,
    trials,
    with_guest,
)
from simlib.analysis.choose import choice as choice_module
from simlib.analysis.choose.evidence import fit_of, grounds
from simlib.analysis.choose.information import value_of_information
from simlib.analysis.choose.objectives import METRICS
from simlib.analysis.choose.options import ChoiceOptions
from simlib.analysis.choose.ranking import BUDGETS, FRONT, Ranking, knee, pareto_front
from simlib.analysis.choose.strategies import (
    Strategy,
    patched_kernel_strategies,
    stock_kernel_strategies,
    strategies_of,
    tracking_strategies,
)
from simlib.analysis.choose.trials import Trials
from simlib.analysis.predict import predict
from simlib.measurements import data_dir
from simlib.measurements.fits import BOUNDS, CostEstimate, UncertainCosts, find_fit, load_priors
from simlib.model.architectures import ARCHITECTURES
from simlib.model.scenario import Scenario
from simlib.simulator.sampling import unsupported_reason
from simlib.simulator.workloads import build


def test_an_excluded_strategy_is_recommended_nowhere(short):
    """It is neither the knee, nor a strategy to switch to if a cost were known."""
    limit = choose(vague({"eager_split": False}), strategies=["every-64", "every-128", "whole-ioctl"]).table
    limit = limit.set_index("strategy")["stall_bound_s"].drop("whole-ioctl").max()
    result = choose(vague(), strategies=["every-64", "every-128", "whole-ioctl"], max_stall_s=limit * 1.000001)
    assert result.table["allowed"].tolist() == [True, True, False]
    assert result.knee in ("every-64", "every-128")
    assert "whole-ioctl" not in set(result.information["switches_to"])
    recommended = result.answers.set_index("objective")["recommended"]
    assert (result.information["switches_to"] != recommended[result.information["objective"]].to_numpy()).all()


def test_identical_strategies_are_compared_once():
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
    strategies = strategies_of(case, names)
    assert [strategy.name for strategy in strategies] == ["every-64", "whole-ioctl", "held >= 50us"]
    assert [strategy.as_it_is for strategy in strategies] == [True, False, False]
    patched = strategies_of(case, patched_kernel_strategies(case))
    assert len({strategy.applied(case).policy.resolved() for strategy in patched}) == len(patched)
    assert sum(strategy.as_it_is for strategy in patched) == 1
    names = {strategy.name for strategy in patched}
    assert "every-512" in names
    assert "every-4096" not in names  # larger than the chunk
    assert not any("split" in name for name in names)  # there is no huge page
    assert any("split" in name for name in patched_kernel_strategies(preset_scenario("x86-tdp")))
    assert not any(
        "read-lock" in name for name in patched_kernel_strategies(preset_scenario("loongarch"))
    )  # a spinlock


def test_strategies_combine_names_and_conditions():
    policy = Strategy("held >= 50us and pages >= 512+ eager-split-drop").applied(preset_scenario("x86-tdp")).policy
    assert (str(policy.clear_drop_when), policy.eager_split, policy.split_alloc) == (
        "held >= 50us and pages >= 512",
        True,
        "drop",
    )
    assert Strategy("baseline").applied(scenario()) == scenario()


@pytest.mark.parametrize(
    ("strategies", "message"),
    [(["every-64", "every-64"], "strategies = every-64: is given more than once; give each strategy once"),
     (["every-64", "pages >= 64"], "strategies = every-64, pages >= 64: at least two strategies must differ for this"),
     ([], "strategies = none: at least two strategies must differ"),
     (["whole-ioctl", "every-64+evry-64"], "policy = evry-64: unknown policy; did you mean 'every-64'"),
     (["whole-ioctl", "every-65"], "policy = every-65: must drop the lock after a multiple of 64 pages"),
     (["whole-ioctl", "zap-batch-10"], "strategies = zap-batch-10: makes no CLEAR calls; give strategies for CLEAR"),
     (["whole-ioctl", "get-clears"], "strategies = get-clears: makes no CLEAR calls")],
)  # fmt: skip
def test_wrong_strategies_are_refused(strategies, message):
    with pytest.raises(InputError, match=message.replace("+", r"\+")):
        choose(scenario(), strategies=strategies)


@pytest.mark.parametrize("allowed_s", [None, 40e-6])
def test_answers_differences_and_budgets_agree(short, allowed_s):
    case = scenario(WRITE)
    result = choose(case, strategies=patched_kernel_strategies(case), max_stall_s=allowed_s, confidence=0.975)
    check_consistent(result)
    check_stalls_are_listed(result)
    assert result.table["allowed"].all() == (allowed_s is None)
    assert (result.budgets["recommended"] == "").any() == (result.table["stall_bound_s"].min() > BUDGETS[0])


def test_a_budget_that_no_strategy_satisfies(short):
    result = choose(scenario(WRITE, {"fault_hold": "5us"}), strategies=["every-64", "whole-ioctl"])
    assert result.budgets["recommended"].iloc[0] == ""
    assert result.readable_budgets()["recommended"].iloc[0] == "none"
    assert json.loads(json.dumps(result.to_dict()))["budgets"][0]["cost_s"] is None
    check_consistent(result)


def test_a_confidence_is_not_rounded_up(short):
    assert choose(scenario(), strategies=["every-64", "baseline"], confidence=0.999).guarantee.startswith(
        "with a joint confidence of 99.9 %, all 9 "
    )


MEANS = np.array([[20e-6, 1e-3, 5.0, 10.0, 0.9, 3.0, 2.0, 1.0, 0.4],
                  [25e-6, 1.1e-3, 5.02, 10.1, 0.899, 3.05, 2.2, 0.9, 0.4],
                  [90e-6, 2e-3, 4.9, 9.8, 0.9, 3.1, 2.0, 1.3, 0.5],
                  [20e-6, 1e-3, 5.5, 10.0, 0.89, 2.9, 1.9, 1.0, 0.3]])  # fmt: skip


"""Four strategies, of which the truth is known, in the order of METRICS."""


class Known(Trials):
    """Replications drawn from known means, with a noise that all strategies share and one that they do not."""

    def run(self, stage, numbers, what="", progress=None):
        values = []
        for number in numbers:
            random = np.random.default_rng([self.seed, stage, number])
            common, noise = random.standard_normal(len(METRICS)), random.standard_normal(MEANS.shape)
            values.append(MEANS * (1 + 0.02 * common + 0.02 * noise))
        return np.array(values)[:, : len(self.strategies)]


@pytest.mark.study
def test_all_intervals_jointly_cover_the_truth(monkeypatch):
    """In at least 80 % of 160 choices, as stated; and no other strategy is better by more than the regret."""
    monkeypatch.setattr(choice_module, "Trials", Known)
    monkeypatch.setattr(choice_module, "LOOKS", (8, 16))
    case, names = scenario(WRITE), ["every-64", "every-128", "every-256", "whole-ioctl"]
    assert METRICS[3:5] == ("precopy_duration", "guest_throughput")  # independent: the mean of a product is known
    truth = {name: criterion.value(MEANS, case.guest.vcpus, 1.0) for name, criterion in OBJECTIVES.items()}
    covered, bounded, looks, by_objective = [], [], set(), []
    for seed in range(160):
        result = choose(case, strategies=names, confidence=0.8, indifference=0.2, seed=seed)
        looks.add(result.runs[1])
        inside = []
        for name, true in truth.items():
            pairs = result.pairs[result.pairs["objective"] == name]
            more = true - true[pairs["selected"].tolist().index(True)]
            inside += [
                low <= value <= high
                for low, value, high in zip(pairs["difference_low_s"], more, pairs["difference_high_s"], strict=True)
            ]
            by_objective.append(answer_for(result, name)["regret_at_most_s"] >= -more.min() - 1e-15)
        covered.append(all(inside))
        bounded.append(all(by_objective[-len(truth) :]))
    assert looks == {8, 16}
    assert np.mean(covered) >= 0.8 - 2 * 0.032
    assert np.mean(covered) < 1  # so that the test can fail
    assert np.mean(bounded) >= np.mean(covered)


def test_the_value_of_a_cost_is_its_expected_saving():
    """Strategy 1 differs from the chosen one by the cost's logarithm, which is standard normal: 1/√(2π)."""
    random = np.random.default_rng(5)
    x, noise = random.standard_normal((2, 4000))
    values = np.column_stack([0 * x, x + 0.05, 0 * x + 3]) + 7 + random.standard_normal((4000, 1))
    result = value_of_information({"noise": noise, "x": x}, values, 0)
    assert result["cost"].tolist() == ["x", "noise"]
    expected = np.exp(-(0.05**2) / 2) / np.sqrt(2 * np.pi) - 0.05 * 0.48  # E max(0, -(x + 0.05))
    assert result["saving"].iloc[0] == pytest.approx(expected, rel=0.05)
    assert result["matters"].tolist()[0]
    assert result["switches_to"].iloc[0] == 1
    assert result["saving"].iloc[1] < 0.01 * result["saving"].iloc[0]
    quadratic = value_of_information({"x": x}, np.column_stack([0 * x, x * x - 0.5]), 0)
    assert quadratic["switches_to"].tolist() == [1]  # best in the middle, which no straight line fits


def test_a_cost_that_never_changes_the_answer_has_no_value():
    x = np.random.default_rng(6).standard_normal(64)
    result = value_of_information({"x": x}, np.column_stack([x, x + 100.0]), 0)  # the same difference always
    assert (result["saving"].item(), result["matters"].item(), result["switches_to"].item()) == (0, False, -1)
    far = value_of_information({"x": x}, np.column_stack([0 * x, x + 100.0]), 0)
    assert not far["matters"].item()
    assert far["saving"].item() == 0
    logs = dict(zip("abcdefgh", np.random.default_rng(7).standard_normal((8, 64)), strict=True))
    rounded = value_of_information(logs, np.column_stack([0 * x, 0 * x + 0.1]), 1)
    assert (rounded["saving"] == 0).all()  # not the 1e-18 in which two versions of a library differ
    assert rounded["cost"].tolist() == list("abcdefgh")


def test_chance_alone_rarely_matters():
    """One in twenty costs without any effect may seem to matter."""
    random = np.random.default_rng(7)
    matters = []
    for seed in range(300):
        log, values = random.standard_normal(32), random.standard_normal((32, 3))
        matters.append(value_of_information({"x": log}, values, 0, seed)["matters"].item())
    assert np.mean(matters) < 0.1


def test_the_chosen_strategy_is_never_the_one_to_switch_to():
    random = np.random.default_rng(8)
    for seed in range(20):
        x = random.standard_normal(24)
        values = np.column_stack([x, -x, 0.1 * x]) + random.standard_normal((24, 3))
        for chosen in range(3):
            assert value_of_information({"x": x}, values, chosen, seed)["switches_to"].item() != chosen
    assert information.SHUFFLES >= 40


def test_the_front_has_all_rows_that_nothing_dominates():
    rows = np.array([[1, 3, 1], [2, 2, 1], [3, 1, 1], [3, 2, 0], [2, 2, 1], [2, 3, 1]])
    assert pareto_front(rows).tolist() == [True, True, True, True, True, False]


def test_the_knee_is_near_the_best_in_every_respect():
    assert knee(np.array([[1.0, 100.0], [3.0, 3.0], [100.0, 1.0]])) == 1
    assert knee(np.array([[5.0, 9.0], [5.0, 3.0], [5.0, 4.0]])) == 1  # an equal column does not count
    assert knee(np.array([[1.00, 1.0], [1.01, 0.1]])) == 1  # nor does a difference of one per cent
    assert knee(np.array([[1.0, 0.0], [1.0, 1.0]])) == 0
    assert knee(np.array([[2.0, 2.0]])) == 0


def test_there_is_a_knee_even_if_an_excluded_strategy_dominates_all_others():
    """A strategy with a shorter mean stall may exceed the limit more often."""
    checked = np.ones((3, 2, len(OBJECTIVES)))
    checked[:, 1] = 0.5
    two = (Strategy("every-64"), Strategy("whole-ioctl"))
    table = Ranking(two, [0], ChoiceOptions(), checked, np.array([1.0, 9.0]), 2).table
    assert table["on_front"].tolist() == [False, True]
    assert table["knee"].tolist() == [True, False]


def test_knee_and_front_of_a_choice(short):
    result = choose(
        scenario(WRITE, {"reacquire": "10us"}), strategies=["every-64", "every-256", "every-512", "whole-ioctl"]
    )
    traded = result.table[[f"{name}_s" for name in FRONT]].to_numpy()
    assert result.table["on_front"].tolist() == pareto_front(traded).tolist()
    assert result.knee == result.table["strategy"][knee(traded)]
    assert result.table.loc[result.table["knee"], "on_front"].all()


@pytest.mark.parametrize("name", guests())
def test_a_named_guest_runs_on_every_architecture(name):
    """All strategies apply at its real size."""
    assert len(guests()[name].title) > 20
    for architecture in preset_architectures():
        case = guests()[name].in_place_of(preset_scenario(architecture))
        costs, compared = (
            UncertainCosts.of(case),
            strategies_of(case, [*patched_kernel_strategies(case), *stock_kernel_strategies(case)[1:5]]),
        )
        assert len(compared) >= 10
        assert Trials(costs, compared, 1).how == "sampled"
        drawn = Trials(costs, compared, 1).draw(0, 0)[0]
        for strategy in compared:
            assert not unsupported_reason(strategy.applied(drawn))
            assert set(build(strategy.applied(drawn)).costs) <= set(drawn.costs.given())
        choice_module.check_scenario(case)


def test_large_guests_that_cannot_be_sampled_are_announced_and_simulated_whole(monkeypatch, short):
    """A scaled-down memory would not have the longest stall."""
    case = scenario(WRITE, clear_chunk="1M")
    monkeypatch.setattr(trials, "WHOLE_PAGES", 512)
    assert Trials(UncertainCosts.of(case), strategies_of(case, ["every-64", "baseline"]), 1).how == "sampled"
    messages = []
    # The selection also runs with CLEARs of 4 MiB.
    result = choose(case, strategies=["every-64", "lock-regions"], announce=messages.append)
    assert result.how == "whole"
    assert messages[0] == (
        "2 strategies, 28 to 32 simulations: whole migrations (locks by region cannot be sampled (policy.lock_regions))"
    )
    assert result.table.notna().all().all()
    assert choose(scenario(WRITE, clear_when="at_once"), strategies=["every-64", "baseline"]).how == "whole"


def test_sampled_choices_agree_with_whole_ones(monkeypatch, short):
    """Sampling by windows gives the same answers and the same consistency."""
    case = scenario(WRITE, {"reacquire": "10us"}, {"memory": "64M"}, clear_chunk="4M", access_interval="5us")
    names = ["every-64", "every-256", "whole-ioctl"]
    whole = choose(case, strategies=names)
    monkeypatch.setattr(trials, "WHOLE_PAGES", 512)
    windows = choose(case, strategies=names)
    assert (whole.how, windows.how) == ("whole", "sampled")
    check_consistent(windows)
    for name in ("guest_time_lost", "stall", "clear", "precopy", "cost"):
        assert windows.recommended(name) == whole.recommended(name)
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
    with pytest.raises(InputError, match="clear_chunk = 2G: must not be larger than the guest's memory of 1G"):
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
    """90 % of the draws are in the interval; calibrated costs are correlated; given ones are constant."""
    names = ("fault_unlocked", "fault_hold")
    known = CostEstimate(names, np.log([800e3, 500e3]), np.array([[4e-4, -3.8e-4], [-3.8e-4, 4e-4]]), 6, 0.02, {})
    case = Scenario.parse({"policy": {"architecture": "loongarch"}, "costs": {"reacquire": "60ns"}})
    costs = UncertainCosts.of(case, known)
    draws = [Trials(costs, [Strategy("baseline")], 1).draw(0, number)[0].costs for number in range(2000)]
    frame = pd.DataFrame([draw.given() for draw in draws])
    assert (frame["reacquire"] == 60e3).all()
    prior = costs.priors["clear_page"]
    inside = frame["clear_page"].between(prior.median / prior.factor, prior.median * prior.factor)
    assert inside.mean() == pytest.approx(0.9, abs=0.02)
    logs = np.log(frame[list(names)])
    assert np.corrcoef(logs.T)[0, 1] == pytest.approx(-0.95, abs=0.02)
    assert logs["fault_unlocked"].std() == pytest.approx(0.02 * np.sqrt(6 / 4), rel=0.1)  # of a t with six degrees
    assert costs.evidence == "partly calibrated: faults only"


def test_a_cost_that_only_a_fit_has_is_not_zero():
    """The hand-off of x86 grows with the queue, for which no architecture has a prior."""
    preset = preset_scenario("x86-shadow")
    costs = UncertainCosts.of(preset, find_fit(preset).estimate)
    assert costs.sources()["queue_length_penalty"] == "calibrated"
    assert costs.draw(np.random.default_rng(1)).costs.queue_length_penalty > 50_000


@pytest.mark.parametrize("name", preset_architectures())
def test_the_preset_guest_runs_on_every_architecture_with_all_its_costs(name):
    case = with_guest(preset_scenario(name, vcpus=4), {"guest": {"memory": "64M"}, "workload": {"downtime": "1ms"}})
    compared = strategies_of(case, patched_kernel_strategies(case))
    replications = Trials(UncertainCosts.of(case), compared, 1)
    values = replications.run(0, [0])
    assert values.shape == (1, len(compared), len(METRICS))
    assert np.isfinite(values).all()
    assert (values[0, :, METRICS.index("clear_cpu_time")] > 0).all()
    assert replications.draw(0, 0)[1] > 0


def test_a_scenario_with_variants_is_refused():
    case = Scenario.parse({"workload": {"kind": "migration"}, "variants": {"a": {}, "b": {"guest": {"vcpus": 2}}}})
    with pytest.raises(InputError, match="variants = a, b: must be empty for a choice"):
        choose(case)


@pytest.mark.parametrize(
    ("host", "fit", "text"),
    [("x86-published", None, "calibrated on published tables of hosts whose hardware no source states (x86-published)"),
     ("ampere-altra", None, "calibrated on ampere-altra (arm64-dirty-memory-time)"),
     ("unnamed", "host-amd-epyc-2", "calibrated on measurements by simlib (host-pvm: AMD EPYC, 2 CPUs, Linux 6.18"),
     ("unnamed", "lab-riscv", "calibrated on kernels in an emulator, not on hardware (lab-riscv)")],
)  # fmt: skip
def test_the_grounds_name_the_host(host, fit, text):
    case = Scenario.parse({"host": {"name": host}})
    calibrated = fit_of(case, fit and data_dir() / "fits" / f"{fit}.json")
    assert grounds("calibrated", calibrated).startswith(text)
    assert fit_of(case, calibrated.estimate) is None


def test_a_fit_that_does_not_determine_a_cost_is_not_trusted(short):
    good = find_fit(preset_scenario("arm64"))
    assert good.doubt == ""
    parameters = good.parameters.assign(determined=good.parameters["name"] != "fault_hold")
    bad = dataclasses.replace(
        good.with_meta(valid={"all_determined": False, "converged": False}), parameters=parameters
    )
    hold = bad.costs().set_index("name").loc["fault_hold"]
    doubt = (f"your fit did not pass 'converged' and does not constrain fault_hold ({hold['low']:.5g} to "
             f"{hold['high']:.5g} ns): do not trust this answer until that is resolved")  # fmt: skip
    small = with_guest(preset_scenario("arm64", vcpus=2), {"guest": {"memory": "4M"}, "workload": {"downtime": "0ps"}})
    assert choose(small, strategies=["every-64", "whole-ioctl"], fit=bad).grounds.endswith(f"; but {doubt}")
    assert f"warning: {doubt}" in predict(small, [2], fit=bad, metrics=["clear_cpu_time"]).flags


def test_a_calibration_on_an_unknown_host_is_labelled(short):
    small = {"guest": {"memory": "4M"}, "workload": {"downtime": "0ps"}}
    result = choose(with_guest(preset_scenario("x86-tdp", vcpus=2), small), strategies=["every-64", "whole-ioctl"])
    assert result.evidence == "calibrated"
    assert result.evidence_label == "calibrated, host not stated"
    assert result.grounds in result.summary()
    assert result.to_dict()["grounds"] == result.grounds


def test_tracking_strategies_are_those_of_the_architecture():
    assert tracking_strategies(preset_scenario("arm64"))[:3] == ("baseline", "write-protect", "hdbss")
    assert tracking_strategies(preset_scenario("riscv"))[:3] == ("baseline", "write-protect", "dirty-ring-1024")


def test_a_parabola_below_zero_saves_nothing():
    """The chosen strategy is always 0, another one sometimes more: nothing can be saved, even if a curve is below 0."""
    x = np.linspace(-2, 2, 60)
    other = np.where(np.arange(60) % 20 == 19, np.exp(2 * x), 0.0)
    result = value_of_information({"x": x}, np.column_stack([0 * x, other]), 0)
    design = np.column_stack([np.ones(60), x, x * x])
    assert (design @ np.linalg.lstsq(design, other, rcond=None)[0]).min() < 0
    assert (result["saving"].item(), result["switches_to"].item(), result["matters"].item()) == (0, -1, False)
