# SPDX-License-Identifier: BSD-3-Clause
"""The notebook on writing a strategy runs, and its export by nbconvert keeps its figures."""

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


def tell(run: Run) -> dict[str, Any]:
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


def test_it_runs_without_complaint(run: Run) -> None:
    assert_ran_without_complaint(run)
    assert len(figures_of(run)) == 1


def test_it_says_what_it_computes(run: Run) -> None:
    told = tell(run)
    idea, stall, clear = told["idea"], told["stall"], told["clear"]
    assert stall["every-64"] < stall[idea] < stall["whole-ioctl"]
    assert clear["whole-ioctl"] < clear[idea] < clear["every-64"]
    assert told["bounds"] == sorted(told["bounds"], reverse=True)  # a longer hold costs less
    answer = answer_of(run)
    for name in (idea, "every-64"):
        change = 100 * (clear[name] / clear["whole-ioctl"] - 1)
        told_change = re.search(rf"`{re.escape(name)}` the longest.*?CLEAR takes (\d+) % more", answer)
        assert told_change, answer
        assert float(told_change[1]) == pytest.approx(change, abs=2)  # a mean of ratios, and a ratio of means


def test_the_words_of_the_errors(run: Run) -> None:
    said = "".join(o.get("text", "") for cell in code_cells(run) for o in cell.outputs)
    assert "a duration needs a unit" in said
    assert "did you mean 'held'?" in said


def test_an_export_by_nbconvert_keeps_the_figures(run: Run, tmp_path: Path) -> None:
    """As a user's: `jupyter nbconvert --to html` of the notebook as JupyterLab saved it."""
    nbformat.write(run.notebook, tmp_path / "run.ipynb")
    line = [sys.executable, "-m", "nbconvert", "--to", "html", "run.ipynb"]
    subprocess.run(line, check=True, cwd=tmp_path, capture_output=True, timeout=300)
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert page.count("Plotly.newPlot(") >= len(figures_of(run))
    assert re.search(r"plotly\.js v\d", page)  # the script itself is in the page
