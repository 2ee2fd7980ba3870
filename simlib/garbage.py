# SPDX-License-Identifier: BSD-3-Clause
"""Python's search for garbage, in processes that are simlib's own: there is next to none to be found."""

import gc

OBJECTS = 20_000
"""New objects after which it begins. After 700, as by default, it takes a tenth of the time of imports."""


def seldom() -> None:
    """Search seldom, and not among what is there already."""
    gc.freeze()
    gc.set_threshold(OBJECTS)


def no_more() -> None:
    """Search no more, as the process ends: what is left is the system's to free, which takes Python 0.2 s."""
    gc.freeze()
