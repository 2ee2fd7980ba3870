# SPDX-License-Identifier: BSD-3-Clause
"""Plans to migrate a guest, the least drastic first, and the simulated outcome of each.

A plan for a migration that is running changes only what QEMU changes then (`simlib.vmm.tools`), or starts it again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from simlib.model.quantities import PS_PER_S, format_bandwidth, seconds_text
from simlib.simulator.engine.throttle import sleep_time
from simlib.vmm import qemu_rules
from simlib.vmm.guest import STREAM_BITS, SWITCH_MOST_S, GuestSample, RunningGuest
from simlib.vmm.memory import LinkModel
from simlib.vmm.postcopy import postcopy
from simlib.vmm.precopy import BEGINNING, LEFT, TIME, PrecopyStart, PrecopyTrajectory, precopy_trajectory
from simlib.vmm.running import page_time_s, running_migration
from simlib.vmm.settings import QEMU, VMMS, Settings
from simlib.vmm.targets import Targets
from simlib.vmm.tools import ANY_TOOL, TOOLS, Tool

SURE = 0.9
"""Share of the sampled guests for which a plan must meet the targets."""

SURE_BELOW_CEILING = 0.95
"""Share of the sampled guests whose migration must converge with a plan that limits the throttle. With a ceiling that
is too low, a migration never ends, and without one it would."""

LIMIT_S = 3600.0
"""Time after which a migration counts as not converging, s, unless twice the deadline is later."""

CEILINGS = (20, 30, 40, 50, 60, 70, 80, 90, 99)
"""Values of max-cpu-throttle that are tried."""

DOWNTIMES_MS = (500, 1000, 2000, 5000)
"""Values of downtime-limit that are tried if no target bounds the downtime, ms."""

_SHORT_DOWNTIME_MS = 1000
"""Longest downtime limit that ranks before strong throttling and post-copy, ms."""

_QUOTAS = (200, 100, 50, 30)
"""Values of vcpu-dirty-limit that are tried, MiB/s."""

_STREAM_BITS = math.sqrt(math.prod(STREAM_BITS))
"""Throughput that is expected of one migration stream, bit/s: the median of its prior."""

_SWITCHOVER_SHARE = 0.65
"""Share of the link that avail-switchover-bandwidth promises: nine of ten links reach it (`simlib.vmm.guest`)."""

_SHORT_SLEEP_S, _LONG_SLEEP_S = 0.0125, 0.5
"""Longest sleep of a mildly throttled vCPU (50 %: 10 ms), and shortest sleep of about a second (99 %: 990 ms), s."""

_LATE = 1.1
"""Factor of its expected time within which a first pass ends."""

_LIFT = "lift max-bandwidth"

_INTERVALS = (
    "total_s", "downtime_s", "last_pass_s", "devices_s", "passes", "throttle", "guest_share", "sleep_s", "fault_s",
    "slow_s", "sent_bytes",
)  # fmt: skip
"""Columns of an outcome whose medians and intervals a table lists."""


class Severity(IntEnum):
    """Effect of a plan on the guest, as an operator ranks it."""

    KEEP = 0
    ADJUST = 1  # a downtime within the target, more bandwidth, more channels
    THROTTLE = 2  # sleeps of at most 10 ms
    DOWNTIME = 3  # a longer downtime than now, of at most a second, without a target
    STRONG_THROTTLE = 4  # sleeps of less than half a second
    POSTCOPY = 5
    LONG_DOWNTIME = 6
    LONG_SLEEPS = 7  # sleeps of about a second
    SUSPENSION = 8  # the guest stops until all of its memory has been sent


LONGER_DOWNTIMES = (Severity.DOWNTIME, Severity.LONG_DOWNTIME)
"""Severities of plans with a longer downtime than now."""


@dataclass(frozen=True)
class Plan:
    """Settings for a migration.

    - `name`: short name, for tables.
    - `actions`: imperative sentence.
    - `postcopy`: True if the migration switches to post-copy. `switch_s`: time at which it does, s; None: after the
      first pass.
    - `severity`: least severity that the plan can have.
    - `ceiling`: highest throttle of plans that differ in it, percent; 0: another plan.
    - `running`: True if the settings are changed while the migration runs. `restart`: True if a running migration is
      cancelled, and started again.
    """

    name: str
    actions: str
    settings: Settings
    postcopy: bool = False
    switch_s: float | None = None
    severity: Severity = Severity.KEEP
    ceiling: int = 0
    running: bool = False
    restart: bool = False

    @property
    def suspends(self) -> bool:
        """True if the guest is suspended until a running migration ends."""
        return self.severity is Severity.SUSPENSION

    @property
    def order(self) -> int:
        """Sort key before the severity: a new migration is better than a guest that stops, but worse than others."""
        return 2 if self.suspends else int(self.restart)


class PlanOutcome(NamedTuple):
    """Outcome of one simulated migration; times in seconds.

    - `throttle`: highest throttle, percent.
    - `guest_share`: mean throughput of the guest, as a share of its undisturbed throughput.
    - `sleep_s`: longest sleep that throttling causes. `fault_s`: wait of a fault after the switch to post-copy.
    - `slow_s`: time during which the guest does less than half of its work.
    - `left_bytes`, `left_s`: memory that is dirty after the last pass, and the time to send it at the speed by which
      QEMU judges (`judged_bytes_per_s`).
    - `last_pass_s`, `devices_s`: parts of the downtime: sending the last pages; stopping the devices, saving their
      state, and starting the guest on the destination.
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
    last_pass_s: float = 0.0
    devices_s: float = 0.0

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


