# SPDX-License-Identifier: BSD-3-Clause
"""One sampled run of a migration of any size, with windows in each of its passes."""

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
from simlib.simulator.sampling.window import Window, WindowSpec, simulate_window, window_job
from simlib.simulator.workloads.degradation import LEVELS, undisturbed_rate
from simlib.simulator.workloads.kernel import blocks_per_split
from simlib.simulator.workloads.migration import page_time

SETTLE, BEFORE_CLEAR, AFTER_CLEAR = 16, 48, 32
"""Accesses of each vCPU in a window: before the measurement, before CLEAR, and after CLEAR."""

MAX_ROUNDS = 4
"""Maximum number of rounds in which a pass's windows are repeated until the assumed and the resulting memory agree."""

ALIKE = 0.25
"""Relative difference below which shares of faulting accesses are assumed to give the same loss per fault."""

AGREES = 0.03
"""Largest relative difference between shares of faulting accesses that are considered equal."""

WANTED_FAULTS = 400
"""Target number of faults in a window without CLEAR; its accesses are limited to ten times `BEFORE_CLEAR`."""

ENABLING = 0.0
"""Time to enable dirty logging, s; 0 because every page starts out dirty (see `sampling.unsupported_reason`)."""

MIN_FAULTS = 20
"""Minimum number of faults in a window for an estimate of their duration."""

LOGGED_NOISE = 0.1
"""Accepted relative error of a fault's mean duration in a window where log buffers are seldom full."""


class Stalls(NamedTuple):
    """The longest stalls of a window.

    `longest`: longest stall of each vCPU, s; `weight`: size of the whole migration relative to the window; `bound`:
    upper bound of any stall, s.
    """

    longest: Floats
    weight: float
    bound: float

    def expected(self) -> float:
        """Return the expected longest stall in the part of the migration that the window represents, s.

        A generalised extreme value distribution by L-moments (Hosking, Wallis and Wood 1985, "Estimation of the
        generalized extreme-value distribution by the method of probability-weighted moments", Technometrics 27(3),
        equations 13 to 15), whose tail is no heavier than exponential. If vCPUs differ by more than a factor of two,
        some met a delay that the others did not, and there is no common distribution: then the result is the longest
        stall observed.

        >>> stalls = 10 - np.log(-np.log((np.arange(1000) + 0.5) / 1000))
        >>> round(Stalls(stalls, 1000.0, np.inf).expected(), 1), Stalls(stalls, 1000.0, 20.0).expected()
        (23.8, 20.0)
        """
        stalled = self.longest[self.longest > 0]
        n, observed = len(stalled), float(self.longest.max())
        if n < 8 or self.weight <= 1 or observed > 2 * np.median(stalled):
            return observed
        ordered, i = np.sort(stalled), np.arange(n)
        b0, b1 = ordered.mean(), (i * ordered).sum() / (n * (n - 1))
        b2 = (i * (i - 1) * ordered).sum() / (n * (n - 1) * (n - 2))
        spread = 2 * b1 - b0
        if spread <= 1e-9 * b0:
            return observed
        c = spread / (3 * b2 - b0) - np.log(2) / np.log(3)
        shape = max(1e-6, 7.8590 * c + 2.9554 * c * c)
        gamma, level = special.gamma(1 + shape), -np.log1p(-1 / (n * self.weight))
        scale = spread * shape / (gamma * (1 - 2.0**-shape))
        return max(observed, min(self.bound, float(b0 + scale * (gamma - level**shape) / shape)))


