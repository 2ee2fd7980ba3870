# SPDX-License-Identifier: BSD-3-Clause
"""Limits of both engines (simulated time, size of a job), and the errors of runs that cannot end."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simlib._lib.errors import DeadlockError, HorizonError, InputError
from simlib.model.job import Image, Job, step_mask
from simlib.model.pagetable import WORD_PAGES
from simlib.model.steps import Block, Page, Step

MAX_THREADS = 1 << 10
"""Maximum number of threads of a job."""

HORIZON_PS = (1 << 52) - 1
"""Longest simulated time, about 75 minutes, so that a time and a thread's number fit into one 64-bit key."""

MAX_PRIVATE_STEPS = 1 << 26
"""Maximum number of steps of a thread while its clock does not advance; more steps indicate an endless loop."""

_BY_ENTRY = (Step.KICK, Step.DRAIN, Step.HARVEST, Step.RESET, Step.PACE)
"""Steps that take time for each entry of a log buffer or of dirty rings."""

_TIMED = step_mask(Step.RUN, Step.HOLD, Step.SCAN, Step.SLEEP, *_BY_ENTRY)

PADDING = 64
"""Number of absent pages after the last page; a thread that has reached the end of its region may access them."""


def check_size(job: Job) -> None:
    """Refuse more threads than an engine can number. Raises `InputError`."""
    if len(job.entry) > MAX_THREADS:
        raise InputError("threads", len(job.entry), f"must be at most {MAX_THREADS}", "simulate fewer vCPUs")


def check_times(job: Job, draws: NDArray[np.int64]) -> None:
    """Refuse steps whose time, or whose longest draw, exceeds the horizon. Raises `HorizonError`."""
    kinds, a, b, c, d, _ = job.steps.T
    longest = int(job.steps[_TIMED[kinds], 1:].max(initial=0))
    entries = max(job.buffer_entries, job.ring_entries * max(1, job.vcpus))
    times_of_a_scan = 2 * WORD_PAGES + 1  # per page, per page of an unsplit block, and per word
    if longest * max(entries, times_of_a_scan) <= HORIZON_PS and longest * int(draws.max()) <= 2**62:
        return  # the usual case
    runs, scans = kinds <= Step.HOLD, kinds == Step.SCAN
    limits = np.full(len(kinds), HORIZON_PS)
    jittered = runs & (b > 0)
    limits[jittered] = np.minimum(HORIZON_PS, 2**62 // draws.max(axis=1)[b[jittered]])
    # In floating point, because a product may overflow int64; it then exceeds the limit anyway.
    worst = np.where(runs | (kinds == Step.SLEEP) | (kinds == Step.PACE), a.astype(float), 0.0)
    worst[scans] = 64.0 * (b[scans].astype(float) + d[scans]) + c[scans]
    for kind, argument in zip(_BY_ENTRY, (d, a, a, b, b), strict=True):
        worst[kinds == kind] = np.maximum(worst, float(entries) * argument)[kinds == kind]
    if (worst > limits).any():
        index = int(np.argmax(worst > limits))
        raise HorizonError(
            f"step {index} ({Step(kinds[index]).name}) takes {worst[index] * 1e-12:.6g} s on average, longer than the "
            f"longest simulated time ({limits[index] * 1e-12:.0f} s); shorten the step"
        )


def deadlock(job: Job, now: int, ended: NDArray[np.int64]) -> DeadlockError:
    """Error for a run in which no thread can continue; `ended`: time at which each thread ended, or -1."""
    names = job.thread_names or tuple(f"thread {i}" for i in range(len(ended)))
    stuck = [name for name, time in zip(names, ended, strict=True) if time < 0]
    listed = ", ".join(stuck[:4]) + (" …" if len(stuck) > 4 else "")
    return DeadlockError(
        f"deadlock at {now * 1e-12:.6g} s of simulated time: {len(stuck)} thread(s) wait for a lock or a "
        f"barrier that no other thread will release ({listed}); check that every TAKE has a DROP, and that "
        "every barrier is reached by as many threads as it waits for"
    )


def past_horizon() -> HorizonError:
    """Error for a run that exceeds the longest simulated time."""
    return HorizonError(
        f"the run has not ended after {HORIZON_PS * 1e-12:.0f} s, the longest simulated time; use less memory, "
        "fewer iterations or fewer vCPUs"
    )


def runaway(now: int) -> HorizonError:
    """Error for a thread that loops while its clock does not advance."""
    return HorizonError(
        f"a program takes more than {MAX_PRIVATE_STEPS} steps at {now * 1e-12:.6g} s of simulated time while its "
        "clock does not advance: an endless loop; give the steps a cost, or check the conditions that end the loops"
    )


def ring_overflow(now: int) -> HorizonError:
    """Error for a dirty ring that has no room for a page."""
    return HorizonError(
        f"a dirty ring overflows at {now * 1e-12:.6g} s of simulated time; a vCPU whose ring is nearly full must "
        "leave the guest (ACCESS) and have its ring reset"
    )


def check_room(what: str, count: int, room: int) -> None:
    """Refuse a run whose trace or ledger is longer than requested. Raises `HorizonError`."""
    if room and count > room:
        raise HorizonError(f"the run has {count} {what}, more than the {room} requested; trace a smaller scenario")


def vcpu_pages(job: Job) -> int:
    """Number of pages in a vCPU's region, which is the smallest kind of region; random pages are drawn from it."""
    return max(1, int((job.region[:, 1] - job.region[:, 0]).min()))


def initial_memory(job: Job) -> Image:
    """State of every page and block when the run begins, including the padding."""
    size = job.pages + PADDING
    pages = np.full(size, Page.ABSENT, dtype=np.uint8)
    blocks = np.full(-(-size // job.block_pages), Block.TABLE, dtype=np.uint8)
    if job.image is not None:
        pages[: job.pages] = job.image.pages
        blocks[: len(job.image.blocks)] = job.image.blocks
    elif job.mapped_as_blocks:
        blocks[:] = Block.WRITABLE if job.populated else Block.ABSENT
    elif job.populated:
        pages[:] = Page.WRITABLE
    return Image(pages, blocks)
