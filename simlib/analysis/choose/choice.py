# SPDX-License-Identifier: BSD-3-Clause
"""Choice of a strategy for the holds of mmu_lock under uncertain costs, with its confidence.

There are two sets of replications. The selection finds the strategies that satisfy the limit on the longest stall. The
check continues until the answers are certain, or until more replications could not make them certain. The
recommendations and the printed values are computed from both sets; the intervals of all pairs of strategies hold
jointly, whichever strategy is recommended (`simlib.analysis.choose.ranking`). All replications simulate all strategies
with common random numbers, so one call answers the question for all objectives.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Unpack

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from simlib._lib import parallel
from simlib._lib.errors import InputError
from simlib.analysis.choose.advice import Choice
from simlib.analysis.choose.batches import batches_below
from simlib.analysis.choose.closed_form import at_qemu_chunk, chunk_pages, closed_form
from simlib.analysis.choose.evidence import fit_of, grounds
from simlib.analysis.choose.information import value_of_information
from simlib.analysis.choose.objectives import OBJECTIVES, Floats
from simlib.analysis.choose.options import ChoiceKeywords, ChoiceOptions
from simlib.analysis.choose.ranking import Ranking
from simlib.analysis.choose.strategies import Strategy, strategies_of
from simlib.analysis.choose.trials import Trials
from simlib.analysis.simulate import flags_of
from simlib.measurements.fits import UncertainCosts, choose_fit
from simlib.model.quantities import format_duration, size_text
from simlib.model.scenario import Scenario, as_scenario

SELECTION, CHECK = range(2)
"""Stages; the replications of each stage use separate random streams."""

SELECTION_RUNS = 24
"""Number of replications in the selection."""

LOOKS = (32, 64)
"""Numbers of replications after which the check may stop. It continues only if this may settle an uncertain answer."""

STALL_LEVEL = 0.90
"""Probability with which a migration's longest stall lies below the bound that is predicted for its strategy."""


def choose(
    scenario: Scenario | str | Path, *, strategies: Sequence[str] | None = None, **options: Unpack[ChoiceKeywords]
) -> Choice:
    """Choose among strategies.

    Raises `InputError` if the scenario is not a migration or clears nothing, an argument is invalid, or no
    strategy satisfies `max_stall_s`.

    - `scenario`: a migration without variants, or its file.
    - `strategies`: names of policies, conditions such as ``"held >= 50us"``, several joined by ``+``, and
      ``"baseline"``. By default those that a stock kernel supports (`stock_kernel_strategies` of
      `simlib.analysis.choose.strategies`); `patched_kernel_strategies` has those that need a patched kernel.
    - `fit`, `objective`, `weight`, `indifference`, `confidence`, `max_stall_s`, `seed`, `announce`, `progress`: see
      `simlib.analysis.choose.options.ChoiceOptions`.

    >>> s = Scenario.parse({"guest": {"vcpus": 2, "memory": "8M"}, "policy": {"architecture": "arm64"},
    ...                     "workload": {"kind": "migration", "pass_limit": 1, "clear_chunk": "1M",
    ...                                  "warm_up": "10us", "downtime": "0ps"}})
    >>> choice = choose(s, strategies=["whole-ioctl", "every-64"])
    >>> choice.table["strategy"].tolist(), choice.evidence
    (['whole-ioctl', 'every-64'], 'facts alone')
    """
    return choose_among(as_scenario(scenario), strategies, ChoiceOptions(**options))


