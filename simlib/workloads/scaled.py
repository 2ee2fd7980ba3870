# SPDX-License-Identifier: BSD-3-Clause
"""A migration of less memory that stands for the whole: as many passes, each a part as long."""

from __future__ import annotations

import dataclasses

from simlib.errors import InputError
from simlib.model.pagetable import WORD_PAGES, PageTable
from simlib.model.quantities import format_size
from simlib.model.scenario import Scenario

PROPORTIONAL = ("precopy_duration", "dirty_left", "clear_cpu_time", "clear_wait_time", "clear_work_time",
                "clear_flush_time", "seconds_above_99", "seconds_above_50", "seconds_above_10")  # fmt: skip
"""Metrics that are proportional to the memory, and so are multiplied by the factor."""

_TIMES = ("warm_up", "downtime", "timeout", "pause")
_PER_IOCTL = ("clear_ioctl", "flush", "flush_per_vcpu", "kick")


def scaled(scenario: Scenario, factor: int) -> Scenario:
    """The same migration of a part of the memory.

    A guest that touches so many pages a second touches each page of less memory more often, in proportion; a pass over
    it takes less time, in proportion. What happens to a page between two passes is thus the same. Chunks shrink alike,
    so that there are as many, and what one ioctl costs outside of its pages shrinks with them. What does not scale is
    the time of a single hold of a whole chunk, and so the longest stall.

    Parameters
    ----------
    scenario : Scenario
        Its workload must be a migration.
    factor : int
        Memory of the scenario over memory of the result.

    Returns
    -------
    Scenario

    Raises
    ------
    InputError
        If the memory or the chunk cannot be divided so.

    Examples
    --------
    >>> whole = Scenario.parse({"guest": {"vcpus": 16, "memory": "64G"},
    ...                         "workload": {"kind": "migration", "clear_chunk": "1G"}})
    >>> part = scaled(whole, 64)
    >>> part.guest.pages_per_vcpu * 64 == whole.guest.pages_per_vcpu, part.workload.clear_chunk == 2**24
    (True, True)
    """
    guest, workload, costs = scenario.guest, scenario.workload, scenario.costs
    if workload.kind != "migration":
        raise InputError("workload.kind", workload.kind, "only a migration is scaled so", 'use kind = "migration"')
    unit = PageTable(guest.page_size).pages_per_block() if guest.backing != "4k" else WORD_PAGES
    whole = guest.pages_per_vcpu * guest.vcpus
    if factor < 1 or guest.pages_per_vcpu % (factor * unit):
        raise InputError(
            "factor", factor, f"each vCPU's part must stay a multiple of {format_size(unit * guest.page_size)}",
            f"take a divisor of {guest.pages_per_vcpu // unit}",
        )  # fmt: skip
    chunk = workload.clear_chunk
    if chunk is not None and chunk % (factor * WORD_PAGES * guest.page_size):
        raise InputError(
            "factor", factor, f"a chunk of {format_size(chunk)} cannot be divided so", "take a smaller one"
        )
    return dataclasses.replace(
        scenario,
        guest=dataclasses.replace(guest, memory_per_vcpu=None, memory=whole * guest.page_size // factor),
        workload=dataclasses.replace(
            workload,
            clear_chunk=None if chunk is None else chunk // factor,
            **{name: getattr(workload, name) // factor for name in _TIMES},
        ),
        costs=dataclasses.replace(
            costs, **{n: None if getattr(costs, n) is None else getattr(costs, n) // factor for n in _PER_IOCTL}
        ),
    )


def unscaled(metrics: dict[str, float], factor: int) -> dict[str, float]:
    """Metrics of a scaled migration as they are for the whole; those of a single stall are left out.

    Examples
    --------
    >>> unscaled({"precopy_duration": 0.5, "passes": 2.0, "longest_stall": 0.1}, 16)
    {'precopy_duration': 8.0, 'passes': 2.0}
    """
    return {
        name: value * factor if name in PROPORTIONAL else value
        for name, value in metrics.items()
        if not name.startswith(("longest_stall", "stall_"))
    }
