# SPDX-License-Identifier: BSD-3-Clause
"""Effect of mmu_lock with PML and dirty rings, compared with write protection and the dirty bitmap."""

from __future__ import annotations

import pandas as pd

from simlib._lib.parallel import Progress, subprogress
from simlib.figures.results import Answer
from simlib.measurements import load
from simlib.model.quantities import seconds_text
from studies.hardware_logs import preregistered, published_times, relevance, rings
from studies.study import Study, StudyFindings


def preregistered_predictions() -> pd.DataFrame:
    """Load the predictions for a server with PML that were written down before it was measured."""
    parts = []
    for kind, unit in (("times", "s"), ("ratios", "ratio")):
        names = {f"{name}_{unit}": name for name in ("estimate", "low", "high")}
        parts.append(load(f"{preregistered.NAME}-{kind}").frame.rename(columns=names).assign(unit=unit))
    return pd.concat(parts, ignore_index=True)


def compute(*, seed: int = 1, progress: Progress | None = None) -> StudyFindings:
    """Compare published times with the priors, and simulate the same guest with and without PML.

    The numbers are those of `published_times.published_numbers` and `rings.ring_numbers`, with the ``cause`` of a miss.
    """
    of_rings, links = rings.ring_numbers(seed, subprogress(progress, 0.0, 0.5))
    matters = relevance.matters_table(seed, subprogress(progress, 0.5, 1.0))
    numbers = pd.concat([published_times.published_numbers(), of_rings], ignore_index=True)
    return StudyFindings(numbers, {"matters": matters, "rings": links})


def answer(findings: StudyFindings) -> Answer:
    """Answer of notebook 14."""
    matters = findings.tables["matters"]
    protected, pml = (matters[matters["tracking"] == way] for way in relevance.TRACKED)
    by_faults = pml["memory"].str.endswith("split by faults")
    writes, blocks = pml[~by_faults], pml[by_faults]
    unlogged = protected[~protected["memory"].str.endswith("split by faults")]
    longest = {
        hold: " or ".join(
            f"{seconds_text(stall)} ({mmu})" for mmu, stall in zip(rows["mmu"], rows["longest_stall_s"], strict=True)
        )
        for hold, rows in blocks.groupby("hold")
    }
    more = 100 * (pml["clear_s"].to_numpy() / protected["clear_s"].to_numpy() - 1)
    return Answer(
        f"The lock does not matter for the guest's writes: with PML the guest loses at most "
        f"{writes['lost_percent'].max():.3g} % of its time instead of {unlogged['lost_percent'].max():.3g} %, "
        "however long CLEAR holds the lock. The longest stall of a vCPU, "
        f"{seconds_text(writes['longest_stall_s'].max())}, is the time to empty a log buffer. The lock matters where "
        f"faults split huge pages: with holds of a GiB the longest stall is {longest['a GiB']}, and with holds of 64 "
        f"pages {longest['64 pages']}. CLEAR needs at most {more.max():.1f} % more CPU time with PML."
    )


TABLES = (*dict.fromkeys(row.table for row in published_times.ROWS), rings.TABLE, rings.AVERAGE)
STUDY = Study(
    "hardware_logs", "Does mmu_lock matter when the hardware logs?", ("14-hardware-logs",), TABLES, compute, answer
)
