# SPDX-License-Identifier: BSD-3-Clause
"""Calibration recovers known costs from synthetic measurements; invalid problems are refused."""

import numpy as np
import pandas as pd
import pytest

from simlib import CalibrationOptions, calibrate, measurements, predict
from simlib._lib.errors import CalibrationError, InputError
from simlib.analysis.calibrate import build_problem, sobol_indices, strongest_correlations
from simlib.analysis.calibrate import fit as fitting
from simlib.analysis.calibrate.search import LogResiduals, first_guess
from simlib.analysis.simulate import run_scenario
from simlib.measurements import as_table
from simlib.measurements.fits import CostEstimate
from simlib.model.scenario import Scenario

PAGES = 1024
LEVEL = 0.99
"""Several intervals are checked at once; at 90 % one of them would usually miss."""

FILE = {
    "guest": {"vcpus": 4, "memory_per_vcpu": "8M", "memslot_aligned": False},
    "costs": {"fault_jitter": 0.5, "others": "0ns"},
    "calibration": {"costs": ["fault_hold", "line_transfer"], "per_group_costs": ["fault_unlocked"],
                    "metrics": ["dirty_memory_time", "contentions"]},
    "variants": {"old": {"policy": {"architecture": "x86-shadow-paging"}},
                 "new": {"policy": {"architecture": "arm64"}}},
}  # fmt: skip
KNOWN = {
    "fault_unlocked[old]": 900_000.0,
    "fault_unlocked[new]": 650_000.0,
    "fault_hold": 400_000.0,
    "line_transfer": 60_000.0,
}


def measured(tmp_path, text, name="simulated"):
    path = tmp_path / f"{name}.csv"
    path.write_text(text, encoding="utf-8")
    return measurements.read(path)


@pytest.fixture(scope="module")
def scenario():
    return Scenario.parse(FILE)


@pytest.fixture(scope="module")
def table(scenario, tmp_path_factory):
    """Simulated times with the known costs, a seed that no calibration uses, and 0.5 % of noise."""
    noise = np.random.default_rng(11)
    rows = ["series,vcpus,dirty_memory_time_s,contentions"]
    for series, variant in scenario.variants.items():
        costs = {k.partition("[")[0]: v for k, v in KNOWN.items() if "[" not in k or f"[{series}]" in k}
        for vcpus in (1, 2, 4, 6, 8, 12, 16):
            metrics = run_scenario(variant.with_vcpus(vcpus).with_costs(**costs), seed=987).metrics
            time = metrics["dirty_memory_time"] * np.exp(0.005 * noise.standard_normal())
            rows.append(f"{series},{vcpus},{time!r},{int(metrics['contentions'])}")
    return measured(tmp_path_factory.mktemp("data"), "\n".join(rows).replace("np.float64(", "").replace(")", "") + "\n")


@pytest.fixture(scope="module")
def progress_calls():
    """Calls of `progress` during the calibration of `fit`."""
    return []


@pytest.fixture(scope="module")
def fit(scenario, table, progress_calls):
    return calibrate(
        scenario, table, "vcpus <= 8", progress=lambda *call: progress_calls.append(call),
        options=CalibrationOptions(pages_per_vcpu=PAGES, level=LEVEL),
    )  # fmt: skip


def test_known_costs_are_recovered(fit):
    assert set(fit.estimate.names) == set(KNOWN)
    parameters = fit.parameters.set_index("name")
    for name, value in KNOWN.items():
        row = parameters.loc[name]
        assert row["low"] <= value <= row["high"], f"{name}: {value} not in {row['low']:.0f} … {row['high']:.0f}"
        assert row["value"] == pytest.approx(value, rel=0.15 if name == "line_transfer" else 0.05), name
        assert row["low"] < row["value"] < row["high"]
    assert all(fit.valid.values()), fit.valid
    assert fit.estimate.discrepancy < 0.02


