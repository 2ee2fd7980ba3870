# SPDX-License-Identifier: BSD-3-Clause
"""Effect of mmu_lock on a guest's migration, and the chunk of CLEAR to set."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from simlib._lib import parallel
from simlib._lib.errors import InputError
from simlib.analysis.choose.choice import choose
from simlib.analysis.choose.presets import preset_scenario
from simlib.analysis.choose.strategies import patched_kernel_strategies
from simlib.analysis.simulate import sample
from simlib.measurements.fits.choice import choose_fit
from simlib.measurements.fits.uncertain import UncertainCosts
from simlib.model.quantities import PS_PER_S, format_size, seconds_text, size_text
from simlib.model.scenario import Scenario
from simlib.simulator.engine.compiled import compile_in_background
from simlib.vmm.dirtying import DirtyRate
from simlib.vmm.guest import ARCHITECTURE, RunningGuest
from simlib.vmm.guest_scenario import apply
from simlib.vmm.qemu_rules import PAGE
from simlib.vmm.settings import VMMS

CHUNKS = (2**30, 2**28, 2**26, 2**24)
"""Memory that one CLEAR covers in the trials, bytes, starting with QEMU's default (property x-clear-bitmap-shift)."""


@dataclass(frozen=True)
class LockAnswer:
    """Simulated waits for mmu_lock during a migration, by the chunk of CLEAR.

    - `frame`: one row per chunk that was tried: chunk_bytes, shift, stall_s (the longest), stall_high_s, p999_s,
      lost_share, clear_s.
    - `recommended`: largest tried chunk with acceptable stalls or, if there is none, with the shortest stalls, bytes.
    - `allowed_s`: longest acceptable stall, s.
    - `meets_target`: True if stalls with the recommended chunk are acceptable.
    - `current`: current chunk, bytes.
    - `rings`: entries of a dirty ring, which needs no CLEAR; 0: the dirty bitmap.
    """

    frame: pd.DataFrame
    recommended: int
    allowed_s: float
    meets_target: bool
    current: int
    rings: int = 0

    def summary(self) -> str:
        """Return the answer in a sentence."""
        rows: dict[int, Any] = {row["chunk_bytes"]: row for row in self.frame.to_dict("records")}
        now = rows[self.current]
        setup = f"dirty rings of {self.rings:,} entries" if self.rings else f"CLEARs of {format_size(self.current)}"
        lost = 100 * now["lost_share"]
        effect = (f"mmu_lock: with {setup}, a vCPU waits for up to {seconds_text(now['stall_high_s'])}, and dirty "
                  f"logging takes a total of {lost:.{3 if lost >= 99.5 else 2}g} % of the guest's time")  # fmt: skip
        if self.recommended == self.current and self.meets_target:
            return f"{effect}: no setting needs to change"
        if self.rings:
            return f"{effect}; the wait exceeds {seconds_text(self.allowed_s)}: try the dirty bitmap (--ring 0)"
        best = rows[self.recommended]
        stall = seconds_text(best["stall_high_s"])
        setting = f"-global migration.x-clear-bitmap-shift={int(best['shift'])} ({format_size(self.recommended)})"
        if self.meets_target:
            return f"{effect}. To shorten the waits to {stall}, start QEMU with {setting}"
        return f"{effect}. No chunk limits stalls to {seconds_text(self.allowed_s)}; {setting} comes nearest: {stall}"


