# SPDX-License-Identifier: BSD-3-Clause
"""What needs a process of its own: the time of a first call, and peak memory. Prints one line of JSON.

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
    """Most memory that this process ever had resident.

    On Linux a new process inherits the peak that `getrusage` reports from the one that started it, if
    that was larger; the kernel's VmHWM is the program's own.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def first_call() -> dict[str, float]:
    """Seconds of the engine's first call, with almost nothing to simulate."""
    job = lock_loop(64)
    begin = time.perf_counter()
    compiled.run(job)
    return {"first": time.perf_counter() - begin}


def point(sections: int, memory_per_vcpu: str) -> dict[str, Any]:
    """The published 64-vCPU point: time to build and run it, what happened, and peak memory."""
    compiled.run(lock_loop(64))  # compile, or load what was compiled
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


def growth(how: str, tables: dict[str, Any]) -> dict[str, float]:
    """Time and memory of one run without compilation, and the faults that it simulates or represents."""
    scenario = complete(Scenario.parse(tables))
    if how == "sampled":
        sample_once(scenario.changed({"guest": {"memory": "16G"}}))  # compile, or load what was compiled
    else:
        run_scenario(scenario.changed({"guest": {"vcpus": 1, "memory": "64M"}}))
    begin = time.perf_counter()
    if how == "sampled":
        sample_once(scenario)
        work = float(scenario.guest.pages)
    else:
        work = float(run_scenario(scenario).raw.faults.sum())
    return {"seconds": time.perf_counter() - begin, "gib": peak_bytes() / 2**30, "work": work}


def main(arguments: list[str]) -> int:
    """Do what the arguments ask for."""
    match arguments:
        case ["first-call"]:
            found: dict[str, Any] = first_call()
        case ["point", sections, memory_per_vcpu]:
            found = point(int(sections), memory_per_vcpu)
        case ["growth", how, scenario]:
            found = growth(how, json.loads(scenario))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
