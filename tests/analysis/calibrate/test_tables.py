# SPDX-License-Identifier: BSD-3-Clause
"""Calibration with several tables: names, conditions, different metrics, and noise of each table."""

import io

import numpy as np
import pandas as pd
import pytest

from simlib import CalibrationOptions, calibrate, load_fit, measurements, save_fit
from simlib._lib.errors import InputError
from simlib.analysis.calibrate.tables import conditions_of, read_tables, split_conditions
from simlib.analysis.simulate import run_scenario
from simlib.model.scenario import Scenario

FILE = {
    "guest": {"memory_per_vcpu": "4M", "memslot_aligned": False},
    "workload": {"iterations": 2, "initially_set": False},
    "policy": {"architecture": "x86-shadow-paging"},
    "costs": {"line_transfer": "60ns", "fault_jitter": 0.05},
    "calibration": {"costs": ["fault_unlocked", "fault_hold", "clear_page"],
                    "metrics": ["dirty_memory_time", "contentions", "clear_dirty_log_time"]},
}  # fmt: skip
KNOWN = {"fault_unlocked": 900_000.0, "fault_hold": 400_000.0, "clear_page": 35_000.0}
DEVIATIONS = {"dirty_memory_time": 0.01, "contentions": 0.06, "clear_dirty_log_time": 0.002}


def value(vcpus, metric, noise):
    run = run_scenario(Scenario.parse(FILE).with_vcpus(vcpus).with_costs(**KNOWN), seed=5)
    return float(run.value(metric) * np.exp(DEVIATIONS[metric.partition("[")[0]] * noise.standard_normal()))


@pytest.fixture(scope="module")
def tables():
    """Three tables of one host: times of an iteration; sums and counts; times of CLEAR by iteration."""
    noise = np.random.default_rng(3)
    many = [1, 2, 3, 4, 5, 6, 7, 8, 12]
    times = pd.DataFrame(
        [(n, 2, value(n, "dirty_memory_time[2]", noise)) for n in many],
        columns=["vcpus", "iteration", "dirty_memory_time_s"],
    )
    counts = pd.DataFrame(
        [(n, 1e3 * value(n, "dirty_memory_time", noise), value(n, "contentions", noise)) for n in many],
        columns=["vcpus", "dirty_memory_time_ms", "contentions"],
    )
    clear = pd.DataFrame(
        [(n, i, value(n, f"clear_dirty_log_time[{i}]", noise)) for n in many[:4] for i in (1, 2)],
        columns=["vcpus", "iteration", "clear_dirty_log_time_s"],
    )
    return {"times": times, "counts": counts, "clear": clear}


@pytest.fixture(scope="module")
def fit(tables):
    train = {"": "vcpus <= 8", "clear": "vcpus != 3"}
    options = CalibrationOptions(pages_per_vcpu=1024, profile=False, level=0.99)
    return calibrate(Scenario.parse(FILE), tables, train, options=options)


def test_each_table_provides_the_metrics_that_it_has(fit):
    counts = fit.observations.groupby(["table", "metric"])["train"].agg(["size", "sum"])
    assert counts.T.to_dict("list") == {
        ("clear", "clear_dirty_log_time[1]"): [4, 3], ("clear", "clear_dirty_log_time[2]"): [4, 3],
        ("counts", "contentions"): [9, 7],  # one vCPU never contends
        ("counts", "dirty_memory_time"): [9, 8], ("times", "dirty_memory_time[2]"): [9, 8],
    }  # fmt: skip
    assert fit.meta["dataset"] == "times, counts, clear"


def test_costs_are_recovered_from_all_tables_together(fit):
    for row in fit.parameters.itertuples():
        assert row.low < KNOWN[row.name] < row.high, row
    assert np.exp(fit.estimate.logs) == pytest.approx([KNOWN[name] for name in fit.estimate.names], rel=0.05)


def test_each_metric_of_each_table_has_a_separate_noise(fit):
    noise = fit.noise.set_index(["table", "metric"])
    assert (noise["source"] == "own").all()
    for (_, metric), deviation in noise["deviation"].items():
        assert DEVIATIONS[metric] / 2.5 < deviation < DEVIATIONS[metric] * 2.5, metric
    assert fit.estimate.spread["contentions"] > 2.5
    assert fit.estimate.spread["clear_dirty_log_time"] < 0.5


