# SPDX-License-Identifier: BSD-3-Clause
"""Hardware logging: published times beside the model's, QEMU's dirty ring, and preregistered predictions."""

from __future__ import annotations

import numpy as np
import pytest
from notebook_run import ROOT, assert_ran_without_complaint

from simlib.analysis.simulate import run_scenario
from simlib.measurements.fits import UncertainCosts
from simlib.model.scenario import Scenario
from studies import hardware_logs
from studies.hardware_logs import preregistered, published_times, rings
from studies.study import held_out, with_errors


@pytest.mark.parametrize(
    ("tracking", "page"), [("pml", published_times.by_hardware), ("write_protect", published_times.by_fault)]
)
def test_a_write_takes_in_the_simulator_what_the_study_says(tracking, page):
    """Without jitter, and without a cache line that is moved to oneself."""
    case = Scenario.parse({
        "guest": {"vcpus": 1, "memory": "1G"}, "policy": {"architecture": "x86-tdp", "dirty_tracking": tracking},
        "workload": {"kind": "dirty_log_perf_test", "iterations": 1, "initially_set": False}})  # fmt: skip
    case = UncertainCosts.of(case).central().with_costs(line_local=0, fault_jitter=0.0)
    (page_ps,) = page(lambda name: np.array([getattr(case.costs, name)], dtype=float))
    time = run_scenario(case).metrics["dirty_memory_time"]
    assert time == pytest.approx(published_times.GIB_PAGES * page_ps * 1e-12, rel=1e-3)


def test_what_misses_has_a_cause_and_nothing_else_has():
    rows = held_out(published_times.published_numbers())
    assert (rows["cause"] != "").tolist() == (rows["inside"] == False).tolist()  # noqa: E712  # None: no interval
    assert len(rows) == 15


def test_one_draw_of_the_costs_answers_each_question_within_reach_of_the_prediction():
    """The smaller guest; half of an interval's width beyond its ends is reach enough for one draw of the costs."""
    rows = hardware_logs.preregistered_predictions().query("guest_memory == '8G'").set_index("question")
    (small, _) = preregistered.asked()
    for what, answer in zip(preregistered.QUESTIONS, preregistered.answers(small, 0, lambda *_: None), strict=True):
        low, high = rows.loc[what, ["low", "high"]]
        assert low / 2 <= answer <= 2 * high, what


@pytest.mark.study
def test_the_link_gives_the_published_bitmap_back_and_the_ring_lies_in_its_interval():
    link = rings.link_of(55.0)
    assert rings.migration_time("bitmap", link, seed=1) == pytest.approx(55.0, rel=0.01)
    numbers = hardware_logs.STUDY.load_or_compute().of_table(rings.AVERAGE)
    ring = with_errors(numbers).set_index("variant").loc["ring of 4096"]
    assert ring["inside"]
    assert abs(ring["error_percent"]) < 10


@pytest.mark.study
def test_the_notebook_shows_what_it_computes(ran):
    run = ran(ROOT / "notebooks" / "14-hardware-logs.ipynb")
    assert_ran_without_complaint(run)
    matters = run["findings"].tables["matters"]
    writes = matters[~matters["memory"].str.endswith("split by faults")].set_index(
        ["mmu", "memory", "tracking", "hold"]
    )
    lost = writes["lost_percent"].unstack("tracking")
    assert (lost["write protection"] > 5 * lost["PML"]).all()
    assert np.ptp(lost.unstack("hold").to_numpy().reshape(-1, 2), axis=1).max() < 0.001  # the hold changes nothing
    longest = matters[matters["memory"].str.endswith("split by faults")].set_index(["mmu", "tracking", "hold"])
    stalls = longest["longest_stall_s"].unstack("hold")
    assert (stalls["a GiB"] > 10 * stalls["64 pages"]).all()