def _stall_bound(scenario: Scenario, observed: Window) -> float:
    """Upper bound of any stall, s.

    The bound is the sum of a kick and the longest fault if no vCPU waits; of a hold and these if a hold of another
    thread dominates; otherwise of a hold and twice the faults of all vCPUs.
    """
    costs = scenario.host_costs
    spread = float(quantile_table(float(costs.fault_jitter or 0.0)).max()) / 2**FIXED_POINT_BITS
    crossing = 2 * (costs.line_transfer or 0) + 4 * (costs.line_local or 0)
    fault = (spread * ((costs.fault_unlocked or 0) + (costs.fault_hold or 0)) + crossing + (costs.kick or 0)) * PS
    if buffer := scenario.policy.buffer_entries:
        full = spread * (costs.log_exit or 0) + buffer * (costs.log_entry or 0)
        fault = max(fault, full * PS)
    longest = float(observed.longest.max())
    if observed.measured.queued <= 1e-3 * observed.measured.lost:
        return float(fault)
    if observed.hold / 2 <= longest <= 1.5 * observed.hold:
        return float(observed.hold + fault)
    return float(observed.hold + 2 * scenario.guest.vcpus * fault)


@dataclass(frozen=True)
class SampledRun:
    """Result of one sampled run.

    - `metrics`: values of `simlib.simulator.sampling.WINDOW_METRICS`.
    - `laps`, shape (1888,): stalls of the whole migration by `simlib.simulator.engine.result.lap_bin`.
    - `stalls`: of each window.
    - `curve`, shape (bins, 2): end of each time bin, s since the end of the warm-up, and the guest's throughput in it.
    - `sent`: pages that each pass sent; `last`: duration of the last one, s.
    - `windows`, `events`: number of windows simulated, and of their events.
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
    """A window during the sending of a chunk, and the part of the migration that it represents.

    `part`: part of the time in which a chunk is sent; None: all of it. `times`: faults in that part of the pass
    relative to those of the window, or, if these are few, time relative to that of the window.
    """

    window: Window
    part: int | None
    times: float = 0.0


class _Pass(NamedTuple):
    """A pass, and what its windows represent.

    `clearing`: the window on a CLEAR; the pass is `times` that window, by the duration of CLEARs without contention;
    `worst`: the window on the CLEAR that takes longest.
    """

    cycles: Cycles
    clearing: Window
    worst: Window
    sent: list[_Sent]
    times: float


def sample_once(scenario: Scenario, seed: int = 1, at: float = 0.5, check: Check | None = None) -> SampledRun:
    """Sample a migration once.

    In each pass, one chunk is drawn whose CLEAR is simulated, with a probability proportional to the duration of CLEAR
    without contention, and one whose sending is simulated, with a probability proportional to the guest's faults
    meanwhile; so ratios to these quantities apply to all chunks (sampling with probability proportional to size: Hansen
    and Hurwitz 1943, "On the theory of sampling from finite populations", Annals of Mathematical Statistics 14(4)).

    - `scenario`: one for which `simlib.simulator.sampling.unsupported_reason` is empty.
    - `seed`: random seed of the windows.
    - `at`: from 0 to 1: position of the first pass's chunk; replications have evenly spread values.
    - `check`: called with (events, simulated time) from time to time.
    """
    workload = scenario.workload
    if workload.rings:
        return _with_rings(scenario, seed, check)
    memory, rates = MemoryState(scenario), initial_rates(scenario)
    downtime_pages = workload.downtime // page_time(scenario)
    passes: list[_Pass] = []
    windows = events = 0
    while memory.passes < workload.pass_limit:
        dirty_shares = memory.dirty_shares()
        if np.rint(dirty_shares * memory.chunks).sum() <= downtime_pages:
            break
        uncontended = memory.uncontended_clear(dirty_shares)
        position = (at + memory.passes * GOLDEN) % 1.0
        chunk = int(np.searchsorted(np.cumsum(uncontended), position * uncontended.sum(), side="right"))
        number, assumed, sender = seed * 128 + memory.passes, np.zeros(0), -1  # no migration has that many passes
        for round_ in range(MAX_ROUNDS):
            after_pass = memory.copy()
            cycles = after_pass.make_pass(dirty_shares, rates)
            if sender < 0:
                faults = np.cumsum(cycles.faults.sum(axis=1))
                sender = int(np.searchsorted(faults, (position + 0.5) % 1.0 * faults[-1], side="right"))
                sender = min(sender, len(uncontended) - 1)
            shares = np.concatenate([cycles.faulting[chunk, :1], cycles.faulting[sender, 1:]])
            if settled := round_ > 0 and _shares_agree(shares, assumed):
                break
            assumed = shares
            clearing = simulate_window(_clear(memory, chunk, cycles, rates), number, check)
            sent = _sending_windows(memory, sender, cycles, rates, number, check)
            logged = float(_logged(cycles, sender, scenario.guest.vcpus)[-1])
            logging = _logging(scenario, logged)
            rates = _updated_rates(rates, assumed, clearing, sent, float(uncontended[chunk]), logging)
            windows += 1 + len(sent)
            events += clearing.events + sum(part.window.events for part in sent)
        longest, worst = int(np.argmax(uncontended)), clearing
        if uncontended[longest] > (1 + AGREES) * uncontended[chunk]:
            worst = simulate_window(_clear(memory, longest, cycles, rates), number, check)
            windows, events = windows + 1, events + worst.events
        if settled:
            memory = after_pass
        else:
            cycles = memory.make_pass(dirty_shares, rates)
        sent = [part._replace(times=_times(cycles, part)) for part in sent]
        passes.append(_Pass(cycles, clearing, worst, sent, float(uncontended.sum() / uncontended[chunk])))
        if workload.warm_up * PS + memory.time >= workload.timeout * PS:
            break
    pages_left = float(np.rint(memory.dirty_shares() * memory.chunks).sum())
    return _combine_passes(scenario, memory.time, passes, pages_left, pages_left <= downtime_pages, windows, events)


def _with_rings(scenario: Scenario, seed: int, check: Check | None) -> SampledRun:
    """Sample a migration whose rings are reaped."""
    result = rings.simulate_passes(scenario, seed, check)
    passes = result.passes
    entries = scenario.guest.vcpus * scenario.workload.ring_entries
    metrics, bound = rings.ring_metrics(scenario, result), 2 * rings.reap_cost(scenario, entries).seconds
    weighted = [(pass_.window, pass_.seconds / pass_.window.counters.seconds) for pass_ in passes]
    laps = np.sum([weight * window.laps for window, weight in weighted], axis=0)
    stalls = [Stalls(window.longest, weight, max(bound, window.longest.max())) for window, weight in weighted]
    longest = max(float(value) for stall in stalls for value in (stall.expected(), stall.longest.max()))
    metrics |= {"longest_stall": longest, "stall_p999": min(longest, lap_quantile(laps, 0.999))}
    windows = list({id(window): window for window, _ in weighted}.values())
    curve, sent = rings.throughput_curve(passes, metrics["enable_time"]), tuple(pass_.sent for pass_ in passes)
    events = sum(window.events for window in windows)
    return SampledRun(metrics, laps, stalls, curve, sent, passes[-1].seconds, len(windows), events)


def initial_rates(scenario: Scenario) -> Rates:
    """Rates before the first window: faults wait for each other no more than necessary."""
    cost, policy, vcpus = partial(cost_of, scenario), scenario.policy.resolved(), scenario.guest.vcpus
    crossing = 2 * cost("line_transfer")
    interval = vcpus / undisturbed_rate(scenario)
    alone = cost("fault_unlocked", "fault_hold") + crossing
    service = {"write": cost("fault_hold") + crossing, "read": crossing}.get(policy.write_protect_fault, 0.0)
    if policy.facts.fault_flush == "broadcast":
        alone, service = alone + cost("tlb_invalidate"), max(service, cost("tlb_invalidate"))
    if (logging := _logging(scenario)) is not None:
        alone, service = logging.write, 0.0
    flush = held = 0.0
    if policy.facts.split_flush:
        costs, blocks = scenario.host_costs, blocks_per_split(scenario.guest)
        held = ((costs.flush or 0) + vcpus * (costs.flush_per_vcpu or 0) + (costs.interrupt or 0)) * PS / blocks
        flush = held + vcpus * (costs.kick or 0) * PS / blocks
    return Rates(vcpus, interval, (1.0,), (alone,), (service,), flush=flush, held=held)


class Logging(NamedTuple):
    """Durations of logged writes, s.

    `write`: a logged write, with its share of emptying full log buffers; `buffer`: emptying a full log buffer; `full`:
    full log buffers per logged write (pages also leave the buffer when a vCPU is interrupted); `fault`: another fault.
    """

    write: float
    buffer: float
    full: float
    fault: float

    def min_faults(self, shares: Floats) -> float:
        """Return the minimum number of faults for an estimate of their duration: more if full log buffers are rare.

        - `shares`, shape (3,): shares of the accesses that meet a clean page, an unsplit block, and a missing page.
        """
        part = float(shares[0] / shares.sum()) if shares[0] else 0.0
        mean = part * self.write + (1 - part) * self.fault
        return max(MIN_FAULTS, part * self.full * (self.buffer / mean / LOGGED_NOISE) ** 2 if mean else 0.0)


def _logging(scenario: Scenario, logged: float = 0.0) -> Logging | None:
    """Durations of logged writes, of which a vCPU makes `logged` between two interrupts; None if writes fault."""
    if not TRACKING[scenario.policy.resolved().dirty_tracking].dirty_bits:
        return None
    cost, entries = partial(cost_of, scenario), scenario.policy.buffer_entries
    buffer, full = cost("log_exit") + entries * cost("log_entry"), logged // entries / logged if logged else 0.0
    return Logging(cost("dirty_set") + full * buffer, buffer, full, cost("fault_unlocked", "fault_hold"))


def _logged(cycles: Cycles, chunk: int, vcpus: int) -> Floats:
    """Pages that a vCPU has logged since the end of a chunk's CLEAR: at the beginning of each part, and at the end."""
    shares, after = cycles.faulting[chunk], cycles.drain[chunk] / (cycles.clear[chunk] + cycles.drain[chunk])
    first = (cycles.accesses[chunk, 1] - cycles.accesses[chunk, 0]) * after * shares[0, 0]
    parts = cycles.faults[chunk] * shares[1:, 0] / np.maximum(shares[1:].sum(axis=1), 1e-300)
    return np.asarray(np.cumsum([first, *parts]) / vcpus)


