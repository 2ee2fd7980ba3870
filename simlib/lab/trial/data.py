# SPDX-License-Identifier: BSD-3-Clause
"""Trials as a table of a data package: the number of every run, and beside it what is known of each trial."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from simlib.lab.trial.differences import difference, judge
from simlib.lab.trial.quantities import TrialQuantity
from simlib.lab.trial.result import Trial
from simlib.measurements import MeasurementTable
from simlib.measurements.importers.tables import Column, measured_files

COLUMNS = (
    Column("trial", "text", "name of the trial"),
    Column("machine", "text", "what was emulated: architecture and mode"),
    Column("cell", "text", "what was run"),
    Column("of", "text", "ioctl, phase or call site"),
    Column("what", "text", "which number of it"),
    Column("measured_in", "text", "count, or instructions of all CPUs together"),
    Column("base", "text", "the number in each run of the kernel without the series, sorted"),
    Column("changed", "text", "the number in each run of the kernel with the series, sorted"),
)


def trial_files(trials: Mapping[str, Trial], name: str) -> dict[str, str]:
    """The files of a table of trials: CSV and descriptor, whose ``setup`` has what is known of each.

    - `trials`: by their names.
    - `name`: of the table.
    """
    rows = [
        (label, one.machine, one.cell, *one.quantity, _text(one.base), _text(one.changed))
        for label, trial in trials.items()
        for one in trial.differences
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
    """The trials of a table, judged again, by their names.

    >>> from simlib.measurements import load
    >>> sorted(read_trials(load("tried")))[:2]
    ['arch-lock', 'arm64-destroy']
    """
    found = {}
    for label, known in table.descriptor["setup"]["trials"].items():
        rows = table.frame[table.frame["trial"] == label]
        differences = [
            difference(row["machine"], row["cell"], TrialQuantity(row["of"], row["what"], row["measured_in"]),
                       *([float(value) for value in row[side].split()] for side in ("base", "changed")))
            for row in rows.to_dict("records")
        ]  # fmt: skip
        found[label] = Trial(
            known["about"], tuple(known["machines"]), tuple(known["same"]), known["failures"], tuple(judge(differences))
        )
    return found


def _kernels(trials: Mapping[str, Trial]) -> dict[str, dict[str, Any]]:
    """What the kernels of each machine are made of and with, once."""
    return {
        machine: {**trial.about["source"], **kernel}
        for trial in trials.values()
        for machine, kernel in trial.about["kernels"].items()
    }


def _about(trial: Trial) -> dict[str, Any]:
    known = {key: value for key, value in trial.about.items() if key != "kernels"}
    return {"about": known, "machines": list(trial.machines), "same": list(trial.same),
            "failures": dict(trial.failures)}  # fmt: skip


def _text(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.9g}" for value in values)
