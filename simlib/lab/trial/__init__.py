# SPDX-License-Identifier: BSD-3-Clause
"""Somebody's patches tried in the lab: a kernel without them, one with them, and what differs.

`series` reads the patches, `tree` and `accessors` bring them under the lab's statistics, `kernels` builds, `cells` says
what is run, `quantities` what a boot says, `differences` which numbers differ, `result` tells it, `rule` judges it.
"""

from simlib.lab.trial.result import Trial
from simlib.lab.trial.rule import Rule
from simlib.lab.trial.run import try_each_patch, try_series

__all__ = ["Rule", "Trial", "try_each_patch", "try_series"]