def _clear(memory: MemoryState, chunk: int, cycles: Cycles, rates: Rates) -> WindowSpec:
    """Return the specification of a window on a CLEAR."""
    between = max(rates.between(float(shares.sum()), float(shares[1])) for shares in cycles.faulting[chunk])
    kicked = SETTLE * between + (memory.scenario.host_costs.kick or 0) * PS  # also for vCPUs that fault after it
    after = min(max(AFTER_CLEAR * between, kicked), float(cycles.send[chunk]))
    times = SETTLE * between, BEFORE_CLEAR * between, after
    share = cycles.faulting[chunk, 0]
    before = -(SETTLE + BEFORE_CLEAR) * share[0]
    before += _logged(cycles, chunk - 1, memory.scenario.guest.vcpus)[-1] if chunk else 0.0
    return WindowSpec(memory, chunk, share, times, float(cycles.accesses[chunk, 0]), (max(0.0, before),) * 2)


def job_of_clear(scenario: Scenario, seed: int = 1) -> Job:
    """Window on one CLEAR in the middle of the first pass, to be run with a trace of the lock's holders.

    Faults are assumed to wait for each other no more than necessary: the waits that a sampled run measures in its first
    windows are not known here.

    - `scenario`: for which `simlib.simulator.sampling.unsupported_reason` is empty.

    >>> guest = Scenario.parse({"guest": {"vcpus": 4, "memory": "1G", "backing": "hugetlb_2mb"},
    ...     "policy": {"architecture": "arm64"}, "costs": {"clear_page": "40ns", "fault_unlocked": "1us"},
    ...     "workload": {"kind": "migration", "access": "uniform", "shared": True, "clear_chunk": "128M"}})
    >>> [stamp.phase for stamp in job_of_clear(guest).stamps]
    ['settled', 'opened', 'cleared', 'closed']
    """
    memory, rates = MemoryState(scenario), initial_rates(scenario)
    dirty_shares = memory.dirty_shares()
    uncontended = memory.uncontended_clear(dirty_shares)
    chunk = int(np.searchsorted(np.cumsum(uncontended), 0.5 * uncontended.sum(), side="right"))
    return window_job(_clear(memory, chunk, memory.copy().make_pass(dirty_shares, rates), rates), seed)