def test_progress_rises_to_the_end(fit, progress_calls):
    shares = [share for _, share in progress_calls]
    assert shares == sorted(shares)
    assert [share for what, share in progress_calls if what == "profile intervals"][-1] == progress_calls[-1][1] == 1


def test_the_guess_is_within_the_physical_bounds_for_any_measured_times(scenario, tmp_path):
    rows = "".join(f"new,{n},{1e6 * n},{n}\nold,{n},{1e-9 * n},{n}\n" for n in (1, 2, 4))
    problem = build_problem(
        scenario, measured(tmp_path, f"series,vcpus,dirty_memory_time_s,contentions\n{rows}", "far")
    )
    guess, (low, high) = first_guess(problem), problem.bounds.T
    assert (low < guess).all()
    assert (guess < high).all()
    assert guess.max() == pytest.approx(high.max() - 0.01)


@pytest.mark.parametrize(("pages", "coarse"), [(1024, 512), (8192, 1024)])
def test_starts_are_tried_on_an_eighth_of_the_pages(scenario, table, monkeypatch, pages, coarse):
    def stop(objective, _):
        raise CalibrationError(f"{objective.pages} pages")

    monkeypatch.setattr(fitting, "explore", stop)
    with pytest.raises(CalibrationError, match=f"^{coarse} pages$"):
        calibrate(scenario, table, options=CalibrationOptions(pages_per_vcpu=pages))


def test_held_out_rows_lie_in_the_predicted_intervals(fit, scenario):
    held_out = fit.observations[~fit.observations["train"] & (fit.observations["metric"] == "dirty_memory_time")]
    curves = predict(
        scenario, [12, 16], fit=fit, metrics=["dirty_memory_time"], pages_per_vcpu=PAGES, level=LEVEL
    ).frame
    merged = held_out.merge(curves, on=["variant", "vcpus", "metric"], validate="1:1")
    assert len(merged) == 4
    assert ((merged["low"] <= merged["value"]) & (merged["value"] <= merged["high"])).all()
    # Readers are limited by the cache line there, which affects the training points less.
    assert (merged["high"] / merged["low"] < merged["variant"].map({"old": 1.10, "new": 1.25})).all()
    assert merged.loc[merged["variant"] == "old", "error"].abs().max() < 0.02


def test_a_count_of_zero_is_listed_but_not_fitted(fit):
    """It has no logarithm."""
    zeros = fit.observations[fit.observations["value"] == 0]
    assert set(zeros["variant"]) == {"old", "new"}
    assert not zeros["train"].any()
    assert zeros["model"].tolist() == [0] * len(zeros)
    assert zeros["error"].isna().all()


def test_a_calibration_repeats_bit_for_bit():
    options = CalibrationOptions(pages_per_vcpu=128, profile=False)
    first, second = (calibrate(Scenario.parse(ONE), one_iteration(0), options=options) for _ in range(2))
    assert first.estimate.logs.tolist() == second.estimate.logs.tolist()
    pd.testing.assert_frame_equal(first.parameters, second.parameters, check_exact=True)


def test_correlations_are_sorted_by_strength(fit):
    pairs = strongest_correlations(fit, 6)
    assert len(pairs) == 6
    strengths = [abs(r) for _, _, r in pairs]
    assert strengths == sorted(strengths, reverse=True)
    assert all(fit.correlation.loc[a, b] == r for a, b, r in pairs)


def test_sobol_indices_name_every_cost_and_refuse_seed_zero(fit):
    with pytest.raises(InputError, match="seed = 0: must be at least 1; SALib treats 0 as no seed"):
        sobol_indices(fit, "old", 16, seed=0)
    first, second = (sobol_indices(fit, "old", 16, seed=seed) for seed in (1, 1))
    pd.testing.assert_frame_equal(first, second, check_exact=True)
    total = first.set_index("name")["total"]
    assert set(total.index) == set(KNOWN)
    assert total["fault_unlocked[new]"] == 0  # a cost of the other variant has no effect here
    assert 0.7 < first["first"].sum() < 1.3


