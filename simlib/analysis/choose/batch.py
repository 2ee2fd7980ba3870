# SPDX-License-Identifier: BSD-3-Clause
"""The choice of a batch: how many pages CLEAR should write-protect in one hold, if that is all that one may choose."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from simlib._lib import parallel
from simlib._lib.errors import InputError
from simlib.analysis.choose.advice import Choice
from simlib.analysis.choose.choice import check_scenario, chosen
from simlib.analysis.choose.closed_form import ClosedForm, chunk_pages, closed_form
from simlib.analysis.choose.objectives import objective as objective_named
from simlib.analysis.choose.ranking import Terms
from simlib.figures.results import Result, text_of
from simlib.measurements.fits import AnyFit
from simlib.model.pagetable import WORD_PAGES, PageTable
from simlib.model.quantities import format_seconds
from simlib.model.scenario import Scenario, as_scenario

RULES = {"never": "whole ioctl", "64": "every 64 pages", "2m": "one huge page"}
"""The simple rules that a choice is compared with."""

WHOLE = "whole-ioctl"


@dataclass(frozen=True, repr=False)
class BatchChoice(Result):
    """Which batch, among which, how sure, and what the simple rules would cost.

    - `choice`: the batches as strategies: all that was simulated.
    - `objective`: what was to be least, by its name in `simlib.analysis.choose.objectives.OBJECTIVES`.
    - `table`: one row a batch: batch_pages (0: the whole ioctl), effective_pages; objective_s with low_s, high_s;
      difference_s to the recommended one with difference_low_s, difference_high_s (simultaneous); equivalent; allowed;
      stall_bound_s (as `Choice.table` has it); then the mean of every objective as NAME_s; on_front.
    - `regrets`: one row a simple rule: rule, batch_pages, regret_s with low_s, high_s, and the same as shares of the
      recommended batch's objective.
    - `closed_form`: what the batching law recommends at the medians of the costs.
    """

    choice: Choice
    objective: str
    table: pd.DataFrame
    regrets: pd.DataFrame
    closed_form: ClosedForm

    FIGURES: ClassVar[Mapping[str, Callable[[Any], pd.DataFrame]]] = {
        "batch_costs": lambda choice: choice.table.assign(
            architecture=choice.scenario.policy.architecture,
            best=choice.table["selected"],
            evidence=choice.choice.evidence_shown,
        ),
        "pareto": lambda choice: choice.table.assign(strategy=choice.table["batch_pages"].map(choice._pages)),
    }

    @property
    def scenario(self) -> Scenario:
        """As it was asked."""
        return self.choice.scenario

    @property
    def recommended(self) -> int:
        """Pages of a hold; 0: the whole ioctl."""
        return int(self.table.loc[self.table["selected"], "batch_pages"].iloc[0])

    @property
    def evidence(self) -> str:
        """How far the costs that decide were calibrated."""
        return self.choice.evidence

    @property
    def grounds(self) -> str:
        """The sentence behind that."""
        return self.choice.grounds

    @property
    def flags(self) -> tuple[str, ...]:
        """What to know before believing the result."""
        return self.choice.flags

    @property
    def costs(self) -> pd.DataFrame:
        """One row a cost, as `Choice.costs`."""
        return self.choice.costs

    @property
    def certain(self) -> bool:
        """Whether no other batch is better by the indifference zone, with the stated confidence."""
        return bool(self._answer["certain"])

    @property
    def _answer(self) -> pd.Series[Any]:
        answers = self.choice.answers
        return answers[answers["objective"] == self.objective].iloc[0]

    def summary(self) -> str:
        """The recommendation, the closed form's, and what each batch costs."""
        columns = ["batch_pages", "objective_s", "low_s", "high_s", "equivalent", "stall_s", "clear_s"]
        lines = [self.sentence, self.law, f"evidence: {self.grounds}", *self.flags]
        return "\n".join([*lines, text_of(self.table[columns])])

    def readable(self) -> pd.DataFrame:
        """Every batch, for people to read."""
        table, times = self.table, self.table.filter(regex="_s$").map(format_seconds)
        return pd.DataFrame(
            {"pages a hold": [str(batch) if batch else "whole" for batch in table["batch_pages"]],
             self.objective: times["objective_s"], "interval": times["low_s"] + " … " + times["high_s"],
             "worse by": times["difference_s"],
             "at least … at most": times["difference_low_s"] + " … " + times["difference_high_s"],
             "as good": ["yes" if good else "" if there else "too long" for good, there in
                         zip(table["equivalent"], table["allowed"], strict=True)],
             "longest stall": times["stall_s"], "stall, 90 %": times["stall_bound_s"], "p99.9": times["p999_s"],
             "CLEAR": times["clear_s"], "guest time lost": times["guest_time_lost_s"], "pre-copy": times["precopy_s"],
             "front": table["on_front"].map({True: "yes", False: ""})}
        )  # fmt: skip

    def readable_regrets(self) -> pd.DataFrame:
        """What the simple rules cost more, each with its longest stall, for people to read."""
        rules, times = self.regrets, self.regrets.filter(regex="_s$").map(format_seconds)
        stalls = self.table.set_index("batch_pages")["stall_s"]
        return pd.DataFrame(
            {"rule": rules["rule"], "pages a hold": [self._pages(batch) for batch in rules["batch_pages"]],
             "worse by": times["regret_s"], "at least": times["low_s"], "at most": times["high_s"],
             "share": rules["share"].map("{:+.1%}".format),
             "longest stall": [format_seconds(float(stalls[batch])) for batch in rules["batch_pages"]]}
        )  # fmt: skip

    @property
    def equivalent(self) -> tuple[int, int]:
        """The least and the largest batch around the recommended one that are as good, effective pages."""
        best = self.table["selected"].tolist().index(True)
        worse = np.flatnonzero(~self.table["equivalent"].to_numpy(dtype=bool)).tolist()
        low = max((place for place in worse if place < best), default=-1) + 1
        high = min((place for place in worse if place > best), default=len(self.table)) - 1
        pages = self.table["effective_pages"]
        return int(pages.iloc[low]), int(pages.iloc[high])

    @property
    def matters(self) -> bool:
        """Whether some batch was not found as good as the recommended one."""
        return not self.table["equivalent"].all()

    @property
    def sentence(self) -> str:
        """Which batches are as good as the recommended one, and their longest stalls."""
        low, high = self.equivalent
        stalls = self.table.loc[self.table["effective_pages"].between(low, high), "stall_s"]
        least, most = (format_seconds(float(value), 2) for value in (stalls.min(), stalls.max()))
        good = f"any batch from {self._pages(low)} to {self._pages(high)} is as good"
        if low == high:
            good = "no other batch was found as good"
        zone, sure = format_seconds(float(self._answer["indifference_s"])), f"{self.choice.confidence * 100:.6g} %"
        stall = least if least == most else f"{least} to {most}"
        best = f"recommended {self._pages(self.recommended)}" if self.matters else "it does not matter"
        return f"{best}; {good} (within {zone} with {sure}); longest stall {stall}"

    @property
    def law_confirmed(self) -> bool:
        """Whether what the closed form recommends is among the batches that are as good."""
        low, high = self.equivalent
        return low <= self.closed_form.batch <= high

    @property
    def law(self) -> str:
        """What the closed form recommends, why, and whether simulation agrees."""
        batch = self.closed_form.batch
        said = f"closed form (docs/theory.md, costs at their medians): {self._pages(batch)}"
        if self.closed_form.case is None:
            said += ", since no fault takes the lock once blocks are split"
        elif not math.isfinite(root := self.closed_form.square_root):
            said += ", since the guest's time is worth nothing"
        elif batch / 2 <= root <= batch * 2:
            said += f" (square-root law: {root:.0f})"
        else:
            said += f" (not the square-root law's {root:.3g}, which holds where few vCPUs wait)"
        agrees = "agrees: it is" if self.law_confirmed else "disagrees: it is not"
        return f"{said}; simulation {agrees} among the batches that are as good"

    def _pages(self, batch: int) -> str:
        whole = batch == 0 or batch >= int(self.table["effective_pages"].iloc[-1])
        return "the whole ioctl" if whole else f"{batch} pages"

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON has it; tables are lists of rows."""
        law = self.closed_form
        plain = {
            "sentence": self.sentence, "recommended": self.recommended, "equivalent": list(self.equivalent),
            "objective": self.objective, "certain": self.certain, "advice": self.choice.advice(self.objective),
            "closed_form": {"batch_pages": law.batch, "confirmed": self.law_confirmed, "sentence": self.law,
                            "square_root_pages": law.square_root if math.isfinite(law.square_root) else None},
        }  # fmt: skip
        tables = {k: json.loads(f.to_json(orient="records", double_precision=15)) for k, f in self.files().items()}
        return self.choice.to_dict() | plain | tables

    def files(self) -> dict[str, pd.DataFrame]:
        """Its tables by name."""
        return {"alternatives": self.table, "regrets": self.regrets, "costs": self.costs}


def choose_batch(
    scenario: Scenario | str | Path,
    *,
    fit: AnyFit | None = None,
    objective: str = "cost",
    weight: float = 1.0,
    indifference: float = 0.02,
    confidence: float = 0.95,
    max_stall_s: float | None = None,
    seed: int = 1,
    announce: Callable[[str], None] | None = None,
    progress: parallel.Progress | None = None,
) -> BatchChoice:
    """Choose among batches of 64·2^k pages and the whole ioctl, over what is not known of the costs.

    Raises `InputError` if the scenario is no migration or leaves no batch to choose, an argument breaks its rule, or no
    batch keeps to `max_stall_s`.

    - `scenario`: a migration, without variants, or its file. Which batch its policy has is of no importance.
    - `objective`: what is to be least: a name of `simlib.analysis.choose.objectives.OBJECTIVES`.
    - `fit`, `weight`, `indifference`, `confidence`, `max_stall_s`, `seed`, `announce`, `progress`: see `simlib.choose`.

    >>> s = Scenario.parse({"guest": {"vcpus": 2, "memory": "8M"}, "policy": {"architecture": "x86-tdp"},
    ...                     "workload": {"kind": "migration", "pass_limit": 1, "clear_chunk": "1M",
    ...                                  "warm_up": "10us", "downtime": "0ps"}})
    >>> found = choose_batch(s)
    >>> found.table["effective_pages"].tolist(), found.evidence
    ([64, 128, 256], 'facts alone')
    >>> found.sentence
    'it does not matter; any batch from 64 pages to the whole ioctl is as good (within ... with 95 %); longest ...'
    """
    scenario, terms = as_scenario(scenario), Terms(weight, indifference, confidence, max_stall_s, seed)
    check_scenario(scenario)
    wanted = objective_named(objective)
    chunk = chunk_pages(scenario)
    batches = batches_below(chunk)
    names = [f"every-{batch}" if batch else WHOLE for batch in batches]
    if len(batches) < 2:
        raise InputError(
            "workload.clear_chunk", scenario.workload.clear_chunk or "all of the memory", "one CLEAR covers 64 pages: "
            "there is no batch to choose", "take a larger chunk, or more memory",
        )  # fmt: skip
    choice = chosen(scenario, names, fit, terms, announce, progress)
    return among_batches(choice, wanted.name, batches, closed_form(_at_medians(choice), wanted.name, weight))


def among_batches(choice: Choice, objective: str, batches: list[int], law: ClosedForm) -> BatchChoice:
    """What a choice among these batches says of one objective."""
    chunk = chunk_pages(choice.scenario)
    mine = choice.pairs[choice.pairs["objective"] == objective].drop(columns=["objective", "allowed"])
    mine = mine.rename(columns={"value_s": "objective_s"}).reset_index(drop=True)
    table = pd.concat([mine, choice.table.drop(columns=["strategy", "as_it_is", "knee", "line_of"])], axis=1)
    table.insert(0, "batch_pages", batches)
    table.insert(1, "effective_pages", [batch or chunk for batch in batches])
    return BatchChoice(choice, objective, table, _regrets(choice.scenario, batches, table), law)


def batches_below(chunk: int) -> list[int]:
    """The alternatives of an ioctl of so many pages, 0: all of it."""
    doubled: list[int] = []
    while WORD_PAGES << len(doubled) < chunk:
        doubled.append(WORD_PAGES << len(doubled))
    return [*doubled, 0]


def _regrets(scenario: Scenario, batches: list[int], table: pd.DataFrame) -> pd.DataFrame:
    """What three simple rules cost more than the recommended batch."""
    block = PageTable(scenario.guest.page_size).pages_per_block()
    least = float(table.loc[table["selected"], "objective_s"].iloc[0])
    rows = []
    for rule, pages in zip(RULES.values(), (0, WORD_PAGES, block), strict=True):
        index = batches.index(pages) if pages in batches else len(batches) - 1
        regret = table.loc[index, ["difference_s", "difference_low_s", "difference_high_s"]].to_numpy(dtype=float)
        shares = regret / least if least else regret * 0.0
        rows.append((rule, batches[index], *regret.tolist(), *shares.tolist()))
    columns = ["rule", "batch_pages", "regret_s", "low_s", "high_s", "share", "share_low", "share_high"]
    return pd.DataFrame(rows, columns=columns)


def _at_medians(choice: Choice) -> Scenario:
    medians = choice.costs["value"].astype(float)
    return choice.scenario.with_costs(**dict(zip(choice.costs["cost"], medians, strict=True)))


def comparison_of_batches(choices: Mapping[str, BatchChoice]) -> pd.DataFrame:
    """One row a choice, by its name: the table of all architectures.

    Returns: architecture, chunk_pages, recommended_pages (0: the whole ioctl), as_good_from, as_good_to (effective
    pages: the whole ioctl is that of the chunk), matters, the longest stalls of the least and the largest batch that is
    as good, the regrets of the simple rules as regret_never_s, regret_64_s and regret_2m_s, and as shares,
    closed_form_pages, closed_form_confirmed, evidence, certain.
    """
    rows = []
    for name, choice in choices.items():
        low, high = choice.equivalent
        stalls = choice.table.set_index("effective_pages")["stall_s"]
        row = {"architecture": name, "chunk_pages": int(choice.table["effective_pages"].iloc[-1]),
               "recommended_pages": choice.recommended, "as_good_from": low, "as_good_to": high, "matters":
               choice.matters, "stall_from_s": float(stalls[low]),
               "stall_to_s": float(stalls[high])}  # fmt: skip
        for rule, regret in zip(RULES, choice.regrets.itertuples(), strict=True):
            row |= {f"regret_{rule}_s": regret.regret_s, f"regret_{rule}_share": regret.share}
        row |= {"closed_form_pages": choice.closed_form.batch, "closed_form_confirmed": choice.law_confirmed}
        rows.append(row | {"evidence": choice.evidence, "certain": choice.certain})
    return pd.DataFrame(rows)
