# SPDX-License-Identifier: BSD-3-Clause
"""A choice among batches: the pages that CLEAR processes per hold, simple rules, and the closed form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from simlib.analysis.choose.closed_form import ClosedForm, chunk_pages
from simlib.model.pagetable import WORD_PAGES, PageTable
from simlib.model.quantities import format_seconds

Choice = Any
"""`simlib.Choice`, which imports this module."""

RULES = {"never": "whole ioctl", "64": "every 64 pages", "2m": "one huge page"}
"""The simple rules that are compared with the recommended batch."""


def batches_below(chunk: int) -> list[int]:
    """Return the alternatives for an ioctl that covers `chunk` pages; 0: the whole ioctl.

    >>> batches_below(320)
    [64, 128, 256, 0]
    """
    doubled: list[int] = []
    while WORD_PAGES << len(doubled) < chunk:
        doubled.append(WORD_PAGES << len(doubled))
    return [*doubled, 0]


@dataclass(frozen=True)
class Batches:
    """A choice among batches, evaluated for its objective: `Choice.batches`.

    - `closed_form`: recommendation of the batching law at the medians of the costs.
    """

    choice: Choice
    closed_form: ClosedForm

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per batch.

        Its columns are batch_pages (0: the whole ioctl), effective_pages; strategy; objective_s with low_s, high_s;
        difference_s to the recommended batch with difference_low_s, difference_high_s (joint); selected, equivalent,
        indifference_s; allowed, stall_bound_s (see `Choice.table`); the mean of every objective as NAME_s; on_front.
        """
        choice, chunk = self.choice, chunk_pages(self.choice.scenario)
        pairs: pd.DataFrame = choice.pairs[choice.pairs["objective"] == choice.objective]
        pairs = pairs.drop(columns=["objective", "allowed"]).rename(columns={"value_s": "objective_s"})
        others: pd.DataFrame = choice.table.drop(columns=["strategy", "as_it_is", "knee", "line_of"])
        table = pd.concat([pairs.reset_index(drop=True), others], axis=1)
        table.insert(0, "batch_pages", batches_below(chunk))
        table.insert(1, "effective_pages", [batch or chunk for batch in table["batch_pages"]])
        return table

    @cached_property
    def regrets(self) -> pd.DataFrame:
        """Excess of the simple rules over the recommended batch, one row per rule.

        Its columns are rule, batch_pages, regret_s with low_s, high_s, and share, share_low, share_high: these three
        times divided by the recommended batch's objective.
        """
        table, batches = self.table, self.table["batch_pages"].tolist()
        block = PageTable(self.choice.scenario.guest.page_size).pages_per_block()
        least = float(table.loc[table["selected"], "objective_s"].iloc[0])
        rows = []
        for rule, pages in zip(RULES.values(), (0, WORD_PAGES, block), strict=True):
            index = batches.index(pages) if pages in batches else len(batches) - 1
            regret = table.loc[index, ["difference_s", "difference_low_s", "difference_high_s"]].to_numpy(dtype=float)
            shares = regret / least if least else regret * 0.0
            rows.append((rule, batches[index], *regret.tolist(), *shares.tolist()))
        columns = ["rule", "batch_pages", "regret_s", "low_s", "high_s", "share", "share_low", "share_high"]
        return pd.DataFrame(rows, columns=columns)

    @property
    def recommended(self) -> int:
        """Recommended pages per hold; 0: the whole ioctl."""
        return int(self.table.loc[self.table["selected"], "batch_pages"].iloc[0])

    @property
    def equivalent(self) -> tuple[int, int]:
        """Smallest and largest batch of the equivalent range around the recommended one, in effective pages."""
        best = self.table["selected"].tolist().index(True)
        worse = np.flatnonzero(~self.table["equivalent"].to_numpy(dtype=bool)).tolist()
        low = max((place for place in worse if place < best), default=-1) + 1
        high = min((place for place in worse if place > best), default=len(self.table)) - 1
        pages = self.table["effective_pages"]
        return int(pages.iloc[low]), int(pages.iloc[high])

    @property
    def matters(self) -> bool:
        """True if some batch is not equivalent to the recommended one."""
        return not self.table["equivalent"].all()

    @property
    def certain(self) -> bool:
        """True if no other batch is better by more than the indifference zone, at the confidence level."""
        return bool(self._answer["certain"])

    @property
    def law_confirmed(self) -> bool:
        """True if the batch of the closed form is in the equivalent range."""
        low, high = self.equivalent
        return low <= self.closed_form.batch <= high

    @property
    def _answer(self) -> pd.Series[Any]:
        answers: pd.DataFrame = self.choice.answers
        row: pd.Series[Any] = answers[answers["objective"] == self.choice.objective].iloc[0]
        return row

    @property
    def sentence(self) -> str:
        """The recommended batch, the range equivalent to it, and the longest stalls of this range."""
        low, high = self.equivalent
        stalls = self.table.loc[self.table["effective_pages"].between(low, high), "stall_s"]
        least, most = (format_seconds(float(value), 2) for value in (stalls.min(), stalls.max()))
        others = f"batches from {self.label(low)} to {self.label(high)} are equivalent"
        if low == high:
            others = "no other batch is equivalent"
        zone = format_seconds(float(self._answer["indifference_s"]))
        confidence = f"{self.choice.confidence * 100:.6g} % confidence"
        stall = least if least == most else f"{least} to {most}"
        best = f"recommended: {self.label(self.recommended)}" if self.matters else "recommended: any batch"
        return f"{best}; {others} (within {zone}, {confidence}); longest stall {stall}"

    @property
    def law(self) -> str:
        """The closed form's recommendation, its reason, and the result of the comparison with the simulation."""
        batch = self.closed_form.batch
        text = f"closed form (docs/theory.md, costs at their medians): {self.label(batch)}"
        if self.closed_form.case is None:
            text += ", because no fault takes the lock once huge pages are split"
        elif not math.isfinite(root := self.closed_form.square_root):
            text += ", because the weight of guest time is 0"
        elif batch / 2 <= root <= batch * 2:
            text += f" (square-root law: {root:.0f})"
        else:
            text += f" (not the square-root law's {root:.3g}, which is valid only if few vCPUs wait)"
        agrees = "agrees: this batch is" if self.law_confirmed else "disagrees: this batch is not"
        return f"{text}; the simulation {agrees} in the equivalent range"

    def label(self, batch: int) -> str:
        """Return the name of a batch in a sentence."""
        whole = batch == 0 or batch >= int(self.table["effective_pages"].iloc[-1])
        return "the whole ioctl" if whole else f"{batch} pages"

    def readable(self) -> pd.DataFrame:
        """Return all batches with formatted values."""
        table, times = self.table, self.table.filter(regex="_s$").map(format_seconds)
        return pd.DataFrame(
            {"batch": [str(batch) if batch else "whole" for batch in table["batch_pages"]],
             self.choice.objective: times["objective_s"], "interval": times["low_s"] + " … " + times["high_s"],
             "worse by": times["difference_s"],
             "at least … at most": times["difference_low_s"] + " … " + times["difference_high_s"],
             "equivalent": ["yes" if equivalent else "" if allowed else "too long" for equivalent, allowed in
                            zip(table["equivalent"], table["allowed"], strict=True)],
             "longest stall": times["stall_s"], "stall, 90 %": times["stall_bound_s"], "p99.9": times["p999_s"],
             "CLEAR": times["clear_s"], "guest time lost": times["guest_time_lost_s"], "pre-copy": times["precopy_s"],
             "front": table["on_front"].map({True: "yes", False: ""})}
        )  # fmt: skip

    def readable_regrets(self) -> pd.DataFrame:
        """Return the excess of the simple rules, and their longest stalls, with formatted values."""
        rules, times = self.regrets, self.regrets.filter(regex="_s$").map(format_seconds)
        stalls = self.table.set_index("batch_pages")["stall_s"]
        return pd.DataFrame(
            {"rule": rules["rule"], "batch": [self.label(batch) for batch in rules["batch_pages"]],
             "worse by": times["regret_s"], "at least": times["low_s"], "at most": times["high_s"],
             "share": (100 * rules["share"]).map("{:+.1f} %".format),
             "longest stall": [format_seconds(float(stalls[batch])) for batch in rules["batch_pages"]]}
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return the values that are not in the tables, as JSON types."""
        law = self.closed_form
        return {
            "sentence": self.sentence, "recommended": self.recommended, "equivalent": list(self.equivalent),
            "objective": self.choice.objective, "certain": self.certain,
            "closed_form": {"batch_pages": law.batch, "confirmed": self.law_confirmed, "sentence": self.law,
                            "square_root_pages": law.square_root if math.isfinite(law.square_root) else None},
        }  # fmt: skip


def comparison_of_batches(choices: Mapping[str, Choice]) -> pd.DataFrame:
    """Return the table of all architectures, one row per choice among batches; `choices` maps names to choices.

    Returns: architecture, chunk_pages, recommended_pages (0: the whole ioctl), equivalent_from and equivalent_to
    (effective pages; for the whole ioctl, the pages of the chunk), matters, stall_from_s and stall_to_s (longest stalls
    of these two batches), the regrets of the simple rules as regret_never_s, regret_64_s and regret_2m_s, and as
    shares, closed_form_pages, closed_form_confirmed, evidence, certain.
    """
    rows = []
    for name, choice in choices.items():
        batches = choice.batches
        low, high = batches.equivalent
        stalls = batches.table.set_index("effective_pages")["stall_s"]
        row = {"architecture": name, "chunk_pages": int(batches.table["effective_pages"].iloc[-1]),
               "recommended_pages": batches.recommended, "equivalent_from": low, "equivalent_to": high,
               "matters": batches.matters, "stall_from_s": float(stalls[low]),
               "stall_to_s": float(stalls[high])}  # fmt: skip
        for rule, regret in zip(RULES, batches.regrets.itertuples(), strict=True):
            row |= {f"regret_{rule}_s": regret.regret_s, f"regret_{rule}_share": regret.share}
        row |= {"closed_form_pages": batches.closed_form.batch, "closed_form_confirmed": batches.law_confirmed}
        rows.append(row | {"evidence": choice.evidence, "certain": batches.certain})
    return pd.DataFrame(rows)
