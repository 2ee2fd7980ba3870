# SPDX-License-Identifier: BSD-3-Clause
"""What one boot of a trial says: counts and times by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from simlib._lib.histogram import quantile
from simlib.lab.records import Record, ioctl_rows, lock_rows, read_gaps, run_rows, stall_rows
from simlib.measurements.importers import import_text

COUNT, TIME = "count", "instructions"
"""Units. A time in the lab is a number of instructions, of all CPUs together (``docs/lab.md``)."""

A_PAGE = "time a dirty page"
"""An ioctl's time over the pages that it found or cleared."""

_OF_KVM = re.compile(r"kvm|mmu|vcpu|slot")
"""Names of locks that are told."""

_COUNTABLE = ("acquisitions", "calls", "dirty pages", "accesses")
_GAPS = {"median gap": 0.5, "99 % gap": 0.99, "99.9 % gap": 0.999}


class TrialQuantity(NamedTuple):
    """A name for a number of a boot.

    - `of`: an ioctl or phase of the test, ``vCPUs``, ``TLB``, or a call site of mmu_lock with its mode and when; of
      a kernel with lock_stat a class of locks with its mode.
    """

    of: str
    what: str
    unit: str

    @property
    def countable(self) -> bool:
        """Whether it follows from what the test does, where turns do not decide it.

        Contentions are a matter of turns, and so is which of the vCPUs meet while they fill the memory.
        """
        return self.what in _COUNTABLE and not self.of.endswith("(populate)")


def quantities(record: Record) -> dict[TrialQuantity, float]:
    """All numbers of a boot that are compared.

    Raises `SimlibError` if its output is damaged.
    """
    return dict(_found(record))


def _found(record: Record) -> Iterator[tuple[TrialQuantity, float]]:
    if record.content["kernel"] == "lock-stat":  # which makes all times longer, by what nobody knows
        yield from _by_lock(record)
        yield from ((name, value) for name, value in _of_test(record) if name.unit == COUNT)
    else:
        yield from _by_site(record)
        yield from _of_test(record)


def _by_lock(record: Record) -> Iterator[tuple[TrialQuantity, float]]:
    """What ``/proc/lock_stat`` says of KVM's locks, over the whole test."""
    output = record.content["outputs"][int(record.content["test_line"]) + 1]  # `Cell.script` shows it after the test
    classes = import_text("lock-stat", f"{output}\n", lock="all").tables["classes"].frame
    for row in classes.to_dict("records"):
        if _OF_KVM.search(row["lock"]):
            of = f"{row['lock']} {row['mode']}"
            yield TrialQuantity(of, "acquisitions", COUNT), float(row["acquisitions"])
            yield TrialQuantity(of, "contentions", COUNT), float(row["contentions"])
            yield TrialQuantity(of, "waits", TIME), 1000 * float(row["wait_total_us"])


def _by_site(record: Record) -> Iterator[tuple[TrialQuantity, float]]:
    """What the statistics say of mmu_lock; nothing where there are none."""
    for row in lock_rows(record).to_dict("records"):
        of = f"{row['site']} {row['lock_mode']} ({row['phase']})"
        yield TrialQuantity(of, "acquisitions", COUNT), float(row["acquisitions"])
        yield TrialQuantity(of, "contentions", COUNT), float(row["contentions"])
        yield TrialQuantity(of, "waits", TIME), float(row["wait_time_ns"])
        yield TrialQuantity(of, "holds", TIME), float(row["hold_time_ns"])


def _of_test(record: Record) -> Iterator[tuple[TrialQuantity, float]]:
    """What the test measures itself, and the kernel's flushes."""
    ioctls = ioctl_rows(record)
    for name, rows in ioctls.groupby("name", sort=False):
        time, pages = float(rows["total_time_ns"].sum()), float(rows["dirty_pages"].sum())
        yield TrialQuantity(str(name), "calls", COUNT), float(rows["calls"].sum())
        yield TrialQuantity(str(name), "time", TIME), time
        if pages:
            yield TrialQuantity(str(name), "dirty pages", COUNT), pages
            yield TrialQuantity(str(name), A_PAGE, TIME), time / pages
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
