# SPDX-License-Identifier: BSD-3-Clause
"""A window: a short time of a migration, with all of its vCPUs and a part of its memory.

The chunk that CLEAR processes is simulated page by page, so that its holds of mmu_lock have their full duration. All
other memory is represented by a background of some blocks, in which the same share of the accesses faults. Each page of
the background represents n pages; only one in n faults changes its page, so it changes no faster than the memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simlib._lib.parallel import Check
from simlib.model.job import Job
from simlib.model.program import REGION, Thread, raised
from simlib.model.steps import Map
from simlib.simulator.engine import compiled
from simlib.simulator.engine.random import SEEK_BITS
from simlib.simulator.engine.result import ACTIVITIES, FAULTS, LOCK_COLUMNS, PS, EngineResult
from simlib.simulator.sampling.fluid_model import Floats, MemoryState
from simlib.simulator.sampling.initial_state import access_quantiles, initial_image, pages_of_classes
from simlib.simulator.workloads.degradation import undisturbed_rate
from simlib.simulator.workloads.dirty_log import DirtyLog
from simlib.simulator.workloads.guest import running_vcpu
from simlib.simulator.workloads.kernel import PLACES, STOP

BACKGROUND = 64
"""Minimum number of blocks that represent the memory around a chunk."""

UNSPLIT, MOST_BACKGROUND = 4, 1024
"""Minimum number of unsplit blocks among these, if accesses meet unsplit blocks; maximum number of blocks."""

PROFILE = 33
"""Number of moments at which a window records the share of its accesses made so far."""

MEASURE = 1
"""Flag that opens a window."""

_HOLD_MAX = LOCK_COLUMNS.index("hold_max_ps")
_SPLITS = 2
"""Index of the fault at an unsplit block among the four kinds (`Step.ACCESS`)."""
_WORK, _WAIT, _LINE, _QUEUE, _IDLE = (ACTIVITIES.index(name) for name in ("hold", "wait", "line", "broadcast", "idle"))


class Interval(NamedTuple):
    """Counters of the interval between two stamps of a window.

    `seconds`; `accesses` of the guest, `faults`, and the number that split a block (`splits`); `lost`: time of all
    vCPUs that was not spent in accesses, s, and `queued`: the part of it spent in queues; of the migration thread, s:
    `work` with the lock held, `wait` for it and its cache line, and the `other` part of its CPU time; `acquisitions` of
    mmu_lock, and the number that were `contended`.
    """

    seconds: float
    accesses: float
    faults: float
    splits: float
    lost: float
    queued: float
    work: float
    wait: float
    other: float
    acquisitions: float
    contended: float

    def working(self, vcpus: int, interval: float) -> float:
        """Accesses relative to those of an undisturbed guest; `interval`: time between two accesses of a vCPU, s.

        The time lost is more precise than the accesses; but vCPUs that wait at the end have lost more than is recorded.
        """
        vcpu_seconds = vcpus * self.seconds
        unrecorded = vcpu_seconds - self.accesses * interval - self.lost
        lost = self.lost + (unrecorded if unrecorded > vcpus * interval else 0.0)
        return min(1.0, max(0.0, 1 - lost / vcpu_seconds))


@dataclass(frozen=True)
class Window:
    """Results of a window.

    - `before`: before CLEAR, while the preceding chunk was being sent.
    - `measured`: CLEAR and some time after it; without a chunk, while one was being sent.
    - `clear`: duration of CLEAR, s.
    - `profile`, shape (33,): share of the accesses in `measured` made up to each of 33 evenly spaced moments.
    - `laps`, shape (1888,): the vCPUs' stalls that ended in `measured`, by `simlib.simulator.engine.result.lap_bin`.
    - `longest`, shape (vcpus,): the longest stall of each vCPU, s.
    - `hold`: the longest hold of mmu_lock, s.
    - `events`: of the engine.
    """

    before: Interval
    measured: Interval
    clear: float
    profile: Floats
    laps: NDArray[np.int64]
    longest: Floats
    hold: float
    events: int


@dataclass
class MeasuredKernel(DirtyLog):
    """A kernel whose guest is measured from the flag `MEASURE` to the flag `STOP`."""

    def kick(self, time: int, entry: int = 0) -> None:
        """Kick the vCPUs; only kicks sent while the window is open count as stalls."""
        program = self.program
        if time or self.buffer_entries:
            with program.when(raised(MEASURE) & ~raised(STOP), otherwise=lambda: program.kick(time, entry_ps=entry)):
                program.kick(time, self.kick_is_stall, entry_ps=entry)

    def read_stopwatch(self, of_kicks: bool = False) -> None:
        """Record a stall; only stalls that end while the window is open count."""
        with self.program.when(raised(MEASURE) & ~raised(STOP)):
            self.program.read_stopwatch(of_kicks)


@dataclass
class WindowKernel(MeasuredKernel):
    """A kernel whose memory is a chunk, page by page, and a background."""

    window_pages: int = 0
    """All pages of the window."""
    chunk_pages: int = 0
    pages_per_background_page: int = 1
    """Pages of the memory per page of the background."""
    hardware_dirty_bits: bool = False
    """False, because only programs can let a fraction of the writes change the background."""
    owner: bool = True
    """True if the vCPU whose program is being written accesses the chunk."""

    @property
    def slot_pages(self) -> int:
        """Pages of the window, in place of the scenario's."""
        return self.window_pages

    def seek_next_page(self) -> None:
        """Go to a page of the chunk or of the background."""
        self.program.seek(1, PLACES if self.owner else PLACES + 1)

    def map_page(self, action: Map, logging: bool) -> None:
        """Change the entry of the page that faulted; in the background at one in `pages_per_background_page` faults."""
        program = self.program

        def background() -> None:
            with program.every(self.pages_per_background_page):
                program.map(action, logging)
            if self.costs.kick or self.costs.interrupt:
                program.map(Map.NONE)  # in the guest again, where an interrupt reaches it

        with program.when(~REGION.pages(self.chunk_pages), otherwise=background):
            program.map(action, logging)


