# SPDX-License-Identifier: BSD-3-Clause
"""Choices between strategies that can only be simulated, at the size of real guests, with what is known of them.

Names are imported when they are first used: a guest by its name needs no simulator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simlib._lib import lazy_imports
from simlib.analysis.choose.presets import (
    DEFAULT_GUEST,
    guests,
    named_guest,
    preset_architectures,
    preset_scenario,
    with_guest,
)

if TYPE_CHECKING:
    from simlib.analysis.choose.advice import Choice, comparison
    from simlib.analysis.choose.batch import RULES, BatchChoice, choose_batch, comparison_of_batches
    from simlib.analysis.choose.choice import choose
    from simlib.analysis.choose.objectives import OBJECTIVES
    from simlib.analysis.choose.strategies import (
        CHUNKS,
        patched_kernel_strategies,
        stock_kernel_strategies,
        tracking_strategies,
    )

__all__ = [
    "CHUNKS",
    "DEFAULT_GUEST",
    "OBJECTIVES",
    "RULES",
    "BatchChoice",
    "Choice",
    "choose",
    "choose_batch",
    "comparison",
    "comparison_of_batches",
    "guests",
    "named_guest",
    "patched_kernel_strategies",
    "preset_architectures",
    "preset_scenario",
    "stock_kernel_strategies",
    "tracking_strategies",
    "with_guest",
]

_HOMES = {
    "advice": ("Choice", "comparison"),
    "batch": ("RULES", "BatchChoice", "choose_batch", "comparison_of_batches"),
    "choice": ("choose",),
    "objectives": ("OBJECTIVES",),
    "strategies": ("CHUNKS", "patched_kernel_strategies", "stock_kernel_strategies", "tracking_strategies"),
}
"""Modules, and the public names that they hold; a test holds them against what type checkers are told above."""

__getattr__ = lazy_imports.lazy_names(__name__, _HOMES)
