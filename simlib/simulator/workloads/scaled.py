# SPDX-License-Identifier: BSD-3-Clause
"""Scale a migration to less memory: the number of passes is the same, and each is shorter in proportion."""

from __future__ import annotations

import dataclasses
import math

from simlib._lib.errors import InputError
from simlib.model.pagetable import WORD_PAGES, PageTable
from simlib.model.quantities import format_size
from simlib.model.scenario import Scenario

SAMPLE_PAGES = 2**18
"""Minimum number of pages of a scaled migration: 1 GiB, with which predictions of the April 2024 mail do not change."""

_TIMES = ("warm_up", "downtime", "timeout", "pause", "reap_every")
_PER_IOCTL = ("clear_ioctl", "flush", "flush_per_vcpu", "interrupt", "kick")


def scaled(scenario: Scenario, factor: int) -> Scenario:
    """Scale a migration to a part of its memory.

    At the same access rate, a guest with less memory accesses each page more often, in proportion, and a pass over its
    memory takes less time, in proportion. So a page is accessed equally often between two passes. Chunks shrink
    in proportion, and so does the fixed cost of an ioctl, because the number of ioctls stays the same. The time of a
    single hold of a whole chunk, and so the longest stall, does not scale. Raises `InputError` if the memory or the
    chunk cannot be divided by the factor.

    - `scenario`: its workload must be a migration.
    - `factor`: memory of the scenario over memory of the result.
    """
    guest, workload, costs = scenario.guest, scenario.workload, scenario.costs
    if not workload.facts.by_chunk:
        raise InputError("workload.kind", workload.kind, "only a migration can be scaled", 'use kind = "migration"')
    unit = PageTable(guest.page_size).pages_per_block() if guest.backing != "4k" else WORD_PAGES
    whole, part = guest.pages, _undivided(scenario, unit)
    if factor < 1 or part % (factor * unit):
        which = "each vCPU's part" if part < whole else "the memory"
        raise InputError(
            "factor", factor, f"{which} must stay a multiple of {format_size(unit * guest.page_size)}",
            f"use a divisor of {part // unit}",
        )  # fmt: skip
    chunk = workload.clear_chunk
    if chunk is not None and chunk % (factor * WORD_PAGES * guest.page_size):
        raise InputError("factor", factor, f"does not divide a chunk of {format_size(chunk)}", "use a smaller factor")
    return dataclasses.replace(
        scenario,
        guest=dataclasses.replace(guest, memory_per_vcpu=None, memory=whole * guest.page_size // factor),
        workload=dataclasses.replace(
            workload,
            clear_chunk=None if chunk is None else chunk // factor,
            **{name: getattr(workload, name) // factor for name in _TIMES},
        ),
        costs=dataclasses.replace(
            costs, **{name: None if (cost := getattr(costs, name)) is None else cost // factor for name in _PER_IOCTL}
        ),
    )


def _undivided(scenario: Scenario, unit: int) -> int:
    """Pages of the part that must consist of whole blocks: each vCPU's region, or shared memory without regions."""
    guest = scenario.guest
    return guest.pages if guest.pages % (guest.vcpus * unit) else guest.pages_per_vcpu


def sample(scenario: Scenario, pages_per_vcpu: int, fraction: int = 1) -> tuple[Scenario, float]:
    """Scenario with about `pages_per_vcpu` pages per vCPU, at least `SAMPLE_PAGES` in total, and its scale factor.

    The number of pages is as close to this as the divisors of memory and chunks allow. A migration is not scaled if it
    depends on more than its memory: Zipf's law differs with fewer pages, and neither the time between slow faults nor
    that of a throttle shrinks with the memory.

    - `fraction`: keep only one in `fraction` of these pages, for a second run that is compared with this one.

    >>> whole = Scenario.parse({"guest": {"vcpus": 16, "memory": "64G"},
    ...                         "workload": {"kind": "migration", "clear_chunk": "1G"}})
    >>> sample(whole, 4096)[1], sample(whole, 4096, fraction=4)[1]
    (64.0, 256.0)
    """
    guest, workload = scenario.guest, scenario.workload
    if workload.access == "zipf" or workload.slow_fault_every or workload.throttle != "none":
        return scenario, 1.0
    pages = guest.pages
    target = fraction * pages / max(SAMPLE_PAGES, pages_per_vcpu * guest.vcpus)
    unit = PageTable(guest.page_size).pages_per_block() if guest.backing != "4k" else WORD_PAGES
    parts = _undivided(scenario, unit) // unit
    chunk = workload.clear_chunk // guest.page_size if workload.clear_chunk else pages
    parts = math.gcd(parts, chunk // (max(1, workload.clear_threads) * WORD_PAGES))
    factors = [factor for factor in range(1, parts + 1) if parts % factor == 0]
    factor = next((f for f in factors if f >= target), factors[-1])
    return (scaled(scenario, factor), float(factor)) if factor > 1 else (scenario, 1.0)
