# SPDX-License-Identifier: BSD-3-Clause
"""Where a command's simulations run: options that several commands have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

from simlib.parallel import MOST_WORKERS

ClusterOption = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Simulate on a Dask cluster, such as tcp://127.0.0.1:8786.")
]


@dataclass(frozen=True)
class Elsewhere:
    """Processes, or a cluster; neither: threads of this process."""

    workers: Annotated[
        int, typer.Option(min=0, max=MOST_WORKERS, help="Simulate in so many processes; 0: in this one's threads.")
    ] = 0
    cluster: ClusterOption = ""

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Within the block, simulations run there."""
        if not self.workers and not self.cluster:
            yield
            return
        from simlib.parallel import using
        from simlib.sweep import Cluster, Pool

        with Cluster(self.cluster) if self.cluster else Pool(self.workers) as executor, using(executor):
            yield
