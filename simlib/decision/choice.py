# SPDX-License-Identifier: BSD-3-Clause
"""The choice of a batch: how many pages CLEAR should write-protect in one hold of mmu_lock, and how sure that is.

Three sets of replications, none of which is used twice: a pilot fixes the indifference zone and what may stall too
long; the selection (`simlib.decision.selection`) finds the best batch; the check measures what every batch costs, so
that neither its estimates nor the regrets are flattered by the selection.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from simlib.decision.advice import RULES, BatchChoice
from simlib.decision.closed_form import chunk_pages, closed_form
from simlib.decision.selection import Selection, select_best
from simlib.decision.trials import METRICS, OBJECTIVES, Progress, Trials, objective_of
from simlib.decision.uncertainty import UncertainCosts
from simlib.errors import InputError, nearest
from simlib.fits import AnyFit, choose_fit
from simlib.model.pagetable import WORD_PAGES, PageTable
from simlib.model.quantities import format_duration
from simlib.model.scenario import Scenario, as_scenario

PILOT, SELECTION, CHECK = range(3)
"""Stages; their replications draw from streams of their own."""

PILOT_RUNS, FIRST_RUNS, CHECK_RUNS = 8, 32, 64
"""Replications of the pilot, of the selection before it drops anything, and of the check."""

LIMIT = 500
"""Replications of the selection at most."""

STALL_LEVEL = 0.90
"""Probability that a run's longest stall is below an alternative's bound."""


def choose_batch(
    scenario: Scenario | str | Path,
    *,
    fit: AnyFit | None = None,
    objective: str = "cost",
    weight: float = 1.0,
    zone: float = 0.02,
    confidence: float = 0.95,
    max_stall_s: float | None = None,
    seed: int = 1,
    limit: int = LIMIT,
    progress: Progress | None = None,
) -> BatchChoice:
    """Choose among batches of 64·2^k pages and the whole ioctl, over what is not known of the costs.

    Parameters
    ----------
    scenario : Scenario, str or Path
        A migration, without variants, or its file. Which batch its policy has is of no importance.
    fit : Fit, Calibrated, CostEstimate, str or Path, optional
        Calibrated costs. By default the shipped fit of the scenario's machine, if there is one. Costs that neither
        has are drawn from the priors.
    objective : str
        What is to be least: ``cost``, ``stall``, ``clear`` or ``precopy``; see `simlib.decision.trials.objective_of`.
    weight : float
        For ``cost``: what a second of a vCPU is worth, in seconds of the clearing thread.
    zone : float
        Differences below this share of the best objective (as the pilot finds it) do not matter.
    confidence : float
        Probability of a correct selection, if the best is better than all others by the zone; and of the intervals.
    max_stall_s : float, optional
        Batches with which the longest stall of a run exceeds so many seconds with more than 10 % are out.
    seed : int
        Root of all random streams.
    limit : int
        Replications of the selection at most.
    progress : callable, optional
        Called with (what, share done).

    Returns
    -------
    BatchChoice

    Raises
    ------
    InputError
        If the scenario is no migration or leaves no batch to choose, an argument breaks its rule, or no batch keeps
        to `max_stall_s`.

    Examples
    --------
    >>> s = Scenario.parse({"guest": {"vcpus": 2, "memory": "8M"}, "policy": {"architecture": "x86-tdp"},
    ...                     "workload": {"kind": "migration", "pass_limit": 1, "clear_chunk": "1M",
    ...                                  "warm_up": "10us", "downtime": "0ps"}})
    >>> choice = choose_batch(s)
    >>> choice.table["effective_pages"].tolist(), choice.evidence
    ([64, 128, 256], 'facts alone')
    >>> choice.sentence
    'it does not matter: any batch from 64 pages to the whole ioctl is as good (within ... with 95 %)'
    """
    scenario = as_scenario(scenario)
    _check(scenario, objective, weight, zone, max_stall_s)
    estimate, notes = choose_fit(scenario, fit)
    costs = UncertainCosts.of(scenario, estimate)
    chunk = chunk_pages(scenario)
    batches = batches_below(chunk)
    trials = Trials(costs, batches, seed)
    everything = range(len(batches))

    def value(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return objective_of(values, objective, weight, scenario.guest.vcpus)

    pilot = trials.run(PILOT, range(PILOT_RUNS), everything, _part(progress, "pilot", 0.0, 0.15))
    if not pilot[:, :, METRICS.index("clear_cpu_time")].any():
        raise InputError(
            "workload.downtime", format_duration(scenario.workload.downtime),
            "all of the memory can be sent within it, so that nothing is ever cleared",
            "shorten it, or take more memory",
        )  # fmt: skip
    bounds = stall_bounds(pilot[:, :, METRICS.index("longest_stall")])
    allowed = _allowed(bounds, batches, max_stall_s)
    width = zone * float(value(pilot)[:, allowed].mean(axis=0).min())

    def sample(number: int, alive: NDArray[np.int64]) -> NDArray[np.float64]:
        run = trials.run(SELECTION, [number], [allowed[i] for i in alive])
        found: NDArray[np.float64] = value(run)[0, [allowed[i] for i in alive]]
        return found

    selecting = _part(progress, "selecting", 0.15, 0.6)
    if selecting is not None:
        selecting("", 0.0)
    chosen = select_best(
        len(allowed), sample, width, confidence=confidence, first=min(FIRST_RUNS, limit), limit=limit,
        progress=selecting,
    )  # fmt: skip
    best = allowed[chosen.best]
    check = trials.run(CHECK, range(CHECK_RUNS), everything, _part(progress, "checking", 0.6, 1.0))
    checked = Selection(best, value(check), width, confidence, chosen.exhausted)
    used = np.zeros(len(batches), dtype=int)
    used[allowed] = (~np.isnan(chosen.samples)).sum(axis=0)
    table = _table(batches, chunk, checked, check, used, bounds, allowed)
    law = closed_form(_mean_costs(trials, range(CHECK_RUNS)), objective, weight)
    return BatchChoice(
        scenario=scenario, objective=objective, weight=weight, zone=width, share=zone, confidence=confidence, seed=seed,
        recommended=batches[best], exhausted=chosen.exhausted, table=table,
        regrets=_regrets(scenario, batches, table, best), costs=costs.table(), closed_form=law,
        evidence=costs.evidence, flags=(*notes, *_flags(scenario, costs, chosen)),
    )  # fmt: skip


def batches_below(chunk: int) -> list[int]:
    """The alternatives of an ioctl of so many pages, 0: all of it.

    Examples
    --------
    >>> batches_below(512)
    [64, 128, 256, 0]
    """
    doubled: list[int] = []
    while WORD_PAGES << len(doubled) < chunk:
        doubled.append(WORD_PAGES << len(doubled))
    return [*doubled, 0]


def stall_bounds(stalls: NDArray[np.float64]) -> NDArray[np.float64]:
    """What the longest stall of one more run stays below with probability `STALL_LEVEL`, for every alternative.

    A prediction bound in the logarithms, taken as normal.

    Parameters
    ----------
    stalls : ndarray, shape (replications, alternatives)
        s.

    Examples
    --------
    >>> stall_bounds(np.array([[1e-3, 1e-6], [1e-3, 4e-6], [1e-3, 2e-6]])).round(7).tolist()
    [0.001, 9e-06]
    """
    logs = np.log(np.maximum(stalls, 1e-12))
    n = len(logs)
    reach = float(stats.t.ppf(STALL_LEVEL, n - 1)) * np.sqrt(1 + 1 / n)
    bounds: NDArray[np.float64] = np.exp(logs.mean(axis=0) + reach * logs.std(axis=0, ddof=1))
    return bounds


def pareto_front(frame: pd.DataFrame, columns: Sequence[str]) -> list[bool]:
    """Which rows no other row beats: none is as small in all columns, and smaller in one.

    Examples
    --------
    >>> pareto_front(pd.DataFrame({"a": [1, 2, 2], "b": [2, 1, 3]}), ["a", "b"])
    [True, True, False]
    """
    values = frame[list(columns)].to_numpy(dtype=float)
    return [not ((values <= row).all(axis=1) & (values < row).any(axis=1)).any() for row in values]


def _check(scenario: Scenario, objective: str, weight: float, zone: float, max_stall_s: float | None) -> None:
    """Refuse what leaves nothing to choose, or would be computed in vain."""
    workload = scenario.workload
    if scenario.variants:
        raise InputError("variants", ", ".join(scenario.variants), "one scenario at a time", "write one without them")
    if not workload.facts.by_chunk:
        raise InputError(
            "workload.kind", workload.kind, "a batch is chosen for a migration",
            'write kind = "migration" under [workload]',
        )  # fmt: skip
    if workload.clear_when == "at_get":
        raise InputError(
            "workload.clear_when", workload.clear_when, "GET clears the whole slot in one hold: there is no batch",
            'write "lazy" or "at_once"',
        )  # fmt: skip
    if objective not in OBJECTIVES:
        raise InputError("objective", objective, "unknown objective", nearest(objective, OBJECTIVES))
    if not 0 <= weight < math.inf:
        raise InputError("weight", weight, "must be finite and at least 0", "say what a second of a vCPU is worth")
    if not 0 < zone < 1:
        raise InputError("zone", zone, "must lie between 0 and 1", "0.02: differences below 2 % do not matter")
    if max_stall_s is not None and not 0 < max_stall_s < math.inf:
        raise InputError("max_stall_s", max_stall_s, "must be finite and above 0")
    scenario.policy.resolved()


def _allowed(bounds: NDArray[np.float64], batches: Sequence[int], max_stall_s: float | None) -> list[int]:
    """Alternatives that keep to the longest stall that is allowed."""
    if max_stall_s is None:
        return list(range(len(batches)))
    allowed = np.flatnonzero(bounds <= max_stall_s).tolist()
    if not allowed:
        least = int(np.argmin(bounds))
        raise InputError(
            "longest stall allowed", format_duration(round(max_stall_s * 1e12)),
            f"no batch keeps to it with {STALL_LEVEL:.0%}: the least, of {batches[least] or 'all'} pages, needs "
            f"{format_duration(float(f'{bounds[least] * 1e12:.3g}'))}",
            "allow more",
        )  # fmt: skip
    return allowed


def _table(
    batches: Sequence[int], chunk: int, checked: Selection, check: NDArray[np.float64], used: NDArray[np.int_],
    bounds: NDArray[np.float64], allowed: Sequence[int],
) -> pd.DataFrame:  # fmt: skip
    """One row an alternative; everything but `used` and `bounds` from the check's replications."""
    found = checked.table()
    n = len(check)
    half = stats.t.ppf(0.5 + checked.confidence / 2, n - 1) * checked.samples.std(axis=0, ddof=1) / np.sqrt(n)
    frame = pd.DataFrame(
        {"batch_pages": batches, "effective_pages": [b or chunk for b in batches], "objective_s": found["mean"],
         "low_s": found["mean"] - half, "high_s": found["mean"] + half, "difference_s": found["difference"],
         "difference_low_s": found["low"], "difference_high_s": found["high"], "as_good": found["as_good"],
         "allowed": np.isin(range(len(batches)), allowed), "replications": used, "stall_bound_s": bounds}
    )  # fmt: skip
    units = dict.fromkeys(METRICS, "_s") | {"guest_throughput": ""}
    for column, name in enumerate(METRICS):
        frame[f"{name}{units[name]}"] = check[:, :, column].mean(axis=0)
    frame["as_good"] &= frame["allowed"]
    frame["on_front"] = pareto_front(frame, ["longest_stall_s", "clear_cpu_time_s", "precopy_duration_s"])
    return frame


