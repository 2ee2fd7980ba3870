# SPDX-License-Identifier: BSD-3-Clause
"""Will it converge? Real migrations of QEMU's beside the course of a migration, and what was published."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from simlib.measurements import load
from simlib.parallel import Progress
from simlib.studies.converge import published, real
from simlib.studies.converge.forecast import BUILT, known
from simlib.studies.study import Answer, Found, Study

HELD_OUT = "migrate-held-out"
"""The migrations that were predicted before they ran."""


@dataclass(frozen=True)
class Converge(Found):
    """What the study found: `published.published_numbers`; tables ``built``, ``held_out`` and ``score``."""

    @property
    def score(self) -> pd.DataFrame:
        """`real.score` of the migrations that were predicted before they ran."""
        return self.tables["score"]

    def share(self, what: str) -> float:
        """A value of `score`."""
        return float(self.score["value"].to_numpy()[self.score["what"] == what].item())


def held_out() -> pd.DataFrame:
    """The migrations that were predicted before they ran, beside what was predicted."""
    runs, foretold = load(f"{HELD_OUT}-runs").frame, load(f"{HELD_OUT}-forecast").frame
    keys = [name for name in foretold if name in runs]
    keys = keys[: keys.index("limit_s") + 1]
    names = {f"{end}_{name}": f"{name}_{end}" for name in real.QUANTITIES for end in ("low", "high")}
    names |= {"completed_share_ratio": "completed_share"}
    expected = runs[keys].merge(foretold, on=keys, how="left").drop(columns=keys).rename(columns=names)
    return real.beside(runs, expected.set_index(runs.index))


def compute(*, seed: int = 1, progress: Progress | None = None) -> Converge:
    """Score the predictions, expect anew what the course was built on, and draw the published guest."""
    built = known(BUILT[0])
    both = held_out()
    expected = real.predicted(built, real.fitted(built), seed)
    tables = {"built": real.beside(built, expected), "held_out": both, "score": real.score(both)}
    return Converge(published.published_numbers(seed), tables)


def answer(found: Converge) -> Answer:
    """What can be told before a migration."""
    migrations, right = len(found.tables["held_out"]), found.share("converges or not, share right")
    off = found.share("total_ms, median error")
    [inside] = found.score.loc[found.score["what"] == "total_ms, median error", "inside"]
    return Answer(
        f"It can be told before: of {migrations} real migrations that were predicted before they ran, {right:.0%} "
        f"ended or did not as predicted; their time was off by {off:.1%} in the median, and "
        f"{inside:.0%} of the times lie in their 90 % interval."
    )


STUDY = Study("converge", "Will it converge?", ("15-will-it-converge",), (published.TABLE,), compute, answer)
