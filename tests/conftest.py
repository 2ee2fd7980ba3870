# SPDX-License-Identifier: BSD-3-Clause
"""What every test shares."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import notebook_run
import pytest
from hypothesis import settings

# No deadline: a first call compiles. The same examples each time: a failure in CI is the same failure here.
settings.register_profile("simlib", deadline=None, derandomize=True)
settings.load_profile("simlib")

# A shell that starts a job in the background has it ignore Ctrl-C, and so would every process that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def hangups_are_heard() -> Iterator[None]:
    """Under nohup, what tests start hears SIGHUP as anywhere else; the tests themselves go on.

    A program that is started inherits that a signal is ignored, and not that there is a handler.
    """
    before = signal.getsignal(signal.SIGHUP)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def popen() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`subprocess.Popen` of a program that says text; a test that gives up leaves neither the process nor its pipes."""
    with contextlib.ExitStack() as stack:

        def start(command: list[str], **options: object) -> subprocess.Popen[str]:
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            process = stack.enter_context(subprocess.Popen(command, **(pipes | options)))
            stack.callback(process.kill)
            return process

        yield start


@pytest.fixture(scope="session")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], notebook_run.Run]:
    """Gives a notebook's run: each runs once, whichever tests of whichever process ask for it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of all workers
    return partial(notebook_run.ran, folder=folder / "notebooks")
