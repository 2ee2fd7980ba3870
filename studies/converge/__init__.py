# SPDX-License-Identifier: BSD-3-Clause
"""Convergence of migrations: real migrations of QEMU and published ones beside the pre-copy model."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from simlib._lib.parallel import Progress
from simlib.figures.results import Answer
from simlib.lab.migration import model
from simlib.lab.migration.forecast import FIT_TABLES, load_collected
from simlib.measurements import load
from studies.converge import published
from studies.study import Study, StudyFindings

FIRST, AGAIN = HELD_OUT = ("migrate-held-out", "migrate-again")
"""The migrations that were predicted before they ran: at first, and once the first ones had been seen."""


@dataclass(frozen=True)
class Converge(StudyFindings):
    """Findings: `published.published_numbers`; tables ``built``, those of `HELD_OUT` and ``score``."""

    @property
    def score(self) -> pd.DataFrame:
        """`model.score` of the predictions: columns of the first migrations, and of those predicted again."""
        return self.tables["score"]

    def of(self, what: str, column: str = "value") -> float:
        """A number of `score` of those that were predicted again."""
        return float(self.score[f"{column}, again"].to_numpy()[self.score["what"] == what].item())


def held_out(name: str = AGAIN) -> pd.DataFrame:
    """Migrations that were predicted before they ran, beside what was predicted.

    - `name`: one of `HELD_OUT`.
    """
    runs, forecast = load(f"{name}-runs").frame, load(f"{name}-forecast").frame
    keys = [column for column in forecast if column in runs]
    keys = keys[: keys.index("limit_s") + 1]
    names = {f"{end}_{what}": f"{what}_{end}" for what in model.QUANTITIES for end in ("low", "high")}
    names |= {"completed_share_ratio": "completed_share"}
    expected = runs[keys].merge(forecast, on=keys, how="left").drop(columns=keys).rename(columns=names)
    return model.compare_with_expected(runs, expected.set_index(runs.index))


def compute(*, seed: int = 1, progress: Progress | None = None) -> Converge:
    """Score the predictions, recompute the migrations that the model was built on, and sample the published guest."""
    built = load_collected(FIT_TABLES[0])
    expected = model.predict_migrations(built, model.fit_host(built), seed)
    tables = {"built": model.compare_with_expected(built, expected), **{name: held_out(name) for name in HELD_OUT}}
    first, again = (model.score(tables[name]).set_index("what").add_suffix(f", {when}") for name, when in
                    ((FIRST, "first"), (AGAIN, "again")))  # fmt: skip
    tables["score"] = first.join(again).reset_index()
    return Converge(published.published_numbers(seed), tables)


def answer(findings: Converge) -> Answer:
    """Answer of notebook 15."""
    migrations = pd.concat([findings.tables[name] for name in HELD_OUT])
    right = (migrations["completed"] == migrations["completed_expected"]).mean()
    time = "total_ms, median error"
    return Answer(
        f"The outcome can be predicted: of {len(migrations)} real migrations that were predicted before they ran, "
        f"{right:.0%} converged or not as predicted. Of the {len(findings.tables[AGAIN])} that were predicted again, "
        f"the time was off by {findings.of(time):.1%} in the median; {findings.of(time, 'inside'):.0%} of the times "
        f"lie in their 90 % interval."
    )


STUDY = Study("converge", "Will it converge?", ("15-will-it-converge",), (published.TABLE,), compute, answer)
