# SPDX-License-Identifier: BSD-3-Clause
"""Exceptions of simlib, one for each kind of failure, each with its exit code.

Every message of an `InputError` has four parts: the name of the input, its value, the rule that it breaks, and a hint.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MAX_VALUE_CHARS = 240
"""Maximum number of characters of a value that a message shows."""

_MAX_MESSAGE_CHARS = 4000
_MAX_NAME_CHARS = 100
"""Maximum number of characters of a name that `nearest` compares with the known names."""


class SimlibError(Exception):
    """A run that failed. Exit code 1.

    - `hint`: remedy, in terms of the Python interface.
    - `cli_hint`: the same in terms of the command line, if it differs.

    >>> error = SimlibError("the disk is full", "give another folder=…", "give another --out")
    >>> str(error), error.cli_message(), error.exit_code
    ('the disk is full; give another folder=…', 'the disk is full; give another --out', 1)
    """

    exit_code = 1

    def __init__(self, message: str = "", hint: str = "", cli_hint: str = "") -> None:
        self.message, self.hint, self.cli_hint = _printable(message), _printable(hint), _printable(cli_hint)
        super().__init__(self.message + (f"; {self.hint}" if self.hint else ""))

    def __reduce__(self) -> tuple[type, tuple[object, ...], dict[str, object]]:
        return type(self), (self.message, self.hint, self.cli_hint), self.__dict__

    def cli_message(self) -> str:
        """Return the message with the hint for the command line."""
        hint = self.cli_hint or self.hint
        return self.message + (f"; {hint}" if hint else "")


class InputError(SimlibError, ValueError):
    """Invalid user input. Exit code 2.

    - `what`: name of the input (``"guest.vcpus"``, a file and line).
    - `value`: its value.
    - `rule`: the rule that the value breaks (``"must be at least 1"``).
    - `hint`: remedy, in terms of the Python interface.
    - `cli_hint`: the same in terms of the command line, if it differs.
    - `flag`: name of the input on the command line, if it differs (``"--vcpus"``).

    >>> print(InputError("guest.vcpus", 0, "must be at least 1", "give the number of vCPUs"))
    guest.vcpus = 0: must be at least 1; give the number of vCPUs
    >>> InputError("x", 1, "no", flag="--x").cli_message(), InputError("x", 1, "no").exit_code
    ('--x = 1: no', 2)
    """

    exit_code = 2

    def __init__(self, what: str, value: object, rule: str, hint: str = "", cli_hint: str = "", flag: str = "") -> None:
        self.what, self.value, self.rule, self.flag = what, value, rule, flag
        super().__init__(self._sentence(what), hint, cli_hint)

    def _sentence(self, what: str) -> str:
        return f"{shortened(what, 4 * MAX_VALUE_CHARS)} = {shortened(self.value)}: {self.rule}"

    def cli_message(self) -> str:
        """Return the message with the name of the input on the command line and the hint for it."""
        hint = self.cli_hint or self.hint
        return _printable(self._sentence(self.flag or self.what)) + (f"; {hint}" if hint else "")

    def __reduce__(self) -> tuple[type, tuple[object, ...], dict[str, object]]:
        return type(self), (self.what, self.value, self.rule, self.hint, self.cli_hint, self.flag), self.__dict__


class DeadlockError(SimlibError):
    """No thread can continue, so the simulated run cannot end. Exit code 1."""


class HorizonError(SimlibError):
    """The run exceeds a limit, such as the longest simulated time or the length of its trace. Exit code 1."""


class RunInterruptedError(SimlibError):
    """The user or the system stopped a run. Exit code 128 + signal: 130 after Ctrl-C, 143 after SIGTERM."""

    exit_code = 130


class CalibrationError(SimlibError):
    """The measurements do not identify the costs to be calibrated. Exit code 1."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Hint of an `InputError`: the known name that is most similar to `name`, and all known names.

    >>> nearest("vcpu", ["vcpus", "memory"])
    "did you mean 'vcpus'? known: memory, vcpus"
    >>> nearest("zzz", ["vcpus", "memory"])
    'known: memory, vcpus'
    """
    names = sorted(known)
    similar = difflib.get_close_matches(name[:_MAX_NAME_CHARS], names, n=1, cutoff=0.5)
    question = f"did you mean {similar[0]!r}? " if similar else ""
    return f"{question}known: {', '.join(names)}"


def printable(text: str, keep: str = "") -> str:
    r"""Replace the non-printable characters of a string, except those in `keep`, with escape sequences.

    >>> printable("µ " + chr(27) + "[31m " + chr(0xDCFF)) == "µ " + r"\x1b[31m \udcff"
    True
    >>> text = f"two{chr(10)}lines"
    >>> printable(text) == r"two\nlines", printable(text, keep=chr(10)) == text
    (True, True)
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode("ascii") for char in text
    )


def shortened(value: object, limit: int = MAX_VALUE_CHARS) -> str:
    """Value as a message shows it: on one line, cut after `limit` characters.

    >>> shortened(2.5), len(shortened("x" * 10**6)), shortened(16**9999)
    ('2.5', 242, 'an int that is too long or nested too deeply to be shown')
    """
    try:
        text = value if isinstance(value, str) else repr(value)
    except (RecursionError, ValueError):  # nested deeply, or more than 4300 digits
        kind = type(value).__name__
        return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind} that is too long or nested too deeply to be shown"
    text = printable(text[: limit + 1])
    return text if len(text) <= limit else f"{text[:limit]} …"


def _printable(message: str) -> str:
    return printable(message[:_MAX_MESSAGE_CHARS], keep="\n\t")


for _error in (SimlibError, InputError, DeadlockError, HorizonError, CalibrationError):
    _error.__module__ = "simlib"  # the name by which a user imports them, in tracebacks
