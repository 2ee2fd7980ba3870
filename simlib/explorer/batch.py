# SPDX-License-Identifier: BSD-3-Clause
"""Sliders on the choice of a batch: what if the guest, or the way that faults take the lock, were different?"""

from __future__ import annotations

import html
from typing import Any

import ipywidgets as widgets
import numpy as np
import pandas as pd

from simlib.decision import standard_scenario
from simlib.decision.choice import batches_below
from simlib.decision.closed_form import chunk_pages, closed_form
from simlib.decision.grid import central
from simlib.decision.trials import METRICS, Trials, objective_of
from simlib.decision.uncertainty import UncertainCosts
from simlib.errors import SimlibError
from simlib.figures.decision import batch_what_if
from simlib.figures.style import as_widget
from simlib.model.scenario import Scenario

MODES = {
    "lockless": {"write_protect_fault": "lockless", "translation_fault": "lockless"},
    "read": {"write_protect_fault": "read", "translation_fault": "read"},
    "write": {"write_protect_fault": "write", "translation_fault": "write"},
    "spinlock": {"lock": "spin", "write_protect_fault": "write", "translation_fault": "write"},
}
"""Ways in which faults take the lock, as changes of a policy."""

_MEMORY = "32M"
_RUNS = 2
_NOTE = (
    "<div style='line-height: 1.4'><b>Simulated</b>, 32 MiB, costs of {name} at their medians. Each change simulates "
    "all batches anew, twice; the star is the batch of the slider.</div>"
)


def batch_tradeoff(scenario: Scenario, seed: int = 1) -> pd.DataFrame:
    """What each batch does to the guest and to CLEAR, with all costs at their medians.

    Parameters
    ----------
    scenario : Scenario
        A migration.
    seed : int

    Returns
    -------
    DataFrame
        ``batch_pages`` (0: the whole ioctl), ``effective_pages``, ``cost_s`` (CLEAR's CPU time and the vCPUs' lost
        time), ``clear_cpu_time_s``, ``longest_stall_s``, ``guest_throughput``.

    Examples
    --------
    >>> batch_tradeoff(standard_scenario("arm64").changed({"guest": {"memory": "32M"}}))["batch_pages"].tolist()[:3]
    [64, 128, 256]
    """
    case = central(scenario)
    pages = chunk_pages(case)
    batches = batches_below(pages)
    found = Trials(UncertainCosts(case, None, {}), batches, seed).run(0, range(_RUNS), range(len(batches)))
    mean = found.mean(axis=0)
    column = {name: mean[:, METRICS.index(name)] for name in METRICS}
    return pd.DataFrame(
        {
            "batch_pages": batches,
            "effective_pages": [batch or pages for batch in batches],
            "cost_s": objective_of(mean, "cost", 1.0, case.guest.vcpus),
            "clear_cpu_time_s": column["clear_cpu_time"],
            "longest_stall_s": column["longest_stall"],
            "guest_throughput": column["guest_throughput"],
        }
    )


def batch_sliders(architecture: str = "arm64") -> widgets.Widget:
    """The trade-off over all batches, with sliders for batch, vCPUs, write rate and lock mode.

    Parameters
    ----------
    architecture : str
        Whose costs and policy it starts from.

    Returns
    -------
    ipywidgets.Widget
        A box: note; sliders; what the slider's batch does, in words; figure.

    Examples
    --------
    >>> note, sliders, words, figure = batch_sliders().children
    >>> [slider.description for slider in sliders.children]
    ['batch, pages', 'vCPUs', 'pages/s a vCPU', 'faults']
    """
    start = standard_scenario(architecture).changed({"guest": {"memory": _MEMORY}})
    batches = batches_below(chunk_pages(start))
    wide = {"style": {"description_width": "8em"}, "layout": widgets.Layout(width="auto")}
    labels = [(f"{batch}" if batch else "whole", batch) for batch in batches]
    batch = widgets.SelectionSlider(options=labels, value=batches[0], description="batch, pages", **wide)
    vcpus = widgets.SelectionSlider(options=[1, 2, 4, 8, 16], value=16, description="vCPUs", **wide)
    rate = widgets.FloatLogSlider(value=1e6, base=10, min=4, max=7, step=0.25, description="pages/s a vCPU",
                                  readout_format=".2g", continuous_update=False, **wide)  # fmt: skip
    mode = widgets.Dropdown(options=list(MODES), value="read", description="faults", **wide)
    words = widgets.HTML()

    def scenario() -> Scenario:
        apart = f"{round(1e12 / rate.value)}ps"
        return start.changed(
            {"guest": {"vcpus": vcpus.value}, "workload": {"access_interval": apart}, "policy": MODES[mode.value]}
        )

    held = {"table": batch_tradeoff(scenario())}
    shown = as_widget(batch_what_if(held["table"], batch.value))

    def draw() -> None:
        table = held["table"]
        fresh = batch_what_if(table, batch.value)
        with shown.batch_update():
            for old, new in zip(shown.data, fresh.data, strict=True):
                old.update(x=new.x, y=new.y)
            for axis in ("yaxis", "yaxis2", "yaxis3", "yaxis4"):
                shown.layout[axis].update(fresh.layout[axis])
        words.value = _words(table, batch.value, scenario())

    def simulate_anew(_change: Any = None) -> None:
        try:
            held["table"] = batch_tradeoff(scenario())
        except SimlibError as error:
            words.value = f"<b>{html.escape(str(error))}</b>"
            return
        draw()

    batch.observe(lambda _change: draw(), names="value")
    for widget in (vcpus, rate, mode):
        widget.observe(simulate_anew, names="value")
    words.value = _words(held["table"], batch.value, scenario())
    two_columns = widgets.Layout(grid_template_columns="repeat(2, minmax(0, 1fr))", max_width="900px")
    sliders = widgets.GridBox([batch, vcpus, rate, mode], layout=two_columns)
    return widgets.VBox([widgets.HTML(_NOTE.format(name=start.machine.name)), sliders, words, shown])


def _words(table: pd.DataFrame, batch: int, scenario: Scenario) -> str:
    mine = table[table["batch_pages"] == batch].iloc[0]
    best = table.iloc[int(np.argmin(table["cost_s"]))]
    name = f"{batch} pages" if batch else "the whole ioctl"
    least = f"{best['batch_pages']:.0f} pages" if best["batch_pages"] else "the whole ioctl"
    more = 100 * (mine["cost_s"] / best["cost_s"] - 1)
    law = closed_form(central(scenario)).batch
    said = f"{law} pages" if law < chunk_pages(scenario) else "the whole ioctl"
    return (
        f"<b>{name}</b>: CLEAR {1e3 * mine['clear_cpu_time_s']:.2f} ms, longest stall "
        f"{1e6 * mine['longest_stall_s']:.0f} µs, guest at {100 * mine['guest_throughput']:.1f} %; costs {more:.1f} % "
        f"more than the best, {least}. The closed form says {said}."
    )