def choose_batch(scenario: Scenario | str | Path, **options: Unpack[ChoiceKeywords]) -> Choice:
    """Choose among batches of 64·2^k pages and the whole ioctl; `Choice.batches` has the results.

    Raises `InputError` if the scenario is not a migration or leaves no batch to choose, an argument is invalid, or
    no batch satisfies `max_stall_s`.

    - `scenario`: a migration without variants, or its file. The batch of its policy is ignored.
    - `fit`, `objective`, `weight`, `indifference`, `confidence`, `max_stall_s`, `seed`, `announce`, `progress`: see
      `simlib.analysis.choose.options.ChoiceOptions`.

    >>> s = Scenario.parse({"guest": {"vcpus": 2, "memory": "8M"}, "policy": {"architecture": "x86-tdp"},
    ...                     "workload": {"kind": "migration", "pass_limit": 1, "clear_chunk": "1M",
    ...                                  "warm_up": "10us", "downtime": "0ps"}})
    >>> choice = choose_batch(s)
    >>> choice.batches.table["effective_pages"].tolist(), choice.evidence
    ([64, 128, 256], 'facts alone')
    >>> choice.batches.sentence
    'recommended: any batch; batches from 64 pages to the whole ioctl are equivalent (within ..., 95 % ...
    """
    scenario, criteria = as_scenario(scenario), ChoiceOptions(**options)
    check_scenario(scenario)
    batches = batches_below(chunk_pages(scenario))
    if len(batches) < 2:
        raise InputError(
            "workload.clear_chunk", scenario.workload.clear_chunk or "all of the memory", "one CLEAR covers at most "
            "64 pages, so there is no batch to choose", "use a larger chunk, or more memory",
        )  # fmt: skip
    choice = choose_among(scenario, [f"every-{batch}" if batch else "whole-ioctl" for batch in batches], criteria)
    medians = dict(zip(choice.costs["cost"], choice.costs["value"].astype(float), strict=True))
    law = closed_form(choice.scenario.with_costs(**medians), criteria.objective, criteria.weight)
    return dataclasses.replace(choice, closed_form=law)


def choose_among(scenario: Scenario, names: Sequence[str] | None, options: ChoiceOptions) -> Choice:
    """Choose among strategies by their names; see `choose`."""
    check_scenario(scenario)
    strategies = strategies_of(scenario, names)
    estimate, notes = choose_fit(scenario, options.fit)
    costs = UncertainCosts.of(scenario, estimate)
    trials = Trials(costs, strategies, options.seed)
    simulated, wider = _select(trials, options), at_qemu_chunk(scenario)
    bounds = stall_bounds(simulated[:, :, _column("stall")])
    if wider != scenario:  # a small chunk shortens every hold, but the next migration may use QEMU's default
        wide = Trials(dataclasses.replace(costs, scenario=wider), strategies, options.seed)
        part = parallel.subprogress(options.progress, 0.3, 0.4)
        metrics = wide.run(SELECTION, range(SELECTION_RUNS), "with QEMU's CLEARs", part)
        bounds = np.maximum(bounds, stall_bounds(_objectives(metrics, scenario, options)[:, :, _column("stall")]))
    allowed = _allowed(bounds, strategies, options.max_stall_s)
    checked, ranking = _check(trials, Ranking(strategies, allowed, options, simulated, bounds, len(LOOKS)))
    logs = trials.logs({SELECTION: range(SELECTION_RUNS), CHECK: range(checked)})
    return Choice(
        scenario=scenario, strategies=strategies, weight=options.weight, indifference=options.indifference,
        confidence=options.confidence, seed=options.seed, how=trials.how, runs=(SELECTION_RUNS, checked),
        table=ranking.table, pairs=ranking.pairs, answers=ranking.answers, budgets=ranking.budgets,
        information=_information(logs, ranking), costs=costs.table(), evidence=costs.evidence,
        grounds=grounds(costs.evidence, fit_of(scenario, options.fit), given=options.fit is not None),
        flags=(*notes, *_flags(scenario, wider, costs)), objective=options.objective,
    )  # fmt: skip


def check_scenario(scenario: Scenario) -> None:
    """Raise `InputError` if a scenario leaves nothing to choose."""
    workload = scenario.workload
    if scenario.variants:
        raise InputError("variants", ", ".join(scenario.variants), "must be empty for a choice", "remove them")
    if not workload.facts.by_chunk:
        raise InputError(
            "workload.kind", workload.kind, "strategies are chosen for migrations only",
            'write kind = "migration" under [workload]',
        )  # fmt: skip
    if workload.clear_when == "at_get":
        raise InputError(
            "workload.clear_when", workload.clear_when, "GET clears the whole slot: there is no CLEAR to divide",
            'write "lazy" or "at_once"',
        )  # fmt: skip
    scenario.policy.resolved()


