# SPDX-License-Identifier: BSD-3-Clause
"""A page shows what was asked last, says what changed, and gives it away in forms that lead back to it."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import threading

import pandas as pd
import pytest
from typer.testing import CliRunner

from simlib._lib.errors import RunInterruptedError
from simlib.model.quantities import seconds_text
from simlib.ui.cli import app
from simlib.ui.explorer import answers, drawing
from simlib.ui.explorer.controls import KEYS, Controls, nearest_step
from simlib.ui.explorer.findings import Findings
from simlib.ui.explorer.page import Explorer
from simlib.ui.explorer.state import ExplorerState
from simlib.ui.explorer.words import percent

SMALL = "architecture=arm64&guest.memory=2G&guest.vcpus=8&strategy=every-512&pin=whole-ioctl"


@pytest.fixture(scope="module")
def page():
    return Explorer(SMALL, background=False)


def test_a_page_shows_all_figures_of_the_state_of_its_address(page):
    assert page.state.query == SMALL
    assert set(page.canvas.figures) == {"curve", "guest", "batch", "time", "lock"}
    assert page.canvas.stamp == {"generation": 1, "part": "done", "stale": []}
    assert page.canvas.query == SMALL
    assert page.findings.trips()["strategy"].tolist() == ["every-512", "whole-ioctl"]
    names = [trace["name"] for trace in json.loads(page.canvas.figures["guest"])["data"]]
    assert names == ["every-512", "whole-ioctl"]


def test_theory_simulation_and_measurement_are_told_apart(page):
    table = page.findings.table()
    kinds = table.groupby("figure")["kind"].unique().map(set).to_dict()
    assert kinds["curve"] == {"theory", "simulated", "measured"}
    assert kinds["batch"] == kinds["guest"] == kinds["lock"] == kinds["time"] == {"simulated"}
    curve = table[(table["figure"] == "curve") & (table["kind"] == "simulated")]
    bound = table[(table["figure"] == "curve") & (table["kind"] == "theory")]
    assert (curve["value"].to_numpy() >= 0.97 * bound["value"].to_numpy()).all()  # a bound: the faults' jitter aside


def test_what_drawn_costs_leave_open_stands_beside_every_strategy_and_its_change(page):
    table = page.findings.compared().set_index(["series", "quantity"])
    assert table["value"].between(table["low"], table["high"]).all()
    assert table["change"].between(table["change_low"], table["change_high"]).all()
    rows = table.xs("clear_cpu_time_s", level="quantity")
    assert (rows["high"] > 1.2 * rows["low"]).all()
    same = table.loc["whole-ioctl"]  # what arm64 does: nothing changes, whatever the costs
    assert (same[["change_low", "change", "change_high"]] == 1).all().all()


def visible(page):
    """The answer and the table of strategies as text."""
    return " ".join(re.sub("<[^>]*>", " ", page._words.value).split())


def test_the_answer_says_what_the_strategy_gains_and_costs(page):
    rows = page.findings.compared().set_index(["series", "quantity"]).loc["every-512"]
    said = visible(page)
    for quantity, words in {"longest_stall_s": "stall falls", "clear_cpu_time_s": "CPU time of CLEAR rises"}.items():
        one = rows.loc[quantity]
        own, value = seconds_text(one["baseline"]), seconds_text(one["value"])
        assert f"{words} from {own} to {value} ({percent(one['change'])}; 90 %" in said
    assert re.search(r"at least halve the longest stall, every-\d+ needs the least CPU time of CLEAR", said)
    assert "whole-ioctl" in said.partition("guest throughput")[2]


def test_a_first_visit_shows_three_pins_that_differ():
    state = ExplorerState.from_query("token=secret")
    assert (state, len(state.pins)) == (ExplorerState.first(), 3)
    found = answers.trips(state, [state.strategy, *state.pins], lambda *_: None)
    stalls = sorted(trip.run.metrics["longest_stall"] for trip in found)
    assert all(later > 1.2 * one for one, later in itertools.pairwise(stalls))


def test_measured_curves_are_of_the_kernel_that_is_shown_unless_others_are_wanted(page):
    def measured(page):
        names = [trace["name"] for trace in json.loads(page.canvas.figures["curve"])["data"]]
        return [name for name in names if name.startswith("measured: ")]

    assert measured(page) == []  # nobody measured 6.9
    assert page._others.description == "Show measured curves (ampere-altra)"
    page._others.value = True
    assert len(measured(page)) == 3
    dated, elsewhere = Findings(ExplorerState.of("arm64-2022")), Findings(ExplorerState.of("riscv"))
    assert set(drawing.measured(dated, others=False)["variant"]) == {"rwlock-old-test", "rwlock-fixed-test"}
    assert [len(drawing.measured(elsewhere, others=others)) > 0 for others in (False, True)] == [False, True]


def test_the_calls_that_a_page_shows_give_its_table(page, tmp_path):
    python, command = page.calls().split("\n\n")
    scope: dict[str, object] = {}
    *_, last = python.splitlines()
    exec("\n".join([*python.splitlines()[:-1], f"found = {last}"]), scope)  # noqa: S102  # as a user pastes it
    mine = page.findings.table()
    pd.testing.assert_frame_equal(scope["found"], mine)
    words = shlex.split(command.replace("explorer.csv", str(tmp_path / "explorer.csv")))
    assert words[0] == "simlib"
    done = CliRunner().invoke(app, words[1:])
    assert done.exit_code == 0, done.output
    mine.to_csv(tmp_path / "mine.csv", index=False)
    assert (tmp_path / "explorer.csv").read_bytes() == (tmp_path / "mine.csv").read_bytes()


def test_a_shell_reads_the_command_as_one_query_whatever_a_name_has(monkeypatch):
    monkeypatch.setattr(Explorer, "_ask", lambda *_: None)  # nothing is simulated
    asked = ExplorerState.of("arm64").changed({"host": {"name": "it's mine; $HOME (old)"}}, strategy="held >= 50us")
    page = Explorer(asked, background=False)
    *_, command = page.calls().split("\n\n")
    *_, option, query, _, _ = shlex.split(command)
    assert (option, ExplorerState.from_query(query)) == ("--query", asked)
    monkeypatch.setattr(ExplorerState, "query", "guest=it's mine; $HOME")  # an address that leaves more as it is
    *_, command = page.calls().split("\n\n")
    assert shlex.split(command)[2:4] == ["--query", "guest=it's mine; $HOME"]


def test_a_slider_and_the_list_of_strategies_ask_and_follow_what_is_typed():
    controls = Controls(ExplorerState.from_query(SMALL), lambda _state: None)
    name = "workload.access_interval"
    slider, steps, shown = controls._sliders[name], controls._keys[name].steps, controls._widgets
    slider.value = steps.index("1ms")
    assert f"{name}=1ms" in controls.state.query
    controls.set(name, "90us")
    assert (steps[slider.value], shown[name].value) == ("100us", "90us")  # the nearest
    controls.set("named", "bounded-hold")
    assert controls.state.strategy == shown["strategy"].value == "bounded-hold"
    controls.set("strategy", "held >= 30us")
    assert (controls.state.strategy, shown["named"].value) == ("held >= 30us", "")
    assert "CLEAR drops mmu_lock when held &gt;= 30us" in controls._meaning.value


@pytest.mark.parametrize("key", [key for keys in KEYS.values() for key in keys if key.steps], ids=lambda key: key.name)
def test_every_step_of_a_slider_is_a_value_that_a_file_may_have(key):
    start = ExplorerState.of("arm64").changed({"guest": {"memory": "16T", "backing": "hugetlb_2mb"}})
    found = [nearest_step(start.changed({key.table: {key.name: step}}).scenario, key) for step in key.steps]
    assert found == list(range(len(key.steps)))


def test_nonsense_stays_beside_its_control_and_nothing_else_changes():
    page = Explorer(SMALL, background=False)
    before = page.canvas.figures
    page.controls.set("guest.vcpus", "many")
    page.controls.set("strategy", "pages > ")
    assert set(page.controls.errors) == {"guest.vcpus", "strategy"}
    assert (page.state.query, page.canvas.figures) == (SMALL, before)
    page.controls.set("guest.vcpus", 4)  # mended; the other stays
    assert (page.state.scenario.guest.vcpus, set(page.controls.errors)) == (4, {"strategy"})


def test_html_of_a_control_is_not_markup():
    page = Explorer(SMALL, background=False)
    page.controls.set("strategy", "<img src=x onerror=alert(1)> >= 1")
    (note,) = (note.value for name, note in page.controls._notes.items() if name == "strategy")
    assert "<img" not in note


def test_only_so_many_are_pinned_and_each_can_be_unpinned(monkeypatch):
    monkeypatch.setattr(Explorer, "_ask", lambda *_: None)  # nothing is simulated
    page = Explorer(ExplorerState.from_query(SMALL), background=False)
    for batch in (64, 128, 192, 256):
        page.change(strategy=f"every-{batch}")
        page.controls._pin()
    assert len(page.state.pins) == 4
    assert "must be at most 4" in page.controls.errors["pins"]
    page.controls._unpin("whole-ioctl")
    assert "whole-ioctl" not in page.state.pins


def test_a_stale_answer_never_overwrites_a_newer_one(monkeypatch):
    """The old question's answer arrives last."""
    started, release = threading.Event(), threading.Event()
    real = answers.stages

    def slow(state, check):
        if state.scenario.guest.vcpus == 8:
            started.set()
            release.wait(60)
            yield from real(state, lambda *_: None)  # deaf to being cancelled
        else:
            yield from real(state, check)

    monkeypatch.setattr(answers, "stages", slow)
    page = Explorer(SMALL)
    assert started.wait(60)
    old = page._thread
    page.change({"guest": {"vcpus": 4}})
    new = page._thread
    new.join(120)
    shown = dict(page.canvas.figures)
    release.set()
    old.join(120)
    assert not old.is_alive()
    assert page.canvas.figures == shown
    assert page.findings.state.scenario.guest.vcpus == 4


def test_cancelling_ends_a_simulation_at_once():
    page = Explorer(ExplorerState.of("x86-shadow").changed({"guest": {"vcpus": 1023, "memory": "4092G"}}))
    page.cancel()
    page._thread.join(20)
    assert not page._thread.is_alive()
    assert "cancelled" in page._status.value
    assert "trips" not in page.findings.parts


def test_a_simulation_that_is_not_wanted_raises_within_a_part():
    def check(*_):
        raise RunInterruptedError("no")

    with pytest.raises(RunInterruptedError):
        list(answers.stages(ExplorerState.from_query(SMALL), check))


def test_what_cannot_be_sampled_says_why():
    page = Explorer(ExplorerState.of("arm64").changed({"workload": {"access": "sequential"}}), background=False)
    assert "cannot be sampled (workload.access)" in visible(page)
    assert set(page.findings.table()["figure"]) == {"curve"}


def test_a_bad_address_is_told_and_the_standard_guest_shown():
    page = Explorer("guest.vcpus=none", background=False)
    assert "guest.vcpus = none" in page._status.value or "guest.vcpus" in page._status.value
    assert page.state == ExplorerState.first()
