# SPDX-License-Identifier: BSD-3-Clause
"""The host: its cores, the distances between them, and the properties of known hosts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from simlib.model import rules


def _lists(value: tuple[tuple[int, float], ...]) -> list[list[float]]:
    return [list(pair) for pair in value]


@dataclass(frozen=True)
class Host(rules.Checked):
    """The host.

    - `name`: name of the host; selects its calibrated costs.
    - `cores`, `sockets`, `threads_per_core`: total number of cores; number of sockets, over which the cores are divided
      evenly; number of hardware threads (the kernel's CPUs) per core. Threads of the guest and of userspace fill one
      socket after another, and in each socket one hardware thread of every core first.
    - `clusters`: total number of groups of cores that share a cache; 0: all cores of a socket are equally near.
    - `line_transfer_local`, `line_transfer_remote`: picoseconds to move a contended cache line within a socket and
      between sockets. The defaults are the calibrated cost `Costs.line_transfer`, and `remote_ratio` times that cost.
    - `remote_ratio`, `cluster_ratio`: time of a transfer between sockets, and within a cluster, relative to that within
      a socket. Walks over page tables on another socket also take `remote_ratio` times as long.
    - `slowdown`: factor on the time of a vCPU's work, in the guest and in the kernel, by the number of busy CPUs: the
      effect of clock frequency, sibling threads and memory. It is linear in the logarithm between two numbers, and
      constant beyond the last.
    - `clock`: ``wall``: every CPU has its own time. ``serial``: one processor emulates all CPUs in turns, and its clock
      advances by the sum of the times for which they run, as under QEMU's single-threaded TCG (docs/lab.md).
      ``serial_yield``: the same, and a CPU that waits for a lock ends its turn, as TCG does on x86's PAUSE and on
      arm64's YIELD and WFE.
    - `turn`: mean length of those turns, picoseconds; 0: so short that all CPUs advance together.
    - `enqueue_cost`, `spin_poll_cost`: picoseconds that a CPU spends to queue for a lock, and on each unsuccessful poll
      of the lock, before it ends its turn. Used only if CPUs have turns.
    - `tick`, `tick_work`, `tick_jitter`: interval of the host's timer interrupts on each CPU (0: none), time of such an
      interrupt, both in picoseconds, and its coefficient of variation. Used only if CPUs have turns.
    - `kick_spread`: distribution of `Costs.kick`: equally likely values, of which only the ratios matter; none: the
      cost is constant.
    """

    name: str = rules.rule(rules.text, "unnamed")
    cores: int = rules.rule(rules.whole(1, 1024), 64)
    sockets: int = rules.rule(rules.whole(1, 16), 1)
    threads_per_core: int = rules.rule(rules.whole(1, 8), 1)
    clusters: int = rules.rule(rules.whole(0, 1024), 0)
    line_transfer_local: int | None = rules.duration()
    line_transfer_remote: int | None = rules.duration()
    remote_ratio: float = rules.rule(rules.number(0.1, 100), 1.0)
    cluster_ratio: float = rules.rule(rules.number(0, 1), 1.0)
    slowdown: tuple[tuple[int, float], ...] = rules.rule(rules.steps_up(1, 1024), (), _lists)
    clock: str = rules.rule(rules.choice("wall", "serial", "serial_yield"), "wall")
    turn: int = rules.duration("0ns")
    enqueue_cost: int = rules.duration("0ns")
    spin_poll_cost: int = rules.duration("0ns")
    tick: int = rules.duration("0ns")
    tick_work: int = rules.duration("0ns")
    tick_jitter: float = rules.rule(rules.number(0, 8), 0.0)
    kick_spread: tuple[float, ...] = rules.rule(rules.values, (), list)

    def slowed(self, busy: int) -> float:
        """Factor by which work takes longer when this many CPUs are busy.

        >>> host = Host(slowdown=((1, 1.0), (16, 1.2), (64, 1.4)))
        >>> host.slowed(1), round(host.slowed(4), 3), host.slowed(64), host.slowed(200)
        (1.0, 1.1, 1.4, 1.4)
        """
        if not self.slowdown:
            return 1.0
        counts, factors = zip(*self.slowdown, strict=True)
        return float(np.interp(math.log2(busy), np.log2(counts), factors))


HOSTS: dict[str, Host] = {
    host.name: host
    for host in (
        Host("ampere-altra", cores=64, sockets=1),
        # The source does not state the hardware. sockets: two, of at least 32 and fewer than 64 CPUs, because CLEAR's
        # time per GiB is constant up to 32 vCPUs with 1 GiB each, and longer with 64
        # (x86-shadow-eager-split-ioctl-time). cores: the guest has up to 96 vCPUs (x86-tdp-eager-split). remote_ratio:
        # median of four Xeons (core-to-core-latency). slowdown: time of the guest's pass without faults and locks
        # (x86-shadow-eager-split-dirty-time, ept=Y, eager_page_split=Y, 100 % written), relative to 2 vCPUs.
        Host(
            "x86-published", cores=96, sockets=2, remote_ratio=2.75,
            slowdown=((2, 1.0), (4, 1.015), (8, 1.038), (16, 1.142), (32, 1.339), (64, 1.429)),
        ),
    )
}  # fmt: skip
"""Properties of the known hosts, keyed by name: the defaults of a scenario's [host]."""

UNSTATED = frozenset({"x86-published"})
"""Hosts whose hardware no source describes; their calibrated costs may not apply to other hosts."""
