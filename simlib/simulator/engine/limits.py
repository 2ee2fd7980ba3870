# SPDX-License-Identifier: BSD-3-Clause
"""What every engine obeys: how long it simulates, how large a job may be, and what it says when a run cannot end."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simlib._lib.errors import DeadlockError, HorizonError, InputError
from simlib.model.job import Image, Job, having
from simlib.model.pagetable import WORD_PAGES
from simlib.model.steps import Block, Page, Step

MAX_THREADS = 1 << 10
"""Most threads of a job."""

HORIZON_PS = (1 << 52) - 1
"""Longest simulated time: 2**52 ps, about 75 minutes; a time and a thread's number fit into one 64-bit key."""

OWN_STEPS = 1 << 26
"""Steps that a thread may take before it comes back at a later time; more is an endless loop."""

_BY_ENTRY = (Step.KICK, Step.DRAIN, Step.HARVEST, Step.RESET)
"""Steps that take time for each entry of a log buffer or of dirty rings."""

_TIMED = having(Step.RUN, Step.HOLD, Step.SCAN, Step.SLEEP, *_BY_ENTRY)

_OF_A_SCAN = 2 * WORD_PAGES + 1
"""Times that a SCAN takes at most: of each page, of each that is not split, and of the word."""

PADDING = 64
"""Pages beyond the last one, absent for ever, which a thread that is done with its region may look at."""


def check_size(job: Job) -> None:
    """Refuse more threads than an engine can tell apart.

    Raises `InputError`.
    """
    if len(job.entry) > MAX_THREADS:
        raise InputError("threads", len(job.entry), f"must be at most {MAX_THREADS}", "simulate fewer vCPUs")


def check_times(job: Job, draws: NDArray[np.int64]) -> None:
    """Refuse steps whose time, or whose longest draw, is past the horizon.

    Raises `HorizonError`.
    """
    kinds, a, b, c, d, _ = job.steps.T
    longest = int(job.steps[_TIMED[kinds], 1:].max(initial=0))
    entries = max(job.buffer_entries, job.ring_entries * max(1, job.vcpus))
    if longest * max(entries, _OF_A_SCAN) <= HORIZON_PS and longest * int(draws.max()) <= 2**62:
        return  # as nearly always: nothing comes near
    runs, scans = kinds <= Step.HOLD, kinds == Step.SCAN
    most = np.full(len(kinds), HORIZON_PS)
    jittered = runs & (b > 0)
    most[jittered] = np.minimum(HORIZON_PS, 2**62 // draws.max(axis=1)[b[jittered]])
    # In floating point, as a product may be too large; then it is by far.
    worst = np.where(runs | (kinds == Step.SLEEP), a.astype(float), 0.0)
    worst[scans] = 64.0 * (b[scans].astype(float) + d[scans]) + c[scans]
    for kind, each in zip(_BY_ENTRY, (d, a, a, b), strict=True):
        worst[kinds == kind] = float(entries) * each[kinds == kind]
    if (worst > most).any():
        index = int(np.argmax(worst > most))
        raise HorizonError(
            f"step {index} ({Step(kinds[index]).name}) takes {worst[index] * 1e-12:.6g} s on average, longer than is "
            f"simulated ({most[index] * 1e-12:.0f} s); shorten it"
        )


def deadlock(job: Job, now: int, ended: NDArray[np.int64]) -> DeadlockError:
    """What to raise when nothing can happen any more; `ended`: when each thread ended, or -1."""
    names = job.thread_names or tuple(f"thread {i}" for i in range(len(ended)))
    stuck = [name for name, time in zip(names, ended, strict=True) if time < 0]
    shown = ", ".join(stuck[:4]) + (" …" if len(stuck) > 4 else "")
    return DeadlockError(
        f"deadlock at {now * 1e-12:.6g} s of simulated time: {len(stuck)} thread(s) wait for a lock or a "
        f"barrier that nobody will ever give ({shown}); check that every TAKE has its DROP and every "
        "barrier its number of threads"
    )


def past_horizon() -> HorizonError:
    """What to raise when a run does not end in time."""
    return HorizonError(
        f"the run is still going after {HORIZON_PS * 1e-12:.0f} s of simulated time, the most that is "
        "simulated; take less memory, fewer iterations or fewer vCPUs"
    )


def runaway(now: int) -> HorizonError:
    """What to raise when a thread goes round and round at one instant."""
    return HorizonError(
        f"a program takes more than {OWN_STEPS} steps at {now * 1e-12:.6g} s of simulated time without letting any "
        "pass: it loops for ever; give what it does there a cost, or check how its loops end"
    )


def overflow(now: int) -> HorizonError:
    """What to raise when a dirty ring has no room for a page."""
    return HorizonError(
        f"a dirty ring is full at {now * 1e-12:.6g} s of simulated time, and one page more is to go into it; a vCPU "
        "whose ring is nearly full must leave the guest (ACCESS) and have it reset"
    )


def check_room(what: str, found: int, room: int) -> None:
    """Refuse a record that is longer than was asked for.

    Raises `HorizonError`.
    """
    if room and found > room:
        raise HorizonError(f"the run has {found} {what}, more than the {room} asked for; trace a smaller scenario")


def vcpu_pages(job: Job) -> int:
    """Pages of the smallest region: that of a vCPU, which is whose pages are sought."""
    return max(1, int((job.region[:, 1] - job.region[:, 0]).min()))


def first_memory(job: Job) -> Image:
    """State of every page, and of every block, when the run begins; with the padding."""
    reach = job.pages + PADDING
    pages = np.full(reach, Page.ABSENT, dtype=np.uint8)
    blocks = np.full(-(-reach // job.block_pages), Block.TABLE, dtype=np.uint8)
    if job.image is not None:
        pages[: job.pages] = job.image.pages
        blocks[: len(job.image.blocks)] = job.image.blocks
    elif job.mapped_as_blocks:
        blocks[:] = Block.WRITABLE if job.populated else Block.ABSENT
    elif job.populated:
        pages[:] = Page.WRITABLE
    return Image(pages, blocks)
