# SPDX-License-Identifier: BSD-3-Clause
"""Sentences of the answer about a guest's migration, and the cells of its table of plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from simlib.analysis.migrate.simulated import SimulatedMigration
from simlib.model.quantities import seconds_text, size_text
from simlib.vmm.dirtying import DirtyRate, unsteady
from simlib.vmm.plans import LONGER_DOWNTIMES, SURE, Plan
from simlib.vmm.running import RunningMigration
from simlib.vmm.settings import VMMS

_FEW = 5
"""Number of guests below which a range of their times is not an interval."""

_SAME_SPEED = 0.15
"""Relative difference of a throughput and max-bandwidth that are equal."""


def summary_lines(answer: SimulatedMigration) -> list[str]:
    """Return the answer in sentences, the most important ones first."""
    current, planned, state = answer.row("current"), answer.row(answer.recommended.name), answer.running
    begin = _present_state(state) if state is not None else _unknown_state(answer)
    lines = [begin, _current_settings(answer, current), _recommendation(answer)]
    if answer.recommended.name != "current":
        lines.append(f"{_subject(answer, answer.recommended)} {_expected(planned)}" if planned["converges"] else
                     "It still does not converge")  # fmt: skip
    if planned["converges"] and not answer.meets_targets:
        lines.append(f"It converges for {100 * planned['converges']:.0f} % of the working sets consistent with the "
                     f"measurements, and meets all targets for {100 * planned['meets_all']:.0f} %")  # fmt: skip
    lines += [_alternative(answer), _suspension(answer), stalls(answer, planned), _downtime_parts(answer, planned),
              lock_line(answer), answer.kernel, _missed_targets(answer, planned), _unknown(answer),
              _unsteady(answer)]  # fmt: skip
    return [line for line in lines if line]


def _present_state(state: RunningMigration) -> str:
    time = f"has run for {seconds_text(state.time_s)}" if state.time_s else "is running"
    left = f"{size_text(state.left_bytes)} remain" if state.left_bytes else "the log does not have what remains"
    if state.in_first_pass:
        return f"The migration {time}: it is in its first pass, and has passed {percent(state.position)} of the memory"
    passes = f", after {state.synchronisations} synchronisations of the bitmap" if state.synchronisations else ""
    throttle = f", with vCPUs throttled by {state.throttle} %" if state.throttle else ""
    return f"The migration {time}: {left}{passes}{throttle}"


def _unknown_state(answer: SimulatedMigration) -> str:
    """Return why the answer is about a new migration, although the log is about one that runs."""
    last = answer.guest.running[-1] if answer.guest.running else None
    if last is not None and last.status == "active" and last.remaining_bytes != 0:
        return ("The log does not have what remains of the migration that runs; it may be cut off. What follows is "
                "about a new migration")  # fmt: skip
    if last is None or not last.status.startswith("postcopy"):
        return ""
    left = ""
    if last.remaining_bytes:
        seconds = last.remaining_bytes * 8 / answer.guest.link
        left = f"; {size_text(last.remaining_bytes)} remain, which takes {seconds_text(seconds)}"
    return (f"The migration in the log has switched to post-copy: the guest runs on the destination{left}, and only "
            "max-postcopy-bandwidth can shorten this. What follows is about a new migration")  # fmt: skip


def _current_settings(answer: SimulatedMigration, current: dict[str, Any]) -> str:
    running, share = answer.running is not None, current["converges"]
    if share >= SURE:
        if running:
            return f"With its present settings, it ends {_expected(current, with_speed=False)}"
        return f"The migration converges with the current settings: {_expected(current, with_speed=False)}"
    settings = answer.guest.settings
    stuck = pd.DataFrame([outcome for outcome in answer.outcomes["current"] if not outcome.completed])
    typical = stuck.sort_values("left_bytes").iloc[len(stuck) // 2]
    left, seconds = float(typical["left_bytes"]), float(typical["left_s"])
    judged = ""
    if (settings.max_bandwidth or settings.avail_switchover_bandwidth) and seconds > 0:
        judged = f" at {size_text(left / seconds)}/s, the bandwidth by which QEMU judges"
    why = (f"after each pass, {size_text(left)} are dirty; sending them takes {seconds_text(seconds)}{judged}, but the "
           f"downtime limit is {seconds_text(settings.downtime_limit / 1e3)}")  # fmt: skip
    if share <= 1 - SURE:
        subject, which = ("It", "its present") if running else ("The migration", "the current")
        return f"{subject} does not converge with {which} settings: {why}"
    return (f"The measurements are not sufficient: with the current settings, the migration converges for "
            f"{100 * share:.0f} % of the guests that are consistent with them; for the others, {why}")  # fmt: skip


def _recommendation(answer: SimulatedMigration) -> str:
    plan = answer.recommended
    targets = f" ({answer.targets.description})" if answer.targets.description else ""
    if plan.name == "current":
        return (f"Keep the current settings: they meet the targets{targets}" if answer.meets_targets else
                f"No setting that was tried meets the targets{targets} or comes nearer to them")  # fmt: skip
    if answer.meets_targets:
        return f"To meet the targets{targets}: {plan.actions}" if targets else f"To make it converge: {plan.actions}"
    return f"No setting that was tried meets the targets{targets}. Nearest: {plan.actions}"


def _subject(answer: SimulatedMigration, plan: Plan) -> str:
    return "It then ends" if answer.running is not None and not plan.restart else "The migration then takes"


def _expected(row: Any, with_speed: bool = True) -> str:
    """Return the expected times; a plan for a running migration has the time from now."""
    ends = row["running"] and not row["restart"]
    total, passes = interval(row, "total_s", seconds_text), _passes_text(row)
    text = f"in {total}, after {passes.replace(' pass', ' more pass')}" if ends else f"{total} in {passes}"
    downtime = interval(row, "downtime_s", seconds_text)
    if not with_speed:
        return f"{text}, with a downtime of {downtime}"
    speed = interval(row, "guest_share", percent)
    return f"{text}, the downtime is {downtime}, and the guest runs at {speed} of its speed"


def _alternative(answer: SimulatedMigration) -> str:
    """Return the longer downtime that makes throttling unnecessary, if the recommended plan throttles the guest."""
    planned = answer.row(answer.recommended.name)
    drastic = answer.recommended.postcopy or planned["sleep_s_high"] > 0 or not answer.meets_targets
    longer = [plan for plan in answer.plans if plan.severity in LONGER_DOWNTIMES and plan is not answer.recommended]
    for plan in longer if drastic else ():
        row = answer.row(plan.name)
        throttle = row["throttle_high"]
        if row["converges"] >= SURE and throttle <= planned["throttle_high"] / 2:
            how = f"throttles vCPUs by at most {throttle:.0f} %" if throttle else "converges without throttling"
            return f"Alternatively, with a downtime limit of {plan.settings.downtime_limit} ms, the migration {how}"
    return ""


def _suspension(answer: SimulatedMigration) -> str:
    """Return for how long a suspended guest stops, if no setting of the running migration ends it."""
    plan = next((plan for plan in answer.plans if plan.suspends), None)
    if plan is None or answer.recommended.suspends:
        return ""
    stops = interval(answer.row(plan.name), "downtime_s", seconds_text)
    return f"Suspending the guest ends the present migration; the guest then stops for {stops}"


def stalls(answer: SimulatedMigration, planned: dict[str, Any]) -> str:
    """Return for how long vCPUs stall with the recommended plan."""
    if answer.recommended.suspends:
        return ""
    if answer.recommended.postcopy:
        return (f"After the switch to post-copy, a vCPU waits {interval(planned, 'fault_s', seconds_text)} for each "
                "page that has not arrived; if the network fails then, vCPUs wait until the migration is "
                "recovered, and if either host fails, the guest is lost")  # fmt: skip
    if planned["throttle"] > 0:
        slow = (f"; for {interval(planned, 'slow_s', seconds_text)}, the guest does less than half of its work"
                if planned["slow_s"] > 0 else "")  # fmt: skip
        return (f"{VMMS[answer.guest.vmm].title} throttles vCPUs by {interval(planned, 'throttle', _whole)} %; the "
                f"longest sleep of a vCPU is {interval(planned, 'sleep_s', seconds_text)}{slow}")  # fmt: skip
    if planned["sleep_s"] > 0:
        return f"With the dirty limit, the longest sleep of a vCPU is {interval(planned, 'sleep_s', seconds_text)}"
    return "Nothing throttles the guest"


def _downtime_parts(answer: SimulatedMigration, planned: dict[str, Any]) -> str:
    if not planned["converges"]:
        return ""
    devices = interval(planned, "devices_s", seconds_text)
    last = "" if answer.recommended.postcopy else (
        f"sending the last pages takes {interval(planned, 'last_pass_s', seconds_text)}, and "
    )  # fmt: skip
    return (f"Of the downtime, {last}stopping the devices and starting the guest on the destination takes {devices}, "
            "which is assumed; VFIO and vhost-user devices add time that is not predicted")  # fmt: skip


def lock_line(answer: SimulatedMigration) -> str:
    """Return the sentence on mmu_lock, if there is something to set or a target is missed; else an empty string."""
    lock = answer.lock
    if isinstance(lock, str) or (lock.meets_target and lock.recommended == lock.current):
        return ""
    return lock.summary()


def _missed_targets(answer: SimulatedMigration, planned: dict[str, Any]) -> str:
    """Return the values reached instead of the missed targets, or what the migration needs to converge."""
    if answer.meets_targets:
        return ""
    once_s = answer.guest.memory * 8 / answer.guest.link
    late = answer.targets.deadline_s is not None and once_s > answer.targets.deadline_s
    if late and answer.running is None:
        return f"Sending all memory once takes {seconds_text(once_s)}: set a later deadline, or use a faster link"
    if not planned["converges"]:
        return "To converge, the migration needs a faster link, or a guest that writes less"
    reached: dict[str, tuple[str, Callable[[float], str], str]] = {
        "downtime": ("downtime_s", seconds_text, "a downtime of"),
        "deadline": ("total_s", seconds_text, "a total time of"),
        "min_guest_speed": ("guest_share", percent, "a guest speed of"),
        "max_stall": ("fault_s" if answer.recommended.postcopy else "sleep_s", seconds_text, "a vCPU stall of"),
    }
    texts = [f"{words} {interval(planned, column, shown)}" for target, (column, shown, words) in reached.items()
             if planned[f"meets_{target}"] < SURE]  # fmt: skip
    return f"Instead of the missed targets, it reaches {', '.join(texts)}" if texts else ""


def _unknown(answer: SimulatedMigration) -> str:
    """Return the inputs that are not known, and therefore sampled."""
    guest, rates = answer.guest, [rate for rate in answer.guest.dirty if isinstance(rate, DirtyRate)]
    limit = guest.settings.max_bandwidth * 8
    unknown = {
        "the CPU use (--cpu)": not guest.cpu,
        "the pages of zeros (--resident)": not guest.resident and guest.zeros is None,
        "the time over which the rate was measured (--dirty 'RATE in TIME')": any(rate.between_s for rate in rates),
        "further dirty rates (--dirty, over 1, 10 and 60 s)": bool(rates) and len(rates) < 3,
        "the link's bandwidth, since max-bandwidth limits the migration (--link)": bool(
            guest.running and limit and abs(guest.link - limit) < _SAME_SPEED * limit
        ),
    }
    names = [name for name, missing in unknown.items() if missing]
    return f"Not known, so that the ranges are wide: {', '.join(names)}" if names else ""


def _unsteady(answer: SimulatedMigration) -> str:
    pair = unsteady([rate for rate in answer.guest.dirty if isinstance(rate, DirtyRate)])
    return f"The guest is not steady, so the ranges are wide: {pair}" if pair else ""


def readable(answer: SimulatedMigration) -> pd.DataFrame:
    """Return the plans as a table of strings, without those whose outcome equals that of an earlier plan."""
    rows, outcomes = [], set[tuple[Any, ...]]()
    for row in answer.frame.to_dict("records"):
        key = tuple(round(float(row[name]), 4) for name in ("total_s", "downtime_s", "guest_share", "sleep_s"))
        if key in outcomes and row["plan"] != answer.recommended.name:
            continue
        outcomes.add(key)
        ended = sum(outcome.completed for outcome in answer.outcomes[row["plan"]])
        total = f"{interval(row, 'total_s', seconds_text, '–')}{_of_few(ended)}" if ended else "no end"
        rows.append(
            {"plan": row["plan"], "converges": f"{100 * row['converges']:.0f} %",
             "total time": total,
             "downtime": interval(row, "downtime_s", seconds_text, "–") if ended else "",
             "guest speed": interval(row, "guest_share", percent, "–"),
             "longest stall": seconds_text(max(row["sleep_s_high"], row["fault_s_high"]), 2),
             "meets targets": f"{100 * row['meets_all']:.0f} %", "cost": row["cost"]}
        )  # fmt: skip
    table = pd.DataFrame(rows)
    return table if answer.running is None else table.rename(columns={"total time": "time from now"})


def _of_few(guests: int) -> str:
    """Return the number of guests behind a range that is no interval yet."""
    return f" ({guests} guest{'s' * (guests > 1)})" if guests < _FEW else ""


def interval(row: Any, column: str, shown: Callable[[float], str], to: str = " to ") -> str:
    """Format an interval; one value if both ends are formatted alike."""
    low, high = shown(row[f"{column}_low"]), shown(row[f"{column}_high"])
    return low if low == high else f"{low}{to}{high}"


_whole = "{:.0f}".format


def _passes_text(row: Any) -> str:
    return "1 pass" if (passes := interval(row, "passes", _whole)) == "1" else f"{passes} passes"


def percent(value: float) -> str:
    """Format a share in percent."""
    return f"{100 * value:.0f} %"
