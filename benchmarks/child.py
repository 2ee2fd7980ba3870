# SPDX-License-Identifier: BSD-3-Clause
"""Measurements that need a separate process: time of a first call, and peak memory. Prints a line of JSON.

usage: child.py first-call
       child.py point SECTIONS MEMORY_PER_VCPU
       child.py growth whole|sampled SCENARIO
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from loops import lock_loop, published_point

from simlib.analysis.simulate import run_scenario
from simlib.measurements.fits import complete
from simlib.model.scenario import Scenario
from simlib.simulator.engine import compiled
from simlib.simulator.sampling.estimator import sample_once
from simlib.simulator.workloads.dirty_log_perf_test import build


def peak_bytes() -> int:
    """Peak resident memory of this process.

    On Linux `getrusage` also includes the peak of the parent process; the kernel's VmHWM does not.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def first_call() -> dict[str, float]:
    """Measure the engine's first call with a short simulation, s."""
    job = lock_loop(64)
    begin = time.perf_counter()
    compiled.run(job)
    return {"first": time.perf_counter() - begin}


def point(sections: int, memory_per_vcpu: str) -> dict[str, Any]:
    """Simulate the published 64-vCPU point: times to build and run it, counts, and peak memory."""
    compiled.run(lock_loop(64))  # compiles the engine, or loads it from the cache
    scenario = published_point(sections, memory_per_vcpu)
    wall, cpu = time.perf_counter(), time.process_time()
    job = build(scenario)
    result = compiled.run(job)
    return {
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "events": result.events,
        "acquisitions": int(result.lock_stats[0, :, 0].sum()),
        "interconnect": int(result.lock_stats[1, :, 0].sum()),
        "pages": job.pages,
        "simulated": result.end_ps * 1e-12,
        "peak_bytes": peak_bytes(),
    }


def growth(method: str, tables: dict[str, Any]) -> dict[str, float]:
    """Time and memory of a run without compilation, and the number of faults that it simulates or represents."""
    scenario = complete(Scenario.parse(tables))
    if method == "sampled":
        sample_once(scenario.changed({"guest": {"memory": "16G"}}))  # compiles, or loads from the cache
    else:
        run_scenario(scenario.changed({"guest": {"vcpus": 1, "memory": "64M"}}))
    begin = time.perf_counter()
    if method == "sampled":
        sample_once(scenario)
        work = float(scenario.guest.pages)
    else:
        work = float(run_scenario(scenario).raw.faults.sum())
    return {"seconds": time.perf_counter() - begin, "gib": peak_bytes() / 2**30, "work": work}


def main(arguments: list[str]) -> int:
    """Run the selected measurement, and print its result."""
    match arguments:
        case ["first-call"]:
            result: dict[str, Any] = first_call()
        case ["point", sections, memory_per_vcpu]:
            result = point(int(sections), memory_per_vcpu)
        case ["growth", method, scenario]:
            result = growth(method, json.loads(scenario))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
