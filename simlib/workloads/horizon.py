# SPDX-License-Identifier: BSD-3-Clause
"""Refusing at once what would run past the simulated time."""

from __future__ import annotations

from simlib.engine.limits import HORIZON_PS
from simlib.engine.result import PS
from simlib.errors import HorizonError
from simlib.model.pagetable import PageTable
from simlib.model.scenario import Scenario


def within_horizon(what: str, time: float, cure: str, option: str = "", beside: int = 0) -> None:
    """Raise unless a time, ps, and what passes `beside` it can be simulated.

    The sentence is `what`, in which the time stands for ``{}``, and `cure`; on the command line `option`. Raises
    `HorizonError`.
    """
    if beside + time > HORIZON_PS:
        limit = f"more than the {HORIZON_PS * PS:.0f} s that are simulated"
        raise HorizonError(what.format(f"{time * PS:.0f} s") + f", {limit}", cure, option)


LONG_RUN, LONGEST_RUN = 10**9, 10**13
"""Accesses of all vCPUs from which on a run is announced (a minute), and refused (a week)."""


def undisturbed_accesses(scenario: Scenario) -> float:
    """Accesses that a guest which works on makes while nobody does anything: in the warm-up and the pauses.

    >>> undisturbed_accesses(Scenario.parse({"guest": {"vcpus": 2}, "workload": {"kind": "get_dirty_log", "pause": "4s",
    ...                                       "warm_up": "0s"}}))
    16000000.0
    """
    workload = scenario.workload
    each, pauses = workload.access_interval, workload.iterations * workload.pause
    if workload.kind == "clear_under_load":
        each = scenario.machine_costs.guest_access or 0
    elif workload.keeps_touching:
        pauses = workload.warm_up + (pauses if workload.kind in ("get_dirty_log", "eager_split") else 0)
    else:
        return 0.0
    return scenario.guest.vcpus * pauses / each if each else 0.0


def check_length(scenario: Scenario) -> str:
    """Refuse a run whose guest would touch its memory for days before anything happens.

    Returns: What to say of a long one beforehand; empty: it is none. Raises `HorizonError`.

    >>> s = {"guest": {"vcpus": 64}, "workload": {"kind": "get_dirty_log", "pause": "100s", "access_interval": "500ns"}}
    >>> check_length(Scenario.parse(s))
    'a long run: in its pauses the guest touches its memory 2.56e+10 times, some 50 million a second; shorten pause ...'
    """
    accesses = undisturbed_accesses(scenario)
    shorter = "shorten pause or warm_up, or lengthen access_interval"
    what = f"in its pauses the guest touches its memory {accesses:.3g} times"
    if accesses > LONGEST_RUN:
        raise HorizonError(f"{what}, more than the {LONGEST_RUN:.0e} of which a simulation ends", shorter)
    return f"a long run: {what}, some 50 million a second; {shorter}" if accesses > LONG_RUN else ""


def check_walks(scenario: Scenario) -> None:
    """Refuse a guest whose walks over its memory cannot end in time.

    The bound is asymptotic: no vCPU is faster than its own faults one after another (Denning and Buzen 1978). Raises
    `HorizonError`.

    >>> check_walks(Scenario.parse({"guest": {"memory_per_vcpu": "1T"}, "workload": {"iterations": 1000},
    ...                             "costs": {"fault_exit": "1us"}}))
    Traceback (most recent call last):
    ...
    simlib.errors.HorizonError: the run would take at least 268168 s of simulated time, ...
    """
    costs, workload, guest = scenario.costs, scenario.workload, scenario.guest
    passes = 1 + workload.iterations - (1 if workload.initially_set else 0)
    fault = (costs.fault_exit or 0) + (costs.fault_hold or 0)
    blocks = PageTable(guest.page_size).pages_per_block() if guest.mapped_as_blocks else 1
    least = guest.pages_per_vcpu * (
        fault / blocks + (passes - 1) * workload.write_percent / 100 * fault + passes * (costs.guest_access or 0)
    )
    less = "take less memory or fewer iterations, or sample the pages"
    within_horizon(
        "the run would take at least {} of simulated time", least, f"{less} (pages_per_vcpu=…)", f"{less} (--pages)"
    )
