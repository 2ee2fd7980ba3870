# SPDX-License-Identifier: BSD-3-Clause
"""Log of Cloud Hypervisor: the ``Precopy:`` line of each pass (vm-migration/src/context.rs, vmm/src/lib.rs).

A line is printed after a pass. `curr` of pass *n* is the memory that was dirtied during pass *n* - 1.
"""

from __future__ import annotations

import re

from simlib._lib.errors import InputError
from simlib.vmm.dirtying import DirtyRate
from simlib.vmm.logs.content import EXACT, MIB, LogContent, LogValue, RateReading
from simlib.vmm.logs.text import NUMBER, LogText, number
from simlib.vmm.qemu_rules import PAGE
from simlib.vmm.samples import MigrationSample

MARKS = ("Precopy: ", "Migration completed after ")

_LINE = re.compile(
    r"Precopy: (?P<pairs>iter=[^\n]*)"
    r"|Migration completed after (?P<seconds>[\d.]{1,12})s with a downtime of (?P<downtime>\d{1,12})ms"
    r"(?: \(goal was (?P<goal>\d{1,9})ms\))?"
)
_PAIR = re.compile(rf"(\w+)=({NUMBER})(MiB/s|MiB|ms|s)?(?=\s|$)")
_UNITS = {"iter": None, "total": "MiB", "curr": "MiB", "bw": "MiB/s", "transfer": "s", "elapsed": "s"}


def read(log: LogText) -> LogContent | None:
    """Read the passes, and the end of the migration.

    Raises `InputError` if a number has another unit than the versions of 2026 print.

    >>> passes = ("Precopy: iter=0 total=4096MiB curr=4096MiB bw=1024.00MiB/s transfer=4.00s overhead=0ms "
    ...           "est_downtime=0ms elapsed=4.00s avg_bw=1024.00MiB/s\\n"
    ...           "Precopy: iter=1 total=5120MiB curr=1024MiB bw=1024.00MiB/s transfer=1.00s overhead=0ms "
    ...           "est_downtime=1000ms elapsed=5.00s avg_bw=1024.00MiB/s")
    >>> rate = read(LogText(passes)).rates[0].rate
    >>> rate.pages, rate.seconds
    (262144.0, 4.0)
    """
    content = LogContent("Cloud Hypervisor")
    ends: dict[int, float] = {}
    for match in _LINE.finditer(log.text):
        if match["downtime"]:
            goal = int(match["goal"]) if match["goal"] else None
            if goal is not None:
                content.settings["downtime-limit"] = goal
                content.note(f"downtime-limit {goal} ms: goal of Cloud Hypervisor")
            content.samples.append(MigrationSample(
                status="completed", time_s=number(match["seconds"]), remaining_bytes=0.0,
                downtime_s=int(match["downtime"]) / 1000, downtime_limit_s=None if goal is None else goal / 1000,
            ))  # fmt: skip
            continue
        values = _numbers(match["pairs"])
        if not values:
            content.note("a Precopy line of Cloud Hypervisor that is cut off is ignored")
            continue
        if values["iter"] == 0 or (content.samples and values["elapsed"] < (content.samples[-1].time_s or 0.0)):
            ends = {}  # another migration
            content.rates.clear()
        _add_pass(content, values, ends)
    return None if content.empty else content


def _numbers(pairs: str) -> dict[str, float]:
    """Numbers of a pass by their keys; empty if one is missing."""
    given_units = {pair[1]: pair[3] for pair in _PAIR.finditer(pairs)}
    for key, unit in _UNITS.items():
        if key in given_units and given_units[key] != unit:
            rule = f"must be in {unit}" if unit else "must be a number without a unit"
            raise InputError(f"Cloud Hypervisor {key}", given_units[key] or "no unit", rule,
                             "this version is not known; give the numbers as options")  # fmt: skip
    values = {pair[1]: number(pair[2]) for pair in _PAIR.finditer(pairs)}
    complete = {*_UNITS} <= {*values} and all(0 <= values[key] < 1e12 for key in _UNITS)
    return values if complete else {}


def _add_pass(content: LogContent, values: dict[str, float], ends: dict[int, float]) -> None:
    order = int(values["iter"])
    if order == 0 and values["curr"]:
        content.total.append(LogValue(values["curr"] * MIB, "curr of the first pass of Cloud Hypervisor", MIB))
    ends[order] = values["elapsed"]
    begin, end = (0.0 if order == 1 else ends.get(order - 2)), ends.get(order - 1)
    if order and begin is not None and end is not None and end > begin:
        rate = DirtyRate(values["curr"] * MIB / PAGE, end - begin, max(EXACT, 0.01 / (end - begin)))
        note = f"{values['curr'] / (end - begin):.4g} MiB/s dirtied over {end - begin:.3g} s: curr of Cloud Hypervisor"
        content.rates.append(RateReading(rate, note))
    content.samples.append(MigrationSample(
        status="active", time_s=values["elapsed"], sent_bytes=values["total"] * MIB,
        bits_per_s=values["bw"] * MIB * 8 or None, passes=order + 1,
    ))  # fmt: skip
