# SPDX-License-Identifier: BSD-3-Clause
"""Profile intervals of an analytical function."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from simlib.analysis.calibrate.profile import profile_intervals
from simlib.measurements.fits import CostEstimate

PAGES = 4096
TILT = 0.3
"""Error of runs with fewer pages."""


@dataclass(frozen=True)
class Valley:
    """Residuals (x, 20 (y - x - x²)): minimised over y, only x remains, and y follows a curve."""

    pages: int = PAGES
    evaluated: list[int] = field(default_factory=list)
    problem = SimpleNamespace(bounds=np.array([[-9.0, 9.0], [-90.0, 90.0]]))

    @property
    def error(self):
        return TILT if self.pages < PAGES else 0.0

    def __call__(self, point):
        self.evaluated.append(self.pages)
        x, y = point
        return np.array([x + self.error * x * x, 20 * (y - x - x * x) + self.error * x])

    def jacobian(self, point):
        """Derivative at the optimum, 0."""
        return np.array([[1.0, 0.0], [self.error - 20.0, 20.0]])


def test_the_ends_are_where_the_sum_of_squares_has_grown_by_t_squared():
    valley = Valley()
    estimate = CostEstimate(("x", "y"), np.zeros(2), np.diag([1.0, 9.0]), 30, 1.0, {})
    ends = profile_intervals(valley, PAGES // 8, estimate, valley.jacobian(np.zeros(2)), 0.9, lambda *_: None)
    t = 1.697  # quantile for 30 degrees of freedom
    assert ends[0] == pytest.approx([-t, t], rel=0.1)
    assert ends[1, 1] == pytest.approx(t + t * t, rel=0.1)
    assert ends[1, 0] == pytest.approx(-0.33, abs=0.05), "no x decreases y further"
    assert valley.evaluated.count(PAGES) < valley.evaluated.count(PAGES // 8), "most runs have few pages"
