# SPDX-License-Identifier: BSD-3-Clause
"""What can go wrong, one exception a kind of fault, each with its exit code.

Every message has the same four parts, in this order: what is wrong, the value
that was found, the rule it breaks, and the cure.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST = 240
"""Most characters of a value that a message shows."""

_LONGEST_MESSAGE = 4000
_NAME = 100
"""Most characters of a name for which a similar one is looked for."""


class SimlibError(Exception):
    """A run that could not be done. Exit code 1.

    - `cure`: what to do about it, in Python.
    - `option`: the same on the command line, if it is said otherwise there.

    >>> error = SimlibError("the disk is full", "give another folder=…", "give another --out")
    >>> str(error), error.on_command_line(), error.exit_code
    ('the disk is full; give another folder=…', 'the disk is full; give another --out', 1)
    """

    exit_code = 1

    def __init__(self, message: str = "", hint: str = "", cli_hint: str = "") -> None:
        self.message, self.cure, self.cli_hint = _shown(message), _shown(hint), _shown(cli_hint)
        super().__init__(self.message + (f"; {self.cure}" if self.cure else ""))

    def __reduce__(self) -> tuple[type, tuple[object, ...], dict[str, object]]:
        return type(self), (self.message, self.cure, self.cli_hint), self.__dict__

    def on_command_line(self) -> str:
        """The sentence with the command line's cure."""
        hint = self.cli_hint or self.cure
        return self.message + (f"; {hint}" if hint else "")


class InputError(SimlibError, ValueError):
    """Something that the user gave is wrong. Exit code 2.

    - `what`: where the fault is, in the user's words (``"guest.vcpus"``, a file and line).
    - `value`: what was found there.
    - `rule`: the rule that the value breaks (``"must be at least 1"``).
    - `cure`: what to do about it, in Python.
    - `option`: the same on the command line, if it is said otherwise there.
    - `flag`: where the fault is on the command line, if it is named otherwise there (``"--vcpus"``).

    >>> print(InputError("guest.vcpus", 0, "must be at least 1", "give the number of vCPUs"))
    guest.vcpus = 0: must be at least 1; give the number of vCPUs
    >>> InputError("x", 1, "no", flag="--x").on_command_line(), InputError("x", 1, "no").exit_code
    ('--x = 1: no', 2)
    """

    exit_code = 2

    def __init__(self, what: str, value: object, rule: str, hint: str = "", cli_hint: str = "", flag: str = "") -> None:
        self.what, self.value, self.rule, self.flag = what, value, rule, flag
        super().__init__(self._sentence(what), hint, cli_hint)

    def _sentence(self, what: str) -> str:
        """What is wrong, the value, the rule."""
        return f"{shortened(what, 4 * LONGEST)} = {shortened(self.value)}: {self.rule}"

    def on_command_line(self) -> str:
        """The sentence with the command line's names and cure."""
        cure = self.cli_hint or self.cure
        return _shown(self._sentence(self.flag or self.what)) + (f"; {cure}" if cure else "")

    def __reduce__(self) -> tuple[type, tuple[object, ...], dict[str, object]]:
        return type(self), (self.what, self.value, self.rule, self.cure, self.cli_hint, self.flag), self.__dict__


class DeadlockError(SimlibError):
    """Every thread waits for another one: the simulated run can never end. Exit code 1."""


class HorizonError(SimlibError):
    """The run would pass the simulated-time horizon or its event limit. Exit code 1."""


class RunInterruptedError(SimlibError):
    """The user or the system stopped a run. Exit code 128 + signal: 130 after Ctrl-C, 143 after SIGTERM."""

    exit_code = 130


class CalibrationError(SimlibError):
    """The measurements do not determine the costs that were asked for. Exit code 1."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Sentence that names the known word nearest to `name`, for the cure of an `InputError`.

    >>> nearest("vcpu", ["vcpus", "memory"])
    "did you mean 'vcpus'? known: memory, vcpus"
    >>> nearest("zzz", ["vcpus", "memory"])
    'known: memory, vcpus'
    """
    words = sorted(known)
    close = difflib.get_close_matches(name[:_NAME], words, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}known: {', '.join(words)}"


def printable(text: str, keep: str = "") -> str:
    r"""A text as a terminal may show it: what is no visible character as an escape, but for what is to be kept.

    >>> printable("µ " + chr(27) + "[31m " + chr(0xDCFF)) == "µ " + r"\x1b[31m \udcff"
    True
    >>> text = f"two{chr(10)}lines"
    >>> printable(text) == r"two\nlines", printable(text, keep=chr(10)) == text
    (True, True)
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in keep else one.encode("unicode_escape").decode("ascii") for one in text
    )


def shortened(value: object, most: int = LONGEST) -> str:
    """A value as a message shows it: on one line, and not all of what is long.

    >>> shortened(2.5), len(shortened("x" * 10**6)), shortened(16**9999)
    ('2.5', 242, 'an int that is too long to be shown')
    """
    try:
        text = value if isinstance(value, str) else repr(value)
    except (RecursionError, ValueError):  # nested deeply, or more than 4300 digits
        return (
            f"{'an' if type(value).__name__[0] in 'aeiou' else 'a'} {type(value).__name__} that is too long to be shown"
        )
    text = printable(text[: most + 1])
    return text if len(text) <= most else f"{text[:most]} …"


def _shown(message: str) -> str:
    """A message as a terminal may show it."""
    return printable(message[:_LONGEST_MESSAGE], keep="\n\t")


for _error in (SimlibError, InputError, DeadlockError, HorizonError, CalibrationError):
    _error.__module__ = "simlib"  # a traceback names them as a user imports them
