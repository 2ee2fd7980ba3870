# SPDX-License-Identifier: BSD-3-Clause
"""Migrations of real Linux guests, each predicted from its measurement before it began.

The guests of ``linux-train`` were used to choose the priors of `simlib.vmm.population`; those of ``linux-held-out``
were drawn at random before any of them had run, and nothing was chosen by them.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from simlib.lab.migration.forecast import load_predicted
from simlib.measurements import load
from simlib.vmm.plans import SURE

HELD_OUT, DEVELOPED = "linux-held-out", "linux-train"
"""Names of the experiments: predicted before they ran, and used to develop the model."""

STEP = 10
"""Increment of the throttle (cpu-throttle-increment), percent."""


def held_out() -> pd.DataFrame:
    """Return the held-out migrations with their predictions (`load_predicted`).

    More columns: ``completed_expected``: 1 if more than half of the sampled guests complete; ``verdict``: True if at
    least `SURE` of them do or do not.
    """
    rows = load_predicted(HELD_OUT)
    share = rows["completed_share_expected"]
    return rows.assign(completed_expected=(share > 0.5).astype(float), verdict=(share >= SURE) | (share <= 1 - SURE))


def score(rows: pd.DataFrame) -> pd.DataFrame:
    """Score predictions of `held_out`.

    Returns: ``what``; ``value``: a share or a median; ``low``, ``high``: 90 % interval of a share (Wilson), NaN for a
    median; ``migrations``: number of migrations that count. Times, passes and throttles count only where the migration
    completed and some of the sampled guests do.
    """
    sure = rows[rows["verdict"]]
    done = rows[(rows["completed"] == 1) & rows["total_ms_expected"].notna()]
    ratio = done["total_ms_expected"] / done["total_ms"]
    width = (done["total_ms_high_expected"] - done["total_ms_low_expected"]) / 2 / done["total_ms_expected"]
    off = (done["throttle_percent"] - done["throttle_percent_expected"]).abs()
    shares = {
        "verdict given": rows["verdict"],
        "verdict right, where one is given": sure["completed"] == sure["completed_expected"],
        "total time inside its interval": _inside(done, "total_ms"),
        "passes inside": _inside(done, "synchronisations"),
        f"last throttle within {STEP} points": off <= STEP,
        "bytes sent inside": _inside(done, "transferred_bytes"),
        "downtime inside": _inside(done, "downtime_ms"),
    }
    table = [_share(what, hits) for what, hits in shares.items()]
    medians = {"total time, median error": (ratio - 1).abs(), "total time, median half width": width}
    table += [(what, float(values.median()), np.nan, np.nan, len(values)) for what, values in medians.items()]
    return pd.DataFrame(table, columns=["what", "value", "low", "high", "migrations"])


def _inside(rows: pd.DataFrame, name: str) -> pd.Series[bool]:
    return rows[name].between(rows[f"{name}_low_expected"], rows[f"{name}_high_expected"])


def _share(what: str, hits: pd.Series[bool]) -> tuple[str, float, float, float, int]:
    count, total = int(hits.sum()), len(hits)
    interval = binomtest(count, total).proportion_ci(0.9, method="wilson")
    return what, count / total, float(interval.low), float(interval.high), total


def repeats() -> pd.DataFrame:
    """Return the total times of guests that ran twice: ``experiment``, ``settings``, ``first_ms``, ``second_ms``."""
    runs = load(f"{DEVELOPED}-runs").frame
    keys = ["experiment", "parameters", "settings"]
    times = runs.pivot_table(index=keys, columns="repeat", values="total_ms").dropna()
    return times.set_axis(["first_ms", "second_ms"], axis="columns").reset_index().drop(columns="parameters")
