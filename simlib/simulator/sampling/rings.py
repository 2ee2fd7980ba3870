# SPDX-License-Identifier: BSD-3-Clause
"""A migration with dirty rings, by windows over all of its memory.

Rings protect a page when they are reaped: when a pass begins, and in it when one is full, and every
`Workload.reap_every`. A pass begins with all pages clean, and goes on alike after some reaps. A window simulates all of
a pass with hardly any; for the others one is enough, whose losses a second are those of every second. How many pages a
pass finds follows from how often each was accessed meanwhile, as in `simlib.simulator.sampling.fluid_model`.
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
from simlib.simulator.sampling.window import MEASURE, Interval, OpenKernel
from simlib.simulator.workloads.degradation import LEVELS, undisturbed_rate
from simlib.simulator.workloads.guest import running_vcpu
from simlib.simulator.workloads.kernel import STOP
from simlib.simulator.workloads.migration import page_time

SHORT = 2.0
"""Times that the rings are reaped in a pass that is simulated whole."""

SETTLE = 1.5
"""Times that the rings are reaped before a window on a long pass counts."""

LOOKS, ACCESSES = (2.5, 20.0), 1e6
"""Times while it does: at least, at most, and for how many accesses, if that lies between."""

_WORK, _WAIT, _LINE, _IDLE = (ACTIVITIES.index(name) for name in ("hold", "wait", "line", "idle"))
_ACQUIRED, _CONTENDED = (LOCK_COLUMNS.index(name) for name in ("acquisitions", "contended"))


class Reaping(NamedTuple):
    """What reaping the rings takes: mmu_lock so many times; with it held, waiting for it, and for the rest, s."""

    acquisitions: float
    work: float
    wait: float
    rest: float

    @property
    def seconds(self) -> float:
        """Its time."""
        return self.work + self.wait + self.rest


class RingWindow(NamedTuple):
    """What a window showed.

    `seen`: the guest, and the thread that reaps; `working`: accesses over those of the same time undisturbed; `laps`,
    shape (1888,): stalls by `simlib.simulator.engine.result.lap_bin`; `longest`, shape (vcpus,): of each vCPU, s;
    `sync`: asking every vCPU in turn for its ring at the end, with which the next pass begins; `since`: the last reap
    before that, s, of which a window on a part of a pass knows nothing, else 0; `done`: moments, s since it opened, and
    accesses until then.
    """

    seen: Interval
    working: float
    laps: np.ndarray
    longest: np.ndarray
    sync: Reaping
    since: float
    done: tuple[np.ndarray, np.ndarray]
    events: int

    def share_above(self, level: float, width: float, rate: float) -> float:
        """Share of the time in which the guest loses more than a level, in bins of a width, s, as a whole run has."""
        bins = max(1, round(self.seen.seconds / width))
        edges = np.linspace(0.0, self.seen.seconds, bins + 1)
        lost = 1 - np.diff(np.interp(edges, *self.done)) / (rate * np.diff(edges))
        return float((lost > level).mean()) if bins > 1 else float(1 - self.working > level)


def logged(scenario: Scenario, seconds: float) -> float:
    """Pages that a guest which nothing slows down writes in a time after all were clean."""
    workload, touches, rate = scenario.workload, touches_of(scenario), undisturbed_rate(scenario)
    found = scenario.guest.pages * touches.pages @ -np.expm1(-touches.rate * rate * seconds)
    return float(workload.write_percent / 100 * found)


def reaps_every(scenario: Scenario) -> float:
    """Time until the rings are reaped again, s, of a guest that nothing slows down."""
    full, most = scenario.ring_full * scenario.guest.vcpus, scenario.workload.reap_every * PS or 10.0
    if logged(scenario, most) <= full:
        return most
    return float(scipy.optimize.brentq(lambda time: logged(scenario, time) - full, 0.0, most))


def look(scenario: Scenario) -> tuple[float, float]:
    """When a window on a long pass opens, and for how long it is open, s."""
    every = reaps_every(scenario)
    return SETTLE * every, every * float(np.clip(ACCESSES / (undisturbed_rate(scenario) * every), *LOOKS))


def ring_job(scenario: Scenario, settle: float, seconds: float, asks: bool, at: float = 0.5) -> Job:
    """A window's programs: when it opens, after all pages were clean, and for how long, s; `asks`: its pass ends.

    `at`: from 0 to 1: where in its sleep the thread that reaps is.
    """
    kernel = OpenKernel(scenario)
    pages, block = scenario.guest.pages, PageTable(scenario.guest.page_size).pages_per_block()
    kernel.image = Image(np.full(pages, Page.PROTECTED, np.uint8), np.full(-(-pages // block), Block.TABLE, np.uint8))
    vcpu = running_vcpu(kernel, logging=True, anywhere=True)
    every = scenario.workload.reap_every
    helpers = [kernel.reaper(round(at * every))] if every else []
    main = _main(kernel, round(settle / PS), round(seconds / PS), asks)
    return kernel.job(vcpu, main, barriers=1, shared=scenario.workload.shared, helpers=helpers)


def _main(kernel: OpenKernel, settle: int, seconds: int, asks: bool) -> Thread:
    program = kernel.program
    with program.thread() as main:
        program.sleep(settle)
        program.signal(MEASURE)
        kernel.stamp("opened")
        program.sleep(seconds)
        kernel.stamp("closed")
        if asks:
            kernel.sync_rings()
            kernel.stamp("asked")
        program.signal(STOP)
    return main


def whole_pass(scenario: Scenario, seconds: float, at: float, seed: int = 1, check: Check | None = None) -> RingWindow:
    """Simulate a pass from when all pages are clean; the window opens when each vCPU has begun to work."""
    settle = min(seconds / 2, 2 * scenario.guest.vcpus / undisturbed_rate(scenario))
    job = ring_job(scenario, settle, seconds - settle, asks=True, at=at)
    raw = compiled.run(job, seed, progress=check)
    asked = (raw.stamp_own[2] - raw.stamp_own[1])[: len(ACTIVITIES)] * PS
    acquired = (raw.stamp_locks[2] - raw.stamp_locks[1])[0, :, _ACQUIRED].sum()
    return _read(scenario, job, raw, Reaping(float(acquired), *parts_of(asked)), 0.0)


def part_of_pass(scenario: Scenario, at: float, seed: int = 1, check: Check | None = None) -> RingWindow:
    """Simulate some reaps of a long pass, which ends after a part `at` of the time between two."""
    job = ring_job(scenario, *look(scenario), asks=False)
    since = at * reaps_every(scenario)
    return _read(
        scenario, job, compiled.run(job, seed, progress=check), asking(scenario, logged(scenario, since)), since
    )


def parts_of(spent: np.ndarray) -> tuple[float, float, float]:
    """A thread's time by `ACTIVITIES`: with mmu_lock held, waiting for it, and the rest, but for idling."""
    work, wait = float(spent[_WORK]), float(spent[_WAIT] + spent[_LINE])
    return work, wait, float(spent.sum() - spent[_IDLE]) - work - wait


