# SPDX-License-Identifier: BSD-3-Clause
"""Optional packages, and the extra of pyproject.toml that installs each."""

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
"""Modules by extra; the extras serve the explorer and the notebooks, figures as PDF, sweeps, and sweeps on Dask."""


def missing(module: str | None) -> str:
    """Message about a module that cannot be imported; empty if no extra installs it.

    >>> missing("pyarrow.parquet")
    "pyarrow is not installed: install it with pip install 'simlib[sweep]'"
    >>> missing("numpy")
    ''
    """
    name = (module or "").partition(".")[0]
    extra = next((extra for extra, modules in MODULES.items() if name in modules), "")
    return extra and f"{name} is not installed: install it with pip install 'simlib[{extra}]'"
