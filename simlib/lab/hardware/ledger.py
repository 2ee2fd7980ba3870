# SPDX-License-Identifier: BSD-3-Clause
"""The ledger: what simlib predicts of cells that the lab has not run yet, and what the lab then gave.

``data/predictions/`` holds the predictions, each committed before its cells were run and not changed afterwards. The
answers are the lab's tables of the same name in ``data/collected/``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simlib._lib.errors import InputError
from simlib._lib.parallel import Progress
from simlib.analysis.predict import LEVEL, predict
from simlib.lab.experiment import Experiment
from simlib.lab.hardware.load import CELL, SHOWN, measured_cells
from simlib.lab.hardware.machines import lab_case, lab_name, with_batch
from simlib.lab.records import KEYS, cell_keys
from simlib.measurements import data_dir, list_tables, load
from simlib.measurements.importers.tables import Column, predicted_files

SEEDS = range(1, 6)
"""Seeds of the simulator: of what each predicts, the medians are written down."""

_PREDICTED = "-predicted"
COLUMNS = (
    Column("machine", "text", "one of the lab's machines"),
    Column("vcpus", "whole", "virtual CPUs of the guest"),
    Column("memory_per_vcpu", "text", "memory that each vCPU walks"),
    Column("batch", "whole", "pages after which CLEAR lets go; 0: never", unit="count"),
    Column("metric", "text", "what is predicted: a metric of clear_under_load"),
    Column("estimate_s", "number", "prediction, lab time"),
    Column("low_s", "number", "lower end of its interval"),
    Column("high_s", "number", "upper end of its interval"),
)
"""Columns of a table of predictions."""


def predict_cells(experiments: Sequence[Experiment], progress: Progress | None = None) -> pd.DataFrame:
    """Predict what the lab will measure under load: the medians over the seeds of each cell, from the shipped fits.

    Raises `InputError` if vCPUs of a cell are parked, or its machine is not one of the lab's.

    Returns: `COLUMNS`, a row a cell and metric (`simlib.lab.hardware.load.SHOWN`).
    """
    each = [(one.about, cell) for one in experiments for cell in one.cells()]
    keys = pd.DataFrame([cell_keys(about, cell.parameters, cell.test) for about, cell in each])
    for parked in keys[keys["parked"] == "true"]["experiment"]:
        raise InputError(parked, "parked", "is not under load", "simlib lab compare predicts the counts of such cells")
    keys = with_batch(keys.assign(machine=[lab_name(row) for _, row in keys.iterrows()]))
    cells = keys.groupby(["machine", *CELL], sort=False, as_index=False).first()
    rows = []
    for number, (_, row) in enumerate(cells.iterrows()):
        if progress is not None:
            progress(row["machine"], number / len(cells))
        case = lab_case(row["machine"], row[[column.name for column in KEYS]])
        found = [predict(case, [case.guest.vcpus], metrics=SHOWN, seed=seed).frame for seed in SEEDS]
        numbers = np.median([one[["estimate", "low", "high"]] for one in found], axis=0)
        rows += [(*row[["machine", *CELL]], metric, *own) for metric, own in zip(SHOWN, numbers, strict=True)]
    return pd.DataFrame(rows, columns=[column.name for column in COLUMNS])


def prediction_files(predicted: pd.DataFrame, name: str, experiment: Path) -> dict[str, str]:
    """The files of a table of predictions: its CSV, and the descriptor with all that it was predicted from.

    - `predicted`: as `predict_cells` gives it.
    - `name`: the lab's tables that will answer: ``<name>-ioctls``, ``<name>-stalls``.
    - `experiment`: the file of the cells.
    """
    used = [data_dir() / folder / f"lab-{machine}.{kind}" for machine in dict.fromkeys(predicted["machine"])
            for folder, kind in (("scenarios", "toml"), ("fits", "json"))]  # fmt: skip
    about: dict[str, Any] = {
        "source": {"subject": "simlib lab predict", "author": "simlib"},
        "level": LEVEL,
        "seeds": [*SEEDS],
        "command": f"simlib lab predict data/experiments/{experiment.name} --out data/predictions --name {name}",
        "answers": [f"{name}-{table}" for table in ("ioctls", "stalls")],
        "notes": ["Written before the cells were run, and not changed afterwards."],
        "caveats": ["Times are instructions: 1 ns each, summed over all CPUs."],
    }
    stem, key = f"{name}{_PREDICTED}", ["machine", *CELL, "metric"]
    title = f"{name}: predicted before it was run"
    return predicted_files(stem, title, about, COLUMNS, key, predicted, (experiment, *used))


def scored() -> pd.DataFrame:
    """Each prediction of the ledger beside its answer.

    Returns: `COLUMNS`, and ``ledger``, ``date``, ``lab`` (s; not a number: not run yet), ``error`` (estimate over lab,
    less one) and ``inside`` (whether the interval holds it).
    """
    tables, out = set(list_tables()["name"]), []
    for name in sorted(table.removesuffix(_PREDICTED) for table in tables if table.endswith(_PREDICTED)):
        predicted = load(f"{name}{_PREDICTED}")
        rows = predicted.frame.assign(ledger=name, date=predicted.descriptor["date"])
        if set(predicted.descriptor["answers"]) <= tables:
            rows = rows.merge(_answers(name), on=["machine", *CELL, "metric"], how="left")
        out.append(rows)
    found = pd.concat(out, ignore_index=True)
    found["lab"] = found.get("lab", np.nan)  # where nothing was run yet
    inside = found["lab"].between(found["low_s"], found["high_s"])
    return found.assign(error=found["estimate_s"] / found["lab"] - 1, inside=inside)


def _answers(name: str) -> pd.DataFrame:
    """What the lab measured in an experiment under load, of all machines: `measured_cells`, and ``machine``."""
    ioctls, stalls = (with_batch(load(f"{name}-{table}").frame) for table in ("ioctls", "stalls"))
    parts = []
    for experiment, own in ioctls.groupby("experiment"):
        cells = measured_cells(own, stalls[stalls["experiment"] == experiment])
        parts.append(cells.assign(machine=lab_name(own.iloc[0])))
    return pd.concat(parts, ignore_index=True).drop(columns=["lab_low", "lab_high"])


def score(cells: pd.DataFrame) -> pd.DataFrame:
    """How good the predictions were, of those that have an answer, by machine and metric.

    Returns: ``machine`` (``all``: of all of them), ``metric``, ``predictions``, ``inside`` (share within its interval),
    ``median`` and ``largest`` error.

    - `cells`: as `scored` gives them.
    """
    known = cells.dropna(subset=["lab"]).assign(error=cells["error"].abs())
    grouped = pd.concat([known, known.assign(machine="all")]).groupby(["machine", "metric"], sort=False)
    return grouped.agg(predictions=("error", "size"), inside=("inside", "mean"), median=("error", "median"),
                       largest=("error", "max")).reset_index()  # fmt: skip
