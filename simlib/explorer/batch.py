# SPDX-License-Identifier: BSD-3-Clause
"""Sliders on the choice of a batch: what if the guest, or the way that faults take the lock, were different?"""

from __future__ import annotations

import dataclasses
import html
from functools import partial
from typing import Any

import ipywidgets as widgets
import numpy as np
import pandas as pd

from simlib import parallel
from simlib.decision import standard_scenario, with_guest
from simlib.decision.closed_form import chunk_pages, closed_form
from simlib.decision.grid import central
from simlib.errors import SimlibError
from simlib.figures.decision import batch_what_if, redraw_what_if
from simlib.figures.style import as_widget
from simlib.model.quantities import format_seconds, format_size
from simlib.model.scenario import Scenario
from simlib.model.strategy import every
from simlib.sampling.travel import travel

MODES = {
    "lockless": {"write_protect_fault": "lockless", "translation_fault": "lockless"},
    "read": {"write_protect_fault": "read", "translation_fault": "read"},
    "write": {"write_protect_fault": "write", "translation_fault": "write"},
    "spinlock": {"lock": "spin", "write_protect_fault": "write", "translation_fault": "write"},
}
"""Ways in which faults take the lock, as changes of a policy."""

BATCHES = (64, 512, 4096, 32768, 0)
"""Pages of a hold that are tried; 0: the whole ioctl."""

PASSES = 2
"""Passes of each migration: the first has blocks to split, or to leave, and the second finds what was written since."""

_NOTE = (
    "<div style='line-height: 1.4'><b>Simulated</b>, sampled: {guest}, {passes} passes, touched anywhere alike; costs "
    "of {name} at their medians. Each change walks once through a migration with each batch, looking at one CLEAR of "
    "each pass (docs/sampling.md), so that small differences are those of chance; the star is the batch of the "
    "slider.</div>"
)


def batch_tradeoff(scenario: Scenario, seed: int = 1) -> pd.DataFrame:
    """What each of `BATCHES` does to the guest and to CLEAR, with all costs at their medians.

    Parameters
    ----------
    scenario : Scenario
        A migration that can be sampled.
    seed : int

    Returns
    -------
    DataFrame
        ``batch_pages`` (0: the whole ioctl), ``effective_pages``, ``cost_s`` (CLEAR's CPU time and the vCPUs' lost
        time), ``clear_cpu_time_s``, ``longest_stall_s``, ``guest_throughput``.

    Examples
    --------
    >>> batch_tradeoff(standard_scenario("arm64").changed({"workload": {"pass_limit": 1}}))["batch_pages"].tolist()
    [64, 512, 4096, 32768, 0]
    """
    case = central(scenario)
    pages = chunk_pages(case)
    cases = [dataclasses.replace(case, policy=dataclasses.replace(case.policy, lets_go=every(n))) for n in BATCHES]
    walks = parallel.each([partial(travel, one, seed, 0.5) for one in cases])
    found = pd.DataFrame([walk.metrics for walk in walks])
    lost = case.guest.vcpus * found["precopy_duration"] * (1 - found["guest_throughput"])
    return pd.DataFrame(
        {
            "batch_pages": BATCHES,
            "effective_pages": [batch or pages for batch in BATCHES],
            "cost_s": found["clear_cpu_time"] + lost,
            "clear_cpu_time_s": found["clear_cpu_time"],
            "longest_stall_s": found["longest_stall"],
            "guest_throughput": found["guest_throughput"],
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
    start = standard_scenario(architecture).changed({"workload": {"pass_limit": PASSES, "access": "uniform"}})
    batches = BATCHES
    wide = {"style": {"description_width": "8em"}, "layout": widgets.Layout(width="auto")}
    labels = [(f"{batch}" if batch else "whole", batch) for batch in batches]
    batch = widgets.SelectionSlider(options=labels, value=batches[0], description="batch, pages", **wide)
    vcpus = widgets.SelectionSlider(options=[4, 16, 64, 128, 160], value=64, description="vCPUs", **wide)
    rate = widgets.FloatLogSlider(value=5e4, base=10, min=3, max=5, step=0.25, description="pages/s a vCPU",
                                  readout_format=".2g", continuous_update=False, **wide)  # fmt: skip
    mode = widgets.Dropdown(options=list(MODES), value="read", description="faults", **wide)
    words = widgets.HTML()

    def scenario() -> Scenario:
        apart = f"{round(1e12 / rate.value)}ps"
        changed = with_guest(start, {"guest": {"vcpus": vcpus.value}, "workload": {"access_interval": apart}})
        return changed.changed({"policy": MODES[mode.value]})

    held = {"table": batch_tradeoff(scenario())}
    shown = as_widget(batch_what_if(held["table"], batch.value))

    def draw() -> None:
        table = held["table"]
        with shown.batch_update():
            redraw_what_if(shown, table, batch.value)
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
    guest, chunk = (format_size(size or 0) for size in (start.guest.memory, start.workload.clear_chunk))
    note = _NOTE.format(name=start.machine.name, guest=f"{guest}, CLEARs of {chunk}", passes=PASSES)
    return widgets.VBox([widgets.HTML(note), sliders, words, shown])


def _words(table: pd.DataFrame, batch: int, scenario: Scenario) -> str:
    mine = table[table["batch_pages"] == batch].iloc[0]
    best = table.iloc[int(np.argmin(table["cost_s"]))]
    name = f"{batch} pages" if batch else "the whole ioctl"
    least = f"{best['batch_pages']:.0f} pages" if best["batch_pages"] else "the whole ioctl"
    more = 100 * (mine["cost_s"] / best["cost_s"] - 1)
    law = closed_form(central(scenario)).batch
    said = f"{law} pages" if law < chunk_pages(scenario) else "the whole ioctl"
    return (
        f"<b>{name}</b>: CLEAR {format_seconds(mine['clear_cpu_time_s'])}, longest stall "
        f"{format_seconds(mine['longest_stall_s'])}, guest at {100 * mine['guest_throughput']:.1f} %; "
        f"costs {more:.1f} % more than the best, {least}. The closed form says {said}."
    )
