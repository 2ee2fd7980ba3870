# SPDX-License-Identifier: BSD-3-Clause
"""Signal handling: Ctrl-C, SIGTERM and a closed terminal end the command within a second.

While the command is imported there is nothing to clean up, so the process exits at once. Afterwards the handlers raise
`KeyboardInterrupt`, and the code that started something stops it. A run that has not ended after `DEADLINE_S` (a
compiler cannot be interrupted, and Python's own signal handlers wait for it) is ended by force from another thread.

This module is imported before everything else, so it imports next to nothing itself.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, NoReturn

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that end a run cleanly: SIGINT (Ctrl-C), SIGTERM, and SIGHUP (the terminal was closed)."""

SENTENCE = "interrupted; nothing half-written is left behind"

DEADLINE_S = 0.8  # time from a signal to the end by force, s
_WRITE_TIMEOUT_S = 0.1  # longest time that `force_exit` waits for `write_lock`, s
write_lock = threading.RLock()  # held by any thread during a short write that must not be interrupted
_SHOW_CURSOR = b"\r\x1b[2K\x1b[?25h"  # clears the line of a progress display, which hides the cursor


class SignalState:
    """The signal that was received, and the progress of its handling."""

    received = 0  # number of the first signal; 0: none
    exit_at_next_signal = False  # while there is nothing to clean up: the next signal ends the process
    interrupt_raised = False  # once `KeyboardInterrupt` was raised: another signal changes nothing
    deferrals = 0  # number of open `DeferSignals` blocks
    reported = False  # once the message was printed

    def reset(self) -> None:
        """Forget the signal."""
        vars(self).clear()


state = SignalState()


def install_handlers() -> dict[int, Any]:
    """Start to handle `SIGNALS`, in the main thread; return the previous handlers.

    A signal that nohup ignores stays ignored, but not Ctrl-C, which a shell's background jobs ignore too.

    >>> previous = install_handlers()
    >>> handlers_installed()
    True
    >>> restore_handlers(previous)
    """
    handled = [number for number in SIGNALS
               if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN]  # fmt: skip
    return {number: signal.signal(number, _handle) for number in handled}


def restore_handlers(previous: dict[int, Any]) -> None:
    """Restore the previous handlers and forget the signal."""
    for number, handler in previous.items():
        signal.signal(number, handler)
    state.reset()


def handlers_installed() -> bool:
    """True if this module handles `SIGNALS`."""
    return signal.getsignal(signal.SIGINT) is _handle


def arm_watchdog() -> None:
    """End the process by force `DEADLINE_S` after a signal; only for a process that runs nothing but the command."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)  # written by the C handler, whatever Python does
    threading.Thread(target=_watch, args=(read_end,), daemon=True).start()
    sys.unraisablehook = _unraisable_hook


def force_exit(number: int) -> NoReturn:
    """End this process with the exit code of a signal, after a pending write; print the message if needed."""
    if not state.reported:
        state.reported = True
        os.write(2, (_SHOW_CURSOR if os.isatty(2) else b"") + f"simlib: {SENTENCE}\n".encode())
    write_lock.acquire(timeout=_WRITE_TIMEOUT_S)
    os._exit(128 + number)


def run_helper() -> None:
    """Run the module ``sys.argv[1]`` until standard input ends: a pipe whose other end closes when the parent dies."""
    import runpy  # noqa: PLC0415  # 3 ms, and only helpers need it

    def wait_for_parent() -> None:
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=wait_for_parent, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


class DeferSignals:
    """A block that no signal interrupts: `KeyboardInterrupt` is raised at its end if a signal was received.

    For operations that must not be interrupted halfway, such as starting a program and storing its id.

    >>> previous = install_handlers()
    >>> try:
    ...     with DeferSignals():
    ...         signal.raise_signal(signal.SIGTERM)
    ...         print("still here")
    ... except KeyboardInterrupt:
    ...     print("and now interrupted", state.received)
    still here
    and now interrupted 15
    >>> restore_handlers(previous)
    """

    def __enter__(self) -> None:
        state.deferrals += 1

    def __exit__(self, *_: object) -> None:
        state.deferrals -= 1
        if state.received and not state.deferrals and not state.interrupt_raised:
            state.interrupt_raised = True
            raise KeyboardInterrupt


def _handle(number: int, _frame: FrameType | None) -> None:
    state.received = state.received or int(number)
    if state.exit_at_next_signal:
        force_exit(state.received)
    if not state.interrupt_raised and not state.deferrals:
        state.interrupt_raised = True
        raise KeyboardInterrupt


def _watch(read_end: int) -> None:
    """Wait for a signal, give the command time to end, then end the process."""
    while (number := os.read(read_end, 1)[0]) not in SIGNALS:
        pass
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        time.sleep(0.02)
        if state.received and not state.interrupt_raised and not state.deferrals:  # lost: see _unraisable_hook
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    force_exit(state.received or number)


def _unraisable_hook(error: sys.UnraisableHookArgs) -> None:
    """Note a `KeyboardInterrupt` that a destructor or a C callback swallowed, so that `_watch` interrupts again."""
    if state.received and issubclass(error.exc_type, KeyboardInterrupt):
        state.interrupt_raised = False
    else:
        sys.__unraisablehook__(error)
