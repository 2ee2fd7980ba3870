# SPDX-License-Identifier: BSD-3-Clause
"""The command: ``simlib``, and ``python -m simlib``."""

import os
import sys

from simlib._lib import gc_tuning, signals


def open_closed_streams() -> None:
    """Let a standard stream that whoever started the command has closed lead nowhere, as if it were /dev/null.

    A file that is opened later would be taken for it otherwise.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # the least number that is free, which is that one's
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115  # to stay open until the process ends


def main() -> None:
    """Entry point: hear signals first, then import and run the command."""
    open_closed_streams()
    signals.install_handlers()
    signals.state.at_once = True
    signals.arm_watchdog()
    gc_tuning.reduce_gc()
    try:
        from simlib.ui.cli import main as command  # noqa: PLC0415  # signals are heard first

        command()
    except BaseException as error:
        if signals.state.asked:
            # At once: threads that are compiling would be waited for, or disturbed by Python's own end.
            signals.state.told |= isinstance(error, SystemExit)
            signals.force_exit(signals.state.asked)
        raise


if __name__ == "__main__":
    main()