def test_a_fit_file_keeps_the_noise_and_the_conditions(fit, tmp_path):
    save_fit(fit, tmp_path / "fit.json", {"": "vcpus <= 8", "clear": "vcpus != 3"})
    loaded = load_fit(tmp_path / "fit.json")
    assert loaded.meta["train"] == "vcpus <= 8; clear:vcpus != 3"
    pd.testing.assert_frame_equal(loaded.noise, fit.noise, rtol=1e-5)
    assert loaded.estimate.spread == fit.estimate.spread


def test_a_metric_that_no_table_has_is_refused(tables):
    with pytest.raises(InputError, match=r"no column has contentions.*add a column contentions") as caught:
        calibrate(Scenario.parse(FILE), [tables["times"], tables["clear"]])
    assert caught.value.what == "columns of DataFrame, DataFrame 2"
    with pytest.raises(InputError, match="columns of extra = vcpus, flush_time_s: no column is a metric of"):
        calibrate(Scenario.parse(FILE), tables | {"extra": pd.DataFrame({"vcpus": [1], "flush_time_s": [1.0]})})


def test_a_condition_on_a_column_that_a_table_lacks_asks_for_a_separate_condition(tables):
    named_tables = read_tables(tables)
    with pytest.raises(InputError) as caught:
        conditions_of("train", "iteration > 1", named_tables)
    assert str(caught.value) == (
        "train of counts = iteration > 1: the table has no column iteration; "
        'give this table a separate condition: train={"counts": "…", "": "iteration > 1"}'
    )
    assert '--train "counts:…"' in caught.value.cli_message()
    assert conditions_of("train", {"": "iteration > 1", "counts": ""}, named_tables) == [
        "iteration > 1",
        "",
        "iteration > 1",
    ]
    with pytest.raises(InputError, match="did you mean 'clear'"):
        conditions_of("select", {"cleer": ""}, named_tables)


@pytest.mark.study
def test_select_leaves_rows_out_by_table(tables):
    select = {"times": "not vcpus in (1, 12)", "": ""}
    options = CalibrationOptions(select=select, pages_per_vcpu=512, profile=False)
    fit = calibrate(Scenario.parse(FILE), tables, options=options)
    assert fit.observations["table"].value_counts().to_dict() == {"counts": 18, "clear": 8, "times": 7}


@pytest.mark.parametrize(
    ("texts", "conditions"),
    [
        ([], {}),
        (["vcpus <= 8"], {"": "vcpus <= 8"}),
        (["mine: vcpus <= 8", "vcpus == 1"], {"mine": "vcpus <= 8", "": "vcpus == 1"}),
        (["series == 'a: b'"], {"": "series == 'a: b'"}),
        (["series==a:b"], {"": "series==a:b"}),
    ],
)
def test_conditions_of_the_command_line(texts, conditions):
    assert split_conditions("train", texts, ["mine", "theirs"]) == conditions


@pytest.mark.parametrize(
    ("texts", "rule"),
    [
        (["your:vcpus > 1"], "'your' is not one of the tables"),
        (["vcpus > 1", "vcpus < 9"], "is a second condition for all tables"),
    ],
)
def test_a_condition_for_an_unknown_table_or_a_second_one_is_refused(texts, rule):
    with pytest.raises(InputError, match=rule):
        split_conditions("train", texts, ["mine", "theirs"])


def test_the_command_accepts_several_tables(tables, tmp_path, ask):
    for name, frame in tables.items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    scenario = tmp_path / "scenario.toml"
    scenario.write_text(Scenario.parse(FILE).to_toml(), encoding="utf-8")
    files = [tmp_path / f"{name}.csv" for name in tables]
    train = ("--train", "vcpus <= 8", "--train", "clear:vcpus != 3")
    code, out, err = ask("calibrate", scenario, *files, *train, "--out", tmp_path / "out.json", "--format", "csv")
    assert code == 0, err
    assert set(pd.read_csv(io.StringIO(out))["name"]) == set(KNOWN)
    assert "observations: 29, costs: 3" in err
    assert load_fit(tmp_path / "out.json").meta["train"] == "vcpus <= 8; clear:vcpus != 3"


def test_shipped_fit_files_without_noise_by_group_are_read():
    """Older files have only the spread of each metric."""
    for path in (measurements.data_dir() / "fits").glob("*.json"):
        assert load_fit(path).estimate.dof > 0
