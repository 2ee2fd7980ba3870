# SPDX-License-Identifier: BSD-3-Clause
"""What real migrations will do, written down before they are run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from simlib.lab.migration import load_migrations
from simlib.lab.migration.collect import KEYS
from simlib.lab.migration.model import LEVEL, QUANTITIES, fitted, predicted
from simlib.measurements import data_dir, load
from simlib.measurements.importers.tables import Column, predicted_files

SEED = 1

BUILT = ("migrate", "migrate-held-out")
"""The migrations that the course was built on, and those that it was first held to: all that is known of this host."""

COLUMNS = (
    *KEYS,
    Column("completed", "whole", "1: it completes before it is given up"),
    Column("completed_share_ratio", "number", "share of the migrations drawn that complete"),
    Column("throttle_percent", "whole", "highest throttle"),
    *(
        Column(f"{end}{name}", "number", f"{name}{words}")
        for name in QUANTITIES
        for end, words in (("", ""), ("low_", ", low end"), ("high_", ", high end"))
    ),
)


def known(*names: str) -> pd.DataFrame:
    """Collected migrations by the names of their tables."""
    return pd.concat([load(f"{name}-runs").frame for name in names], ignore_index=True)


def forecast(experiment: Path) -> pd.DataFrame:
    """What is expected of each migration of an experiment."""
    runs = pd.DataFrame([one.keys for one in load_migrations(experiment)])
    found = predicted(runs, fitted(known(*BUILT)), SEED).rename(
        columns={"completed_share": "completed_share_ratio"}
        | {f"{name}_{end}": f"{end}_{name}" for name in QUANTITIES for end in ("low", "high")}
    )
    found = found.astype({"completed": int, "throttle_percent": int})
    return runs.join(found)[[column.name for column in COLUMNS]]


def forecast_files(experiment: Path, name: str) -> dict[str, str]:
    """The files of the table: its CSV, and the descriptor with what it was predicted from.

    - `name`: the lab's tables that will answer: ``<name>-runs``.
    """
    about: dict[str, Any] = {
        "source": {"subject": "simlib lab predict", "author": "simlib"},
        "level": LEVEL,
        "seeds": [SEED],
        "command": f"simlib lab predict data/experiments/{experiment.name} --out data/predictions --name {name}",
        "answers": [f"{name}-runs"],
        "notes": ["Written before the migrations were run, and not changed afterwards."],
        "caveats": ["Of this host: two CPUs, both sides on it."],
    }
    key = [column.name for column in KEYS]
    title = f"{name}: real migrations, predicted before they were run"
    used = (experiment, *(data_dir() / "collected" / f"{name}-runs.csv" for name in BUILT))
    return predicted_files(f"{name}-forecast", title, about, COLUMNS, key, forecast(experiment), used)
