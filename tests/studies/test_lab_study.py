# SPDX-License-Identifier: BSD-3-Clause
"""The lab's committed data beside the model: counts to the unit, costs with intervals, cells under load, switches."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest
from notebook_run import ROOT, assert_ran_without_complaint, figures_of

from simlib.analysis.calibrate import find_fit
from simlib.analysis.predict import predict
from simlib.lab.hardware import instructions, load
from simlib.lab.hardware.counts import count_comparison
from simlib.lab.hardware.machines import LABS, lab_name, lab_scenario, rows_of
from simlib.lab.hardware.translation import FILE, KINDS, translate
from simlib.measurements import data_dir
from simlib.measurements.fits import load_priors
from studies.lab import STUDY, figures, processor, rings, told, translation
from studies.lab.switches import SWITCHES
from studies.study import HELD_OUT


@pytest.fixture(scope="module")
def found():
    return STUDY.load_or_compute()


@pytest.fixture(scope="module")
def table(found):
    return found.tables["ratios"]


@pytest.fixture(scope="module", params=LABS)
def machine(request):
    return request.param


@pytest.fixture(scope="module")
def counts(machine, found):
    return found.tables["counts"].query("machine == @machine")


@pytest.fixture(scope="module")
def costs(machine, found):
    return found.tables["instruction-costs"].query("machine == @machine").set_index("name")


@pytest.fixture(scope="module")
def cells(machine, found):
    return found.tables["under-load"].query("machine == @machine")


def test_counts_are_the_kernels_own(counts):
    """From the moment the log is enabled, every acquisition that the model has: to the unit, in every cell."""
    judged = counts[counts["phase"] != "populate"]
    assert len(judged) >= 6
    assert judged[judged["difference"] != 0].empty


def test_counts_do_not_depend_on_the_length_of_a_turn(machine):
    """The cells for the costs had turns of 200 instructions; those for the counts had 2000."""
    rows = rows_of("memory-locks", machine)
    judged = count_comparison(rows[rows["passes"] == 1]).query("phase != 'populate'")
    assert len(judged) >= 8
    assert judged[judged["difference"] != 0].empty


def test_populating_touches_the_guests_own_pages_too(counts):
    """Code, stacks, tables, records: some dozens of pages a vCPU, whatever the batch and the protection."""
    extra = counts[(counts["phase"] == "populate") & (counts["what"] == "fault")]
    assert extra["difference"].between(1, 100).all()


def test_costs_are_known_and_ordered(machine, costs):
    value, low, high = costs["value"], costs["low"], costs["high"]
    assert ((low > 0) & (low <= value) & (value <= high)).all()
    assert (high - low < 0.2 * value).all()
    fault = value["fault_unlocked"] + value["fault_hold"]
    assert value["guest_access"] < value["clear_page"] * 5
    # riscv's CLEAR fences every page.
    assert value["clear_page"] * (3 if machine == "riscv" else 8) < fault


def test_the_shipped_fit_is_what_the_data_give(machine):
    """``simlib lab costs --out data/fits`` writes it; its intervals under load are as wide as the model was off."""
    shipped, now = find_fit(lab_scenario(machine)), load.lab_fit(machine)
    assert shipped.scenario == now.scenario
    columns = ["name", "value", "low", "high", "at_bound", "determined"]
    pd.testing.assert_frame_equal(shipped.parameters[columns], now.parameters[columns], rtol=1e-9)
    assert shipped.estimate.discrepancy == pytest.approx(now.estimate.discrepancy)
    assert shipped.estimate.spread == pytest.approx(now.estimate.spread)
    assert not shipped.observations["train"].any()
    case = now.scenario.with_vcpus(4)
    found = predict(case, [4], fit=shipped, metrics=["clear_dirty_log_time", "longest_stall"]).frame
    assert ((found["low"] < found["estimate"]) & (found["estimate"] < found["high"])).all()


TICKED = "x86-npt"
"""Its faults take no lock: the longest stall is a tick of the timer, whose place in a CLEAR the model draws."""


def test_cells_under_load_are_predicted(machine, cells):
    """No cell under load was used to calibrate anything; of two batches the better one is so in the model, too."""
    errors = load.load_errors(cells.assign(machine=machine)).query("machine != 'all'").set_index("metric")
    clear, stall, rare = (errors.loc[name] for name in ("clear_dirty_log_time", "longest_stall", "gap_p999"))
    assert clear["median_64"] < 0.06
    assert clear["largest_64"] < 0.15
    assert rare["largest_64"] < 0.1
    assert stall["median_64"] < (0.16 if machine == TICKED else 0.1)
    assert clear["turned"] == 0
    assert stall["turned"] <= 2 * (machine == TICKED)


def test_what_waits_and_ticks_is_as_counted(machine):
    """The numbers of the scenarios are those of the lab's own tables; machines that have none take their sibling's."""
    said = lab_scenario(machine).host
    counted = {"x86-shadow": "x86-npt", "arm64-write": "arm64-read"}.get(machine, machine)
    mean, deviation = processor.ticks(counted)
    assert said.tick_work == pytest.approx(1000 * mean, rel=0.01)
    assert said.tick_jitter == pytest.approx(deviation, rel=0.05)
    if machine in ("x86-shadow", "arm64-read", "arm64-write"):
        queue, look = processor.waiting(counted if machine != "x86-shadow" else machine)
        assert said.enqueue_cost == pytest.approx(1000 * queue, rel=0.01)
        assert said.spin_poll_cost == pytest.approx(1000 * look, rel=0.1)


def test_a_machine_without_a_scenario_is_named():
    with pytest.raises(ValueError, match=r"arm64 nvhe.*has no scenario"):
        lab_name(pd.Series({"architecture": "arm64", "mode": "nvhe", "switches": ""}))


def test_the_docs_say_what_the_statistics_execute():
    before, after = (
        float(costs("x86-shadow").set_index("name")["value"]["reacquire"])
        for costs in (instructions.plain_costs, instructions.instruction_costs)
    )
    told = f"about {after - before:.0f} for each time that x86 takes the lock ({before:.0f} become {after:.0f};"
    assert told in " ".join((ROOT / "docs" / "lab.md").read_text("utf-8").split()), told


@pytest.mark.parametrize("name", LABS)
def test_the_statistics_take_as_much_wherever_the_lock_is_taken(name):
    """About 225 instructions on x86 for each time; and none where faults take no lock."""
    own = translation.statistics_own(name)
    assert 220 < own["drop"] < 300
    if name == "x86-npt":
        assert abs(own["fault"]) < 2
    else:
        assert own["fault"] == pytest.approx(own["drop"], rel=0.1)
    assert min(translation.instructions(name).values()) > 0


def test_each_architecture_left_out(table):
    """CLEAR and the exit translate within a factor of 2; holds do not: arm64's barriers are few instructions."""
    worst = table.groupby("kind")["factor"].max()
    assert worst["clear"] < 1.7
    assert worst["exit"] < 1.1
    assert 2 < worst["hold"] < 3
    assert np.isnan(worst["drop"])


