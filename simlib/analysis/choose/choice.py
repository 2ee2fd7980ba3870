# SPDX-License-Identifier: BSD-3-Clause
"""The choice of a strategy for the holds of mmu_lock, over what is not known of the costs, and how sure that is.

Two sets of replications: the selection says which strategies keep to the longest stall that is allowed; the check goes
on until the answers are certain, or cannot soon be. What is selected and what is printed rest on both: the intervals
are those of all pairs of strategies, and hold for any pick (`simlib.analysis.choose.ranking`). All strategies are
simulated in all replications on common random numbers, so that one run answers all objectives.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

from simlib._lib import parallel
from simlib._lib.errors import InputError
from simlib.analysis.choose.advice import Choice
from simlib.analysis.choose.closed_form import at_qemu_chunk
from simlib.analysis.choose.evidence import fit_of, grounds
from simlib.analysis.choose.information import value_of_information
from simlib.analysis.choose.objectives import OBJECTIVES
from simlib.analysis.choose.objectives import objective as objective_named
from simlib.analysis.choose.ranking import Ranking, Terms
from simlib.analysis.choose.strategies import Strategy, strategies_of
from simlib.analysis.choose.trials import Trials
from simlib.measurements.fits import AnyFit, UncertainCosts, choose_fit
from simlib.model.quantities import format_duration, say_size
from simlib.model.scenario import Scenario, as_scenario

Floats = NDArray[np.float64]

SELECTION, CHECK = range(2)
"""Stages; their replications draw from streams of their own."""

SELECTION_RUNS = 24
"""Replications of the selection."""

LOOKS = (32, 64)
"""Replications of the check after which it is looked at; a second look only where it may settle what is open."""

STALL_LEVEL = 0.90
"""Probability that a migration's longest stall is below a strategy's bound."""


def choose(
    scenario: Scenario | str | Path,
    *,
    strategies: Sequence[str] | None = None,
    fit: AnyFit | None = None,
    objective: str = "cost",
    weight: float = 1.0,
    indifference: float = 0.02,
    confidence: float = 0.95,
    max_stall_s: float | None = None,
    seed: int = 1,
    announce: Callable[[str], None] | None = None,
    progress: parallel.Progress | None = None,
) -> Choice:
    """Choose among strategies.

    Raises `InputError` if the scenario is no migration or clears nothing, an argument breaks its rule, or no strategy
    keeps to `max_stall_s`.

    - `scenario`: a migration, without variants, or its file.
    - `strategies`: strategies: names of policies, texts such as ``"held >= 50us"``, several joined by ``+``, and
      ``"baseline"``. By default what can be set on a stock kernel (`simlib.analysis.choose.settable`);
      `simlib.analysis.choose.patched` has what only a patched one can do.
    - `fit`: calibrated costs. By default the shipped fit of the scenario's machine, if there is one. Costs that neither
      has are drawn from the priors.
    - `objective`: what counts most: a name of `simlib.analysis.choose.objectives.OBJECTIVES`. It leads the sentences
      and the table; all are answered.
    - `weight`: for the CPU time in all: what a second of a vCPU is worth, in seconds of the clearing thread.
    - `indifference`: differences below this share of an objective's best value do not matter, nor those below its
      `Objective.floor`.
    - `confidence`: probability that all intervals of differences hold, together.
    - `max_stall_s`: strategies with which the longest stall of a migration exceeds so many seconds with more than 10 %
      are out: with the scenario's CLEARs, or with QEMU's of 1 GiB where the scenario's are smaller.
    - `seed`: root of all random streams.
    - `announce`: told in words what will be done, and how long it may take.
    - `progress`: called with what is done, and the share done of all.

    >>> s = Scenario.parse({"guest": {"vcpus": 2, "memory": "8M"}, "policy": {"architecture": "arm64"},
    ...                     "workload": {"kind": "migration", "pass_limit": 1, "clear_chunk": "1M",
    ...                                  "warm_up": "10us", "downtime": "0ps"}})
    >>> found = choose(s, strategies=["whole-ioctl", "every-64"])
    >>> found.table["strategy"].tolist(), found.evidence
    (['whole-ioctl', 'every-64'], 'facts alone')
    """
    leads, terms = objective_named(objective).name, Terms(weight, indifference, confidence, max_stall_s, seed)
    return dataclasses.replace(
        chosen(as_scenario(scenario), strategies, fit, terms, announce, progress), objective=leads
    )


def chosen(
    scenario: Scenario, among: Sequence[str] | None, fit: AnyFit | None, terms: Terms,
    announce: Callable[[str], None] | None, progress: parallel.Progress | None,
) -> Choice:  # fmt: skip
    """Choose among strategies; the arguments are those of `choose`."""
    check_scenario(scenario)
    strategies = strategies_of(scenario, among)
    estimate, notes = choose_fit(scenario, fit)
    costs = UncertainCosts.of(scenario, estimate)
    trials = Trials(costs, strategies, terms.seed)
    first = _first(trials, announce, progress)
    rest = trials.run(SELECTION, range(1, SELECTION_RUNS), "selecting", parallel.subprogress(progress, 0.02, 0.3))
    selected = _valued(np.concatenate([first, rest]), scenario, terms)
    if not selected[:, :, _column("clear")].any():
        raise InputError(
            "workload.downtime", format_duration(scenario.workload.downtime),
            "all of the memory can be sent within it, so that nothing is ever cleared",
            "shorten it, or take more memory",
        )  # fmt: skip
    bounds = stall_bounds(selected[:, :, _column("stall")])
    wider = at_qemu_chunk(scenario)
    if wider != scenario:  # a small chunk keeps a hold short that letting go does not: it is not the strategy's doing
        wide = Trials(dataclasses.replace(costs, scenario=wider), strategies, terms.seed)
        held = wide.run(
            SELECTION, range(SELECTION_RUNS), "with QEMU's CLEARs", parallel.subprogress(progress, 0.3, 0.4)
        )
        bounds = np.maximum(bounds, stall_bounds(_valued(held, scenario, terms)[:, :, _column("stall")]))
    allowed = _allowed(bounds, strategies, terms.max_stall_s)
    ranking = Ranking(strategies, allowed, terms, selected, bounds, len(LOOKS))
    fresh, ranking = _ranked(trials, selected, ranking, parallel.subprogress(progress, 0.4, 1.0))
    logs = trials.logs({SELECTION: range(SELECTION_RUNS), CHECK: range(fresh)})
    return Choice(
        scenario=scenario,
        strategies=strategies,
        weight=terms.weight,
        indifference=terms.indifference,
        confidence=terms.confidence,
        seed=terms.seed,
        how=trials.how,
        runs=(SELECTION_RUNS, fresh),
        table=ranking.table,
        pairs=ranking.pairs,
        answers=ranking.answers,
        budgets=ranking.budgets,
        information=_information(logs, ranking),
        costs=costs.table(),
        evidence=costs.evidence,
        grounds=grounds(costs.evidence, fit_of(scenario, fit), given=fit is not None),
        flags=(*notes, *_flags(scenario, wider, costs)),
    )


def check_scenario(scenario: Scenario) -> None:
    """Refuse what leaves nothing to choose, by an `InputError`."""
    workload = scenario.workload
    if scenario.variants:
        raise InputError("variants", ", ".join(scenario.variants), "one scenario at a time", "write one without them")
    if not workload.facts.by_chunk:
        raise InputError(
            "workload.kind", workload.kind, "a strategy is chosen for a migration",
            'write kind = "migration" under [workload]',
        )  # fmt: skip
    if workload.clear_when == "at_get":
        raise InputError(
            "workload.clear_when", workload.clear_when, "GET clears the whole slot: there is no CLEAR to divide",
            'write "lazy" or "at_once"',
        )  # fmt: skip
    scenario.policy.resolved()


def may_be_settled(pairs: pd.DataFrame, answers: pd.DataFrame, narrower: float) -> bool:
    """Whether intervals that are narrower by this factor would make an answer certain that is not."""
    for name in answers.loc[~answers["certain"].astype(bool), "objective"]:
        mine = pairs[(pairs["objective"] == name) & pairs["allowed"]]
        half = (mine["difference_high_s"] - mine["difference_s"]) / narrower  # a lower end may be cut
        if (half - mine["difference_s"]).max() <= mine["indifference_s"].iloc[0]:
            return True
    return False


def stall_bounds(stalls: Floats) -> Floats:
    """What the longest stall of one more migration stays below with probability `STALL_LEVEL`, for every strategy.

    A prediction bound in the logarithms, taken as normal.

    - `stalls`, shape (replications, strategies): s.

    >>> stall_bounds(np.array([[1e-3, 1e-6], [1e-3, 4e-6], [1e-3, 2e-6]])).round(7).tolist()
    [0.001, 9e-06]
    """
    logs = np.log(np.maximum(stalls, 1e-12))
    n = len(logs)
    reach = float(stdtrit(n - 1, STALL_LEVEL)) * np.sqrt(1 + 1 / n)
    bounds: Floats = np.exp(logs.mean(axis=0) + reach * logs.std(axis=0, ddof=1))
    return bounds


def _first(trials: Trials, announce: Callable[[str], None] | None, progress: parallel.Progress | None) -> Floats:
    """The first replication, which tells how long the others take; what is compiled, is compiled before."""
    count = len(trials.strategies)
    scenario = trials.costs.scenario
    selecting = SELECTION_RUNS * (1 if at_qemu_chunk(scenario) == scenario else 2)
    least, most = (count * (selecting + runs) for runs in (LOOKS[0], LOOKS[-1]))
    if announce is not None:
        how = {
            "sampled": "sampled migrations (a few windows of each pass; docs/sampling.md)",
            "whole": "whole migrations" + (f" ({trials.why_whole})" if trials.why_whole else ""),
        }[trials.how]
        announce(f"{count} strategies, {least} to {most} simulations: {how}")
    one = Trials(trials.costs, trials.strategies[:1], trials.seed)
    one.run(SELECTION, [0], "trying one", parallel.subprogress(progress, 0.0, 0.0))
    began = time.monotonic()
    first = trials.run(SELECTION, [0], "trying each once", parallel.subprogress(progress, 0.0, 0.02))
    each = (time.monotonic() - began) / count
    if announce is not None:
        announce(f"{each * least:.0f} to {each * most:.0f} s on this machine, {parallel.concurrency()} at a time")
    return first


def _column(name: str) -> int:
    return list(OBJECTIVES).index(name)


def _valued(metrics: Floats, scenario: Scenario, terms: Terms) -> Floats:
    """Shape (replications, strategies, objectives)."""
    vcpus = scenario.guest.vcpus
    return np.stack([one.value(metrics, vcpus, terms.weight) for one in OBJECTIVES.values()], axis=-1)


def _allowed(bounds: Floats, strategies: Sequence[Strategy], max_stall_s: float | None) -> list[int]:
    if max_stall_s is None:
        return list(range(len(strategies)))
    allowed = np.flatnonzero(bounds <= max_stall_s).tolist()
    if not allowed:
        least = int(np.argmin(bounds))
        raise InputError(
            "longest stall allowed", format_duration(round(max_stall_s * 1e12)),
            f"no strategy keeps to it with {STALL_LEVEL:.0%}: the least, {strategies[least].name}, needs "
            f"{format_duration(float(f'{bounds[least] * 1e12:.3g}'))}",
            "allow more",
        )  # fmt: skip
    return allowed


def _ranked(
    trials: Trials, selected: Floats, ranking: Ranking, progress: parallel.Progress | None
) -> tuple[int, Ranking]:
    """The ranking after as many looks at the check as it takes, and the replications of the check."""
    scenario, done, values = trials.costs.scenario, 0, [selected]
    for runs in LOOKS:
        part = parallel.subprogress(progress, done / LOOKS[-1], runs / LOOKS[-1])
        found = trials.run(CHECK, range(done, runs), "checking", part)
        values.append(_valued(found, scenario, ranking.terms))
        done, ranking = runs, dataclasses.replace(ranking, simulated=np.concatenate(values))
        narrower = ((len(selected) + LOOKS[-1]) / len(ranking.simulated)) ** 0.5
        if not may_be_settled(ranking.pairs, ranking.answers, narrower):
            break
    return done, ranking


def _information(logs: Mapping[str, Floats], ranking: Ranking) -> pd.DataFrame:
    """For each objective the costs that it would save most to know, by taking another strategy that is allowed."""
    allowed, parts = ranking.allowed, []
    for o, (name, best) in enumerate(ranking.best.items()):
        values = ranking.simulated[:, allowed, o]
        if not np.ptp(values, axis=1).any() or not logs:
            continue
        found = value_of_information(logs, values, allowed.index(best), ranking.terms.seed)
        names = [ranking.strategies[allowed[i]].name if i >= 0 else "" for i in found["switches_to"]]
        width = ranking.standings[name].width(best)
        matters = found["matters"] & (found["saving"] > width / 2)
        parts.append(found.assign(objective=name, indifference_s=width, matters=matters, switches_to=names))
    columns = ["objective", "cost", "saving", "indifference_s", "matters", "switches_to"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def _flags(scenario: Scenario, wider: Scenario, costs: UncertainCosts) -> list[str]:
    """What a reader should know before believing the choice."""
    flags = []
    if wider != scenario:
        own, qemu = (say_size(one.workload.clear_chunk or 0) for one in (scenario, wider))
        flags.append(
            f"bounds of the longest stall are those of CLEARs of {qemu}, which QEMU makes unless told otherwise, where "
            f"they are larger than those of this scenario's {own}; all else is of {own}"
        )
    policy, facts = scenario.policy, scenario.policy.facts
    if costs.evidence.startswith("partly"):
        guessed = ", ".join(name for name, kind in costs.sources().items() if kind == "prior")
        flags.append(f"not calibrated, so drawn from what is published or assumed: {guessed}")
    flags += [
        f"as if {name} were {getattr(policy, name)!r}: {facts.title} does not take mmu_lock there; as it is, CLEAR "
        f"(or GET) lets go {facts.drop_points}"
        for name in ("lock", "write_protect_fault", "translation_fault", "split_fault", "clear_lock")
        if getattr(facts, name) == "none"
    ]
    if scenario.guest.vcpus > scenario.host.cores:
        flags.append(
            f"{scenario.guest.vcpus} vCPUs on {scenario.host.cores} cores: each vCPU is given a core of its own"
        )
    return flags