# Counts of zero are not fitted: one vCPU never contends, nor do readers among themselves (variant "new").
@pytest.mark.parametrize(("train", "count"), [("vcpus <= 1", 2), ("vcpus > 12", 3), ("vcpus > 100", 0)])
def test_too_few_observations_are_refused(scenario, table, train, count):
    with pytest.raises(CalibrationError) as caught:
        build_problem(scenario, table, train)
    assert "(4: fault_hold, line_transfer, fault_unlocked[new], fault_unlocked[old])" in str(caught.value)
    assert str(caught.value).startswith(f"the number of observations ({count}) must exceed the number of costs (4: ")
    assert "train on more rows or calibrate fewer costs" in str(caught.value)


TIMES = "series,vcpus,dirty_memory_time_s\nold,1,1\nold,2,1.1\nold,4,1.5\nnew,1,1\nnew,2,1.1\nnew,4,1.5\n"


@pytest.mark.parametrize(
    ("changes", "text", "what", "rule", "hint"),
    [
        ({}, "vcpus,dirty_memory_time_s,contentions\n1,1,2\n", "columns of", "of each row, is missing",
         "variants: old, new"),
        ({}, "series,vcpus,dirty_memory_time_s,contentions\nx,1,1,2\n", "series of", "is a variant of", "old, new"),
        ({"variants": {}}, TIMES, "series of", "one series must be chosen", "give the condition series == 'NAME'"),
        ({"calibration": {"costs": ["flush"], "metrics": ["dirty_time"]}}, TIMES, "metric",
         "has no metric of this name", "'dirty_memory_time'"),
        ({"costs": {"fault_hold": "1us"}}, TIMES, "costs.fault_hold", "a cost to estimate", "remove it"),
        ({}, "series,dirty_memory_time_s\nold,1\n", "columns of", "vcpus is missing", ""),
    ],
)  # fmt: skip
def test_a_table_that_does_not_match_the_scenario_is_refused(tmp_path, changes, text, what, rule, hint):
    table = measured(tmp_path, text)
    with pytest.raises(InputError) as caught:
        build_problem(Scenario.parse({**FILE, **changes}), table)
    assert caught.value.what.startswith(what)
    assert rule in caught.value.rule
    assert hint in caught.value.hint


def test_a_metric_that_was_not_measured_is_refused(scenario, tmp_path):
    with pytest.raises(InputError, match="contentions"):
        build_problem(scenario, measured(tmp_path, TIMES))


ONE = {
    "guest": {"vcpus": 4, "memory_per_vcpu": "4M", "memslot_aligned": False},
    "workload": {"iterations": 2, "initially_set": False},
    "policy": {"architecture": "x86-shadow-paging"},
    "costs": {"line_transfer": "60ns", "fault_jitter": 0.05},
    "calibration": {"costs": ["fault_unlocked", "fault_hold"]},
}  # fmt: skip
KNOWN_ONE = {"fault_unlocked": 900_000.0, "fault_hold": 400_000.0}


def one_iteration(iteration):
    """Measurements of one of two iterations, or their sum (0): without INITIALLY_SET both take equally long."""
    scenario = Scenario.parse(ONE)
    name = f"dirty_memory_time[{iteration}]" if iteration else "dirty_memory_time"
    runs = {
        n: run_scenario(scenario.with_vcpus(n).with_costs(**KNOWN_ONE), seed=5).value(name) for n in (1, 2, 3, 4, 6)
    }
    return pd.DataFrame({"vcpus": list(runs), "dirty_memory_time_s": list(runs.values())})


