# SPDX-License-Identifier: BSD-3-Clause
"""Rules that fail a trial, for a CI."""

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

        Raises `InputError` if the text is no rule.

        >>> FailRule.parse("clear time > 5%"), FailRule.parse("changed").what
        (FailRule(what='clear time', above=True, percent=5.0), '')
        """
        if text.strip() == "changed":
            return cls()
        match = _RULE.fullmatch(text.strip())
        if match is None:
            hint = "write 'clear time > 5%', 'longest stall > 10%' or 'changed'"
            raise InputError("--fail-if", text, "is no rule", hint)
        return cls(match["what"].strip(), match["sign"] == ">", float(match["percent"]))

    def violation(self, trial: Trial) -> str:
        """Describe the first number that violates the rule; empty if none does.

        A number violates it if its verdict is `CHANGED`, and its change is beyond the limit.

        Raises `InputError` if no number of the trial matches.
        """
        for number in self.matching(trial):
            change = 100 * (number.ratio - 1)
            beyond = not self.what or (change > self.percent if self.above else change < self.percent)
            if number.verdict == CHANGED and beyond:
                return f"{number.mmu_mode} {number.cell}, {number.quantity.title} {change:+.1f} %"
        return ""

    def matching(self, trial: Trial) -> list[Difference]:
        """Numbers of a trial that the rule applies to. Raises `InputError` if there are none."""
        numbers = [number for number in trial.differences if self.matches(number)]
        if trial.differences and not numbers:
            names = sorted({f"{number.quantity.of} {number.quantity.what}" for number in trial.differences})
            hint = f"known: {', '.join(names[:6])}, …: --out writes all of them"
            raise InputError("metric", self.what, "matches no number of this trial", hint)
        return numbers

    def matches(self, number: Difference) -> bool:
        """True if a number's name has all words of the rule, and ends with the last one."""
        name, words = f"{number.quantity.of} {number.quantity.what}", self.what.split()
        return all(word in name for word in words) and name.endswith(words[-1] if words else "")
