# SPDX-License-Identifier: BSD-3-Clause
"""Execution of notebooks for the tests."""

from __future__ import annotations

import ast
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

SAVE = """
import builtins, cloudpickle, ipywidgets
saved = {}
for name, value in list(globals().items()):
    if not name.startswith("_") and not isinstance(value, ipywidgets.Widget):
        try:
            saved[name] = cloudpickle.dumps(value)
        except Exception:
            pass  # such as a stream
with builtins.open("variables.pickle", "wb") as stream:
    cloudpickle.dump(saved, stream)
"""
"""Cell that is appended to save the notebook's variables for the tests."""

EXECUTE = """
import sys, nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
# Without a folder of kernelspecs, "python3" is this interpreter.
manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=KernelSpecManager(kernel_dirs=[]))
NotebookClient(notebook, km=manager, timeout=1800, resources={"metadata": {"path": "."}}).execute()
nbformat.write(notebook, sys.argv[1])
"""
# Run in a separate process: nbclient leaves sockets open, and warnings are errors here.


class Run:
    """An executed notebook and its variables, such as ``run["fit"]``."""

    def __init__(self, folder: Path) -> None:
        self.notebook = nbformat.read(folder / "run.ipynb", as_version=4)
        self._variables: dict[str, bytes] = pickle.loads((folder / "variables.pickle").read_bytes())  # noqa: S301  # our file

    @property
    def cells(self) -> list[Any]:
        """Cells without the appended one."""
        return list(self.notebook.cells[:-1])

    def __getitem__(self, name: str) -> Any:
        return cloudpickle.loads(self._variables[name])


def ran(notebook: Path, folder: Path) -> Run:
    """Run a notebook with this interpreter in a subfolder of `folder`, or return its earlier run there."""
    subfolder = folder / notebook.stem
    subfolder.mkdir(parents=True, exist_ok=True)
    with (subfolder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (subfolder / "variables.pickle").exists():
            content = nbformat.read(notebook, as_version=4)
            content.cells.append(nbformat.v4.new_code_cell(SAVE))
            path = subfolder / "run.ipynb"
            nbformat.write(content, path)
            environment = os.environ | {"PYTHONPATH": str(ROOT), "IPYTHONDIR": str(subfolder)}
            subprocess.run(
                [sys.executable, "-c", EXECUTE, path], check=True, cwd=subfolder, env=environment, timeout=2100
            )
    return Run(subfolder)


def code_cells(notebook: Any) -> list[Any]:
    """Return the code cells."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def figures_of(run: Any) -> list[Any]:
    """Return all displayed Plotly figures."""
    kind = "application/vnd.plotly.v1+json"
    return [o["data"][kind] for cell in code_cells(run) for o in cell.outputs if kind in o.get("data", {})]


def source_of(notebook: Path, cell_id: str) -> str:
    """Return the source of a notebook's cell."""
    (source,) = (cell.source for cell in nbformat.read(notebook, as_version=4).cells if cell.id == cell_id)
    return str(source)


def text_of(notebook: Path, cell_id: str, **variables: Any) -> str:
    """Run one code cell with the notebook's imports and these variables, and return the Markdown text of its value."""
    content = nbformat.read(notebook, as_version=4)
    parsed = [statement for cell in code_cells(content) for statement in ast.parse(cell.source).body]
    imports: list[ast.stmt] = [part for part in parsed if isinstance(part, (ast.Import, ast.ImportFrom))]
    *body, last = ast.parse(source_of(notebook, cell_id)).body
    assert isinstance(last, ast.Expr)
    exec(compile(ast.Module([*imports, *body], []), cell_id, "exec"), variables)  # noqa: S102  # our notebook
    return str(eval(compile(ast.Expression(last.value), cell_id, "eval"), variables).data)  # noqa: S307


def answer_of(run: Any) -> str:
    """Return the answer that the last cell displays."""
    text: str = code_cells(run)[-1].outputs[-1]["data"]["text/markdown"]
    return text


def assert_ran_without_complaint(run: Any) -> None:
    """Check that no cell failed or wrote to stderr."""
    for cell in code_cells(run):
        assert cell.execution_count is not None
        for output in cell.outputs:
            assert output.output_type != "error"
            assert output.get("name") != "stderr", output.get("text")