def impact(plan: Plan, row: Any) -> Severity:
    """Severity of a plan with its simulated outcome; `row`: its row of `table_of`."""
    return max(plan.severity, _severity_of_sleep(float(row["sleep_s_high"])))


def _severity_of_sleep(seconds: float) -> Severity:
    if seconds <= 0:
        return Severity.KEEP
    if seconds <= _SHORT_SLEEP_S:
        return Severity.THROTTLE
    return Severity.STRONG_THROTTLE if seconds < _LONG_SLEEP_S else Severity.LONG_SLEEPS


def cost_of(plan: Plan, row: Any, current: Settings) -> str:
    """Return what a plan costs, as a clause.

    - `row`: the plan's row of `table_of`. `current`: present settings.
    """
    changes = plan.settings.changes_from(current)
    limit_ms = plan.settings.downtime_limit
    lower = limit_ms < current.downtime_limit
    clauses = (
        (plan.suspends, "the guest stops until all memory has been sent"),
        (plan.postcopy, "if the network fails, the guest stops until it is recovered"),
        (row["sleep_s_high"] > 0, f"vCPUs sleep {seconds_text(row['sleep_s_high'], 2)} at a time"),
        ("downtime-limit" in changes and not lower, f"the guest stops for {seconds_text(limit_ms / 1e3)}"),
        ("avail-switchover-bandwidth" in changes, "the last pass exceeds max-bandwidth"),
        ("max-bandwidth" in changes, "other traffic has less of the link"),
        ("multifd-channels" in changes or "multifd" in changes, "more threads and connections on both hosts"),
        (lower, "a shorter downtime needs more passes"),
    )
    clause = next((text for applies, text in clauses if applies), "")
    return "; ".join(filter(None, ["all memory is sent again" if plan.restart else "", clause]))


def tool_of(emit: str) -> Tool:
    """Return the tool of an output format; QEMU's own monitor for a format that is not listed."""
    return TOOLS.get(emit, ANY_TOOL)


def plans(guest: RunningGuest, targets: Targets, emit: str = "") -> Iterator[Plan]:
    """Generate the plans by their least severity; the first plan keeps the current settings.

    Plans that start a running migration again, or suspend the guest, are last.

    - `emit`: output format; what its tool cannot set is not tried.
    """
    tool = tool_of(emit)
    if running_migration(guest) is None:
        yield from sorted(_new_plans(guest, targets, tool, tool.settable), key=_SEVERITY)
        return
    for plan in sorted(_new_plans(guest, targets, tool, tool.running), key=_SEVERITY):
        yield replace(plan, running=True)
    for plan in sorted(_new_plans(guest, targets, tool, tool.settable), key=_SEVERITY):
        tried = plan.severity in (Severity.ADJUST, Severity.POSTCOPY) or plan.name == "auto-converge"
        if tried and not plan.settings.changes_from(guest.settings).keys() <= tool.running:
            name, actions = f"restart: {plan.name}", f"start it again, and {plan.actions}"
            yield replace(plan, name=name, actions=actions, restart=True)
    if tool.suspends:
        text, severity = "suspend the guest until the migration ends", Severity.SUSPENSION
        yield Plan("suspend", text, guest.settings, severity=severity, running=True)


