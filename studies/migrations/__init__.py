# SPDX-License-Identifier: BSD-3-Clause
"""Published migrations: the 64-page drop of April 2024 in three configurations, and degradation of the guests."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from simlib._lib.parallel import Progress, subprogress
from simlib.figures.results import Answer
from simlib.figures.style import signed
from simlib.measurements.fits import Fit
from studies.migrations import degraded, drops, settings
from studies.study import FITTED, Study, StudyFindings, shipped_fit
from studies.x86.hosts import configurations
from studies.x86.parked import parked_costs

DRAWS = 15
"""Number of draws of the costs for the intervals of the changes; the seconds of degradation use a third of them."""

CHOSEN = len(settings.SETTINGS) + 4
"""Number of workload settings that were chosen: those that the April 2024 mail does not state, and the
order and interval of accesses, the link and the number of passes of the 48-vCPU migration."""


@dataclass(frozen=True)
class Migrations(StudyFindings):
    """Findings, with the costs of the published x86 hosts (`fit`)."""

    fit: Fit

    @property
    def observations(self) -> int:
        """Number of published numbers to which the costs and the workloads were fitted."""
        fitted = int((self.numbers["role"] == FITTED).sum())
        return len(self.fit.observations) + int(parked_costs()["cells"].sum()) + fitted


def compute(*, seed: int = 1, progress: Progress | None = None) -> Migrations:
    """Simulate the published migrations."""
    fit, grid = shipped_fit(configurations()), settings.load_grid()
    changes = drops.changes(DRAWS, seed, subprogress(progress, 0.0, 0.3))
    loongarch = {"LoongArch's policy": drops.loongarch()}
    seconds, degradation, work = degraded.seconds(DRAWS // 3, seed, subprogress(progress, 0.4, 0.5))
    throughput, dips = degraded.dips(seed, subprogress(progress, 0.5, 0.7))
    split = drops.clear_split(fit)
    tables = {
        "costs": drops.cost_rows(fit),
        "loongarch": drops.change_by_drop(loongarch, DRAWS, seed, subprogress(progress, 0.3, 0.4)),
        "clear-split": split,
        "reacquisitions": drops.reacquisitions(split),
        "settings": settings.settings_table(grid),
        "nine": settings.predictive(grid),
        "degradation": degradation,
        "work": work,
        "one-guest": degraded.one_guest(seed, subprogress(progress, 0.7, 1.0)),
        "throughput": throughput,
        "dips": dips,
    }
    return Migrations(pd.concat([changes, seconds], ignore_index=True), tables, fit)


def answer(findings: Migrations) -> Answer:
    """Answer of notebook 03: the reason why the cost of the 64-page drop differs between configurations."""
    rows = findings.of_table(drops.TABLE).query("metric == 'clear_cpu_time'")
    published, model = (", ".join(f"{signed(value)} %" for value in rows[name]) for name in ("published", "predicted"))
    return Answer(
        "After a drop, CLEAR reacquires the lock at once in configuration 1, after one round of readers in 2, and "
        f"after one writer after another in 3. The published changes in CLEAR's CPU time are {published}; the model's "
        f"are {model}."
    )


def degradation_answer(findings: Migrations) -> Answer:
    """Answer of notebook 04: agreement with the published seconds of degradation, fitted and held out."""
    rows = findings.of_table(degraded.TABLE)
    by_role = rows["published"].between(rows["low"], rows["high"]).groupby(rows["role"], sort=False)
    counts = ", ".join(f"{inside.sum()} of {len(inside)} {role}" for role, inside in by_role)
    return Answer(
        "While every vCPU faults, KVM handles one fault after another, one for each page and pass, and this limits the "
        f"guest. Of the published times of degradation, {counts} lie in the model's interval."
    )


NOTEBOOKS = ("03-clear-dirty-log", "04-migration-degradation")
TABLES = (drops.TABLE, degraded.TABLE)
STUDY = Study("migrations", "Published migrations", NOTEBOOKS, TABLES, compute, answer, runtime_s=120)
