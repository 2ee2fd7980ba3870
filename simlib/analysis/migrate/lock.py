# SPDX-License-Identifier: BSD-3-Clause
"""What mmu_lock has to do with a guest's migration: nothing, or which chunk of CLEAR to set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from simlib._lib import parallel
from simlib._lib.errors import InputError
from simlib.analysis.choose.choice import choose
from simlib.analysis.choose.headline import advice
from simlib.analysis.choose.presets import preset_scenario
from simlib.analysis.choose.strategies import patched_kernel_strategies
from simlib.analysis.simulate import sample
from simlib.measurements.fits.choice import choose_fit
from simlib.measurements.fits.uncertain import UncertainCosts
from simlib.model.quantities import PS_PER_S, format_size, say_seconds, say_size
from simlib.model.scenario import Scenario
from simlib.vmm.dirtying import DirtyRate
from simlib.vmm.guest import MigratingGuest
from simlib.vmm.memory import distinct_pages
from simlib.vmm.rules import PAGE
from simlib.vmm.running_guest import RunningGuest, apply
from simlib.vmm.settings import VMMS

WALKS, DRAWS = 4, 64
"""Walks through the migration, and draws of the costs where there is no walk."""

CHUNKS = (2**30, 2**28, 2**26, 2**24)
"""Memory of one CLEAR, as QEMU's x-clear-bitmap-shift has it: from its default down, bytes."""

MATTERS_S = 0.001
"""A wait for the lock that is shorter matters to nobody who wishes nothing, s."""


@dataclass(frozen=True)
class LockAnswer:
    """What the lock adds to a migration.

    - `frame`: one row a chunk that was tried: chunk_bytes, shift, stall_s (the longest), stall_high_s, p999_s,
      lost_share, clear_s.
    - `take`: bytes of one CLEAR that keep to what is allowed, the largest of those tried.
    - `allowed_s`: longest wait.
    - `keeps`: whether it does.
    - `own`: bytes of one CLEAR as it stands; `rings`: entries of a dirty ring, which knows no CLEAR; 0: the bitmap.
    """

    frame: pd.DataFrame
    take: int
    allowed_s: float
    keeps: bool
    own: int
    rings: int = 0

    def summary(self) -> str:
        """One sentence."""
        rows: dict[int, Any] = {row["chunk_bytes"]: row for row in self.frame.to_dict("records")}
        now = rows[self.own]
        way = f"dirty rings of {self.rings}" if self.rings else f"CLEARs of {format_size(self.own)}"
        said = (f"mmu_lock: with {way} a vCPU waits for up to {say_seconds(now['stall_high_s'])} at a time, and all of "
                f"dirty logging takes {100 * now['lost_share']:.2g} % of the guest's time")  # fmt: skip
        if self.take == self.own and self.keeps:
            return f"{said}: there is nothing to set"
        if self.rings:
            return f"{said}; that is more than {say_seconds(self.allowed_s)}: try the bitmap (--ring 0)"
        then = rows[self.take]
        set_to = f"-global migration.x-clear-bitmap-shift={int(then['shift'])} ({format_size(self.take)})"
        if self.keeps:
            return f"{said}. Start QEMU with {set_to}: {say_seconds(then['stall_high_s'])}"
        return (f"{said}. No chunk keeps to {say_seconds(self.allowed_s)}; nearest is {set_to}: "
                f"{say_seconds(then['stall_high_s'])}")  # fmt: skip


