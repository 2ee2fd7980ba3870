# SPDX-License-Identifier: BSD-3-Clause
"""One walk through a migration of any size, with a window in each of its passes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from simlib._lib.parallel import Check
from simlib.model.architectures import TRACKING
from simlib.model.job import Job
from simlib.model.scenario import Scenario
from simlib.simulator.engine.random import FIXED_POINT_BITS, quantile_table
from simlib.simulator.engine.result import LAP_BINS, PS, bin_width, lap_quantile
from simlib.simulator.sampling import rings
from simlib.simulator.sampling.fluid_model import ENDS, GOLDEN, Cycles, Floats, MemoryState, Rates, cost_of, service_of
from simlib.simulator.sampling.window import Window, WindowSpec, window, window_job
from simlib.simulator.workloads.degradation import LEVELS, undisturbed_rate
from simlib.simulator.workloads.kernel import split_at_once
from simlib.simulator.workloads.migration import page_time

SETTLE, LOOK, DRAIN = 16, 48, 32
"""Accesses of each vCPU before a window counts, before CLEAR in it, and after it."""

ROUNDS = 4
"""Windows of a pass at most, until what they assume of the memory is what they find."""

ALIKE = 0.25
"""Shares of faulting accesses that differ by less than this part make a fault lose as much."""

AGREES = 0.03
"""Shares of faulting accesses are taken to be the same if they differ by no more than this part."""

MOST_PASSES = 128
"""More than any migration has; tells the windows' seeds apart."""

ENOUGH = 400
"""Faults that a window tries to see while nothing is cleared, within ten times `LOOK`."""

ENABLING = 0.0
"""What enabling takes where every page is dirty at once, s: no other log is sampled (`sampling.why_not`)."""

FEW_FAULTS = 20
"""With fewer a window does not tell how long they take."""

LOGGED_NOISE = 0.1
"""By what part a fault's mean time may be off, of those that a window tells, because log buffers are seldom full."""


class Stalls(NamedTuple):
    """The longest stalls of a window.

    `longest`: of each vCPU, s; `times`: how many times as much there was in the whole migration; `most`: what no stall
    can exceed, s.
    """

    longest: Floats
    times: float
    most: float

    def expected(self) -> float:
        """The longest stall to expect in all of what the window stands for, s.

        A generalised extreme value distribution by L-moments (Hosking, Wallis and Wood 1985, "Estimation of the
        generalized extreme-value distribution by the method of probability-weighted moments", Technometrics 27(3),
        equations 13 to 15), whose tail is no heavier than exponential. Where vCPUs differ by more than a factor of two
        some met what the others did not, and there is no common distribution: then it is the longest that was seen.

        >>> seen = 10 - np.log(-np.log((np.arange(1000) + 0.5) / 1000))
        >>> round(Stalls(seen, 1000.0, np.inf).expected(), 1), Stalls(seen, 1000.0, 20.0).expected()
        (23.8, 20.0)
        """
        stalled = self.longest[self.longest > 0]
        n, seen = len(stalled), float(self.longest.max())
        if n < 8 or self.times <= 1 or seen > 2 * np.median(stalled):
            return seen
        ordered, i = np.sort(stalled), np.arange(n)
        b0, b1 = ordered.mean(), (i * ordered).sum() / (n * (n - 1))
        b2 = (i * (i - 1) * ordered).sum() / (n * (n - 1) * (n - 2))
        spread = 2 * b1 - b0
        if spread <= 1e-9 * b0:
            return seen
        c = spread / (3 * b2 - b0) - np.log(2) / np.log(3)
        shape = max(1e-6, 7.8590 * c + 2.9554 * c * c)
        gamma, level = special.gamma(1 + shape), -np.log1p(-1 / (n * self.times))
        scale = spread * shape / (gamma * (1 - 2.0**-shape))
        return max(seen, min(self.most, float(b0 + scale * (gamma - level**shape) / shape)))


