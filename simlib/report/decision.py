# SPDX-License-Identifier: BSD-3-Clause
"""Which batch, for each architecture: the choice, its evidence, the closed form, and the map over vCPUs and writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from simlib import figures
from simlib.decision import BatchChoice, choose_batch, standard_architectures, standard_scenario
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
        """One row an architecture: recommended pages (0: the whole ioctl), what is as good, regrets, evidence."""
        rows = []
        for name, choice in self.choices.items():
            low, high = choice.as_good
            regrets = choice.regrets.set_index("rule")["share"] * 100
            rows.append(
                {"architecture": name, "recommended": choice.recommended, "as good from": low, "to": high}
                | {f"{rule}, %": float(regrets[rule]) for rule in regrets.index}
                | {"evidence": choice.evidence, "guarantee": not choice.exhausted}
            )
        return pd.DataFrame(rows)

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


def study(seed: int = 1, progress: Callable[[str, float], None] | None = None) -> DecisionStudy:
    """Choose a batch for each architecture.

    Parameters
    ----------
    seed : int
    progress : callable, optional
        Called with (what, share done).
    """
    names = standard_architectures()
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
    shown = found.choices[MAP_ARCHITECTURE]
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
                    "The choice. `recommended`: pages a hold, 0 for the whole ioctl. Then how much more each simple "
                    "rule costs than the recommended batch, percent. *Facts alone*: no cost that decides was measured.",
                    digits=3,
                ),
                Chart(
                    figures.batch_costs(found.costs),
                    "Cost over batch, with 95 % intervals over what is not known of the costs, the indifference band, "
                    "and the closed form (its least moved to the simulation's least).",
                ),
                Chart(
                    figures.pareto(shown.table),
                    f"{MAP_ARCHITECTURE}: longest stall against CLEAR's CPU time; colour: pre-copy.",
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
