# SPDX-License-Identifier: BSD-3-Clause
"""What is said of published migrations beside the model: sentences with numbers from the tables they stand under."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from simlib.figures.style import plain_number, signed
from simlib.measurements.fits import Fit
from simlib.model.quantities import format_bandwidth, format_duration, format_size, seconds_text
from simlib.simulator.workloads.degradation import LEVELS
from studies.migrations.degraded import published_migration
from studies.study import FITTED, HELD_OUT, with_errors
from studies.x86.hosts import configurations

METRIC_NAMES = {
    "precopy_duration": "pre-copy", "dirty_left": "dirty memory left", "clear_cpu_time": "CPU time of CLEAR"
}  # fmt: skip
"""Metrics of the April 2024 mail's table, as a person calls them."""

WIDE = 2.0
"""An interval whose ends are further apart than this factor is called wide."""

DIP = 95.0
"""Throughput of a time bin below which it is called a dip, percent of undisturbed."""


def cost_rows(fit: Fit) -> pd.DataFrame:
    """Costs as a person reads them: name, value, low, high, unit, interval (``none``, ``wide``, empty)."""
    rows = fit.costs()[["name", "value", "low", "high", "unit"]]
    factor = rows["high"] / rows["low"]
    return rows.assign(interval=["none" if f <= 1 + 1e-9 else "wide" if f > WIDE else "" for f in factor])


def costs_told(rows: pd.DataFrame) -> str:
    """Which costs have no interval, and which a wide one."""
    none = rows.loc[rows["interval"] == "none", "name"].tolist()
    said = []
    if none:
        said.append(
            f"Low and high are the value itself for {_listed(none)}: each is read off one published number, so that "
            "its error is not known, and no interval below has it."
        )
    said += [
        f"Hardly determined: {row['name']}, {row['low']:.3g} to {row['high']:.3g} {row['unit']}."
        for row in rows[rows["interval"] == "wide"].to_dict("records")
    ]
    return " ".join(said)


def workload_told() -> str:
    """What was chosen of the April 2024 mail's workload."""
    chosen = configurations().workload
    return (
        f"What the mail does not state was chosen: an access every {format_duration(chosen.access_interval)}, each to "
        f"any page; {chosen.write_percent} % of the pages are written; {format_bandwidth(chosen.link)}; "
        f"{chosen.pass_limit} passes; CLEARs of {format_size(chosen.clear_chunk or 0)} by a thread beside the sender, "
        "one chunk ahead of it."
    )


def changes_told(changes: pd.DataFrame) -> str:
    """CLEAR's change by the 64-page drop: published, by the model, and whether the model's interval has it."""
    known = with_errors(changes[changes["metric"] == "clear_cpu_time"])
    listed = [
        f"{signed(r['predicted'])} % in {r['variant']} (published {signed(r['published'])} %; "
        f"interval {signed(r['low'])} to {signed(r['high'])} %)"
        for r in known.to_dict("records")
    ]
    out = known.loc[known["inside"].eq(False), "published"]
    which = _listed([f"{signed(value)} %" for value in out])
    verdict = f"The interval excludes the published {which}" if len(out) else "The intervals have what was published"
    return (
        f"CPU time of CLEAR by the model: {'; '.join(listed)}. {verdict}. An interval is that of the costs alone: "
        "what was chosen where the mail states nothing is not in it, and where a change does not depend on the costs, "
        "it has hardly a width."
    )


def reacquisition_told(each: pd.DataFrame) -> str:
    """What letting go once costs, and what it interrupts, from the notebook's table of both, µs."""
    costs, work = (_listed([plain_number(float(f"{value:.2g}")) for value in each[name]])
                   for name in ("reacquisition_us", "work_before_us"))  # fmt: skip
    return (
        f"So the same act costs {costs} µs in the three configurations (mean of both passes), and what it interrupts "
        f"is {work} µs of work."
    )


def settings_told(nine: pd.DataFrame, combinations: int) -> str:
    """Which of the April 2024 mail's nine numbers the other eight predict."""

    def named(role: str) -> str:
        rows = nine[nine["role"] == role].to_dict("records")
        return _listed([f"{row['configuration']}'s {METRIC_NAMES[row['metric']]}" for row in rows])

    said = [f"{role.capitalize()}: {named(role)}." for role in dict.fromkeys(nine["role"])]
    missed = [
        f"The published {signed(r['published'])} % lies outside {signed(r['low'])} to {signed(r['high'])} %."
        for r in nine[nine["role"] == "missed"].to_dict("records")
    ]
    return " ".join([f"Configurations, over {combinations} combinations of settings. ", *said, *missed])


