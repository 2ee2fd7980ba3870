# SPDX-License-Identifier: BSD-3-Clause
"""Convergence of migrations: real migrations of QEMU and published ones, compared with the pre-copy model."""

from __future__ import annotations

import pandas as pd

from simlib._lib.parallel import Progress
from simlib.figures.results import Answer
from simlib.lab.migration import model
from simlib.lab.migration.forecast import FIT_TABLES, load_collected, load_predicted
from studies.converge import linux, published
from studies.study import Study, StudyFindings

FIRST, AGAIN = HELD_OUT = ("migrate-held-out", "migrate-again")
"""Migrations that were predicted before they ran: the first ones, and others predicted after the first had run."""


def compute(*, seed: int = 1, progress: Progress | None = None) -> StudyFindings:
    """Score the predictions, recompute the migrations that the model was built on, and sample the published guest.

    Table ``score`` is `model.score` of the first migrations, and of those that were predicted again; table
    ``linux-score`` is `linux.score` of the Linux guests, whose migrations are table ``linux``.
    """
    built = load_collected(FIT_TABLES[0])
    expected = model.predict_migrations(built, model.fit_host(built), seed)
    tables = {
        "built": model.compare_with_expected(built, expected),
        **{name: load_predicted(name) for name in HELD_OUT},
    }
    first, again = (model.score(tables[name]).set_index("what").add_suffix(f", {when}") for name, when in
                    ((FIRST, "first"), (AGAIN, "again")))  # fmt: skip
    tables["score"] = first.join(again).reset_index()
    tables["linux"] = linux.held_out()
    tables["linux-score"] = linux.score(tables["linux"])
    return StudyFindings(published.published_numbers(seed), tables)


def answer(findings: StudyFindings) -> Answer:
    """Answer of notebook 15."""
    migrations = pd.concat([findings.tables[name] for name in HELD_OUT])
    right = (migrations["completed"] == migrations["completed_expected"]).mean()
    time = findings.tables["score"].set_index("what").loc["total_ms, median error"]
    guests = findings.tables["linux-score"].set_index("what")["value"]
    return Answer(
        f"The outcome can be predicted. If the guest's writes are known: for {100 * right:.0f} % of {len(migrations)} "
        f"real migrations, it was predicted correctly, before they ran, whether they converge. For the "
        f"{len(findings.tables[AGAIN])} predicted after the first had run, the median error of the time is "
        f"{100 * time['value, again']:.1f} %; {100 * time['inside, again']:.0f} % of the times are within their 90 % "
        f"interval. If dirty rates are measured in {len(findings.tables['linux'])} Linux guests: a verdict was given "
        f"for {100 * guests['verdict given']:.0f} %, and {100 * guests['verdict right, where one is given']:.0f} % of "
        f"these were right; the median error of the time is {100 * guests['total time, median error']:.0f} %, with a "
        f"median interval of ± {100 * guests['total time, median half width']:.0f} %, and "
        f"{100 * guests['total time inside its interval']:.0f} % of the times are inside."
    )


STUDY = Study("converge", "Will it converge?", ("15-will-it-converge",), (published.TABLE,), compute, answer)
