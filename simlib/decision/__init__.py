# SPDX-License-Identifier: BSD-3-Clause
"""Choices between alternatives that can only be simulated, with a guarantee."""

from simlib.decision.advice import RULES, BatchChoice, comparison
from simlib.decision.choice import choose_batch
from simlib.decision.priors import standard_architectures, standard_scenario
from simlib.decision.selection import Selection, select_best

__all__ = [
    "RULES",
    "BatchChoice",
    "Selection",
    "choose_batch",
    "comparison",
    "select_best",
    "standard_architectures",
    "standard_scenario",
]
