# SPDX-License-Identifier: BSD-3-Clause
"""Ways to migrate a guest, from the least drastic on, and what each comes to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from simlib.model.quantities import PS_PER_S
from simlib.simulator.engine.throttle import sleeps
from simlib.vmm import rules
from simlib.vmm.guest import SWITCH_MOST_S, MigratingGuest, Targets
from simlib.vmm.memory import LinkModel, WorkingSet
from simlib.vmm.postcopy import postcopy
from simlib.vmm.precopy import LEFT, TIME, PrecopyTrajectory, precopy_trajectory
from simlib.vmm.settings import QEMU, VMMS, Settings

SURE = 0.9
"""Share of the guests that may have been measured with which a plan must keep to the wishes."""

LIMIT_S = 3600.0
"""A migration that is not over by then does not converge, s, unless more time is wished for."""

CEILINGS = (20, 30, 40, 50, 60, 70, 80, 90, 99)
"""Values of max-cpu-throttle that are tried."""

_QUOTAS = (200, 100, 50, 30)
"""Values of vcpu-dirty-limit that are tried, MiB/s."""

_LIFT, _SWITCH = "lift the limit of bandwidth", "switch to postcopy after the first pass"

_SHOWN = ("total_s", "downtime_s", "passes", "throttle", "guest_share", "sleep_s", "fault_s", "sent_bytes")
"""Columns of an outcome of which a table has medians and intervals."""


@dataclass(frozen=True)
class Plan:
    """A way to migrate.

    - `name`: what a table calls it.
    - `does`: what is done, in words.
    """

    name: str
    actions: str
    settings: Settings
    postcopy: bool = False


class PlanOutcome(NamedTuple):
    """What one migration comes to; times in seconds.

    `throttle`: highest, percent; `guest_share`: of the guest's work that it still does; `sleep_s`: longest wait that
    throttling makes, `fault_s`: that a fault makes after postcopy; `slow_s`: time after postcopy at less than half the
    speed.
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
    """What is dirty after the last pass, and how long it takes to send."""

    def meets(self, wishes: Targets) -> dict[str, bool]:
        """Which wishes it keeps to."""
        stall = max(self.sleep_s, self.fault_s)
        kept = {
            "converges": self.completed,
            "downtime": wishes.downtime_s is None or (self.completed and self.downtime_s <= wishes.downtime_s),
            "within": wishes.within_s is None or (self.completed and self.total_s <= wishes.within_s),
            "guest keeps": wishes.guest_keeps is None or self.guest_share >= wishes.guest_keeps,
            "stall": wishes.max_stall_s is None or stall <= wishes.max_stall_s,
        }
        return kept | {"all": all(kept.values())}


def plans(guest: MigratingGuest, wishes: Targets, settable: frozenset[str] | None = None) -> Iterator[Plan]:
    """What may be set, from the least drastic on; the first is what stands.

    - `settable`: settings that can be changed, by QEMU's names; None: all.
    """
    for plan in _all_plans(guest, wishes):
        if settable is None or plan.settings.beside(guest.settings).keys() <= settable:
            yield plan


def _all_plans(guest: MigratingGuest, wishes: Targets) -> Iterator[Plan]:
    own = guest.settings
    yield Plan("as it is", "leave the settings as they are", own)
    base, does = own, []
    if wishes.downtime_s is not None:
        # QEMU compares what is left with the bandwidth times this; what devices take comes on top.
        limit = max(1, round(1000 * max(0.3 * wishes.downtime_s, wishes.downtime_s - SWITCH_MOST_S)))
        if limit != own.downtime_limit:
            base, does = base.changed(downtime_limit=limit), [f"let it stand for {limit} ms"]
    lifted = 0 < own.max_bandwidth * 8 < guest.link
    if lifted:
        base, does = base.changed(max_bandwidth=0), [*does, _LIFT]
    if not own.multifd and guest.link > 8e9:
        channels = min(8, 1 + round(guest.link / 8e9))
        base = base.changed(multifd=True, multifd_channels=channels)
        does = [*does, f"send over {channels} channels"]
    throttled_by_itself = own.auto_converge or VMMS[guest.vmm].whole_passes
    if not throttled_by_itself:
        yield Plan("auto-converge", "turn auto-converge on, and nothing else", own.changed(auto_converge=True))
    if does:
        yield Plan("same throttle" if throttled_by_itself else "no throttle", ", ".join(does), base)
    if VMMS[guest.vmm].whole_passes:  # it throttles by itself, and has no postcopy
        return
    yield from _slowed(guest, wishes, base, does)
    after = own.changed(postcopy_ram=True, multifd=False)  # QEMU 10.0 does not do both
    yield Plan("postcopy", f"{_SWITCH}, and nothing else", after, postcopy=True)
    if lifted:
        fast = after.changed(max_bandwidth=0)
        yield Plan("unlimited postcopy", f"{_LIFT}, {_SWITCH}", fast, postcopy=True)


