# SPDX-License-Identifier: BSD-3-Clause
"""Sampled migrations beside whole ones: the table of docs/sampling.md.

Each case is simulated page by page once and sampled with several walks. Cases that are done already are read from
build/sampling; ``--quick`` takes the small ones only. A row a case is printed; ``--write`` puts the worst of each way
that faults take the lock into docs/sampling.md.
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
"""A stall that matters to somebody, s."""

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

SHOWN = {
    "precopy_duration": "pre-copy", "dirty_left": "dirty left", "clear_cpu_time": "CPU time of CLEAR",
    "lost": "guest time lost", "lock_acquisitions": "acquisitions",
    "longest_stall": "longest stall", "stall_p999": "p99.9",
}  # fmt: skip
"""What is compared; `lost` is what the guest lost, pre-copy × (1 − throughput)."""


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
    changes = {"guest": {"memory": memory}, "policy": policy, "workload": workload | WRITE_RATES[density]}
    scenario = preset_scenario(architecture, vcpus).changed(changes)
    return UncertainCosts.of(scenario, choose_fit(scenario)[0]).central()


def with_lost(metrics: dict[str, float]) -> dict[str, float]:
    """The metrics and what the guest lost."""
    return metrics | {"lost": metrics["precopy_duration"] * (1 - metrics["guest_throughput"])}


def path_of(case: Case) -> Path:
    """Where the whole simulation of a case is kept: under its name, and a digest of its costs and all else."""
    digest = hashlib.sha256(repr(dataclasses.asdict(scenario_of(*case))).encode()).hexdigest()[:12]
    return DONE / ("-".join(map(str, case)).replace(" ", "_").replace(",", "") + f"-{digest}.json")


def run(case: Case, check: parallel.Check) -> None:
    """Simulate one case page by page, unless that was done before."""
    path = path_of(case)
    if path.is_file():
        return
    began = time.thread_time()
    whole = run_scenario(scenario_of(*case), progress=check)
    found = {"whole": whole.metrics, "events": whole.raw.events, "seconds": time.thread_time() - began}
    write_text(path, json.dumps(found) + "\n")


def sampled(case: Case) -> dict[str, Any]:
    """One case, whole and sampled."""
    began = time.process_time()
    found = sample_migration(scenario_of(*case))
    frame = found.frame.set_index("metric")
    columns = {name: frame[name].to_dict() for name in ("low", "high")}
    whole = json.loads(path_of(case).read_text())
    return {"case": case, "sampled": found.metrics, "sampled_s": time.process_time() - began, **columns, **whole}


def inside(one: dict[str, Any]) -> list[bool]:
    """Whether each metric of the whole lies within the sample's interval; the longest stall has none."""
    names = [name for name in one["whole"] if name in one["sampled"] and name != "longest_stall"]
    return [one["low"][name] <= one["whole"][name] <= one["high"][name] for name in names]


def error(one: dict[str, Any], name: str) -> float:
    """How far the sample is off, relative; nothing where the whole has nothing."""
    whole, sampled = with_lost(one["whole"]), with_lost(one["sampled"])
    return sampled[name] / whole[name] - 1 if whole[name] else 0.0


def table(found: list[dict[str, Any]]) -> pd.DataFrame:
    """One row a case: what was compared, and the columns of `worst`."""
    names = ("vCPUs", "memory", "chunk", "guest", "faults take the lock")
    return pd.DataFrame([dict(zip(names, one["case"], strict=True)) | worst([one]) for one in found])


def by_way(found: list[dict[str, Any]]) -> pd.DataFrame:
    """One row for each way that faults take the lock, over its cases."""
    cases = {way: [one for one in found if one["case"][-1] == way] for way in WAYS}
    rows = [{"faults take the lock": way, "cases": len(of)} | worst(of) for way, of in cases.items() if of]
    return pd.DataFrame(rows)


def worst(found: list[dict[str, Any]]) -> dict[str, str]:
    """The largest error of each metric in some cases, how many values lie within their intervals, and CPU time."""
    row = {title: f"{max((error(one, name) for one in found), key=abs):+.1%}" for name, title in SHOWN.items()}
    within = [good for one in found for good in inside(one)]
    row["inside"] = f"{sum(within)}/{len(within)}"
    row["whole, s"] = f"{sum(one['seconds'] for one in found):.0f}"
    row["sample, s"] = f"{sum(one['sampled_s'] for one in found):.1f}"
    return row


def summary(found: list[dict[str, Any]]) -> str:
    """The worst of all cases, in words."""
    means = {"precopy_duration": "pre-copy", "dirty_left": "dirty memory left", "clear_cpu_time": "CLEAR's CPU time",
             "guest_throughput": "throughput", "lost": "guest time lost"}  # fmt: skip
    largest = [f"{max(abs(error(one, name)) for one in found):.1%} ({title})" for name, title in means.items()]
    stalls = [(one["whole"]["longest_stall"], abs(error(one, "longest_stall"))) for one in found]
    long = max(off for stall, off in stalls if stall >= LONG_STALL)
    short = max(off for stall, off in stalls if stall < LONG_STALL)
    within = [good for one in found for good in inside(one)]
    return (
        f"The largest errors in {len(found)} cases: {', '.join(largest)}. The longest stall is off by up to {long:.1%} "
        f"if it is {LONG_STALL * 1e6:.0f} µs or longer, and by up to {short:.1%} if it is shorter. "
        f"{sum(within)} of {len(within)} values ({np.mean(within):.0%}) lie within their 90 % intervals."
    )


def markdown(frame: pd.DataFrame) -> str:
    """The table as a page has it."""
    lines = ["| " + " | ".join(frame.columns) + " |", "|" + "---|" * len(frame.columns)]
    lines += ["| " + " | ".join(str(value) for value in row) + " |" for row in frame.itertuples(index=False)]
    return "\n".join(lines)


def main() -> None:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"the first {QUICK} cases only")
    parser.add_argument("--write", action="store_true", help="put the table into docs/sampling.md")
    parser.add_argument("--workers", type=int, default=0, help="cases at a time; 0: as many as there are CPUs")
    arguments = parser.parse_args()
    cases = CASES[:QUICK] if arguments.quick else CASES
    tasks = [partial(run, case) for case in cases]
    labels = [str(case) for case in cases]
    parallel.run_all(
        tasks, labels, lambda what, share: print(f"{share:.0%} {what}", flush=True), workers=arguments.workers
    )
    found = [sampled(case) for case in cases]  # each alone, which itself uses all CPUs
    page = f"{BEGIN}\n{summary(found)}\n\n{markdown(by_way(found))}\n{END}"
    print(markdown(table(found)), page, sep="\n\n")
    if arguments.write:
        text = PAGE.read_text(encoding="utf-8")
        write_text(PAGE, text[: text.index(BEGIN)] + page + text[text.index(END) + len(END) :])


if __name__ == "__main__":
    main()
