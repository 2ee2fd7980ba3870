# SPDX-License-Identifier: BSD-3-Clause
"""A migration with dirty rings, by one window over all of its memory.

Rings protect a page when they are reaped, whatever the passes do: when one is full, and every `Workload.reap_every`. So
after some reaps the guest goes on alike until the switchover. A window simulates it from when all pages are clean, page
by page, over a reap and then another; what it loses in a second it loses in every second. How many pages a pass finds
follows from how often each was accessed meanwhile, as in `simlib.sampling.course`.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from simlib.engine import compiled
from simlib.engine.result import ACTIVITIES, BINS, LOCK_COLUMNS, PS, EngineResult, lap_quantile
from simlib.model.job import Image, Job
from simlib.model.pagetable import PageTable
from simlib.model.program import Thread
from simlib.model.scenario import Scenario
from simlib.model.steps import Block, Page
from simlib.parallel import Check
from simlib.sampling.course import cost_of, touches_of
from simlib.sampling.window import MEASURE, OpenKernel
from simlib.workloads.degradation import LEVELS, undisturbed_rate
from simlib.workloads.guest import running_vcpu
from simlib.workloads.kernel import STOP
from simlib.workloads.migration import page_time

SETTLE = 1.5
"""Times that the rings are reaped before a window counts."""

LOOKS, ACCESSES = (2.5, 20.0), 1e6
"""Times while it does: at least, at most, and for how many accesses, if that lies between."""

_WORK, _WAIT, _LINE, _IDLE = (ACTIVITIES.index(name) for name in ("hold", "wait", "line", "idle"))
_ACQUIRED, _CONTENDED = (LOCK_COLUMNS.index(name) for name in ("acquisitions", "contended"))


class Rates(NamedTuple):
    """What a window showed, a second: of the guest's own time, and of the thread that reaps, s; of mmu_lock, counts.

    `laps`, shape (1888,): its stalls by `simlib.engine.result.lap_bin`; `longest`, shape (vcpus,): of each vCPU, s.
    """

    throughput: float
    work: float
    wait: float
    rest: float
    acquisitions: float
    contended: float
    laps: np.ndarray
    longest: np.ndarray
    seconds: float
    events: int


def reaps_every(scenario: Scenario) -> float:
    """Time until the rings are reaped again, s, of a guest that nothing slows down."""
    workload, guest = scenario.workload, scenario.guest
    touches, rate = touches_of(scenario), undisturbed_rate(scenario)
    full = scenario.ring_full * guest.vcpus

    def logged(seconds: float) -> float:
        found = guest.pages * touches.pages @ -np.expm1(-touches.rate * rate * seconds)
        return float(workload.write_percent / 100 * found)

    most = workload.reap_every * PS or 10.0
    return most if logged(most) <= full else float(brentq(lambda time: logged(time) - full, 0.0, most))


def ring_job(scenario: Scenario) -> tuple[Job, float]:
    """The window's programs, and for how many seconds it is open."""
    every = reaps_every(scenario)
    kernel = OpenKernel(scenario)
    pages, block = scenario.guest.pages, PageTable(scenario.guest.page_size).pages_per_block()
    kernel.image = Image(np.full(pages, Page.PROTECTED, np.uint8), np.full(-(-pages // block), Block.TABLE, np.uint8))
    vcpu = running_vcpu(kernel, logging=True, anywhere=True)
    seconds = every * float(np.clip(ACCESSES / (undisturbed_rate(scenario) * every), *LOOKS))
    main = _main(kernel, round(SETTLE * every / PS), round(seconds / PS))
    helpers = [kernel.reaper()] if scenario.workload.reap_every else []
    return kernel.job(vcpu, main, barriers=1, shared=scenario.workload.shared, helpers=helpers), seconds


def _main(kernel: OpenKernel, settle: int, look: int) -> Thread:
    program = kernel.program
    with program.thread() as main:
        program.sleep(settle)
        program.signal(MEASURE)
        kernel.stamp("opened")
        program.sleep(look)
        kernel.stamp("closed")
        program.signal(STOP)
    return main


def rates(scenario: Scenario, seed: int = 1, check: Check | None = None) -> Rates:
    """Simulate the window."""
    job, seconds = ring_job(scenario)
    raw = compiled.run(job, seed, progress=check)
    return _read(scenario, job, raw, seconds)


def _read(scenario: Scenario, job: Job, raw: EngineResult, seconds: float) -> Rates:
    sums = raw.stamp_sums[1] - raw.stamp_sums[0]
    locks = (raw.stamp_locks[1] - raw.stamp_locks[0])[0].sum(axis=0)
    spent = raw.thread_ps[job.vcpus + 1 :].sum(axis=0) * PS / (int(raw.stamp_ps[1]) * PS)
    return Rates(
        throughput=min(1.0, float(sums[-1]) / (undisturbed_rate(scenario) * seconds)),
        work=float(spent[_WORK]),
        wait=float(spent[_WAIT] + spent[_LINE]),
        rest=float(spent.sum() - spent[_IDLE] - spent[_WORK] - spent[_WAIT] - spent[_LINE]),
        acquisitions=float(locks[_ACQUIRED]) / seconds,
        contended=float(locks[_CONTENDED]) / seconds,
        laps=raw.lap_histogram[: job.vcpus].sum(axis=0),
        longest=raw.lap_max_ps[: job.vcpus].astype(np.float64) * PS,
        seconds=seconds,
        events=raw.events,
    )


def reap_time(scenario: Scenario) -> float:
    """What reaping the rings takes, s, if all are full and no two entries lie within 64 pages."""
    cost, guest, workload = partial(cost_of, scenario), scenario.guest, scenario.workload
    entry = cost("ring_entry", "reset_entry", "clear_page", "clear_word", "reacquire") + 2 * cost("line_transfer")
    around = cost("ring_exit", "flush", "interrupt") + guest.vcpus * cost("flush_per_vcpu")
    return guest.vcpus * workload.ring_entries * entry + around


def enabling(scenario: Scenario) -> float:
    """Time of enabling the log, s: blocks are split eagerly, and every page is protected."""
    cost, guest = partial(cost_of, scenario), scenario.guest
    split = cost("split_block", "split_alloc") if guest.mapped_as_blocks else 0.0
    pages = guest.pages * cost("enable_page") + guest.pages / PageTable(guest.page_size).pages_per_block() * split
    return pages + cost("flush", "interrupt") + guest.vcpus * cost("flush_per_vcpu")


def syncing(scenario: Scenario) -> float:
    """Time of asking for the rings at a pass, s: every vCPU in turn; rings are half full, in the mean."""
    return scenario.guest.vcpus * cost_of(scenario, "ring_exit") + reap_time(scenario) / 2


def passes_of(scenario: Scenario, throughput: float) -> tuple[list[float], list[float], float]:
    """Pages that each pass sends, its time, s, and the pages that are left; all are sent first."""
    workload, guest, touches = scenario.workload, scenario.guest, touches_of(scenario)
    rate, each = undisturbed_rate(scenario) * throughput, page_time(scenario) * PS
    few, sent, times = workload.downtime // page_time(scenario), [float(guest.pages)], list[float]()
    around = syncing(scenario)
    while True:
        times.append(sent[-1] * each + around)
        found = touches.pages @ -np.expm1(-touches.rate * rate * times[-1])
        dirty = float(np.rint(guest.pages * workload.write_percent / 100 * found))
        late = workload.warm_up * PS + sum(times) >= workload.timeout * PS
        if dirty <= few or len(times) == workload.pass_limit or late:
            return sent, times, dirty
        sent.append(dirty)


def ring_metrics(scenario: Scenario, found: Rates) -> tuple[dict[str, float], list[float], float]:
    """The metrics of the whole migration, the pages that each pass sent, and the time of the last one, s."""
    sent, times, left = passes_of(scenario, found.throughput)
    enable, vcpus = enabling(scenario), scenario.guest.vcpus
    time = enable + sum(times)
    lost = 1 - found.throughput
    share = sum(times) / time
    clear = (found.work + found.wait + found.rest) * sum(times) + len(times) * syncing(scenario)
    longest = float(found.longest.max())
    above = {f"seconds_above_{level}": time * share * (lost > level / 100) for level in LEVELS}
    few = scenario.workload.downtime // page_time(scenario)
    return (
        {
            "logging_cpu_time": enable + clear + vcpus * lost * sum(times),
            "enable_cpu_time": enable,
            "clear_cpu_time": clear,
            "fault_cpu_time": vcpus * lost * sum(times),
            "clear_work_time": found.work * sum(times),
            "clear_wait_time": found.wait * sum(times),
            "clear_flush_time": clear - (found.work + found.wait) * sum(times),
            "enable_time": enable,
            "precopy_duration": time,
            "passes": float(len(times)),
            "converged": float(left <= few),
            "dirty_left": left * scenario.guest.page_size,
            "downtime": left * page_time(scenario) * PS,
            **above,
            "guest_throughput": 1 - lost * share,
            "longest_stall": longest,
            "stall_p999": min(longest, lap_quantile(found.laps, 0.999)),
            "contentions": found.contended * sum(times) * scenario.workload.counted_runs,
            "lock_acquisitions": found.acquisitions * sum(times),
        },
        sent,
        times[-1],
    )


def curve_of(duration: float, throughput: float) -> np.ndarray:
    """A throughput that is the same all the time, as `simlib.sampling.travel.Journey` has it."""
    bins = BINS // 2
    return np.column_stack([np.linspace(duration / bins, duration, bins), np.full(bins, throughput)])
