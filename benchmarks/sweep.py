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

from simlib.sweep import Grid, Sweep, read_grid, run
from simlib.sweep.batch import run_batch


def grid(points: int) -> Grid:
    """Selftests with 1 to 10 vCPUs of 4 MiB each; at least three replications a point, as is the default."""
    return read_grid({
        "scenario": {"guest": {"memory_per_vcpu": "4M"}, "workload": {"iterations": 4},
                     "costs": {"fault_hold": "600ns", "line_transfer": "50ns", "fault_jitter": 0.3}},
        "axes": {"guest": {"vcpus": list(range(1, 11))},
                 "costs": {"fault_exit": {"low": "500ns", "high": "5us", "count": points // 10}}},
    })  # fmt: skip


def timed(points: int, workers: int) -> tuple[Sweep, float]:
    """Sweep so many points, and the seconds that it took, the workers' start from their parent included."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        return run(grid(points), Path(folder), workers=workers), time.monotonic() - begun


def main(points: int = 10_000) -> None:
    run_batch(grid(20), 0, 1, 1.0)  # compiles the engine, if it has not been compiled yet
    (_, first), (_, again) = timed(20, 1), timed(20, 1)
    one, alone = timed(points, 1)
    two, together = timed(points, 2)
    print(f"the first sweep of a program waits {first - again:.1f} s more: its workers' parent imports simlib")
    print(f"{points:,} points, {one.simulating / points * 1e3:.1f} ms of simulation each")
    print(f"1 worker {alone:.1f} s, 2 workers {together:.1f} s: {alone / together:.2f} times as fast")
    for name, sweep, wall, workers in (("1 worker", one, alone, 1), ("2 workers", two, together, 2)):
        batches, all_of_it = 1 - sweep.simulating / sweep.seconds, 1 - sweep.simulating / (workers * wall)
        print(f"{name}: {batches:.1%} of the time in batches is no simulation; {all_of_it:.1%} of all, start included")


if __name__ == "__main__":
    main(*(int(number) for number in sys.argv[1:]))
