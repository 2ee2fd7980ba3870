# SPDX-License-Identifier: BSD-3-Clause
"""Dirty rings in the lab: how often they fill up and are reset, and what a reset takes, beside the model.

The vCPUs' order of accesses is the test's (kernel-patches/ 0018, ``init_order``), so that it is known which pages a
ring has; sequential ones are run by the simulator, too. With several vCPUs and rings that fill up it is a matter of
turns how much of the others' is reset: such cells are compared by their times alone, with the kernel's own counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from simlib.analysis.simulate import SimulationResult, run_scenario
from simlib.lab.hardware.machines import PAGE, lab_case, rows_of
from simlib.model.quantities import parse_size
from simlib.model.steps import Mode, Stamp
from simlib.model.workload import RING_RESERVE
from simlib.simulator.engine.reference.logs import Ring
from simlib.simulator.engine.result import FAULTS
from simlib.simulator.workloads.kernel import USERSPACE
from studies.study import FITTED, HELD_OUT

MACHINES = ("x86-npt", "x86-shadow", "arm64-read")
"""Those of `simlib.lab.hardware.machines.LABS` whose kernel has dirty rings."""

CELL = ("vcpus", "memory_per_vcpu", "access", "ring_entries")

WALKS = {"x86-npt", "arm64-read"}
"""Where a reset walks the page table from the first page of a run to its last (arch/x86/kvm/mmu/tdp_mmu.c
clear_dirty_pt_masked, arch/arm64/kvm/mmu.c kvm_arch_mmu_enable_log_dirty_pt_masked); x86's shadow MMU goes to each."""

_WORD = (1 << 64) - 1


class Resets(NamedTuple):
    """All rounds of a cell: reset ioctls, entries, runs of pages within 64, and pages between those of a run."""

    resets: int
    entries: int
    runs: int
    between: int


def _random(state: int) -> Iterator[int]:
    """The test's host_random()."""
    while True:
        state = (state + 0x9E3779B97F4A7C15) & _WORD
        drawn = state
        for _ in range(2):
            drawn = (drawn ^ (drawn >> 32)) * 0xD6E8FEB86659FD93 & _WORD
        yield drawn ^ (drawn >> 32)


def order_of(vcpu: int, pages: int, access: str, seed: int) -> list[int]:
    """The pages of its part of the memory in the order in which a vCPU writes them, round after round.

    >>> order_of(0, 1024, "sequential", 1)[:3], len(set(order_of(1, 256, "random", 1)))
    ([243, 244, 245], 256)
    """
    random = _random((seed + (vcpu << 32)) & _WORD)
    next(random)  # what decides between reads and writes
    first = next(random) % pages
    order = list(range(pages))
    if access == "random":
        for i in range(pages - 1, 0, -1):
            j = next(random) % (i + 1)
            order[i], order[j] = order[j], order[i]
    return order[first:] + order[:first]


def decided(row: pd.Series) -> bool:
    """Whether turns do not matter: there is one vCPU, or no ring fills up."""
    return (
        bool(row["vcpus"] == 1) or parse_size(row["memory_per_vcpu"]) // PAGE < int(row["ring_entries"]) - RING_RESERVE
    )


def by_order(row: pd.Series) -> Resets:
    """What is reset if each vCPU's rings are reset when it fills its own."""
    pages, full = parse_size(row["memory_per_vcpu"]) // PAGE, int(row["ring_entries"]) - RING_RESERVE
    resets, runs = 0, list[tuple[int, int]]()
    for vcpu in range(int(row["vcpus"])):
        order, ring = order_of(vcpu, pages, row["access"], int(row["seed"])), Ring()
        for _ in range(int(row["rounds"])):
            for page in order:
                ring.pages.append(page)
                if len(ring) == full:
                    runs += _reset(ring)
                    ring.pages.append(page)  # its write had not been made, and faults again
                    resets += 1
            runs += _reset(ring)
    resets += int(row["rounds"])
    spans = sum(mask.bit_length() - entries for entries, mask in runs)
    return Resets(resets, sum(entries for entries, _ in runs), len(runs), spans)