def _most(scenario: Scenario, seen: Window) -> float:
    """What no stall can exceed, s.

    Where nobody waits, a kick and a fault at its longest draws; where a hold of somebody else decides, that hold and
    those; else a hold and twice everybody's.
    """
    costs = scenario.host_costs
    spread = float(quantile_table(float(costs.fault_jitter or 0.0)).max()) / 2**FIXED_POINT_BITS
    crossing = 2 * (costs.line_transfer or 0) + 4 * (costs.line_local or 0)
    fault = (spread * ((costs.fault_unlocked or 0) + (costs.fault_hold or 0)) + crossing + (costs.kick or 0)) * PS
    if buffer := scenario.policy.buffer_entries:
        full = spread * (costs.log_exit or 0) + buffer * (costs.log_entry or 0)
        fault = max(fault, full * PS)
    longest = float(seen.longest.max())
    if seen.measured.queued <= 1e-3 * seen.measured.lost:
        return float(fault)
    if seen.hold / 2 <= longest <= 1.5 * seen.hold:
        return float(seen.hold + fault)
    return float(seen.hold + 2 * scenario.guest.vcpus * fault)


@dataclass(frozen=True)
class SampledRun:
    """What a walk found.

    - `metrics`: those of a migration (`simlib.simulator.workloads.migration.METRICS`), but for the utilisation of the
      lock.
    - `laps`, shape (1888,): stalls of the whole migration by `simlib.simulator.engine.result.lap_bin`.
    - `stalls`: of each window.
    - `curve`, shape (bins, 2): end of each time bin, s since the guest was undisturbed, and the guest's throughput in
      it.
    - `sent`: pages that each pass sent; `last`: duration of the last one, s.
    - `windows`, `events`: that were simulated.
    """

    metrics: dict[str, float]
    laps: Floats
    stalls: list[Stalls]
    curve: Floats
    sent: tuple[float, ...]
    last: float
    windows: int
    events: int


class _Sent(NamedTuple):
    """A window while nothing but sending happens, and what it stands for.

    `part`: of the time in which a chunk is sent; None: all of it. `times`: faults in that part of the pass over those
    of the window, or of few the same of time.
    """

    window: Window
    part: int | None
    times: float = 0.0


class _Pass(NamedTuple):
    """A pass, and what its windows stand for.

    `clearing`: the window on a CLEAR, of which the pass has `times` as many, each by what it takes alone; `worst`: that
    on the CLEAR that takes longest.
    """

    cycles: Cycles
    clearing: Window
    worst: Window
    sent: list[_Sent]
    times: float