def lock_of(
    guest: MigratingGuest,
    max_stall_s: float | None,
    dirtied: float,
    seed: int = 1,
    progress: parallel.Progress | None = None,
) -> LockAnswer | str:
    """Sample the guest's migration with its own chunk, and with smaller ones where that makes vCPUs wait too long.

    Returns: What was found, or why the lock cannot be told, or for a VMM whose GET clears how long that holds it.

    - `max_stall_s`: longest wait that is allowed; None: `MATTERS_S`.
    - `dirtied`: pages that a pass finds at most.
    """
    if VMMS[guest.vmm].whole_passes:
        return _whole_slot(guest, dirtied, seed)
    allowed = MATTERS_S if max_stall_s is None else max_stall_s
    rows: list[tuple[int, float, float, float, float, float, float]] = []
    own = min(guest.chunk, guest.memory)
    tried = [own] if guest.ring_entries else [own, *(size for size in CHUNKS if size < own)]
    for number, chunk in enumerate(tried):
        portion = parallel.subprogress(progress, number / len(tried), (number + 1) / len(tried))
        try:
            found = sample(_scenario(guest, chunk), replications=WALKS, seed=seed, costs="median", progress=portion)
        except InputError as error:
            return f"mmu_lock is not told: {error}"
        values, high = found.metrics, dict(zip(found.frame["metric"], found.frame["high"], strict=True))
        stall, lost = float(high["longest_stall"]), 1 - min(1.0, values["guest_throughput"])
        rows.append((chunk, float(np.log2(chunk / PAGE)), values["longest_stall"], stall, values["stall_p999"], lost,
                     values["clear_cpu_time"]))  # fmt: skip
        if stall <= allowed:
            break
    names = ["chunk_bytes", "shift", "stall_s", "stall_high_s", "p999_s", "lost_share", "clear_s"]
    frame = pd.DataFrame(rows, columns=names)
    good = frame[frame["stall_high_s"] <= allowed]
    take = int((good if len(good) else frame.nsmallest(1, "stall_high_s"))["chunk_bytes"].iloc[0])
    return LockAnswer(frame, take, allowed, len(good) > 0, own, guest.ring_entries)


def patched_of(guest: MigratingGuest, seed: int = 1, progress: parallel.Progress | None = None) -> str:
    """What a kernel that holds the lock in other ways could do for the guest's migration, in a sentence."""
    try:
        case = _scenario(guest, min(guest.chunk, guest.memory))
        found = choose(case, strategies=patched_kernel_strategies(case), seed=seed, progress=progress)
    except InputError as error:
        return f"What a patched kernel could do is not told: {error}"
    return f"What a patched kernel could do. {advice(found, found.objective)['']}"


def _whole_slot(guest: MigratingGuest, dirtied: float, seed: int) -> str:
    """For how long a GET that clears all that it finds holds the lock."""
    case = _scenario(guest, guest.chunk)
    costs, random = UncertainCosts.of(case, choose_fit(case)[0]), np.random.default_rng(seed)
    each = [costs.draw(random).costs.clear_page or 0 for _ in range(DRAWS)]
    low, high = (say_seconds(float(end)) for end in np.quantile(each, [0.05, 0.95]) * dirtied / PS_PER_S)
    return (
        f"mmu_lock: a pass's GET clears all that it finds in one hold, {low} to {high} for "
        f"{say_size(dirtied * PAGE)}; a fault that needs the lock waits as long, and nothing can be set"
    )


def _scenario(guest: MigratingGuest, chunk: int) -> Scenario:
    """The guest as a migration's scenario: its writes are spread over all of its memory."""
    first = min(guest.dirty, key=lambda one: one.seconds if isinstance(one, DirtyRate) else 0.0)
    seconds = first.seconds if isinstance(first, DirtyRate) else 1.0
    pages = first.pages if isinstance(first, DirtyRate) else distinct_pages(first.pages(guest.pages), seconds)
    running = RunningGuest(
        vcpus=guest.vcpus, memory_bytes=guest.memory, link_bits=guest.link, dirty_seconds=seconds,
        dirty_bytes_per_s=pages * PAGE / seconds,
    )  # fmt: skip
    case = preset_scenario(guest.architecture).changed({"workload": {"clear_chunk": chunk}})
    if guest.dirty_tracking:
        case = case.changed({"policy": {"dirty_tracking": guest.dirty_tracking}})
    if guest.ring_entries:
        case = case.changed({"workload": {"clear_when": "ring", "ring_entries": guest.ring_entries}})
    return apply(running, case)
