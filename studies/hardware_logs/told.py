# SPDX-License-Identifier: BSD-3-Clause
"""What is published of tracking by hardware and without, beside what the priors of the costs say.

Every row is a number of pages times what a page takes. The hosts share no cost that is known, so each cost is drawn
from its prior (``data/priors/costs.toml``). Where a prior was made from the very table, the row is called fitted.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simlib.analysis.predict import LEVEL
from simlib.measurements import load
from simlib.measurements.fits.priors import load_priors
from simlib.model.architectures import TRACKING
from simlib.simulator.engine.result import PS
from studies.study import FITTED, HELD_OUT, NOT_PREDICTED, comparison_rows

GIB_PAGES = 2**18
DRAWS, SEED = 4000, 1

Costs = Callable[[str], NDArray[np.float64]]
"""Draws of a cost by its name, ps."""


class StatementRow(NamedTuple):
    """A published time, and what it is in costs.

    - `select`: which row of the table, and `column` in it.
    - `pages`: how many of them one after another.
    - `page`: what each takes; None: nothing published says enough.
    - `cause`: why it is missed, where it is.
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
    """An access that sets a dirty bit, with its share of what a full log buffer takes."""
    return (
        cost("guest_access") + cost("dirty_set") + cost("log_entry") + cost("log_exit") / TRACKING["pml"].buffer_entries
    )


def by_fault(cost: Costs) -> NDArray[np.float64]:
    """An access that faults, and takes no lock."""
    return cost("guest_access") + cost("fault_unlocked") + cost("fault_hold")


_TEST = "x86-dirty-log-perf-test-96-vcpus"
_BUSY = "96 busy vCPUs, whose effect on this host's accesses nothing tells"


def _eagerly(vcpus: int, cause: str = "") -> StatementRow:
    """A first pass over memory that was split eagerly: no write faults, so the host must log by itself."""
    select = f"write_percent == 100 and eager_page_split == 'Y' and vcpus == {vcpus}"
    return StatementRow("x86-tdp-split-on-fault", f"write all memory, {vcpus} vCPUs", "split eagerly", select,
               "dirty_memory_time_s", GIB_PAGES, by_hardware, HELD_OUT, vcpus=vcpus, cause=cause)  # fmt: skip


def _clear(host: str, mmu: str, variant: str, metric: str) -> StatementRow:
    """CLEAR by one thread."""
    select = f"host == '{host}' and variant == '{variant}' and phase == 'clear-iteration-2'"
    return StatementRow(_TEST, metric, f"{host}, {mmu}", select, "elapsed_time_s", 96 * GIB_PAGES,
               lambda cost: cost("clear_page"), HELD_OUT, vcpus=96)  # fmt: skip


