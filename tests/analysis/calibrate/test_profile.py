# SPDX-License-Identifier: BSD-3-Clause
"""Profile intervals of a valley that is known exactly."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from simlib.analysis.calibrate.profile import profiled
from simlib.measurements.fits import CostEstimate

PAGES = 4096
TILT = 0.3
"""What runs of fewer pages have wrong."""


@dataclass(frozen=True)
class Valley:
    """Residuals (x, 20 (y - x - x²)): minimised over y they are x alone, and y follows a curve."""

    pages: int = PAGES
    asked: list[int] = field(default_factory=list)
    problem = SimpleNamespace(bounds=np.array([[-9.0, 9.0], [-90.0, 90.0]]))

    @property
    def wrong(self):
        return TILT if self.pages < PAGES else 0.0

    def __call__(self, point):
        self.asked.append(self.pages)
        x, y = point
        return np.array([x + self.wrong * x * x, 20 * (y - x - x * x) + self.wrong * x])

    def jacobian(self, point):
        """At the optimum, 0."""
        return np.array([[1.0, 0.0], [self.wrong - 20.0, 20.0]])


def test_the_ends_are_where_the_valley_is_as_high():
    valley = Valley()
    estimate = CostEstimate(("x", "y"), np.zeros(2), np.diag([1.0, 9.0]), 30, 1.0, {})
    ends = profiled(valley, PAGES // 8, estimate, valley.jacobian(np.zeros(2)), 0.9, lambda *_: None)
    t = 1.697  # of 30 degrees of freedom
    assert ends[0] == pytest.approx([-t, t], rel=0.1)
    assert ends[1, 1] == pytest.approx(t + t * t, rel=0.1)
    assert ends[1, 0] == pytest.approx(-0.33, abs=0.05), "no x leads further down"
    assert valley.asked.count(PAGES) < valley.asked.count(PAGES // 8), "few pages lead"