def _read(scenario: Scenario, job: Job, raw: EngineResult, sync: Reaping, since: float) -> RingWindow:
    vcpus, interval = job.vcpus, job.vcpus / undisturbed_rate(scenario)
    sums, (locks, *_) = raw.stamp_sums[1] - raw.stamp_sums[0], np.diff(raw.stamp_locks[:, 0].sum(axis=1), axis=0)
    seconds = float(raw.stamp_ps[1] - raw.stamp_ps[0]) * PS
    # The thread that reaps does as much in each second.
    reaper = raw.thread_ps[vcpus + 1 :].sum(axis=0) / int(raw.stamp_ps[-1]) * seconds
    everybody = sum(parts_of(sums[: len(ACTIVITIES)] * PS)) - sum(parts_of(reaper))
    work, wait, rest = parts_of(reaper)
    seen = Interval(
        seconds=seconds,
        accesses=float(sums[-1]),
        faults=float(sums[FAULTS].sum()),
        splits=0.0,
        lost=everybody - float(sums[-1]) * interval,
        queued=0.0,
        work=work,
        wait=wait,
        rest=rest,
        acquisitions=float(locks[_ACQUIRED]),
        contended=float(locks[_CONTENDED]),
    )
    laps, longest = raw.lap_histogram, raw.lap_max_ps[:vcpus].astype(np.float64) * PS
    progress = np.concatenate([[0], np.cumsum(raw.progress[:vcpus].sum(axis=0))])
    moments = (np.arange(len(progress)) * raw.bin_ps - int(raw.stamp_ps[0])) * PS
    working = seen.working(vcpus, interval)
    return RingWindow(seen, working, laps, longest, sync, since, (moments, progress), raw.events)


def reaping(scenario: Scenario, entries: float) -> Reaping:
    """All rings have so many entries, no two of them within 64 pages; faults move the lock's line if they take it."""
    cost, policy = partial(cost_of, scenario), scenario.policy.resolved()
    around = cost("ring_exit", "flush", "interrupt") + scenario.guest.vcpus * cost("flush_per_vcpu")
    each = cost("ring_entry", "reset_entry")
    if policy.clear_lock == "lockless":
        page = cost("clear_page" if scenario.host_costs.lockless_page is None else "lockless_page")
        return Reaping(0.0, entries * (page + cost("clear_word")), 0.0, entries * each + around)
    line = 2 * cost("line_local" if policy.write_protect_fault == "lockless" else "line_transfer")
    each += cost("reacquire")
    return Reaping(entries, entries * cost("clear_page", "clear_word"), entries * line, entries * each + around)


def asking(scenario: Scenario, entries: float) -> Reaping:
    """Asking every vCPU in turn for its ring, and reaping; the rings have so many entries."""
    found = reaping(scenario, entries)
    return found._replace(rest=found.rest + scenario.guest.vcpus * cost_of(scenario, "ring_exit"))


