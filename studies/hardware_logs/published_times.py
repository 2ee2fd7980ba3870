# SPDX-License-Identifier: BSD-3-Clause
"""Published times of dirty tracking with and without hardware, and times computed from the priors of the costs.

Each time is a number of pages times the time per page. No cost of these hosts is known, so each cost is drawn from its
prior (``data/priors/costs.toml``). A row is fitted if a prior was derived from its table.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simlib.analysis.prediction_options import LEVEL
from simlib.measurements import load
from simlib.measurements.fits.priors import load_priors
from simlib.model.architectures import TRACKING
from simlib.simulator.engine.result import PS
from studies.study import FITTED, HELD_OUT, NOT_PREDICTED, comparison_rows

GIB_PAGES = 2**18
DRAWS, SEED = 4000, 1

Costs = Callable[[str], NDArray[np.float64]]
"""Function that returns draws, in ps, of the cost with a given name."""


class PublishedTime(NamedTuple):
    """A published time, and its composition from costs.

    - `select`: condition that selects its row of the table; `column`: its column.
    - `pages`: number of pages, one after another.
    - `page`: time per page; None: the source states too little.
    - `cause`: cause of a miss.
    """

    table: str
    metric: str
    variant: str
    select: str
    column: str
    pages: float
    page: Callable[[Costs], NDArray[np.float64]] | None
    role: str
    architecture: str = "x86-tdp"
    vcpus: float = np.nan
    cause: str = ""


def by_hardware(cost: Costs) -> NDArray[np.float64]:
    """Time of an access that sets a dirty bit, with its share of emptying a full log buffer."""
    exits = cost("log_exit") / TRACKING["pml"].buffer_entries
    return cost("guest_access") + cost("dirty_set") + cost("log_entry") + exits


def by_fault(cost: Costs) -> NDArray[np.float64]:
    """Time of an access that faults without taking the lock."""
    return cost("guest_access") + cost("fault_unlocked") + cost("fault_hold")


_TEST = "x86-dirty-log-perf-test-96-vcpus"
_BUSY = "96 busy vCPUs, whose effect on the accesses is not published"


def _eagerly(vcpus: int, cause: str = "") -> PublishedTime:
    """First pass over eagerly split memory: no write faults, so the hardware logs the writes."""
    select = f"write_percent == 100 and eager_page_split == 'Y' and vcpus == {vcpus}"
    return PublishedTime("x86-tdp-split-on-fault", f"write all memory, {vcpus} vCPUs", "split eagerly", select,
               "dirty_memory_time_s", GIB_PAGES, by_hardware, HELD_OUT, vcpus=vcpus, cause=cause)  # fmt: skip


def _clear(host: str, mmu: str, variant: str, metric: str) -> PublishedTime:
    """CLEAR by one thread."""
    select = f"host == '{host}' and variant == '{variant}' and phase == 'clear-iteration-2'"
    return PublishedTime(_TEST, metric, f"{host}, {mmu}", select, "elapsed_time_s", 96 * GIB_PAGES,
               lambda cost: cost("clear_page"), HELD_OUT, vcpus=96)  # fmt: skip


ROWS = (
    PublishedTime("x86-enable-dirty-log-chunks", "enable, every dirty bit cleared", "before", "variant == 'before'",
        "enable_time_ms", 128 * GIB_PAGES, lambda cost: cost("enable_page"), FITTED),
    PublishedTime("x86-enable-dirty-log-chunks", "enable, initially set", "after", "variant == 'after'",
        "enable_time_ms", 128 * GIB_PAGES, None, NOT_PREDICTED),
    PublishedTime("x86-pml-flush", "write all memory, PML", "before", "variant == 'before' and statistic == 'mean'",
        "dirty_memory_time_s", 30 * GIB_PAGES, by_hardware, FITTED, vcpus=4),
    PublishedTime("x86-pml-flush", "write all memory, PML", "after", "variant == 'after' and statistic == 'mean'",
        "dirty_memory_time_s", 30 * GIB_PAGES, by_hardware, FITTED, vcpus=4),
    *(_eagerly(vcpus) for vcpus in (2, 4, 8, 16, 32, 64)),
    _eagerly(96, _BUSY),
    PublishedTime("x86-tdp-eager-split", "write all memory, iteration 2", "split eagerly",
        "initially_set == 'Y' and variant == 'after' and phase == 'dirty-memory-iteration-2'", "elapsed_time_s",
        GIB_PAGES, by_hardware, HELD_OUT, vcpus=96, cause=_BUSY),
    PublishedTime("x86-write-protect-faults-64-vcpus", "write all memory, no PML", "faults without mmu_lock",
        "phase == 'dirty-memory-iteration-2' and variant == 'after'", "elapsed_time_s", GIB_PAGES, by_fault, HELD_OUT,
        vcpus=64),
    PublishedTime(_TEST, "write all memory, no PML", "Haswell", "host == 'Haswell' and variant == 'tdp' and "
        "phase == 'dirty-memory-iteration-2'", "elapsed_time_s", GIB_PAGES, by_fault, HELD_OUT, vcpus=96, cause=_BUSY),
    _clear("Skylake", "TDP MMU", "tdp", "CLEAR, PML not stated"),
    _clear("Skylake", "shadow MMU", "legacy", "CLEAR, PML not stated"),
    _clear("Haswell", "TDP MMU", "tdp", "CLEAR, no PML"),
    _clear("Haswell", "shadow MMU", "legacy", "CLEAR, no PML"),
    PublishedTime("arm64-hardware-dirty-scan", "scan all entries, 64 GB", "DBM", "memory_gb == 64", "scan_time_ms",
        64e9 / 4096, lambda cost: cost("walk_entry"), HELD_OUT, "arm64"),
    PublishedTime("arm64-hardware-dirty-scan", "scan all entries, 256 GB, many CPUs", "DBM", "memory_gb == 256",
        "scan_time_ms", 256e9 / 4096, None, NOT_PREDICTED, "arm64"),
)  # fmt: skip
"""Published times that are compared."""


def _draws(architecture: str, name: str) -> NDArray[np.float64]:
    random, prior = np.random.default_rng([SEED, zlib.crc32(name.encode())]), load_priors(architecture)[name]
    return np.asarray(prior.median * np.exp(prior.deviation * random.standard_normal(DRAWS)))


def published_numbers() -> pd.DataFrame:
    """Compare each of `ROWS` with the model (`studies.study.comparison_rows`), with its ``cause``."""
    rows = []
    for row in ROWS:
        table = load(row.table)
        scale = {"ms": 1e-3, "s": 1.0}[row.column.rpartition("_")[2]]
        (published,) = table.rows(row.select)[row.column]
        ends = [np.nan] * 3
        if row.page is not None:
            times = row.pages * row.page(partial(_draws, row.architecture)) * PS
            ends = np.quantile(times, [0.5, (1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
        rows.append((row.variant, row.vcpus, row.metric, published * scale, *ends, row.role, row.cause))
    columns = ["variant", "vcpus", "metric", "published", "predicted", "low", "high", "role", "cause"]
    return comparison_rows(pd.DataFrame(rows, columns=columns).assign(unit="s"), [row.table for row in ROWS])


def stated() -> pd.DataFrame:
    """Overheads of tracking in whole systems as stated by their sources, not predicted: quantity, percent, source."""
    xen = load("xen-pml-study").frame
    shares = xen["share_percent"].map("up to {:g} %".format)
    rows = pd.DataFrame({"quantity": xen["quantity"].str.replace("-", " "), "stated": shares, "of": "Xen with PML"})
    (overhead,) = load("x86-nested-tracking-overhead").frame["overhead_percent"]
    rows.loc[len(rows)] = ("overhead of write protection on memory writes", f"{overhead:g} %", "KVM, nested guests")
    return rows
