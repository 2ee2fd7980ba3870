# SPDX-License-Identifier: BSD-3-Clause
"""The host: its cores and their distances; and what is known of those that have a name."""

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

    - `name`: what the host is called; calibrated costs are kept by this name.
    - `cores`, `sockets`, `threads_per_core`: cores in all, how many sockets share them evenly, and how many threads
      (CPUs to the kernel) a core runs. Threads of the guest and of userspace fill socket after socket, of each first
      one thread of every core.
    - `clusters`: groups of cores that share a cache, in all sockets together; 0: none within a socket is nearer than
      another.
    - `line_transfer_local`, `line_transfer_remote`: picoseconds to move a contended cache line within a socket and
      between sockets. Without a value the calibrated cost `Costs.line_transfer` stands for the former, and
      `remote_ratio` times that for the latter.
    - `remote_ratio`, `cluster_ratio`: how many times as long it takes between sockets, and within a cluster, as within
      a socket. What a thread does to page tables takes `remote_ratio` times as long where they lie on another socket.
    - `slowdown`: how many times as long the work of a vCPU takes, in the guest and in the kernel, with so many busy
      CPUs: what frequency, siblings and memory do. Between two numbers it is linear in the logarithm, beyond the last
      constant.
    - `clock`: ``wall``: every CPU has its own time. ``serial``: one processor emulates all CPUs in turns, and its clock
      is the sum over those that run, as under QEMU's single-threaded TCG (docs/lab.md). ``serial_yield``: the same, and
      a CPU that waits for a lock gives its turns away: TCG takes x86's PAUSE, arm64's YIELD and WFE so.
    - `turn`: mean length of those turns, picoseconds; 0: so short that all CPUs advance together.
    - `enqueue_cost`, `spin_poll_cost`: what a CPU does, picoseconds, to queue for a lock, and to look in vain whether
      it has it, before it gives the rest of its turn away. For CPUs that have turns.
    - `tick`, `tick_work`, `tick_jitter`: how often the host's timer interrupts each CPU, and what such an interrupt
      takes of its time, picoseconds (0: never), with its coefficient of variation. For CPUs that have turns.
    - `kick_spread`: how `Costs.kick` varies: values that are as likely as each other, of which only the ratios count;
      none: it does not.
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
        """How many times as long work takes with so many busy CPUs.

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
        # Its hardware is not stated. Two sockets of at least 32 and fewer than 64 CPUs: CLEAR's time a GiB is flat up
        # to 32 GiB and vCPUs, and longer at 64 (x86-shadow-eager-split-ioctl-time); at least 96 CPUs, for 96 vCPUs
        # (x86-tdp-eager-split). Between sockets as between those of four Xeons, in the median (core-to-core-latency).
        # Slower with busy CPUs as the pass of its guest that takes neither fault nor lock
        # (x86-shadow-eager-split-dirty-time, ept=Y, eager_page_split=Y, 100 % written), over that of 2 vCPUs.
        Host(
            "x86-published", cores=96, sockets=2, remote_ratio=2.75,
            slowdown=((2, 1.0), (4, 1.015), (8, 1.038), (16, 1.142), (32, 1.339), (64, 1.429)),
        ),
    )
}  # fmt: skip
"""Facts of hosts by their name: what a scenario's [host] has if it gives no other value."""

UNSTATED = frozenset({"x86-published"})
"""Of those the ones whose hardware no source states: what was calibrated on them is not known to hold anywhere else."""