def enabling(scenario: Scenario) -> float:
    """Time of enabling the log, s: blocks are split eagerly, and every page is protected."""
    cost, guest = partial(cost_of, scenario), scenario.guest
    split = cost("split_block", "split_alloc") if guest.mapped_as_blocks else 0.0
    pages = guest.pages * cost("enable_page") + guest.pages / PageTable(guest.page_size).pages_per_block() * split
    return pages + cost("flush", "interrupt") + guest.vcpus * cost("flush_per_vcpu")


class RingPass(NamedTuple):
    """A pass: the pages that it sends, its time, s, and a window on it."""

    sent: float
    seconds: float
    window: RingWindow


class RingPasses(NamedTuple):
    """All passes; `asked`: what asking for the rings took, and of that `after` them, s; `left`: pages at the end."""

    passes: list[RingPass]
    asked: Reaping
    after: float
    left: float


def passes_of(scenario: Scenario, seed: int = 1, check: Check | None = None) -> RingPasses:
    """The passes, of which the first sends all pages; each begins by asking for the rings, and so does one too many.

    When a pass ends between two reaps, and when the thread that reaps wakes in it, is drawn.
    """
    random = np.random.default_rng([seed, 2])
    workload, guest, touches = scenario.workload, scenario.guest, touches_of(scenario)
    each, few = page_time(scenario) * PS, workload.downtime // page_time(scenario)
    dirty, long, passes, syncs = float(guest.pages), None, list[RingPass](), [asking(scenario, 0.0)]
    while True:
        sending = dirty * each
        if sending <= SHORT * reaps_every(scenario):
            window = whole_pass(scenario, sending, random.uniform(), seed, check)
        else:
            window = long = long or part_of_pass(scenario, random.uniform(), seed, check)
        passes.append(RingPass(dirty, syncs[-1].seconds + sending, window))
        accesses = undisturbed_rate(scenario) * window.working * passes[-1].seconds
        found = touches.pages @ -np.expm1(-touches.rate * accesses)
        dirty = float(np.rint(guest.pages * workload.write_percent / 100 * found))
        late = workload.warm_up * PS + sum(one.seconds for one in passes) >= workload.timeout * PS
        ended = late or len(passes) == workload.pass_limit
        if not ended:
            syncs.append(window.sync)
        if ended or dirty <= few:
            after = 0.0 if ended else syncs[-1].seconds
            return RingPasses(passes, Reaping(*(float(part) for part in np.sum(syncs, axis=0))), after, dirty)


def ring_metrics(scenario: Scenario, found: RingPasses) -> dict[str, float]:
    """The metrics of the whole migration, but for its longest stall and its stalls' quantile."""
    passes, enable, vcpus = found.passes, enabling(scenario), scenario.guest.vcpus
    times, since = np.array([[one.seconds, one.window.since] for one in passes]).T

    def total(name: str, times: np.ndarray) -> float:
        return float(times @ [getattr(one.window.seen, name) / one.window.seen.seconds for one in passes])

    # What was logged since a pass's last reap, that pass did not reap.
    work, wait, rest = (getattr(found.asked, name) + total(name, times - since) for name in ("work", "wait", "rest"))
    acquired = found.asked.acquisitions + total("acquisitions", times)
    acquired -= sum(one.window.sync.acquisitions for one in passes if one.window.since)
    lost = np.array([1 - one.window.working for one in passes])
    time, of_guest = enable + float(times.sum()) + found.after, float(times @ lost)
    width, rate = bin_width(round((scenario.workload.warm_up * PS + time) / PS)) * PS, undisturbed_rate(scenario)
    above = {
        f"seconds_above_{level}": sum(
            s * one.window.share_above(level / 100, width, rate) for s, one in zip(times.tolist(), passes, strict=True)
        )
        for level in LEVELS
    }
    return {
        "logging_cpu_time": enable + work + wait + rest + vcpus * of_guest,
        "enable_cpu_time": enable,
        "clear_cpu_time": work + wait + rest,
        "fault_cpu_time": vcpus * of_guest,
        "clear_work_time": work,
        "clear_wait_time": wait,
        "clear_flush_time": rest,
        "enable_time": enable,
        "precopy_duration": time,
        "passes": float(len(passes)),
        "converged": float(found.left <= scenario.workload.downtime // page_time(scenario)),
        "dirty_left": found.left * scenario.guest.page_size,
        "downtime": found.left * page_time(scenario) * PS,
        **above,
        "guest_throughput": 1 - of_guest / time,
        "contentions": total("contended", times) * scenario.workload.lock_stat_runs,
        "lock_acquisitions": acquired,
    }


def curve_of(passes: list[RingPass], before: float) -> np.ndarray:
    """The guest's throughput, the same all through a pass, as `estimator.SampledRun` has it."""
    ends = np.cumsum([before, *(one.seconds for one in passes)])
    moments = np.linspace(0.0, ends[-1], BINS // 2 + 1)
    throughput = np.array([1.0, *(one.window.working for one in passes)])
    return np.column_stack([moments[1:], throughput[np.searchsorted(ends, moments[:-1], side="right")]])