_SEVERITY = attrgetter("severity")


def _new_plans(guest: RunningGuest, targets: Targets, tool: Tool, settable: frozenset[str]) -> Iterator[Plan]:
    """Generate the plans that change only what is settable."""
    current = guest.settings
    yield Plan("current", "keep the current settings", current)
    steps = list(_relaxed(guest, targets, settable))
    throttles_by_default = current.auto_converge or current.dirty_limit or VMMS[guest.vmm].whole_passes
    for name, actions, settings in steps:
        yield Plan(name, ", ".join(actions), settings, severity=Severity.ADJUST)
    if not throttles_by_default and "auto-converge" in settable:
        throttled, action = current.changed(auto_converge=True), "turn auto-converge on, and change nothing else"
        yield Plan("auto-converge", action, throttled, severity=Severity.THROTTLE)
    _, actions, base = steps[-1] if steps else ("", [], current)
    yield from _settable_only(_throttled_plans(guest, targets, base, actions), current, settable)
    if targets.downtime_s is None and "downtime-limit" in settable:
        yield from _longer_downtimes(guest, settable)
    if not VMMS[guest.vmm].whole_passes and (current.postcopy_ram or "postcopy-ram" in settable):
        yield from _postcopy_plans(guest, tool, settable)


def _settable_only(tried: Iterator[Plan], current: Settings, settable: frozenset[str]) -> Iterator[Plan]:
    for plan in tried:
        changes = plan.settings.changes_from(current).keys()
        if changes and changes <= settable:
            yield plan


def _is_limited(guest: RunningGuest) -> bool:
    """True if max-bandwidth is below the link's bandwidth."""
    return 0 < guest.settings.max_bandwidth * 8 < guest.link


def _relaxed(
    guest: RunningGuest, targets: Targets, settable: frozenset[str]
) -> Iterator[tuple[str, list[str], Settings]]:
    """Generate settings that do not slow the guest down: name, actions, settings. Each includes those before it."""
    current = base = guest.settings
    actions, stream = list[str](), guest.channel or _STREAM_BITS
    if targets.downtime_s is not None and "downtime-limit" in settable:
        # QEMU compares the time to send the dirty memory with downtime-limit; the time for the devices is added to it.
        limit = max(1, round(1000 * max(0.3 * targets.downtime_s, targets.downtime_s - SWITCH_MOST_S)))
        if limit != current.downtime_limit:
            base, actions = base.changed(downtime_limit=limit), [f"set downtime-limit to {limit} ms"]
            yield "downtime", actions, base
    if _is_limited(guest):
        bits = min(guest.link, stream * base.streams)
        speed = int(_SWITCHOVER_SHARE * bits / 8 / 1e6) * 10**6
        if "avail-switchover-bandwidth" in settable and speed > max(base.max_bandwidth, 1):
            judged = f"set avail-switchover-bandwidth to {format_bandwidth(8 * speed)}"
            yield "switchover bandwidth", [*actions, judged], base.changed(avail_switchover_bandwidth=speed)
        if "max-bandwidth" in settable:
            base, actions = base.changed(max_bandwidth=0), [*actions, _LIFT]
            yield "more bandwidth", actions, base
    if not current.multifd and {"multifd", "multifd-channels"} <= settable and guest.link > stream:
        channels = min(8, 1 + round(guest.link / stream))
        actions = [*actions, f"use {channels} multifd channels"]
        yield "multifd", actions, base.changed(multifd=True, multifd_channels=channels)


