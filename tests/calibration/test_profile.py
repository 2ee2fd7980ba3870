# SPDX-License-Identifier: BSD-3-Clause
"""Profile intervals of a valley that is known exactly."""

from types import SimpleNamespace

import numpy as np
import pytest

from simlib.calibration import profile
from simlib.fits import CostEstimate

BOUNDS = np.array([[-9.0, 9.0], [-90.0, 90.0]])


class Valley:
    """Residuals (x, 20 (y - x - x²)): minimised over y they are x alone, and y follows a curve.

    `tilt`: what few pages have wrong.
    """

    def __init__(self, pages=4096, tilt=0.3):
        self.pages, self.tilt, self.asked = pages, tilt, 0
        self.problem = SimpleNamespace(bounds=BOUNDS)

    def __call__(self, point):
        self.asked += 1
        x, y = point
        wrong = self.tilt if self.pages < 4096 else 0.0
        return np.array([x + wrong * x * x, 20 * (y - x - x * x) + wrong * x])


class Lead(Valley):
    """Few pages, moved by what is known of all (`simlib.calibration.search.Led`)."""

    def __init__(self, tilt=0.3):
        super().__init__(512, tilt)
        self.slopes = np.array([[0.0, 0.0], [-tilt, 0.0]])

    def __call__(self, point):
        return super().__call__(point) + self.slopes @ point

    def corrected(self, point, residuals):
        other = Lead(self.tilt)
        other.slopes = self.slopes + np.outer(residuals - self(point), point) / (point @ point)
        return other


def test_the_ends_are_where_the_valley_is_as_high(monkeypatch):
    objective = Valley()
    monkeypatch.setattr(profile.Led, "at", lambda *_: Lead())
    estimate = CostEstimate(("x", "y"), np.zeros(2), np.diag([1.0, 9.0]), 30, 1.0, {})
    jacobian = np.array([[1.0, 0.0], [-20.0, 20.0]])
    ends = profile.profiled(objective, 512, estimate, jacobian, 0.9, lambda *_: None)
    t = 1.697  # of 30 degrees of freedom
    assert ends[0] == pytest.approx([-t, t], rel=0.1)
    assert ends[1, 1] == pytest.approx(t + t * t, rel=0.1)
    assert ends[1, 0] == pytest.approx(-0.33, abs=0.05), "no x leads further down"
    assert objective.asked < 60, "few pages lead"
