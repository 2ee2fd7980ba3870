# SPDX-License-Identifier: BSD-3-Clause
"""Comparison of lock policies at equal costs: a tidy table and its figure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from simlib import figures
from simlib.analysis.predict import evaluate
from simlib.figures.curves import COLUMNS
from simlib.figures.style import HEIGHT, INK, VARIANT_COLOURS
from simlib.measurements.fits import CostEstimate, complete
from simlib.model.scenario import Scenario
from studies.arm64.altra import shipped_fit

STRATEGIES: dict[str, dict[str, object]] = {
    "queued spinlock": {"architecture": "arm64-spinlock", "lock": "spin", "write_protect_fault": "write"},
    "ticket lock": {"architecture": "arm64-spinlock", "lock": "ticket", "write_protect_fault": "write"},
    "rwlock, faults for read": {"architecture": "arm64-2022", "lock": "rwlock", "write_protect_fault": "read"},
    "lockless faults": {"architecture": "arm64-2022", "lock": "rwlock", "write_protect_fault": "lockless"},
}
"""Policy tables of a scenario file by the name of the curve. With each of them, a permission fault broadcasts a TLB
invalidation (simlib.model.architectures, ``fault_flush``); a lockless fault also queues for the interconnect."""

MEASURED_AS = {"queued spinlock": "spinlock-old-test", "rwlock, faults for read": "rwlock-old-test"}
"""Measured strategies, with their variants in the shipped fit."""

COLOURS = {name: VARIANT_COLOURS[variant] for name, variant in MEASURED_AS.items()}
COLOURS |= {"ticket lock": "#CC79A7", "lockless faults": INK}
"""Colours of the strategies; a measured strategy has the same colour as in the other figures."""

_LINES = ({"width": 4.5, "dash": "solid"}, {"width": 2.5, "dash": "9px,5px"})

VCPUS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of vCPUs of the published table."""

PAGES = 2048
"""Simulated pages per vCPU and point, few enough for a redraw in a fraction of a second; with 4096 pages all points of
`STRATEGIES` change by less than 1 % at the calibrated costs."""


def calibrated_scenario(estimate: CostEstimate | None = None) -> Scenario:
    """Scenario of the published selftest with the spinlock, with all costs set.

    - `estimate`: calibrated costs; by default those of the shipped fit (`studies.arm64.altra.shipped_fit`).
    """
    fit = shipped_fit()
    return complete((estimate or fit.estimate).apply(fit.scenario.variants[MEASURED_AS["queued spinlock"]]))


def compare(
    scenario: Scenario, vcpus: Sequence[int] = VCPUS, *, pages_per_vcpu: int = PAGES, seed: int = 1
) -> pd.DataFrame:
    """Simulate `STRATEGIES` for each number of vCPUs, at the scenario's costs and with common random numbers.

    Returns: the format of `simlib.figures`: variant, vcpus, metric, kind (``simulated``), value (s), low, high
    (both NaN: one run has no interval), held_out (True: no row was fitted at these costs).

    - `scenario`: host, guest, workload and costs, and the policy's keys that a strategy does not replace.
    """
    points = [(name, n) for name in STRATEGIES for n in vcpus]
    cases = [scenario.changed({"policy": STRATEGIES[name]}).with_vcpus(n) for name, n in points]
    runs = evaluate(cases, pages_per_vcpu=pages_per_vcpu, seed=seed)
    metric = "dirty_memory_time"
    rows = [
        (name, n, metric, "simulated", run.metrics[metric], np.nan, np.nan, True)
        for (name, n), run in zip(points, runs, strict=True)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def published() -> pd.DataFrame:
    """Measured times of the measured strategies, in the format of `compare`.

    The kind is ``measured``, and held_out is True if the shipped fit did not use the row.
    """
    names = {variant: name for name, variant in MEASURED_AS.items()}
    rows = shipped_fit().curves().query("kind == 'measured' and metric == 'dirty_memory_time'")
    rows = rows.assign(variant=rows["variant"].map(names)).dropna(subset="variant")
    return rows[list(COLUMNS)].reset_index(drop=True)


def figure(curves: pd.DataFrame, title: str = "Four lock policies for the same fault") -> go.Figure:
    """Dirty memory time against the number of vCPUs, one curve for each strategy.

    - `curves`: rows of `compare`, optionally with those of `published`.
    """
    result = figures.dirty_memory_time(curves, title)
    lines = [trace for trace in result.data if trace.mode == "lines" and trace.name.endswith(", simulated")]
    for number, trace in enumerate(lines):  # dashes keep an overlaid curve visible
        trace.line.update(_LINES[number % 2])
    for trace in result.data:
        if trace.legendgroup in COLOURS:
            part = trace.marker if trace.mode == "markers" else trace.line
            part.color = COLOURS[trace.legendgroup]
    subtitle = "lines: simulated at equal costs, only the lock policy differs"
    if (curves["kind"] == "measured").any():
        subtitle += "; points: published measurements"
    return result.update_layout(title_subtitle_text=subtitle, height=HEIGHT, autosize=True)
