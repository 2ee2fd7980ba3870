# SPDX-License-Identifier: BSD-3-Clause
"""Placement of threads on sockets and clusters of cores."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simlib.model.host import Host


class Placement(NamedTuple):
    """Socket and cluster of each thread; int64 of shape (threads,), read-only. Without clusters, `cluster` is None."""

    socket: NDArray[np.int64]
    cluster: NDArray[np.int64] | None


@lru_cache(maxsize=256)
def placement(host: Host, threads: int) -> Placement:
    """Place threads by number, socket by socket: first one on each core, then on the cores' other hardware threads.

    With more threads than CPUs, the placement starts again with the first CPU. Linux fills a NUMA node in this way
    while the node has idle CPUs and the memory is on it. The published CLEAR times per GiB of the x86 hosts are
    consistent with this placement: they are constant up to 32 vCPUs with 1 GiB each, and longer with 64.

    >>> placement(Host(cores=4, sockets=2, threads_per_core=2, clusters=4), 8)
    Placement(socket=array([0, 0, 0, 0, 1, 1, 1, 1]), cluster=array([0, 1, 0, 1, 2, 3, 2, 3]))
    """
    cores = np.arange(host.cores, dtype=np.int64)
    sockets = cores * host.sockets // host.cores
    order = np.concatenate([np.tile(cores[sockets == s], host.threads_per_core) for s in range(host.sockets)])
    core = order[np.arange(threads) % len(order)]
    cluster = core * host.clusters // host.cores if host.clusters else None
    return Placement(sockets[core], cluster)


def far_share(host: Host, vcpus: int) -> float:
    """Share of the vCPUs (and, because of first touch, of the memory) on sockets other than the first.

    >>> far_share(Host(cores=96, sockets=2), 64)
    0.25
    """
    return float((placement(host, vcpus).socket > 0).mean()) if host.sockets > 1 else 0.0