def sample_once(scenario: Scenario, seed: int = 1, at: float = 0.5, check: Check | None = None) -> SampledRun:
    """Walk through a migration once.

    In each pass one chunk is drawn whose CLEAR is looked at, with a probability in proportion to what that takes alone,
    and one whose sending is, in proportion to the guest's faults meanwhile; so ratios to these stand for all (sampling
    with probability proportional to size: Hansen and Hurwitz 1943, "On the theory of sampling from finite populations",
    Annals of Mathematical Statistics 14(4)).

    - `scenario`: for which `simlib.simulator.sampling.why_not` has no reason.
    - `seed`: of what happens in the windows.
    - `at`: from 0 to 1: where in the first pass its chunk is; walks that stand for the same migration have values that
      are spread evenly.
    - `check`: called with (events, simulated time) from time to time.
    """
    workload = scenario.workload
    if workload.rings:
        return _with_rings(scenario, seed, check)
    terrain, pace = MemoryState(scenario), first_guess(scenario)
    few = workload.downtime // page_time(scenario)
    passes: list[_Pass] = []
    windows = events = 0
    while terrain.passes < workload.pass_limit:
        dirty = terrain.dirty()
        if np.rint(dirty * terrain.chunks).sum() <= few:
            break
        alone = terrain.alone(dirty)
        place = (at + terrain.passes * GOLDEN) % 1.0
        chunk = int(np.searchsorted(np.cumsum(alone), place * alone.sum(), side="right"))
        number, assumed, sender = seed * MOST_PASSES + terrain.passes, np.zeros(0), -1
        for round_ in range(ROUNDS):
            walked = terrain.copy()
            cycles = walked.walk(dirty, pace)
            if sender < 0:
                faults = np.cumsum(cycles.faults.sum(axis=1))
                sender = int(np.searchsorted(faults, (place + 0.5) % 1.0 * faults[-1], side="right"))
                sender = min(sender, len(alone) - 1)
            found = np.concatenate([cycles.faulting[chunk, :1], cycles.faulting[sender, 1:]])
            if settled := round_ > 0 and _agree(found, assumed):
                break
            assumed = found
            clearing = window(_clear(terrain, chunk, cycles, pace), number, check)
            sent = _look_at_sending(terrain, sender, cycles, pace, number, check)
            logged = float(_logged(cycles, sender, scenario.guest.vcpus)[-1])
            pace = _learn(pace, assumed, clearing, sent, float(alone[chunk]), _logging(scenario, logged))
            windows += 1 + len(sent)
            events += clearing.events + sum(one.window.events for one in sent)
        longest, worst = int(np.argmax(alone)), clearing
        if alone[longest] > (1 + AGREES) * alone[chunk]:
            worst = window(_clear(terrain, longest, cycles, pace), number, check)
            windows, events = windows + 1, events + worst.events
        if settled:
            terrain = walked
        else:
            cycles = terrain.walk(dirty, pace)
        sent = [one._replace(times=_times(cycles, one)) for one in sent]
        passes.append(_Pass(cycles, clearing, worst, sent, float(alone.sum() / alone[chunk])))
        if workload.warm_up * PS + terrain.time >= workload.timeout * PS:
            break
    left = float(np.rint(terrain.dirty() * terrain.chunks).sum())
    return _journey(scenario, terrain.time, passes, left, left <= few, windows, events)


def _with_rings(scenario: Scenario, seed: int, check: Check | None) -> SampledRun:
    """A migration whose rings are reaped."""
    found = rings.passes_of(scenario, seed, check)
    passes = found.passes
    entries = scenario.guest.vcpus * scenario.workload.ring_entries
    metrics, most = rings.ring_metrics(scenario, found), 2 * rings.reaping(scenario, entries).seconds
    stands = [(one.window, one.seconds / one.window.seen.seconds) for one in passes]
    laps = np.sum([times * window.laps for window, times in stands], axis=0)
    stalls = [Stalls(window.longest, times, max(most, window.longest.max())) for window, times in stands]
    longest = max(float(value) for one in stalls for value in (one.expected(), one.longest.max()))
    metrics |= {"longest_stall": longest, "stall_p999": min(longest, lap_quantile(laps, 0.999))}
    windows = list({id(window): window for window, _ in stands}.values())
    curve, sent = rings.curve_of(passes, metrics["enable_time"]), tuple(one.sent for one in passes)
    events = sum(window.events for window in windows)
    return SampledRun(metrics, laps, stalls, curve, sent, passes[-1].seconds, len(windows), events)


def first_guess(scenario: Scenario) -> Rates:
    """A pace to begin with: faults wait for each other no more than they must."""
    cost, policy, vcpus = partial(cost_of, scenario), scenario.policy.resolved(), scenario.guest.vcpus
    crossing = 2 * cost("line_transfer")
    interval = vcpus / undisturbed_rate(scenario)
    if (logging := _logging(scenario)) is not None:
        return Rates(vcpus, interval, (1.0,), (logging.write,), (0.0,), **_flush_of_a_split(scenario))
    alone = cost("fault_unlocked", "fault_hold") + crossing
    service = {"write": cost("fault_hold") + crossing, "read": crossing}.get(policy.write_protect_fault, 0.0)
    if policy.facts.fault_flush == "broadcast":
        alone, service = alone + cost("tlb_invalidate"), max(service, cost("tlb_invalidate"))
    return Rates(vcpus, interval, (1.0,), (alone,), (service,), **_flush_of_a_split(scenario))