def test_the_shipped_ratios_are_those_of_the_study(table):
    """The product reads them from data/fits; `python checks/shipped.py lab-instruction-times` writes them anew."""
    shipped, computed = (json.loads(text) for text in ((data_dir() / "fits" / FILE).read_text("utf-8"),
                                                       translation.shipped_text()))  # fmt: skip
    made = {"date", "version"}
    assert {k: v for k, v in shipped.items() if k not in made} == {k: v for k, v in computed.items() if k not in made}


def test_a_translation_is_the_mean_of_the_logarithms_and_pooled_spread():
    rows = [("a", 1.0), ("a", 2.0), ("b", 3.0), ("b", 3.0)]
    given = pd.DataFrame(rows, columns=["kind", "ns_per_instruction"])
    found = translate("a", 100, given)
    assert found.time_ns == pytest.approx(100 * np.sqrt(2))
    spread = np.sqrt(2 * (np.log(2) / 2) ** 2 / 2)
    assert found.factor == pytest.approx(np.exp(2.91999 * spread * np.sqrt(1.5)), rel=1e-4)


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_priors_of_riscv_are_translations(table, kind):
    prior = load_priors("riscv")[KINDS[kind]]
    counted = translation.instructions("riscv")[kind]
    found = translate(kind, counted, table)
    assert prior.median == pytest.approx(found.time_ns * 1000, rel=0.02)
    assert prior.factor == pytest.approx(found.factor, rel=0.05)
    assert f"{counted:.0f} instructions" in prior.source


CELLS = pd.DataFrame(
    {"machine": machine, "vcpus": n, "batch": batch, "metric": metric, "lab": 1e-3 * n, "lab_low": 0.9e-3 * n,
     "lab_high": 1.2e-3 * n, "model": 1.1e-3 * n}
    for machine in ("x86-npt", "riscv") for n in (1, 2, 4) for batch in (0, 64)
    for metric in ("clear_dirty_log_time", "longest_stall")
)  # fmt: skip


