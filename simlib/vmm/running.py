# SPDX-License-Identifier: BSD-3-Clause
"""State of a migration that is running, from its last sample, and the start of a simulation from there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from simlib._lib import parallel
from simlib.model.quantities import PS_PER_S
from simlib.vmm.guest import GuestSample, RunningGuest
from simlib.vmm.memory import LinkModel, PassState, WorkingSet, dirty_shares
from simlib.vmm.precopy import BEGINNING, PrecopyStart, PrecopyTrajectory, precopy_trajectory
from simlib.vmm.qemu_rules import PAGE, WHOLE_PAGE
from simlib.vmm.samples import MigrationSample, mean_pass
from simlib.vmm.settings import QEMU, VMMS, Settings

_RUNNING = frozenset({"", "setup", "active", "device", "pre-switchover"})
"""States of a migration whose guest still runs on the source; empty: the tool does not report it."""

_WHOLE = 0.98
"""Share of the memory's pages of which a first pass that is over has sent at least this many."""

_LATER_PASS = 1.05
"""Sum of the bytes sent and those that remain, as a share of the memory, above which the first pass is over."""


_OVER, _PASSES, _FEWEST = 0.8, 3.0, 0.15
"""A sampled guest is left out if its migration would have been over after this share of the time so far, or if its
number of passes differs by this factor, provided that this share of the guests remains. Priors."""


class RunningMigration(NamedTuple):
    """State of a migration that is running. A value that is not known is None.

    - `time_s`: time since it began, s.
    - `left_bytes`: dirty memory.
    - `position`: share of the memory that the first pass has gone through; 1: it is over.
    - `synchronisations`: number of synchronisations of the dirty bitmap, as QEMU counts them.
    - `throttle`: percent.
    - `pass_s`: length of the last pass, s.
    """

    time_s: float | None
    left_bytes: float | None
    position: float
    synchronisations: int | None
    throttle: int | None
    pass_s: float | None

    @property
    def in_first_pass(self) -> bool:
        """True if the first pass is not over."""
        return self.position < 1


def running_migration(guest: RunningGuest) -> RunningMigration | None:
    """Return the state of the guest's migration; None if it has none, or if it has ended.

    >>> sample = MigrationSample("active", 60.0, 2.0**34, 6e9, 10e9, passes=1)
    >>> state = running_migration(RunningGuest(8, 2**34, 10**9, running=(sample,)))
    >>> round(state.position, 2), state.in_first_pass
    (0.42, True)
    """
    last = guest.running[-1] if guest.running else None
    if last is None or last.status not in _RUNNING or last.remaining_bytes == 0:
        return None
    if last.remaining_bytes is None and (last.status != "active" or not last.sent_bytes):
        return None
    memory = guest.memory or last.total_bytes or 0.0
    position = _position(guest.running, float(memory), guest.settings)
    hidden = last.throttle is None and (last.passes is None or VMMS[guest.vmm].whole_passes)
    throttle = None if hidden else round(last.throttle or 0.0)
    return RunningMigration(
        last.time_s, last.remaining_bytes, position, last.passes, throttle, _pass_s(guest, position)
    )  # fmt: skip


def _position(samples: Sequence[MigrationSample], memory: float, settings: Settings) -> float:
    """Share of the memory that the first pass has gone through; 1 if it is over."""
    last = samples[-1]
    if not memory:
        return 1.0
    periodic = settings.auto_converge  # since QEMU 9.2, the bitmap is also synchronised every 5 s within a pass
    if (last.passes or 0) > 1 and not periodic:
        return 1.0
    left, sent = last.remaining_bytes, last.sent_bytes
    if last.normal_pages is not None and last.zero_pages is not None:
        share = (last.normal_pages + last.zero_pages) * last.page_bytes / memory
        few = left is not None and left < _WHOLE * (1 - share) * memory  # free-page hinting: fewer pages are sent
        return 1.0 if share >= _WHOLE or few else share
    if left is None:
        share = (sent or 0.0) / memory
        return share if share < _WHOLE else 1.0
    rises = any(
        (after.remaining_bytes or 0.0) > 1.01 * before.remaining_bytes
        for before, after in pairwise(samples) if before.remaining_bytes and after.status == last.status
    )  # fmt: skip
    if (rises and not periodic) or (last.passes or 0) > 2 or ((sent or 0.0) + left) > _LATER_PASS * memory:
        return 1.0
    return max(0.0, min(1.0, 1 - left / memory))


def _pass_s(guest: RunningGuest, position: float) -> float | None:
    """Mean length of the last passes, s; None if it is not known."""
    once_s = (guest.memory - (guest.zeros or 0)) * 8 / guest.link if guest.link else 0.0
    mean = mean_pass(guest.running, once_s)
    return mean.seconds or None if mean.between or position >= 1 else None


