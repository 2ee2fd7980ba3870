# SPDX-License-Identifier: BSD-3-Clause
"""Dirty rings in the lab, compared with the model: counts of resets, and their time.

A vCPU accesses pages in the order of the test (kernel-patches/ 0018, ``init_order``), so the pages in each ring are
known. The simulator also runs the sequential cells. With several vCPUs and rings that fill up, the order in which CPUs
run determines how many entries of other vCPUs' rings a reset finds. For such cells only times are compared, computed
from the kernel's counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from simlib.analysis.simulate import SimulationResult, run_scenario
from simlib.lab.hardware.machines import lab_case, rows_of
from simlib.model.quantities import parse_size
from simlib.model.steps import Mode, Stamp
from simlib.model.workload import RING_RESERVE
from simlib.simulator.engine.reference.logs import Ring
from simlib.simulator.engine.result import FAULTS
from simlib.simulator.workloads.kernel import USERSPACE
from simlib.vmm.qemu_rules import PAGE
from studies.study import FITTED, HELD_OUT

MACHINES = ("x86-npt", "x86-shadow", "arm64-read")
"""Machines of `simlib.lab.hardware.machines.LABS` whose kernel has dirty rings."""

CELL = ("vcpus", "memory_per_vcpu", "access", "ring_entries")

WALKS = {"x86-npt", "arm64-read"}
"""Machines on which a reset walks the page table from the first page of a run to its last (arch/x86/kvm/mmu/tdp_mmu.c
clear_dirty_pt_masked, arch/arm64/kvm/mmu.c kvm_arch_mmu_enable_log_dirty_pt_masked). x86's shadow MMU looks up each
page of the run instead."""

_WORD = (1 << 64) - 1


class Resets(NamedTuple):
    """Totals of a cell's rounds: resets, entries, runs (within 64 pages), and pages in a run without an entry."""

    resets: int
    entries: int
    runs: int
    between: int


def _random(state: int) -> Iterator[int]:
    """Random numbers of the test's host_random()."""
    while True:
        state = (state + 0x9E3779B97F4A7C15) & _WORD
        drawn = state
        for _ in range(2):
            drawn = (drawn ^ (drawn >> 32)) * 0xD6E8FEB86659FD93 & _WORD
        yield drawn ^ (drawn >> 32)


def access_order(vcpu: int, pages: int, access: str, seed: int) -> list[int]:
    """Pages of a vCPU's part of the memory, in the order in which it writes them in every round.

    >>> access_order(0, 1024, "sequential", 1)[:3], len(set(access_order(1, 256, "random", 1)))
    ([243, 244, 245], 256)
    """
    random = _random((seed + (vcpu << 32)) & _WORD)
    next(random)  # used by the test to choose between reads and writes
    first = next(random) % pages
    order = list(range(pages))
    for i in range(pages - 1, 0, -1) if access == "random" else ():
        j = next(random) % (i + 1)
        order[i], order[j] = order[j], order[i]
    return order[first:] + order[:first]


def decided(row: pd.Series) -> bool:
    """True if the counts do not depend on the order in which CPUs run: there is one vCPU, or no ring fills up."""
    pages, full = _sizes(row)
    return bool(row["vcpus"] == 1) or pages < full


def _sizes(row: pd.Series) -> tuple[int, int]:
    """Pages of a vCPU's part of the memory, and number of entries at which its ring is full."""
    return parse_size(row["memory_per_vcpu"]) // PAGE, int(row["ring_entries"]) - RING_RESERVE


def resets_by_order(row: pd.Series) -> Resets:
    """Resets that follow from the order of accesses, if a full ring causes a reset of that vCPU's ring alone."""
    pages, full = _sizes(row)
    resets, runs = int(row["rounds"]), list[tuple[int, int]]()
    for vcpu in range(int(row["vcpus"])):
        order, ring = access_order(vcpu, pages, row["access"], int(row["seed"])), Ring()
        for _ in range(int(row["rounds"])):
            for page in order:
                ring.pages.append(page)
                if len(ring) == full:
                    runs += _reset(ring)
                    ring.pages.append(page)  # the write did not happen yet, and faults again
                    resets += 1
            runs += _reset(ring)
    return Resets(resets, sum(entries for entries, _ in runs), len(runs), sum(between for _, between in runs))


