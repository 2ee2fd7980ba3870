# SPDX-License-Identifier: BSD-3-Clause
"""What a trial found, as a table and as text for a mail."""

from __future__ import annotations

import json
import math
import statistics
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from simlib._lib.errors import InputError
from simlib._lib.reading import read_json
from simlib.figures.results import Result
from simlib.lab.trial.cells import DESIGNS
from simlib.lab.trial.differences import ALIKE, ALPHA, CHANGED, EQUAL, TOO_FEW, WISHED, Difference, difference, judge
from simlib.lab.trial.kernels import COUNTED
from simlib.lab.trial.quantities import A_PAGE, TrialQuantity

WIDTH = 72
"""Columns of a mail."""

_WHAT = {design.name: design.what for design in DESIGNS}


@dataclass(frozen=True, repr=False)
class Trial(Result):
    """What a series changes in the lab.

    - `about`: ``command`` (repeats it), ``patches``, ``series_sha256``, ``parameters``, ``parameters_of_both``,
      ``kernel`` (its kind), ``source``, ``images`` (hashes by machine, without the series and with it), ``new_sites``
      (by function), ``kernels`` (by machine: what they are made with) and ``boots``.
    - `machines`: what was tried, ``target/mode``.
    - `same`: those whose image with the series equals the one without it.
    - `failures`: by machine, what the kernel with the series did wrong.
    - `differences`: every number that was compared.
    """

    about: Mapping[str, Any]
    machines: tuple[str, ...]
    same: tuple[str, ...]
    failures: Mapping[str, str]
    differences: tuple[Difference, ...]

    FIGURES: ClassVar[Mapping[str, Callable[[Any], pd.DataFrame]]] = {"differences": lambda found: found.drawn()}

    @property
    def kernel(self) -> str:
        """The kind of both kernels; older trials have the usual one and do not say so."""
        return str(self.about.get("kernel", COUNTED))

    @property
    def changed(self) -> tuple[Difference, ...]:
        """Those that differ."""
        return tuple(one for one in self.differences if one.verdict == CHANGED)

    @property
    def told(self) -> tuple[Difference, ...]:
        """Those of `changed` that are shown: a time a dirty page only where it says other than the time itself."""
        times = {(one.machine, one.cell, one.quantity.of): one for one in self.changed if one.quantity.what == "time"}

        def twice(one: Difference) -> bool:
            time = times.get((one.machine, one.cell, one.quantity.of))
            return (
                one.quantity.what == A_PAGE and time is not None and math.isclose(time.ratio, one.ratio, rel_tol=1e-6)
            )

        return tuple(one for one in self.changed if not twice(one))

    def frame(self) -> pd.DataFrame:
        """All numbers.

        Returns: ``machine``, ``cell``, ``of``, ``what``, ``unit``, ``base``, ``changed`` (medians), ``base_low``,
        ``base_high``, ``changed_low``, ``changed_high`` (ranges over seeds and layouts), ``ratio``, ``low``, ``high``
        (95 %), ``p``, ``verdict``, ``runs`` (of each kernel), ``runs_needed``.
        """
        rows = [
            (one.machine, one.cell, *one.quantity, statistics.median(one.base), statistics.median(one.changed),
             one.base[0], one.base[-1], one.changed[0], one.changed[-1], one.ratio, one.low, one.high, one.p,
             one.verdict, len(one.base), one.runs)
            for one in self.differences
        ]  # fmt: skip
        names = ["machine", "cell", "of", "what", "unit", "base", "changed", "base_low", "base_high", "changed_low",
                 "changed_high", "ratio", "low", "high", "p", "verdict", "runs", "runs_needed"]  # fmt: skip
        return pd.DataFrame(rows, columns=names)

    def drawn(self) -> pd.DataFrame:
        """The table of the figure `simlib.figures.differences`: of what is changed.

        Returns: ``machine``, ``cell``, ``name``, ``ratio``, ``low``, ``high``.
        """
        rows = [
            (one.machine, one.cell, f"{one.quantity.of}: {one.quantity.what}", one.ratio, one.low, one.high)
            for one in self.told
        ]
        return pd.DataFrame(rows, columns=["machine", "cell", "name", "ratio", "low", "high"])

    def json(self) -> str:
        """All of it, to be read elsewhere, or again by `load_trial`; ``differences`` has the value of every run."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    def files(self, first: str = "") -> dict[str, str]:
        """Files to keep, by name: the text, the numbers, all of it; `first`: what the names begin with."""
        return {
            f"{first}mail.txt": f"{self.summary()}\n", f"{first}numbers.csv": self.frame().to_csv(index=False),
            f"{first}trial.json": self.json(), f"{first}trial.md": self.markdown(),
        }  # fmt: skip

    def markdown(self) -> str:
        """The text for a page: what is changed as a table a machine."""
        lines = [*self._head(), ""]
        for machine in self.machines:
            said = self._said(machine)
            own = [one for one in self.told if one.machine == machine]
            lines += [f"**{machine}** {' '.join(said)}".rstrip(), ""]
            if own:
                lines += ["| cell | number | without | with | change |", "|---|---|---:|---:|---:|"]
                lines += [f"| {one.cell} | {' | '.join(text.strip() for text in _texts(one))} |" for one in own]
                lines.append("")
        return "\n".join([*lines, *(f"{line}  " for line in self._foot())]) + "\n"

    def summary(self) -> str:
        """Text for a mail: 72 columns."""
        lines = [*self._head(), ""]
        if not self.machines:
            lines += ["Nothing that it changes is in the kernels that were asked for.", ""]
        for machine in self.machines:
            lines += [*self._on(machine), ""]
        lines += self._foot()
        return "\n".join(lines)

    def _head(self) -> list[str]:
        patches = self.about["patches"]
        title = f"{len(patches)} patches" if len(patches) != 1 else patches[0]
        return wrapped(f"Tried in the lab: {title}. Times are instructions of all CPUs together, not seconds.")

    def _said(self, machine: str) -> list[str]:
        """What is said of a machine beside the table of what is changed, in sentences."""
        if machine in self.same:
            return ["the same kernel: the images are equal to the byte."]
        said = [f"the kernel with the series FAILS: {self.failures[machine]}"] if machine in self.failures else []
        own = [one for one in self.differences if one.machine == machine]
        if own and all(one.verdict != CHANGED for one in own):
            said.append("nothing differs.")
        return [*said, _rest(own)] if own else said

    def _on(self, machine: str) -> list[str]:
        lines = [f"{machine}:"]
        own = [one for one in self.told if one.machine == machine]
        for cell in dict.fromkeys(one.cell for one in own):
            lines += [f"  {cell} ({_WHAT[cell.split()[0]]})"]
            lines += [_row(one) for one in own if one.cell == cell]
        return [*lines, *(line for text in self._said(machine) for line in wrapped(text, "  "))]

    def _foot(self) -> list[str]:
        source = self.about["source"]
        known = (
            f"Linux {source['version']} ({source['origin']} {str(source['sha256'])[:12]}); {self.kernel} "
            f"{str(source['series_sha256'])[:12]}; series {self.about['series_sha256'][:12]}; "
            f"{self.about['boots']} boots"
        )
        return [*wrapped(known), f"Repeat it: {self.about['command']}"]


def load_trial(path: str | Path) -> Trial:
    """Read a trial that was written (``trial.json``): the values of its runs, judged again.

    Raises `InputError` if the file is not there, or is none.
    """
    content = read_json(path, "a trial (trial.json of simlib lab try --out)")
    try:
        found = [
            difference(row["machine"], row["cell"], TrialQuantity(*row["quantity"]), row["base"], row["changed"])
            for row in content["differences"]
        ]
        machines, same = (tuple(content[name]) for name in ("machines", "same"))
        return Trial(content["about"], machines, same, content["failures"], tuple(judge(found)))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(str(path), str(error), "is no trial", "give trial.json of simlib lab try --out") from error


def wrapped(text: str, indent: str = "") -> list[str]:
    """Lines of a mail; a number and its % stay together."""
    lines = textwrap.wrap(text.replace(" %", "\N{NO-BREAK SPACE}%"), WIDTH, initial_indent=indent,
                          subsequent_indent=indent, break_on_hyphens=False)  # fmt: skip
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _texts(one: Difference) -> tuple[str, str, str, str]:
    """Name, both values and the change of a number."""
    before, after = (_number(statistics.median(values)) for values in (one.base, one.changed))
    share = f"{100 * (one.ratio - 1):+.1f} %" if one.ratio < 10 else f"× {one.ratio:.{3 if one.ratio < 1000 else 2}g}"
    share = "new" if one.new else "gone" if any(one.base) and not any(one.changed) else share
    return f"{one.quantity.of}: {one.quantity.what}", before, after, share


def _row(one: Difference) -> str:
    """One line of a table."""
    name, before, after, share = _texts(one)
    name = f"    {name:41}" if len(name) <= 41 else f"    {name}\n{'':45}"
    return f"{name}{before:>8} {after:>8} {share:>9}"


def _number(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.4g} M"
    return f"{value:.0f}" if value == int(value) or value >= 1000 else f"{value:.4g}"


def _rest(own: Sequence[Difference]) -> str:
    """What does not differ, in a sentence."""
    count = {verdict: sum(one.verdict == verdict for one in own) for verdict in (EQUAL, ALIKE, TOO_FEW)}
    said = [f"{count[EQUAL]} other numbers are equal in all runs"]
    if count[ALIKE]:
        said.append(f"{count[ALIKE]} cannot be told apart, with {100 * WISHED:.0f} % known")
    if count[TOO_FEW]:
        needed = sorted(one.runs for one in own if one.verdict == TOO_FEW)
        has = max(len(one.base) for one in own)
        said.append(
            f"{count[TOO_FEW]} had too few runs ({has} of each kernel at most) to know {100 * WISHED:.0f} %:"
            f" {needed[len(needed) // 2]} would do for half of them"
        )
    return f"{'; '.join(said)} (chance of any false difference: {ALPHA:.0%})."