def test_lab_is_points_and_the_simulator_lines():
    figure = figures.under_load(CELLS)
    lines = [trace for trace in figure.data if trace.mode == "lines"]
    points = [trace for trace in figure.data if trace.mode == "markers"]
    assert len(lines) == len(points) == 2 * 2 * 2
    assert all("simulated" in trace.name for trace in lines)
    assert {trace.name for trace in points} == {"whole ioctl, lab, held out", "64 pages, lab, held out"}
    assert points[0].error_y.array[0] == pytest.approx(0.2e-3)
    assert sum(trace.showlegend for trace in figure.data) == 4  # each name once


def test_a_setting_is_a_row_and_a_metric_a_panel():
    frame = pd.DataFrame(
        [("lockless", "contentions", 0, 0, 0), ("read", "contentions", 9, 8, 9),
         ("lockless", "longest_stall_s", 4e-5, 3e-5, 5e-5), ("read", "longest_stall_s", 3e-3, 2e-3, 4e-3)],
        columns=["setting", "metric", "value", "low", "high"],
    )  # fmt: skip
    figure = figures.switch_effects(frame, "Fast page fault")
    assert [list(trace.y) for trace in figure.data] == [["lockless", "read"]] * 2
    assert [note.text for note in figure.layout.annotations] == ["contentions of mmu_lock", "longest stall, ms"]
    assert "2" in figure.layout.xaxis2.ticktext


@pytest.mark.parametrize(
    ("draw", "frame", "sentence"),
    [
        (figures.under_load, CELLS.drop(columns="model"), "cells.model"),
        (figures.under_load, CELLS.assign(metric="speed"), "cells.metric = speed: is not known"),
        (figures.under_load, CELLS.assign(lab=-1.0), "at least 0"),
        (lambda frame: figures.switch_effects(frame, ""), pd.DataFrame({"setting": ["a"]}), "cells.metric"),
    ],
)
def test_a_bad_table_is_named(draw, frame, sentence):
    with pytest.raises(ValueError, match=sentence):
        draw(frame)


def test_what_is_said_of_each_switch_is_so(found):
    """The words have no numbers of their own; these are the orders that they claim."""
    frames = dict(list(found.tables["switches"].groupby("experiment", sort=False)))
    assert set(frames) == set(SWITCHES)
    found = {name: frame.set_index(["setting", "metric"])["value"].to_dict() for name, frame in frames.items()}
    fast, stall, clear, hold = found["fast-page-fault"], "longest_stall_s", "clear_time_s", "enable_hold_s"
    for mode in ("read", "off"):
        assert fast["fast_page_fault=lockless", stall] < 0.1 * fast[f"fast_page_fault={mode}", stall]
    # 4 vCPUs and the clearing thread; those that wait add nothing.
    running = [
        float(times)
        for times in re.findall(
            r"([0-9.]+) times \(fast_page_fault", told.switch_told("fast-page-fault", frames["fast-page-fault"])
        )
    ]
    assert 4 < running[0] <= 5.1
    assert max(running[1:]) < 2.5
    for name, switch in (("lockless-write-protect", "lockless_write_protect"), ("lock-inside", "dirty_log_arch_lock")):
        assert found[name][f"{switch}=Y", stall] < 0.2 * found[name][f"{switch}=N", stall]
    assert found["lock-inside"]["dirty_log_arch_lock=Y", clear] > found["lock-inside"]["dirty_log_arch_lock=N", clear]
    never, needbreak, contended, progress = (
        found["yield"][f"mmu_lock_yield={way}", stall] for way in ("never", "needbreak", "contended", "progress")
    )
    assert needbreak == pytest.approx(never, rel=0.3)
    assert max(contended, progress) < 0.3 * min(never, needbreak)
    for name, switch, time in (("get-batch", "dirty_log_get_batch", "get_time_s"),
                               ("ring-reset-batch", "dirty_ring_reset_batch", "reset_time_s")):  # fmt: skip
        small, whole = f"{switch}=64", f"{switch}=0"
        assert found[name][small, time] > found[name][whole, time]
        assert found[name][small, stall] < found[name][whole, stall]
    x86, taken = found["split-x86"], "acquisitions"
    kept, split = "eager_page_split=N split_alloc=drop", "eager_page_split=Y split_alloc=drop"
    assert x86[f"{kept}, initially_set", taken] > 100 * x86[f"{split}, initially_set", taken]
    assert x86[f"{split}, initially_set", clear] > 1.5 * x86[f"{kept}, initially_set", clear]
    assert x86[f"{split}, enable", hold] > 10 * x86[f"{kept}, enable", hold]
    held = [x86[f"eager_page_split=Y split_alloc={way}, enable", hold] for way in ("drop", "drop_write", "under_lock")]
    assert max(held) < 1.1 * min(held)
    # What enabling without splitting takes is the same, whatever the grace period was.
    same = [value for (what, metric), value in x86.items() if metric == hold and re.match("eager.*=N .*enable", what)]
    assert len(same) == 3
    assert max(same) < 1.05 * min(same)
    arm64 = found["split-arm64"]
    for chunk in (2097152, 1073741824):
        walks = [f"eager_split_chunk={chunk} split_skip_levels={way}" for way in "YN"]
        assert arm64[f"{walks[0]}, enable", hold] < arm64[f"{walks[1]}, enable", hold]
        assert arm64[f"{walks[0]}, initially_set", clear] < arm64[f"{walks[1]}, initially_set", clear]
    neither, flush, clean, both = (value for (_, metric), value in found["teardown-arm64"].items())
    assert neither < flush < clean < both