class Logging(NamedTuple):
    """What logged writes take, s.

    `write`: one, with its part of full log buffers; `buffer`: a full one; `full`: the share of writes whose page leaves
    its buffer because that is full, over its entries: others do when the vCPU is interrupted. `fault`: another fault.
    """

    write: float
    buffer: float
    full: float
    fault: float

    def few(self, shares: Floats) -> float:
        """With fewer faults a window does not tell how long they take, as full log buffers are rare.

        - `shares`, shape (3,): of the accesses that meet a clean page, a block that is not split, and a missing page.
        """
        part = float(shares[0] / shares.sum()) if shares[0] else 0.0
        mean = part * self.write + (1 - part) * self.fault
        return max(FEW_FAULTS, part * self.full * (self.buffer / mean / LOGGED_NOISE) ** 2 if mean else 0.0)


def _logging(scenario: Scenario, logged: float = 0.0) -> Logging | None:
    """What logged writes take, of which a vCPU makes so many between two interrupts; None: writes fault."""
    if not TRACKING[scenario.policy.resolved().dirty_tracking].dirty_bits:
        return None
    cost, entries = partial(cost_of, scenario), scenario.policy.buffer_entries
    buffer, full = cost("log_exit") + entries * cost("log_entry"), logged // entries / logged if logged else 0.0
    return Logging(cost("dirty_set") + full * buffer, buffer, full, cost("fault_unlocked", "fault_hold"))


def _logged(cycles: Cycles, chunk: int, vcpus: int) -> Floats:
    """Pages that a vCPU has logged since a chunk's CLEAR ended when each part of its sending begins, and at its end."""
    shares, after = cycles.faulting[chunk], cycles.drain[chunk] / (cycles.clear[chunk] + cycles.drain[chunk])
    first = (cycles.accesses[chunk, 1] - cycles.accesses[chunk, 0]) * after * shares[0, 0]
    parts = cycles.faults[chunk] * shares[1:, 0] / np.maximum(shares[1:].sum(axis=1), 1e-300)
    return np.asarray(np.cumsum([first, *parts]) / vcpus)


def _flush_of_a_split(scenario: Scenario) -> dict[str, float]:
    """What a fault that splits a block takes besides (`Architecture.split_flush`), as `Rates` has it, s."""
    if not scenario.policy.resolved().facts.split_flush:
        return {}
    costs, vcpus, blocks = scenario.host_costs, scenario.guest.vcpus, split_at_once(scenario.guest)
    held = ((costs.flush or 0) + vcpus * (costs.flush_per_vcpu or 0) + (costs.interrupt or 0)) * PS / blocks
    return {"flush": held + vcpus * (costs.kick or 0) * PS / blocks, "held": held}


def _clear(terrain: MemoryState, chunk: int, cycles: Cycles, pace: Rates) -> WindowSpec:
    """The window on a CLEAR."""
    between = max(pace.between(float(shares.sum()), float(shares[1])) for shares in cycles.faulting[chunk])
    kicked = SETTLE * between + (terrain.scenario.host_costs.kick or 0) * PS  # for who faults after it, too
    after = min(max(DRAIN * between, kicked), float(cycles.send[chunk]))
    times = SETTLE * between, LOOK * between, after
    share = cycles.faulting[chunk, 0]
    before = _logged(cycles, chunk - 1, terrain.scenario.guest.vcpus)[-1] - (SETTLE + LOOK) * share[0] if chunk else 0.0
    return WindowSpec(terrain, chunk, share, times, float(cycles.accesses[chunk, 0]), (max(0.0, before),) * 2)


