# SPDX-License-Identifier: BSD-3-Clause
"""Counts and times of one boot of a trial, by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from simlib._lib.histogram import quantile
from simlib.lab.record_tables import ioctl_rows, lock_rows, read_gaps, run_rows, stall_rows
from simlib.lab.records import Record
from simlib.measurements.importers import import_text

COUNT, TIME = "count", "instructions"
"""Units. A time in the lab is the number of instructions of all CPUs (``docs/lab.md``)."""

TIME_PER_PAGE = "time a dirty page"
"""An ioctl's time divided by the number of dirty pages that it returned or cleared."""

_KVM_LOCK = re.compile(r"kvm|mmu|vcpu|slot")

_COUNTABLE = ("acquisitions", "calls", "dirty pages", "accesses")
_GAPS = {"median gap": 0.5, "99 % gap": 0.99, "99.9 % gap": 0.999}


class TrialQuantity(NamedTuple):
    """Name and unit of a quantity that is counted or timed in a boot.

    - `of`: an ioctl or phase of the test, ``vCPUs``, ``TLB``, or a call site of mmu_lock with its mode and phase; with
      lock_stat, a class of locks with its mode.
    - `what`: the quantity, such as ``time`` or ``acquisitions``.
    """

    of: str
    what: str
    unit: str

    @property
    def title(self) -> str:
        """Name for a table."""
        return f"{self.of}: {self.what}"

    @property
    def countable(self) -> bool:
        """True if the quantity follows from the test's work and does not depend on the turns of the CPUs.

        Contentions depend on turns, and so do the faults of vCPUs that populate memory concurrently.
        """
        return self.what in _COUNTABLE and not self.of.endswith("(populate)")


def quantities(record: Record) -> dict[TrialQuantity, float]:
    """All numbers of a boot that are compared. Raises `SimlibError` if its output is damaged."""
    if record.content["kernel"] == "lock-stat":  # lock_stat lengthens all times by unknown amounts
        counts = ((name, value) for name, value in _test_quantities(record) if name.unit == COUNT)
        return dict([*_lock_stat_quantities(record), *counts])
    return dict([*_site_quantities(record), *_test_quantities(record)])


def _lock_stat_quantities(record: Record) -> Iterator[tuple[TrialQuantity, float]]:
    """Iterate over the numbers of ``/proc/lock_stat`` on KVM's locks, for the whole test."""
    output = record.content["outputs"][int(record.content["test_line"]) + 1]  # `Cell.script` shows it after the test
    classes = import_text("lock-stat", f"{output}\n", lock="all").tables["classes"].frame
    for row in classes.to_dict("records"):
        if _KVM_LOCK.search(row["lock"]):
            of = f"{row['lock']} {row['mode']}"
            yield TrialQuantity(of, "acquisitions", COUNT), float(row["acquisitions"])
            yield TrialQuantity(of, "contentions", COUNT), float(row["contentions"])
            yield TrialQuantity(of, "waits", TIME), 1000 * float(row["wait_total_us"])


def _site_quantities(record: Record) -> Iterator[tuple[TrialQuantity, float]]:
    """Iterate over the statistics of mmu_lock by call site; empty for a kernel without statistics."""
    for row in lock_rows(record).to_dict("records"):
        of = f"{row['site']} {row['lock_mode']} ({row['phase']})"
        yield TrialQuantity(of, "acquisitions", COUNT), float(row["acquisitions"])
        yield TrialQuantity(of, "contentions", COUNT), float(row["contentions"])
        yield TrialQuantity(of, "waits", TIME), float(row["wait_time_ns"])
        yield TrialQuantity(of, "holds", TIME), float(row["hold_time_ns"])


def _test_quantities(record: Record) -> Iterator[tuple[TrialQuantity, float]]:
    """Iterate over the numbers that the test measures itself, and the kernel's TLB flushes."""
    ioctls = ioctl_rows(record)
    for name, rows in ioctls.groupby("name", sort=False):
        time, pages = float(rows["total_time_ns"].sum()), float(rows["dirty_pages"].sum())
        yield TrialQuantity(str(name), "calls", COUNT), float(rows["calls"].sum())
        yield TrialQuantity(str(name), "time", TIME), time
        if pages:
            yield TrialQuantity(str(name), "dirty pages", COUNT), pages
            yield TrialQuantity(str(name), TIME_PER_PAGE, TIME), time / pages
    stalls = stall_rows(record)
    if len(stalls):
        yield TrialQuantity("vCPUs", "accesses", COUNT), float(stalls[["writes", "reads"]].to_numpy().sum())
        yield TrialQuantity("vCPUs", "longest stall", TIME), float(stalls["longest_stall_ns"].max())
        gaps = read_gaps(stalls["gaps"].dropna())
        for what, share in _GAPS.items() if len(gaps) else ():
            yield TrialQuantity("vCPUs", what, TIME), quantile(gaps["from"], gaps["to"], gaps["count"], share)
    counted = run_rows(record).iloc[0][["flush_requests", "flush_interrupts"]].dropna()
    for flushes, value in counted.items():
        yield TrialQuantity("TLB", str(flushes).replace("_", " "), COUNT), float(value)
