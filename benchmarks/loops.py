# SPDX-License-Identifier: BSD-3-Clause
"""Measured jobs: a closed lock loop in several simulators, and scenarios of dirty_log_perf_test.

In the lock loop 64 threads think (exponential, 6.4 us), take a FIFO lock, hold it (exponential, 100 ns) and drop it. 64
holds take as long as a think, so the lock is nearly saturated: its exact utilisation is 0.907 (machine-repairman
queue).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import simpy

from simlib.analysis.theory.machine_repairman import machine_repairman
from simlib.model.job import Job
from simlib.model.locks import Discipline
from simlib.model.program import Lock, Program
from simlib.model.scenario import Scenario
from simlib.model.steps import Mode
from simlib.simulator.engine import compiled
from simlib.simulator.engine.result import EngineResult

THREADS = 64
THINK_PS, HOLD_PS = 6_400_000, 100_000
THINK, HOLD = THINK_PS * 1e-12, HOLD_PS * 1e-12

COSTS = {
    "fault_unlocked": "700ns",
    "fault_hold": "600ns",
    "tlb_invalidate": "480ns",
    "line_transfer": "33ns",
    "fault_jitter": 0.3,
    "others": "0ns",
}


@dataclass(frozen=True)
class Sample:
    """Timed run: seconds, number of acquisitions (or events), and utilisation of the lock."""

    seconds: float
    count: int
    utilisation: float

    @property
    def rate(self) -> float:
        """Acquisitions (or events) per second."""
        return self.count / self.seconds


def lock_loop(acquisitions: int) -> Job:
    """Lock loop as a program; a queued spinlock without the cost of its cache line is a FIFO lock."""
    program = Program()
    with program.thread(), program.repeat(acquisitions // THREADS):
        program.run(THINK_PS, 1)
        with program.holding(Lock(0, Mode.WRITE)):
            program.hold(HOLD_PS, 1)
    return Job(
        steps=program.steps(),
        entry=np.zeros(THREADS, dtype=np.int64),
        region=np.zeros((THREADS, 2), dtype=np.int64),
        locks=np.array([Discipline.QUEUED_SPIN], dtype=np.int64),
        local_ps=0,
        near_ps=0,
        far_ps=0,
        socket=np.zeros(THREADS, dtype=np.int64),
        cvs=(0.0, 1.0),
    )


def small_scenario() -> Scenario:
    """Guest that is small enough for the reference engine."""
    return Scenario.parse(
        {
            "guest": {"vcpus": 16, "memory_per_vcpu": "4M", "memslot_aligned": False},
            "policy": {"architecture": "arm64-2022"},
            "costs": COSTS,
        }
    )


def tiny_scenario() -> Scenario:
    """Guest with a single vCPU and a single block, whose simulation takes almost no time."""
    return Scenario.parse({"guest": {"memory_per_vcpu": "2M"}, "costs": COSTS})


def published_point(sections: int, memory_per_vcpu: str = "2G") -> Scenario:
    """Published 64-vCPU point with all its pages; `sections`: times that a fault takes the lock."""
    return Scenario.parse(
        {
            "guest": {"vcpus": 64, "memory_per_vcpu": memory_per_vcpu, "memslot_aligned": False},
            "policy": {"architecture": "arm64-spinlock", "fault_lock_sections": sections},
            "costs": COSTS,
        }
    )


def _loop_sample(seconds: float, result: EngineResult) -> Sample:
    """Sample of an engine's lock loop.

    Every thread stops after the same number of rounds, so the last threads run without contention. Therefore the
    utilisation is the sum of the threads' throughputs until their ends, times the mean hold.
    """
    stats = result.lock_stats[0, Mode.WRITE]
    acquisitions, held_ps = int(stats[0]), int(stats[4])
    rounds = acquisitions / len(result.thread_end_ps)
    rate = float((rounds / result.thread_end_ps).sum())
    return Sample(seconds, acquisitions, rate * held_ps / acquisitions)


def run_compiled(job: Job) -> Sample:
    """Run the lock loop in the compiled engine; the time includes its set-up."""
    begin = time.perf_counter()
    result = compiled.run(job)
    return _loop_sample(time.perf_counter() - begin, result)


def run_simpy(acquisitions: int) -> Sample:
    """Run the lock loop with SimPy's `Resource`."""
    rng = random.Random(1)  # noqa: S311  # a simulation, not a secret
    env = simpy.Environment()
    lock = simpy.Resource(env)
    done = env.event()
    taken, held = 0, 0.0

    def thread():
        nonlocal taken, held
        while True:
            yield env.timeout(rng.expovariate(1 / THINK))
            with lock.request() as request:
                yield request
                hold = rng.expovariate(1 / HOLD)
                taken, held = taken + 1, held + hold
                if taken == acquisitions:
                    done.succeed()
                yield env.timeout(hold)

    for _ in range(THREADS):
        env.process(thread())
    begin = time.perf_counter()
    env.run(done)
    return Sample(time.perf_counter() - begin, taken, held / env.now)


def run_salabim(acquisitions: int) -> Sample:
    """Run the lock loop with salabim's `Resource`, whose monitors record statistics by default."""
    import salabim  # noqa: PLC0415  # only make bench installs it

    rng = random.Random(1)  # noqa: S311  # a simulation, not a secret
    env = salabim.Environment(trace=False, yieldless=False)
    lock = salabim.Resource("lock", env=env)
    taken = 0

    class Thread(salabim.Component):
        def process(self):
            nonlocal taken
            while True:
                yield self.hold(rng.expovariate(1 / THINK))
                yield self.request(lock)
                taken += 1
                if taken == acquisitions:
                    env.main().activate()
                yield self.hold(rng.expovariate(1 / HOLD))
                self.release(lock)

    for _ in range(THREADS):
        Thread(env=env)
    begin = time.perf_counter()
    env.run(float("inf"))
    return Sample(time.perf_counter() - begin, taken, lock.claimed_quantity.mean())


def run_ciw(acquisitions: int) -> Sample:
    """Run the lock loop as a network of Ciw.

    Ciw's networks are open. This network is closed: all threads arrive as a batch at time 0, and no thread leaves.
    Threads alternate between a node with an unlimited number of servers (think) and a node with a single server (the
    lock). The run ends at the time at which the expected number of acquisitions is `acquisitions`; the acquisitions
    are counted.
    """
    import ciw  # noqa: PLC0415  # only make bench installs it

    ciw.seed(1)
    once = ciw.dists.Sequential([0.0, float("inf")])
    network = ciw.create_network(
        arrival_distributions=[once, None],
        batching_distributions=[ciw.dists.Deterministic(THREADS), ciw.dists.Deterministic(1)],
        service_distributions=[ciw.dists.Exponential(1 / THINK), ciw.dists.Exponential(1 / HOLD)],
        routing=[[0.0, 1.0], [1.0, 0.0]],
        number_of_servers=[float("inf"), 1],
    )
    simulation = ciw.Simulation(network)
    until = acquisitions / exact_throughput()
    begin = time.perf_counter()
    simulation.simulate_until_max_time(until)
    seconds = time.perf_counter() - begin
    taken = sum(record.node == 2 for record in simulation.get_all_records())
    return Sample(seconds, taken, simulation.transitive_nodes[1].server_utilisation)


def exact_throughput() -> float:
    """Acquisitions per second of the lock loop, exactly (machine-repairman queue)."""
    return machine_repairman(THREADS, THINK, HOLD).throughput


OTHERS: dict[str, Callable[[int], Sample]] = {"simpy": run_simpy, "salabim": run_salabim, "ciw": run_ciw}
"""Other simulators, by the name of their package."""
