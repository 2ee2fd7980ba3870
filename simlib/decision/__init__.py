# SPDX-License-Identifier: BSD-3-Clause
"""Choices between alternatives that can only be simulated, with a guarantee."""

from simlib.decision.selection import Selection, select_best

__all__ = ["Selection", "select_best"]
