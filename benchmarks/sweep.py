# SPDX-License-Identifier: BSD-3-Clause
"""What a second worker gains in a sweep of small scenarios, and what share of the time is not simulation.

    python benchmarks/sweep.py [POINTS]

Each of the two is a ratio of times within this one program. Nothing else may want the CPUs meanwhile: what does has its
share in the wall time. `chrt --rr` is no help: the workers then keep the driver waiting for a CPU.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from simlib.analysis.sweep import Grid, batch, read_grid, run


def grid(points: int) -> Grid:
    """Selftests with 1 to 10 vCPUs of 4 MiB each; at least three replications a point, as is the default."""
    return read_grid({
        "scenario": {"guest": {"memory_per_vcpu": "4M"}, "workload": {"iterations": 4},
                     "costs": {"fault_hold": "600ns", "line_transfer": "50ns", "fault_jitter": 0.3,
                               "others": "0ns"}},
        "axes": {"guest": {"vcpus": list(range(1, 11))},
                 "costs": {"fault_unlocked": {"low": "500ns", "high": "5us", "count": points // 10}}},
    })  # fmt: skip


def timed(points: int, workers: int) -> float:
    """Sweep so many points, and the seconds that it took, the workers' start from their parent included."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        run(grid(points), Path(folder), workers=workers)
        return time.monotonic() - begun


def simulating(points: int) -> tuple[float, float]:
    """Seconds of a batch of so many points in this process, and of them those in simulations."""
    within, simulate = 0.0, batch.run_scenario

    def watched(*given: Any, **options: Any) -> Any:
        nonlocal within
        begun = time.perf_counter()
        try:
            return simulate(*given, **options)
        finally:
            within += time.perf_counter() - begun

    batch.run_scenario = watched
    return batch.run_batch(grid(points), 0, points, 1e9).seconds, within


def main(points: int = 10_000) -> None:
    batch.run_batch(grid(20), 0, 1, 1.0)  # compiles the engine, if it has not been compiled yet
    first, again = timed(20, 1), timed(20, 1)
    alone, together = timed(points, 1), timed(points, 2)
    seconds, within = simulating(points)
    print(f"the first sweep of a program waits {first - again:.1f} s more: its workers' parent imports simlib")
    print(f"{points:,} points, {within / points * 1e3:.1f} ms of simulation each")
    print(f"1 worker {alone:.1f} s, 2 workers {together:.1f} s: {alone / together:.2f} times as fast")
    print(f"{1 - within / seconds:.1%} of the time in batches is no simulation")
    for wall, workers in ((alone, 1), (together, 2)):
        print(f"{1 - within / (workers * wall):.1%} of all time of {workers} workers is none, start included")


if __name__ == "__main__":
    main(*(int(number) for number in sys.argv[1:]))