def _reset(ring: Ring) -> list[tuple[int, int]]:
    ring.harvested = len(ring)
    found = []
    while ring.harvested:
        entries, _, mask = ring.run()
        found.append((entries, mask))
    return found


def by_simulator(run: SimulationResult) -> Resets:
    """What the simulator resets once the log is enabled; a fault there is a write, and each has its entry."""
    enabled = run.job.stamps.index(Stamp("enabled"))
    taken = run.raw.stamp_locks[-1, :, Mode.WRITE, 0] - run.raw.stamp_locks[enabled, :, Mode.WRITE, 0]
    entries = int((run.raw.stamp_sums[-1, FAULTS] - run.raw.stamp_sums[enabled, FAULTS]).sum())
    by_faults = entries if run.scenario.policy.resolved().write_protect_fault == "write" else 0
    return Resets(int(taken[USERSPACE]), entries, int(taken[0]) - by_faults, 0)


def _kernel(name: str) -> pd.DataFrame:
    """The kernel's own: one row a cell, with `Resets` but for what lies between, and ``time_ns``, all rounds."""
    keys = [*CELL, "rounds", "seed"]
    locks, ioctls = (rows_of(f"rings-{table}", name) for table in ("locks", "ioctls"))
    resets = ioctls[ioctls["name"] == "reset"].groupby(keys, sort=False)
    sums = resets[["calls", "dirty_pages", "total_time_ns"]].sum()
    runs = locks[(locks["phase"] == "rounds") & (locks["site"] == "ring_reset")].groupby(keys)["acquisitions"].sum()
    found = sums.assign(runs=runs).reset_index()
    return found.rename(columns={"calls": "resets", "dirty_pages": "entries", "total_time_ns": "time_ns"})


def ring_comparison(name: str) -> pd.DataFrame:
    """Counts and times of the resets of one machine's cells beside the model's.

    Returns: `CELL`, ``decided``; ``resets``, ``entries``, ``runs`` of the kernel, each also with ``_model`` (NaN where
    turns decide): by the order of the test's accesses; ``simulated``: whether the simulator, which runs the sequential
    ones of these, has as many; ``time_ns`` of all reset ioctls, ``time_ns_model``, ``role``.

    An entry takes so long, a run, on some machines (`WALKS`) a page that lies between those of a run, and a reset for
    each vCPU. These costs are the least squares of the cells with one vCPU and rings of 1024 and more; all others are
    held out. Times are of the kernel's own counts.

    - `name`: one of `MACHINES`.
    """
    found, cases = _kernel(name), [row for _, row in rows_of("rings-runs", name).iterrows()]
    orders, settled = [by_order(row) for row in cases], [decided(row) for row in cases]
    for column in ("resets", "entries", "runs"):
        found[f"{column}_model"] = [
            float(getattr(one, column)) if ok else np.nan for one, ok in zip(orders, settled, strict=True)
        ]
    found["simulated"] = [
        by_simulator(run_scenario(lab_case(name, row)))[:3] == one[:3] if ok and row["access"] == "sequential" else None
        for row, one, ok in zip(cases, orders, settled, strict=True)
    ]
    # Where turns decide, as many lie between for each entry that joins a run.
    joined = found["entries"] - found["runs"]
    share = [one.between / max(1, one.entries - one.runs) for one in orders]
    between = joined * share * (name in WALKS)
    per = np.column_stack([found["entries"], found["runs"], between, found["resets"] * found["vcpus"]]).astype(float)
    fitted = ((found["vcpus"] == 1) & (found["ring_entries"] > found["ring_entries"].min())).to_numpy()
    costs, *_ = np.linalg.lstsq(per[fitted], found["time_ns"].to_numpy(dtype=float)[fitted], rcond=None)
    found["time_ns_model"] = per @ costs
    return found.assign(
        decided=settled, error=found["time_ns_model"] / found["time_ns"] - 1, role=np.where(fitted, FITTED, HELD_OUT)
    )


def ring_table() -> pd.DataFrame:
    """`ring_comparison` of all machines."""
    return pd.concat([ring_comparison(name).assign(machine=name) for name in MACHINES], ignore_index=True)
