# SPDX-License-Identifier: BSD-3-Clause
"""The notebook runs from top to bottom, says what it should, and is kept without anything that it computed."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "notebooks" / "01-arm64-rwlock.ipynb"

EXECUTE = """
import sys, nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
# No folder of kernelspecs: "python3" is then this interpreter, whatever is installed.
manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=KernelSpecManager(kernel_dirs=[]))
NotebookClient(notebook, km=manager, timeout=600, resources={"metadata": {"path": "."}}).execute()
nbformat.write(notebook, sys.argv[1])
"""
# In a process of its own: nbclient leaves sockets open, and warnings are errors here.

TELL = """
import json
json.dumps({
    "error_percent": held_out["simlib_percent"].tolist(),
    "usl_percent": held_out["usl_percent"].tolist(),
    "amdahl_percent": held_out["amdahl_percent"].tolist(),
    "covered": held_out["covered"].tolist(),
    "vcpus": held_out["vcpus"].tolist(),
    "line_ns": [line.value, line.low, line.high],
    "published_line_ns": latency["Graviton2"],
    "like_for_like": faster["rwlock-old-test"].tolist(),
    "contentions_per_page": (contentions / contentions.index / pages).tolist(),
    "seconds": seconds.to_dict(),
})
"""


@pytest.fixture(scope="module")
def kept() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The notebook after a run by this interpreter, in a folder of its own, with a last cell that tells its values."""
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(TELL))
    path = folder / "run.ipynb"
    nbformat.write(notebook, path)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "IPYTHONDIR": str(folder)}
    subprocess.run([sys.executable, "-c", EXECUTE, path], check=True, cwd=folder, env=environment, timeout=900)
    return nbformat.read(path, as_version=4)


@pytest.fixture(scope="module")
def told(run: Any) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(ast.literal_eval(run.cells[-1].outputs[0]["data"]["text/plain"]))
    return values


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_kept_without_outputs(kept: Any) -> None:
    nbformat.validate(kept)
    for cell in code_cells(kept):
        assert cell.outputs == []
        assert cell.execution_count is None
        assert dict(cell.metadata) == {}
    assert set(kept.metadata) == {"kernelspec", "language_info", "license"}
    assert kept.metadata.kernelspec.name == "python3"
    assert NOTEBOOK.stat().st_size < 40_000


def test_kept_cells_parse_and_licence_is_stated(kept: Any) -> None:
    for cell in code_cells(kept):
        ast.parse(cell.source)
    assert kept.cells[0].cell_type == "markdown"
    assert "SPDX-License-Identifier: BSD-3-Clause" in kept.cells[0].source.splitlines()


def test_every_cell_ran_without_complaint(run: Any) -> None:
    for cell in code_cells(run):
        assert cell.execution_count is not None
        for output in cell.outputs:
            assert output.output_type != "error"
            assert output.get("name") != "stderr", output.get("text")


def test_every_figure_says_where_its_points_come_from(run: Any) -> None:
    kind = "application/vnd.plotly.v1+json"
    drawn = [o["data"][kind] for cell in code_cells(run) for o in cell.outputs if kind in o.get("data", {})]
    assert len(drawn) == 7
    for figure in drawn:
        subtitle = figure["layout"]["title"]["subtitle"]["text"]
        assert any(word in subtitle for word in ("measured", "simulated", "calibrated", "predicted")), subtitle


def test_the_what_if_is_shown(run: Any) -> None:
    last = code_cells(run)[-2]
    assert any("application/vnd.jupyter.widget-view+json" in o.get("data", {}) for o in last.outputs)


def test_nine_held_out_points_are_predicted(told: dict[str, Any]) -> None:
    errors = [abs(e) for e in told["error_percent"]]
    assert told["vcpus"] == [16, 32, 64] * 3
    assert max(errors) <= 6
    assert sum(errors) / 9 <= 4
    assert sum(told["covered"]) >= 8


def test_the_scaling_laws_are_beaten(told: dict[str, Any]) -> None:
    model, usl, amdahl = (sum(map(abs, told[name])) for name in ("error_percent", "usl_percent", "amdahl_percent"))
    assert model < amdahl
    assert model < usl


def test_line_transfer_agrees_with_the_published_latency(told: dict[str, Any]) -> None:
    _, low, high = told["line_ns"]
    assert low < told["published_line_ns"] < high


def test_what_the_prose_says(told: dict[str, Any]) -> None:
    """Statements of the text that the data or the model could contradict."""
    assert told["like_for_like"][-1] == pytest.approx(2.6, abs=0.01)
    assert told["contentions_per_page"][-3:] == pytest.approx([6, 6, 6], abs=0.005)
    seconds = {name: {int(n): s for n, s in curve.items()} for name, curve in told["seconds"].items()}
    spin, ticket, rwlock, lockless = seconds.values()
    assert all(ticket[n] > spin[n] for n in (8, 16, 32, 64))
    assert all(0.95 < lockless[n] / rwlock[n] < 0.99 for n in (2, 4))
    assert all(lockless[n] == pytest.approx(rwlock[n], rel=0.005) for n in (8, 16, 32, 64))
