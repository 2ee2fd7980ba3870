# SPDX-License-Identifier: BSD-3-Clause
"""The choice of a strategy for the holds of mmu_lock, over what is not known of the costs, and how sure that is.

Two sets of replications, of which none is used twice: the selection picks the best strategy for each objective; the
check measures every strategy anew, so that what is printed is not flattered by having been picked. All strategies are
simulated in all replications on common random numbers, so that one run answers all objectives.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from simlib import parallel
from simlib.decision.advice import Choice
from simlib.decision.closed_form import at_qemu_chunk
from simlib.decision.information import value_of_information
from simlib.decision.objectives import OBJECTIVES, Objective
from simlib.decision.strategies import Strategy, strategies_of
from simlib.decision.trials import Trials
from simlib.errors import InputError
from simlib.fits import AnyFit, UncertainCosts, choose_fit
from simlib.model.quantities import format_duration, format_size
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

FRONT = ("lost", "stall", "clear", "precopy")
"""Objectives that are traded for each other."""

BUDGETS = (10e-6, 100e-6, 1e-3, 10e-3, 100e-3)
"""Longest stalls of which it is said what they cost, s."""


def choose(
    scenario: Scenario | str | Path,
    *,
    among: Sequence[str] | None = None,
    fit: AnyFit | None = None,
    weight: float = 1.0,
    zone: float = 0.02,
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
    - `among`: strategies: names of policies, texts such as ``"held >= 50us"``, several joined by ``+``, and ``"own"``.
      By default those of `simlib.decision.strategies` that differ for the scenario.
    - `fit`: calibrated costs. By default the shipped fit of the scenario's machine, if there is one. Costs that neither
      has are drawn from the priors.
    - `weight`: for the CPU time in all: what a second of a vCPU is worth, in seconds of the clearing thread.
    - `zone`: differences below this share of an objective's best value do not matter, nor those below its
      `Objective.floor`.
    - `confidence`: probability that all intervals of differences hold, together.
    - `max_stall_s`: strategies with which the longest stall of a migration exceeds so many seconds with more than 10 %
      are out: with the scenario's CLEARs, or with QEMU's of 1 GiB where the scenario's are smaller.
    - `seed`: root of all random streams.
    - `announce`: told in words what will be done, and how long it may take.
    - `progress`: called with (what, share done).

    >>> s = Scenario.parse({"guest": {"vcpus": 2, "memory": "8M"}, "policy": {"architecture": "arm64"},
    ...                     "workload": {"kind": "migration", "pass_limit": 1, "clear_chunk": "1M",
    ...                                  "warm_up": "10us", "downtime": "0ps"}})
    >>> found = choose(s, among=["whole-ioctl", "every-64"])
    >>> found.table["strategy"].tolist(), found.evidence
    (['whole-ioctl', 'every-64'], 'facts alone')
    """
    terms = Terms(weight, zone, confidence, max_stall_s, seed)
    return chosen(as_scenario(scenario), among, fit, terms, announce, progress)


@dataclass(frozen=True)
class Terms:
    """What `choose` is told about what matters. Raises `InputError` if a value breaks its rule."""

    weight: float
    zone: float
    confidence: float
    max_stall_s: float | None
    seed: int

    def __post_init__(self) -> None:
        """Refuse what leaves nothing to choose, or would be computed in vain."""
        if not 0 <= self.weight < math.inf:
            raise InputError("weight", self.weight, "must be finite and at least 0",
                             "say what a second of a vCPU is worth")  # fmt: skip
        if not 0 < self.zone < 1:
            raise InputError("zone", self.zone, "must lie between 0 and 1", "0.02: differences below 2 % do not matter")
        if not 0.5 < self.confidence < 1:
            raise InputError("confidence", self.confidence, "must lie between 0.5 and 1", "such as 0.95")
        if self.max_stall_s is not None and not 0 < self.max_stall_s < math.inf:
            raise InputError("max_stall_s", self.max_stall_s, "must be finite and above 0")

    def width(self, values: Floats, what: Objective) -> float:
        """The difference to these values that does not matter, s."""
        return max(self.zone * float(values.mean()), what.floor)


