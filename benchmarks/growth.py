# SPDX-License-Identifier: BSD-3-Clause
"""Growth of the time and memory of a run with the guest: `docs/growth.svg`, and its numbers.

    python benchmarks/growth.py

Each run has a separate process. Guests of up to 256 GiB are simulated page by page, and guests of 16 GiB and more by
windows (`docs/sampling.md`).
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots
from run import child

TARGET = Path(__file__).resolve().parents[1] / "docs" / "growth.svg"

VCPUS = [*(2**k for k in range(10)), 1023]  # an engine has at most 1024 threads
MEMORY_GIB = [2**k for k in range(13)]
WHOLE_GIB, FIRST_SAMPLED_GIB = 256, 16


def guest(vcpus: int, memory: str, kind: str) -> dict[str, Any]:
    """Scenario: the selftest with an equal part of the memory for each vCPU, or a migration of the memory."""
    workload = {"kind": kind, "iterations": 2}
    if kind == "migration":
        workload = {
            "kind": kind,
            "access": "uniform",
            "shared": True,
            "clear_chunk": "1G",
            "pass_limit": 2,
            "timeout": "3600s",
        }
    return {"guest": {"vcpus": vcpus, "memory": memory, "backing": "hugetlb_2mb"}, "workload": workload,
            "policy": {"architecture": "arm64"}}  # fmt: skip


def measure(scenarios: list[dict[str, Any]], method: str) -> list[dict[str, float]]:
    """Measure seconds, GiB and faults (or pages of the guest) of the scenarios."""
    results = []
    for scenario in scenarios:
        results.append(child("growth", method, json.dumps(scenario)))
        print(scenario["guest"], results[-1], file=sys.stderr, flush=True)
    return results


def exponent(work: list[float], time_s: list[float]) -> float:
    """Slope of the logarithms over the larger half of the runs, where constant costs are small; 1: proportional."""
    half = len(work) // 2
    return float(np.polyfit(np.log(work[half:]), np.log(time_s[half:]), 1)[0])


def main() -> None:
    whole = measure([guest(n, f"{16 * n}M", "dirty_log_perf_test") for n in VCPUS], "whole")
    sizes = [n for n in MEMORY_GIB if n <= WHOLE_GIB]
    paged = measure([guest(16, f"{n}G", "dirty_log_perf_test") for n in sizes], "whole")
    large = [n for n in MEMORY_GIB if n >= FIRST_SAMPLED_GIB]
    sampled = measure([guest(16, f"{n}G", "migration") for n in large], "sampled")
    curves = {
        "vCPUs, 16 MiB each, page by page": (VCPUS, whole),
        "GiB, 16 vCPUs, page by page": (sizes, paged),
        "GiB, 16 vCPUs, sampled": (large, sampled),
    }
    figure = make_subplots(1, 2, subplot_titles=["time, s", "memory, GiB"])
    for name, (xs, runs) in curves.items():
        slope = exponent([run["work"] for run in runs], [run["seconds"] for run in runs])
        print(f"{name}: the time is proportional to the work to the power of {slope:.2f}")
        for column, quantity in enumerate(("seconds", "gib"), 1):
            line = go.Scatter(x=xs, y=[run[quantity] for run in runs], name=name, mode="lines+markers",
                              legendgroup=name, showlegend=column == 1)  # fmt: skip
            figure.add_trace(
                line.update(line_color=["#0072b2", "#d55e00", "#009e73"][list(curves).index(name)]), 1, column
            )
    figure.update_xaxes(type="log", title="vCPUs, or GiB", dtick=math.log10(4))
    figure.update_yaxes(type="log")
    figure.update_layout(template="simple_white", legend={"orientation": "h", "y": -0.25}, margin={"t": 40})
    figure.write_image(TARGET, width=900, height=420)
    print(TARGET, time.strftime("%Y-%m-%d"))


if __name__ == "__main__":
    main()
