# SPDX-License-Identifier: BSD-3-Clause
"""The command: ``simlib``, and ``python -m simlib``."""

from simlib import interruption


def main() -> None:
    """Entry point: hear signals first, then import and run the command."""
    interruption.listen()
    interruption.state.at_once = True
    interruption.insist()
    try:
        from simlib.cli import main as command  # noqa: PLC0415  # signals are heard first

        command()
    except BaseException as error:
        if interruption.state.asked:
            # At once: threads that are compiling would be waited for, or disturbed by Python's own end.
            interruption.state.told |= isinstance(error, SystemExit)
            interruption.leave(interruption.state.asked)
        raise


if __name__ == "__main__":
    main()
