# SPDX-License-Identifier: BSD-3-Clause
"""A running guest as the scenario of a simulated migration."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import scipy  # its parts are imported when they are first used

from simlib._lib.errors import InputError
from simlib.model.pagetable import WORD_PAGES, PageTable
from simlib.model.quantities import PS_PER_S, size_text
from simlib.model.scenario import Scenario
from simlib.simulator.sampling.fluid_model import touches_of
from simlib.vmm.dirtying import DirtyRate
from simlib.vmm.guest import RunningGuest
from simlib.vmm.qemu_rules import PAGE


def apply(guest: RunningGuest, scenario: Scenario) -> Scenario:
    """Return the scenario of a migration with the known numbers of a running guest.

    vCPUs, memory (rounded up to whole huge pages for each vCPU) and link are replaced. The interval between two
    accesses is set so that the undisturbed guest dirties as many distinct pages in the measured time as were counted.
    The scenario keeps its architecture and its access pattern. The chunk of a CLEAR is at most the memory.

    Raises `InputError` if the scenario is not a migration or has variants, or if no interval gives that dirty rate.

    - `guest`: its newest dirty rate is used.
    """
    workload = scenario.workload
    if workload.kind != "migration":
        rule = "must be migration to use a running guest's numbers"
        raise InputError("workload.kind", workload.kind, rule, 'write kind = "migration" under [workload]')
    if scenario.variants:
        rule = "must be empty: a running guest is one scenario"
        raise InputError("variants", ", ".join(scenario.variants), rule, "select one variant")
    sized = _sized(guest, scenario)
    rates = [rate for rate in guest.dirty if isinstance(rate, DirtyRate)]
    if not rates:
        return sized
    interval = _access_interval(sized, rates[-1])
    return replace(sized, workload=replace(sized.workload, access_interval=interval))


def pages_written(scenario: Scenario, accesses: float) -> float:
    """Expected number of distinct pages that the guest has written after a total of `accesses` accesses."""
    guest, workload = scenario.guest, scenario.workload
    pages = guest.pages
    if workload.access == "sequential":
        # Each vCPU accesses consecutive pages, cyclically from a random one, of all memory or of its own part.
        round_share = min(1.0, accesses / pages / (guest.vcpus if workload.shared else 1))
        touched = 1 - (1 - round_share) ** (guest.vcpus if workload.shared else 1)
    else:
        touches = touches_of(scenario)
        touched = -float(touches.pages @ np.expm1(-accesses * touches.rate))
    return pages * workload.write_percent / 100 * touched


def _sized(guest: RunningGuest, scenario: Scenario) -> Scenario:
    old, workload = scenario.guest, scenario.workload
    vcpus = guest.vcpus or old.vcpus
    new = replace(old, vcpus=vcpus)
    memory = guest.memory or old.memory
    if memory:
        word = WORD_PAGES * old.page_size
        unit = word if old.backing == "4k" else PageTable(old.page_size).block_bytes()
        whole = math.lcm(unit * vcpus, max(1, workload.clear_threads) * word)
        new = replace(new, memory=-(-memory // whole) * whole, memory_per_vcpu=None)
    chunk = None if workload.clear_chunk is None else min(workload.clear_chunk, new.pages * new.page_size)
    changed = replace(workload, clear_chunk=chunk, link=guest.link or workload.link)
    return replace(scenario, guest=new, workload=changed)


def _access_interval(scenario: Scenario, measured: DirtyRate) -> int:
    """Interval between accesses of a vCPU, ps, at which the guest dirties as many pages as were measured."""
    guest, workload, seconds = scenario.guest, scenario.workload, measured.seconds
    shown = f"{size_text(measured.pages * PAGE / seconds)}/s over {seconds:g} s"
    wanted = measured.pages * PAGE / guest.page_size
    if wanted <= 0:
        rule = "must be above 0: the guest must write during a migration"
        hint = "measure while the guest works, or remove the reply to query-dirty-rate to use access_interval"
        raise InputError("dirty rate", shown, rule, hint)
    most = guest.pages * workload.write_percent / 100
    shorter = "measure over a shorter time (calc-dirty-rate with a smaller calc-time)"
    if wanted > most - 0.5:
        raise InputError(
            "dirty rate", shown,
            f"is {size_text(wanted * guest.page_size)} of distinct pages, but the scenario's guest writes only "
            f"{workload.write_percent} % of its {size_text(guest.pages * guest.page_size)}",
            f"{shorter}, or correct guest.memory and workload.write_percent",
            f"{shorter}, or correct --memory and the scenario's write_percent",
        )  # fmt: skip
    high = wanted
    while pages_written(scenario, high) <= wanted:
        high *= 2
    accesses = float(scipy.optimize.brentq(lambda n: pages_written(scenario, n) - wanted, 0.0, high, rtol=1e-12))
    interval = round(guest.vcpus * seconds * PS_PER_S / accesses)
    if not interval:
        rule = "requires more than one access per picosecond from each vCPU"
        raise InputError("dirty rate", shown, rule, f"{shorter}, or lower workload.zipf_exponent")
    return interval