def _reset(ring: Ring) -> Iterator[tuple[int, int]]:
    """Entries of each run, and pages within the run without an entry."""
    ring.harvested = len(ring)
    while ring.harvested:
        entries, pages = ring.run()
        yield entries, pages[-1] - pages[0] + 1 - entries


def simulated_resets(run: SimulationResult) -> Resets:
    """Resets of the simulator after the log is enabled. Each fault after that is a write, and adds one entry."""
    enabled = run.job.stamps.index(Stamp("enabled"))
    taken = run.raw.stamp_locks[-1, :, Mode.WRITE, 0] - run.raw.stamp_locks[enabled, :, Mode.WRITE, 0]
    entries = int((run.raw.stamp_sums[-1, FAULTS] - run.raw.stamp_sums[enabled, FAULTS]).sum())
    by_faults = entries if run.scenario.policy.resolved().write_protect_fault == "write" else 0
    return Resets(int(taken[USERSPACE]), entries, int(taken[0]) - by_faults, 0)


def _kernel_resets(name: str) -> pd.DataFrame:
    """Resets of the kernel: one row per cell, with the fields of `Resets` except ``between``, and ``time_ns``."""
    keys = [*CELL, "rounds", "seed"]
    locks, ioctls = (rows_of(f"rings-{table}", name) for table in ("locks", "ioctls"))
    resets = ioctls[ioctls["name"] == "reset"].groupby(keys, sort=False)
    sums = resets[["calls", "dirty_pages", "total_time_ns"]].sum()
    runs = locks[(locks["phase"] == "rounds") & (locks["site"] == "ring_reset")].groupby(keys)["acquisitions"].sum()
    names = {"calls": "resets", "dirty_pages": "entries", "total_time_ns": "time_ns"}
    return sums.assign(runs=runs).reset_index().rename(columns=names)


def ring_comparison(name: str) -> pd.DataFrame:
    """Compare counts and times of one machine's resets with the model's.

    Returns: `CELL`, ``decided``; ``resets``, ``entries``, ``runs`` of the kernel, each also with ``_model`` from the
    order of the test's accesses (NaN if not `decided`); ``simulated``: for sequential accesses, whether the simulator
    has the same counts; ``time_ns`` of all reset ioctls, ``time_ns_model``, ``error``, ``role``.

    The model's time is a sum of costs times the kernel's counts: a cost per entry, per run, per reset and vCPU and, on
    the machines in `WALKS`, per page between those of a run. The costs are a least-squares fit to the cells with one
    vCPU and rings of 1024 and more entries; all other cells are held out.

    - `name`: one of `MACHINES`.
    """
    table, cases = _kernel_resets(name), [row for _, row in rows_of("rings-runs", name).iterrows()]
    orders, settled = [resets_by_order(row) for row in cases], [decided(row) for row in cases]
    counts = pd.DataFrame(orders)[["resets", "entries", "runs"]].astype(float).where(pd.Series(settled))
    table = table.assign(**counts.add_suffix("_model"))
    table["simulated"] = [
        simulated_resets(run_scenario(lab_case(name, row)))[:3] == order[:3]
        if ok and row["access"] == "sequential" else None
        for row, order, ok in zip(cases, orders, settled, strict=True)
    ]  # fmt: skip
    # In cells that are not decided, the pages between for each entry that joins a run are assumed to be the same.
    joined = table["entries"] - table["runs"]
    share = [order.between / max(1, order.entries - order.runs) for order in orders]
    between = joined * share * (name in WALKS)
    terms = np.column_stack([table["entries"], table["runs"], between, table["resets"] * table["vcpus"]]).astype(float)
    fitted = ((table["vcpus"] == 1) & (table["ring_entries"] > table["ring_entries"].min())).to_numpy()
    costs, *_ = np.linalg.lstsq(terms[fitted], table["time_ns"].to_numpy(dtype=float)[fitted], rcond=None)
    table["time_ns_model"] = terms @ costs
    error = table["time_ns_model"] / table["time_ns"] - 1
    return table.assign(decided=settled, error=error, role=np.where(fitted, FITTED, HELD_OUT))


def ring_table() -> pd.DataFrame:
    """Combine the `ring_comparison` of all machines."""
    return pd.concat([ring_comparison(name).assign(machine=name) for name in MACHINES], ignore_index=True)
