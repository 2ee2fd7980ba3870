# SPDX-License-Identifier: BSD-3-Clause
"""Pages of results: complete, offline, with the command, and with captions that agree with the numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

import simlib
from simlib import InputError, Scenario
from simlib._lib.files import check_writable
from simlib.measurements.fits import find_fit
from simlib.ui.report import Chart, Table
from simlib.ui.report.answer import comparison_findings, prediction_findings, result_report, simulation_captions

COSTS = {"fault_unlocked": "700ns", "fault_hold": "600ns", "line_transfer": "50ns", "fault_jitter": 0.05}
SMALL = Scenario.parse({"guest": {"vcpus": 2, "memory_per_vcpu": "2M"}, "costs": COSTS})
MIGRATION = Scenario.parse(
    {"guest": {"vcpus": 2, "memory": "8M"}, "policy": {"architecture": "x86-shadow-paging"}, "costs": COSTS,
     "workload": {"kind": "migration", "pass_limit": 1, "clear_chunk": "1M", "warm_up": "10us", "downtime": "0ps"}}
)  # fmt: skip


@pytest.fixture(scope="module")
def results():
    return {
        "simulation": simlib.simulate(SMALL),
        "migration": simlib.simulate(MIGRATION),
        "prediction": simlib.predict(SMALL, [1, 4], metrics=["dirty_memory_time", "contentions"]),
        "one point": simlib.predict(SMALL, [4], metrics=["dirty_memory_time"]),
        "comparison": simlib.compare(SMALL, ["baseline", "fast-path-read-lock"], [1, 4], metrics=["dirty_memory_time"]),
        "choice": simlib.choose(MIGRATION, strategies=["whole-ioctl", "every-64"]),
        "batch": simlib.choose_batch(MIGRATION),
        "fit": find_fit(Scenario.parse({"host": {"name": "ampere-altra"}})),
    }


NAMES = ("simulation", "migration", "prediction", "one point", "comparison", "choice", "batch", "fit")


@pytest.mark.parametrize("name", NAMES)
def test_every_result_has_a_self_contained_page(results, name):
    report = result_report(results[name], "simlib … <b>", scenario=SMALL, seed=3)
    html = report.to_html()
    assert not re.search(r"<(?:script|img|link)[^>]+(?:src|href)=", html)
    assert "https://cdn" not in html
    assert 'showSendToCloud": false' in html
    assert "simlib … &lt;b&gt;" in html
    assert re.search(r"<dt>seed</dt><dd>3</dd>", html)
    charts = [block for section in report.sections for block in section.blocks if isinstance(block, Chart)]
    assert charts
    assert all(chart.caption.endswith(".") for chart in charts)
    assert len(charts) == html.count("Plotly.newPlot(") - html.count("Plotly.newPlot(t")
    assert "[guest]" in html  # the scenario, as a file


def test_several_results_get_a_section_each(results):
    page = result_report({"a": results["choice"], "b": results["choice"]})
    assert [section.title for section in page.sections][:4] == ["a: Answer", "a: Figures", "b: Answer", "b: Figures"]
    assert result_report({"a": results["choice"]}).sections[0].title == "Answer"


def test_the_page_of_a_batch_has_its_seed_and_its_stalls(results):
    page = result_report(results["batch"])
    assert page.facts["seed"] == str(results["batch"].seed)
    tables = [block for block in page.sections[0].blocks if isinstance(block, Table)]
    first = list(tables[0].frame.columns)
    assert {"equivalent", "longest stall"} <= set(first)
    columns = {column for table in tables[:2] for column in table.frame.columns}
    assert columns == set(results["batch"].batches.readable().columns)
    assert max(len(table.frame.columns) for table in tables) <= 8  # more do not fit 1280 pixels


def test_a_type_without_a_page_is_refused():
    with pytest.raises(InputError, match="has no page"):
        result_report(Scenario())  # type: ignore[arg-type]  # what a user may try


def test_findings_of_a_prediction_have_its_numbers(results):
    rows = results["prediction"].frame
    time = rows[rows["metric"] == "dirty_memory_time"].set_index("vcpus")["estimate"]
    sentence = next(text for text in prediction_findings(rows) if text.startswith("dirty_memory_time"))
    assert f"ratio {time[4] / time[1]:.3g}" in sentence
    assert "with 1 vCPU," in sentence
    assert "with 4 vCPUs" in sentence
    assert prediction_findings(rows[rows["vcpus"] == 4])[0].count("vCPU") == 1


@pytest.mark.parametrize(
    ("low", "high", "unsure"), [(-25.0, -15.0, False), (-25.0, 1.0, True), (5.0, 9.0, False), (-1.0, 9.0, True)]
)
def test_a_sentence_states_that_the_interval_includes_no_change(low, high, unsure):
    frame = pd.DataFrame({"policy": ["baseline", "b", "c"], "variant": "", "vcpus": 8, "metric": "zap_time",
                          "change_percent": [0.0, 1.0, -20.0], "change_low": [0.0, 0.5, low],
                          "change_high": [0.0, 1.5, high]})  # fmt: skip
    (sentence,) = comparison_findings(frame, "baseline")
    assert "c differs most from baseline, by −20 %" in sentence
    assert ("contains 0" in sentence) is unsure


def test_captions_of_a_run_count_its_waits(results):
    run = results["simulation"]
    lock = run.locks().query("lock == 'mmu_lock'")
    caption = simulation_captions(run)["histogram"]
    assert f"{lock['contended'].sum():,} of {lock['acquisitions'].sum():,} acquisitions" in caption


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL.to_toml(), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "command",
    [("predict", "--vcpus", "1,2"), ("compare", "baseline", "every-64", "--vcpus", "2"), ("simulate",)],
    ids=lambda command: command[0],
)
def test_commands_write_the_page(ask, small, tmp_path, command):
    path = tmp_path / "new" / "page.html"
    code, out, err = ask(command[0], small, *command[1:], "--plot", path)
    assert code == 0
    page = path.read_text(encoding="utf-8")
    assert f"simlib {command[0]} {small}" in page
    assert [file.name for file in path.parent.iterdir()] == ["page.html"]
    assert f"page written to {path}" in err
    assert out  # the table is printed as without it


@pytest.mark.parametrize("command", ["predict", "compare", "simulate", "choose", "choose-batch", "calibrate"])
def test_a_page_that_cannot_be_written_is_refused_before_the_work(ask, small, tmp_path, command, monkeypatch):
    for name in ("predict", "compare", "simulate", "choose", "choose_batch", "calibrate", "load_scenario"):
        monkeypatch.setattr(simlib, name, lambda *_, **__: pytest.fail("work began"), raising=False)
    more = {"predict": ["--vcpus", "2"], "compare": ["baseline", "--vcpus", "2"],
            "calibrate": ["x.csv", "--out", str(tmp_path / "fit.json")]}.get(command, [])  # fmt: skip
    for path, sentence in (
        (small / "below-a-file.html", "cannot be written"),
        (tmp_path / "page.png", "must be a file name that ends in .html"),
    ):
        code, _, errors = ask(command, small, *more, "--plot", path)
        assert code == 2
        assert sentence in errors
    assert [file.name for file in tmp_path.iterdir()] == ["small.toml"]


def test_the_documentation_names_the_commands_that_write_a_page(ask):
    page = (Path(__file__).parents[3] / "docs" / "commands.md").read_text(encoding="utf-8")
    named = re.search(r"With `--plot page.html` the commands (.*?) also write", page, re.DOTALL)
    assert named
    listed = set(re.findall(r"`([\w-]+)`", named[1]))
    for command in (
        "migrate",
        "calibrate",
        "predict",
        "compare",
        "simulate",
        "choose",
        "choose-batch",
        "reproduce",
        "policies",
    ):
        assert ("--plot" in ask(command, "--help")[1]) is (command in listed), command


def test_the_documentation_has_the_message_of_a_wrong_input(ask, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, errors = ask("simulate", "mine.toml")
    page = (Path(__file__).parents[3] / "docs" / "commands.md").read_text(encoding="utf-8")
    assert code == 2
    assert errors.startswith("simlib: mine.toml")
    assert f"    {errors}" in page


def test_a_path_is_checked_without_creating_anything(tmp_path):
    check_writable(tmp_path / "new" / "folder" / "page.html")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="Is a directory"):
        check_writable(tmp_path)