def job_of_clear(scenario: Scenario, seed: int = 1) -> Job:
    """The window on one CLEAR amid the first pass, to be run with a trace: who holds the lock while it works.

    Faults are taken to wait for each other no more than they must: what a walk learns about that in its first rounds is
    not known here.

    - `scenario`: for which `simlib.simulator.sampling.why_not` has no reason.

    >>> guest = Scenario.parse({"guest": {"vcpus": 4, "memory": "1G", "backing": "hugetlb_2mb"},
    ...     "policy": {"architecture": "arm64"}, "costs": {"clear_page": "40ns", "fault_unlocked": "1us"},
    ...     "workload": {"kind": "migration", "access": "uniform", "shared": True, "clear_chunk": "128M"}})
    >>> [stamp.phase for stamp in job_of_clear(guest).stamps]
    ['settled', 'opened', 'cleared', 'closed']
    """
    terrain, pace = MemoryState(scenario), first_guess(scenario)
    dirty = terrain.dirty()
    alone = terrain.alone(dirty)
    chunk = int(np.searchsorted(np.cumsum(alone), 0.5 * alone.sum(), side="right"))
    cycles = terrain.copy().walk(dirty, pace)
    return window_job(_clear(terrain, chunk, cycles, pace), seed)


def _look_at_sending(
    terrain: MemoryState, chunk: int, cycles: Cycles, pace: Rates, seed: int, check: Check | None
) -> list[_Sent]:
    """One window if faults are as frequent all the time, else one for each part of it."""
    shares, faults, vcpus = cycles.faulting[chunk, 1:], cycles.faults[chunk], terrain.scenario.guest.vcpus
    logged = _logged(cycles, chunk, vcpus)
    frequent = shares.sum(axis=1)
    parts: list[tuple[int | None, Floats]] = list(enumerate(shares))
    if frequent.max() <= (1 + ALIKE) * frequent.min():
        parts = [(None, np.average(shares, axis=0, weights=faults) if faults.any() else shares[0])]
    found = []
    for part, share in parts:
        frequency = float(share.sum())
        between = pace.between(frequency, float(share[1]))
        accesses = min(10 * LOOK, max(LOOK, ENOUGH / max(1e-9, frequency * vcpus)))
        times = SETTLE * between, 0.0, accesses * between
        first, last = (0, -1) if part is None else (part, part + 1)
        view = WindowSpec(terrain, None, share, times, logged=(float(logged[first]), float(logged[last])))
        found.append(_Sent(window(view, seed, check), part))
    return found


def _times(cycles: Cycles, sent: _Sent) -> float:
    seen = sent.window.measured
    if seen.faults >= FEW_FAULTS:
        return float((cycles.faults if sent.part is None else cycles.faults[:, sent.part]).sum() / seen.faults)
    share = 1.0 if sent.part is None else float(np.diff(ENDS, prepend=0)[sent.part])
    return share * float((cycles.send - cycles.drain).sum()) / seen.seconds


def _agree(found: Floats, assumed: Floats) -> bool:
    """Whether the shares of faulting accesses are what a window assumed."""
    now, then = found.sum(axis=1), assumed.sum(axis=1)
    return bool((np.abs(now - then) <= AGREES * np.maximum(np.maximum(now, then), 1e-4)).all())


def _learn(
    pace: Rates, assumed: Floats, clearing: Window, sent: list[_Sent], alone: float, logging: Logging | None
) -> Rates:
    """The pace that some windows found."""
    sending = [assumed[1:].mean(axis=0) if one.part is None else assumed[1 + one.part] for one in sent]
    seen = zip([assumed[0], *sending], [clearing.before, *(one.window.measured for one in sent)], strict=True)
    points: list[tuple[float, float, float]] = []  # share, what a fault loses besides waiting, and keeps others waiting
    for share, spell, met in sorted((float(met.sum()), spell, tuple(met)) for met, spell in seen):
        if spell.faults < (FEW_FAULTS if logging is None else logging.few(np.array(met))):
            continue
        queued, part = spell.queued / spell.faults, spell.splits / spell.faults
        delay = max(0.0, spell.lost / spell.faults - queued)
        service = service_of(pace.vcpus, pace.interval, share, delay, queued) - part * pace.held
        point = share, max(0.0, delay - part * pace.flush), max(0.0, service)
        if points and share - points[-1][0] < ALIKE * share:  # too near to tell what makes the difference
            point = tuple(np.mean([points.pop(), point], axis=0).tolist())
        points.append(point)
    if points:
        faulting, delays, services = zip(*points, strict=True)
        pace = pace._replace(faulting=faulting, delay=delays, service=services)
    elif logging is not None:
        pace = pace._replace(faulting=(1.0,), delay=(logging.write,), service=(0.0,))
    drain = clearing.measured.seconds - clearing.clear
    working = clearing.measured.working(pace.vcpus, pace.interval)
    return pace._replace(clear=clearing.clear / alone, working=working, drain=drain)