@pytest.mark.parametrize("name", rings.MACHINES)
def test_rings_are_reset_as_often_as_the_kernel_resets_them(name):
    """By the order of the test's accesses in all cells that turns do not decide; by the simulator where it is known."""
    table = rings.ring_comparison(name)
    settled = table[table["decided"]]
    assert len(settled) == 16
    for what in ("resets", "entries", "runs"):
        assert settled[what].tolist() == settled[f"{what}_model"].tolist(), what
    assert settled["simulated"].dropna().tolist() == [True] * 8
    cases = rows_of("rings-runs", name)
    assert table[list(rings.CELL)].to_numpy().tolist() == cases[list(rings.CELL)].to_numpy().tolist()


def test_times_of_resets_are_close_where_no_fault_holds_them_up():
    table = rings.ring_table()
    held = table[table["role"] == HELD_OUT]
    assert len(held) == 48
    assert held["error"].abs().median() < 0.02
    far = held[held["error"].abs() > 0.1]
    assert far[["machine", "vcpus", "decided"]].to_numpy().tolist() == [["x86-shadow", 4, False]]


def test_a_median_lies_within_its_range(found):
    frame = found.tables["switches"]
    assert frame["value"].between(frame["low"], frame["high"]).all()


def test_counts_are_equal_and_runs_repeat(found):
    repeats = found.tables["repeats"]
    assert repeats["repeated"].sum() >= 40
    assert repeats["identical"].sum() >= 0.95 * repeats["repeated"].sum()


def test_the_pages_say_the_errors_as_they_are(found):
    """If the data were collected anew: put these sentences into docs/lab.md and README.md."""
    page, readme = ((ROOT / name).read_text(encoding="utf-8") for name in ("docs/lab.md", "README.md"))
    said = told.load_told(found.tables["under-load"])
    assert said in " ".join(page.split()), said
    medians = found.tables["errors"].pivot_table(index="machine", columns="metric", values="median_64")
    clear, stall = (medians[name] for name in ("clear_dirty_log_time", "longest_stall"))
    shares = [f"{100 * x:.{0 if x >= 0.1 else 1}f} %" for x in (clear["all"], stall["all"], clear.max(), stall.max())]
    sentence = (
        "with 64 pages per hold, the median error is {} for CLEAR time and {} for the longest stall; in the worst "
        "MMU mode, {} and {}."
    ).format(*shares)
    assert sentence in " ".join(readme.split()), sentence


@pytest.mark.study
def test_the_notebook_says_what_its_cells_compute(ran):
    """April 2024: the batch matters where faults take the lock, and only there. January 2022: readers do not."""
    run = ran(ROOT / "notebooks" / "02-contention-lab.ipynb")
    assert_ran_without_complaint(run)
    drawn = figures_of(run)
    assert len(drawn) == 11
    for figure in drawn:
        subtitle = figure["layout"]["title"]["subtitle"]["text"]
        assert "lab time" in subtitle or "simulated" in subtitle, subtitle
    gain, price, share, costs = (run[name] for name in ("gain", "price", "share", "costs"))
    assert gain[8]["x86-npt"] < 2
    assert gain[8].drop("x86-npt").min() > 5
    assert price[8]["x86-npt"] < 1.1 < price[8]["x86-shadow"]
    assert share["read"][8] < 0.15
    assert share["write"][8] > 0.5
    tenth = costs.loc["clear_page"] / (costs.loc["fault_unlocked"] + costs.loc["fault_hold"])
    assert (tenth.drop("riscv") < 0.12).all()
