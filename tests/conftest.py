# SPDX-License-Identifier: BSD-3-Clause
"""What every test shares."""

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import notebook_run
import pytest
from hypothesis import settings

collect_ignore = ["mutants.py"]
"""Its doctests are none, and cosmic-ray, which it needs, is installed by make mutants alone."""

# No deadline: a first call compiles. The same examples each time: a failure in CI is the same failure here.
settings.register_profile("simlib", deadline=None, derandomize=True)
settings.load_profile("simlib")

# A shell that starts a job in the background has it ignore Ctrl-C, and so would every process that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], notebook_run.Run]:
    """Gives a notebook's run: each runs once, whichever tests of whichever process ask for it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of all workers
    return partial(notebook_run.ran, folder=folder / "notebooks")
