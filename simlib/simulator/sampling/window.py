# SPDX-License-Identifier: BSD-3-Clause
"""A window: a short time of a migration, with all of its vCPUs and as much of its memory as matters.

A chunk that CLEAR goes over is there page by page, so that its holds of the lock are as long as they are. All other
memory is a background of some blocks, in which as large a share of the accesses faults as in all of it. One fault in
so many changes its page there, since each page stands for that many: the background changes no faster than the memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
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
from simlib.simulator.sampling.initial_state import image, pages_of_classes, places
from simlib.simulator.workloads.degradation import undisturbed_rate
from simlib.simulator.workloads.dirty_log import DirtyLog
from simlib.simulator.workloads.guest import running_vcpu
from simlib.simulator.workloads.kernel import PLACES, STOP

BACKGROUND = 64
"""Blocks, at least, that stand for the memory around a chunk."""

UNSPLIT, MOST_BACKGROUND = 4, 1024
"""Blocks that are not split, of those, if accesses meet any; but no more in all than that, or than the memory has."""

PROFILE = 33
"""Moments at which a window says how many of its accesses were made."""

MEASURE = 1
"""The flag that opens a window."""

_HOLD_MAX = LOCK_COLUMNS.index("hold_max_ps")
_SPLITS = 2
"""Which of the four kinds of fault meets a block that is not split (`Step.ACCESS`)."""
_WORK, _WAIT, _LINE, _QUEUE, _IDLE = (ACTIVITIES.index(name) for name in ("hold", "wait", "line", "broadcast", "idle"))


class Interval(NamedTuple):
    """What happened between two stamps of a window.

    `seconds`; `accesses` of the guest, `faults`, and how many of these split a block (`splits`); `lost`: time of all
    vCPUs that was no access, s, `queued`: what of it they spent in queues; of the migration thread, s: `work` under the
    lock, `wait` for it and its cache line, and the `rest` of its CPU time; `acquisitions`
    of mmu_lock, and how many were `contended`.
    """

    seconds: float
    accesses: float
    faults: float
    splits: float
    lost: float
    queued: float
    work: float
    wait: float
    rest: float
    acquisitions: float
    contended: float

    def working(self, vcpus: int, interval: float) -> float:
        """Accesses over those of the same time undisturbed; `interval`: from one of a vCPU to the next, s.

        By what was lost, which is known more finely; but who still waits at the end has lost more than is written down.
        """
        whole = vcpus * self.seconds
        unseen = whole - self.accesses * interval - self.lost
        lost = self.lost + (unseen if unseen > vcpus * interval else 0.0)
        return min(1.0, max(0.0, 1 - lost / whole))


@dataclass(frozen=True)
class Window:
    """What a window showed.

    - `before`: before CLEAR, while the chunk before it was being sent.
    - `measured`: CLEAR and some time after it; without a chunk, while one was being sent.
    - `clear`: duration of CLEAR, s.
    - `profile`, shape (33,): share of the accesses in `measured` that were made up to as many moments, evenly spaced.
    - `laps`, shape (1888,): the vCPUs' stalls that ended in `measured`, by `simlib.simulator.engine.result.lap_bin`.
    - `longest`, shape (vcpus,): the longest of each vCPU, s.
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
class OpenKernel(DirtyLog):
    """A kernel whose guest is watched for a while: from the flag `MEASURE` to the flag `STOP`."""

    def kick(self, time: int, entry: int = 0) -> None:
        """As stalls, only kicks that are sent while the window is open count."""
        program = self.program
        if time or self.drains:
            with program.when(raised(MEASURE) & ~raised(STOP), otherwise=lambda: program.kick(time, entry_ps=entry)):
                program.kick(time, self.kicks_stall, entry_ps=entry)

    def read_stopwatch(self, of_kicks: bool = False) -> None:
        """Only stalls that end while the window is open count."""
        with self.program.when(raised(MEASURE) & ~raised(STOP)):
            self.program.read_stopwatch(of_kicks)


@dataclass
class WindowKernel(OpenKernel):
    """A kernel whose memory is a chunk, page by page, and a background."""

    window_pages: int = 0
    """All of its pages."""
    chunk_pages: int = 0
    stands_for: int = 1
    """Pages of the memory for each page of the background."""
    hardware: bool = False
    """One write in so many changes the background, which only programs can do."""
    owner: bool = True
    """Whether the vCPU whose program is being written touches the chunk."""

    @property
    def slot_pages(self) -> int:
        """Pages of the window, in place of the scenario's."""
        return self.window_pages

    def seek(self) -> None:
        """A page of the chunk, or of the background."""
        self.program.seek(1, PLACES if self.owner else PLACES + 1)

    def map_page(self, action: Map, logging: bool) -> None:
        """One fault in so many changes the background."""
        program = self.program

        def background() -> None:
            with program.every(self.stands_for):
                program.map(action, logging)
            if self.costs.kick or self.costs.interrupt:
                program.map(Map.NONE)  # in the guest again, where an interrupt reaches it

        with program.when(~REGION.pages(self.chunk_pages), otherwise=background):
            program.map(action, logging)


class WindowSpec(NamedTuple):
    """What a window is to show.

    - `terrain`: at the moment of GET.
    - `chunk`: which one is cleared; None: one is being sent.
    - `faulting`, shape (3,): shares of the accesses that meet a write-protected page, a block that is not split, and a
      missing page.
    - `times`: before anything counts, before CLEAR, and after it, s.
    - `accesses`: of the guest so far, when CLEAR begins.
    - `logged`: pages that a vCPU has logged since an interrupt emptied its buffer, when the window begins: from, to.
    """

    terrain: MemoryState
    chunk: int | None
    faulting: Floats
    times: tuple[float, float, float]
    accesses: float = 0.0
    logged: tuple[float, float] = (0.0, 0.0)


