# SPDX-License-Identifier: BSD-3-Clause
"""Simulate the plans for a guest's migration, from the least severe on, and choose one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import pandas as pd

from simlib._lib import parallel
from simlib.vmm.guest import GuestSample, RunningGuest
from simlib.vmm.plans import (
    LONGER_DOWNTIMES,
    SURE,
    SURE_BELOW_CEILING,
    Plan,
    PlanOutcome,
    Severity,
    cost_of,
    impact,
    is_sure,
    plans,
    simulate_plan,
    table_of,
)
from simlib.vmm.precopy import PrecopyStart
from simlib.vmm.targets import Targets

_FEW, _HOPELESS = 16, 0.65
"""Number of samples that are simulated first, and share of them that meets the targets at most if the others are not
simulated."""


class SimulatedPlans(NamedTuple):
    """Plans with their outcomes, from the least severe on.

    - `plans`, `outcomes`, `frame`: the plans, their outcomes by name, and a table with one row per plan.
    - `recommended`: the least severe plan that meets the targets, or the one that comes nearest.
    - `meets_targets`: True if it meets them.
    """

    plans: tuple[Plan, ...]
    outcomes: dict[str, list[PlanOutcome]]
    frame: pd.DataFrame
    recommended: Plan
    meets_targets: bool


class _Simulated(NamedTuple):
    """A plan with its outcomes; `number`: its position among the plans, `row`: its row of the table."""

    number: int
    plan: Plan
    outcomes: list[PlanOutcome]
    row: dict[str, Any]

    @property
    def rank(self) -> tuple[int, Severity, int]:
        """Sort key by severity."""
        severity = Severity.KEEP if self.plan.name == "current" else impact(self.plan, self.row)
        return self.plan.order, severity, self.number


def simulate_plans(
    guest: RunningGuest, targets: Targets, samples: Sequence[GuestSample], starts: Sequence[PrecopyStart],
    emit: str = "", progress: parallel.Progress | None = None,
) -> SimulatedPlans:  # fmt: skip
    """Simulate the plans, except those that are more severe than a plan that already meets the targets.

    - `samples`: sampled guests. `starts`: present states of a running migration, one per sample.
    - `emit`: output format; what its tool cannot set is not tried.
    - `progress`: called with (stage, share done).
    """
    simulated, candidates = list[_Simulated](), list(plans(guest, targets, emit))
    best: _Simulated | None = None
    for number, plan in _in_order(candidates):
        if (best is not None and _is_dominated((number, plan), best, simulated)) or _is_hopeless(plan, simulated):
            continue
        if progress is not None:
            progress(f"migrating: {plan.name}", number / len(candidates))
        outcomes = _outcomes(plan, guest, targets, samples, starts)
        row: dict[str, Any] = dict(table_of({plan.name: outcomes}, targets).iloc[0])
        row |= {"cost": cost_of(plan, row, guest.settings), "running": plan.running, "restart": plan.restart}
        result = _Simulated(number, plan, outcomes, row)
        simulated.append(result)
        if is_sure(plan, row) and (best is None or result.rank < best.rank):
            best = result
    simulated.sort(key=lambda result: result.rank)
    chosen = best or max(simulated, key=lambda result: (not result.plan.suspends, *_nearness(result.row)))
    return SimulatedPlans(
        tuple(result.plan for result in simulated), {result.plan.name: result.outcomes for result in simulated},
        pd.DataFrame([result.row for result in simulated]), chosen.plan, best is not None,
    )  # fmt: skip


def _outcomes(
    plan: Plan, guest: RunningGuest, targets: Targets, samples: Sequence[GuestSample], starts: Sequence[PrecopyStart]
) -> list[PlanOutcome]:
    """Simulate a plan, for a part of the samples if most of these miss the targets; the current settings for all."""

    def simulated(begin: int, end: int) -> list[PlanOutcome]:
        cuts = [begin + (end - begin) * part // parts for part in range(parts + 1)]
        tasks = [partial(_part, plan, guest, targets, samples[a:b], starts[a:b]) for a, b in pairwise(cuts)]
        return [outcome for outcomes in parallel.run_all(tasks) for outcome in outcomes]

    parts = parallel.concurrency()
    first = simulated(0, min(_FEW, len(samples)))
    met = sum(outcome.meets(targets)["all"] for outcome in first)
    if plan.name != "current" and met <= _HOPELESS * len(first):
        return first
    return [*first, *simulated(len(first), len(samples))]


def _part(
    plan: Plan, guest: RunningGuest, targets: Targets, samples: Sequence[GuestSample], starts: Sequence[PrecopyStart],
    check: parallel.Check,
) -> list[PlanOutcome]:  # fmt: skip
    return simulate_plan(plan, guest, targets, samples, starts)


def _in_order(candidates: Sequence[Plan]) -> list[tuple[int, Plan]]:
    """Return the plans, numbered, in the order of simulation: by severity, and the highest ceiling of each early."""
    highest: dict[Severity, int] = {}
    for plan in candidates:
        highest[plan.severity] = max(plan.ceiling, highest.get(plan.severity, 0))

    def key(item: tuple[int, Plan]) -> tuple[int, Severity, bool]:
        plan = item[1]
        return plan.order, plan.severity, 0 < plan.ceiling < highest[plan.severity]

    return sorted(enumerate(candidates), key=key)


def _is_hopeless(plan: Plan, simulated: Sequence[_Simulated]) -> bool:
    """True if the migration does not surely converge with this ceiling, or a higher one."""
    return plan.ceiling > 0 and any(
        done.plan.ceiling >= plan.ceiling and done.row["converges"] < SURE_BELOW_CEILING for done in simulated
    )


def _is_dominated(numbered: tuple[int, Plan], best: _Simulated, simulated: Sequence[_Simulated]) -> bool:
    """True if a plan cannot be less severe than the best one, and is no alternative to it that is worth showing."""
    (number, plan), severity = numbered, impact(best.plan, best.row)
    if plan.suspends:  # an alternative to a new migration
        return not best.plan.restart
    if plan.restart or severity <= Severity.ADJUST:
        return True
    if plan.severity in LONGER_DOWNTIMES:  # alternatives to throttling: up to the shortest that converges
        return any(done.plan.severity in LONGER_DOWNTIMES and done.row["converges"] >= SURE for done in simulated)
    return plan.severity is not Severity.POSTCOPY and (severity, best.number) <= (plan.severity, number)


def _nearness(row: Any) -> tuple[float, float, float]:
    """Sort key of plans that miss a target: shares of runs that meet all targets, converge, meet each (summed)."""
    shares = [float(value) for name, value in row.items() if str(name).startswith("meets_") and name != "meets_all"]
    return float(row["meets_all"]), float(row["converges"]), sum(shares)
