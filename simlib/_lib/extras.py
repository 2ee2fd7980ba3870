# SPDX-License-Identifier: BSD-3-Clause
"""Packages that only a part of simlib needs, and the extra of pyproject.toml that brings each."""

from __future__ import annotations

MODULES = {
    "notebook": (
        "anywidget", "ipykernel", "ipywidgets", "jupyter_client", "jupyter_core", "jupyterlab", "nbclient", "nbconvert",
        "nbformat", "traitlets", "voila",
    ),
    "plot-files": ("kaleido",),
    "sweep": ("cloudpickle", "pyarrow", "xarray"),
    "cluster": ("distributed",),
}  # fmt: skip
"""Modules by the extra that installs them: the explorer and the notebooks, figures as PDF, sweeps, sweeps with Dask."""


def missing(module: str | None) -> str:
    """The sentence on a module that cannot be imported; empty if none of the extras has it.

    >>> missing("pyarrow.parquet")
    "pyarrow is not installed: it comes with pip install 'simlib[sweep]'"
    >>> missing("numpy")
    ''
    """
    name = (module or "").partition(".")[0]
    extra = next((extra for extra, modules in MODULES.items() if name in modules), "")
    return extra and f"{name} is not installed: it comes with pip install 'simlib[{extra}]'"