def window(view: WindowSpec, seed: int = 1, check: Check | None = None) -> Window:
    """Simulate a window."""
    job, scenario = window_job(view, seed), view.terrain.scenario
    return _read(job, compiled.run(job, seed=seed, progress=check), scenario.guest.vcpus / undisturbed_rate(scenario))


def window_job(view: WindowSpec, seed: int) -> Job:
    """The programs and the memory of a window."""
    terrain, chunk, faulting, times, accesses, logged = view
    random = np.random.default_rng([seed, 0 if chunk is None else 1])
    scenario, guest = terrain.scenario, terrain.scenario.guest
    counts = pages_of_classes(terrain, chunk, random)
    pages, block = int(counts.sum()), terrain.block_pages
    whole = float(faulting[1]) / terrain.written if terrain.written else 0.0
    most = max(BACKGROUND, min(MOST_BACKGROUND, int(terrain.chunks.sum()) // block))
    wanted = math.ceil(UNSPLIT / whole) if whole * most >= 1 else 0  # else chance has one now and then
    around = min(most, max(BACKGROUND, wanted))
    blocks = -(-(-(-pages // block) + around) // guest.vcpus) * guest.vcpus
    total = blocks * block
    memory = float(terrain.chunks.sum())
    owners = guest.vcpus if scenario.workload.shared else max(1, -(-pages // guest.pages_per_vcpu))
    kernel = WindowKernel(
        scenario,
        window_pages=total,
        chunk_pages=pages,
        stands_for=max(1, round((memory - pages) / (total - pages))),
        places=(places(terrain.touches, counts, total, owners / guest.vcpus), _beyond(pages, total)),
        image=image(terrain, chunk, blocks, faulting, accesses, seed),
    )
    vcpus = [running_vcpu(kernel, logging=True, anywhere=True)] * owners
    if owners < guest.vcpus:
        kernel.owner = False
        vcpus += [running_vcpu(kernel, logging=True, anywhere=True)] * (guest.vcpus - owners)
    main = _main(kernel, *(round(time / PS) for time in times))
    return kernel.job(vcpus, main, barriers=1, shared=True, logged=_filled(kernel, logged, random))


def _filled(kernel: WindowKernel, logged: tuple[float, float], random: np.random.Generator) -> NDArray[np.int64] | None:
    """Pages in each log buffer, which is emptied when it is full; the thread that clears has none."""
    if not kernel.buffer_entries:
        return None
    vcpus = kernel.scenario.guest.vcpus
    found = random.poisson(random.uniform(*logged, vcpus)) % kernel.buffer_entries
    return np.append(found, 0)


@lru_cache(maxsize=16)
def _beyond(pages: int, total: int) -> Floats:
    """Quantiles of places all over the background, as likely each."""
    return np.concatenate([[0.0], np.linspace(pages / total, 1.0, 1 << SEEK_BITS)])


def _main(kernel: WindowKernel, settle: int, look: int, after: int) -> Thread:
    program = kernel.program
    with program.thread() as main:
        program.sleep(settle)
        kernel.stamp("settled")
        program.sleep(look)
        program.signal(MEASURE)
        kernel.stamp("opened")
        if kernel.chunk_pages:
            with program.extent(kernel.chunk_pages) as chunk, program.when(chunk.collected()):
                kernel.clear_chunk(chunk)
        kernel.stamp("cleared")
        program.sleep(after)
        kernel.stamp("closed")
        program.signal(STOP)
    return main


def _read(job: Job, raw: EngineResult, interval: float) -> Window:
    """What happened between the stamps; `interval`: from one access of an undisturbed vCPU to the next."""
    settled, opened, cleared, closed = range(len(job.stamps))
    times = raw.stamp_ps

    def spell(first: int, last: int) -> Interval:
        own = (raw.stamp_own[last] - raw.stamp_own[first])[: len(ACTIVITIES)] * PS
        sums = raw.stamp_sums[last] - raw.stamp_sums[first]
        locks = (raw.stamp_locks[last] - raw.stamp_locks[first])[0].sum(axis=0)
        work, wait = float(own[_WORK]), float(own[_WAIT] + own[_LINE])
        return Interval(
            seconds=float(times[last] - times[first]) * PS,
            accesses=float(sums[-1]),
            faults=float(sums[FAULTS].sum()),
            splits=float(sums[FAULTS][_SPLITS]),
            lost=float(sums[: len(ACTIVITIES)].sum() * PS - own.sum() - sums[-1] * interval),
            queued=float(sums[_WAIT] + sums[_QUEUE]) * PS - float(own[_WAIT] + own[_QUEUE]),
            work=work,
            wait=wait,
            rest=float(own.sum() - own[_IDLE] - work - wait),
            acquisitions=float(locks[0]),
            contended=float(locks[1]),
        )

    done = np.concatenate([[0], np.cumsum(raw.progress[: job.vcpus].sum(axis=0))])
    moments = np.linspace(times[opened], times[closed], PROFILE)
    profile = np.interp(moments / raw.bin_ps, np.arange(len(done)), done)
    return Window(
        before=spell(settled, opened),
        measured=spell(opened, closed),
        clear=float(times[cleared] - times[opened]) * PS,
        profile=(profile - profile[0]) / max(1.0, profile[-1] - profile[0]),
        laps=raw.lap_histogram,
        longest=raw.lap_max_ps[: job.vcpus].astype(np.float64) * PS,
        hold=float(raw.lock_stats[0, :, _HOLD_MAX].max()) * PS,
        events=raw.events,
    )
