# SPDX-License-Identifier: BSD-3-Clause
"""A migration with dirty rings, estimated with windows over all of its memory.

Reaping the rings makes the pages in them clean again. Rings are reaped when a pass begins, when one is full during a
pass, and every `Workload.reap_every`. A pass begins with all pages clean, and is steady after some reaps. Passes with
hardly any reaps are simulated as a whole. All longer passes share one window, whose losses per second apply to their
whole duration. The number of pages that a pass finds follows from how often each was accessed meanwhile, as in
`simlib.simulator.sampling.fluid_model`.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import scipy  # its parts are imported when they are first used

from simlib._lib.parallel import Check
from simlib.model.job import Image, Job
from simlib.model.pagetable import PageTable
from simlib.model.program import Thread
from simlib.model.scenario import Scenario
from simlib.model.steps import Block, Page
from simlib.simulator.engine import compiled
from simlib.simulator.engine.result import ACTIVITIES, BINS, FAULTS, LOCK_COLUMNS, PS, EngineResult, bin_width
from simlib.simulator.sampling.fluid_model import cost_of, touches_of
from simlib.simulator.sampling.window import MEASURE, Interval, MeasuredKernel, parts_of
from simlib.simulator.workloads.degradation import LEVELS, undisturbed_rate
from simlib.simulator.workloads.guest import running_vcpu
from simlib.simulator.workloads.kernel import STOP
from simlib.simulator.workloads.migration import page_time

SHORT = 2.0
"""Number of reaps of the longest pass that is simulated whole."""

SETTLE = 1.5
"""Number of reaps before the measurement begins in a window on a long pass."""

MEASURED_REAPS, ACCESSES = (2.5, 20.0), 1e6
"""Minimum and maximum number of reaps during the measurement, and its number of accesses between these limits."""

_ACQUIRED, _CONTENDED = (LOCK_COLUMNS.index(name) for name in ("acquisitions", "contended"))


class Reaping(NamedTuple):
    """Costs of reaping the rings: acquisitions of mmu_lock; time holding it, waiting for it, and other time, s."""

    acquisitions: float
    work: float
    wait: float
    other: float

    @property
    def seconds(self) -> float:
        """Total time, s."""
        return self.work + self.wait + self.other


class RingWindow(NamedTuple):
    """Results of a window.

    `counters`: of the guest, and of the thread that reaps; `working`: accesses relative to those of an undisturbed
    guest; `laps`, shape (1888,): stalls by `simlib.simulator.engine.result.lap_bin`; `longest`, shape (vcpus,): longest
    stall of each vCPU, s; `sync`: collecting all rings at the end, with which the next pass begins; `since`: time from
    the last reap to `sync`, s, which a window on part of a pass does not include (0 for a whole pass); `done`: moments,
    s since the window opened, and accesses until then.
    """

    counters: Interval
    working: float
    laps: np.ndarray
    longest: np.ndarray
    sync: Reaping
    since: float
    done: tuple[np.ndarray, np.ndarray]
    events: int

    def share_above(self, level: float, width: float, rate: float) -> float:
        """Share of the time in which the guest loses more than `level`, in bins of `width` s."""
        bins = max(1, round(self.counters.seconds / width))
        edges = np.linspace(0.0, self.counters.seconds, bins + 1)
        lost = 1 - np.diff(np.interp(edges, *self.done)) / (rate * np.diff(edges))
        return float((lost > level).mean()) if bins > 1 else float(1 - self.working > level)


def pages_logged(scenario: Scenario, seconds: float) -> float:
    """Pages that an undisturbed guest writes within `seconds` after all pages were clean."""
    workload, touches, rate = scenario.workload, touches_of(scenario), undisturbed_rate(scenario)
    accessed = scenario.guest.pages * touches.pages @ -np.expm1(-touches.rate * rate * seconds)
    return float(workload.write_percent / 100 * accessed)


def reap_period(scenario: Scenario) -> float:
    """Time between two reaps of the rings of an undisturbed guest, s."""
    entries, most = scenario.ring_full * scenario.guest.vcpus, scenario.workload.reap_every * PS or 10.0
    if pages_logged(scenario, most) <= entries:
        return most
    return float(scipy.optimize.brentq(lambda time: pages_logged(scenario, time) - entries, 0.0, most))


def ring_job(scenario: Scenario, settle: float, seconds: float, ends: bool, at: float = 0.5) -> Job:
    """Programs of a window that opens `settle` s after all pages were clean, for `seconds` s.

    `ends`: whether its pass ends; `at`: from 0 to 1: position of the reaping thread in its sleep.
    """
    kernel = MeasuredKernel(scenario)
    pages, block = scenario.guest.pages, PageTable(scenario.guest.page_size).pages_per_block()
    kernel.image = Image(np.full(pages, Page.PROTECTED, np.uint8), np.full(-(-pages // block), Block.TABLE, np.uint8))
    vcpu = running_vcpu(kernel, logging=True, random_start=True)
    every = scenario.workload.reap_every
    helpers = [kernel.reaper(round(at * every))] if every else []
    main = _main(kernel, round(settle / PS), round(seconds / PS), ends)
    return kernel.job(vcpu, main, barriers=1, shared=scenario.workload.shared, helpers=helpers)


def _main(kernel: MeasuredKernel, settle: int, seconds: int, ends: bool) -> Thread:
    program = kernel.program
    with program.thread() as main:
        program.sleep(settle)
        program.signal(MEASURE)
        kernel.stamp("opened")
        program.sleep(seconds)
        kernel.stamp("closed")
        if ends:
            kernel.sync_rings()
            kernel.stamp("asked")
        program.signal(STOP)
    return main


def whole_pass(scenario: Scenario, seconds: float, at: float, seed: int = 1, check: Check | None = None) -> RingWindow:
    """Simulate a pass from the moment when all pages are clean; the window opens when each vCPU has begun to work."""
    settle = min(seconds / 2, 2 * scenario.guest.vcpus / undisturbed_rate(scenario))
    job = ring_job(scenario, settle, seconds - settle, ends=True, at=at)
    raw = compiled.run(job, seed, progress=check)
    spent = (raw.stamp_thread[2] - raw.stamp_thread[1])[: len(ACTIVITIES)] * PS
    acquired = (raw.stamp_locks[2] - raw.stamp_locks[1])[0, :, _ACQUIRED].sum()
    return _read(scenario, job, raw, Reaping(float(acquired), *parts_of(spent)), 0.0)


def part_of_pass(scenario: Scenario, at: float, seed: int = 1, check: Check | None = None) -> RingWindow:
    """Simulate some reaps of a long pass that ends when the fraction `at` of a reap period has elapsed."""
    period = reap_period(scenario)
    measured = period * float(np.clip(ACCESSES / (undisturbed_rate(scenario) * period), *MEASURED_REAPS))
    job, since = ring_job(scenario, SETTLE * period, measured, ends=False), at * period
    raw = compiled.run(job, seed, progress=check)
    return _read(scenario, job, raw, sync_cost(scenario, pages_logged(scenario, since)), since)


def _read(scenario: Scenario, job: Job, raw: EngineResult, sync: Reaping, since: float) -> RingWindow:
    vcpus, interval = job.vcpus, job.vcpus / undisturbed_rate(scenario)
    sums, (locks, *_) = raw.stamp_sums[1] - raw.stamp_sums[0], np.diff(raw.stamp_locks[:, 0].sum(axis=1), axis=0)
    seconds = float(raw.stamp_ps[1] - raw.stamp_ps[0]) * PS
    # The reaping thread does the same in each second.
    reaper = raw.thread_ps[vcpus + 1 :].sum(axis=0) / int(raw.stamp_ps[-1]) * seconds
    guest_time = sum(parts_of(sums[: len(ACTIVITIES)] * PS)) - sum(parts_of(reaper))
    lost = guest_time - float(sums[-1]) * interval
    acquired, contended, faults = float(locks[_ACQUIRED]), float(locks[_CONTENDED]), float(sums[FAULTS].sum())
    counters = Interval(seconds, float(sums[-1]), faults, 0.0, lost, 0.0, *parts_of(reaper), acquired, contended)
    laps, longest = raw.lap_histogram, raw.lap_max_ps[:vcpus].astype(np.float64) * PS
    progress = np.concatenate([[0], np.cumsum(raw.progress[:vcpus].sum(axis=0))])
    moments = (np.arange(len(progress)) * raw.bin_ps - int(raw.stamp_ps[0])) * PS
    working = counters.working(vcpus, interval)
    return RingWindow(counters, working, laps, longest, sync, since, (moments, progress), raw.events)


def reap_cost(scenario: Scenario, entries: float) -> Reaping:
    """Cost of reaping `entries` entries, no two within 64 pages; faults that take the lock move its cache line."""
    cost, policy = partial(cost_of, scenario), scenario.policy.resolved()
    per_reap = cost("ring_exit", "flush", "interrupt") + scenario.guest.vcpus * cost("flush_per_vcpu")
    per_entry = cost("ring_entry", "reset_entry")
    if policy.clear_lock == "lockless":
        page = cost("clear_page" if scenario.host_costs.lockless_page is None else "lockless_page")
        return Reaping(0.0, entries * (page + cost("clear_word")), 0.0, entries * per_entry + per_reap)
    line = 2 * cost("line_local" if policy.write_protect_fault == "lockless" else "line_transfer")
    per_entry += cost("reacquire")
    return Reaping(entries, entries * cost("clear_page", "clear_word"), entries * line, entries * per_entry + per_reap)


def sync_cost(scenario: Scenario, entries: float) -> Reaping:
    """Cost of collecting every vCPU's ring in turn, and of reaping `entries` entries."""
    cost = reap_cost(scenario, entries)
    return cost._replace(other=cost.other + scenario.guest.vcpus * cost_of(scenario, "ring_exit"))


