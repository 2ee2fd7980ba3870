# SPDX-License-Identifier: BSD-3-Clause
"""Map of the best strategy by number of vCPUs and access rate, with the strategies equivalent to it."""

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
"""Probability that no cell of a map wrongly reports a strategy as distinguished."""

INDIFFERENCE = 0.02
"""Costs that differ by less than this share of the lowest cost count as equal."""


def best_strategy_grid(
    scenario: Scenario,
    cells: Sequence[tuple[int, float]],
    *,
    strategies: Sequence[str] | None = None,
    runs: int = 6,
    seed: int = 1,
    progress: parallel.Progress | None = None,
) -> pd.DataFrame:
    """Find the strategy with the lowest weighted cost at each given vCPU count and access rate.

    All costs are at their medians, and the memory is the same in all cells.

    Returns: One row per cell: ``vcpus``, ``access_rate`` (1/s), ``strategy`` (with the lowest mean), ``matters`` (some
    other strategy is significantly worse by more than `INDIFFERENCE`), ``distinguished`` (every other strategy is
    significantly worse: paired t tests, Bonferroni over strategies and cells), ``rivals`` (strategies that are not
    significantly worse), ``span`` (the strategy and its rivals, with batches as ranges: `span`), ``closed_form_pages``.

    - `cells`: pairs of the number of vCPUs and the accesses of one vCPU per second; each accesses another page.
    - `strategies`: see `simlib.choose`.
    - `runs`: simulations of each strategy in each cell, with common random numbers; at least 2.

    >>> small = Scenario.parse({"guest": {"vcpus": 2, "memory": "4M"}, "policy": {"architecture": "arm64"},
    ...     "workload": {"kind": "migration", "pass_limit": 1, "clear_chunk": "1M", "downtime": "0ps",
    ...                  "warm_up": "10us"}})
    >>> grid = best_strategy_grid(small, [(2, 1e5)], strategies=["whole-ioctl", "every-64"], runs=2)
    >>> grid.columns.tolist()[:5]
    ['vcpus', 'access_rate', 'strategy', 'matters', 'distinguished']
    """
    rows = []
    for done, (vcpus, rate) in enumerate(cells, 1):
        workload = {"access_interval": f"{round(1e12 / rate)}ps"}
        case = with_guest(scenario, {"workload": workload, "guest": {"vcpus": vcpus}})
        case = UncertainCosts.of(case, choose_fit(case)[0]).central()
        compared = strategies_of(case, strategies)
        names = [strategy.name for strategy in compared]
        metrics = Trials(UncertainCosts(case, None, {}), compared, seed).run(0, range(runs))
        values = OBJECTIVES["cost"].value(metrics, vcpus, 1.0)
        best = int(np.argmin(values.mean(axis=0)))
        differences = values - values[:, [best]]
        error = (1 - LEVEL) / (len(cells) * (len(compared) - 1))
        half_widths = stdtrit(runs - 1, 1 - error) * differences.std(axis=0, ddof=1) / np.sqrt(runs)
        low = differences.mean(axis=0) - half_widths
        rivals = [name for i, name in enumerate(names) if i != best and low[i] <= 0]
        matters = bool((low > INDIFFERENCE * values[:, best].mean()).any())
        batch = closed_form(case).batch
        rows.append((vcpus, rate, names[best], matters, not rivals, "; ".join(rivals),
                     span({names[best], *rivals}, names), 0 if batch >= chunk_pages(case) else batch))  # fmt: skip
        if progress is not None:
            progress("the map", done / len(cells))
    columns = ["vcpus", "access_rate", "strategy", "matters", "distinguished", "rivals", "span", "closed_form_pages"]
    return pd.DataFrame(rows, columns=columns)


def span(names: Collection[str], compared: Sequence[str]) -> str:
    """Abbreviate a set of strategies; consecutive batches among those compared become a range.

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
    """Return the pages of a batch by its name, 0 if the strategy is not a batch."""
    if name == "whole-ioctl":
        return math.inf
    digits = name.removeprefix("every-")
    return float(digits) if digits != name and digits.isdigit() else 0.0