def _sending_windows(
    memory: MemoryState, chunk: int, cycles: Cycles, rates: Rates, seed: int, check: Check | None
) -> list[_Sent]:
    """Simulate one window if faults are equally frequent all the time, otherwise one for each part of the sending."""
    shares, faults, vcpus = cycles.faulting[chunk, 1:], cycles.faults[chunk], memory.scenario.guest.vcpus
    logged = _logged(cycles, chunk, vcpus)
    frequencies = shares.sum(axis=1)
    parts: list[tuple[int | None, Floats]] = list(enumerate(shares))
    if frequencies.max() <= (1 + ALIKE) * frequencies.min():
        parts = [(None, np.average(shares, axis=0, weights=faults) if faults.any() else shares[0])]
    windows = []
    for part, share in parts:
        frequency = float(share.sum())
        between = rates.between(frequency, float(share[1]))
        accesses = min(10 * BEFORE_CLEAR, max(BEFORE_CLEAR, WANTED_FAULTS / max(1e-9, frequency * vcpus)))
        times = SETTLE * between, 0.0, accesses * between
        first, last = (0, -1) if part is None else (part, part + 1)
        spec = WindowSpec(memory, None, share, times, logged=(float(logged[first]), float(logged[last])))
        windows.append(_Sent(simulate_window(spec, seed, check), part))
    return windows


