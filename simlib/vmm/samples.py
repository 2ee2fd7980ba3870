# SPDX-License-Identifier: BSD-3-Clause
"""States of a migration that is running or has ended, as a VMM or a management tool reports them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simlib.vmm.qemu_rules import PAGE


@dataclass(frozen=True)
class MigrationSample:
    """State of a migration at one moment. A value that is not reported is None.

    - `status`: QEMU's word for the state (``active``, ``completed``, …); empty if not reported.
    - `time_s`: time since the migration began, s.
    - `total_bytes`: memory of the guest. `sent_bytes`: bytes sent so far. `remaining_bytes`: dirty memory.
    - `normal_pages`, `zero_pages`: pages sent with their content, and pages of zeros, so far.
    - `page_bytes`: size of a page in these counts.
    - `bits_per_s`: current throughput, bit/s.
    - `dirty_pages_per_s`: dirty rate over the last pass.
    - `passes`: number of synchronisations of the dirty bitmap (``dirty-sync-count``).
    - `throttle`: share of the vCPUs' time for which they sleep, percent.
    - `expected_downtime_s`: downtime that QEMU expects. `downtime_s`: downtime of a migration that has ended.
    - `downtime_limit_s`: limit that is in force.

    >>> sample = MigrationSample(status="active", time_s=10.0, normal_pages=1000, zero_pages=3000)
    >>> sample.zero_share
    0.75
    """

    status: str = ""
    time_s: float | None = None
    total_bytes: float | None = None
    sent_bytes: float | None = None
    remaining_bytes: float | None = None
    normal_pages: float | None = None
    zero_pages: float | None = None
    page_bytes: int = PAGE
    bits_per_s: float | None = None
    dirty_pages_per_s: float | None = None
    passes: int | None = None
    throttle: float | None = None
    expected_downtime_s: float | None = None
    downtime_s: float | None = None
    downtime_limit_s: float | None = None

    @property
    def zero_share(self) -> float | None:
        """Share of the pages sent so far that are pages of zeros; None if not reported."""
        if self.normal_pages is None or self.zero_pages is None or not self.normal_pages + self.zero_pages:
            return None
        return self.zero_pages / (self.normal_pages + self.zero_pages)


class MeanPass(NamedTuple):
    """Mean length of the last passes, s, 0 if not known; `between`: True if it is that between two samples."""

    seconds: float
    between: bool


def mean_pass(samples: Sequence[MigrationSample], first_s: float) -> MeanPass:
    """Return the mean length of the last passes: between two samples or, if there is only one, without the first pass.

    - `first_s`: time to send all of the memory once, which the first pass takes, s; 0 if not known.

    >>> before, after = MigrationSample(time_s=412.0, passes=17), MigrationSample(time_s=480.0, passes=21)
    >>> mean_pass([before, after], 100.0).seconds, round(mean_pass([after], 100.0).seconds, 1)
    (17.0, 19.5)
    """
    timed = [(sample.time_s, sample.passes) for sample in samples if sample.time_s and sample.passes]
    if not timed:
        return MeanPass(0.0, False)
    time_s, passes = timed[-1]
    for before_s, number in reversed(timed[:-1]):
        if passes > number:
            return MeanPass((time_s - before_s) / (passes - number), True)
    if not 0 < first_s < time_s:
        return MeanPass(time_s / passes, False)
    return MeanPass(
        (time_s - first_s) / (passes - 1.5) if passes > 2 else first_s, False
    )  # half of the last one is over
