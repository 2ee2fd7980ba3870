# SPDX-License-Identifier: BSD-3-Clause
"""``simlib sweep``: a grid of scenarios into a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simlib.cli.elsewhere import ClusterOption
from simlib.cli.output import progress_bar, say, write
from simlib.parallel import MOST_WORKERS


def sweep(
    grid: Annotated[Path, typer.Argument(metavar="GRID.toml", help="What to sweep; docs/sweeps.md lists the keys.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to write the data sets.")],
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the sweep in the folder, if any.")] = False,
    cluster: ClusterOption = "",
    workers: Annotated[
        int, typer.Option(min=0, max=MOST_WORKERS, help="Processes on this machine; 0: one for each CPU.")
    ] = 0,
) -> None:
    """Simulate all points of a grid: fields of a scenario × policies × architectures, each as often as it needs.

    FOLDER/results is a Parquet data set that pandas, DuckDB and Polars read as it stands; FOLDER/refused lists the
    points that a rule refuses. What is finished survives whatever ends the run: --resume does the rest. The results are
    the same whatever the workers.

    Examples: simlib sweep data/grids/first.toml --out build/first

    simlib sweep mine.toml --out build/mine --resume --cluster tcp://10.0.0.1:8786
    """
    from simlib.sweep import run

    with progress_bar() as progress:
        found = run(
            grid, out, resume=resume, cluster=cluster or None, workers=workers, progress=progress, announce=say
        )  # fmt: skip
    results = found.points - found.refused
    say(f"{results:,} points simulated, {found.refused:,} refused; the results are in")
    write(f"{found.folder / 'results'}\n")
