# SPDX-License-Identifier: BSD-3-Clause
"""Post-copy: the guest runs on the destination and requests each page that has not arrived.

Source: QEMU 10.0, migration/migration.c postcopy_start, migration/ram.c ram_find_and_save_block (requested pages
go first), migration/postcopy-ram.c.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simlib._lib.jit import address_of, cached_njit
from simlib.vmm import qemu_rules
from simlib.vmm.memory import Floats, LinkModel, WorkingSet

STEP_S = 0.002
"""Length of a time step, s."""


class Postcopy(NamedTuple):
    """Outcome of the post-copy phase.

    - `total_s`: time until all pages have arrived, s.
    - `requests`: pages that the guest requested.
    - `lost_s`: mean time that a vCPU waits, s.
    - `slow_s`: time in which the guest ran at less than half its speed, s.
    - `sent_bytes`: bytes sent in the phase.
    """

    total_s: float
    requests: float
    lost_s: float
    slow_s: float
    sent_bytes: float


def postcopy(
    pages: WorkingSet, missing: Floats, vcpus: float, link: LinkModel, bandwidth: float, wait_s: float
) -> Postcopy:
    """Simulate the post-copy phase: missing pages are sent while the guest runs.

    - `missing`: share of each class that has yet to be sent, shape (classes,). The guest's accesses are assumed to be
      its writes.
    - `bandwidth`: max-postcopy-bandwidth, bytes/s; 0: no limit.
    - `wait_s`: time from a fault to the arrival of its page, s, apart from the time to send the page.

    >>> pages = WorkingSet(*(np.array([float(x)]) for x in (1000, 1, 0, 0, 1, 0)))
    >>> phase = postcopy(pages, np.array([1.0]), 1.0, LinkModel(page_s=1e-4), 0.0, 1e-3)
    >>> round(phase.total_s, 2), round(phase.requests)  # 1000 pages in a tenth of a second, of which few are requested
    (0.1, 30)
    """
    held, zeros = pages.number * (1 - pages.zero), float((missing * pages.number * pages.zero).sum())
    normal = float((missing * held).sum())
    sent_bytes = normal * qemu_rules.WHOLE_PAGE + zeros * qemu_rules.ZERO_PAGE
    page_s = max(link.page_s, qemu_rules.WHOLE_PAGE / bandwidth if bandwidth > 0 else 0.0)
    total, requests, lost, slow = _postcopy(
        held, pages.rate, missing.copy(), vcpus, page_s, wait_s, zeros * link.zero_s
    )  # fmt: skip
    return Postcopy(total, requests, lost, slow, sent_bytes)


def compile_ahead() -> None:
    """Compile the model, or load its machine code from the cache."""
    pages = np.ones(1)
    address_of(_postcopy, (pages, pages, pages, 1.0, 1.0, 1.0, 0.0))


@cached_njit(nogil=True)
def _postcopy(
    held: Floats, rate: Floats, share: Floats, vcpus: float, page_s: float, wait_s: float, time: float
) -> tuple[float, float, float, float]:
    """Compiled part of `postcopy`; return the first four values of its result.

    - `held`: number of pages with contents of each class; `share`: share that has yet to be sent.
    - `time`: time so far, s.
    """
    requests, lost, slow = 0.0, 0.0, 0.0
    while True:
        left = 0.0
        for kind in range(len(held)):
            left += share[kind] * held[kind]
        if left < 0.5 or time > 1e5:
            return time, requests, lost, slow
        faults = 0.0  # faults per second of a guest that never waits
        for kind in range(len(held)):
            faults += share[kind] * held[kind] * rate[kind]
        waits = faults / vcpus * (wait_s + page_s)  # time that a vCPU waits, relative to the time that it runs
        runs = 1.0 / (1.0 + waits)
        requested = min(faults * runs, 1.0 / page_s)
        step = min(STEP_S * max(1.0, left * page_s / 2.0), left * page_s + 1e-9)
        sent = step / page_s
        requested = min(requested * step, left)
        background = max(0.0, sent - requested)
        for kind in range(len(held)):
            own = share[kind] * held[kind]
            gone = requested * (own * rate[kind] / faults if faults > 0 else 0.0) + background * own / left
            share[kind] = max(0.0, own - gone) / held[kind] if held[kind] > 0 else 0.0
        time, requests, lost = time + step, requests + requested, lost + step * (1 - runs)
        if runs < 0.5:
            slow += step
