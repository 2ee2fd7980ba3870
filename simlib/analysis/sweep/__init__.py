# SPDX-License-Identifier: BSD-3-Clause
"""Sweeps over many scenarios, on this machine or a Dask cluster; finished results survive any termination.

`run` writes the results of a grid to a folder; `load` reads them with labelled dimensions. `Pool` and `Cluster` execute
the batches of a sweep and, with `use_executor`, also predictions, calibrations and choices. See docs/sweeps.md.
"""

from typing import TYPE_CHECKING

from simlib._lib import lazy_imports
from simlib._lib.parallel import use_executor

if TYPE_CHECKING:
    from simlib.analysis.sweep.cluster import Cluster
    from simlib.analysis.sweep.dataset import load, refused
    from simlib.analysis.sweep.driver import Sweep, run
    from simlib.analysis.sweep.grid import Grid, load_grid, read_grid
    from simlib.analysis.sweep.pool import Pool

__all__ = ["Cluster", "Grid", "Pool", "Sweep", "load", "load_grid", "read_grid", "refused", "run", "use_executor"]

__getattr__ = lazy_imports.lazy_names(
    __name__,
    {
        "cluster": ("Cluster",), "dataset": ("load", "refused"), "driver": ("Sweep", "run"),
        "grid": ("Grid", "load_grid", "read_grid"), "pool": ("Pool",),
    },
)  # fmt: skip