class WindowSpec(NamedTuple):
    """Specification of a window.

    - `memory`: state of the memory at GET.
    - `chunk`: the chunk that is cleared; None if a chunk is being sent.
    - `faulting`, shape (3,): shares of accesses that meet a write-protected page, an unsplit block, a missing page.
    - `times`: before the measurement, before CLEAR, and after it, s.
    - `accesses`: of the guest up to the beginning of CLEAR.
    - `logged`: minimum and maximum number of pages that a vCPU has logged since an interrupt emptied its buffer, when
      the window begins.
    """

    memory: MemoryState
    chunk: int | None
    faulting: Floats
    times: tuple[float, float, float]
    accesses: float = 0.0
    logged: tuple[float, float] = (0.0, 0.0)


def simulate_window(spec: WindowSpec, seed: int = 1, check: Check | None = None) -> Window:
    """Simulate a window."""
    job, scenario = window_job(spec, seed), spec.memory.scenario
    return _read(job, compiled.run(job, seed=seed, progress=check), scenario.guest.vcpus / undisturbed_rate(scenario))


def window_job(spec: WindowSpec, seed: int) -> Job:
    """Programs and memory of a window."""
    memory, chunk, faulting, times, accesses, logged = spec
    random = np.random.default_rng([seed, 0 if chunk is None else 1])
    scenario, guest = memory.scenario, memory.scenario.guest
    counts = pages_of_classes(memory, chunk, random)
    pages, block = int(counts.sum()), memory.block_pages
    unsplit = float(faulting[1]) / memory.written if memory.written else 0.0
    max_background = max(BACKGROUND, min(MOST_BACKGROUND, int(memory.chunks.sum()) // block))
    needed = math.ceil(UNSPLIT / unsplit) if unsplit * max_background >= 1 else 0  # otherwise some occur by chance
    background = min(max_background, max(BACKGROUND, needed))
    blocks = -(-(-(-pages // block) + background) // guest.vcpus) * guest.vcpus
    window_pages = blocks * block
    memory_pages = float(memory.chunks.sum())
    owners = guest.vcpus if scenario.workload.shared else max(1, -(-pages // guest.pages_per_vcpu))
    kernel = WindowKernel(
        scenario,
        window_pages=window_pages,
        chunk_pages=pages,
        pages_per_background_page=max(1, round((memory_pages - pages) / (window_pages - pages))),
        places=(
            access_quantiles(memory.touches, counts, window_pages, owners / guest.vcpus),
            np.concatenate([[0.0], np.linspace(pages / window_pages, 1.0, 1 << SEEK_BITS)]),  # the background
        ),
        image=initial_image(memory, chunk, blocks, faulting, accesses, seed),
    )
    vcpus = [running_vcpu(kernel, logging=True, random_start=True)] * owners
    if owners < guest.vcpus:
        kernel.owner = False
        vcpus += [running_vcpu(kernel, logging=True, random_start=True)] * (guest.vcpus - owners)
    main = _main(kernel, *(round(time / PS) for time in times))
    return kernel.job(vcpus, main, barriers=1, shared=True, logged=_filled(kernel, logged, random))


def _filled(kernel: WindowKernel, logged: tuple[float, float], random: np.random.Generator) -> NDArray[np.int64] | None:
    """Pages in each log buffer, which is emptied when it is full; the thread that clears has none."""
    if not kernel.buffer_entries:
        return None
    vcpus = kernel.scenario.guest.vcpus
    entries = random.poisson(random.uniform(*logged, vcpus)) % kernel.buffer_entries
    return np.append(entries, 0)


def _main(kernel: WindowKernel, settle: int, before: int, after_clear: int) -> Thread:
    program = kernel.program
    with program.thread() as main:
        program.sleep(settle)
        kernel.stamp("settled")
        program.sleep(before)
        program.signal(MEASURE)
        kernel.stamp("opened")
        if kernel.chunk_pages:
            with program.extent(kernel.chunk_pages) as chunk, program.when(chunk.collected()):
                kernel.clear_chunk(chunk)
        kernel.stamp("cleared")
        program.sleep(after_clear)
        kernel.stamp("closed")
        program.signal(STOP)
    return main


def parts_of(spent: Floats) -> tuple[float, float, float]:
    """Split a thread's time by `ACTIVITIES` into holding mmu_lock, waiting for it, and other time without idling."""
    work, wait = float(spent[_WORK]), float(spent[_WAIT] + spent[_LINE])
    return work, wait, float(spent.sum() - spent[_IDLE]) - work - wait


def _read(job: Job, raw: EngineResult, interval: float) -> Window:
    """Counters of the intervals between the stamps; `interval`: time between two accesses of an undisturbed vCPU."""
    settled, opened, cleared, closed = range(len(job.stamps))
    times = raw.stamp_ps

    def counters(first: int, last: int) -> Interval:
        spent = (raw.stamp_thread[last] - raw.stamp_thread[first])[: len(ACTIVITIES)] * PS
        sums = raw.stamp_sums[last] - raw.stamp_sums[first]
        locks = (raw.stamp_locks[last] - raw.stamp_locks[first])[0].sum(axis=0)
        work, wait, other = parts_of(spent)
        return Interval(
            seconds=float(times[last] - times[first]) * PS,
            accesses=float(sums[-1]),
            faults=float(sums[FAULTS].sum()),
            splits=float(sums[FAULTS][_SPLITS]),
            lost=float(sums[: len(ACTIVITIES)].sum() * PS - spent.sum() - sums[-1] * interval),
            queued=float(sums[_WAIT] + sums[_QUEUE]) * PS - float(spent[_WAIT] + spent[_QUEUE]),
            work=work,
            wait=wait,
            other=other,
            acquisitions=float(locks[0]),
            contended=float(locks[1]),
        )

    accesses = np.concatenate([[0], np.cumsum(raw.progress[: job.vcpus].sum(axis=0))])
    moments = np.linspace(times[opened], times[closed], PROFILE)
    profile = np.interp(moments / raw.bin_ps, np.arange(len(accesses)), accesses)
    return Window(
        before=counters(settled, opened),
        measured=counters(opened, closed),
        clear=float(times[cleared] - times[opened]) * PS,
        profile=(profile - profile[0]) / max(1.0, profile[-1] - profile[0]),
        laps=raw.lap_histogram,
        longest=raw.lap_max_ps[: job.vcpus].astype(np.float64) * PS,
        hold=float(raw.lock_stats[0, :, _HOLD_MAX].max()) * PS,
        events=raw.events,
    )
