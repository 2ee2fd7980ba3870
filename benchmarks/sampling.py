# SPDX-License-Identifier: BSD-3-Clause
"""Comparison of sampled migrations with complete simulations: the table of docs/sampling.md.

Each case is simulated once page by page, and estimated from several sampled runs. Finished cases are read from
build/sampling; ``--quick`` selects the small cases. The program prints a row for each case; ``--write`` puts the
largest errors, by way of taking the lock, into docs/sampling.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simlib import Scenario
from simlib._lib import parallel
from simlib._lib.files import write_text
from simlib.analysis.choose.presets import preset_scenario
from simlib.analysis.simulate import run_scenario
from simlib.measurements.fits import UncertainCosts, choose_fit
from simlib.simulator.sampling import sample_migration

ROOT = Path(__file__).parents[1]
DONE = ROOT / "build" / "sampling"
PAGE = ROOT / "docs" / "sampling.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"

Case = tuple[int, str, str, str, str]

LONG_STALL = 100e-6
"""Shortest stall that counts as long, s."""

DENSE, SPARSE = "dense", "sparse"
WRITE_RATES = {
    DENSE: {"access": "uniform", "access_interval": "10us", "write_percent": 100},
    SPARSE: {"access": "zipf", "access_interval": "50us", "write_percent": 30},
}
WAYS = {
    "lockless": ("x86-tdp", {}),
    "lockless, no split": ("x86-shadow", {}),
    "read": ("arm64", {}),
    "read, clear read": ("arm64", {"clear_lock": "read"}),
    "write": ("loongarch", {}),
    "write, every 64": ("loongarch", {"clear_drop_when": "pages >= 64"}),
    "read, every 512": ("riscv", {"clear_drop_when": "pages >= 512"}),
    "read, on demand": ("arm64", {"clear_drop_when": "waiters >= 1"}),
}
"""Ways of taking the lock for a fault: architecture, and changes of its policy."""

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
"""Number of the first cases, which take about a minute."""

COMPARED = {
    "precopy_duration": "pre-copy", "dirty_left": "dirty left", "clear_cpu_time": "CPU time of CLEAR",
    "lost": "guest time lost", "lock_acquisitions": "acquisitions",
    "longest_stall": "longest stall", "stall_p999": "p99.9",
}  # fmt: skip
"""Compared metrics; `lost` is the guest time lost, pre-copy × (1 − throughput)."""


def scenario_of(vcpus: int, memory: str, chunk: str, density: str, way: str) -> Scenario:
    """Scenario of a case, with all costs at their medians."""
    architecture, policy = WAYS[way]
    workload = {
        "clear_chunk": chunk,
        "link": "25Gbit/s",
        "pass_limit": 2,
        "shared": True,
        "downtime": "1ms",
        "warm_up": "100us",
    }
    changes = {"guest": {"memory": memory}, "policy": policy, "workload": workload | WRITE_RATES[density]}
    scenario = preset_scenario(architecture, vcpus).changed(changes)
    return UncertainCosts.of(scenario, choose_fit(scenario)[0]).central()


def with_lost(metrics: dict[str, float]) -> dict[str, float]:
    """Add the guest time lost to metrics."""
    return metrics | {"lost": metrics["precopy_duration"] * (1 - metrics["guest_throughput"])}


def path_of(case: Case) -> Path:
    """File of the complete simulation of a case: its name, and a digest of its scenario."""
    digest = hashlib.sha256(repr(dataclasses.asdict(scenario_of(*case))).encode()).hexdigest()[:12]
    return DONE / ("-".join(map(str, case)).replace(" ", "_").replace(",", "") + f"-{digest}.json")


def run(case: Case, check: parallel.Check) -> None:
    """Simulate a case page by page, unless its file exists."""
    path = path_of(case)
    if path.is_file():
        return
    start = time.thread_time()
    whole = run_scenario(scenario_of(*case), progress=check)
    content = {"whole": whole.metrics, "events": whole.raw.events, "seconds": time.thread_time() - start}
    write_text(path, json.dumps(content) + "\n")


def sampled(case: Case) -> dict[str, Any]:
    """Sample a case, and add its complete simulation."""
    start = time.process_time()
    sample = sample_migration(scenario_of(*case))
    frame = sample.frame.set_index("metric")
    columns = {name: frame[name].to_dict() for name in ("low", "high")}
    whole = json.loads(path_of(case).read_text())
    return {"case": case, "sampled": sample.metrics, "sampled_s": time.process_time() - start, **columns, **whole}


def inside(result: dict[str, Any]) -> list[bool]:
    """Compare metrics of the complete simulation with the sample's intervals; the longest stall has no interval."""
    names = [name for name in result["whole"] if name in result["sampled"] and name != "longest_stall"]
    return [result["low"][name] <= result["whole"][name] <= result["high"][name] for name in names]


