# SPDX-License-Identifier: BSD-3-Clause
"""Trials as a table of a data package: the numbers of every run, and the description of each trial."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from simlib.lab.trial.differences import difference
from simlib.lab.trial.quantities import TrialQuantity
from simlib.lab.trial.result import Trial
from simlib.measurements import MeasurementTable
from simlib.measurements.importers.tables import Column, measured_files

COLUMNS = (
    Column("trial", "text", "name of the trial"),
    Column("mmu_mode", "text", "emulated architecture and MMU mode"),
    Column("cell", "text", "what was run"),
    Column("of", "text", "ioctl, phase or call site"),
    Column("what", "text", "which number of it"),
    Column("measured_in", "text", "count, or instructions of all CPUs together"),
    Column("base", "text", "the number in each run of the kernel without the series, sorted"),
    Column("changed", "text", "the number in each run of the kernel with the series, sorted"),
)


def trial_files(trials: Mapping[str, Trial], name: str) -> dict[str, str]:
    """Make the files of a table of trials: CSV and descriptor, whose ``setup`` describes each trial.

    - `trials`: by name.
    - `name`: of the table.
    """
    rows = [
        (label, number.mmu_mode, number.cell, *number.quantity, _text(number.base), _text(number.changed))
        for label, trial in trials.items()
        for number in trial.differences
    ]
    text = pd.DataFrame(rows, columns=[column.name for column in COLUMNS]).to_csv(index=False, lineterminator="\n")
    about = {
        "source": {"subject": "simlib lab try", "author": "simlib"},
        "hardware": "QEMU, TCG, one thread, icount: one instruction a nanosecond",
        "command": "make lab-tries",
        "setup": {"kernels": _kernels(trials), "trials": {label: _about(trial) for label, trial in trials.items()}},
        "notes": ["A trial's own command repeats it (setup).", "Times are instructions, summed over all CPUs."],
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


def _kernels(trials: Mapping[str, Trial]) -> dict[str, dict[str, Any]]:
    """Source, configuration, compiler, emulator and command of the kernels of each MMU mode."""
    return {
        mode: {**trial.about["source"], **kernel}
        for trial in trials.values()
        for mode, kernel in trial.about["kernels"].items()
    }


def _about(trial: Trial) -> dict[str, Any]:
    about = {key: value for key, value in trial.about.items() if key != "kernels"}
    return {"about": about, "mmu_modes": list(trial.mmu_modes), "same": list(trial.same),
            "failures": dict(trial.failures)}  # fmt: skip


def _text(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.9g}" for value in values)
