# SPDX-License-Identifier: BSD-3-Clause
"""Predictions of real migrations, written before the migrations are run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from simlib._lib.checkout import require_checkout
from simlib.lab.migration.experiment import load_migrations
from simlib.lab.migration.model import LEVEL, QUANTITIES, compare_with_expected, fit_host, predict_migrations
from simlib.lab.migration.tables import KEYS
from simlib.measurements import data_dir, load
from simlib.measurements.importers.tables import Column, DescribedTable, predicted_files

SEED = 1

FIT_TABLES = ("migrate", "migrate-held-out")
"""Tables of migrations to which the host is fitted: one used to develop the model, and the first that was held out."""

COLUMNS = (
    *KEYS,
    Column("completed", "whole", "1: the migration completes within limit_s; 0: it does not"),
    Column("completed_share_ratio", "number", "share of the sampled migrations that complete"),
    Column("throttle_percent", "whole", "highest throttle"),
    *(
        Column(f"{end}{name}", "number", f"{name}{words}")
        for name in QUANTITIES
        for end, words in (("", ""), ("low_", ", low end"), ("high_", ", high end"))
    ),
)


def load_collected(*names: str) -> pd.DataFrame:
    """Load collected migrations by the names of their tables."""
    return pd.concat([load(f"{name}-runs").frame for name in names], ignore_index=True)


def load_predicted(name: str) -> pd.DataFrame:
    """Load migrations with the predictions that were made before they ran, whose columns end in ``_expected``.

    Source: tables ``<name>-runs`` and ``<name>-forecast``.

    >>> "total_ms_low_expected" in load_predicted("migrate-again")
    True
    """
    runs, predicted = load(f"{name}-runs").frame, load(f"{name}-forecast").frame
    keys = [column for column in predicted if column in runs]
    keys = keys[: keys.index("limit_s") + 1]
    names = {f"{end}_{what}": f"{what}_{end}" for what in QUANTITIES for end in ("low", "high")}
    names |= {"completed_share_ratio": "completed_share"}
    expected = runs[keys].merge(predicted, on=keys, how="left").drop(columns=keys).rename(columns=names)
    return compare_with_expected(runs, expected.set_index(runs.index))


def forecast(experiment: Path) -> pd.DataFrame:
    """Predict the migrations of an experiment.

    Raises `SimlibError` in an installed package, which lacks the collected migrations of `FIT_TABLES`.
    """
    require_checkout("simlib lab predict for migrations")
    runs = pd.DataFrame([cell.keys for cell in load_migrations(experiment)])
    predictions = predict_migrations(runs, fit_host(load_collected(*FIT_TABLES)), SEED).rename(
        columns={"completed_share": "completed_share_ratio"}
        | {f"{name}_{end}": f"{end}_{name}" for name in QUANTITIES for end in ("low", "high")}
    )
    predictions = predictions.astype({"completed": int, "throttle_percent": int})
    return runs.join(predictions)[[column.name for column in COLUMNS]]


def forecast_files(experiment: Path, name: str) -> dict[str, str]:
    """Return the files of the predictions of ``<name>-runs``: CSV, and descriptor with hashes of the inputs."""
    about: dict[str, Any] = {
        "source": {"subject": "simlib lab predict", "author": "simlib"},
        "level": LEVEL,
        "seeds": [SEED],
        "command": f"simlib lab predict data/experiments/{experiment.name} --out data/predictions --name {name}",
        "answers": [f"{name}-runs"],
        "notes": ["Written before the migrations were run, and not changed afterwards."],
        "caveats": ["Valid only for this host, which has two CPUs and runs both sides."],
    }
    key = tuple(column.name for column in KEYS)
    title = f"{name}: real migrations, predicted before they were run"
    used = (experiment, *(data_dir() / "collected" / f"{name}-runs.csv" for name in FIT_TABLES))
    table = DescribedTable(f"{name}-forecast", title, COLUMNS, key, forecast(experiment))
    return predicted_files(table, about, used)
