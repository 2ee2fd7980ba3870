# SPDX-License-Identifier: BSD-3-Clause
"""Effect of mmu_lock on a migration: with write protection and with PML, and with holds of a GiB and of 64 pages."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import pandas as pd

from simlib._lib import parallel
from simlib.analysis.choose.presets import preset_scenario
from simlib.measurements.fits import UncertainCosts, choose_fit
from simlib.model.policies import apply
from simlib.model.scenario import Scenario
from simlib.simulator.sampling import sample_several

MEMORY_TYPES: dict[str, tuple[dict[str, str], bool]] = {
    "pages of 4 KiB": ({"backing": "4k"}, False),
    "blocks of 2 MiB, split eagerly": ({}, True),
    "blocks of 2 MiB, split by faults": ({}, False),
}
"""Changes to the guest by type of memory, and whether huge pages are split eagerly."""

MMUS = {"TDP MMU": "x86-tdp", "shadow MMU": "x86-shadow"}
TRACKED = {"write protection": "write_protect", "PML": "pml"}
HOLDS = {"a GiB": "whole-ioctl", "64 pages": "every-64"}


def cases() -> dict[tuple[str, str, str, str], Scenario]:
    """Migrations of the preset guest by MMU, memory, tracking and hold."""
    by_setup = {}
    for (mmu, architecture), (memory, (guest, eager)) in product(MMUS.items(), MEMORY_TYPES.items()):
        if eager and architecture == "x86-shadow":
            continue
        base = preset_scenario(architecture).changed({"guest": guest, "policy": {"eager_split": eager}})
        for (tracked, way), (hold, strategy) in product(TRACKED.items(), HOLDS.items()):
            case = base.changed({"policy": {"dirty_tracking": way}})
            by_setup[mmu, memory, tracked, hold] = apply(case, strategy)
    return by_setup


def _sampled_means(case: Scenario, seed: int, check: parallel.Check) -> list[float]:
    runs = sample_several(UncertainCosts.of(case, choose_fit(case)[0]).central(), 8, seed, check)
    names = ("fault_cpu_time", "longest_stall", "stall_p999", "clear_cpu_time", "precopy_duration")
    means: list[float] = np.mean([[run.metrics[name] for name in names] for run in runs], axis=0).tolist()
    return means


def matters_table(seed: int = 1, progress: parallel.Progress | None = None) -> pd.DataFrame:
    """Guest time lost, stalls and CPU time of CLEAR by case; times in s."""
    all_cases = cases()
    tasks = [partial(_sampled_means, case, seed) for case in all_cases.values()]
    results = parallel.run_all(tasks, "with and without PML", progress)
    rows = []
    for (setup, case), (lost, stall, rare, clear, lasted) in zip(all_cases.items(), results, strict=True):
        rows.append((*setup, 100 * lost / (case.guest.vcpus * lasted), stall, rare, clear))
    columns = ["mmu", "memory", "tracking", "hold", "lost_percent", "longest_stall_s", "stall_p999_s", "clear_s"]
    return pd.DataFrame(rows, columns=columns)
