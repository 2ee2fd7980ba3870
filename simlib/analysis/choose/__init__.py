# SPDX-License-Identifier: BSD-3-Clause
"""Choice among strategies by simulation of a guest's migration under uncertain costs.

Names are imported when they are first used, because the presets of guests do not need the simulator.
"""

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
    from simlib.analysis.choose.batches import RULES, comparison_of_batches
    from simlib.analysis.choose.choice import choose, choose_batch
    from simlib.analysis.choose.objectives import OBJECTIVES
    from simlib.analysis.choose.strategies import patched_kernel_strategies, tracking_strategies

__all__ = [
    "DEFAULT_GUEST",
    "OBJECTIVES",
    "RULES",
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
    "tracking_strategies",
    "with_guest",
]

_HOMES = {
    "advice": ("Choice", "comparison"),
    "batches": ("RULES", "comparison_of_batches"),
    "choice": ("choose", "choose_batch"),
    "objectives": ("OBJECTIVES",),
    "strategies": ("patched_kernel_strategies", "tracking_strategies"),
}
"""Public names by module; a test compares them with the imports for type checkers above."""

__getattr__ = lazy_imports.lazy_names(__name__, _HOMES)