def may_be_settled(pairs: pd.DataFrame, answers: pd.DataFrame, narrower: float) -> bool:
    """True if intervals that are narrower by this factor would make an uncertain answer certain."""
    for name in answers.loc[~answers["certain"].astype(bool), "objective"]:
        rows = pairs[(pairs["objective"] == name) & pairs["allowed"]]
        half_widths = (rows["difference_high_s"] - rows["difference_s"]) / narrower  # the lower end may be clipped
        if (half_widths - rows["difference_s"]).max() <= rows["indifference_s"].iloc[0]:
            return True
    return False


def stall_bounds(stalls: Floats) -> Floats:
    """Return, by strategy, the bound below which another migration's longest stall lies with `STALL_LEVEL`.

    It is a prediction bound of the logarithms, which are assumed to be normally distributed.

    - `stalls`, shape (replications, strategies): s.

    >>> stall_bounds(np.array([[1e-3, 1e-6], [1e-3, 4e-6], [1e-3, 2e-6]])).round(7).tolist()
    [0.001, 9e-06]
    """
    logs = np.log(np.maximum(stalls, 1e-12))
    n = len(logs)
    reach = float(stdtrit(n - 1, STALL_LEVEL)) * np.sqrt(1 + 1 / n)
    bounds: Floats = np.exp(logs.mean(axis=0) + reach * logs.std(axis=0, ddof=1))
    return bounds


def _select(trials: Trials, options: ChoiceOptions) -> Floats:
    """Run the selection, and estimate the duration of all runs from its first replication, after compilation.

    Returns: ndarray, shape (replications, strategies, objectives), s. Raises `InputError` if no memory is cleared.
    """
    scenario, progress, announce = trials.costs.scenario, options.progress, options.announce
    count = len(trials.strategies)
    selecting = SELECTION_RUNS * (1 if at_qemu_chunk(scenario) == scenario else 2)
    fewest, most = (count * (selecting + runs) for runs in (LOOKS[0], LOOKS[-1]))
    if announce is not None:
        how = {
            "sampled": "sampled migrations (a few windows of each pass; docs/sampling.md)",
            "whole": "whole migrations" + (f" ({trials.why_whole})" if trials.why_whole else ""),
        }[trials.how]
        announce(f"{count} strategies, {fewest:,} to {most:,} simulations: {how}")
    single = Trials(trials.costs, trials.strategies[:1], trials.seed)
    single.run(SELECTION, [0], "trying one", parallel.subprogress(progress, 0.0, 0.0))
    start = time.monotonic()
    first = trials.run(SELECTION, [0], "trying each once", parallel.subprogress(progress, 0.0, 0.02))
    duration = (time.monotonic() - start) / count
    if announce is not None:
        announce(f"expected duration: {duration * fewest:.0f} to {duration * most:.0f} s "
                 f"(maximum number of parallel simulations: {parallel.concurrency()})")  # fmt: skip
    others = trials.run(SELECTION, range(1, SELECTION_RUNS), "selecting", parallel.subprogress(progress, 0.02, 0.3))
    values = _objectives(np.concatenate([first, others]), scenario, options)
    if not values[:, :, _column("clear")].any():
        raise InputError(
            "workload.downtime", format_duration(scenario.workload.downtime),
            "all memory can be sent within this time, so nothing is ever cleared",
            "shorten it, or use more memory",
        )  # fmt: skip
    return values


def _column(name: str) -> int:
    return list(OBJECTIVES).index(name)


