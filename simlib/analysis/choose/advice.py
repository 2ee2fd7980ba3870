# SPDX-License-Identifier: BSD-3-Clause
"""The result of a choice: tables, sentences, and output for terminals, files and notebooks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from simlib._lib.errors import InputError
from simlib.analysis.choose.batches import Batches
from simlib.analysis.choose.closed_form import ClosedForm
from simlib.analysis.choose.evidence import UNSTATED_HOST
from simlib.analysis.choose.headline import advice, joined, shared_line
from simlib.analysis.choose.objectives import OBJECTIVES
from simlib.analysis.choose.strategies import Strategy
from simlib.figures.results import Result, result_html, text_of
from simlib.model.quantities import format_duration, format_seconds, size_text
from simlib.model.scenario import Scenario


@dataclass(frozen=True, repr=False)
class Choice(Result):
    """The recommended strategy for each objective, its confidence and cost, and the costs worth measuring.

    - `scenario`, `weight`, `indifference`, `objective`: as given to `simlib.choose`.
    - `confidence`: joint confidence level of the intervals of the differences of all pairs of strategies, and so of
      `pairs` and of the regrets in `answers`, whichever strategy is selected. Each value's interval has this level.
    - `how`: ``sampled`` or ``whole`` migrations.
    - `runs`: replications of the selection, and of the check; printed values use all of them.
    - `table`: one row per strategy: strategy, as_it_is, allowed (within the limit on the longest stall), stall_bound_s
      (90 % upper bound of a migration's longest stall, with the scenario's CLEARs and with QEMU's), the mean of each
      objective as NAME_s, on_front (on the Pareto front of guest time lost, longest stall, CLEAR's CPU time and
      pre-copy), knee (the allowed strategy on the front that is nearest to the best of each).
    - `pairs`: one row per objective and strategy: value_s with low_s and high_s; difference_s to the selected strategy
      with its joint interval, clipped at minus the selected one's value; selected, allowed, equivalent;
      indifference_s, the width of the indifference zone.
    - `answers`: one row per objective: recommended, value_s with low_s and high_s, regret_at_most_s (upper bound of
      another strategy's advantage), indifference_s, certain (no other is better by more than the zone),
      all_equivalent, equivalent.
    - `budgets`: one row per limit on the longest stall: stall_budget_s, recommended, stall_bound_s, cost_s, share_more
      (of the cost without a limit).
    - `information`: one row per objective and cost: saving (s, mean, if the cost were known), indifference_s, matters
      (the saving exceeds half of the zone, and a saving by chance), switches_to.
    - `costs`: one row per cost: cost, evidence (calibrated, given, prior), value, low, high, unit, source.
    - `evidence`: ``calibrated``, ``partly calibrated: faults only``, ``partly calibrated``, ``facts alone``, ``costs
      given by hand``, or ``partly given by hand``.
    - `grounds`: `evidence` in a sentence: the calibrated costs, their data, and the origin of the others.
    - `flags`: assumptions and limits that affect the result.
    - `closed_form`: for a choice among batches (`simlib.choose_batch`): recommendation of the batching law.
    """

    scenario: Scenario
    strategies: tuple[Strategy, ...]
    weight: float
    indifference: float
    confidence: float
    seed: int
    how: str
    runs: tuple[int, int]
    table: pd.DataFrame
    pairs: pd.DataFrame
    answers: pd.DataFrame
    budgets: pd.DataFrame
    information: pd.DataFrame
    costs: pd.DataFrame
    evidence: str
    grounds: str
    flags: tuple[str, ...]
    objective: str = "cost"
    closed_form: ClosedForm | None = None

    FIGURES: ClassVar[Mapping[str, Callable[[Any], pd.DataFrame]]] = {
        "batch_costs": lambda choice: choice.batches.table.assign(
            architecture=choice.scenario.policy.architecture,
            best=choice.batches.table["selected"],
            evidence=choice.evidence_label,
        ),
        "pareto": lambda choice: choice.table if choice.closed_form is None else choice.batches.table.assign(
            strategy=choice.batches.table["batch_pages"].map(choice.batches.label)
        ),
    }  # fmt: skip

    def figures(self) -> tuple[str, ...]:
        """Names of the available figures; `plot` draws the first by default."""
        return ("pareto",) if self.closed_form is None else tuple(self.FIGURES)

    @cached_property
    def batches(self) -> Batches:
        """The batches of `simlib.choose_batch`, evaluated for `objective`.

        Raises `InputError` if the choice is not among batches.
        """
        if self.closed_form is None:
            raise InputError("choice.batches", "none", "the choice is not among batches", "use simlib.choose_batch")
        return Batches(self, self.closed_form)

    def recommended(self, objective: str = "") -> str:
        """Return the strategy that is recommended for an objective; by default for `Choice.objective`."""
        row = self.answers["objective"] == (objective or self.objective)
        return str(self.answers.loc[row, "recommended"].iloc[0])

    @property
    def knee(self) -> str:
        """The strategy that is nearest to the best value of every objective of the Pareto front."""
        return str(self.table.loc[self.table["knee"], "strategy"].iloc[0])

    @property
    def evidence_label(self) -> str:
        """`evidence` for a narrow column, with a remark if the hardware of the calibration's host is unknown."""
        return self.evidence + ", host not stated" * (UNSTATED_HOST in self.grounds)

    @property
    def guarantee(self) -> str:
        """The joint confidence statement, in words."""
        count = len(self.pairs) - len(self.answers)
        return (
            f"with a joint confidence of {self.confidence * 100:.6g} %, all {count} differences lie within their "
            "intervals, whichever strategy is selected (paired t, Bonferroni over pairs, objectives and looks)"
        )

    @property
    def headline(self) -> str:
        """The recommendation, those for other objectives, and the confidence, in words."""
        sentences = self.advice()
        labels = [label for label in ("Other goals", "How sure") if label in sentences]
        return ". ".join([sentences[""], *(f"{label}: {sentences[label]}" for label in labels)])

    def advice(self, objective: str = "") -> dict[str, str]:
        """Return the recommendation, its settings, confidence and reasons, as a dict from label to sentence.

        - `objective`: objective to optimise; by default `Choice.objective`.
        """
        return advice(self, objective or self.objective)

    @property
    def nothing_to_do(self) -> bool:
        """True if every allowed strategy is equivalent for every objective, and every answer is certain."""
        return bool(self.answers[["all_equivalent", "certain"]].astype(bool).all(axis=None))

    @property
    def guest(self) -> str:
        """The guest in words."""
        guest, workload = self.scenario.guest, self.scenario.workload
        memory = size_text(guest.pages * guest.page_size)
        chunk = size_text(workload.clear_chunk) if workload.clear_chunk else memory
        return (
            f"{self.scenario.policy.architecture}, {guest.vcpus} vCPU{'s' * (guest.vcpus > 1)}, {memory} "
            f"({guest.backing}), CLEARs of {chunk}; each vCPU accesses another page every "
            f"{format_duration(workload.access_interval)} ({workload.access}); the guest writes "
            f"{workload.write_percent} % of the pages"
        )

    def readable_answers(self) -> pd.DataFrame:
        """Return the recommendation for each objective, its values and the equivalent strategies, formatted."""
        rows = []
        table = self.table.set_index("strategy")
        for answer in self.answers.to_dict("records"):
            strategy = table.loc[answer["recommended"]]
            name = answer["recommended"] + " (current)" * bool(strategy["as_it_is"])
            rows.append(
                {"objective": OBJECTIVES[answer["objective"]].title,
                 "recommended": "any" if answer["all_equivalent"] else name,
                 "value": format_seconds(answer["value_s"]),
                 "regret <=": format_seconds(answer["regret_at_most_s"]) if answer["regret_at_most_s"] else "",
                 **{OBJECTIVES[column].short: format_seconds(strategy[f"{column}_s"])
                    for column in ("stall", "guest_time_lost", "clear")},
                 "equivalent (stall)": self._equivalent(answer)}
            )  # fmt: skip
        return pd.DataFrame(rows)

    def _equivalent(self, answer: Mapping[Any, Any]) -> str:
        """Return the strategies that are equivalent to the recommended one, and the range of their longest stalls."""
        names = [name for name in answer["equivalent"].split("; ") if name]
        if not names:
            return ""
        stalls = self.table.loc[self.table["strategy"].isin(names), "stall_s"]
        low, high = format_seconds(float(stalls.min()), 2), format_seconds(float(stalls.max()), 2)
        text = ", ".join(names) if len(names) <= 2 else f"{names[0]}, {len(names) - 1} more"
        text = "all" if answer["all_equivalent"] else text
        return f"{text} ({low if low == high else f'{low} to {high}'})"

    def readable(self, main: str = "") -> pd.DataFrame:
        """Return all strategies with formatted values; those equal within the indifference zones share a row.

        - `main`: objective that determines the order and the columns; by default the given order, and all columns.
        """
        table, marks, columns = self.table, {"as_it_is": "current", "knee": "knee"}, list(OBJECTIVES)
        lines = table[table["strategy"] == table["line_of"]]
        if main:
            marks = {"recommended": "recommended", "as_it_is": "current"}
            table = table.assign(recommended=table["strategy"] == self.recommended(main))
            unmarked = [~table.groupby("line_of")[key].any()[lines["line_of"]] for key in marks]
            lines = lines.iloc[np.lexsort([lines[f"{main}_s"], *unmarked[::-1]])]
            equal = self.answers.loc[self.answers["all_equivalent"].astype(bool), "objective"]
            others = [name for name in ("guest_time_lost", "clear", "precopy") if name not in {main, *equal}]
            columns = [main, "stall", *others]
        cells: dict[str, list[str]] = {"strategy": []}
        for line in lines.to_dict("records"):
            members = table[table["line_of"] == line["line_of"]]
            words = [word for key, word in marks.items() if members[key].any()]
            words += ["stalls too long"] * (not line["allowed"])
            others = [name for name in members["strategy"] if name != line["line_of"]]
            cells["strategy"].append(shared_line(line["line_of"], others) + (f" ({', '.join(words)})" if words else ""))
        for name in dict.fromkeys(columns):
            cells[OBJECTIVES[name].short] = lines[f"{name}_s"].map(format_seconds).tolist()
            if name == "stall" and not main:
                cells["90 %"] = lines["stall_bound_s"].map(format_seconds).tolist()
        return pd.DataFrame(cells)

    @property
    def notes(self) -> list[str]:
        """Sentences below the table of strategies: shared rows, limits on the stall, and costs worth measuring."""
        notes = [f"Equal to {name} within indifference zones: {', '.join(rows['strategy'][rows['strategy'] != name])}"
                 for name, rows in self.table.groupby("line_of", sort=False) if len(rows) > 3]  # fmt: skip
        budgets, known = self.readable_budgets(), self.readable_information().drop_duplicates("cost").head(2)
        more = budgets["more"].map(lambda share: f" ({share} weighted cost)" if share else "")
        least = format_seconds(float(self.table.loc[self.table["allowed"], "stall_bound_s"].min()))
        names = budgets["recommended"] + np.where((budgets.index == 0) & (budgets["weighted cost"] == ""),
                                                  f" (lowest 90 % bound: {least})", "")  # fmt: skip
        notes.append(f"Recommended if no stall may exceed {'; '.join(budgets['no stall above'] + ': ' + names + more)}")
        rows = known.iloc[:, :5].itertuples(index=False, name=None)
        costs = [f"{cost} ({title}: {saving} less on average, with {other})" for title, cost, saving, _, other in rows]
        return [*notes, f"The answer could change if these costs were known: {joined(costs, 'and')}" if costs else
                "No single cost, if known, would change the answer"]  # fmt: skip

    def readable_budgets(self) -> pd.DataFrame:
        """Return formatted costs of limits on the longest stall, up to the first limit that costs nothing."""
        rows = []
        for row in self.budgets.to_dict("records"):
            cells = {"recommended": "none", "longest stall, 90 %": "", "weighted cost": "", "more": ""}
            if row["recommended"]:
                cells = {"recommended": row["recommended"],
                         "longest stall, 90 %": format_seconds(row["stall_bound_s"]),
                         "weighted cost": format_seconds(row["cost_s"]),
                         "more": f"{100 * row['share_more']:+.1f} %" * (abs(row["share_more"]) >= 5e-4)}  # fmt: skip
            rows.append({"no stall above": format_seconds(row["stall_budget_s"])} | cells)
            if row["recommended"] == self.recommended("cost"):
                break
        return pd.DataFrame(rows)

    def readable_costs(self) -> pd.DataFrame:
        """Return `costs` in nanoseconds instead of picoseconds."""
        costs = self.costs.copy()
        time, columns = costs["unit"] == "ps", ["value", "low", "high"]
        costs[columns] = costs[columns].where(~time, costs[columns] / 1000)
        return costs.assign(unit=costs["unit"].mask(time, "ns").replace("dimensionless", "ratio"))

    def readable_information(self) -> pd.DataFrame:
        """Return the costs worth measuring, formatted; savings are means over the distribution of the cost."""
        frame = self.information[self.information["matters"].astype(bool)]
        frame = frame.groupby("objective", sort=False).head(2)
        return pd.DataFrame(
            {"objective": [OBJECTIVES[name].title for name in frame["objective"]],
             "cost": frame["cost"].tolist(),
             "average saving if known": [format_seconds(value) for value in frame["saving"]],
             "indifference zone": [format_seconds(value) for value in frame["indifference_s"]],
             "by switching to": frame["switches_to"].tolist()}
        )  # fmt: skip

    def summary(self) -> str:
        """Return the recommendations, the guest, and the flags, as text."""
        if self.closed_form is not None:
            columns = ["batch_pages", "objective_s", "low_s", "high_s", "equivalent", "stall_s", "clear_s"]
            lines = [self.batches.sentence, self.batches.law, f"evidence: {self.grounds}", *self.flags]
            return "\n".join([*lines, text_of(self.batches.table[columns])])
        lines = [self.headline, self.guest, f"evidence: {self.grounds}; {self.guarantee}"]
        for answer in self.answers.to_dict("records"):
            title, value = OBJECTIVES[answer["objective"]].title, format_seconds(answer["value_s"])
            lines.append(f"{title}: {'any' if answer['all_equivalent'] else answer['recommended']} ({value})")
        return "\n".join([*lines, *self.flags, text_of(self.table)])

    def to_dict(self) -> dict[str, Any]:
        """Return all values for JSON; tables are lists of rows."""
        plain = {
            "headline": self.headline, "advice": self.advice(), "evidence": self.evidence, "grounds": self.grounds,
            "guarantee": self.guarantee, "flags": list(self.flags), "knee": self.knee, "weight": self.weight,
            "indifference_share": self.indifference, "confidence": self.confidence, "seed": self.seed,
            "simulated": self.how, "replications": list(self.runs), "scenario": self.scenario.to_toml(),
        }  # fmt: skip
        tables = self._all_files()
        if self.closed_form is not None:
            plain |= self.batches.to_dict()
            tables |= self.files()
        return plain | {
            name: json.loads(frame.to_json(orient="records", double_precision=15)) for name, frame in tables.items()
        }

    def files(self) -> dict[str, pd.DataFrame]:
        """Return the tables by name, the main one of a choice among batches first."""
        if self.closed_form is not None:
            return {"alternatives": self.batches.table, "regrets": self.batches.regrets, "costs": self.costs}
        return self._all_files()

    def _all_files(self) -> dict[str, pd.DataFrame]:
        return {"answers": self.answers, "strategies": self.table, "differences": self.pairs, "budgets": self.budgets,
                "information": self.information, "costs": self.costs}  # fmt: skip

    def _repr_html_(self) -> str:
        if self.closed_form is not None:
            return super()._repr_html_()
        what = f" ({self.how}), seed {self.seed}. {self.headline}. {self.guest}; evidence: {self.grounds}."
        tables = (self.readable_answers(), self.readable(), self.readable_budgets(), self.readable_information())
        return result_html("Simulated", what, (self.guarantee, *self.flags), *tables)


def comparison(choices: Mapping[str, Choice]) -> pd.DataFrame:
    """Return the table of all architectures, one row per choice and objective; `choices` maps names to choices.

    Returns: architecture, the columns of `Choice.answers`, the recommended strategy's stall_s, clear_s and
    guest_time_lost_s, evidence, grounds, knee.
    """
    parts = []
    for name, choice in choices.items():
        costs = choice.table.set_index("strategy")[["stall_s", "clear_s", "guest_time_lost_s"]]
        rows = choice.answers.join(costs, on="recommended")
        rows.insert(0, "architecture", name)
        parts.append(rows.assign(evidence=choice.evidence, grounds=choice.grounds, knee=choice.knee))
    return pd.concat(parts, ignore_index=True)
