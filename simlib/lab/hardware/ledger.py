# SPDX-License-Identifier: BSD-3-Clause
"""Ledger of predictions: cells that were predicted before the lab ran them, with the lab's results.

``data/predictions/`` holds the predictions, each committed before its cells were run and not changed afterwards. The
answers are the lab's tables ``<name>-ioctls`` and ``<name>-stalls`` in ``data/collected/``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simlib._lib.errors import InputError
from simlib._lib.parallel import Progress
from simlib.analysis.predict import predict
from simlib.analysis.prediction_options import LEVEL
from simlib.lab.experiment import Experiment
from simlib.lab.hardware.load import CELL, MAIN_METRICS, measured_cells
from simlib.lab.hardware.machines import lab_case, lab_name, with_batch
from simlib.lab.records import KEYS, cell_keys
from simlib.measurements import data_dir, list_tables, load
from simlib.measurements.importers.tables import Column, DescribedTable, predicted_files

SEEDS = range(1, 6)
"""Seeds of the simulator; the medians of the predictions over them are recorded."""

_SUFFIX = "-predicted"
COLUMNS = (
    Column("machine", "text", "one of the lab's machines"),
    Column("vcpus", "whole", "virtual CPUs of the guest"),
    Column("memory_per_vcpu", "text", "memory that each vCPU accesses"),
    Column("batch", "whole", "pages after which CLEAR drops mmu_lock; 0: never", unit="count"),
    Column("metric", "text", "predicted metric of clear_under_load"),
    Column("estimate_s", "number", "prediction, lab time"),
    Column("low_s", "number", "lower end of its interval"),
    Column("high_s", "number", "upper end of its interval"),
)


def predict_cells(experiments: Sequence[Experiment], progress: Progress | None = None) -> pd.DataFrame:
    """Predict cells under load from the shipped fits: for each cell, the medians over `SEEDS`.

    Returns: `COLUMNS`, a row per cell and metric (`simlib.lab.hardware.load.MAIN_METRICS`). Raises `InputError` if
    vCPUs of a cell are parked, or its machine is not one of the lab's.
    """
    cells = [(experiment.record_fields, cell) for experiment in experiments for cell in experiment.cells()]
    keys = pd.DataFrame([cell_keys(about, cell.parameters, cell.test) for about, cell in cells])
    for parked in keys[keys["parked"] == "true"]["experiment"]:
        raise InputError(parked, "parked", "is not under load", "run simlib lab compare, which compares its counts")
    keys = with_batch(keys.assign(machine=[lab_name(row) for _, row in keys.iterrows()]))
    distinct = keys.groupby(["machine", *CELL], sort=False, as_index=False).first()
    rows = []
    for number, (_, row) in enumerate(distinct.iterrows()):
        if progress is not None:
            progress(row["machine"], number / len(distinct))
        case = lab_case(row["machine"], row[[column.name for column in KEYS]])
        predictions = [predict(case, [case.guest.vcpus], metrics=MAIN_METRICS, seed=seed).frame for seed in SEEDS]
        medians = np.median([frame[["estimate", "low", "high"]] for frame in predictions], axis=0)
        cell = row[["machine", *CELL]]
        rows += [(*cell, metric, *values) for metric, values in zip(MAIN_METRICS, medians, strict=True)]
    return pd.DataFrame(rows, columns=[column.name for column in COLUMNS])


def prediction_files(predicted: pd.DataFrame, name: str, experiment: Path) -> dict[str, str]:
    """Return the files of a table of predictions: its CSV, and the descriptor with hashes of its inputs.

    - `predicted`: from `predict_cells`.
    - `name`: prefix of the lab's tables with the answers: ``<name>-ioctls``, ``<name>-stalls``.
    - `experiment`: the experiment file of the cells.
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
        "caveats": ["Times are numbers of instructions of all CPUs, at 1 ns per instruction."],
    }
    stem, key = f"{name}{_SUFFIX}", ("machine", *CELL, "metric")
    title = f"{name}: predicted before it was run"
    return predicted_files(DescribedTable(stem, title, COLUMNS, key, predicted), about, (experiment, *used))


def load_ledger() -> pd.DataFrame:
    """Load all predictions of the ledger with their answers.

    Returns: `COLUMNS`, and ``ledger``, ``date``, ``lab`` (s; NaN: not run yet), ``error`` (estimate over lab, minus
    one) and ``inside`` (true if the interval contains the answer).
    """
    tables, parts = set(list_tables()["name"]), []
    for name in sorted(table.removesuffix(_SUFFIX) for table in tables if table.endswith(_SUFFIX)):
        predicted = load(f"{name}{_SUFFIX}")
        rows = predicted.frame.assign(ledger=name, date=predicted.descriptor["date"])
        if set(predicted.descriptor["answers"]) <= tables:
            rows = rows.merge(_measured_answers(name), on=["machine", *CELL, "metric"], how="left")
        parts.append(rows)
    ledger = pd.concat(parts, ignore_index=True)
    ledger["lab"] = ledger.get("lab", np.nan)  # if nothing was run yet
    inside = ledger["lab"].between(ledger["low_s"], ledger["high_s"])
    return ledger.assign(error=ledger["estimate_s"] / ledger["lab"] - 1, inside=inside)


def _measured_answers(name: str) -> pd.DataFrame:
    """Load the lab's results under load on all machines: the columns of `measured_cells`, and ``machine``."""
    ioctls, stalls = (with_batch(load(f"{name}-{table}").frame) for table in ("ioctls", "stalls"))
    parts = []
    for experiment, rows in ioctls.groupby("experiment"):
        cells = measured_cells(rows, stalls[stalls["experiment"] == experiment])
        parts.append(cells.assign(machine=lab_name(rows.iloc[0])))
    return pd.concat(parts, ignore_index=True).drop(columns=["lab_low", "lab_high"])


def score(cells: pd.DataFrame) -> pd.DataFrame:
    """Score the predictions of `load_ledger` that have an answer, by machine and metric.

    Returns: ``machine`` (``all``: all machines), ``metric``, ``predictions``, ``inside`` (share of the answers within
    the intervals), ``median`` and ``largest`` error.
    """
    known = cells.dropna(subset=["lab"]).assign(error=cells["error"].abs())
    grouped = pd.concat([known, known.assign(machine="all")]).groupby(["machine", "metric"], sort=False)
    return grouped.agg(predictions=("error", "size"), inside=("inside", "mean"), median=("error", "median"),
                       largest=("error", "max")).reset_index()  # fmt: skip