ROWS = (
    StatementRow(
        "x86-enable-dirty-log-chunks",
        "enable, every dirty bit cleared",
        "before",
        "variant == 'before'",
        "enable_time_ms",
        128 * GIB_PAGES,
        lambda cost: cost("enable_page"),
        FITTED,
    ),
    StatementRow(
        "x86-enable-dirty-log-chunks",
        "enable, initially set",
        "after",
        "variant == 'after'",
        "enable_time_ms",
        128 * GIB_PAGES,
        None,
        NOT_PREDICTED,
    ),
    StatementRow(
        "x86-pml-flush",
        "write all memory, PML",
        "before",
        "variant == 'before' and statistic == 'mean'",
        "dirty_memory_time_s",
        30 * GIB_PAGES,
        by_hardware,
        FITTED,
        vcpus=4,
    ),
    StatementRow(
        "x86-pml-flush",
        "write all memory, PML",
        "after",
        "variant == 'after' and statistic == 'mean'",
        "dirty_memory_time_s",
        30 * GIB_PAGES,
        by_hardware,
        FITTED,
        vcpus=4,
    ),
    *(_eagerly(vcpus) for vcpus in (2, 4, 8, 16, 32, 64)),
    _eagerly(96, _BUSY),
    StatementRow(
        "x86-tdp-eager-split",
        "write all memory, iteration 2",
        "split eagerly",
        "initially_set == 'Y' and variant == 'after' and phase == 'dirty-memory-iteration-2'",
        "elapsed_time_s",
        GIB_PAGES,
        by_hardware,
        HELD_OUT,
        vcpus=96,
        cause=_BUSY,
    ),
    StatementRow(
        "x86-write-protect-faults-64-vcpus",
        "write all memory, no PML",
        "faults without mmu_lock",
        "phase == 'dirty-memory-iteration-2' and variant == 'after'",
        "elapsed_time_s",
        GIB_PAGES,
        by_fault,
        HELD_OUT,
        vcpus=64,
    ),
    StatementRow(
        _TEST,
        "write all memory, no PML",
        "Haswell",
        "host == 'Haswell' and variant == 'tdp' and phase == 'dirty-memory-iteration-2'",
        "elapsed_time_s",
        GIB_PAGES,
        by_fault,
        HELD_OUT,
        vcpus=96,
        cause=_BUSY,
    ),
    _clear("Skylake", "TDP MMU", "tdp", "CLEAR, PML not stated"),
    _clear("Skylake", "shadow MMU", "legacy", "CLEAR, PML not stated"),
    _clear("Haswell", "TDP MMU", "tdp", "CLEAR, no PML"),
    _clear("Haswell", "shadow MMU", "legacy", "CLEAR, no PML"),
    StatementRow(
        "arm64-hardware-dirty-scan",
        "look at all entries, 64 GB",
        "DBM",
        "memory_gb == 64",
        "scan_time_ms",
        64e9 / 4096,
        lambda cost: cost("walk_entry"),
        HELD_OUT,
        "arm64",
    ),
    StatementRow(
        "arm64-hardware-dirty-scan",
        "look at all entries, 256 GB, many CPUs",
        "DBM",
        "memory_gb == 256",
        "scan_time_ms",
        256e9 / 4096,
        None,
        NOT_PREDICTED,
        "arm64",
    ),
)
"""What is compared."""


def _draws(architecture: str) -> Costs:
    priors = load_priors(architecture)

    def drawn(name: str) -> NDArray[np.float64]:
        random = np.random.default_rng([SEED, zlib.crc32(name.encode())])
        prior = priors[name]
        return np.asarray(prior.median * np.exp(prior.deviation * random.standard_normal(DRAWS)))

    return drawn


def told_numbers() -> pd.DataFrame:
    """Every row of `ROWS` beside the model, as `studies.study.numbers` has them, and its ``cause``."""
    found = []
    for row in ROWS:
        table = load(row.table)
        scale = {"ms": 1e-3, "s": 1.0}[row.column.rpartition("_")[2]]
        (published,) = table.rows(row.select)[row.column]
        ends = [np.nan] * 3
        if row.page is not None:
            times = row.pages * row.page(_draws(row.architecture)) * PS
            ends = np.quantile(times, [0.5, (1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
        named = {"variant": row.variant, "vcpus": row.vcpus, "metric": row.metric, "published": published * scale,
                 "unit": "s", "relation": "", "predicted": ends[0], "low": ends[1], "high": ends[2],
                 "role": row.role, "cause": row.cause}  # fmt: skip
        found.append(comparison_rows(pd.DataFrame([named]), row.table))
    return pd.concat(found, ignore_index=True)


def stated() -> pd.DataFrame:
    """What is stated of tracking in whole systems, which nothing here predicts: quantity, percent, source."""
    xen, nested = load("xen-pml-study"), load("x86-nested-tracking-overhead")
    rows = [
        (str(quantity).replace("-", " "), f"up to {share:g} %", "Xen with PML")
        for quantity, share in zip(xen.frame["quantity"], xen.frame["share_percent"], strict=True)
    ]
    (overhead,) = nested.frame["overhead_percent"]
    rows.append(("write protection, added to writing memory", f"{overhead:g} %", "KVM, nested guests"))
    return pd.DataFrame(rows, columns=["quantity", "stated", "of"])
