# SPDX-License-Identifier: BSD-3-Clause
"""What a choice of a batch says: its result, its evidence, and both in words."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd

from simlib.decision.closed_form import ClosedForm
from simlib.model.quantities import format_duration
from simlib.model.scenario import Scenario
from simlib.results import Result, text_of

RULES = {"whole": "whole ioctl", "word": "every 64 pages", "block": "one huge page"}
"""The simple rules that a choice is compared with."""


@dataclass(frozen=True, repr=False)
class BatchChoice(Result):
    """Which batch, among which, how sure, and what the simple rules would cost.

    Attributes
    ----------
    scenario : Scenario
        As it was asked.
    objective : str
        What was to be least: ``cost``, ``stall``, ``clear`` or ``precopy``.
    weight : float
        For ``cost``: what a second of a vCPU is worth.
    zone : float
        Indifference zone, s: differences below do not matter.
    share : float
        The zone as a share of the best objective in the pilot.
    confidence : float
        Probability of a correct selection if the best is better by the zone; of the intervals too, all together.
    seed : int
    recommended : int
        Pages of a hold; 0: the whole ioctl.
    exhausted : bool
        Whether the limit of replications came first: then the selection has no guarantee.
    table : DataFrame
        One row an alternative. batch_pages (0: whole), effective_pages; objective_s with low_s, high_s;
        difference_s to the recommended one with difference_low_s, difference_high_s (simultaneous); as_good: all of
        that interval lies within the zone; allowed: within the longest stall that was allowed; replications that the
        selection gave it; stall_bound_s: the 90 % bound of a run's longest stall; then means: longest_stall_s,
        stall_p999_s, clear_cpu_time_s, precopy_duration_s, guest_throughput; on_front: no other alternative has less
        stall, less CPU time of CLEAR and a shorter pre-copy.
    regrets : DataFrame
        One row a simple rule: rule, batch_pages, regret_s with low_s, high_s, and the same as shares of the
        recommended batch's objective. From replications that the selection did not see.
    costs : DataFrame
        One row a cost: cost, evidence (calibrated, given, prior), value, low, high, unit, source.
    closed_form : ClosedForm
        What the batching law recommends at the mean costs.
    evidence : str
        ``calibrated``, ``partly calibrated: faults only``, ``partly calibrated``, ``facts alone``,
        ``costs given by hand``, or ``partly given by hand``.
    flags : tuple of str
        What to know before believing the result.
    """

    scenario: Scenario
    objective: str
    weight: float
    zone: float
    share: float
    confidence: float
    seed: int
    recommended: int
    exhausted: bool
    table: pd.DataFrame
    regrets: pd.DataFrame
    costs: pd.DataFrame
    closed_form: ClosedForm
    evidence: str
    flags: tuple[str, ...]

    FIGURES: ClassVar[Mapping[str, str]] = {"batch_costs": "_costs_by_batch", "pareto": "_alternatives"}

    def summary(self) -> str:
        """The recommendation, the closed form's, and what each batch costs."""
        columns = ["batch_pages", "objective_s", "low_s", "high_s", "as_good", "longest_stall_s", "clear_cpu_time_s"]
        lines = [self.sentence, self.law, f"evidence: {self.evidence}", *self.flags]
        return "\n".join([*lines, text_of(self.table[columns])])

    def _alternatives(self) -> pd.DataFrame:
        return self.table

    def _costs_by_batch(self) -> pd.DataFrame:
        best = self.table["batch_pages"] == self.recommended
        return self.table.assign(architecture=self.scenario.policy.architecture, best=best, evidence=self.evidence)

    @property
    def as_good(self) -> tuple[int, int]:
        """The least and the largest batch around the recommended one that are as good, effective pages."""
        good = self.table["as_good"].to_numpy(dtype=bool)
        low = high = self.table["batch_pages"].tolist().index(self.recommended)
        while low > 0 and good[low - 1]:
            low -= 1
        while high + 1 < len(good) and good[high + 1]:
            high += 1
        pages = self.table["effective_pages"]
        return int(pages.iloc[low]), int(pages.iloc[high])

    @property
    def matters(self) -> bool:
        """Whether some batch was not found as good as the recommended one."""
        return not self.table["as_good"].all()

    @property
    def sentence(self) -> str:
        """The recommendation."""
        zone = format_duration(float(f"{self.zone * 1e12:.3g}"))
        within = f"(within {zone} with {self.confidence:.0%})".replace("%", " %")
        low, high = self.as_good
        if not self.matters:
            text = f"it does not matter: any batch from {self._pages(low)} to {self._pages(high)} is as good {within}"
        elif low == high:
            text = f"recommended {self._pages(low)}; no other batch was found as good {within}"
        else:
            best = self._pages(self.recommended)
            text = (
                f"recommended {best}; any batch between {self._pages(low)} and {self._pages(high)} is as good {within}"
            )
        return text + ("; the selection has no guarantee: it ran out of replications" if self.exhausted else "")

    @property
    def law_confirmed(self) -> bool:
        """Whether what the closed form recommends is among the batches that are as good."""
        low, high = self.as_good
        return low <= self.closed_form.batch <= high

    @property
    def law(self) -> str:
        """What the closed form recommends, and whether simulation confirms it."""
        if self.closed_form.case is None:
            why = "no fault takes the lock once blocks are split"
        else:
            root = self.closed_form.square_root
            why = f"square-root law {root:.3g} pages" if math.isfinite(root) else "letting go gains nothing"
        verdict = "confirms" if self.law_confirmed else "corrects"
        return f"closed form: {self._pages(self.closed_form.batch)} ({why}); simulation {verdict} it"

    def _pages(self, batch: int) -> str:
        whole = batch == 0 or batch >= int(self.table["effective_pages"].iloc[-1])
        return "the whole ioctl" if whole else f"{batch} pages"

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON has it; tables are lists of rows."""
        law = self.closed_form
        plain = {
            "sentence": self.sentence, "recommended": self.recommended, "as_good": list(self.as_good),
            "evidence": self.evidence, "flags": list(self.flags), "objective": self.objective, "weight": self.weight,
            "zone_s": self.zone, "zone_share": self.share, "confidence": self.confidence,
            "guarantee": not self.exhausted, "seed": self.seed,
            "closed_form": {"batch_pages": law.batch, "confirmed": self.law_confirmed, "sentence": self.law,
                            "square_root_pages": law.square_root if math.isfinite(law.square_root) else None},
            "scenario": self.scenario.to_toml(),
        }  # fmt: skip
        frames = {"alternatives": self.table, "regrets": self.regrets, "costs": self.costs}
        tables = {k: json.loads(f.to_json(orient="records", double_precision=15)) for k, f in frames.items()}
        return plain | tables

    def _repr_html_(self) -> str:
        lines = [self.sentence, self.law, f"evidence: {self.evidence}", *self.flags]
        items = "".join(f"<li>{html.escape(line)}</li>" for line in lines[1:])
        tables = "".join(frame.to_html(index=False) for frame in (self.table, self.regrets, self.costs))
        return f"<p><b>Simulated</b>, seed {self.seed}. {html.escape(lines[0])}</p><ul>{items}</ul>{tables}"


def comparison(choices: Mapping[str, BatchChoice]) -> pd.DataFrame:
    """One row a choice, by its name: the table of all architectures.

    Returns
    -------
    DataFrame
        architecture, chunk_pages, recommended_pages (0: the whole ioctl), as_good_from, as_good_to (effective pages:
        the whole ioctl is that of the chunk), matters,
        the regrets of the simple rules whole, word and block as RULE_regret_s and RULE_share, closed_form_pages,
        closed_form_confirmed, evidence, guarantee.
    """
    rows = []
    for name, choice in choices.items():
        low, high = choice.as_good
        row = {"architecture": name, "chunk_pages": int(choice.table["effective_pages"].iloc[-1]),
               "recommended_pages": choice.recommended, "as_good_from": low, "as_good_to": high,
               "matters": choice.matters}  # fmt: skip
        for rule, regret in zip(RULES, choice.regrets.itertuples(), strict=True):
            row |= {f"{rule}_regret_s": regret.regret_s, f"{rule}_share": regret.share}
        row |= {"closed_form_pages": choice.closed_form.batch, "closed_form_confirmed": choice.law_confirmed}
        rows.append(row | {"evidence": choice.evidence, "guarantee": not choice.exhausted})
    return pd.DataFrame(rows)