def _journey(
    scenario: Scenario, time: float, passes: list[_Pass], left: float, converged: bool, windows: int, events: int
) -> SampledRun:
    """All passes together, as a whole simulation would have measured them."""
    sums = dict.fromkeys(("work", "wait", "rest", "acquisitions", "contended"), 0.0)
    laps, stalls = np.zeros(LAP_BINS), list[Stalls]()
    for one in passes:
        parts = [(one.clearing, one.times), *((part.window, part.times) for part in one.sent)]
        for seen, times in parts:
            laps += times * seen.laps
            for name in sums:  # while it sends, the migration thread does not work for CLEAR
                if seen is one.clearing or name in ("acquisitions", "contended"):
                    sums[name] += times * getattr(seen.measured, name)
        parts.append((one.worst, one.times))
        stalls += [Stalls(seen.longest, times, _most(scenario, seen)) for seen, times in parts]
    longest = max((found.expected() for found in stalls), default=0.0)
    curve, width = _curve(scenario, time, passes)
    widths = np.diff(np.concatenate([[0.0], curve[:, 0]]))
    above = {f"seconds_above_{level}": float(width * (curve[:, 1] < 1 - level / 100).sum()) for level in LEVELS}
    clear, fault = sums["work"] + sums["wait"] + sums["rest"], 0.0
    if passes:  # what all vCPUs together had no time for but to fault and to wait
        vcpus, accesses = scenario.guest.vcpus, float(passes[-1].cycles.accesses[-1, -1])
        fault = max(0.0, vcpus * (time - accesses / undisturbed_rate(scenario)))
    metrics = {
        "logging_cpu_time": ENABLING + clear + fault,
        "enable_cpu_time": ENABLING,
        "clear_cpu_time": clear,
        "fault_cpu_time": fault,
        "clear_work_time": sums["work"],
        "clear_wait_time": sums["wait"],
        "clear_flush_time": sums["rest"],
        "enable_time": ENABLING,
        "precopy_duration": time,
        "passes": float(len(passes)),
        "converged": float(converged),
        "dirty_left": left * scenario.guest.page_size,
        "downtime": left * page_time(scenario) * PS,
        **above,
        "guest_throughput": min(1.0, float(curve[:, 1] @ widths / widths.sum())) if time else 1.0,
        "longest_stall": longest,
        "stall_p999": min(longest, lap_quantile(laps, 0.999)),
        "contentions": sums["contended"] * scenario.workload.lock_stat_runs,
        "lock_acquisitions": sums["acquisitions"],
    }
    sent = tuple(float(np.rint(one.cycles.send.sum() / (page_time(scenario) * PS))) for one in passes)
    last = time - float(passes[-1].cycles.begin[0]) if passes else 0.0
    return SampledRun(metrics, laps, stalls, curve, sent, last, windows, events)


def _curve(scenario: Scenario, time: float, passes: list[_Pass]) -> tuple[NDArray[np.float64], float]:
    """The guest's throughput in time bins as wide as those of a whole simulation; also that width."""
    if not passes:
        return np.array([[time, 1.0]]), time
    warm_up = scenario.workload.warm_up * PS
    end = round((warm_up + time) / PS)
    bins = bin_width(end)
    width = bins * PS
    edges = np.arange(np.ceil(warm_up / width), end // bins + 1) * width - warm_up
    if len(edges) < 2:
        edges = np.array([0.0, time])
    made = np.zeros(len(edges))
    for one in passes:
        later = edges >= one.cycles.begin[0]
        made[later] = one.cycles.accesses_at(edges[later], one.clearing.profile)
    throughput = np.diff(made) / np.maximum(1e-300, undisturbed_rate(scenario) * np.diff(edges))
    return np.column_stack([edges[1:], throughput]), width
