# SPDX-License-Identifier: BSD-3-Clause
"""What the explorer's figures say, in sentences; HTML, with every text of the user escaped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from markupsafe import Markup

from simlib.explorer.findings import Findings
from simlib.explorer.state import State, differing
from simlib.figures.decision import batch_text
from simlib.figures.style import seconds, signed
from simlib.model.quantities import say_size


def first_words(state: State, evidence: str) -> str:
    """What is asked, and what rests on what."""
    case = state.case()
    guest, workload = case.guest, case.workload
    size = say_size(guest.pages * guest.page_size)
    chunk = say_size(workload.clear_chunk) if workload.clear_chunk else size
    return Markup("<b>{}</b>, {} vCPUs, {}, CLEARs of {}: {}. CLEAR lets go: {}. The costs are {}.").format(
        case.policy.facts.title, guest.vcpus, size, chunk, state.strategy, case.policy.lets_go, evidence
    )


def refined_words(parts: Mapping[str, Any], trips: pd.DataFrame, batches: pd.DataFrame | None) -> list[str]:
    """What was simulated, a sentence a strategy, what unknown costs leave open of the first, and the cheapest batch."""
    lines: list[str] = []
    if "reason" in parts:
        lines.append(f"The migration is not simulated: {parts['reason']}.")
    lines += [
        Markup("<b>{}</b>, simulated: ").format(row["strategy"])
        + f"the guest keeps {100 * row['guest_throughput']:.2f} % "
        f"of its throughput over {seconds(row['precopy_s'])} of pre-copy, its longest stall is "
        f"{seconds(row['longest_stall_s'])}, and CLEAR takes {seconds(row['clear_cpu_time_s'])} of CPU time."
        for row in trips.to_dict("records")
    ]
    if "ranges" in parts and len(parts["ranges"].frame):
        low, high = (parts["ranges"].frame.set_index("quantity")[end] for end in ("low", "high"))
        lines.append(
            "Costs that are drawn from priors leave open (90 %): throughput "
            f"{100 * low['guest_throughput']:.2f} to {100 * high['guest_throughput']:.2f} %, longest stall "
            f"{seconds(low['longest_stall_s'])} to {seconds(high['longest_stall_s'])}, CLEAR's CPU time "
            f"{seconds(low['clear_cpu_time_s'])} to {seconds(high['clear_cpu_time_s'])}; {parts['ranges'].decisive}."
        )
    if batches is not None and len(batches):
        near = batches[batches["cost_s"] <= 1.02 * batches["cost_s"].min()].to_dict("records")
        names = ", ".join(f"{batch_text(row['batch_pages'])} ({seconds(row['stall_s'])})" for row in near)
        lines.append(
            f"Batches within 2 % of the least cost, with their longest stalls: {names}. One walk each, no interval."
        )
    return lines


def comparison_in_words(before: Findings, now: Findings) -> list[str]:
    """What a change did to the strategy that is asked about; nothing until both are simulated."""
    old, new = before.trips(), now.trips()
    if old.empty or new.empty:
        return []
    one, other = old.iloc[0], new.iloc[0]
    points = 100 * (other["guest_throughput"] - one["guest_throughput"])

    def change(column: str) -> str:
        if not one[column]:
            return "0 %" if not other[column] else f"from none to {seconds(other[column])}"
        return f"{signed(100 * (other[column] / one[column] - 1))} %"

    return [
        f"Against before ({changes(before.state, now.state)}): longest stall {change('longest_stall_s')}, guest "
        f"throughput {signed(points)} points, CLEAR's CPU time {change('clear_cpu_time_s')}."
    ]


def changes(before: State, now: State) -> str:
    """What two states differ in, by the keys of a scenario file."""
    old, new = differing(before.scenario, now.scenario), differing(now.scenario, before.scenario)
    said = [f"{key} {old.get(key, 'not given')} → {new.get(key, 'not given')}" for key in sorted({*old, *new})]
    if before.scenario.group != now.scenario.group:
        said.append(f"group {before.scenario.group or 'none'} → {now.scenario.group or 'none'}")
    if before.strategy != now.strategy:
        said.append(f"strategy {before.strategy} → {now.strategy}")
    return ", ".join(said) or "nothing that is asked differs"
