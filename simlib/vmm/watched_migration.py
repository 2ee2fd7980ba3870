# SPDX-License-Identifier: BSD-3-Clause
"""Read a running guest from a migration that `simlib host watch` recorded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from simlib._lib.errors import InputError
from simlib.measurements import read
from simlib.vmm.guest import RunningGuest
from simlib.vmm.logs.passes import pool
from simlib.vmm.qemu_rules import PAGE
from simlib.vmm.samples import MigrationSample

_WATCH = "the watch.csv that simlib host watch --out wrote"


def read_watched_guest(path: str | Path) -> RunningGuest:
    """Read a guest from the recording of a migration.

    Each synchronisation of the dirty bitmap counts the pages that were dirtied since the previous one. Passes of
    similar length are pooled. Passes of a throttled guest are ignored.

    Raises `InputError` if the table has fewer than two synchronisations of an unthrottled guest.

    - `path`: table ``watch.csv`` of `simlib host watch`.
    """
    if not Path(path).is_file():
        raise InputError("watched migration", str(path), "must be a file", f"give {_WATCH}", flag="--from")
    try:
        frame = read(path).frame.dropna(subset=["dirty_sync_count", "dirty_pages_per_s", "total_bytes"])
    except (InputError, KeyError):
        hint = f"give {_WATCH}, with its descriptor"
        raise InputError(str(path), "another file", "must be a table of a watched migration", hint) from None
    samples = tuple(_samples(frame))
    frame = frame[frame["throttle_percent"].fillna(0) == 0]
    synchronised = frame[frame["dirty_sync_count"].diff().fillna(0) == 1]
    times = synchronised["time_s"].diff()
    dirtied = synchronised["dirty_pages_per_s"] * times * synchronised["page_size_bytes"].fillna(PAGE) / PAGE
    passes = pd.DataFrame({"seconds": times, "pages": dirtied})[(times > 0) & (dirtied > 0)]
    if passes.empty:
        hint = "watch a migration over several passes, or measure with calc-dirty-rate"
        raise InputError(str(path), "no pass", "must have at least two synchronisations of an unthrottled guest", hint)
    interval = float(frame["time_s"].diff().median())
    rates = pool(list(zip(passes["seconds"], passes["pages"], strict=True)), interval)
    note = f"dirty rates ({len(rates)}): from the passes of {path}, in which the migration slowed the guest"
    throughput = frame["throughput_mbit_per_s"].max()
    link = round(throughput * 1e6) if throughput > 0 else 0
    return RunningGuest(
        memory=int(frame["total_bytes"].iloc[-1]),
        link=link,
        dirty=rates,
        reached=link > 0,
        running=samples,
        notes=(note,),
    )


_COLUMNS = {
    "time_s": "time_s", "total_bytes": "total_bytes", "sent_bytes": "transferred_bytes",
    "remaining_bytes": "remaining_bytes", "normal_pages": "normal_pages", "zero_pages": "zero_pages",
    "dirty_pages_per_s": "dirty_pages_per_s", "throttle": "throttle_percent",
}  # fmt: skip
"""Fields of a sample, and columns of watch.csv."""


def _samples(frame: pd.DataFrame) -> Iterator[MigrationSample]:
    """Samples of the recording; their times begin with the watch."""
    for row in frame.to_dict("records"):
        values: dict[str, Any] = {name: row[key] for name, key in _COLUMNS.items() if pd.notna(row.get(key))}
        throughput, page = row.get("throughput_mbit_per_s"), row.get("page_size_bytes")
        yield MigrationSample(
            status=str(row.get("status", "")), passes=int(row["dirty_sync_count"]),
            page_bytes=int(page) if pd.notna(page) else PAGE,
            bits_per_s=throughput * 1e6 if pd.notna(throughput) else None, **values,
        )  # fmt: skip
