# SPDX-License-Identifier: BSD-3-Clause
"""Which batch, for each architecture: the choice, its evidence, the closed form, and the map over vCPUs and writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from simlib import figures
from simlib.decision import BatchChoice, choose_batch, comparison, standard_architectures, standard_scenario
from simlib.decision.closed_form import batching
from simlib.decision.grid import best_batch_grid, central
from simlib.model.quantities import format_size
from simlib.report.block import Chart, Note, Prose, Table
from simlib.report.page import Section
from simlib.theory import batch_costs

MEMORY = "32M"
"""Memory of the guest whose CLEAR is divided; ``simlib choose-batch --all`` takes four times as much."""

MAP_ARCHITECTURE = "arm64"
VCPUS = (2, 4, 8, 16, 32, 64)
RATES = (1e3, 1e4, 1e5, 1e6)
"""Pages that a vCPU touches in a second, for the map."""


@dataclass(frozen=True)
class DecisionStudy:
    """What the section shows.

    Attributes
    ----------
    choices : mapping of str to BatchChoice
        By architecture.
    map : DataFrame
        `simlib.decision.grid.best_batch_grid` of `MAP_ARCHITECTURE`.
    """

    choices: Mapping[str, BatchChoice]
    map: pd.DataFrame

    @property
    def table(self) -> pd.DataFrame:
        """One row an architecture, as a reader wants it; `simlib.decision.comparison` has all columns."""
        rows = comparison(self.choices)
        chunk = rows["chunk_pages"]
        words = {name: _words(rows[name], chunk) for name in ("recommended_pages", "as_good_from", "as_good_to")}
        shares = {name: 100 * rows[name] for name in ("whole_share", "word_share", "block_share")}
        table = rows.assign(**words, **shares)
        return table[["architecture", *words, *shares, "evidence"]]

    @property
    def costs(self) -> pd.DataFrame:
        """Cost over batch for `simlib.figures.batch_costs`, with the closed form's cost above its least."""
        parts = []
        for name, choice in self.choices.items():
            frame = choice.table[["batch_pages", "effective_pages", "objective_s", "low_s", "high_s", "as_good"]]
            law = batching(central(choice.scenario))
            closed = np.full(len(frame), np.nan)
            if law is not None:
                cost = batch_costs(law, frame["effective_pages"]).objective(choice.weight)
                closed = float(frame["objective_s"].min()) + cost - cost.min()
            parts.append(
                frame.drop(columns="effective_pages").assign(
                    architecture=name, best=frame["batch_pages"] == choice.recommended, evidence=choice.evidence,
                    closed_form_s=closed,
                )
            )  # fmt: skip
        return pd.concat(parts, ignore_index=True)


def study(
    seed: int = 1, progress: Callable[[str, float], None] | None = None, names: Sequence[str] | None = None
) -> DecisionStudy:
    """Choose a batch for each architecture.

    Parameters
    ----------
    seed : int
    names : sequence of str, optional
        Architectures; by default all of `simlib.decision.standard_architectures`.
    progress : callable, optional
        Called with (what, share done).
    """
    names = standard_architectures() if names is None else names
    choices = {}
    for number, name in enumerate(names):
        if progress is not None:
            progress(f"a batch for {name}", number / len(names))
        choices[name] = choose_batch(standard_scenario(name).changed({"guest": {"memory": MEMORY}}), seed=seed)
    case = standard_scenario(MAP_ARCHITECTURE)
    return DecisionStudy(choices, best_batch_grid(case, VCPUS, RATES, seed=seed, progress=progress))


def sections(found: DecisionStudy) -> list[Section]:
    """The study as a section of a report.

    Parameters
    ----------
    found : DecisionStudy
    """
    first = next(iter(found.choices.values()))
    guest, workload = first.scenario.guest, first.scenario.workload
    name = MAP_ARCHITECTURE if MAP_ARCHITECTURE in found.choices else next(iter(found.choices))
    shown = found.choices[name]
    return [
        Section(
            "A batch for each architecture",
            [
                Prose(
                    f"A guest of {guest.vcpus} vCPUs that writes all over {format_size(guest.memory or 0)} is sent "
                    f"twice ({workload.pass_limit} passes, one CLEAR each). Batches of 64·2^k pages and the whole "
                    "ioctl are compared by CLEAR's CPU time and the vCPUs' lost time together, a second of one worth "
                    "as much as a second of the other. Costs are drawn from what is known of them: calibrated where a "
                    "fit exists, else from published ranges or assumptions. Selection: Kim and Nelson, "
                    f"{first.confidence:.0%} to be right if the best is better than all others by {first.share:.0%}; "
                    "regrets from replications that the selection did not see."
                ),
                Table(
                    found.table,
                    "The choice, pages a hold, and what is as good; then how much more three simple rules cost, "
                    f"percent (the whole ioctl, 64 pages, one huge page). {_guarantees(found.choices)} **Facts "
                    "alone**: no cost that decides was measured.",
                    digits=2,
                    headings={
                        "recommended_pages": "pages",
                        "as_good_from": "as good from",
                        "as_good_to": "to",
                        "whole_share": "whole, %",
                        "word_share": "64, %",
                        "block_share": "512, %",
                    },
                ),
                Chart(
                    figures.batch_costs(found.costs),
                    "Cost over batch, with 95 % intervals over what is not known of the costs, the indifference band, "
                    "and the closed form (its least moved to the simulation's least).",
                ),
                Chart(
                    figures.pareto(shown.table),
                    f"{name}: longest stall against CLEAR's CPU time; colour: pre-copy.",
                ),
                Chart(
                    figures.best_batch_map(found.map),
                    f"{MAP_ARCHITECTURE}: the best batch over vCPUs and pages that each touches a second, simulated "
                    "with all costs at their medians; grey where no batch is worse than another by 2 %. The closed "
                    f"form gives {_agreement(found.map)}.",
                ),
                Note(
                    "By this measure the 64 pages of seed 001 cost a few percent where faults take the lock, not "
                    "thousands: most of what the guest loses are faults that it takes whatever the batch, and they are "
                    "large beside CLEAR's CPU time. Who counts CLEAR's CPU time alone, or pre-copy, or the longest "
                    "stall, chooses differently: `simlib choose-batch --objective clear`, `precopy`, `stall`.",
                    "What the measure says, and what it does not",
                ),
            ],
        )
    ]


def _agreement(cells: pd.DataFrame) -> str:
    """How often the closed form's batch is near the simulated one, in words."""
    mine, law = (np.log2(cells[column].replace(0, 2**15)) for column in ("batch_pages", "closed_form_pages"))
    near = ((mine - law).abs() <= 2) & cells["matters"]
    return (
        f"a batch within a factor of four of it in {int(near.sum())} of the {int(cells['matters'].sum())} other cells"
    )


def _words(batches: pd.Series, chunk: pd.Series) -> list[str]:
    """Batches as text: the whole ioctl by that name."""
    return ["whole" if batch in (0, pages) else str(batch) for batch, pages in zip(batches, chunk, strict=True)]


def _guarantees(choices: Mapping[str, BatchChoice]) -> str:
    """Whether every selection has its guarantee, in words."""
    without = [name for name, choice in choices.items() if choice.exhausted]
    if not without:
        return "Every selection ended with its guarantee."
    return f"Without a guarantee, for want of replications: {', '.join(without)}."
