# SPDX-License-Identifier: BSD-3-Clause
"""Read a running guest from a migration that `simlib host watch` recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from simlib._lib.errors import InputError
from simlib.measurements import read
from simlib.vmm.dirtying import DirtyRate
from simlib.vmm.guest import RunningGuest
from simlib.vmm.qemu_rules import PAGE

_SAME_TIME = 1.5
"""Passes whose times differ by less than this factor are pooled."""

_WATCH = "the watch.csv that simlib host watch --out wrote"


def read_watched_guest(path: str | Path) -> RunningGuest:
    """Read a guest from the recording of a migration.

    Each synchronisation of the dirty bitmap counts the pages that were dirtied since the previous one. Passes of
    similar length are pooled. Passes of a throttled guest are ignored.

    Raises `InputError` if the table has fewer than two synchronisations of an unthrottled guest.

    - `path`: table ``watch.csv`` of `simlib host watch`.
    """
    if not Path(path).is_file():
        raise InputError("--from-watch", str(path), "must be a file", f"give {_WATCH}")
    try:
        frame = read(path).frame.dropna(subset=["dirty_sync_count", "dirty_pages_per_s", "total_bytes"])
    except (InputError, KeyError):
        hint = f"give {_WATCH}; use --from-qemu for QEMU's replies"
        raise InputError(str(path), "another file", "must be a table of a watched migration", hint) from None
    frame = frame[frame["throttle_percent"].fillna(0) == 0]
    synchronised = frame[frame["dirty_sync_count"].diff().fillna(0) == 1]
    times = synchronised["time_s"].diff()
    dirtied = synchronised["dirty_pages_per_s"] * times * synchronised["page_size_bytes"].fillna(PAGE) / PAGE
    passes = pd.DataFrame({"seconds": times, "pages": dirtied})[(times > 0) & (dirtied > 0)]
    if passes.empty:
        hint = "watch a migration over several passes, or measure with calc-dirty-rate"
        raise InputError(str(path), "no pass", "must have at least two synchronisations of an unthrottled guest", hint)
    interval = float(frame["time_s"].diff().median())
    pooled = passes.groupby((np.log(passes["seconds"]) / np.log(_SAME_TIME)).round())
    rates = tuple(
        DirtyRate(float(rows["pages"].mean()), float(rows["seconds"].mean()), _relative_error(rows, interval))
        for _, rows in pooled
    )
    note = f"dirty rates ({len(rates)}): from the passes of {path}, in which the migration slowed the guest"
    throughput = frame["throughput_mbit_per_s"].max()
    link = round(throughput * 1e6) if throughput > 0 else 0
    return RunningGuest(memory=int(frame["total_bytes"].iloc[-1]), link=link, dirty=rates, notes=(note,))


def _relative_error(rows: pd.DataFrame, interval: float) -> float:
    """Relative standard error of a mean number of pages; `interval`: time between two samples, s."""
    spread = float(rows["pages"].std() / rows["pages"].mean()) if len(rows) > 1 else 0.0
    return max(0.02, float(np.hypot(spread, interval / rows["seconds"].mean()) / np.sqrt(len(rows))))