@pytest.mark.study
def test_a_data_frame_of_one_iteration_gives_the_same_costs_as_the_sum():
    """If the column were misread, the costs would be wrong by a factor of two."""
    by_column = one_iteration(2).assign(iteration=2)
    named = ONE | {"calibration": ONE["calibration"] | {"metrics": ["dirty_memory_time[2]"]}}
    for file, table in ((ONE, one_iteration(0)), (ONE, by_column), (named, one_iteration(2))):
        fit = calibrate(Scenario.parse(file), table, options=CalibrationOptions(pages_per_vcpu=PAGES, profile=False))
        costs = dict(zip(fit.estimate.names, np.exp(fit.estimate.logs), strict=True))
        assert costs == pytest.approx(KNOWN_ONE, rel=0.1)
        assert fit.observations["metric"].iloc[0] == ("dirty_memory_time" if table.equals(one_iteration(0)) else
                                                "dirty_memory_time[2]")  # fmt: skip


def test_a_table_may_have_rows_of_an_iteration_and_sums():
    frame = pd.concat([one_iteration(2).assign(iteration=2), one_iteration(0).assign(iteration=None)])
    rows = build_problem(Scenario.parse(ONE), measurements.as_table(frame)).observations
    assert rows["metric"].value_counts().to_dict() == {"dirty_memory_time": 5, "dirty_memory_time[2]": 5}
    extended = measurements.as_table(frame.assign(contentions=1, host="mine"))
    assert build_problem(Scenario.parse(ONE), extended).not_used == ("contentions",)


def test_an_iteration_that_the_workload_lacks_is_refused():
    with pytest.raises(InputError, match=r"dirty_memory_time\[3\]: the workload has iterations 1 to 2"):
        calibrate(Scenario.parse(ONE), one_iteration(2).assign(iteration=3))
    contended = one_iteration(2).assign(iteration=2, contentions=1)
    named = ONE | {"calibration": ONE["calibration"] | {"metrics": ["contentions"]}}
    with pytest.raises(InputError, match=r"contentions\[2\]: contentions has no iterations"):
        calibrate(Scenario.parse(named), contended)


def test_costs_neither_given_nor_calibrated_are_sampled_in_predictions():
    """On an architecture that broadcasts invalidations, their cost matters."""
    broadcasting = Scenario.parse(ONE | {"policy": {"architecture": "arm64-2022"}})
    fit = calibrate(broadcasting, one_iteration(0), options=CalibrationOptions(pages_per_vcpu=512, profile=False))
    sampled, exact = (
        predict(broadcasting.with_costs(**given), [8], fit=fit, metrics=["dirty_memory_time"]).frame.iloc[0]
        for given in ({}, {"tlb_invalidate": "700ns"})
    )
    assert sampled["estimate"] == pytest.approx(exact["estimate"], rel=1e-9)  # 700 ns is the prior's median
    assert sampled["high"] - sampled["low"] > 2 * (exact["high"] - exact["low"])


def test_costs_that_the_rows_hardly_distinguish_stay_within_their_bounds():
    """The slopes of two costs are nearly the same, so that random errors in them would dominate."""
    problem = build_problem(
        Scenario.parse(ONE | {"policy": {"architecture": "arm64-2022"}}), as_table(one_iteration(0))
    )
    rows, costs = len(problem.train), len(problem.names)
    objective = LogResiduals(problem, np.ones(rows), 512, 1)
    estimate = CostEstimate(problem.names, first_guess(problem), np.zeros((costs, costs)), 2, 0.02, {})
    slopes = np.linspace(0.5, 0.6, rows)[:, None] + 1e-7 * np.random.default_rng(1).standard_normal((rows, costs))
    half = np.diff(problem.bounds).ravel() / 2
    names, moved = fitting.held_at_medians(objective, estimate, slopes, 0.02**2 / half**2)
    assert "tlb_invalidate" in names
    assert (np.abs(moved) < half[:, None]).all()
    assert np.abs(np.linalg.pinv(slopes)).max() > 1e3


def test_a_bad_data_frame_is_refused_like_a_bad_file():
    with pytest.raises(InputError, match="DataFrame"):
        calibrate(Scenario.parse(ONE), pd.DataFrame({"vcpus": [1, 1], "dirty_memory_time_s": [1.0, 2.0]}))