def lock_of(
    guest: RunningGuest, max_stall_s: float | None, dirtied: float, seed: int = 1,
    progress: parallel.Progress | None = None,
) -> LockAnswer | str:  # fmt: skip
    """Sample the guest's migration with its current chunk, and with smaller ones while vCPUs wait too long.

    Returns: The answer; or a sentence on why the lock cannot be simulated; or, for a VMM whose GET clears all dirty
    pages, a sentence on how long GET holds the lock.

    - `max_stall_s`: longest acceptable wait, s; None: 1 ms.
    - `dirtied`: maximum number of pages that are dirty at a GET.
    """
    if VMMS[guest.vmm].whole_passes:
        return _whole_slot(guest, dirtied, seed)
    compile_in_background()
    allowed = 0.001 if max_stall_s is None else max_stall_s
    rows: list[tuple[int, float, float, float, float, float, float]] = []
    current = min(guest.chunk, guest.memory)
    tried = [current] if guest.ring_entries else [current, *(size for size in CHUNKS if size < current)]
    for number, chunk in enumerate(tried):
        share = parallel.subprogress(progress, number / len(tried), (number + 1) / len(tried))
        try:
            result = sample(_scenario(guest, chunk), replications=4, seed=seed, unknown_costs="median", progress=share)
        except InputError as error:
            return f"mmu_lock is not simulated: {error}"
        metrics, high = result.metrics, dict(zip(result.frame["metric"], result.frame["high"], strict=True))
        stall, lost = float(high["longest_stall"]), 1 - min(1.0, metrics["guest_throughput"])
        rows.append((chunk, float(np.log2(chunk / PAGE)), metrics["longest_stall"], stall, metrics["stall_p999"], lost,
                     metrics["clear_cpu_time"]))  # fmt: skip
        if stall <= allowed:
            break
    names = ["chunk_bytes", "shift", "stall_s", "stall_high_s", "p999_s", "lost_share", "clear_s"]
    frame = pd.DataFrame(rows, columns=names)
    accepted = frame[frame["stall_high_s"] <= allowed]
    best = (accepted if len(accepted) else frame.nsmallest(1, "stall_high_s"))["chunk_bytes"].iloc[0]
    return LockAnswer(frame, int(best), allowed, len(accepted) > 0, current, guest.ring_entries)


def patched_kernel_answer(guest: RunningGuest, seed: int = 1, progress: parallel.Progress | None = None) -> str:
    """Return a sentence on how a kernel with another strategy for mmu_lock would change the guest's migration."""
    try:
        case = _scenario(guest, min(guest.chunk, guest.memory))
        choice = choose(case, strategies=patched_kernel_strategies(case), seed=seed, progress=progress)
    except InputError as error:
        return f"A patched kernel is not simulated: {error}"
    return f"With a patched kernel: {choice.advice()['']}"


def _whole_slot(guest: RunningGuest, dirtied: float, seed: int) -> str:
    """Return a sentence on the hold of a GET that clears all dirty pages."""
    case = _scenario(guest, guest.chunk)
    costs, random = UncertainCosts.of(case, choose_fit(case)[0]), np.random.default_rng(seed)
    page_ps = [costs.draw(random).costs.clear_page or 0 for _ in range(64)]
    low, high = (seconds_text(float(end)) for end in np.quantile(page_ps, [0.05, 0.95]) * dirtied / PS_PER_S)
    return (
        f"mmu_lock: the GET of a pass clears all dirty pages in one hold of {low} to {high} for "
        f"{size_text(dirtied * PAGE)}; a fault that needs the lock waits up to this long, and no setting shortens it"
    )


def _scenario(guest: RunningGuest, chunk: int) -> Scenario:
    """Return the guest's migration as a scenario whose writes are spread over all of the memory."""
    rate = min(guest.written, key=lambda rate: rate.seconds if isinstance(rate, DirtyRate) else 0.0)
    if not isinstance(rate, DirtyRate):
        rate = DirtyRate(rate.pages(guest.pages).distinct_pages(1.0), 1.0)
    rate = replace(rate, pages=rate.pages + rate.rounding / 2)
    case = preset_scenario(guest.architecture or ARCHITECTURE).changed({"workload": {"clear_chunk": chunk}})
    if guest.dirty_tracking:
        case = case.changed({"policy": {"dirty_tracking": guest.dirty_tracking}})
    if guest.ring_entries:
        case = case.changed({"workload": {"clear_when": "ring", "ring_entries": guest.ring_entries}})
    return apply(replace(guest, dirty=(rate,)), case)
