# SPDX-License-Identifier: BSD-3-Clause
"""Entry point of the command: ``simlib``, and ``python -m simlib``."""

import os
import sys

from simlib._lib import gc_tuning, signals


def open_closed_streams() -> None:
    """Open /dev/null in place of each closed standard stream.

    Otherwise a file that is opened later would get the stream's number.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is that of the stream
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115  # is a standard stream until exit


def main() -> None:
    """Install the signal handlers, then import and run the command."""
    open_closed_streams()
    signals.install_handlers()
    signals.state.exit_at_next_signal = True
    signals.arm_watchdog()
    gc_tuning.reduce_gc()
    try:
        from simlib.ui.cli import main as command  # noqa: PLC0415  # a signal during this import is handled

        command()
    except BaseException as error:
        if signals.state.received:
            # A normal exit would wait for threads that are compiling, or disturb them.
            signals.state.reported |= isinstance(error, SystemExit)
            signals.force_exit(signals.state.received)
        raise


if __name__ == "__main__":
    main()
