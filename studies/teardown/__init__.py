# SPDX-License-Identifier: BSD-3-Clause
"""Teardown of a VM on arm64 (the December 2019 mail), published times of unmapping, and predictions for other sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from simlib._lib.parallel import Progress
from simlib.figures.results import Answer
from simlib.model.quantities import seconds_text
from studies.study import Study, StudyFindings
from studies.teardown import mail, unmap
from studies.teardown.unmap import TABLES, TRAIN_GB, UnmapFit


@dataclass(frozen=True)
class Teardown(StudyFindings):
    """Findings on unmapping and teardown: costs by mapping, fitted to the training rows and to all rows."""

    fits_training: dict[str, UnmapFit]
    fits_all: dict[str, UnmapFit]

    @property
    def unmap(self) -> pd.DataFrame:
        """Published times of unmapping; the other numbers are the mail's bounds."""
        return self.numbers[self.numbers["mapping"].notna()]

    @property
    def bounds(self) -> pd.DataFrame:
        """Published bounds of the December 2019 mail."""
        return self.numbers[self.numbers["mapping"].isna()]


def compute(*, seed: int = 1, progress: Progress | None = None) -> Teardown:
    """Fit the costs, check them, compare with the mail, and predict. The computation is deterministic."""
    training, all_rows = unmap.fits(), unmap.fits(math.inf)
    predictions = mail.predictions(all_rows)
    costs = [unmap.cost_table(training, f"up to {TRAIN_GB} GB"), unmap.cost_table(all_rows, "all")]
    tables = {
        "costs": pd.concat(costs, ignore_index=True),
        "across": unmap.cross_predictions(all_rows),
        "hypotheses": mail.hypotheses(all_rows),
        "predictions": predictions,
        "stalls": mail.stalls(all_rows),
    }
    numbers = pd.concat([unmap.unmap_numbers(training), mail.bound_numbers(predictions)], ignore_index=True)
    return Teardown(numbers, tables, training, all_rows)


def answer(findings: Teardown) -> Answer:
    """Return the conclusion: times of tearing down a 1 TiB VM with maintenance for each entry, and without."""
    rows = findings.tables["predictions"].query("memory == '1T' and page_size == '4K' and mapping == 'blocks'")

    def span(way: str) -> str:
        ends = rows[rows["way"] == way].iloc[0]
        return f"{seconds_text(float(ends['low_s']))} to {seconds_text(float(ends['high_s']))}"

    return Answer(
        f"Tearing down a VM of 1 TiB, mapped with 2 MiB blocks, takes {span(mail.BEFORE)} if KVM cleans the cache and "
        f"invalidates the TLB for each entry; cleaning takes nearly all of this time. If KVM does not clean, and "
        f"invalidates the whole VM once, it takes {span(mail.AFTER)}. Larger pages do not reduce the time of cleaning."
    )


_INPUTS = (*(table.name for table in TABLES.values()), mail.BOUNDS, mail.SHARE, mail.WRITE_PROTECT)
STUDY = Study("teardown", "Tearing a VM down on arm64", ("08-teardown",), _INPUTS, compute, answer)
