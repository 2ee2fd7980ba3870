# SPDX-License-Identifier: BSD-3-Clause
"""``virsh domstats`` (``--dirtyrate``, ``--vcpu``, ``--balloon``) and ``virsh dommemstat``.

The keys are those of libvirt's docs/manpages/virsh.rst; sizes of balloon and of dommemstat are KiB, times of vCPUs ns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from simlib._lib.errors import InputError
from simlib.vmm.logs.content import LogContent, LogValue
from simlib.vmm.logs.dirty_rate import rate_reading
from simlib.vmm.logs.text import LogText, time_in

MARKS = ("dirtyrate.", "vcpu.", "balloon.", "rss ")

_KIB = 1024
_LINE = re.compile(
    r"^.*?(?P<key>(?:dirtyrate|vcpu|balloon)\.[a-z0-9_.]+)=(?P<value>[\w.-]+) *$|^ *Domain: '(?P<domain>[^'\n]*)'"
    r"|(?P<stamp>^[^\n=]*\d\d:\d\d:\d\d[^\n=]*$|^ *1\d{9}(?:\.\d+)? *$)|(?P<sleep>(?<!\w)sleep \d{1,5}(?!\w))"
    r"|^ *(?P<stat>rss|actual) (?P<kib>\d{1,15}) *$",
    re.MULTILINE,
)


class DomstatsCall(NamedTuple):
    """Values of one call of ``virsh domstats``, and the time before them in the text."""

    values: dict[str, str]
    time: float | None


def read(log: LogText) -> LogContent | None:
    """Read dirty rates, vCPUs, their CPU use and the memory.

    Raises `InputError` if the text has the statistics of several domains.

    >>> content = read(LogText("dirtyrate.calc_period=10\\ndirtyrate.megabytes_per_second=25\\nvcpu.current=4\\n"))
    >>> content.rates[0].rate.pages, content.vcpus[0].value
    (64000.0, 4)
    """
    content = LogContent("virsh domstats")
    domains: set[str] = set()
    sleeps: list[float] = []
    calls = list(_calls(log, content, domains, sleeps))
    if len(domains) > 1:
        rule = "are several domains"
        raise InputError("virsh domstats", ", ".join(sorted(domains)), rule, "paste the statistics of one guest only")
    measured: set[tuple[str, ...]] = set()
    for values, _ in calls:
        _add_rate(content, values, measured)
        _add_numbers(content, values)
    _add_cpu_use(content, calls, sleeps)
    return None if content.empty else content


def _calls(log: LogText, content: LogContent, domains: set[str], sleeps: list[float]) -> Iterator[DomstatsCall]:
    values: dict[str, str] = {}
    stamp = None
    for match in _LINE.finditer(log.text):
        key = match["key"]
        if match["stat"]:
            target = content.resident if match["stat"] == "rss" else content.configured
            target.append(LogValue(int(match["kib"]) * _KIB, f"{match['stat']} of virsh dommemstat"))
        if match["sleep"]:
            sleeps.append(float(match["sleep"].split()[1]))
        if match["domain"] is not None:
            domains.add(match["domain"])
        if values and (match["domain"] is not None or match["stamp"] or (key and key in values)):
            yield DomstatsCall(values, stamp)
            values, stamp = {}, None
        if match["stamp"]:
            stamp = time_in(match["stamp"])
        if key:
            values[key] = match["value"]
    if values:
        yield DomstatsCall(values, stamp)


def _add_rate(content: LogContent, values: dict[str, str], measured: set[tuple[str, ...]]) -> None:
    rate, period = _whole(values, "dirtyrate.megabytes_per_second"), _whole(values, "dirtyrate.calc_period")
    status = values.get("dirtyrate.calc_status", "2")
    if status != "2":
        content.missing["dirty rate"] = "the measurement of virsh domdirtyrate-calc has not ended"
        return
    if rate is None:
        return
    if not period:
        content.note("dirtyrate.megabytes_per_second without dirtyrate.calc_period is ignored")
        return
    mode = values.get("dirtyrate.calc_mode", "page-sampling")
    start = values.get("dirtyrate.calc_start_time", "")
    key = (start, str(period), mode, str(rate))
    if start and key in measured:  # the same measurement, printed again
        return
    measured.add(key)
    source = "dirtyrate.megabytes_per_second and dirtyrate.calc_period of virsh domstats"
    content.rates.append(rate_reading(float(rate), float(period), mode, "", source))


def _add_numbers(content: LogContent, values: dict[str, str]) -> None:
    vcpus = _whole(values, "vcpu.current")
    if vcpus:
        content.vcpus.append(LogValue(vcpus, "vcpu.current, as in virsh domstats"))
    for key, target in (("balloon.rss", content.resident), ("balloon.current", content.configured)):
        kib = _whole(values, key)
        if kib:
            target.append(LogValue(kib * _KIB, f"{key}, as in virsh domstats"))


def _add_cpu_use(content: LogContent, calls: list[DomstatsCall], sleeps: list[float]) -> None:
    """Add the use of the vCPUs between calls whose times are known."""
    busy = [(time, counters) for values, time in calls if (counters := _busy_times(values))]
    for (start, before), (end, after) in pairwise(busy):
        shared = before.keys() & after.keys()
        seconds = end - start if start is not None and end is not None else None
        if seconds is None and len(busy) == 2 and len(sleeps) == 1:
            seconds = sleeps[0]
        if not seconds or seconds <= 0 or not shared:
            continue
        use = sum(after[key] - before[key] for key in shared) / 1e9 / seconds / len(shared)
        if 0 <= use <= 1.1:  # more is another clock, or another guest
            content.cpu.append(LogValue(min(1.0, use), f"vcpu.N.time, as in virsh domstats, over {seconds:.3g} s"))
    if len(busy) > 1 and not content.cpu:
        content.note("CPU use not known: vcpu.N.time needs the times of two calls (run date before each)")


def _busy_times(values: dict[str, str]) -> dict[str, int]:
    """CPU time of each vCPU, ns."""
    times = {key: _whole(values, key) for key in values if re.fullmatch(r"vcpu\.\d+\.time", key)}
    return {key: time for key, time in times.items() if time is not None}


def _whole(values: dict[str, str], key: str) -> int | None:
    text = values.get(key, "")
    return int(text) if re.fullmatch(r"\d{1,18}", text, re.ASCII) else None
