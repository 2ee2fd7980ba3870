# SPDX-License-Identifier: BSD-3-Clause
"""Result of a trial: tables, text for a mail or a page, and trials as a table of a data package."""

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
from simlib.lab.trial.differences import (
    ALIKE,
    ALPHA,
    CHANGED,
    DETECTABLE_CHANGE,
    EQUAL,
    TOO_FEW,
    Difference,
    assign_verdicts,
    difference,
)
from simlib.lab.trial.kernels import STATISTICS_KERNEL
from simlib.lab.trial.quantities import TIME_PER_PAGE, TrialQuantity
from simlib.measurements import MeasurementTable
from simlib.measurements.importers.tables import Column, measured_files

WIDTH = 72
"""Maximum width of a mail's lines, characters."""

_DESCRIPTIONS = {design.name: design.what for design in DESIGNS}


@dataclass(frozen=True, repr=False)
class Trial(Result):
    """Changes that a series causes in the lab.

    - `about`: ``command`` (repeats the trial), ``patches``, ``series_sha256``, ``parameters``, ``parameters_of_both``,
      ``kernel`` (its kind), ``source``, ``images`` (hashes by MMU mode, without the series and with it), ``new_sites``
      (by function), ``kernels`` (by MMU mode: configuration, compiler, emulator, command) and ``boots``.
    - `mmu_modes`: the MMU modes of the trial, ``target/mode``.
    - `same`: MMU modes in which the images with and without the series are equal.
    - `failures`: by MMU mode, the fault of the kernel with the series.
    - `differences`: every number that was compared.
    """

    about: Mapping[str, Any]
    mmu_modes: tuple[str, ...]
    same: tuple[str, ...]
    failures: Mapping[str, str]
    differences: tuple[Difference, ...]

    FIGURES: ClassVar[Mapping[str, Callable[[Any], pd.DataFrame]]] = {"differences": lambda trial: trial.figure_table()}

    @classmethod
    def judged(cls, fields: Mapping[str, Any], differences: Sequence[Difference]) -> Trial:
        """Make a trial from its stored fields, with new verdicts on its numbers.

        - `fields`: ``about``, ``mmu_modes``, ``same``, ``failures``.
        """
        mmu_modes, same = tuple(fields["mmu_modes"]), tuple(fields["same"])
        return cls(fields["about"], mmu_modes, same, fields["failures"], tuple(assign_verdicts(differences)))

    @property
    def kernel(self) -> str:
        """Kind of both kernels; older trials do not name it, and have the default."""
        return str(self.about.get("kernel", STATISTICS_KERNEL))

    @property
    def changed(self) -> tuple[Difference, ...]:
        """Numbers with the verdict `CHANGED`."""
        return tuple(number for number in self.differences if number.verdict == CHANGED)

    @property
    def reported(self) -> tuple[Difference, ...]:
        """Numbers of `changed` for the text and the figure: times per page only if their ratio is not the time's."""
        times = {(n.mmu_mode, n.cell, n.quantity.of): n.ratio for n in self.changed if n.quantity.what == "time"}

        def repeats_time(number: Difference) -> bool:
            ratio = times.get((number.mmu_mode, number.cell, number.quantity.of), math.inf)
            return number.quantity.what == TIME_PER_PAGE and math.isclose(ratio, number.ratio, rel_tol=1e-6)

        return tuple(number for number in self.changed if not repeats_time(number))

    def frame(self) -> pd.DataFrame:
        """All numbers.

        Returns: ``mmu_mode``, ``cell``, ``of``, ``what``, ``unit``, ``base``, ``changed`` (medians), ``base_low``,
        ``base_high``, ``changed_low``, ``changed_high`` (ranges over seeds and layouts), ``ratio``, ``low``, ``high``
        (95 %), ``p``, ``verdict``, ``runs`` (of each kernel), ``runs_needed``.
        """
        rows = [
            (n.mmu_mode, n.cell, *n.quantity, statistics.median(n.base), statistics.median(n.changed),
             n.base[0], n.base[-1], n.changed[0], n.changed[-1], n.ratio, n.low, n.high, n.p,
             n.verdict, len(n.base), n.runs)
            for n in self.differences
        ]  # fmt: skip
        columns = ["mmu_mode", "cell", "of", "what", "unit", "base", "changed", "base_low", "base_high", "changed_low",
                   "changed_high", "ratio", "low", "high", "p", "verdict", "runs", "runs_needed"]  # fmt: skip
        return pd.DataFrame(rows, columns=columns)

    def figure_table(self) -> pd.DataFrame:
        """Table for the figure `simlib.figures.differences`: the reported numbers.

        Returns: ``mmu_mode``, ``cell``, ``name``, ``ratio``, ``low``, ``high``.
        """
        rows = [(n.mmu_mode, n.cell, n.quantity.title, n.ratio, n.low, n.high) for n in self.reported]
        return pd.DataFrame(rows, columns=["mmu_mode", "cell", "name", "ratio", "low", "high"])

    def json(self) -> str:
        """Format the trial as JSON, for `load_trial`; ``differences`` contains the values of every run."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    def files(self, prefix: str = "") -> dict[str, str]:
        """Contents of the trial's files by name, which begins with `prefix`: mail, numbers, trial and page."""
        return {
            f"{prefix}mail.txt": f"{self.summary()}\n", f"{prefix}numbers.csv": self.frame().to_csv(index=False),
            f"{prefix}trial.json": self.json(), f"{prefix}trial.md": self.markdown(),
        }  # fmt: skip

    def markdown(self) -> str:
        """Text for a page: a table of the changes in each MMU mode."""
        lines = [*self._head(), ""]
        for mode in self.mmu_modes:
            numbers = [number for number in self.reported if number.mmu_mode == mode]
            lines += [f"**{mode}** {' '.join(self._remarks(mode))}".rstrip(), ""]
            if numbers:
                lines += ["| cell | number | without | with | change |", "|---|---|---:|---:|---:|"]
                lines += [f"| {n.cell} | {' | '.join(text.strip() for text in _texts(n))} |" for n in numbers]
                lines.append("")
        return "\n".join([*lines, *(f"{line}  " for line in self._foot())]) + "\n"

    def summary(self) -> str:
        """Text for a mail, 72 columns wide."""
        lines = [*self._head(), ""]
        if not self.mmu_modes:
            lines += ["The series changes nothing in the selected kernels.", ""]
        for mode in self.mmu_modes:
            lines += [*self._changes(mode), ""]
        lines += self._foot()
        return "\n".join(lines)

    def _head(self) -> list[str]:
        patches = self.about["patches"]
        title = f"{len(patches)} patches" if len(patches) != 1 else patches[0]
        return wrap_lines(f"Tried in the lab: {title}. Times are numbers of instructions of all CPUs, not seconds.")

    def _remarks(self, mode: str) -> list[str]:
        """Sentences on an MMU mode that follow the table of its changes."""
        if mode in self.same:
            return ["the same kernel: the images are identical."]
        remarks = [f"the kernel with the series FAILS: {self.failures[mode]}"] if mode in self.failures else []
        numbers = [number for number in self.differences if number.mmu_mode == mode]
        if numbers and all(number.verdict != CHANGED for number in numbers):
            remarks.append("nothing differs.")
        return [*remarks, _describe_unchanged(numbers)] if numbers else remarks

    def _changes(self, mode: str) -> list[str]:
        lines = [f"{mode}:"]
        numbers = [number for number in self.reported if number.mmu_mode == mode]
        for cell in dict.fromkeys(number.cell for number in numbers):
            lines += [f"  {cell} ({_DESCRIPTIONS[cell.split()[0]]})"]
            lines += [_row(number) for number in numbers if number.cell == cell]
        return [*lines, *(line for text in self._remarks(mode) for line in wrap_lines(text, "  "))]

    def _foot(self) -> list[str]:
        source = self.about["source"]
        provenance = (
            f"Linux {source['version']} ({source['origin']} {str(source['sha256'])[:12]}); {self.kernel} "
            f"{str(source['series_sha256'])[:12]}; series {self.about['series_sha256'][:12]}; "
            f"boots: {self.about['boots']}"
        )
        return [*wrap_lines(provenance), f"Repeat it: {self.about['command']}"]