def _throttled_plans(guest: RunningGuest, targets: Targets, base: Settings, actions: list[str]) -> Iterator[Plan]:
    """Generate plans that slow the guest down; `actions` describes the changes already made in `base`.

    The dirty rate ranks these plans; no throttle is computed from it. QEMU refuses dirty-limit with auto-converge.
    """
    if VMMS[guest.vmm].whole_passes:  # this VMM throttles by its own rule
        return
    longest = np.inf if targets.max_stall_s is None else targets.max_stall_s * PS_PER_S
    for ceiling in CEILINGS:
        sleep = sleep_time(QEMU.throttle.slice, 0, ceiling)
        if sleep > longest:
            continue
        initial = min(ceiling, base.cpu_throttle_initial)
        throttled = base.changed(
            auto_converge=True, dirty_limit=False, max_cpu_throttle=ceiling, cpu_throttle_initial=initial
        )
        severity, action = _severity_of_sleep(sleep / PS_PER_S), f"throttle vCPUs by up to {ceiling} %"
        name, text = f"throttle <= {ceiling} %", ", ".join([*actions, action])
        yield Plan(name, text, throttled, severity=severity, ceiling=ceiling)
        if ceiling > 50 and targets.deadline_s is not None:
            fast = throttled.changed(cpu_throttle_initial=50, cpu_throttle_increment=20)
            action = f"throttle vCPUs by 50 % at first, and up to {ceiling} %"
            name, text = f"fast throttle <= {ceiling} %", ", ".join([*actions, action])
            yield Plan(name, text, fast, severity=severity, ceiling=ceiling)
    if guest.ring_entries:
        for quota in _QUOTAS:
            action = f"limit each vCPU's dirty rate to {quota} MiB/s"
            limited = base.changed(dirty_limit=True, auto_converge=False, vcpu_dirty_limit=quota)
            yield Plan(f"limit {quota} MiB/s", ", ".join([*actions, action]), limited, severity=Severity.THROTTLE)


def _longer_downtimes(guest: RunningGuest, settable: frozenset[str]) -> Iterator[Plan]:
    """Generate plans with a longer downtime than now."""
    base, actions = guest.settings, list[str]()
    if _is_limited(guest) and "max-bandwidth" in settable:
        base, actions = base.changed(max_bandwidth=0), [_LIFT]
    for limit in DOWNTIMES_MS:
        if limit > guest.settings.downtime_limit:
            text = ", ".join([f"set downtime-limit to {limit} ms", *actions])
            settings = base.changed(downtime_limit=limit)
            severity = Severity.DOWNTIME if limit <= _SHORT_DOWNTIME_MS else Severity.LONG_DOWNTIME
            yield Plan(f"downtime {limit} ms", text, settings, severity=severity)


def _postcopy_plans(guest: RunningGuest, tool: Tool, settable: frozenset[str]) -> Iterator[Plan]:
    """Generate plans that switch to post-copy: by the tool's timeout, or by a command after the first pass."""
    current, state = guest.settings, running_migration(guest)
    live = state is not None and "postcopy-ram" not in settable
    if live and not (current.postcopy_ram and tool.running):
        return
    after = current.changed(postcopy_ram=True)
    if current.multifd:  # QEMU 10.0 does not support both
        after = after.changed(multifd=False)
    if tool.exclusive_postcopy and after.auto_converge:
        after = after.changed(auto_converge=False)
    if not after.changes_from(current).keys() <= settable:
        return
    variants = [("postcopy", "", after)]
    if _is_limited(guest) and "max-bandwidth" in settable:
        variants.append(("unlimited postcopy", f"{_LIFT}, ", after.changed(max_bandwidth=0)))
    for name, before, settings in variants:
        switch_s = None if live else tool.switch_s(guest, settings)
        moment = "after the first pass" if switch_s is None else f"after {seconds_text(switch_s)}"
        if live and state is not None and not state.in_first_pass:
            moment = "now"
        actions = f"{before}switch to post-copy {moment}" + ("" if before else ", and change nothing else")
        yield Plan(name, actions, settings, True, switch_s, Severity.POSTCOPY)


def judged_bytes_per_s(guest: RunningGuest, settings: Settings, link: LinkModel) -> float:
    """Bandwidth by which QEMU judges whether the dirty memory can be sent within the downtime limit, bytes/s.

    Source: QEMU 10.0, migration/migration.c migration_update_counters, migration_get_switchover_bw.
    """
    if settings.avail_switchover_bandwidth:
        return float(settings.avail_switchover_bandwidth)
    speed = qemu_rules.PAGE / link.page_s
    return min(speed, settings.max_bandwidth * link.limit_share) if settings.max_bandwidth else speed


