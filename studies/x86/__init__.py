# SPDX-License-Identifier: BSD-3-Clause
"""x86: growth of the fault time with the vCPU count while the lock is saturated, and ioctl times with parked vCPUs.

`hosts` computes the costs of the published hosts, which ``checks/shipped.py`` writes and other studies use.
"""

from __future__ import annotations

import pandas as pd

from simlib._lib.parallel import Progress
from simlib.figures.results import Answer
from studies.study import Study, StudyFindings
from studies.x86 import growth, hosts, parked


def parked_times(findings: StudyFindings) -> pd.DataFrame:
    """Published times of enabling the log and of CLEAR; the other numbers are times of page faults."""
    return findings.numbers[~findings.numbers["metric"].str.startswith("dirty_memory_time")]


def compute(*, seed: int = 1, progress: Progress | None = None) -> StudyFindings:
    """Load the calibrated hypotheses and predict the held-out and unmeasured points."""
    report = progress or (lambda what, share: None)
    report("faults of x86", 0.0)
    faults = growth.fault_numbers(seed)
    report("x86 while the vCPUs are parked", 0.5)
    numbers = pd.concat([faults, parked.parked_numbers(), growth.presplit_numbers()], ignore_index=True)
    report("faults on x86, beyond the measured vCPU counts", 0.7)
    tables = {
        "hypotheses": growth.hypothesis_table(),
        "curves": growth.curves(),
        "hand-off": growth.handoff_growth(),
        "beyond": growth.extrapolations(seed),
        "parked-costs": parked.parked_costs(),
    }
    return StudyFindings(numbers, tables)


def answer(findings: StudyFindings) -> Answer:
    """Return the conclusion: the growth of the lock's hand-off, which is empirical."""
    cost = findings.tables["hand-off"].set_index("machine").loc["x86"]
    return Answer(
        "Sockets and core complexes explain part of the growth. The remainder is one empirical cost: each doubling "
        f"of the number of waiting threads makes the lock's hand-off {cost['value_ns']:.3g} ns longer "
        f"({cost['low_ns']:.3g} to {cost['high_ns']:.3g}). No source names a mechanism "
        f"({len(findings.tables['hypotheses'])} hypotheses were tried)."
    )


TABLES = (hosts.DIRTY_TIME, *parked.TABLES, "core-to-core-latency")
STUDY = Study("x86", "x86's fault time against vCPUs", ("06-x86-shadow-curves",), TABLES, compute, answer, runtime_s=20)
