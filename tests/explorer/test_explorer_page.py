# SPDX-License-Identifier: BSD-3-Clause
"""A page shows what was asked last, says what changed, and gives it away in forms that lead back to it."""

from __future__ import annotations

import json
import shlex
import threading

import pandas as pd
import pytest
from typer.testing import CliRunner

from simlib.cli import app
from simlib.errors import RunInterruptedError
from simlib.explorer import answers
from simlib.explorer.findings import find
from simlib.explorer.page import Explorer
from simlib.explorer.state import State
from simlib.explorer.words import changes

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
    assert kinds["batch"] == {"theory", "simulated"}
    assert kinds["guest"] == kinds["lock"] == kinds["time"] == {"simulated"}
    curve = table[(table["figure"] == "curve") & (table["kind"] == "simulated")]
    bound = table[(table["figure"] == "curve") & (table["kind"] == "theory")]
    assert (curve["value"].to_numpy() >= 0.97 * bound["value"].to_numpy()).all()  # a bound: the faults' jitter aside


def test_what_drawn_costs_leave_open_stands_beside_the_strategy_that_is_asked_about(page):
    table = page.findings.table().query("figure == 'strategies'").set_index(["series", "quantity"])
    asked, pinned = table.loc["every-512"], table.loc["whole-ioctl"]
    assert (asked["low"] <= asked["value"]).all()
    assert (asked["value"] <= asked["high"]).all()
    assert asked.loc["clear_cpu_time_s", "high"] > 1.2 * asked.loc["clear_cpu_time_s", "low"]
    assert pinned[["low", "high"]].isna().all().all()
    assert "Costs that are drawn from priors leave open (90 %)" in page._words.value


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
    asked = State.of("arm64").changed({"machine": {"name": "it's mine; $HOME (old)"}}, strategy="held >= 50us")
    page = Explorer(asked, background=False)
    *_, command = page.calls().split("\n\n")
    *_, option, query, _, _ = shlex.split(command)
    assert (option, State.from_query(query)) == ("--query", asked)
    monkeypatch.setattr(State, "query", "guest=it's mine; $HOME")  # an address that leaves more as it is
    *_, command = page.calls().split("\n\n")
    assert shlex.split(command)[2:4] == ["--query", "guest=it's mine; $HOME"]


def test_what_differs_is_told_in_the_notation_of_a_scenario_file_both_ways():
    """Of values that stand at their standard too, which an address leaves out."""
    plain = State.of("arm64")
    other = plain.changed(
        {"workload": {"access_interval": "50us", "clear_chunk": "512M", "link": "10Gbit/s"},
         "costs": {"fault_hold": "2us"}}
    )  # fmt: skip
    assert changes(plain, other) == (
        "costs.fault_hold not given → 2us, workload.access_interval 20us → 50us, workload.clear_chunk 1G → 512M, "
        "workload.link 25Gbit/s → 10Gbit/s"
    )
    assert "workload.access_interval 50us → 20us, workload.clear_chunk 512M → 1G" in changes(other, plain)
    assert changes(plain, plain.changed({"policy": {"eager_split": False}})) == "policy.eager_split not given → false"


def test_a_change_is_told_in_words_and_leaves_a_ghost():
    page = Explorer(SMALL, background=False)
    page.controls.set("strategy", "own")
    assert "strategy every-512 → own" in page._words.value
    assert "longest stall +" in page._words.value
    assert "before" in [trace["name"] for trace in json.loads(page.canvas.figures["batch"])["data"]]


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
    page = Explorer(State.from_query(SMALL), background=False)
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
    page = Explorer(State.of("x86-shadow").changed({"guest": {"vcpus": 1023, "memory": "4092G"}}))
    page.cancel()
    page._thread.join(20)
    assert not page._thread.is_alive()
    assert "cancelled" in page._status.value
    assert "trips" not in page.findings.parts


def test_a_simulation_that_is_not_wanted_raises_within_a_part():
    def check(*_):
        raise RunInterruptedError("no")

    with pytest.raises(RunInterruptedError):
        list(answers.stages(State.from_query(SMALL), check))


def test_what_cannot_be_sampled_says_why():
    found = find(State.of("arm64").changed({"workload": {"access": "sequential"}}))
    assert "not sampled (workload.access)" in found.parts["reason"]
    assert set(found.table()["figure"]) == {"curve", "batch"}


def test_a_bad_address_is_told_and_the_standard_guest_shown():
    page = Explorer("guest.vcpus=none", background=False)
    assert "guest.vcpus = none" in page._status.value or "guest.vcpus" in page._status.value
    assert page.state == State.of("arm64")