def _times(cycles: Cycles, sent: _Sent) -> float:
    observed = sent.window.measured
    if observed.faults >= MIN_FAULTS:
        return float((cycles.faults if sent.part is None else cycles.faults[:, sent.part]).sum() / observed.faults)
    share = 1.0 if sent.part is None else float(np.diff(ENDS, prepend=0)[sent.part])
    return share * float((cycles.send - cycles.drain).sum()) / observed.seconds


def _shares_agree(result: Floats, assumed: Floats) -> bool:
    """True if the resulting shares of faulting accesses agree with those that a window assumed."""
    resulting, expected = result.sum(axis=1), assumed.sum(axis=1)
    return bool((np.abs(resulting - expected) <= AGREES * np.maximum(np.maximum(resulting, expected), 1e-4)).all())


def _updated_rates(
    rates: Rates, assumed: Floats, clearing: Window, sent: list[_Sent], uncontended: float, logging: Logging | None
) -> Rates:
    """Return the rates with the values that the windows measured."""
    sending = [assumed[1:].mean(axis=0) if part.part is None else assumed[1 + part.part] for part in sent]
    observed = zip([assumed[0], *sending], [clearing.before, *(part.window.measured for part in sent)], strict=True)
    points: list[tuple[float, float, float]] = []  # share, delay of a fault besides waiting, and its service time
    for share, interval, shares in sorted((float(part.sum()), interval, tuple(part)) for part, interval in observed):
        if interval.faults < (MIN_FAULTS if logging is None else logging.min_faults(np.array(shares))):
            continue
        queued, splitting = interval.queued / interval.faults, interval.splits / interval.faults
        delay = max(0.0, interval.lost / interval.faults - queued)
        service = service_of(rates.vcpus, rates.interval, share, delay, queued) - splitting * rates.held
        point = share, max(0.0, delay - splitting * rates.flush), max(0.0, service)
        if points and share - points[-1][0] < ALIKE * share:  # too close to distinguish
            point = tuple(np.mean([points.pop(), point], axis=0).tolist())
        points.append(point)
    if points:
        faulting, delays, services = zip(*points, strict=True)
        rates = rates._replace(faulting=faulting, delay=delays, service=services)
    elif logging is not None:
        rates = rates._replace(faulting=(1.0,), delay=(logging.write,), service=(0.0,))
    drain = clearing.measured.seconds - clearing.clear
    working = clearing.measured.working(rates.vcpus, rates.interval)
    return rates._replace(clear=clearing.clear / uncontended, working=working, drain=drain)


