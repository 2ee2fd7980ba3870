# SPDX-License-Identifier: BSD-3-Clause
"""Plans to migrate a guest, the least drastic first, and the simulated outcome of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from simlib.model.quantities import PS_PER_S
from simlib.simulator.engine.throttle import sleep_time
from simlib.vmm import qemu_rules
from simlib.vmm.guest import SWITCH_MOST_S, GuestSample, RunningGuest
from simlib.vmm.memory import LinkModel, WorkingSet
from simlib.vmm.postcopy import postcopy
from simlib.vmm.precopy import LEFT, TIME, PrecopyTrajectory, precopy_trajectory
from simlib.vmm.settings import QEMU, VMMS, Settings
from simlib.vmm.targets import Targets

SURE = 0.9
"""Share of the sampled guests for which a plan must meet the targets."""

SURE_BELOW_CEILING = 0.95
"""Share of the sampled guests whose migration must converge with a plan that limits the throttle. With a ceiling that
is too low, a migration never ends, and without one it would."""

LIMIT_S = 3600.0
"""Time after which a migration counts as not converging, s, unless twice the deadline is later."""

CEILINGS = (20, 30, 40, 50, 60, 70, 80, 90, 99)
"""Values of max-cpu-throttle that are tried."""

_QUOTAS = (200, 100, 50, 30)
"""Values of vcpu-dirty-limit that are tried, MiB/s."""

_LIFT, _SWITCH = "lift max-bandwidth", "switch to post-copy after the first pass"

_INTERVALS = (
    "total_s", "downtime_s", "passes", "throttle", "guest_share", "sleep_s", "fault_s", "slow_s", "sent_bytes",
)  # fmt: skip
"""Columns of an outcome whose medians and intervals a table lists."""


@dataclass(frozen=True)
class Plan:
    """Settings for a migration.

    - `name`: short name, for tables.
    - `actions`: imperative sentence.
    - `postcopy`: True if the migration switches to post-copy after the first pass.
    """

    name: str
    actions: str
    settings: Settings
    postcopy: bool = False


class PlanOutcome(NamedTuple):
    """Outcome of one simulated migration; times in seconds.

    - `throttle`: highest throttle, percent.
    - `guest_share`: mean throughput of the guest, as a share of its undisturbed throughput.
    - `sleep_s`: longest sleep that throttling causes. `fault_s`: wait of a fault after the switch to post-copy.
    - `slow_s`: time during which the guest does less than half of its work.
    - `left_bytes`, `left_s`: memory that is dirty after the last pass, and the time to send it.
    """

    completed: bool
    total_s: float
    downtime_s: float
    passes: int
    throttle: float
    guest_share: float
    sleep_s: float
    fault_s: float
    slow_s: float
    sent_bytes: float
    left_bytes: float
    left_s: float

    def meets(self, targets: Targets) -> dict[str, bool]:
        """Return whether each target is met, and whether all are met."""
        stall = max(self.sleep_s, self.fault_s)
        met = {
            "downtime": targets.downtime_s is None or (self.completed and self.downtime_s <= targets.downtime_s),
            "deadline": targets.deadline_s is None or (self.completed and self.total_s <= targets.deadline_s),
            "min_guest_speed": targets.min_guest_speed is None or self.guest_share >= targets.min_guest_speed,
            "max_stall": targets.max_stall_s is None or stall <= targets.max_stall_s,
        }
        return met | {"all": self.completed and all(met.values())}


def is_sure(plan: Plan, row: Any) -> bool:
    """Return True if enough of the sampled guests meet the targets with a plan; `row`: its row of `table_of`."""
    limited = plan.settings.auto_converge and plan.settings.max_cpu_throttle < CEILINGS[-1]
    return bool(row["meets_all"] >= SURE and (not limited or row["converges"] >= SURE_BELOW_CEILING))


def plans(guest: RunningGuest, targets: Targets, settable: frozenset[str] | None = None) -> Iterator[Plan]:
    """Generate the plans, the least drastic first; the first plan keeps the current settings.

    - `settable`: settings that can be changed, by QEMU's names; None: all.
    """
    for plan in _all_plans(guest, targets):
        if settable is None or plan.settings.changes_from(guest.settings).keys() <= settable:
            yield plan


def _all_plans(guest: RunningGuest, targets: Targets) -> Iterator[Plan]:
    current = guest.settings
    yield Plan("current", "keep the current settings", current)
    base, actions = current, []
    if targets.downtime_s is not None:
        # QEMU compares the time to send the dirty memory with downtime-limit; the time for the devices is added to it.
        limit = max(1, round(1000 * max(0.3 * targets.downtime_s, targets.downtime_s - SWITCH_MOST_S)))
        if limit != current.downtime_limit:
            base, actions = base.changed(downtime_limit=limit), [f"set downtime-limit to {limit} ms"]
    lifted = 0 < current.max_bandwidth * 8 < guest.link
    if lifted:
        base, actions = base.changed(max_bandwidth=0), [*actions, _LIFT]
    if not current.multifd and guest.link > 8e9:
        channels = min(8, 1 + round(guest.link / 8e9))
        base = base.changed(multifd=True, multifd_channels=channels)
        actions = [*actions, f"use {channels} multifd channels"]
    throttles_by_default = current.auto_converge or current.dirty_limit or VMMS[guest.vmm].whole_passes
    if not throttles_by_default:
        throttled = current.changed(auto_converge=True)
        yield Plan("auto-converge", "turn auto-converge on, and change nothing else", throttled)
    if actions:
        yield Plan("same throttle" if throttles_by_default else "no throttle", ", ".join(actions), base)
    if VMMS[guest.vmm].whole_passes:  # this VMM throttles by its own rule, and has no post-copy
        return
    yield from _throttled_plans(guest, targets, base, actions)
    after = current.changed(postcopy_ram=True, multifd=False)  # QEMU 10.0 does not support both
    yield Plan("postcopy", f"{_SWITCH}, and change nothing else", after, postcopy=True)
    if lifted:
        yield Plan("unlimited postcopy", f"{_LIFT}, {_SWITCH}", after.changed(max_bandwidth=0), postcopy=True)


def _throttled_plans(guest: RunningGuest, targets: Targets, base: Settings, actions: list[str]) -> Iterator[Plan]:
    """Generate plans that slow the guest down; `actions` describes the changes already made in `base`.

    The dirty rate ranks these plans; no throttle is computed from it. QEMU refuses dirty-limit with auto-converge.
    """
    longest = np.inf if targets.max_stall_s is None else targets.max_stall_s * PS_PER_S
    for ceiling in CEILINGS:
        if sleep_time(QEMU.throttle.slice, 0, ceiling) > longest:
            continue
        initial = min(ceiling, base.cpu_throttle_initial)
        throttled = base.changed(
            auto_converge=True, dirty_limit=False, max_cpu_throttle=ceiling, cpu_throttle_initial=initial
        )
        action = f"throttle vCPUs by up to {ceiling} %"
        yield Plan(f"throttle <= {ceiling} %", ", ".join([*actions, action]), throttled)
        if ceiling > 50:
            fast = throttled.changed(cpu_throttle_initial=50, cpu_throttle_increment=20)
            action = f"throttle vCPUs by 50 % at first, and up to {ceiling} %"
            yield Plan(f"fast throttle <= {ceiling} %", ", ".join([*actions, action]), fast)
    if guest.ring_entries:
        for quota in _QUOTAS:
            action = f"limit each vCPU's dirty rate to {quota} MiB/s"
            limited = base.changed(dirty_limit=True, auto_converge=False, vcpu_dirty_limit=quota)
            yield Plan(f"limit {quota} MiB/s", ", ".join([*actions, action]), limited)


def precopy_of(
    plan: Plan, guest: RunningGuest, targets: Targets, pages: WorkingSet, link: LinkModel
) -> PrecopyTrajectory:
    """Simulate the pre-copy phase of a plan, up to its switch to post-copy if it has one."""
    settings, vmm, limit = plan.settings, VMMS[guest.vmm], max(LIMIT_S, 2 * (targets.deadline_s or 0.0))
    trajectory = precopy_trajectory(pages, link, settings, limit, vmm)
    if not plan.postcopy or (trajectory.completed and trajectory.synchronisations <= 3):  # over before the switch
        return trajectory
    first = trajectory.passes[1][TIME] if len(trajectory.passes) > 1 else trajectory.total_s
    return precopy_trajectory(pages, link, settings, first, vmm)


def simulate_plan(
    plan: Plan, guest: RunningGuest, targets: Targets, samples: Sequence[GuestSample]
) -> list[PlanOutcome]:
    """Simulate the migration of each sampled guest."""
    return [_simulate(plan, guest, targets, sample) for sample in samples]


def _simulate(plan: Plan, guest: RunningGuest, targets: Targets, sample: GuestSample) -> PlanOutcome:
    pages, link, wait_s = sample.pages, guest.link_of(sample, plan.settings), sample.wait_s
    before = precopy_of(plan, guest, targets, pages, link)
    if before.completed or not plan.postcopy:
        left = float(before.passes[-1][LEFT])
        share = before.guest_s / max(before.demand_s, 1e-9)
        return PlanOutcome(
            before.completed, before.total_s, before.downtime_s, before.synchronisations, float(before.throttle),
            min(1.0, share), before.sleep_s, 0.0, before.slow_s, before.sent_bytes, left * qemu_rules.PAGE,
            left * link.page_s,
        )  # fmt: skip
    bandwidth = float(plan.settings.max_postcopy_bandwidth)
    after = postcopy(pages, before.missing, float(guest.vcpus), link, bandwidth, wait_s)
    total = before.total_s + link.switch_s + after.total_s
    share = (before.guest_s + after.total_s - after.lost_s) / (before.demand_s + link.switch_s + after.total_s)
    return PlanOutcome(
        True, total, link.switch_s, 2, 0.0, min(1.0, share), 0.0, wait_s + link.page_s, after.slow_s,
        before.sent_bytes + after.sent_bytes, 0.0, 0.0,
    )  # fmt: skip


def table_of(plan_outcomes: dict[str, list[PlanOutcome]], targets: Targets) -> pd.DataFrame:
    """Tabulate outcomes: one row per plan, with medians, 90 % intervals, and the share that meets each target."""
    rows = []
    for name, outcomes in plan_outcomes.items():
        frame = pd.DataFrame(outcomes)
        row: dict[str, object] = {"plan": name, "converges": float(frame["completed"].mean())}
        completed = frame[frame["completed"]]
        for column in _INTERVALS:
            values = (completed if len(completed) else frame)[column].astype(float)
            low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
            row |= {column: middle, f"{column}_low": low, f"{column}_high": high}
        met = pd.DataFrame([outcome.meets(targets) for outcome in outcomes]).mean()
        rows.append(row | {f"meets_{target}": float(share) for target, share in met.items()})
    return pd.DataFrame(rows)