def load_trial(path: str | Path) -> Trial:
    """Read the values of a trial's runs (``trial.json``), and compare them again.

    Raises `InputError` if the file does not exist, or is not a trial.
    """
    content = read_json(path, "a trial (trial.json of simlib lab try --out)")
    try:
        rows = content["differences"]
        numbers = [(r["mmu_mode"], r["cell"], TrialQuantity(*r["quantity"]), r["base"], r["changed"]) for r in rows]
        return Trial.judged(content, [difference(*number) for number in numbers])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(str(path), str(error), "is not a trial", "give trial.json of simlib lab try --out") from error


def wrap_lines(text: str, indent: str = "") -> list[str]:
    """Wrap a string to the lines of a mail; a number and its % stay on one line."""
    lines = textwrap.wrap(text.replace(" %", "\N{NO-BREAK SPACE}%"), WIDTH, initial_indent=indent,
                          subsequent_indent=indent, break_on_hyphens=False)  # fmt: skip
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _texts(number: Difference) -> tuple[str, str, str, str]:
    """Format a number's name, its medians on both kernels, and its change."""
    before, after = (_format(statistics.median(values)) for values in (number.base, number.changed))
    ratio = number.ratio
    change = f"{100 * (ratio - 1):+.1f} %" if ratio < 10 else f"× {ratio:.{3 if ratio < 1000 else 2}g}"
    change = "new" if number.new else "gone" if any(number.base) and not any(number.changed) else change
    return number.quantity.title, before, after, change


