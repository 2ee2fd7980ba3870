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
from simlib.analysis.prediction_options import LEVEL
from simlib.measurements import data_dir

KINDS = {"exit": "fault_unlocked", "hold": "fault_hold", "clear": "clear_page", "drop": "reacquire"}

FILE = "lab/instruction-times.json"
"""File of the ratios, below ``data/fits``."""


class InstructionTimes(NamedTuple):
    """Measured ratios of time to instructions.

    - `ratios`: ``kind``, ``architecture``, ``ns_per_instruction``: one row per pair of a count and a published time.
    - `reacquire`: instructions of dropping and reacquiring mmu_lock, including those of the lab's statistics, by
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


class TranslatedTime(NamedTuple):
    """Time for a number of instructions: its median, ns, and the factor within which it lies with probability 90 %."""

    time_ns: float
    factor: float


def translate(kind: str, count: float, table: pd.DataFrame) -> TranslatedTime:
    """Translate instructions of a kind of action into a time on an architecture without published times.

    The ratio is the geometric mean over the architectures that were timed. Its spread between architectures is pooled
    over the kinds, with (ratios − kinds) degrees of freedom.

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
    ratios = logs[table["kind"] == kind]
    half_width = float(stats.t.ppf(0.5 + LEVEL / 2, dof)) * spread * float(np.sqrt(1 + 1 / len(ratios)))
    return TranslatedTime(float(np.exp(ratios.mean())) * count, float(np.exp(half_width)))
