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

from simlib.ui.cli import main
from studies.study import FINDINGS_FOLDER

# No deadline: a first call compiles. The same examples each time: a failure in CI is the same failure here.
settings.register_profile("simlib", deadline=None, derandomize=True)
settings.load_profile("simlib")

# A shell that starts a job in the background has it ignore Ctrl-C, and so would every process that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Readline tells the workers of xdist how wide a terminal is that they do not have.
os.environ.pop("COLUMNS", None)


collect_ignore_glob = ["*conftest.py"]
"""Without doctests; pytest would also take those of two folders, collected in turn, for one module."""

ASK_FOR_ALL = ("test_published", "test_validation_and_limits")
"""Modules that ask for every study: they come last, as two processes that ask for one at a time compute it twice."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring the tests into their order."""
    items.sort(key=lambda item: item.path.stem in ASK_FOR_ALL)


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


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Gives exit code, stdout and stderr of a command in this process: ``ask("predict", path, "--vcpus", 4)``."""

    def asked(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return asked


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all processes of these tests."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(autouse=True, scope="session")
def studies_are_computed_once(shared: Path) -> Iterator[None]:
    """What a study finds is kept for the other tests and for notebooks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FINDINGS_FOLDER, str(shared))
        yield


@pytest.fixture(scope="session")
def ran(shared: Path) -> Callable[[Path], notebook_run.Run]:
    """Gives a notebook's run: each runs once, whichever tests of whichever process ask for it."""
    return partial(notebook_run.ran, folder=shared / "notebooks")
