# SPDX-License-Identifier: BSD-3-Clause
"""Lock policies beside each other, at equal costs: a tidy table, and its figure."""

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
"""Policy tables of a scenario file, by the name of the curve. In all of them a permission fault broadcasts a TLB
invalidation (simlib.model.architectures, ``fault_flush``): without a lock it still queues for the interconnect."""

MEASURED_AS = {"queued spinlock": "spinlock-old-test", "rwlock, faults for read": "rwlock-old-test"}
"""Strategies that somebody measured, and the variant of the shipped fit that they are."""

COLOURS = {
    "queued spinlock": VARIANT_COLOURS["spinlock-old-test"],
    "ticket lock": "#CC79A7",
    "rwlock, faults for read": VARIANT_COLOURS["rwlock-old-test"],
    "lockless faults": INK,
}
"""What was measured keeps the colour that it has in the other figures."""

_LINES = ({"width": 4.5, "dash": "solid"}, {"width": 2.5, "dash": "9px,5px"})

VCPUS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of vCPUs of the published table."""

PAGES = 2048
"""Pages a vCPU that a point simulates, so that a redraw takes a fraction of a second; against 4096 pages no
point of `STRATEGIES` moves by 1 % at the calibrated costs."""


def starting_point(estimate: CostEstimate | None = None) -> Scenario:
    """The published selftest with the test of the spinlock's row, and every cost filled in.

    - `estimate`: calibrated costs; by default those of `shipped_fit`.
    """
    fit = shipped_fit()
    return complete((estimate or fit.estimate).apply(fit.scenario.variants[MEASURED_AS["queued spinlock"]]))


def compare(
    scenario: Scenario, vcpus: Sequence[int] = VCPUS, *, pages_per_vcpu: int = PAGES, seed: int = 1
) -> pd.DataFrame:
    """Simulate `STRATEGIES` at every number of vCPUs, at the scenario's costs and on the same random numbers.

    Returns: the table that `simlib.figures` draws: variant, vcpus, metric, kind (``simulated``), value (s), low, high
    (both NaN: one run, no interval), held_out (True: no row was fitted at these costs).

    - `scenario`: machine, guest, workload and costs; of its policy, what a strategy does not replace.
    """
    at = [(name, n) for name in STRATEGIES for n in vcpus]
    cases = [scenario.changed({"policy": STRATEGIES[name]}).with_vcpus(n) for name, n in at]
    runs = evaluate(cases, pages_per_vcpu=pages_per_vcpu, seed=seed)
    metric = "dirty_memory_time"
    rows = [
        (name, n, metric, "simulated", run.metrics[metric], np.nan, np.nan, True)
        for (name, n), run in zip(at, runs, strict=True)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def published() -> pd.DataFrame:
    """Measured times of the strategies that somebody measured, in the same table as `compare`.

    Returns: The columns of `compare`; kind is ``measured``, held_out says that the shipped fit did not see the row.
    """
    names = {variant: name for name, variant in MEASURED_AS.items()}
    rows = shipped_fit().curves().query("kind == 'measured' and metric == 'dirty_memory_time'")
    rows = rows.assign(variant=rows["variant"].map(names)).dropna(subset="variant")
    return rows[list(COLUMNS)].reset_index(drop=True)


def figure(curves: pd.DataFrame, title: str = "Four ways to take the same fault") -> go.Figure:
    """Dirty memory time over vCPUs, a curve a strategy.

    - `curves`: rows of `compare`, with those of `published` or without.
    """
    drawn = figures.dirty_memory_time(curves, title)
    lines = [trace for trace in drawn.data if trace.mode == "lines" and trace.name.endswith(", simulated")]
    for number, trace in enumerate(lines):  # a curve shows through the gaps of the one that covers it
        trace.line.update(_LINES[number % 2])
    for trace in drawn.data:
        if trace.legendgroup in COLOURS:
            part = trace.marker if trace.mode == "markers" else trace.line
            part.color = COLOURS[trace.legendgroup]
    subtitle = "lines are simulated at equal costs, only the lock policy differs"
    if (curves["kind"] == "measured").any():
        subtitle += "; points are published measurements"
    return drawn.update_layout(title_subtitle_text=subtitle, height=HEIGHT, autosize=True)
