# SPDX-License-Identifier: BSD-3-Clause
"""Signals end the command within a second, whatever it does; ``make interruptions`` has more cases."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from simlib._lib import signals
from simlib._lib.errors import RunInterruptedError
from simlib.ui.cli.output import interruptible

SENTENCE = "simlib: interrupted; nothing half-written is left behind\n"
DATA = Path(__file__).parents[2] / "data"
ARM64 = str(DATA / "scenarios" / "arm64-ampere-altra.toml")
FIRST = DATA / "grids" / "first.toml"
COMMAND = "from simlib.__main__ import main; main()"
INSTEAD = """
import sys, time, simlib.ui.cli
from simlib.ui.cli.output import interruptible
def command():
    sys.stderr.write("ready\\n")
    {}
simlib.ui.cli.main = command
from simlib.__main__ import main
main()
"""


@pytest.fixture
def started(popen):
    """Start Python code and wait until it prints that it is ready, if `ready` is set."""

    def start(code: str, *words: str, ready: bool = True, **environment: str) -> subprocess.Popen[str]:
        process = popen([sys.executable, "-c", code, *words], env=os.environ | environment)
        assert not ready or process.stderr.readline() == "ready\n"
        return process

    return start


def ends(process: subprocess.Popen[str], number: int) -> tuple[float, str]:
    """Send a signal; return the seconds until the end, and stderr. Checks that the exit code is that of the signal."""
    sent = time.monotonic()
    process.send_signal(number)
    _, text = process.communicate(timeout=30)
    assert process.returncode == 128 + number, text
    return time.monotonic() - sent, text


@pytest.mark.parametrize("number", signals.SIGNALS)
@pytest.mark.parametrize("after", [0.0, 0.05, 0.15])
def test_a_signal_during_imports_leaves_no_traceback(started, number, after):
    code = "import sys; from simlib.__main__ import main; print('ready', file=sys.stderr); main()"
    process = started(code, "predict", ARM64, "--vcpus", "16")
    time.sleep(0.05 + after)
    took, text = ends(process, number)
    assert text == SENTENCE
    assert took < 1.0


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (("predict", ARM64, "--vcpus", "16,32"), signal.SIGINT),
        (("simulate", ARM64, "--variant", "rwlock-old-test"), signal.SIGTERM),
        (("choose-batch", "--architecture", "arm64", "--vcpus", "256", "--memory", "1T"), signal.SIGINT),
    ],
)
def test_a_signal_does_not_wait_for_a_compilation(started, tmp_path, words, number):
    process = started(COMMAND, *words, ready=False, NUMBA_CACHE_DIR=str(tmp_path))
    time.sleep(4.0)
    took, text = ends(process, number)
    assert text.endswith(SENTENCE)
    assert "Traceback" not in text
    assert took < 1.5  # on a busy machine
    assert not list(tmp_path.rglob("*.tmp.*"))


@pytest.mark.parametrize(
    "body",
    [
        # Foreign code that ignores the interrupt.
        "\n    with interruptible():\n        while True:\n            try: time.sleep(60)\n"
        "            except KeyboardInterrupt: pass",
        # Signals are handled, but C does not return.
        "\n    import ctypes\n    ctypes.CDLL(None).sleep(1) or ctypes.CDLL(None).pause()\n"
        "    while True: ctypes.CDLL(None).sleep(60)",
    ],
)
def test_code_that_does_not_end_is_ended_by_force(started, body):
    process = started(INSTEAD.format(body))
    time.sleep(0.2)
    took, text = ends(process, signal.SIGTERM)
    assert text == SENTENCE
    assert took < signals.DEADLINE_S + 0.7


def test_an_interrupt_within_a_destructor_is_raised_again(started):
    body = """
    class Slow:
        def __del__(self): time.sleep(60)
    with interruptible():
        try:
            Slow()
            time.sleep(60)
        finally:
            sys.stderr.write("tidy\\n")
"""
    process = started(INSTEAD.format(body))
    time.sleep(0.2)
    assert ends(process, signal.SIGTERM)[1] == "tidy\n" + SENTENCE


def test_a_second_signal_does_not_disturb_the_cleanup(started):
    body = """
    with interruptible():
        try:
            time.sleep(60)
        finally:
            sys.stderr.write("ending\\n")
            time.sleep(0.3)
            sys.stderr.write("tidy\\n")
"""
    process = started(INSTEAD.format(body))
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.stderr.readline() == "ending\n"
    process.send_signal(signal.SIGINT)
    _, text = process.communicate(timeout=10)
    assert (process.returncode, text) == (143, "tidy\n" + SENTENCE)


def test_a_signal_that_nohup_ignores_stays_ignored(started):
    code = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + INSTEAD.format(
        "\n    with interruptible(): time.sleep(60)"
    )
    process = started(code)
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    assert ends(process, signal.SIGINT)[1] == SENTENCE


def test_previous_handlers_are_restored():
    before = [signal.getsignal(number) for number in signals.SIGNALS]

    def interrupted() -> None:
        with interruptible(), interruptible():
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(RunInterruptedError, match="nothing half-written") as caught:
        interrupted()
    assert caught.value.exit_code == 143
    assert [signal.getsignal(number) for number in signals.SIGNALS] == before
    assert not signals.state.received


def test_an_interrupt_that_an_import_converts_into_another_error():
    def interrupted() -> None:
        with interruptible():
            try:
                signal.raise_signal(signal.SIGTERM)
            except KeyboardInterrupt:
                raise ImportError("C extension could not be loaded") from None

    with pytest.raises(RunInterruptedError):
        interrupted()


def test_workers_of_a_sweep_ignore_signals_while_they_start(tmp_path):
    command = [sys.executable, "-m", "simlib", "sweep", str(FIRST), "--out", str(tmp_path / "out"), "--workers", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        fork_server = "from multiprocessing.forkserver import main"
        while not any(fork_server in " ".join(child.cmdline()) for child in psutil.Process(process.pid).children()):
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(0.2)  # it imports what the workers need
        os.killpg(process.pid, signal.SIGINT)  # as the terminal does
        _, text = process.communicate(timeout=30)
    assert process.returncode == 130
    assert text.endswith(SENTENCE)
    assert "Traceback" not in text
