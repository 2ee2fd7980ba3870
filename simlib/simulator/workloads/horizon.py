# SPDX-License-Identifier: BSD-3-Clause
"""Refusing at once what would run past the simulated time."""

from __future__ import annotations

from simlib._lib.errors import HorizonError
from simlib.model.pagetable import PageTable
from simlib.model.scenario import Scenario
from simlib.simulator.engine.limits import HORIZON_PS
from simlib.simulator.engine.result import PS


def within_horizon(what: str, time: float, cure: str, option: str = "", beside: int = 0) -> None:
    """Raise unless a time, ps, and what passes `beside` it can be simulated.

    The sentence is `what`, in which the time stands for ``{}``, and `cure`; on the command line `option`. Raises
    `HorizonError`.
    """
    if beside + time > HORIZON_PS:
        limit = f"more than the {HORIZON_PS * PS:.0f} s that are simulated"
        raise HorizonError(what.format(f"{time * PS:.0f} s") + f", {limit}", cure, option)


LONGEST_RUN = 10**13
"""Accesses of all vCPUs from which on a run is refused: a week."""

ACCESS_S, LONG_S = 20e-9, 10.0
"""What the compiled engine takes for an access that meets nothing, s, at best; from how long on a run is announced."""


def undisturbed_accesses(scenario: Scenario) -> float:
    """Accesses that a guest which works on makes while nobody does anything: in the warm-up and the pauses.

    >>> undisturbed_accesses(Scenario.parse({"guest": {"vcpus": 2}, "workload": {"kind": "get_dirty_log", "pause": "4s",
    ...                                       "warm_up": "0s"}}))
    16000000.0
    """
    workload = scenario.workload
    each, pauses = workload.access_interval, workload.iterations * workload.pause
    if workload.kind == "clear_under_load":
        each = scenario.host_costs.guest_access or 0
    elif workload.keeps_touching:
        pauses = workload.warm_up + (pauses if workload.kind in ("get_dirty_log", "eager_split") else 0)
    else:
        return 0.0
    return scenario.guest.vcpus * pauses / each if each else 0.0


def check_length(scenario: Scenario) -> None:
    """Refuse a run whose guest would touch its memory for days before anything happens.

    Raises `HorizonError`.
    """
    accesses = undisturbed_accesses(scenario)
    if accesses > LONGEST_RUN:
        raise HorizonError(
            f"in its pauses the guest touches its memory {accesses:.3g} times, more than the {LONGEST_RUN:.0e} of "
            "which a simulation ends",
            SHORTER,
        )


SHORTER = "shorten pause or warm_up, or lengthen access_interval"


def least_accesses(scenario: Scenario) -> float:
    """Accesses that a run has at least: of a migration until all memory was sent once, else in its pauses or rounds.

    >>> least_accesses(Scenario.parse({"guest": {"vcpus": 2, "memory_per_vcpu": "4M"}, "workload": {"iterations": 3}}))
    8192.0
    """
    guest, workload = scenario.guest, scenario.workload
    if workload.facts.by_chunk:
        wire = guest.pages * guest.page_size * 8 / workload.link
        return undisturbed_accesses(scenario) + guest.vcpus * wire / (workload.access_interval * PS)
    if workload.keeps_touching or workload.kind in ("clear_under_load", "teardown"):
        return undisturbed_accesses(scenario)
    return float(guest.pages * (1 + workload.iterations))


def how_long(scenario: Scenario, runs: int = 1, at_a_time: int = 1) -> str:
    """What to say of a long run before it begins; empty: it is none.

    >>> s = {"guest": {"vcpus": 64}, "workload": {"kind": "get_dirty_log", "pause": "100s", "access_interval": "500ns"}}
    >>> how_long(Scenario.parse(s), runs=3, at_a_time=2)
    'a long run: the guest touches its memory 2.56e+10 times and more, in each of 3 runs: 768 s at least; shorten ...'
    """
    accesses = least_accesses(scenario)
    seconds = accesses * ACCESS_S * max(1.0, runs / at_a_time)
    if seconds < LONG_S:
        return ""
    each = f", in each of {runs} runs" if runs > 1 else ""
    cure = "take less memory or a faster link" if scenario.workload.facts.by_chunk else SHORTER
    what = f"a long run: the guest touches its memory {accesses:.3g} times and more{each}"
    return f"{what}: {seconds:.0f} s at least; {cure}"


def check_walks(scenario: Scenario) -> None:
    """Refuse a guest whose walks over its memory cannot end in time.

    The bound is asymptotic: no vCPU is faster than its own faults one after another (Denning and Buzen 1978). Raises
    `HorizonError`.

    >>> check_walks(Scenario.parse({"guest": {"memory_per_vcpu": "1T"}, "workload": {"iterations": 1000},
    ...                             "costs": {"fault_unlocked": "1us"}}))
    Traceback (most recent call last):
    ...
    simlib.HorizonError: the run would take at least 268168 s of simulated time, ...
    """
    costs, workload, guest = scenario.costs, scenario.workload, scenario.guest
    passes = 1 + workload.iterations - (1 if workload.initially_set else 0)
    fault = (costs.fault_unlocked or 0) + (costs.fault_hold or 0)
    blocks = PageTable(guest.page_size).pages_per_block() if guest.mapped_as_blocks else 1
    least = guest.pages_per_vcpu * (
        fault / blocks + (passes - 1) * workload.write_percent / 100 * fault + passes * (costs.guest_access or 0)
    )
    less = "take less memory or fewer iterations, or sample the pages"
    within_horizon(
        "the run would take at least {} of simulated time", least, f"{less} (pages_per_vcpu=…)", f"{less} (--pages)"
    )
