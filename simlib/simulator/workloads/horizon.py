# SPDX-License-Identifier: BSD-3-Clause
"""Early refusal of runs that would exceed the longest simulated time."""

from __future__ import annotations

from simlib._lib.errors import HorizonError
from simlib.model.pagetable import PageTable
from simlib.model.scenario import Scenario
from simlib.simulator.engine.limits import HORIZON_PS
from simlib.simulator.engine.result import PS


def check_within_horizon(what: str, time: float, hint: str, cli_hint: str = "", extra: int = 0) -> None:
    """Check that a time plus `extra`, ps, can be simulated.

    The message is `what`, with the time as ``{}``, and `hint` (`cli_hint` on the command line). Raises `HorizonError`.
    """
    if extra + time > HORIZON_PS:
        limit = f"more than the longest simulated time of {HORIZON_PS * PS:.0f} s"
        raise HorizonError(what.format(f"{time * PS:.0f} s") + f", {limit}", hint, cli_hint)


LONGEST_RUN = 10**13
"""Number of accesses of all vCPUs (at least two days of computing) above which a run is refused."""

ACCESS_S, LONG_S = 20e-9, 10.0
"""Minimum time of the compiled engine per access without a fault, s; duration from which a run is announced, s."""


def undisturbed_accesses(scenario: Scenario) -> float:
    """Accesses that a running guest makes in the warm-up and the pauses.

    >>> undisturbed_accesses(Scenario.parse({"guest": {"vcpus": 2}, "workload": {"kind": "get_dirty_log", "pause": "4s",
    ...                                       "warm_up": "0s"}}))
    16000000.0
    """
    workload = scenario.workload
    access_ps, pauses = workload.access_interval, workload.iterations * workload.pause
    if workload.kind == "clear_under_load":
        access_ps = scenario.host_costs.guest_access or 0
    elif workload.keeps_accessing:
        pauses = workload.warm_up + (pauses if workload.kind in ("get_dirty_log", "eager_split") else 0)
    else:
        return 0.0
    return scenario.guest.vcpus * pauses / access_ps if access_ps else 0.0


def check_length(scenario: Scenario) -> None:
    """Refuse a run whose warm-up and pauses would take days to simulate. Raises `HorizonError`."""
    accesses = undisturbed_accesses(scenario)
    if accesses > LONGEST_RUN:
        raise HorizonError(
            f"in its pauses, the guest would access memory {accesses:.3g} times, more than the {LONGEST_RUN:.0e} that "
            "can be simulated",
            SHORTER_HINT,
        )


SHORTER_HINT = "shorten pause or warm_up, or lengthen access_interval"
"""Hint for runs with too many accesses in their pauses."""


def least_accesses(scenario: Scenario) -> float:
    """Return the minimum number of accesses: until a migration has sent all memory, or in other runs' pauses or rounds.

    >>> least_accesses(Scenario.parse({"guest": {"vcpus": 2, "memory_per_vcpu": "4M"}, "workload": {"iterations": 3}}))
    8192.0
    """
    guest, workload = scenario.guest, scenario.workload
    if workload.facts.by_chunk:
        wire = guest.pages * guest.page_size * 8 / workload.link
        return undisturbed_accesses(scenario) + guest.vcpus * wire / (workload.access_interval * PS)
    if workload.keeps_accessing or workload.kind in ("clear_under_load", "teardown"):
        return undisturbed_accesses(scenario)
    return float(guest.pages * (1 + workload.iterations))


def long_run_notice(scenario: Scenario, runs: int = 1, concurrency: int = 1) -> str:
    """Return a notice to print before a long run; empty if the run is short.

    >>> s = {"guest": {"vcpus": 64}, "workload": {"kind": "get_dirty_log", "pause": "100s", "access_interval": "500ns"}}
    >>> long_run_notice(Scenario.parse(s), runs=3, concurrency=2)
    'a long run: the guest accesses its memory at least 2.56e+10 times in each of 3 runs, which takes at least 768 ...'
    """
    accesses = least_accesses(scenario)
    seconds = accesses * ACCESS_S * max(1.0, runs / concurrency)
    if seconds < LONG_S:
        return ""
    in_each = f" in each of {runs} runs" if runs > 1 else ""
    hint = "use less memory or a faster link" if scenario.workload.facts.by_chunk else SHORTER_HINT
    notice = f"a long run: the guest accesses its memory at least {accesses:.3g} times{in_each}"
    return f"{notice}, which takes at least {seconds:.0f} s; {hint}"


def check_passes(scenario: Scenario) -> None:
    """Refuse a guest whose passes over its memory cannot end within the simulated time.

    The bound is asymptotic: no vCPU is faster than its own faults in sequence (Denning and Buzen 1978). Raises
    `HorizonError`.

    >>> check_passes(Scenario.parse({"guest": {"memory_per_vcpu": "1T"}, "workload": {"iterations": 1000},
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
    hint = "use less memory or fewer iterations, or sample the pages"
    check_within_horizon(
        "the run would take at least {} of simulated time", least, f"{hint} (pages_per_vcpu=…)", f"{hint} (--pages)"
    )