def enable_time(scenario: Scenario) -> float:
    """Time taken to enable dirty logging, s: blocks are split eagerly, and every page is protected."""
    cost, guest = partial(cost_of, scenario), scenario.guest
    split = cost("split_block", "split_alloc") if guest.mapped_as_blocks else 0.0
    pages = guest.pages * cost("enable_page") + guest.pages / PageTable(guest.page_size).pages_per_block() * split
    return pages + cost("flush", "interrupt") + guest.vcpus * cost("flush_per_vcpu")


class RingPass(NamedTuple):
    """A pass: the pages that it sends, its duration, s, and a window on it."""

    sent: float
    seconds: float
    window: RingWindow


class RingPasses(NamedTuple):
    """All passes; `sync`: cost of collecting rings; `after`: duration of the last, s; `left`: dirty pages left."""

    passes: list[RingPass]
    sync: Reaping
    after: float
    left: float


def simulate_passes(scenario: Scenario, seed: int = 1, check: Check | None = None) -> RingPasses:
    """Simulate the passes, of which the first sends all pages.

    Each begins by collecting the rings, which is done once more at the end. The end of a pass between two reaps, and
    the wake-up of the reaping thread in it, are drawn at random.
    """
    random = np.random.default_rng([seed, 2])
    workload, guest, touches = scenario.workload, scenario.guest, touches_of(scenario)
    page_s, downtime_pages = page_time(scenario) * PS, workload.downtime // page_time(scenario)
    dirty, long_window, passes, syncs = float(guest.pages), None, list[RingPass](), [sync_cost(scenario, 0.0)]
    while True:
        sending = dirty * page_s
        if sending <= SHORT * reap_period(scenario):
            window = whole_pass(scenario, sending, random.uniform(), seed, check)
        else:
            window = long_window = long_window or part_of_pass(scenario, random.uniform(), seed, check)
        passes.append(RingPass(dirty, syncs[-1].seconds + sending, window))
        accesses = undisturbed_rate(scenario) * window.working * passes[-1].seconds
        accessed = touches.pages @ -np.expm1(-touches.rate * accesses)
        dirty = float(np.rint(guest.pages * workload.write_percent / 100 * accessed))
        late = workload.warm_up * PS + sum(pass_.seconds for pass_ in passes) >= workload.timeout * PS
        ended = late or len(passes) == workload.pass_limit
        if not ended:
            syncs.append(window.sync)
        if ended or dirty <= downtime_pages:
            after = 0.0 if ended else syncs[-1].seconds
            return RingPasses(passes, Reaping(*(float(part) for part in np.sum(syncs, axis=0))), after, dirty)


