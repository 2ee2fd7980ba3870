# SPDX-License-Identifier: BSD-3-Clause
"""A migration of less memory that stands for the whole: as many passes, each a part as long."""

from __future__ import annotations

import dataclasses
import math

from simlib._lib.errors import InputError
from simlib.model.pagetable import WORD_PAGES, PageTable
from simlib.model.quantities import format_size
from simlib.model.scenario import Scenario

SAMPLE_PAGES = 2**18
"""Pages in all that a sampled migration keeps at least: 1 GiB, with which the April 2024 mail's whole memory agrees."""

_TIMES = ("warm_up", "downtime", "timeout", "pause", "reap_every")
_PER_IOCTL = ("clear_ioctl", "flush", "flush_per_vcpu", "interrupt", "kick")


def scaled(scenario: Scenario, factor: int) -> Scenario:
    """The same migration of a part of the memory.

    A guest that touches so many pages a second touches each page of less memory more often, in proportion; a pass over
    it takes less time, in proportion. What happens to a page between two passes is thus the same. Chunks shrink alike,
    so that there are as many, and what one ioctl costs outside of its pages shrinks with them. What does not scale is
    the time of a single hold of a whole chunk, and so the longest stall. Raises `InputError` if the memory or the chunk
    cannot be divided so.

    - `scenario`: its workload must be a migration.
    - `factor`: memory of the scenario over memory of the result.
    """
    guest, workload, costs = scenario.guest, scenario.workload, scenario.costs
    if not workload.facts.by_chunk:
        raise InputError("workload.kind", workload.kind, "only a migration is scaled so", 'use kind = "migration"')
    unit = PageTable(guest.page_size).pages_per_block() if guest.backing != "4k" else WORD_PAGES
    whole, part = guest.pages, _undivided(scenario, unit)
    if factor < 1 or part % (factor * unit):
        which = "each vCPU's part" if part < whole else "the memory"
        raise InputError(
            "factor", factor, f"{which} must stay a multiple of {format_size(unit * guest.page_size)}",
            f"take a divisor of {part // unit}",
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


def _undivided(scenario: Scenario, unit: int) -> int:
    """Pages of what must stay whole blocks: each vCPU's part, or all of a memory that is shared and has no such."""
    guest = scenario.guest
    return guest.pages if guest.pages % (guest.vcpus * unit) else guest.pages_per_vcpu


def sample(scenario: Scenario, pages_per_vcpu: int, part: int = 1) -> tuple[Scenario, float]:
    """The migration of a part of the memory with so many pages a vCPU, or `SAMPLE_PAGES` in all, and the factor.

    Of these only one in `part`, for what is read beside another run with as few.

    The part is as near to that as the memory and its chunks can be divided. Zipf's law is another with fewer pages, and
    neither the time between slow faults nor that of a throttle shrinks with the memory: such a migration stays whole.

    >>> whole = Scenario.parse({"guest": {"vcpus": 16, "memory": "64G"},
    ...                         "workload": {"kind": "migration", "clear_chunk": "1G"}})
    >>> sample(whole, 4096)[1], sample(whole, 4096, part=4)[1]
    (64.0, 256.0)
    """
    guest, workload = scenario.guest, scenario.workload
    if workload.access == "zipf" or workload.slow_fault_every or workload.throttle != "none":
        return scenario, 1.0
    pages = guest.pages
    wanted = part * pages / max(SAMPLE_PAGES, pages_per_vcpu * guest.vcpus)
    unit = PageTable(guest.page_size).pages_per_block() if guest.backing != "4k" else WORD_PAGES
    parts = _undivided(scenario, unit) // unit
    part = workload.clear_chunk // guest.page_size if workload.clear_chunk else pages
    parts = math.gcd(parts, part // (max(1, workload.clear_threads) * WORD_PAGES))
    factors = [factor for factor in range(1, parts + 1) if parts % factor == 0]
    factor = next((f for f in factors if f >= wanted), factors[-1])
    return (scaled(scenario, factor), float(factor)) if factor > 1 else (scenario, 1.0)
