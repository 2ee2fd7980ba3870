# SPDX-License-Identifier: BSD-3-Clause
"""The best strategy over vCPUs and how often each accesses a page: simulated, and what cannot be told apart."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from simlib._lib import parallel
from simlib.analysis.choose.closed_form import chunk_pages, closed_form
from simlib.analysis.choose.objectives import OBJECTIVES
from simlib.analysis.choose.presets import with_guest
from simlib.analysis.choose.strategies import strategies_of
from simlib.analysis.choose.trials import Trials
from simlib.measurements.fits import UncertainCosts, choose_fit
from simlib.model.scenario import Scenario

LEVEL = 0.95
"""Probability that no cell of a map calls a strategy distinguished that is not."""

ZONE = 0.02
"""Share of the least CPU time below which a difference does not matter."""


def best_strategy_grid(
    scenario: Scenario,
    vcpus: Sequence[int],
    access_rates: Sequence[float],
    *,
    strategies: Sequence[str] | None = None,
    runs: int = 6,
    seed: int = 1,
    progress: parallel.Progress | None = None,
) -> pd.DataFrame:
    """The strategy with the least CPU time in all for each number of vCPUs and each rate of accesses.

    All costs are at their medians, and the memory is the same in all cells.

    Returns: ``vcpus``, ``access_rate`` (1/s), ``strategy`` (the least), ``matters`` (some other is worse by `ZONE`,
    as far as can be told), ``distinguished`` (every other is worse, as far as can be told: paired t tests, Bonferroni
    over strategies and cells), ``rivals`` (those of which that cannot be told), ``span`` (the strategy and its rivals,
    batches as ranges: `span`), ``closed_form_pages``.

    - `access_rates`: accesses of a vCPU in a second; each goes to another page.
    - `strategies`: see `simlib.choose`.
    - `runs`: simulations of each strategy in each cell, on common random numbers; at least 2.

    >>> small = Scenario.parse({"guest": {"vcpus": 2, "memory": "4M"}, "policy": {"architecture": "arm64"},
    ...     "workload": {"kind": "migration", "pass_limit": 1, "clear_chunk": "1M", "downtime": "0ps",
    ...                  "warm_up": "10us"}})
    >>> cells = best_strategy_grid(small, [2], [1e5], strategies=["whole-ioctl", "every-64"], runs=2)
    >>> cells.columns.tolist()[:5]
    ['vcpus', 'access_rate', 'strategy', 'matters', 'distinguished']
    """
    cells = [(number, rate) for number in vcpus for rate in access_rates]
    rows = []
    for done, (number, rate) in enumerate(cells):
        workload = {"access_interval": f"{round(1e12 / rate)}ps"}
        case = with_guest(scenario, {"workload": workload, "guest": {"vcpus": number}})
        case = UncertainCosts.of(case, choose_fit(case)[0]).central()
        compared = strategies_of(case, strategies)
        found = Trials(UncertainCosts(case, None, {}), compared, seed).run(0, range(runs))
        values = OBJECTIVES["cost"].value(found, number, 1.0)
        best = int(np.argmin(values.mean(axis=0)))
        more = values - values[:, [best]]
        error = (1 - LEVEL) / (len(cells) * (len(compared) - 1))
        half = stdtrit(runs - 1, 1 - error) * more.std(axis=0, ddof=1) / np.sqrt(runs)
        least = more.mean(axis=0) - half
        rivals = [one.name for i, one in enumerate(compared) if i != best and least[i] <= 0]
        matters = bool((least > ZONE * values[:, best].mean()).any())
        law, pages = closed_form(case).batch, chunk_pages(case)
        names = [one.name for one in compared]
        rows.append((number, rate, names[best], matters, not rivals, "; ".join(rivals),
                     span({names[best], *rivals}, names), 0 if law >= pages else law))  # fmt: skip
        if progress is not None:
            progress("the map", (done + 1) / len(cells))
    columns = ["vcpus", "access_rate", "strategy", "matters", "distinguished", "rivals", "span", "closed_form_pages"]
    return pd.DataFrame(rows, columns=columns)


def span(names: Collection[str], compared: Sequence[str]) -> str:
    """Strategies in few letters: batches that follow each other among those compared are a range.

    >>> compared = ["whole-ioctl", "every-64", "every-512", "every-4096", "bounded-hold"]
    >>> span(compared[:3], compared), span(compared[1:4], compared), span(["every-64", "bounded-hold"], compared)
    ('64–512, whole', '64–4096', '64, bounded-hold')
    """
    batches = sorted((name for name in compared if _pages(name)), key=_pages)
    parts: list[list[str]] = []
    for before, name in zip([None, *batches], batches, strict=False):
        if name in names:
            if before not in names:
                parts.append([])
            parts[-1].append("whole" if _pages(name) == math.inf else f"{_pages(name):g}")
    ranges = [part[0] if len(part) == 1 else f"{part[0]}–{part[-1]}" for part in parts]
    return ", ".join([*ranges, *(name for name in compared if name in names and not _pages(name))])


def _pages(name: str) -> float:
    """Pages of a batch by its name, 0 for what is none."""
    if name == "whole-ioctl":
        return math.inf
    digits = name.removeprefix("every-")
    return float(digits) if digits != name and digits.isdigit() else 0.0