def _regrets(scenario: Scenario, batches: Sequence[int], table: pd.DataFrame, best: int) -> pd.DataFrame:
    """What three simple rules cost more than the recommended batch."""
    block = PageTable(scenario.guest.page_size).pages_per_block()
    rows = []
    for rule, pages in zip(RULES.values(), (0, WORD_PAGES, block), strict=True):
        index = batches.index(pages) if pages in batches else len(batches) - 1
        regret = table.loc[index, ["difference_s", "difference_low_s", "difference_high_s"]].to_numpy(dtype=float)
        shares = regret / float(table["objective_s"].iloc[best])
        rows.append((rule, batches[index], *regret.tolist(), *shares.tolist()))
    columns = ["rule", "batch_pages", "regret_s", "low_s", "high_s", "share", "share_low", "share_high"]
    return pd.DataFrame(rows, columns=columns)


def _mean_costs(trials: Trials, numbers: Sequence[int]) -> Scenario:
    """The scenario with the mean of the costs that the check drew."""
    drawn = pd.DataFrame([trials.drawn(CHECK, number)[0].costs.given() for number in numbers])
    return trials.costs.scenario.with_costs(**{str(name): float(mean) for name, mean in drawn.mean().items()})


def _flags(scenario: Scenario, costs: UncertainCosts, chosen: Selection) -> list[str]:
    """What a reader should know before believing the choice."""
    flags = []
    policy, facts = scenario.policy, scenario.policy.facts
    if costs.evidence == "facts alone":
        flags.append(
            f"{policy.architecture} rests on facts alone: no cost that decides was calibrated; all were drawn from "
            "what is published, or assumed (data/priors/costs.toml)"
        )
    elif costs.evidence.startswith("partly"):
        guessed = ", ".join(name for name, kind in costs.sources().items() if kind == "prior")
        flags.append(f"not calibrated, so drawn from what is published or assumed: {guessed}")
    flags += [
        f"as if {name} were {getattr(policy, name)!r}: {facts.title} does not take mmu_lock there; as it is, CLEAR "
        f"(or GET) lets go {facts.drop_points}"
        for name in ("lock", "write_protect_fault", "translation_fault", "split_fault", "clear_lock")
        if getattr(facts, name) == "none"
    ]
    if scenario.guest.vcpus > scenario.machine.cores:
        flags.append(
            f"{scenario.guest.vcpus} vCPUs on {scenario.machine.cores} cores: each vCPU is given a core of its own"
        )
    if chosen.exhausted:
        flags.append(f"after {len(chosen.samples)} replications the rest was not separated: no guarantee")
    return flags


def _part(progress: Progress | None, what: str, begin: float, end: float) -> Progress | None:
    """Progress of one part of the work."""
    if progress is None:
        return None
    return lambda _, share: progress(what, begin + (end - begin) * share)
