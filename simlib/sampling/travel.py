# SPDX-License-Identifier: BSD-3-Clause
"""One walk through a migration of any size, with a window in each of its passes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from simlib.engine.result import BINS, FIRST_SHIFT, LAP_BINS, PS
from simlib.model.scenario import Scenario
from simlib.sampling.course import Cycles, Floats, Pace, Terrain
from simlib.sampling.window import Check, Window, window
from simlib.workloads.degradation import LEVELS, stall_quantile, undisturbed_rate
from simlib.workloads.migration import page_time

SETTLE, LOOK, DRAIN = 16, 48, 32
"""Accesses of each vCPU before a window counts, before CLEAR in it, and after it."""

ROUNDS = 4
"""Windows of a pass at most, until what they assume of the memory is what they find."""

AGREES = 0.03
"""Shares of faulting accesses are taken to be the same if they differ by no more than this part."""

MOST_PASSES = 128
"""More than any migration has; tells the windows' seeds apart."""

_GOLDEN = 0.6180339887498949
"""From pass to pass the place of the window moves by this, so that places of several walks stay spread."""

FEW_FAULTS = 20
"""With fewer a window does not tell how long they take."""


@dataclass(frozen=True)
class Journey:
    """What a walk found.

    Attributes
    ----------
    metrics : dict of str to float
        Those of a migration (`simlib.workloads.migration.METRICS`), but for the utilisation of the lock.
    laps : ndarray, shape (488,)
        Stalls of the whole migration by `simlib.engine.result.lap_bin`.
    curve : ndarray, shape (bins, 2)
        End of each time bin, s since the guest was undisturbed, and the guest's throughput in it.
    windows, events : int
        That were simulated.
    """

    metrics: dict[str, float]
    laps: Floats
    curve: Floats
    windows: int
    events: int


@dataclass(frozen=True)
class _Pass:
    """A pass, and what its windows stand for."""

    cycles: Cycles
    clearing: Window
    sending: Window
    worst: Window
    """On the CLEAR that takes longest."""
    cleared: float
    """What all CLEARs of the pass take alone, over what that of the window does."""
    sent: float
    """Faults of the pass while nothing but sending happens, over those of the window; of few, the same of time."""


def travel(scenario: Scenario, seed: int = 1, at: float = 0.5, check: Check | None = None) -> Journey:
    """Walk through a migration once.

    In each pass one chunk is drawn, with a probability in proportion to what its CLEAR takes alone, so that the ratio of
    what it takes to that stands for all (sampling with probability proportional to size: Hansen and Hurwitz 1943, "On the
    theory of sampling from finite populations", Annals of Mathematical Statistics 14(4)).

    Parameters
    ----------
    scenario : Scenario
        For which `simlib.sampling.why_not` has no reason.
    seed : int
        Of what happens in the windows.
    at : float
        From 0 to 1: where in the first pass its chunk is; walks that stand for the same migration have values that are
        spread evenly.
    check : callable, optional
        Called with (events, simulated time) from time to time.
    """
    workload = scenario.workload
    terrain, pace = Terrain(scenario), first_guess(scenario)
    few = workload.downtime // page_time(scenario)
    passes: list[_Pass] = []
    windows = events = 0
    while terrain.passes < workload.pass_limit:
        dirty = terrain.dirty()
        if np.rint(dirty * terrain.chunks).sum() <= few:
            break
        alone = terrain.alone(dirty)
        place = (at + terrain.passes * _GOLDEN) % 1.0
        chunk = int(np.searchsorted(np.cumsum(alone), place * alone.sum(), side="right"))
        number, assumed = seed * MOST_PASSES + terrain.passes, np.zeros((2, 3))
        for round_ in range(ROUNDS):
            cycles = terrain.copy().walk(dirty, pace)
            if round_ and _agree(cycles.faulting[chunk], assumed):
                break
            assumed = cycles.faulting[chunk]
            clearing, sending = _look(terrain, chunk, cycles, pace, number, check)
            pace = _learn(pace, assumed, clearing, sending, float(alone[chunk]), scenario.guest.vcpus)
            windows, events = windows + 2, events + clearing.events + sending.events
        longest = int(np.argmax(alone))
        worst = clearing
        if alone[longest] > (1 + AGREES) * alone[chunk]:
            worst, _ = _look(terrain, longest, cycles, pace, number, check)
            windows, events = windows + 1, events + worst.events
        cycles = terrain.walk(dirty, pace)
        seen = sending.measured
        sent = float((cycles.send - cycles.drain).sum()) / seen.seconds
        if seen.faults >= FEW_FAULTS:
            sent = cycles.faults_sent() / seen.faults
        passes.append(_Pass(cycles, clearing, sending, worst, float(alone.sum() / alone[chunk]), sent))
        if workload.warm_up * PS + terrain.time >= workload.timeout * PS:
            break
    left = float(np.rint(terrain.dirty() * terrain.chunks).sum())
    return _journey(scenario, terrain.time, passes, left, left <= few, windows, events)