def running_starts(guest: RunningGuest, samples: Sequence[GuestSample]) -> tuple[list[GuestSample], list[PrecopyStart]]:
    """Return the sampled guests that agree with the running migration, and its present state for each.

    The migration is simulated up to now. Guests whose migration would be over, or would have had a very different
    number of passes, are left out, unless nearly all would be. What the log does not have is taken from the simulation.
    """
    state = running_migration(guest)
    if state is None:
        return list(samples), [BEGINNING] * len(samples)
    parts = max(1, min(parallel.concurrency(), len(samples)))
    tasks = [partial(_until_now, guest, state, samples[part::parts]) for part in range(parts)]
    trajectories: list[PrecopyTrajectory | None] = [None] * len(samples)
    for part, results in enumerate(parallel.run_all(tasks)):
        trajectories[part::parts] = results
    pairs = list(zip(samples, trajectories, strict=True))
    agreeing = [pair for pair in pairs if _agrees(state, pair[1])]
    used = agreeing if len(agreeing) >= _FEWEST * len(pairs) else pairs
    return [sample for sample, _ in used], [_start(guest, state, sample, until) for sample, until in used]


def _until_now(
    guest: RunningGuest, state: RunningMigration, samples: Sequence[GuestSample], check: parallel.Check
) -> list[PrecopyTrajectory | None]:
    """Simulate the migration of each sampled guest up to now, unless nothing follows from it."""
    settings = guest.settings
    hidden = None in (state.left_bytes, state.synchronisations, state.throttle)
    if not state.time_s or (state.in_first_pass and not hidden):
        return [None] * len(samples)
    return [
        precopy_trajectory(sample.pages, guest.link_of(sample, settings), settings, state.time_s, sample.vmm)
        for sample in samples
    ]


def _agrees(state: RunningMigration, until: PrecopyTrajectory | None) -> bool:
    """True if a simulation up to now agrees with the running migration."""
    if until is None or not state.time_s or state.in_first_pass:
        return True
    passes, simulated = state.synchronisations, until.synchronisations
    alike = passes is None or passes <= 2 or passes / _PASSES < simulated < passes * _PASSES
    return alike and not (until.completed and until.total_s < _OVER * state.time_s)


def _start(
    guest: RunningGuest, state: RunningMigration, sample: GuestSample, until: PrecopyTrajectory | None
) -> PrecopyStart:
    pages, link, settings = sample.pages, guest.link_of(sample, guest.settings), guest.settings
    left = None if state.left_bytes is None else state.left_bytes / PAGE
    synchronisations, throttle, position = state.synchronisations, state.throttle, state.position
    if until is not None:
        synchronisations = synchronisations or until.synchronisations
        throttle = until.throttle if throttle is None else throttle
    if left is None and state.in_first_pass:  # only the bytes sent are known, which pages of zeros hardly add to
        normal = 1 - float((pages.number * pages.zero).sum() / pages.number.sum())
        position = min(position / max(normal, 0.01), _WHOLE)
        left = (1 - position) * guest.pages
    if left is None:
        known = until is not None and not until.completed
        left = float(until.left_pages) if known and until else pages.distinct_pages(state.pass_s or 1.0)
    page_s, throttle, synchronisations = page_time_s(link, settings), throttle or 0, synchronisations or 1
    if not state.in_first_pass:
        return _later_start(pages, page_s, left, state.pass_s, (max(2, synchronisations), throttle))
    seconds = state.time_s or position * guest.pages * page_s
    behind = np.zeros(len(pages.number))
    if synchronisations > 1:  # periodic ones found pages that the pass had already sent
        others = max(0.0, left - (1 - position) * guest.pages)
        behind = dirty_shares(pages, seconds, others / max(position, 1e-9))
        seconds = min(seconds, QEMU.throttle.sync_every / PS_PER_S / 2)
    now = PassState(position, np.ones(len(behind)), behind, seconds)
    return PrecopyStart(now, synchronisations, throttle, seconds / page_s * WHOLE_PAGE)


def _later_start(
    pages: WorkingSet, page_s: float, left: float, pass_s: float | None, counts: tuple[int, int]
) -> PrecopyStart:
    """Return the state within a later pass: the pages that remain are those that the guest wrote lately.

    The pass began with the pages that the guest writes in the length of a pass, so that the pages that were sent since
    then give the time since the last synchronisation.
    """
    seconds = max(pass_s or 0.0, left * page_s, 0.1)
    sent = max(0.0, min(pages.distinct_pages(seconds), seconds / page_s) - left)
    shares = dirty_shares(pages, seconds, left)
    return PrecopyStart(PassState(0.0, shares, shares, sent * page_s), *counts, sent_bytes=sent * WHOLE_PAGE)


def page_time_s(link: LinkModel, settings: Settings) -> float:
    """Time to send a page with these settings, s."""
    limit = settings.max_bandwidth * link.limit_share
    return max(link.page_s, WHOLE_PAGE / limit if limit > 0 else 0.0)
