# SPDX-License-Identifier: BSD-3-Clause
"""Choices between strategies that can only be simulated, at the size of real guests, with what is known of them."""

from simlib.decision.advice import Choice, comparison
from simlib.decision.batch import RULES, BatchChoice, choose_batch, comparison_of_batches
from simlib.decision.choice import choose
from simlib.decision.guests import DEFAULT_GUEST, guests, named_guest
from simlib.decision.objectives import OBJECTIVES
from simlib.decision.priors import standard_architectures, standard_scenario, with_guest
from simlib.decision.qemu import RunningGuest, read_guest
from simlib.decision.qemu import apply as apply_running

__all__ = [
    "DEFAULT_GUEST",
    "OBJECTIVES",
    "RULES",
    "BatchChoice",
    "Choice",
    "RunningGuest",
    "apply_running",
    "choose",
    "choose_batch",
    "comparison",
    "comparison_of_batches",
    "guests",
    "named_guest",
    "read_guest",
    "standard_architectures",
    "standard_scenario",
    "with_guest",
]