def first_guess(scenario: Scenario) -> Pace:
    """A pace to begin with: faults wait for each other no more than they must."""
    costs, policy, vcpus = scenario.costs, scenario.policy.resolved(), scenario.guest.vcpus

    def cost(*names: str) -> float:
        return sum(getattr(costs, name) or 0 for name in names) * PS

    crossing = 2 * cost("line_transfer")
    alone = cost("fault_exit", "fault_hold") + crossing
    service = {"write": cost("fault_hold") + crossing, "read": crossing}.get(policy.write_protect_fault, 0.0)
    if policy.facts.fault_flush == "broadcast":
        alone, service = alone + cost("tlb_invalidate"), max(service, cost("tlb_invalidate"))
    interval = vcpus / undisturbed_rate(scenario)
    shares = np.array([1e-6, 1e-3, 0.01, 0.03, 0.1, 0.3, 1.0])
    return Pace(interval, tuple(shares), tuple(np.maximum(alone, vcpus * service - interval / shares)))


def _look(
    terrain: Terrain, chunk: int, cycles: Cycles, pace: Pace, seed: int, check: Check | None
) -> tuple[Window, Window]:
    """A window on the CLEAR of a chunk, and one on what follows while it is sent."""
    before, later = cycles.faulting[chunk]
    between = max(pace.between(float(before.sum())), pace.between(float(later.sum())))
    drain = min(DRAIN * between, float(cycles.send[chunk]))
    clearing = window(
        terrain, chunk, before, times=(SETTLE * between, LOOK * between, drain),
        accesses=float(cycles.accesses[chunk, 0]), seed=seed, check=check,
    )  # fmt: skip
    sending = window(terrain, None, later, times=(SETTLE * between, 0.0, LOOK * between), seed=seed, check=check)
    return clearing, sending


def _agree(found: Floats, assumed: Floats) -> bool:
    """Whether the shares of faulting accesses are what a window assumed."""
    now, then = found.sum(axis=1), assumed.sum(axis=1)
    return bool((np.abs(now - then) <= AGREES * np.maximum(np.maximum(now, then), 1e-4)).all())


def _learn(pace: Pace, assumed: Floats, clearing: Window, sending: Window, alone: float, vcpus: int) -> Pace:
    """The pace that two windows found."""
    points = []
    for shares, spell in zip(assumed, (clearing.before, sending.measured), strict=True):
        share = float(shares.sum())
        known = float(np.interp(share, pace.faulting, pace.delay))
        points.append((share, max(0.0, spell.lost / spell.faults) if spell.faults >= FEW_FAULTS else known))
    points.sort()
    if points[1][0] - points[0][0] < 0.2 * points[1][0]:  # too near each other to tell how the delay changes
        points = [tuple(np.mean(points, axis=0).tolist())]
    measured = clearing.measured
    return pace._replace(
        faulting=tuple(share for share, _ in points),
        delay=tuple(delay for _, delay in points),
        clear=clearing.clear / alone,
        working=max(0.0, 1 - measured.lost / (vcpus * measured.seconds)),
        drain=measured.seconds - clearing.clear,
    )


