# SPDX-License-Identifier: BSD-3-Clause
"""Rules that fail a trial, for CI."""

from __future__ import annotations

import re
from dataclasses import dataclass

from simlib._lib.errors import InputError
from simlib.lab.trial.differences import CHANGED, Difference
from simlib.lab.trial.result import Trial

_RULE = re.compile(r"(?P<what>[\w .()%-]+?)\s*(?P<sign>[<>])\s*(?P<percent>[+-]?\d+(?:\.\d+)?)\s*%")


@dataclass(frozen=True)
class FailRule:
    """A change that fails a trial.

    - `what`: words of the names of the numbers, such as ``clear time``; empty: any change.
    - `above`: True if a change above `percent` fails, False if one below it does.
    """

    what: str = ""
    above: bool = True
    percent: float = 0.0

    @classmethod
    def parse(cls, text: str) -> FailRule:
        """Parse a rule.

        Raises `InputError` if the string is not a rule.

        >>> FailRule.parse("clear time > 5%"), FailRule.parse("changed").what
        (FailRule(what='clear time', above=True, percent=5.0), '')
        """
        if text.strip() == "changed":
            return cls()
        match = _RULE.fullmatch(text.strip())
        if match is None:
            hint = "write 'clear time > 5%', 'longest stall > 10%' or 'changed'"
            raise InputError("--fail-if", text, "is not a rule", hint)
        return cls(match["what"].strip(), match["sign"] == ">", float(match["percent"]))

    def violation(self, trial: Trial) -> str:
        """Describe the first number with the verdict `CHANGED` whose change is beyond the limit; empty if none is.

        Raises `InputError` if no number of the trial matches.
        """
        for number in self.matching(trial):
            change = 100 * (number.ratio - 1)
            beyond = not self.what or (change > self.percent if self.above else change < self.percent)
            if number.verdict == CHANGED and beyond:
                return f"{number.mmu_mode} {number.cell}, {number.quantity.title} {change:+.1f} %"
        return ""

    def matching(self, trial: Trial) -> list[Difference]:
        """Numbers of a trial whose names contain all words of the rule and end with the last one.

        Raises `InputError` if there are none.
        """
        words = ["", *self.what.split()]
        named = [(f"{number.quantity.of} {number.quantity.what}", number) for number in trial.differences]
        numbers = [number for name, number in named if all(word in name for word in words) and name.endswith(words[-1])]
        if named and not numbers:
            names = sorted({name for name, _ in named})
            hint = f"known: {', '.join(names[:6])}, …; --out writes all names"
            raise InputError("metric", self.what, "does not match a number of this trial", hint)
        return numbers
