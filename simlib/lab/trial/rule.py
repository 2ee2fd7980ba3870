# SPDX-License-Identifier: BSD-3-Clause
"""When a trial shall fail: a rule for a CI."""

from __future__ import annotations

import re
from dataclasses import dataclass

from simlib._lib.errors import InputError
from simlib.lab.trial.differences import CHANGED, Difference
from simlib.lab.trial.result import Trial

_RULE = re.compile(r"(?P<what>[\w .()%-]+?)\s*(?P<sign>[<>])\s*(?P<percent>[+-]?\d+(?:\.\d+)?)\s*%")


@dataclass(frozen=True)
class FailRule:
    """A change that is not wanted.

    - `what`: words that the name of a number has, such as ``clear time``; empty: any change at all.
    - `above`: whether more than `percent` is not wanted, else less.
    """

    what: str = ""
    above: bool = True
    percent: float = 0.0

    @classmethod
    def parse(cls, text: str) -> FailRule:
        """Read a rule.

        >>> FailRule.parse("clear time > 5%"), FailRule.parse("changed").what
        (Rule(what='clear time', above=True, percent=5.0), '')
        """
        if text.strip() == "changed":
            return cls()
        found = _RULE.fullmatch(text.strip())
        if found is None:
            cure = "write 'clear time > 5%', 'longest stall > 10%' or 'changed'"
            raise InputError("--fail-if", text, "is no rule", cure)
        return cls(found["what"].strip(), found["sign"] == ">", float(found["percent"]))

    def broken(self, trial: Trial) -> str:
        """The first number that breaks it, in words; empty if none does.

        A time or count breaks it if it is changed, and by more than the rule allows. Raises `InputError` if no number
        of the trial has such a name.
        """
        for one in self.named(trial):
            change = 100 * (one.ratio - 1)
            beyond = not self.what or (change > self.percent if self.above else change < self.percent)
            if one.verdict == CHANGED and beyond:
                return f"{one.machine} {one.cell}, {one.quantity.of}: {one.quantity.what} {change:+.1f} %"
        return ""

    def named(self, trial: Trial) -> list[Difference]:
        """The numbers of a trial that it names.

        Raises `InputError` if there is none.
        """
        found = [one for one in trial.differences if self.names(one)]
        if trial.differences and not found:
            names = sorted({f"{one.quantity.of} {one.quantity.what}" for one in trial.differences})
            cure = f"such as {', '.join(names[:6])}: --out writes all of them"
            raise InputError("metric", self.what, "is the name of no number of this trial", cure)
        return found

    def names(self, one: Difference) -> bool:
        """Whether a number's name has all words of the rule, and ends as the rule does."""
        name, words = f"{one.quantity.of} {one.quantity.what}", self.what.split()
        return all(word in name for word in words) and name.endswith(words[-1] if words else "")