def _journey(
    scenario: Scenario, time: float, passes: list[_Pass], left: float, converged: bool, windows: int, events: int
) -> Journey:
    """All passes together, as a whole simulation would have measured them."""
    sums = dict.fromkeys(("work", "wait", "rest", "acquisitions", "contended"), 0.0)
    laps, longest = np.zeros(LAP_BINS), 0.0
    for one in passes:
        for name in sums:
            sums[name] += one.cleared * getattr(one.clearing.measured, name)
            if name in ("acquisitions", "contended"):
                sums[name] += one.sent * getattr(one.sending.measured, name)
        laps += one.cleared * one.clearing.laps + one.sent * one.sending.laps
        longest = max(longest, float(one.clearing.longest.max()), float(one.worst.longest.max()),
                      _longest_of_all(one.sending.longest, one.sent))  # fmt: skip
    curve, width = _curve(scenario, time, passes)
    widths = np.diff(np.concatenate([[0.0], curve[:, 0]]))
    above = {f"seconds_above_{level}": float(width * (curve[:, 1] < 1 - level / 100).sum()) for level in LEVELS}
    metrics = {
        "precopy_duration": time,
        "passes": float(len(passes)),
        "converged": float(converged),
        "dirty_left": left * scenario.guest.page_size,
        "clear_cpu_time": sums["work"] + sums["wait"] + sums["rest"],
        "clear_work_time": sums["work"],
        "clear_wait_time": sums["wait"],
        "clear_flush_time": sums["rest"],
        **above,
        "guest_throughput": float(curve[:, 1] @ widths / widths.sum()) if len(curve) else 1.0,
        "longest_stall": longest,
        "stall_p999": min(longest, stall_quantile(laps, 0.999)),
        "contentions": sums["contended"] * scenario.workload.counted_runs,
        "lock_acquisitions": sums["acquisitions"],
    }
    return Journey(metrics, laps, curve, windows, events)


def _longest_of_all(longest: Floats, times: float) -> float:
    """The longest stall of a time that is so many times as long, from the longest of each vCPU.

    A generalised extreme value distribution by L-moments (Hosking, Wallis and Wood 1985, "Estimation of the generalized
    extreme-value distribution by the method of probability-weighted moments", Technometrics 27(3), equations 13 to 15),
    whose tail is no heavier than exponential.

    Examples
    --------
    >>> stalls = -np.log(-np.log((np.arange(1000) + 0.5) / 1000))  # Gumbel: the maximum of 1000 times as many is at 13.8
    >>> round(_longest_of_all(stalls, 1000.0), 1)
    13.7
    """
    n = len(longest)
    seen = float(longest.max())
    if n < 4 or longest.min() <= 0 or times <= 1:
        return seen
    ordered, i = np.sort(longest), np.arange(n)
    b0, b1 = ordered.mean(), (i * ordered).sum() / (n * (n - 1))
    b2 = (i * (i - 1) * ordered).sum() / (n * (n - 1) * (n - 2))
    spread = 2 * b1 - b0
    if spread <= 1e-9 * b0:
        return seen
    c = spread / (3 * b2 - b0) - np.log(2) / np.log(3)
    shape = max(0.0, 7.8590 * c + 2.9554 * c * c)
    level = -np.log1p(-1 / (n * times))
    if shape < 1e-6:
        scale = spread / np.log(2)
        return max(seen, float(b0 - np.euler_gamma * scale - scale * np.log(level)))
    gamma = special.gamma(1 + shape)
    scale = spread * shape / (gamma * (1 - 2.0**-shape))
    return max(seen, float(b0 + scale * (gamma - 1) / shape + scale * (1 - level**shape) / shape))


def _curve(scenario: Scenario, time: float, passes: list[_Pass]) -> tuple[NDArray[np.float64], float]:
    """The guest's throughput in time bins as wide as those of a whole simulation; also that width."""
    times, counts = [np.zeros(1)], [np.zeros(1)]
    for one in passes:
        begin, clear, drain, send, accesses, _ = one.cycles
        moments = np.linspace(0, 1, len(one.clearing.profile))
        inner = begin[:, None] + (clear + drain)[:, None] * moments
        during = accesses[:, :1] + (accesses[:, 1] - accesses[:, 0])[:, None] * one.clearing.profile
        times.append(np.column_stack([inner, begin + clear + send]).ravel())
        counts.append(np.column_stack([during, accesses[:, 2]]).ravel())
    warm_up = scenario.workload.warm_up * PS
    end, shift = round((warm_up + time) / PS), FIRST_SHIFT
    while end >> shift >= BINS:
        shift += 1
    width = (1 << shift) * PS
    edges = np.arange(np.ceil(warm_up / width), end // (1 << shift) + 1) * width - warm_up
    if len(edges) < 2:
        edges = np.array([0.0, time])
    done = np.diff(np.interp(edges, np.concatenate(times), np.concatenate(counts)))
    throughput = done / np.maximum(1e-300, undisturbed_rate(scenario) * np.diff(edges))
    return np.column_stack([edges[1:], throughput]), width