def _objectives(metrics: Floats, scenario: Scenario, options: ChoiceOptions) -> Floats:
    """Compute the objectives, shape (replications, strategies, objectives), from the metrics."""
    vcpus = scenario.guest.vcpus
    return np.stack([row.value(metrics, vcpus, options.weight) for row in OBJECTIVES.values()], axis=-1)


def _allowed(bounds: Floats, strategies: Sequence[Strategy], max_stall_s: float | None) -> list[int]:
    """Return the indices of the strategies that satisfy the limit. Raises `InputError` if no strategy does."""
    if max_stall_s is None:
        return list(range(len(strategies)))
    allowed = np.flatnonzero(bounds <= max_stall_s).tolist()
    if not allowed:
        least = int(np.argmin(bounds))
        raise InputError(
            "longest stall allowed", format_duration(round(max_stall_s * 1e12)),
            f"no strategy satisfies it with a probability of {100 * STALL_LEVEL:.0f} %: the lowest bound is "
            f"{format_duration(float(f'{bounds[least] * 1e12:.3g}'))}, with {strategies[least].name}",
            "allow longer stalls",
        )  # fmt: skip
    return allowed


def _check(trials: Trials, ranking: Ranking) -> tuple[int, Ranking]:
    """Run the check until the answers are settled. Returns: its number of replications, and the final ranking."""
    scenario, options = trials.costs.scenario, ranking.options
    progress = parallel.subprogress(options.progress, 0.4, 1.0)
    selection, done, values = len(ranking.simulated), 0, [ranking.simulated]
    for runs in LOOKS:
        part = parallel.subprogress(progress, done / LOOKS[-1], runs / LOOKS[-1])
        values.append(_objectives(trials.run(CHECK, range(done, runs), "checking", part), scenario, options))
        done, ranking = runs, dataclasses.replace(ranking, simulated=np.concatenate(values))
        narrower = ((selection + LOOKS[-1]) / len(ranking.simulated)) ** 0.5
        if not may_be_settled(ranking.pairs, ranking.answers, narrower):
            break
    return done, ranking


def _information(logs: Mapping[str, Floats], ranking: Ranking) -> pd.DataFrame:
    """Estimate, for each objective, the saving if a cost were known and the best allowed strategy were then chosen."""
    allowed, parts = ranking.allowed, []
    for i, (name, best) in enumerate(ranking.selected.items()):
        values = ranking.simulated[:, allowed, i]
        if not np.ptp(values, axis=1).any() or not logs:
            continue
        frame = value_of_information(logs, values, allowed.index(best), ranking.options.seed)
        names = [ranking.strategies[allowed[k]].name if k >= 0 else "" for k in frame["switches_to"]]
        zone = ranking.comparisons[name].zone(best)
        matters = frame["matters"] & (frame["saving"] > zone / 2)
        parts.append(frame.assign(objective=name, indifference_s=zone, matters=matters, switches_to=names))
    columns = ["objective", "cost", "saving", "indifference_s", "matters", "switches_to"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def _flags(scenario: Scenario, wider: Scenario, costs: UncertainCosts) -> list[str]:
    flags = []
    if wider != scenario:
        own, qemu = (size_text(case.workload.clear_chunk or 0) for case in (scenario, wider))
        flags.append(
            f"bounds of the longest stall also hold for CLEARs of {qemu}, QEMU's default; all other values are for the "
            f"scenario's CLEARs of {own}"
        )
    policy, facts = scenario.policy, scenario.policy.facts
    if costs.evidence.startswith("partly"):
        priors = ", ".join(name for name, kind in costs.sources().items() if kind == "prior")
        flags.append(f"costs that were not calibrated are drawn from published or assumed priors: {priors}")
    flags += [
        f"computed as if {name} were {getattr(policy, name)!r}, although {facts.title} does not take mmu_lock there; "
        f"actual drop points of CLEAR (or GET): {facts.drop_points}"
        for name in ("lock", "write_protect_fault", "translation_fault", "split_fault", "clear_lock")
        if getattr(facts, name) == "none"
    ]
    return [*flags, *flags_of(scenario)]
