# SPDX-License-Identifier: BSD-3-Clause
"""Running a notebook from top to bottom, as the tests of each notebook do."""

from __future__ import annotations

import fcntl
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import nbformat

ROOT = Path(__file__).resolve().parents[1]

KEEP = """
import builtins, cloudpickle, ipywidgets
kept = {}
for name, value in list(globals().items()):
    if not name.startswith("_") and not isinstance(value, ipywidgets.Widget):
        try:
            kept[name] = cloudpickle.dumps(value)
        except Exception:
            pass  # such as a stream
with builtins.open("kept.pickle", "wb") as stream:
    cloudpickle.dump(kept, stream)
"""
"""The last cell: what the notebook computed, for the tests."""

EXECUTE = """
import sys, nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
# No folder of kernelspecs: "python3" is then this interpreter, whatever is installed.
manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=KernelSpecManager(kernel_dirs=[]))
NotebookClient(notebook, km=manager, timeout=1800, resources={"metadata": {"path": "."}}).execute()
nbformat.write(notebook, sys.argv[1])
"""
# In a process of its own: nbclient leaves sockets open, and warnings are errors here.


class Run:
    """A notebook that was run, and its variables: ``run["fit"]``."""

    def __init__(self, folder: Path) -> None:
        self.notebook = nbformat.read(folder / "run.ipynb", as_version=4)
        self._kept: dict[str, bytes] = pickle.loads((folder / "kept.pickle").read_bytes())  # noqa: S301  # our own

    @property
    def cells(self) -> list[Any]:
        """All but the last, which is not the notebook's."""
        return list(self.notebook.cells[:-1])

    def __getitem__(self, name: str) -> Any:
        return cloudpickle.loads(self._kept[name])


def ran(notebook: Path, folder: Path) -> Run:
    """A notebook's run by this interpreter, in a folder of its own within another; whoever asks next gets the same."""
    place = folder / notebook.stem
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "kept.pickle").exists():
            content = nbformat.read(notebook, as_version=4)
            content.cells.append(nbformat.v4.new_code_cell(KEEP))
            path = place / "run.ipynb"
            nbformat.write(content, path)
            environment = os.environ | {"PYTHONPATH": str(ROOT), "IPYTHONDIR": str(place)}
            subprocess.run([sys.executable, "-c", EXECUTE, path], check=True, cwd=place, env=environment, timeout=2100)
    return Run(place)


def code_cells(notebook: Any) -> list[Any]:
    """The cells that run."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def figures_of(run: Any) -> list[Any]:
    """Every Plotly figure that was shown."""
    kind = "application/vnd.plotly.v1+json"
    return [o["data"][kind] for cell in code_cells(run) for o in cell.outputs if kind in o.get("data", {})]


def answer_of(run: Any) -> str:
    """What the last cell shows: its answer."""
    text: str = code_cells(run)[-1].outputs[-1]["data"]["text/markdown"]
    return text


def assert_ran_without_complaint(run: Any) -> None:
    """No error, nothing on stderr."""
    for cell in code_cells(run):
        assert cell.execution_count is not None
        for output in cell.outputs:
            assert output.output_type != "error"
            assert output.get("name") != "stderr", output.get("text")