class Picked(NamedTuple):
    """What the selection picked for each objective, by its index, among those that are allowed."""

    strategies: tuple[Strategy, ...]
    allowed: list[int]
    best: list[int]
    terms: Terms


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
    rest = trials.run(SELECTION, range(1, SELECTION_RUNS), "selecting", parallel.portion(progress, 0.02, 0.3))
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
        held = wide.run(SELECTION, range(SELECTION_RUNS), "with QEMU's CLEARs", parallel.portion(progress, 0.3, 0.4))
        bounds = np.maximum(bounds, stall_bounds(_valued(held, scenario, terms)[:, :, _column("stall")]))
    picked = _picked(selected, strategies, _allowed(bounds, strategies, terms.max_stall_s), terms)
    checked, pairs, answers = _checked(trials, picked, parallel.portion(progress, 0.4, 1.0))
    table = _table(picked, checked, bounds)
    return Choice(
        scenario=scenario, strategies=strategies, weight=terms.weight, zone=terms.zone, confidence=terms.confidence,
        seed=terms.seed, how=trials.how, runs=(SELECTION_RUNS, len(checked)), table=table, pairs=pairs,
        answers=answers, budgets=_budgets(table), information=_information(trials, checked, picked),
        costs=costs.table(), evidence=costs.evidence, flags=(*notes, *_flags(scenario, wider, costs)),
    )  # fmt: skip


def check_scenario(scenario: Scenario) -> None:
    """Refuse what leaves nothing to choose.

    Raises `InputError`.
    """
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
    """Whether intervals that are narrower by this factor would make an answer certain that is not.

    >>> pairs = pd.DataFrame({"objective": "stall", "allowed": True, "difference_s": [0.0, 1.0],
    ...                       "difference_low_s": [0.0, -2.0], "zone_s": 0.5})
    >>> answers = pd.DataFrame({"objective": ["stall"], "certain": [False]})
    >>> may_be_settled(pairs, answers, 1.4), may_be_settled(pairs, answers, 2.0)
    (False, True)
    """
    for name in answers.loc[~answers["certain"].astype(bool), "objective"]:
        mine = pairs[(pairs["objective"] == name) & pairs["allowed"]]
        half = (mine["difference_s"] - mine["difference_low_s"]) / narrower
        if (half - mine["difference_s"]).max() <= mine["zone_s"].iloc[0]:
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
    reach = float(stats.t.ppf(STALL_LEVEL, n - 1)) * np.sqrt(1 + 1 / n)
    bounds: Floats = np.exp(logs.mean(axis=0) + reach * logs.std(axis=0, ddof=1))
    return bounds


def pareto_front(values: Floats) -> NDArray[np.bool_]:
    """Which rows no other row beats: none is as small in all columns, and smaller in one.

    >>> pareto_front(np.array([[1.0, 2.0], [2.0, 1.0], [2.0, 3.0]])).tolist()
    [True, True, False]
    """
    return np.array([not ((values <= row).all(axis=1) & (values < row).any(axis=1)).any() for row in values])


def knee(values: Floats) -> int:
    """The row nearest to the best of every column, each on a logarithmic scale from its best to its worst.

    >>> knee(np.array([[1.0, 1000.0], [2.0, 2.0], [1000.0, 1.0]]))
    1
    """
    logs = np.log(np.maximum(values, 1e-12))
    span = np.ptp(logs, axis=0)
    scaled = (logs - logs.min(axis=0)) / np.where(span > np.log(1.02), span, np.inf)
    return int(np.argmin((scaled**2).sum(axis=1)))


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
    one.run(SELECTION, [0], "trying one", parallel.portion(progress, 0.0, 0.0))
    began = time.monotonic()
    first = trials.run(SELECTION, [0], "trying each once", parallel.portion(progress, 0.0, 0.02))
    each = (time.monotonic() - began) / count
    if announce is not None:
        announce(f"{each * least:.0f} to {each * most:.0f} s on this machine, {parallel.cpus()} at a time")
    return first