def error(result: dict[str, Any], name: str) -> float:
    """Relative error of the sample; 0 if the complete simulation has 0."""
    whole, sampled = with_lost(result["whole"]), with_lost(result["sampled"])
    return sampled[name] / whole[name] - 1 if whole[name] else 0.0


def table(results: list[dict[str, Any]]) -> pd.DataFrame:
    """Return a row per case: its properties, and the columns of `worst`."""
    names = ("vCPUs", "memory", "chunk", "guest", "faults take the lock")
    return pd.DataFrame([dict(zip(names, result["case"], strict=True)) | worst([result]) for result in results])


def by_way(results: list[dict[str, Any]]) -> pd.DataFrame:
    """Return a row for each of `WAYS`, over its cases."""
    cases = {way: [result for result in results if result["case"][-1] == way] for way in WAYS}
    rows = [{"faults take the lock": way, "cases": len(of)} | worst(of) for way, of in cases.items() if of]
    return pd.DataFrame(rows)


def worst(results: list[dict[str, Any]]) -> dict[str, str]:
    """Largest error of each metric in some cases, number of values within their intervals, and CPU times."""
    row = {
        title: f"{100 * max((error(result, name) for result in results), key=abs):+.1f} %"
        for name, title in COMPARED.items()
    }
    within = [is_inside for result in results for is_inside in inside(result)]
    row["inside"] = f"{sum(within)}/{len(within)}"
    row["whole, s"] = f"{sum(result['seconds'] for result in results):.0f}"
    row["sample, s"] = f"{sum(result['sampled_s'] for result in results):.1f}"
    return row


def summary(results: list[dict[str, Any]]) -> str:
    """Describe the largest errors of all cases."""
    means = {"precopy_duration": "pre-copy", "dirty_left": "dirty memory left", "clear_cpu_time": "CLEAR's CPU time",
             "guest_throughput": "throughput", "lost": "guest time lost"}  # fmt: skip
    largest = [
        f"{100 * max(abs(error(result, name)) for result in results):.1f} % ({title})" for name, title in means.items()
    ]
    stalls = [(result["whole"]["longest_stall"], abs(error(result, "longest_stall"))) for result in results]
    long = max(off for stall, off in stalls if stall >= LONG_STALL)
    short = max(off for stall, off in stalls if stall < LONG_STALL)
    within = [is_inside for result in results for is_inside in inside(result)]
    return (
        f"The largest errors in {len(results)} cases: {', '.join(largest)}. The largest error of the longest "
        f"stall is {100 * long:.1f} % for stalls of {LONG_STALL * 1e6:.0f} µs or longer, and {100 * short:.1f} % for "
        f"shorter ones. The 90 % intervals contain {sum(within)} of {len(within)} values "
        f"({100 * np.mean(within):.0f} %)."
    )


def markdown(frame: pd.DataFrame) -> str:
    """Return a table as Markdown."""
    lines = ["| " + " | ".join(frame.columns) + " |", "|" + "---|" * len(frame.columns)]
    lines += ["| " + " | ".join(str(value) for value in row) + " |" for row in frame.itertuples(index=False)]
    return "\n".join(lines)


def main() -> None:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"only the first {QUICK} cases")
    parser.add_argument("--write", action="store_true", help="put the table into docs/sampling.md")
    parser.add_argument("--workers", type=int, default=0, help="number of concurrent cases; 0: number of CPUs")
    arguments = parser.parse_args()
    cases = CASES[:QUICK] if arguments.quick else CASES
    tasks = [partial(run, case) for case in cases]
    labels = [str(case) for case in cases]
    parallel.run_all(
        tasks, labels, lambda what, share: print(f"{100 * share:.0f} % {what}", flush=True), workers=arguments.workers
    )
    results = [sampled(case) for case in cases]  # one after another, because each uses all CPUs
    page = f"{BEGIN}\n{summary(results)}\n\n{markdown(by_way(results))}\n{END}"
    print(markdown(table(results)), page, sep="\n\n")
    if arguments.write:
        text = PAGE.read_text(encoding="utf-8")
        write_text(PAGE, text[: text.index(BEGIN)] + page + text[text.index(END) + len(END) :])


if __name__ == "__main__":
    main()
