# SPDX-License-Identifier: BSD-3-Clause
"""Ctrl-C, SIGTERM and a closed terminal end the command within a second, whatever it does.

While the command is imported, nothing has been begun that had to be ended: it is left at once. Afterwards
`KeyboardInterrupt` is raised, and whoever has begun something ends it. What does not end within `DEADLINE_S` (a
compiler cannot be interrupted, and Python's own signal handlers wait for it) is left by force, from another thread.

This is imported before everything else, so it imports next to nothing itself.
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
"""What ends a run in order: Ctrl-C, the system, and a terminal that is closed."""

SENTENCE = "interrupted; nothing half-written is left behind"

DEADLINE_S = 0.8
"""From a signal to the end by force, s."""

_PATIENCE_S = 0.1
"""How long `force_exit` waits for who is `writing`, s."""

writing = threading.RLock()
"""Held while something short is written that must not be cut in two, in whichever thread."""

_SHOW_CURSOR = b"\r\x1b[2K\x1b[?25h"
"""Clears the line of a progress display, which hides the cursor."""


class SignalState:
    """What was asked, and what is being done about it."""

    asked = 0
    """The first signal that came; 0: none."""
    at_once = False
    """Whether there is nothing to end: the next signal leaves."""
    raised = False
    """Whether `KeyboardInterrupt` is on its way: another signal changes nothing."""
    held = 0
    """Blocks of `DeferSignals` that are open."""
    told = False
    """Whether the user has been told."""

    def reset(self) -> None:
        """Nothing was asked."""
        vars(self).clear()


state = SignalState()


def install_handlers() -> dict[int, Any]:
    """Hear `SIGNALS` from now on, in the main thread; return who heard them before.

    What nohup ignores stays ignored; Ctrl-C does not, as a shell's background jobs ignore it.

    >>> before = install_handlers()
    >>> listening()
    True
    >>> stop_listening(before)
    """
    heard = [one for one in SIGNALS if one == signal.SIGINT or signal.getsignal(one) is not signal.SIG_IGN]
    return {one: signal.signal(one, _note) for one in heard}


def stop_listening(before: dict[int, Any]) -> None:
    """Let those hear again who did before; nothing has been asked."""
    for one, handler in before.items():
        signal.signal(one, handler)
    state.reset()


def listening() -> bool:
    """Whether `SIGNALS` are heard here."""
    return signal.getsignal(signal.SIGINT) is _note


def arm_watchdog() -> None:
    """From now on, leave by force `DEADLINE_S` after a signal; for a process that is the command and nothing else."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)  # written by the signal itself, whatever Python does
    threading.Thread(target=_watch, args=(reading,), daemon=True).start()
    sys.unraisablehook = _lost


def force_exit(number: int) -> NoReturn:
    """End this process with the exit code of a signal, once nobody is `writing`, and say so if nobody has."""
    if not state.told:
        state.told = True
        os.write(2, (_SHOW_CURSOR if os.isatty(2) else b"") + f"simlib: {SENTENCE}\n".encode())
    writing.acquire(timeout=_PATIENCE_S)
    os._exit(128 + number)


class DeferSignals:
    """A block that no signal interrupts: `KeyboardInterrupt` is raised at its end, where it came before.

    For what must not be cut in two, such as starting a program and knowing its id.

    >>> before = install_handlers()
    >>> try:
    ...     with DeferSignals():
    ...         signal.raise_signal(signal.SIGTERM)
    ...         print("still here")
    ... except KeyboardInterrupt:
    ...     print("and now interrupted", state.asked)
    still here
    and now interrupted 15
    >>> stop_listening(before)
    """

    def __enter__(self) -> None:
        state.held += 1

    def __exit__(self, *_: object) -> None:
        state.held -= 1
        if state.asked and not state.held and not state.raised:
            state.raised = True
            raise KeyboardInterrupt


def _note(number: int, _frame: FrameType | None) -> None:
    """Hear a signal, in the main thread, between two steps of Python."""
    state.asked = state.asked or int(number)
    if state.at_once:
        force_exit(state.asked)
    if not state.raised and not state.held:
        state.raised = True
        raise KeyboardInterrupt


def _watch(reading: int) -> None:
    """Wait for a signal, give the command time to end, and end it."""
    while (number := os.read(reading, 1)[0]) not in SIGNALS:
        pass
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        time.sleep(0.02)
        if state.asked and not state.raised and not state.held:  # it was lost: see below
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    force_exit(state.asked or number)


def _lost(fault: sys.UnraisableHookArgs) -> None:
    """Hear of an error within a destructor or a callback of C, which goes no further: `_watch` interrupts again."""
    if state.asked and issubclass(fault.exc_type, KeyboardInterrupt):
        state.raised = False
    else:
        sys.__unraisablehook__(fault)
