# SPDX-License-Identifier: BSD-3-Clause
"""The best batch over vCPUs and how often each touches a page: simulated, beside what the closed form says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from simlib.decision.choice import batches_below
from simlib.decision.closed_form import chunk_pages, closed_form
from simlib.decision.trials import Trials, objective_of
from simlib.decision.uncertainty import UncertainCosts
from simlib.fits import choose_fit
from simlib.model.scenario import Scenario


def best_batch_grid(
    scenario: Scenario,
    vcpus: Sequence[int],
    write_rates: Sequence[float],
    *,
    weight: float = 1.0,
    zone: float = 0.02,
    runs: int = 2,
    seed: int = 1,
    progress: Callable[[str, float], None] | None = None,
) -> pd.DataFrame:
    """The batch with the least cost for each number of vCPUs and each rate of page touches.

    All costs are at their medians, and the memory is the same in all cells. A map shows where the best batch lies; only
    `choose_batch` says how sure that is.

    Parameters
    ----------
    scenario : Scenario
        A migration.
    vcpus : sequence of int
    write_rates : sequence of float
        Pages that a vCPU touches in a second.
    weight : float
        What a second of a vCPU is worth, in seconds of the clearing thread.
    zone : float
        If no batch is worse than the best by this share of its objective, none matters.
    runs : int
        Simulations of each batch in each cell, on common random numbers.
    seed : int
    progress : callable, optional
        Called with (what, share done).

    Returns
    -------
    DataFrame
        ``vcpus``, ``write_rate`` (1/s), ``batch_pages`` (0: the whole ioctl), ``matters``, and ``closed_form_pages``.

    Examples
    --------
    >>> from simlib.decision import standard_scenario
    >>> small = standard_scenario("arm64").changed({"guest": {"vcpus": 2, "memory": "4M"}})
    >>> best_batch_grid(small, [2], [1e5], runs=1).columns.tolist()
    ['vcpus', 'write_rate', 'batch_pages', 'matters', 'closed_form_pages']
    """
    rows = []
    cells = [(number, rate) for number in vcpus for rate in write_rates]
    for done, (number, rate) in enumerate(cells):
        apart = f"{round(1e12 / rate)}ps"
        case = central(scenario.changed({"guest": {"vcpus": number}, "workload": {"access_interval": apart}}))
        pages = chunk_pages(case)
        batches = batches_below(pages)
        found = Trials(UncertainCosts(case, None, {}), batches, seed).run(0, range(runs), range(len(batches)))
        cost = objective_of(found, "cost", weight, number).mean(axis=0)
        law = closed_form(case, weight=weight).batch
        matters = bool(cost.max() > (1 + zone) * cost.min())
        rows.append((number, rate, batches[int(np.argmin(cost))], matters, 0 if law >= pages else law))
        if progress is not None:
            progress("the map", (done + 1) / len(cells))
    return pd.DataFrame(rows, columns=["vcpus", "write_rate", "batch_pages", "matters", "closed_form_pages"])


def central(scenario: Scenario) -> Scenario:
    """The scenario with each cost at its median: calibrated where the machine has a fit, else from the priors.

    Examples
    --------
    >>> central(Scenario.parse({"policy": {"architecture": "riscv"}})).costs.fault_hold
    600000
    """
    costs = UncertainCosts.of(scenario, choose_fit(scenario)[0])
    filled = scenario if costs.estimate is None else costs.estimate.apply(scenario)
    return filled.with_costs(**{name: float(np.round(prior.median, 6)) for name, prior in costs.priors.items()})