def loongarch_told(loongarch: pd.DataFrame, changes: pd.DataFrame) -> str:
    """What is simulated for LoongArch as it is, and what that rests on."""
    (mine,) = loongarch[loongarch["metric"] == "clear_cpu_time"].to_dict("records")
    third = float(changes[changes["metric"] == "clear_cpu_time"]["predicted"].iloc[-1])
    return (
        f"Simulated at the costs of x86 hosts: the 64-page drop changes CLEAR's CPU time on LoongArch by "
        f"{signed(mine['predicted'])} % ({signed(mine['low'])} to {signed(mine['high'])} %), in "
        f"configuration 3 by {signed(third)} %. "
        + ("That supports" if mine["predicted"] > third / 3 else "That does not support")
        + " Bibo Mao's objection in the thread, that the drop would be expensive there. It does not settle it: no such "
        "number has been measured on LoongArch."
    )


def seconds_told(rows: pd.DataFrame) -> str:
    """Which seconds of degradation the model misses: what is predicted first, and then what was fitted."""
    said = []
    for role, word in ((HELD_OUT, "predicted"), (FITTED, "fitted")):
        mine = rows[rows["role"] == role]
        inside = mine["published"].between(mine["low"], mine["high"])
        asked = mine["predicted"].between(mine["low_bar"], mine["high_bar"])
        part = [
            f"{r['variant']} {r['metric'].removeprefix('seconds ')}: {r['predicted']:.3g} s for {r['published']:.3g} "
            f"s, interval {r['low']:.3g} to {r['high']:.3g} s" + ("" if ok else ", outside what counts as agreement")
            for r, ok in zip(mine[~inside].to_dict("records"), asked[~inside], strict=True)
        ]
        of = f"Of the {len(mine)} {word} numbers {int(inside.sum()) or 'none'} inside the model's interval"
        said.append(f"{of}. Missed: {'; '.join(part)}." if part else f"{of}.")
    return " ".join(said)


def dips_told(dips: pd.DataFrame) -> str:
    """Which dips there are before each change and after, by pass, and how long the longest stall is."""
    lowest = {str(name): part for name, part in dips.groupby("series", sort=False)}
    passes = [column for column in dips.columns if column.startswith("lowest_percent")]

    def least(part: pd.DataFrame) -> str:
        return _listed([f"{part[column].min():.0f} % in pass {number}" for number, column in enumerate(passes, 1)])

    before = lowest.pop("before")
    stalls = [(1e-3 * row["longest_stall_ms"], row["chunk"]) for row in before.to_dict("records")]
    held = _listed([f"{seconds_text(stall)} with {chunk}" for stall, chunk in stalls])
    said = [f"Before: the lowest bin has {least(before)}; the longest stall is {held}."]
    for name, part in lowest.items():
        left = [n for n, column in enumerate(passes, 1) if part[column].min() < DIP]
        verdict = f"leaves a dip in pass {_listed([str(n) for n in left])}" if left else "leaves no dip"
        said.append(f"The {name} {verdict}: the lowest bin has {least(part)}.")
    return f"A dip: a time bin below {DIP:.0f} % of undisturbed. " + " ".join(said)


def one_guest_told(rows: pd.DataFrame) -> str:
    """How one guest on both hosts compares with what was published, at the scenario's interval between accesses."""
    interval = format_duration(published_migration().workload.access_interval)
    table = {(row["case"], row["access_interval"]): row for row in rows.to_dict("records")}
    said = []
    for case, published in (("arm64-after", "arm64-after"), ("x86, both sockets", "x86")):
        mine, known = table[case, interval], table[published, "published"]
        levels = [
            f"{mine[f'above_{level}']:.0f} s above {level} % (published {known[f'above_{level}']:.0f})"
            for level in LEVELS
        ]
        said.append(f"{case}: {', '.join(levels)}")
    short, long = (table[case, "50ns"]["above_99"] for case in ("x86, both sockets", "arm64-after"))
    return (
        f"With {interval} between two accesses: {'; '.join(said)}. To be above 99 %, a fault must take a hundred "
        f"intervals: even 50 ns are too long for that on x86 ({short:.1f} s), and with 50 ns arm64 after the fast "
        f"path is above 99 % for {long:.0f} s."
    )


def missed_told(rows: pd.DataFrame) -> str:
    """Which numbers lie outside of the range that counts as agreement."""
    out = rows[~rows["predicted"].between(rows["low_bar"], rows["high_bar"])]
    each = [
        f"{r['variant']}, {r['metric']}: {r['predicted']:.3g} (published {r['published']:.3g})"
        for r in out.to_dict("records")
    ]
    return f"Outside of what counts as agreement: {'; '.join(each) or 'none'}."


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""