def _row(number: Difference) -> str:
    name, before, after, change = _texts(number)
    name = f"    {name:41}" if len(name) <= 41 else f"    {name}\n{'':45}"
    return f"{name}{before:>8} {after:>8} {change:>9}"


def _format(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.4g} M"
    return f"{value:.0f}" if value == int(value) or value >= 1000 else f"{value:.4g}"


def _describe_unchanged(numbers: Sequence[Difference]) -> str:
    """Describe the numbers that did not change, in a sentence."""
    count = {verdict: sum(number.verdict == verdict for number in numbers) for verdict in (EQUAL, ALIKE, TOO_FEW)}
    resolution = f"{100 * DETECTABLE_CHANGE:.0f} %"
    clauses = [f"other numbers: {count[EQUAL]} equal in all runs"]
    if count[ALIKE]:
        clauses.append(f"{count[ALIKE]} not significantly different, with an uncertainty of at most {resolution}")
    if count[TOO_FEW]:
        needed = sorted(number.runs for number in numbers if number.verdict == TOO_FEW)
        runs = max(len(number.base) for number in numbers)
        clauses.append(
            f"{count[TOO_FEW]} with too few runs (at most {runs} of each kernel) for an uncertainty of {resolution}:"
            f" {needed[len(needed) // 2]} runs would suffice for half of these"
        )
    return f"{'; '.join(clauses)} (probability of any false difference: {100 * ALPHA:.0f} %)."


COLUMNS = (
    Column("trial", "text", "name of the trial"),
    Column("mmu_mode", "text", "emulated architecture and MMU mode"),
    Column("cell", "text", "cell of the trial"),
    Column("of", "text", "ioctl, phase or call site"),
    Column("what", "text", "quantity"),
    Column("measured_in", "text", "count, or instructions (total of all CPUs)"),
    Column("base", "text", "values in the runs of the kernel without the series, sorted"),
    Column("changed", "text", "values in the runs of the kernel with the series, sorted"),
)


def trial_files(trials: Mapping[str, Trial], name: str) -> dict[str, str]:
    """Make the files of a table of trials, given by name: CSV, and descriptor with a ``setup`` for each trial."""
    numbers = [(label, number) for label, trial in trials.items() for number in trial.differences]
    rows = [(at, n.mmu_mode, n.cell, *n.quantity, _values_text(n.base), _values_text(n.changed)) for at, n in numbers]
    text = pd.DataFrame(rows, columns=[column.name for column in COLUMNS]).to_csv(index=False, lineterminator="\n")
    abouts = [trial.about for trial in trials.values()]
    kernels = {mode: {**about["source"], **kernel} for about in abouts for mode, kernel in about["kernels"].items()}
    about = {
        "source": {"subject": "simlib lab try", "author": "simlib"},
        "hardware": "QEMU, TCG, one thread, icount: one instruction per nanosecond",
        "command": "make lab-tries",
        "setup": {"kernels": kernels, "trials": {label: _about(trial) for label, trial in trials.items()}},
        "notes": ["The command that repeats each trial is in setup.", "Times are numbers of instructions of all CPUs."],
        "caveats": ["Emulated: no caches, no line transfers, no IPI cost."],
    }
    key = [column.name for column in COLUMNS[:5]]
    return measured_files(name, "series tried in the lab: numbers of every run", about, COLUMNS, key, text)


def read_trials(table: MeasurementTable) -> dict[str, Trial]:
    """Read the trials of a table, with new verdicts, by name.

    >>> from simlib.measurements import load
    >>> sorted(read_trials(load("tried")))[:2]
    ['arch-lock', 'arm64-destroy']
    """
    trials = {}
    for label, fields in table.descriptor["setup"]["trials"].items():
        rows = table.frame[table.frame["trial"] == label]
        differences = [
            difference(row["mmu_mode"], row["cell"], TrialQuantity(row["of"], row["what"], row["measured_in"]),
                       *([float(value) for value in row[side].split()] for side in ("base", "changed")))
            for row in rows.to_dict("records")
        ]  # fmt: skip
        trials[label] = Trial.judged(fields, differences)
    return trials


def _about(trial: Trial) -> dict[str, Any]:
    about = {key: value for key, value in trial.about.items() if key != "kernels"}
    return {"about": about, "mmu_modes": list(trial.mmu_modes), "same": list(trial.same),
            "failures": dict(trial.failures)}  # fmt: skip


def _values_text(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.9g}" for value in values)
