# SPDX-License-Identifier: BSD-3-Clause
"""Somebody's patches tried in the lab: a kernel without them, one with them, and what differs.

`series` reads the patches, `tree` and `accessors` bring them under the lab's statistics, `kernels` builds, `cells` says
what is run, `machine` runs it, `quantities` says what a boot gave, `differences` which numbers differ, `result` tells
it, `rule` judges it. `request`, `run` and `bisect` are what somebody calls.
"""

from simlib.lab.trial.bisect import Bisection, bisect_series
from simlib.lab.trial.result import Trial, load_trial
from simlib.lab.trial.rule import FailRule
from simlib.lab.trial.run import try_each_patch, try_series

__all__ = ["Bisection", "FailRule", "Trial", "bisect_series", "load_trial", "try_each_patch", "try_series"]