def _column(name: str) -> int:
    return list(OBJECTIVES).index(name)


def _valued(metrics: Floats, scenario: Scenario, terms: Terms) -> Floats:
    """Shape (replications, strategies, objectives)."""
    vcpus = scenario.guest.vcpus
    return np.stack([one.value(metrics, vcpus, terms.weight) for one in OBJECTIVES.values()], axis=-1)


def _allowed(bounds: Floats, strategies: Sequence[Strategy], max_stall_s: float | None) -> list[int]:
    """Strategies that keep to the longest stall that is allowed."""
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


def _picked(selected: Floats, strategies: tuple[Strategy, ...], allowed: list[int], terms: Terms) -> Picked:
    """The best strategies; of those that are as good by the selection's means what is now, else the first one."""
    best = []
    for o, what in enumerate(OBJECTIVES.values()):
        means = selected[:, :, o].mean(axis=0)
        least = float(means[allowed].min())
        good = [s for s in allowed if means[s] <= least + max(terms.zone * least, what.floor) / 2]
        best.append(next((s for s in good if strategies[s].as_it_is), good[0]))
    return Picked(strategies, allowed, best, terms)


def _checked(
    trials: Trials, picked: Picked, progress: parallel.Progress | None
) -> tuple[Floats, pd.DataFrame, pd.DataFrame]:
    """What the check measured, `_pairs` and `_answers` of it, after as many looks as it takes."""
    scenario, done, values = trials.costs.scenario, 0, []
    for runs in LOOKS:
        part = parallel.portion(progress, done / LOOKS[-1], runs / LOOKS[-1])
        found = trials.run(CHECK, range(done, runs), "checking", part)
        values.append(_valued(found, scenario, picked.terms))
        done, checked = runs, np.concatenate(values)
        pairs = _pairs(checked, picked)
        answers = _answers(pairs)
        if not may_be_settled(pairs, answers, (LOOKS[-1] / runs) ** 0.5):
            break
    return checked, pairs, answers