def precopy_of(
    plan: Plan, guest: RunningGuest, targets: Targets, sample: GuestSample, start: PrecopyStart = BEGINNING
) -> PrecopyTrajectory:
    """Simulate the pre-copy phase of a plan, up to its switch to post-copy if it has one.

    - `start`: present state of a migration that is running; a plan that starts it again ignores it.
    """
    pages, link = sample.pages, guest.link_of(sample, plan.settings)
    settings, vmm, limit = plan.settings, sample.vmm, max(LIMIT_S, 2 * (targets.deadline_s or 0.0))
    if plan.restart or not plan.running:
        start = BEGINNING
    if plan.suspends:  # of no use to the throttle, which keeps its value
        pages, settings = pages._replace(cpu=np.inf), settings.changed(auto_converge=False, dirty_limit=False)
    if plan.postcopy and plan.switch_s is not None:
        return precopy_trajectory(pages, link, settings, plan.switch_s, vmm, start)
    if plan.postcopy and start.state is not None and start.state.position == 0:  # in a later pass: at once
        return precopy_trajectory(pages, link, settings, 0.0, vmm, start)
    if not plan.postcopy:
        return precopy_trajectory(pages, link, settings, limit, vmm, start)
    zeros = float((pages.number * pages.zero).sum())
    once_s = (float(pages.number.sum()) - zeros) * page_time_s(link, settings) + zeros * link.zero_s
    limit = min(limit, _LATE * once_s + 1.0)
    trajectory = precopy_trajectory(pages, link, settings, limit, vmm, start)
    passes = trajectory.synchronisations - start.synchronisations
    if len(trajectory.passes) < 2 or (trajectory.completed and passes <= 2):  # over before the switch
        return trajectory
    return precopy_trajectory(pages, link, settings, float(trajectory.passes[1][TIME]), vmm, start)


def simulate_plan(
    plan: Plan, guest: RunningGuest, targets: Targets, samples: Sequence[GuestSample],
    starts: Sequence[PrecopyStart] = (),
) -> list[PlanOutcome]:  # fmt: skip
    """Simulate the migration of each sampled guest.

    - `starts`: present states of a running migration (`simlib.vmm.running.running_starts`).
    """
    starts = starts or [BEGINNING] * len(samples)
    return [_simulate(plan, guest, targets, *pair) for pair in zip(samples, starts, strict=True)]


def _simulate(
    plan: Plan, guest: RunningGuest, targets: Targets, sample: GuestSample, start: PrecopyStart
) -> PlanOutcome:
    pages, link, wait_s = sample.pages, guest.link_of(sample, plan.settings), sample.wait_s
    before = precopy_of(plan, guest, targets, sample, start)
    passes = before.synchronisations - (start.synchronisations if plan.running and not plan.restart else 0)
    if before.completed or not plan.postcopy:
        left = float(before.passes[-1][LEFT]) * qemu_rules.PAGE
        share = before.guest_s / max(before.demand_s, 1e-9)
        downtime_s = before.total_s if plan.suspends else before.downtime_s
        return PlanOutcome(
            before.completed, before.total_s, downtime_s, passes, float(before.throttle), min(1.0, share),
            before.sleep_s, 0.0, before.slow_s, before.sent_bytes, left,
            left / judged_bytes_per_s(guest, plan.settings, link), max(0.0, downtime_s - link.switch_s),
            link.switch_s,
        )  # fmt: skip
    bandwidth = float(plan.settings.max_postcopy_bandwidth)
    after = postcopy(pages, before.missing, float(guest.vcpus), link, bandwidth, wait_s)
    total = before.total_s + link.switch_s + after.total_s
    share = (before.guest_s + after.total_s - after.lost_s) / (before.demand_s + link.switch_s + after.total_s)
    return PlanOutcome(
        True, total, link.switch_s, passes + 1, float(before.throttle), min(1.0, share), before.sleep_s,
        wait_s + link.page_s, before.slow_s + after.slow_s, before.sent_bytes + after.sent_bytes, 0.0, 0.0, 0.0,
        link.switch_s,
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
