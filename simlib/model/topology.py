# SPDX-License-Identifier: BSD-3-Clause
"""Where threads run: which socket and which cluster of cores each is on."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simlib.model.machine import Machine


class Placement(NamedTuple):
    """Where each thread runs; both int64 of shape (threads,), to be read. `cluster` is None if the machine has none."""

    socket: NDArray[np.int64]
    cluster: NDArray[np.int64] | None


@lru_cache(maxsize=256)
def placement(machine: Machine, threads: int) -> Placement:
    """Threads by their number, socket after socket: first one on every core of it, then on the cores' next threads.

    With more threads than CPUs it begins again. Linux fills a node so as long as it has idle CPUs and the memory is
    there; the published CLEAR times of the x86 hosts, flat up to 32 GiB and vCPUs and longer at 64, say the same.

    >>> placement(Machine(cores=4, sockets=2, threads_per_core=2, clusters=4), 8)
    Placement(socket=array([0, 0, 0, 0, 1, 1, 1, 1]), cluster=array([0, 1, 0, 1, 2, 3, 2, 3]))
    """
    cores = np.arange(machine.cores, dtype=np.int64)
    sockets = cores * machine.sockets // machine.cores
    order = np.concatenate([np.tile(cores[sockets == s], machine.threads_per_core) for s in range(machine.sockets)])
    core = order[np.arange(threads) % len(order)]
    cluster = core * machine.clusters // machine.cores if machine.clusters else None
    return Placement(sockets[core], cluster)


def far_share(machine: Machine, vcpus: int) -> float:
    """Share of the vCPUs, and so of the memory that they touched first, that are not on the first socket.

    >>> far_share(Machine(cores=96, sockets=2), 64)
    0.25
    """
    return float((placement(machine, vcpus).socket > 0).mean()) if machine.sockets > 1 else 0.0
