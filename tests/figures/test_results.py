# SPDX-License-Identifier: BSD-3-Clause
"""Interface of all results: a short repr, a summary, HTML, figures."""

from __future__ import annotations

import pytest

import simlib
from simlib import InputError, Scenario
from simlib.measurements.fits import find_fit

COSTS = {"fault_unlocked": "700ns", "fault_hold": "600ns", "line_transfer": "50ns", "fault_jitter": 0.05}
SMALL = Scenario.parse({"guest": {"vcpus": 2, "memory_per_vcpu": "2M"}, "costs": COSTS})
MIGRATION = Scenario.parse(
    {"guest": {"vcpus": 2, "memory": "8M"}, "policy": {"architecture": "x86-shadow-paging"}, "costs": COSTS,
     "workload": {"kind": "migration", "pass_limit": 1, "clear_chunk": "1M", "warm_up": "10us", "downtime": "0ps"}}
)  # fmt: skip


@pytest.fixture(scope="module")
def results():
    measured = {n: simlib.simulate(SMALL, vcpus=n).metrics["dirty_memory_time"] for n in (1, 2, 3, 4, 6, 8)}
    frame = simlib.predict(SMALL, [1], metrics=["dirty_memory_time"]).frame[["vcpus"]]
    frame = frame.iloc[[0] * len(measured)].assign(vcpus=list(measured), dirty_memory_time_s=list(measured.values()))
    unknown = Scenario.parse(
        {"guest": {"vcpus": 2, "memory_per_vcpu": "2M"},
         "costs": {key: value for key, value in COSTS.items() if key not in ("fault_unlocked", "fault_hold")},
         "calibration": {"costs": ["fault_unlocked", "fault_hold"]}}
    )  # fmt: skip
    quick = simlib.CalibrationOptions(pages_per_vcpu=512, profile=False)
    return {
        "simulation": simlib.simulate(SMALL),
        "migration": simlib.simulate(MIGRATION),
        "prediction": simlib.predict(SMALL, [1, 4], metrics=["dirty_memory_time", "contentions"]),
        "comparison": simlib.compare(SMALL, ["baseline", "fast-path-read-lock"], [1, 4], metrics=["dirty_memory_time"]),
        "calibrated": simlib.calibrate(unknown, frame, options=quick),
        "fit": find_fit(Scenario.parse({"host": {"name": "ampere-altra"}})),
        "choice": simlib.choose_batch(MIGRATION),
    }


NAMES = ("simulation", "migration", "prediction", "comparison", "calibrated", "fit", "choice")


@pytest.mark.parametrize("name", NAMES)
def test_a_result_has_a_short_repr(results, name):
    result = results[name]
    assert len(repr(result)) < 1500
    assert len(repr(result).splitlines()) <= 8
    assert result.summary().startswith(repr(result).splitlines()[0])
    assert "<" in result._repr_html_()


@pytest.mark.parametrize("name", NAMES)
def test_a_result_can_be_drawn(results, name):
    result = results[name]
    drawn = 0
    for figure in result.figures():
        made = result.plot(figure)
        assert made == getattr(simlib.figures, figure)(result)
        drawn += len(made.data)
    assert drawn
    assert result.plot() == result.plot(result.figures()[0])
    with pytest.raises(InputError, match=f"is not a figure of a {type(result).__name__}"):
        result.plot("pie")


def test_figures_take_a_result_without_reshaping(results):
    assert simlib.figures.contentions(results["prediction"], 1024).data
    assert simlib.figures.speed_up(results["prediction"]).data
    assert results["prediction"].plot("over_vcpus", metric="contentions").data
    with pytest.raises(InputError, match="must be a metric of the table"):
        results["prediction"].plot(metric="zap_time")


def test_the_repr_of_a_scenario_is_one_line():
    scenario = Scenario.parse({"variants": {"a": {}}})
    assert repr(scenario) == (
        "<Scenario dirty_log_perf_test on unnamed: 1 vCPU, 1 GiB, arm64, costs given: 0, variants a>"
    )
    assert "[guest]" in SMALL.summary()
    assert SMALL._repr_html_().startswith("<pre>")


def test_a_calibration_predicts(results):
    prediction = simlib.predict(
        results["calibrated"].scenario, [16], fit=results["calibrated"], metrics=["dirty_memory_time"]
    )
    assert (prediction.frame["estimate"] > 0).all()