def _combine_passes(
    scenario: Scenario, time: float, passes: list[_Pass], pages_left: float, converged: bool, windows: int, events: int
) -> SampledRun:
    """Estimate the metrics that a simulation of the whole memory would give for all passes."""
    sums = dict.fromkeys(("work", "wait", "other", "acquisitions", "contended"), 0.0)
    laps, stalls = np.zeros(LAP_BINS), list[Stalls]()
    for pass_ in passes:
        parts = [(pass_.clearing, pass_.times), *((part.window, part.times) for part in pass_.sent)]
        for window, times in parts:
            laps += times * window.laps
            for name in sums:  # while it sends, the migration thread does not work for CLEAR
                if window is pass_.clearing or name in ("acquisitions", "contended"):
                    sums[name] += times * getattr(window.measured, name)
        parts.append((pass_.worst, pass_.times))
        stalls += [Stalls(window.longest, times, _stall_bound(scenario, window)) for window, times in parts]
    longest = max((stall.expected() for stall in stalls), default=0.0)
    curve, width = _curve(scenario, time, passes)
    widths = np.diff(np.concatenate([[0.0], curve[:, 0]]))
    above = {f"seconds_above_{level}": float(width * (curve[:, 1] < 1 - level / 100).sum()) for level in LEVELS}
    clear, fault = sums["work"] + sums["wait"] + sums["other"], 0.0
    if passes:  # total time of the vCPUs beyond their undisturbed accesses
        vcpus, accesses = scenario.guest.vcpus, float(passes[-1].cycles.accesses[-1, -1])
        fault = max(0.0, vcpus * (time - accesses / undisturbed_rate(scenario)))
    metrics = {
        "logging_cpu_time": ENABLING + clear + fault,
        "enable_cpu_time": ENABLING,
        "clear_cpu_time": clear,
        "fault_cpu_time": fault,
        "clear_work_time": sums["work"],
        "clear_wait_time": sums["wait"],
        "clear_flush_time": sums["other"],
        "enable_time": ENABLING,
        "precopy_duration": time,
        "passes": float(len(passes)),
        "converged": float(converged),
        "dirty_left": pages_left * scenario.guest.page_size,
        "downtime": pages_left * page_time(scenario) * PS,
        **above,
        "guest_throughput": min(1.0, float(curve[:, 1] @ widths / widths.sum())) if time else 1.0,
        "longest_stall": longest,
        "stall_p999": min(longest, lap_quantile(laps, 0.999)),
        "contentions": sums["contended"] * scenario.workload.lock_stat_runs,
        "lock_acquisitions": sums["acquisitions"],
    }
    sent = tuple(float(np.rint(pass_.cycles.send.sum() / (page_time(scenario) * PS))) for pass_ in passes)
    last = time - float(passes[-1].cycles.begin[0]) if passes else 0.0
    return SampledRun(metrics, laps, stalls, curve, sent, last, windows, events)


def _curve(scenario: Scenario, time: float, passes: list[_Pass]) -> tuple[NDArray[np.float64], float]:
    """Return the guest's throughput in time bins as wide as in a simulation of all memory, and this width."""
    if not passes:
        return np.array([[time, 1.0]]), time
    warm_up = scenario.workload.warm_up * PS
    end = round((warm_up + time) / PS)
    bins = bin_width(end)
    width = bins * PS
    edges = np.arange(np.ceil(warm_up / width), end // bins + 1) * width - warm_up
    if len(edges) < 2:
        edges = np.array([0.0, time])
    accesses = np.zeros(len(edges))
    for pass_ in passes:
        later = edges >= pass_.cycles.begin[0]
        accesses[later] = pass_.cycles.accesses_at(edges[later], pass_.clearing.profile)
    throughput = np.diff(accesses) / np.maximum(1e-300, undisturbed_rate(scenario) * np.diff(edges))
    return np.column_stack([edges[1:], throughput]), width
