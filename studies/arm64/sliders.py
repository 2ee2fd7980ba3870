# SPDX-License-Identifier: BSD-3-Clause
"""Sliders for the costs in the comparison of lock policies."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import ipywidgets as widgets
import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup

from simlib._lib.errors import SimlibError
from simlib.figures.style import as_widget
from simlib.measurements.fits import CostEstimate
from simlib.model.costs import Costs
from simlib.model.scenario import Scenario
from studies.arm64.equal_costs import PAGES, calibrated_scenario, compare, figure, published

SLIDERS = {
    "fault_hold": "hold, ns",
    "fault_unlocked": "exit, ns",
    "line_transfer": "line transfer, ns",
    "tlb_invalidate": "broadcast, ns",
}
"""Costs that have a slider, each with the slider's label."""

_PS_PER_NS = 1000
_NOTE = (
    "<div style='line-height: 1.4'><b>Simulated</b>, {pages} pages per vCPU. All curves have the same costs; only the "
    "lock policy differs. Hold: a fault's work under the lock. Exit: the rest of the fault, outside the lock. Line "
    "transfer: moving the lock word's cache line. Broadcast: one TLB invalidation, which the interconnect serves for "
    "one CPU at a time; every fault includes one, with any lock policy.</div>"
)


def what_if(estimate: CostEstimate | None = None) -> widgets.Widget:
    """Figure of all strategies with a slider for each cost; releasing a slider simulates the curves again.

    Returns: A box with a note, the sliders, a Reset button with the calibrated values, and the figure.

    - `estimate`: initial values of the sliders, which Reset restores; by default the shipped fit.
    """
    start = calibrated_scenario(estimate)
    measured = published()
    sliders = {name: _slider(name, getattr(start.costs, name)) for name in SLIDERS}
    calibrated = {name: slider.value for name, slider in sliders.items()}
    values = ", ".join(f"{SLIDERS[name].removesuffix(', ns')} {value:.3g} ns" for name, value in calibrated.items())
    calibrated_text = Markup("Calibrated ({}, {}): {}.").format(start.host.name, start.cost_group, values)
    status = widgets.HTML(calibrated_text)

    def draw(scenario: Scenario) -> go.Figure:
        return figure(pd.concat([compare(scenario), measured], ignore_index=True))

    chart = as_widget(draw(start))

    def redraw(_change: Any = None) -> None:
        costs = {name: slider.value * _PS_PER_NS for name, slider in sliders.items()}
        try:
            updated = draw(start.with_costs(**costs))
        except SimlibError as error:
            status.value = Markup("<b>{}</b>").format(str(error))
            return
        status.value = calibrated_text
        with chart.batch_update():
            for old, new in zip(chart.data, updated.data, strict=True):
                old.update(x=new.x, y=new.y)
            chart.layout.yaxis.update(updated.layout.yaxis)

    def reset_costs(_button: Any) -> None:
        for name, slider in sliders.items():  # redraw once, not for each slider
            slider.unobserve(redraw, names="value")
            slider.value = calibrated[name]
            slider.observe(redraw, names="value")
        redraw()

    for slider in sliders.values():
        slider.observe(redraw, names="value")
    reset_button = widgets.Button(description="Reset", tooltip="Restore the calibrated costs", icon="undo")
    reset_button.on_click(reset_costs)
    two_columns = widgets.Layout(grid_template_columns="repeat(2, minmax(0, 1fr))", max_width="900px")
    grid = widgets.GridBox(list(sliders.values()), layout=two_columns)
    return widgets.VBox([widgets.HTML(_NOTE.format(pages=PAGES)), grid, widgets.HBox([reset_button, status]), chart])


def _slider(name: str, value_ps: int) -> Any:
    """Return a slider over the range in which a calibration searches the cost."""
    bounds = next(f for f in dataclasses.fields(Costs) if f.name == name).metadata["bounds"]
    low, high = (math.log10(bound / _PS_PER_NS) for bound in bounds)
    return widgets.FloatLogSlider(
        value=value_ps / _PS_PER_NS, base=10, min=low, max=high, step=0.01, description=SLIDERS[name],
        readout_format=".1f", continuous_update=False, style={"description_width": "8em"},
        layout=widgets.Layout(width="auto"),
    )  # fmt: skip
