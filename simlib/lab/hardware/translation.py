# SPDX-License-Identifier: BSD-3-Clause
"""Time on hardware of the lab's instructions, by kind of action and architecture.

The ratios are computed by the study of the lab (`studies.lab.translation`), which has the counts and the published
times, and written to ``data/fits/lab/instruction-times.json`` by ``python checks/shipped.py lab-instruction-times``.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from simlib._lib.reading import read_json
from simlib.analysis.predict import LEVEL
from simlib.measurements import data_dir

KINDS = {"exit": "fault_unlocked", "hold": "fault_hold", "clear": "clear_page", "letting go": "reacquire"}
"""Kinds of action, and the cost that each is."""

FILE = "lab/instruction-times.json"
"""File of the ratios, below ``data/fits``."""


class InstructionTimes(NamedTuple):
    """Measured ratios of time to instructions.

    - `ratios`: ``kind``, ``architecture``, ``ns_per_instruction``: one row a pair of a count and a published time.
    - `reacquire`: instructions for dropping mmu_lock and taking it again, with those of the lab's statistics, by
      machine of the lab.
    """

    ratios: pd.DataFrame
    reacquire: dict[str, float]


@cache
def instruction_times() -> InstructionTimes:
    """Load the shipped ratios.

    >>> sorted(set(instruction_times().ratios["kind"])) == sorted(KINDS)
    True
    """
    shipped = read_json(data_dir() / "fits" / FILE, "times of instructions (JSON)")
    return InstructionTimes(pd.DataFrame(shipped["ratios"]), shipped["reacquire_instructions"])


class Translated(NamedTuple):
    """A time for a count: its median, ns, and the factor within which it lies with a probability of 90 %."""

    time_ns: float
    factor: float


def translate(kind: str, count: float, table: pd.DataFrame) -> Translated:
    """Time of a number of instructions of one kind of action on an architecture that nobody timed, ns.

    The ratio is the geometric mean over the architectures that were timed. Its spread between architectures is pooled
    over the kinds, with as many degrees of freedom as there are ratios less kinds.

    - `kind`: one of `KINDS`.
    - `table`: as `InstructionTimes.ratios`.

    >>> times = translate("clear", 100.0, instruction_times().ratios)
    >>> times.time_ns > 0 and times.factor > 1
    True
    """
    logs = np.log(table["ns_per_instruction"])
    deviations = logs - logs.groupby(table["kind"]).transform("mean")
    dof = len(table) - table["kind"].nunique()
    spread = float(np.sqrt((deviations**2).sum() / dof))
    own = logs[table["kind"] == kind]
    half = float(stats.t.ppf(0.5 + LEVEL / 2, dof)) * spread * float(np.sqrt(1 + 1 / len(own)))
    return Translated(float(np.exp(own.mean())) * count, float(np.exp(half)))
