# SPDX-License-Identifier: BSD-3-Clause
"""Tests of the notebook on writing a strategy, and of its export by nbconvert."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from notebook_run import (
    ROOT,
    Run,
    answer_of,
    assert_ran_without_complaint,
    code_cells,
    figures_of,
)

pytestmark = pytest.mark.study

NOTEBOOK = ROOT / "notebooks" / "11-write-a-strategy.ipynb"


def results(run: Run) -> dict[str, Any]:
    compared, family, idea = (run["compared"], run["family"], run["idea"])
    at8 = compared.frame[compared.frame["vcpus"] == 8].set_index(["policy", "metric"])["estimate"]
    return {
        "stall": at8.xs("longest_stall", level="metric").to_dict(),
        "clear": at8.xs("clear_cpu_time", level="metric").to_dict(),
        "bounds": family.frame[family.frame["metric"] == "clear_cpu_time"]["estimate"].tolist()[1:],
        "idea": idea,
    }


@pytest.fixture(scope="module")
def run(ran: Any) -> Run:
    return ran(NOTEBOOK)


def test_it_runs_without_errors(run: Run) -> None:
    assert_ran_without_complaint(run)
    assert len(figures_of(run)) == 1


def test_the_answer_matches_the_results(run: Run) -> None:
    computed = results(run)
    idea, stall, clear = computed["idea"], computed["stall"], computed["clear"]
    assert stall["every-64"] < stall[idea] < stall["whole-ioctl"]
    assert clear["whole-ioctl"] < clear[idea] < clear["every-64"]
    assert computed["bounds"] == sorted(computed["bounds"], reverse=True)  # a longer hold costs less
    answer = answer_of(run)
    for name in (idea, "every-64"):
        change = 100 * (clear[name] / clear["whole-ioctl"] - 1)
        stated = re.search(rf"`{re.escape(name)}` changes the longest.*?CPU time of CLEAR by ([+-]\d+) %", answer)
        assert stated, answer
        assert float(stated[1]) == pytest.approx(change, abs=2)  # a mean of ratios, and a ratio of means


def test_the_errors_name_the_rule_and_a_hint(run: Run) -> None:
    text = "".join(o.get("text", "") for cell in code_cells(run) for o in cell.outputs)
    assert "a duration needs a unit" in text
    assert "did you mean 'held'?" in text


def test_an_export_by_nbconvert_keeps_the_figures(run: Run, tmp_path: Path) -> None:
    """Run `jupyter nbconvert --to html` on the notebook as JupyterLab saves it."""
    nbformat.write(run.notebook, tmp_path / "run.ipynb")
    line = [sys.executable, "-m", "nbconvert", "--to", "html", "run.ipynb"]
    subprocess.run(line, check=True, cwd=tmp_path, capture_output=True, timeout=300)
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert page.count("Plotly.newPlot(") >= len(figures_of(run))
    assert re.search(r"plotly\.js v\d", page)  # the script itself is in the page
