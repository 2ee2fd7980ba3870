# SPDX-License-Identifier: BSD-3-Clause
"""What every test shares."""

from hypothesis import settings

# No deadline: a first call compiles. The same examples each time: a failure in CI is the same failure here.
settings.register_profile("simlib", deadline=None, derandomize=True)
settings.load_profile("simlib")
