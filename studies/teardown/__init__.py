# SPDX-License-Identifier: BSD-3-Clause
"""Tearing a VM down on arm64 (the December 2019 mail), beside published times of unmapping, and for other sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from simlib._lib.parallel import Progress
from simlib.model.quantities import say_seconds
from studies.study import Answer, Found, Study
from studies.teardown import mail, unmap
from studies.teardown.unmap import TABLES, TRAIN_GB, UnmapFit


@dataclass(frozen=True)
class Teardown(Found):
    """What the study found: costs by mapping, of the rows that were fitted and, once these were judged, of all."""

    small: dict[str, UnmapFit]
    every: dict[str, UnmapFit]

    @property
    def unmap(self) -> pd.DataFrame:
        """The published times of unmapping; the others are the mail's bounds."""
        return self.numbers[self.numbers["mapping"].notna()]

    @property
    def bounds(self) -> pd.DataFrame:
        """The mail's bounds."""
        return self.numbers[self.numbers["mapping"].isna()]


def compute(*, seed: int = 1, progress: Progress | None = None) -> Teardown:
    """Calibrate, check, read the mail, predict. Nothing in it is random."""
    small, every = unmap.fits(), unmap.fits(math.inf)
    predictions = mail.predictions(every)
    costs = [
        unmap.cost_table(fits).assign(rows=rows) for rows, fits in ((f"up to {TRAIN_GB} GB", small), ("all", every))
    ]
    tables = {
        "costs": pd.concat(costs, ignore_index=True)[["mapping", "rows", "cost", "value_us", "low_us", "high_us"]],
        "across": unmap.across(every),
        "readings": mail.readings(every),
        "predictions": predictions,
        "stalls": mail.stalls(every),
    }
    numbers = pd.concat([unmap.unmap_numbers(small), mail.bound_numbers(predictions)], ignore_index=True)
    return Teardown(numbers, tables, small, every)


def answer(found: Teardown) -> Answer:
    """What 1 TiB takes with both kinds of maintenance, and with none of them for each page."""
    mine = found.tables["predictions"].query("memory == '1T' and page_size == '4K' and mapping == 'blocks'")

    def span(way: str) -> str:
        ends = mine[mine["way"] == way].iloc[0]
        return f"{say_seconds(float(ends['low_s']))} to {say_seconds(float(ends['high_s']))}"

    return Answer(
        f"A VM of 1 TiB in 2 MiB blocks takes {span(mail.BEFORE)} to end if KVM cleans the cache and invalidates the "
        f"TLB for each entry; nearly all of that is cleaning. With one invalidation of the whole VM it takes "
        f"{span(mail.AFTER)}. Larger pages do not make cleaning cheaper: it is paid by the byte."
    )


STUDY = Study(
    "teardown",
    "Tearing a VM down on arm64",
    ("08-teardown",),
    (
        *(table.name for table in TABLES.values()),
        mail.BOUNDS,
        "arm64-teardown-cost-share",
        "arm64-enable-dirty-log-chunks",
    ),
    compute,
    answer,
)
