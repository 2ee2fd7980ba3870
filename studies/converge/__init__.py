# SPDX-License-Identifier: BSD-3-Clause
"""Will it converge? Real migrations of QEMU's beside the course of a migration, and what was published."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from simlib._lib.parallel import Progress
from simlib.lab.migration import model
from simlib.lab.migration.forecast import FIT_TABLES, load_collected
from simlib.measurements import load
from studies.converge import published
from studies.study import Answer, Study, StudyFindings

FIRST, AGAIN = HELD_OUT = ("migrate-held-out", "migrate-again")
"""The migrations that were predicted before they ran: at first, and once the first ones had been seen."""


@dataclass(frozen=True)
class Converge(StudyFindings):
    """What the study found: `published.published_numbers`; tables ``built``, those of `HELD_OUT` and ``score``."""

    @property
    def score(self) -> pd.DataFrame:
        """`real.score` of what was predicted before it ran: columns of the first ones, and of those again."""
        return self.tables["score"]

    def of(self, what: str, column: str = "value") -> float:
        """A number of `score` of those that were predicted again."""
        return float(self.score[f"{column}, again"].to_numpy()[self.score["what"] == what].item())


def held_out(name: str = AGAIN) -> pd.DataFrame:
    """Migrations that were predicted before they ran, beside what was predicted.

    - `name`: one of `HELD_OUT`.
    """
    runs, foretold = load(f"{name}-runs").frame, load(f"{name}-forecast").frame
    keys = [column for column in foretold if column in runs]
    keys = keys[: keys.index("limit_s") + 1]
    names = {f"{end}_{what}": f"{what}_{end}" for what in model.QUANTITIES for end in ("low", "high")}
    names |= {"completed_share_ratio": "completed_share"}
    expected = runs[keys].merge(foretold, on=keys, how="left").drop(columns=keys).rename(columns=names)
    return model.compare_with_expected(runs, expected.set_index(runs.index))


def compute(*, seed: int = 1, progress: Progress | None = None) -> Converge:
    """Score the predictions, expect anew what the course was built on, and draw the published guest."""
    built = load_collected(FIT_TABLES[0])
    expected = model.predict_migrations(built, model.fit_host(built), seed)
    tables = {"built": model.compare_with_expected(built, expected), **{name: held_out(name) for name in HELD_OUT}}
    first, again = (model.score(tables[name]).set_index("what").add_suffix(f", {when}") for name, when in
                    ((FIRST, "first"), (AGAIN, "again")))  # fmt: skip
    tables["score"] = first.join(again).reset_index()
    return Converge(published.published_numbers(seed), tables)


def answer(found: Converge) -> Answer:
    """What can be told before a migration."""
    every = pd.concat([found.tables[name] for name in HELD_OUT])
    right = (every["completed"] == every["completed_expected"]).mean()
    time = "total_ms, median error"
    return Answer(
        f"It can be told before: of {len(every)} real migrations that were predicted before they ran, {right:.0%} "
        f"ended or did not as predicted. Of the {len(found.tables[AGAIN])} that were predicted again, the time was off "
        f"by {found.of(time):.1%} in the median, and {found.of(time, 'inside'):.0%} of the times lie in their 90 % "
        f"interval."
    )


STUDY = Study("converge", "Will it converge?", ("15-will-it-converge",), (published.TABLE,), compute, answer)
