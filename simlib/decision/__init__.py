# SPDX-License-Identifier: BSD-3-Clause
"""Choices between strategies that can only be simulated, at the size of real guests, with what is known of them.

Names are imported when they are first used: a guest by its name needs no simulator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simlib import later
from simlib.decision.standard import (
    DEFAULT_GUEST,
    guests,
    named_guest,
    standard_architectures,
    standard_scenario,
    with_guest,
)

if TYPE_CHECKING:
    from simlib.decision.advice import Choice, comparison
    from simlib.decision.batch import RULES, BatchChoice, choose_batch, comparison_of_batches
    from simlib.decision.choice import choose
    from simlib.decision.objectives import OBJECTIVES
    from simlib.decision.qemu import RunningGuest, read_guest
    from simlib.decision.strategies import CHUNKS, patched, settable, tracked

__all__ = [
    "CHUNKS",
    "DEFAULT_GUEST",
    "OBJECTIVES",
    "RULES",
    "BatchChoice",
    "Choice",
    "RunningGuest",
    "choose",
    "choose_batch",
    "comparison",
    "comparison_of_batches",
    "guests",
    "named_guest",
    "patched",
    "read_guest",
    "settable",
    "standard_architectures",
    "standard_scenario",
    "tracked",
    "with_guest",
]

_HOMES = {
    "advice": ("Choice", "comparison"),
    "batch": ("RULES", "BatchChoice", "choose_batch", "comparison_of_batches"),
    "choice": ("choose",),
    "objectives": ("OBJECTIVES",),
    "strategies": ("CHUNKS", "patched", "settable", "tracked"),
    "qemu": ("RunningGuest", "read_guest"),
}
"""Modules, and the public names that they hold; a test holds them against what type checkers are told above."""

__getattr__ = later.names(__name__, _HOMES)
