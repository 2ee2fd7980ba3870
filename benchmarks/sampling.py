# SPDX-License-Identifier: BSD-3-Clause
"""Sampled migrations beside whole ones: the table of docs/sampling.md.

Each case is simulated page by page once and sampled with several walks. Cases that are done already are read from
build/sampling; ``--quick`` takes the small ones only, ``--write`` puts the table into docs/sampling.md.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import pandas as pd

from simlib import Scenario, parallel
from simlib.decision.grid import central
from simlib.decision.priors import standard_scenario
from simlib.files import write_text
from simlib.sampling import sample_migration
from simlib.simulation import run_scenario

ROOT = Path(__file__).parents[1]
DONE = ROOT / "build" / "sampling"
PAGE = ROOT / "docs" / "sampling.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"

DENSE, SPARSE = "dense", "sparse"
GUESTS = {
    DENSE: {"access": "uniform", "access_interval": "10us", "write_percent": 100},
    SPARSE: {"access": "zipf", "access_interval": "50us", "write_percent": 30},
}
WAYS = {
    "lockless": ("x86-tdp", {}),
    "lockless, no split": ("x86-shadow", {}),
    "read": ("arm64", {}),
    "read, clear read": ("arm64", {"clear_lock": "read"}),
    "write": ("loongarch", {}),
    "write, every 64": ("loongarch", {"lets_go": "pages >= 64"}),
    "read, every 512": ("riscv", {"lets_go": "pages >= 512"}),
    "read, on demand": ("arm64", {"lets_go": "waiters >= 1"}),
}
"""How faults take the lock, on which architecture, and with which strategy."""

CASES = [
    # vCPUs, memory, chunk, density, way
    (16, "16G", "256M", DENSE, "read"),
    (16, "16G", "1G", DENSE, "write"),
    (64, "16G", "1G", DENSE, "lockless"),
    (64, "16G", "8G", DENSE, "lockless, no split"),
    (64, "16G", "256M", SPARSE, "write, every 64"),
    (160, "20G", "1G", DENSE, "read, every 512"),
    (32, "32G", "1G", SPARSE, "read"),
    (32, "32G", "256M", DENSE, "write, every 64"),
    (64, "64G", "1G", DENSE, "read, on demand"),
    (64, "64G", "8G", SPARSE, "write"),
    (16, "64G", "8G", DENSE, "read"),
    (160, "80G", "8G", DENSE, "read, clear read"),
    (160, "80G", "1G", SPARSE, "lockless, no split"),
    (64, "128G", "1G", SPARSE, "lockless"),
    (16, "128G", "256M", DENSE, "write"),
    (64, "192G", "1G", DENSE, "read"),
    (64, "192G", "8G", SPARSE, "read, on demand"),
    (160, "160G", "8G", SPARSE, "write"),
    (16, "192G", "8G", DENSE, "lockless, no split"),
    (160, "160G", "1G", SPARSE, "read, every 512"),
]
QUICK = 7
"""The first cases, which take about a minute."""

METRICS = ("precopy_duration", "dirty_left", "clear_cpu_time", "guest_throughput", "lost", "lock_acquisitions")
"""Means that are compared; `lost` is what the guest lost: pre-copy × (1 − throughput)."""


def scenario_of(vcpus: int, memory: str, chunk: str, density: str, way: str) -> Scenario:
    """One case, all costs at their medians."""
    architecture, policy = WAYS[way]
    workload = {
        "clear_chunk": chunk,
        "link": "25Gbit/s",
        "pass_limit": 2,
        "shared": True,
        "downtime": "1ms",
        "warm_up": "100us",
    }
    changes = {"guest": {"memory": memory}, "policy": policy, "workload": workload | GUESTS[density]}
    return central(standard_scenario(architecture, vcpus).changed(changes))


def with_lost(metrics: dict[str, float]) -> dict[str, float]:
    """The metrics and what the guest lost."""
    return metrics | {"lost": metrics["precopy_duration"] * (1 - metrics["guest_throughput"])}


def run(case: tuple[int, str, str, str, str], check: parallel.Check) -> dict[str, object]:
    """One case, whole and sampled; kept in a file of its own."""
    path = DONE / ("-".join(map(str, case)).replace(" ", "_").replace(",", "") + ".json")
    scenario = scenario_of(*case)
    if not path.is_file():
        began = time.thread_time()
        whole = run_scenario(scenario, progress=check)
        seconds = time.thread_time() - began
        write_text(path, json.dumps({"whole": whole.metrics, "events": whole.raw.events, "seconds": seconds}) + "\n")
    found: dict[str, object] = {"case": case, **json.loads(path.read_text())}
    began = time.process_time()
    sampled = sample_migration(scenario)
    frame = sampled.frame.set_index("metric")
    return found | {
        "sampled": frame["value"].to_dict(), "standard_error": frame["standard_error"].to_dict(),
        "sampled_events": sampled.events, "sampled_s": time.process_time() - began,
    }  # fmt: skip


def main() -> None:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"the first {QUICK} cases only")
    parser.add_argument("--write", action="store_true", help="put the table into docs/sampling.md")
    parser.add_argument("--workers", type=int, default=0, help="cases at a time; 0: as many as there are CPUs")
    arguments = parser.parse_args()
    cases = CASES[:QUICK] if arguments.quick else CASES
    tasks = [lambda check, case=case: run(case, check) for case in cases]
    found = parallel.each(
        tasks,
        [str(case) for case in cases],
        lambda what, share: print(f"{share:.0%} {what}", flush=True),
        workers=arguments.workers,
    )
    rows = []
    for one in found:
        whole, sampled = with_lost(one["whole"]), with_lost(one["sampled"])
        row = dict(zip(("vCPUs", "memory", "chunk", "guest", "faults take the lock"), one["case"], strict=True))
        for name in (*METRICS, "longest_stall", "stall_p999"):
            row[name] = sampled[name] / whole[name] - 1 if whole[name] else float(sampled[name] != 0)
        rows.append(row | {"stall": whole["longest_stall"], "whole_s": one["seconds"], "sampled_s": one["sampled_s"]})
    table = pd.DataFrame(rows)
    print(table.to_string(float_format="{:+.3f}".format))
    print(table[[*METRICS, "longest_stall"]].abs().max())
    inside = [
        abs(one["sampled"][n] - one["whole"][n]) <= 1.895 * one["standard_error"][n] + 0.01 * abs(one["sampled"][n])
        for one in found
        for n in one["whole"]
        if n in one["sampled"] and n != "longest_stall"
    ]
    print("covered", np.mean(inside))


if __name__ == "__main__":
    main()