def ring_metrics(scenario: Scenario, result: RingPasses) -> dict[str, float]:
    """Metrics of the whole migration, except its longest stall and the quantile of its stalls."""
    passes, enable, vcpus = result.passes, enable_time(scenario), scenario.guest.vcpus
    times, since = np.array([[pass_.seconds, pass_.window.since] for pass_ in passes]).T

    def total(name: str, times: np.ndarray) -> float:
        return float(times @ [getattr(pass_.window.counters, name) / pass_.window.counters.seconds for pass_ in passes])

    # A pass does not reap the pages logged since its last reap.
    work, wait, other = (getattr(result.sync, name) + total(name, times - since) for name in ("work", "wait", "other"))
    acquired = result.sync.acquisitions + total("acquisitions", times)
    acquired -= sum(pass_.window.sync.acquisitions for pass_ in passes if pass_.window.since)
    lost = np.array([1 - pass_.window.working for pass_ in passes])
    time, guest_loss = enable + float(times.sum()) + result.after, float(times @ lost)
    width, rate = bin_width(round((scenario.workload.warm_up * PS + time) / PS)) * PS, undisturbed_rate(scenario)
    above = {
        f"seconds_above_{level}": sum(
            pass_.seconds * pass_.window.share_above(level / 100, width, rate) for pass_ in passes
        )
        for level in LEVELS
    }
    return {
        "logging_cpu_time": enable + work + wait + other + vcpus * guest_loss,
        "enable_cpu_time": enable,
        "clear_cpu_time": work + wait + other,
        "fault_cpu_time": vcpus * guest_loss,
        "clear_work_time": work,
        "clear_wait_time": wait,
        "clear_flush_time": other,
        "enable_time": enable,
        "precopy_duration": time,
        "passes": float(len(passes)),
        "converged": float(result.left <= scenario.workload.downtime // page_time(scenario)),
        "dirty_left": result.left * scenario.guest.page_size,
        "downtime": result.left * page_time(scenario) * PS,
        **above,
        "guest_throughput": 1 - guest_loss / time,
        "contentions": total("contended", times) * scenario.workload.lock_stat_runs,
        "lock_acquisitions": acquired,
    }


def throughput_curve(passes: list[RingPass], before: float) -> np.ndarray:
    """The guest's throughput, constant during a pass, in the format of `estimator.SampledRun`."""
    ends = np.cumsum([before, *(pass_.seconds for pass_ in passes)])
    moments = np.linspace(0.0, ends[-1], BINS // 2 + 1)
    throughput = np.array([1.0, *(pass_.window.working for pass_ in passes)])
    return np.column_stack([moments[1:], throughput[np.searchsorted(ends, moments[:-1], side="right")]])