def _pairs(checked: Floats, picked: Picked) -> pd.DataFrame:
    """Every strategy beside the one that was picked, for each objective.

    Paired t intervals, Bonferroni over all strategies, objectives and looks.
    """
    n, count, kinds = checked.shape
    confidence, allowed = picked.terms.confidence, picked.allowed
    error = (1 - confidence) / (2 * (count - 1) * kinds * len(LOOKS))
    reach = float(stats.t.ppf(1 - error, n - 1)) / np.sqrt(n)
    alone = float(stats.t.ppf(0.5 + confidence / 2, n - 1)) / np.sqrt(n)
    rows = []
    for o, (what, best) in enumerate(zip(OBJECTIVES.values(), picked.best, strict=True)):
        values = checked[:, :, o]
        width = picked.terms.width(values[:, best], what)
        for s, strategy in enumerate(picked.strategies):
            mean, spread = float(values[:, s].mean()), alone * float(values[:, s].std(ddof=1))
            gap = values[:, s] - values[:, best]
            more, half = float(gap.mean()), reach * float(gap.std(ddof=1))
            rows.append(
                (what.name, strategy.name, mean, max(0.0, mean - spread), mean + spread, more, more - half, more + half,
                 s == best, s in allowed, s in allowed and (s == best or more + half <= width), width)
            )  # fmt: skip
    columns = ["objective", "strategy", "value_s", "low_s", "high_s", "difference_s", "difference_low_s",
               "difference_high_s", "picked", "allowed", "as_good", "zone_s"]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def _answers(pairs: pd.DataFrame) -> pd.DataFrame:
    """What was picked for each objective, and by how much another may be better at most."""
    rows = []
    for name, mine in pairs.groupby("objective", sort=False):
        one = mine[mine["picked"]].iloc[0]
        worst = max(0.0, float(-mine.loc[mine["allowed"], "difference_low_s"].min()))
        certain = worst <= float(one["zone_s"])
        good = mine.loc[mine["as_good"] & ~mine["picked"], "strategy"].tolist()
        rows.append((name, one["strategy"], one["value_s"], one["low_s"], one["high_s"], worst, one["zone_s"],
                     certain, bool(mine.loc[mine["allowed"], "as_good"].all()), "; ".join(good)))  # fmt: skip
    columns = ["objective", "take", "value_s", "low_s", "high_s", "regret_at_most_s", "zone_s", "certain",
               "any_is_as_good", "as_good"]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def _table(picked: Picked, checked: Floats, bounds: Floats) -> pd.DataFrame:
    """One row a strategy: what it costs in every respect."""
    strategies, allowed = picked.strategies, picked.allowed
    means = pd.DataFrame(checked.mean(axis=0), columns=[f"{name}_s" for name in OBJECTIVES])
    frame = pd.DataFrame(
        {"strategy": [one.name for one in strategies], "as_it_is": [one.as_it_is for one in strategies],
         "allowed": np.isin(range(len(strategies)), allowed), "stall_bound_s": bounds}
    )  # fmt: skip
    frame = pd.concat([frame, means], axis=1)
    traded = frame[[f"{name}_s" for name in FRONT]].to_numpy(dtype=float)
    frame["on_front"] = pareto_front(traded)
    places = np.array(allowed)[pareto_front(traded[allowed])]
    frame["knee"] = np.arange(len(frame)) == places[knee(traded[places])]
    return frame


def _budgets(table: pd.DataFrame) -> pd.DataFrame:
    """What keeping the longest stall short costs."""
    least = float(table.loc[table["allowed"], "cost_s"].min())
    rows = []
    for budget in BUDGETS:
        within = table[(table["stall_bound_s"] <= budget) & table["allowed"]].sort_values("cost_s", kind="stable")
        found = within[["strategy", "stall_bound_s", "cost_s"]].itertuples(index=False, name=None)
        name, bound, cost = next(found, ("", math.nan, math.nan))
        rows.append((budget, name, bound, cost, cost / least - 1))
    return pd.DataFrame(rows, columns=["stall_budget_s", "take", "stall_bound_s", "cost_s", "share_more"])


def _information(trials: Trials, checked: Floats, picked: Picked) -> pd.DataFrame:
    """For each objective the costs that it would save most to know, by taking another strategy that is allowed."""
    logs, allowed, terms = trials.logs(CHECK, range(len(checked))), picked.allowed, picked.terms
    parts = []
    for o, (what, best) in enumerate(zip(OBJECTIVES.values(), picked.best, strict=True)):
        values = checked[:, allowed, o]
        if not np.ptp(values, axis=1).any() or not logs:
            continue
        found = value_of_information(logs, values, allowed.index(best), terms.seed)
        names = [trials.strategies[allowed[i]].name if i >= 0 else "" for i in found["switches_to"]]
        width = terms.width(checked[:, best, o], what)
        matters = found["matters"] & (found["saving"] > width / 2)
        parts.append(found.assign(objective=what.name, zone_s=width, matters=matters, switches_to=names))
    columns = ["objective", "cost", "saving", "zone_s", "matters", "switches_to"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def _flags(scenario: Scenario, wider: Scenario, costs: UncertainCosts) -> list[str]:
    """What a reader should know before believing the choice."""
    flags = []
    if wider != scenario:
        own, qemu = (format_size(one.workload.clear_chunk or 0) for one in (scenario, wider))
        flags.append(
            f"bounds of the longest stall are those of CLEARs of {qemu}, which QEMU makes unless told otherwise, where "
            f"they are larger than those of this scenario's {own}; all else is of {own}"
        )
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
    return flags