def _slowed(guest: MigratingGuest, wishes: Targets, base: Settings, does: list[str]) -> Iterator[Plan]:
    """Plans that slow the guest down; `does`: what else `base` changes."""
    slice_ps = QEMU.throttle.slice
    for most in CEILINGS:
        if wishes.max_stall_s is not None and sleeps(slice_ps, 0, most) > wishes.max_stall_s * PS_PER_S:
            continue
        throttled = base.changed(
            auto_converge=True, max_cpu_throttle=most, cpu_throttle_initial=min(most, base.cpu_throttle_initial)
        )
        yield Plan(f"throttle <= {most} %", ", ".join([*does, f"throttle vCPUs by up to {most} %"]), throttled)
        if most > 50:
            fast = throttled.changed(cpu_throttle_initial=50, cpu_throttle_increment=20)
            words = ", ".join([*does, f"throttle vCPUs by 50 % at once, and up to {most} %"])
            yield Plan(f"fast throttle <= {most} %", words, fast)
    if guest.ring_entries:
        for quota in _QUOTAS:
            words = ", ".join([*does, f"let each vCPU dirty {quota} MiB/s"])
            yield Plan(f"limit {quota} MiB/s", words, base.changed(dirty_limit=True, vcpu_dirty_limit=quota))


def precopy(
    plan: Plan, guest: MigratingGuest, wishes: Targets, pages: WorkingSet, line: LinkModel
) -> PrecopyTrajectory:
    """The course of a plan, up to the switch to postcopy if it has one: when the first pass is over."""
    settings, vmm, limit = plan.settings, VMMS[guest.vmm], max(LIMIT_S, 2 * (wishes.within_s or 0.0))
    whole = precopy_trajectory(pages, line, settings, limit, vmm)
    if not plan.postcopy or (whole.completed and whole.synchronisations <= 3):  # over before it could switch
        return whole
    first = whole.passes[1][TIME] if len(whole.passes) > 1 else whole.total_s
    return precopy_trajectory(pages, line, settings, first, vmm)


def simulate_plan(plan: Plan, guest: MigratingGuest, wishes: Targets, seeds: range) -> list[PlanOutcome]:
    """Migrate each of the guests that may have been measured."""
    own = replace(guest, settings=plan.settings)
    return [_simulate(plan, own, wishes, np.random.default_rng([17, seed])) for seed in seeds]


def _simulate(plan: Plan, guest: MigratingGuest, wishes: Targets, random: np.random.Generator) -> PlanOutcome:
    pages, line, wait_s = guest.drawn(random)
    found = precopy(plan, guest, wishes, pages, line)
    if found.completed or not plan.postcopy:
        left = float(found.passes[-1][LEFT])
        share = found.guest_s / max(found.total_s - found.downtime_s, 1e-9)
        return PlanOutcome(
            found.completed, found.total_s, found.downtime_s, found.synchronisations, float(found.throttle),
            min(1.0, share), found.sleep_s, 0.0, 0.0, found.sent_bytes, left * rules.PAGE, left * line.page_s,
        )  # fmt: skip
    bandwidth = float(plan.settings.max_postcopy_bandwidth)
    after = postcopy(pages, found.missing, float(guest.vcpus), line, bandwidth, wait_s)
    total = found.total_s + line.switch_s + after.total_s
    share = (found.guest_s + after.total_s - after.lost_s) / total
    return PlanOutcome(
        True, total, line.switch_s, 2, 0.0, min(1.0, share), 0.0, wait_s + line.page_s, after.slow_s,
        found.sent_bytes + after.sent_bytes, 0.0, 0.0,
    )  # fmt: skip


def table_of(plan_outcomes: dict[str, list[PlanOutcome]], wishes: Targets) -> pd.DataFrame:
    """One row a plan: medians and 90 % intervals, and the share of guests with which each wish is kept."""
    rows = []
    for name, outcomes in plan_outcomes.items():
        frame = pd.DataFrame(outcomes)
        row: dict[str, object] = {"plan": name, "converges": float(frame["completed"].mean())}
        done = frame[frame["completed"]]
        for column in _SHOWN:
            of = done if len(done) else frame
            low, middle, high = np.quantile(of[column].astype(float), [0.05, 0.5, 0.95])
            row |= {column: middle, f"{column}_low": low, f"{column}_high": high}
        kept = pd.DataFrame([one.meets(wishes) for one in outcomes]).mean()
        rows.append(row | {f"keeps_{str(wish).replace(' ', '_')}": float(share) for wish, share in kept.items()})
    return pd.DataFrame(rows)
