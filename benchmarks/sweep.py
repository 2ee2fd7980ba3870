# SPDX-License-Identifier: BSD-3-Clause
"""Speed-up of a sweep of small scenarios by a second worker, and share of the time outside simulations.

    python benchmarks/sweep.py [POINTS]

Both are ratios of times within this program. Other programs must not use the CPUs, because they would increase the wall
time. `chrt --rr` does not help: with it the driver waits for a CPU that the workers use.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from simlib.analysis.sweep import Grid, batch, read_grid, run


def grid(points: int) -> Grid:
    """Grid of selftests with 1 to 10 vCPUs of 4 MiB each, with at least three replications per point (the default)."""
    return read_grid({
        "scenario": {"guest": {"memory_per_vcpu": "4M"}, "workload": {"iterations": 4},
                     "costs": {"fault_hold": "600ns", "line_transfer": "50ns", "fault_jitter": 0.3,
                               "others": "0ns"}},
        "axes": {"guest": {"vcpus": list(range(1, 11))},
                 "costs": {"fault_unlocked": {"low": "500ns", "high": "5us", "count": points // 10}}},
    })  # fmt: skip


def timed(points: int, workers: int) -> float:
    """Sweep some points, and return the time, s, which includes the start of the workers."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        run(grid(points), Path(folder), workers=workers)
        return time.monotonic() - start


def simulating(points: int) -> tuple[float, float]:
    """Time of a batch of points in this process, and the time that it spends in simulations, s."""
    within, simulate = 0.0, batch.run_scenario

    def timed_simulation(*arguments: Any, **options: Any) -> Any:
        nonlocal within
        start = time.perf_counter()
        try:
            return simulate(*arguments, **options)
        finally:
            within += time.perf_counter() - start

    batch.run_scenario = timed_simulation
    return batch.run_batch(grid(points), 0, points, 1e9).seconds, within


def main(points: int = 10_000) -> None:
    batch.run_batch(grid(20), 0, 1, 1.0)  # compiles the engine, if it has not been compiled yet
    first, second = timed(20, 1), timed(20, 1)
    single, parallel = timed(points, 1), timed(points, 2)
    seconds, within = simulating(points)
    print(f"the first sweep of a program takes {first - second:.1f} s longer: the parent of the workers imports simlib")
    print(f"{points:,} points, {within / points * 1e3:.1f} ms of simulation each")
    print(f"1 worker {single:.1f} s, 2 workers {parallel:.1f} s: a speed-up of {single / parallel:.2f}")
    print(f"{1 - within / seconds:.1%} of the time of batches is outside simulations")
    for wall, workers in ((single, 1), (parallel, 2)):
        print(
            f"{1 - within / (workers * wall):.1%} of the time of {workers} workers, with their start, is outside them"
        )


if __name__ == "__main__":
    main(*(int(number) for number in sys.argv[1:]))
