# SPDX-License-Identifier: BSD-3-Clause
"""What a choice says: its result, its evidence, and both in words."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from simlib.analysis.choose.evidence import UNSTATED_HOST
from simlib.analysis.choose.headline import advice, headline, joined, nothing_matters, shared_line
from simlib.analysis.choose.objectives import OBJECTIVES
from simlib.analysis.choose.strategies import Strategy
from simlib.figures.results import Result, result_html, text_of
from simlib.model.quantities import format_duration, format_seconds, say_size
from simlib.model.scenario import Scenario

_MAIN = ("guest_time_lost", "clear", "precopy")
"""Objectives for which a terminal has room beside the longest stall; a file has all."""


@dataclass(frozen=True, repr=False)
class Choice(Result):
    """Which strategy for which objective, how sure, what it costs, and what would change the answer.

    - `scenario`: as it was asked.
    - `weight`: for the CPU time in all: what a second of a vCPU is worth.
    - `indifference`: share of an objective's best value below which differences do not matter.
    - `confidence`: probability that all intervals of differences hold together, those of all pairs of strategies: so
      `pairs`, and the regrets of `answers`, whatever was selected. The intervals of values hold with this probability
      each.
    - `how`: ``sampled`` or ``whole``: what was simulated of each migration.
    - `runs`: replications of the selection, and of the check; what is printed rests on all of them.
    - `table`: one row a strategy: strategy, as_it_is, allowed (within the longest stall that was allowed),
      stall_bound_s (what a migration's longest stall stays below with 90 %, with the scenario's CLEARs and with
      QEMU's), the mean of each objective as NAME_s, on_front (no other strategy has less of guest time lost, longest
      stall, CLEAR's CPU time and pre-copy), knee (of those the one nearest to the best of each, of those that are
      allowed).
    - `pairs`: one row an objective and strategy: value_s with low_s and high_s; difference_s to the selected one with
      its simultaneous interval, of which nothing is below minus the selected one's value; selected, allowed,
      equivalent; indifference_s, the difference that does not matter.
    - `answers`: one row an objective: take, value_s with low_s and high_s, regret_at_most_s (by how much another
      strategy may be better at most), indifference_s, certain (no other is better by the zone), any_is_as_good,
      equivalent.
    - `budgets`: one row a longest stall: stall_budget_s, take, stall_bound_s, cost_s, share_more (than without a
      budget).
    - `information`: one row an objective and cost: saving (s, on average, if it were known), indifference_s (what does
      not matter), matters (more than half of that, and than chance would give), switches_to.
    - `costs`: one row a cost: cost, evidence (calibrated, given, prior), value, low, high, unit, source.
    - `evidence`: ``calibrated``, ``partly calibrated: faults only``, ``partly calibrated``, ``facts alone``, ``costs
      given by hand``, or ``partly given by hand``.
    - `grounds`: the sentence behind that: what was calibrated, on what, and where the rest comes from.
    - `flags`: what to know before believing the result.
    - `objective`: what counts most.
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

    FIGURES: ClassVar[Mapping[str, Callable[[Any], pd.DataFrame]]] = {"pareto": lambda choice: choice.table}

    def take(self, objective: str) -> str:
        """The strategy that was selected for an objective."""
        return str(self.answers.loc[self.answers["objective"] == objective, "take"].iloc[0])

    @property
    def knee(self) -> str:
        """The strategy that is nearest to the best in every respect."""
        return str(self.table.loc[self.table["knee"], "strategy"].iloc[0])

    @property
    def evidence_shown(self) -> str:
        """`evidence` for a narrow column, which does not say that a host is known that is not."""
        return self.evidence + ", host not stated" * (UNSTATED_HOST in self.grounds)

    @property
    def guarantee(self) -> str:
        """What is known with which probability, in words."""
        count = len(self.pairs) - len(self.answers)
        return (
            f"with {self.confidence * 100:.6g} % all {count} differences printed lie within their intervals, together, "
            "whatever was selected (paired t, Bonferroni over all pairs of strategies)"
        )

    @property
    def headline(self) -> str:
        """What to do for every objective, in words."""
        return headline(self)

    def advice(self, objective: str = "") -> dict[str, str]:
        """What to do where an objective counts most, how, how sure that is, and why: sentences by their labels."""
        return advice(self, objective or self.objective)

    @property
    def nothing_to_do(self) -> bool:
        """Whether every strategy that is allowed is as good for every objective, and none may be better."""
        return nothing_matters(self.answers)

    @property
    def guest(self) -> str:
        """The guest in words."""
        guest, work = self.scenario.guest, self.scenario.workload
        memory = say_size(guest.pages * guest.page_size)
        chunk = say_size(work.clear_chunk) if work.clear_chunk else memory
        return (
            f"{self.scenario.policy.architecture}, {guest.vcpus} vCPUs, {memory} ({guest.backing}), CLEARs of {chunk}; "
            f"each vCPU accesses another page every {format_duration(work.access_interval)} ({work.access}), "
            f"{work.write_percent} % of them written"
        )

    def readable_answers(self) -> pd.DataFrame:
        """What to take for which objective, and what it costs, for people to read."""
        rows = []
        table = self.table.set_index("strategy")
        for answer in self.answers.to_dict("records"):
            one = table.loc[answer["take"]]
            taken = answer["take"] + " (as it is)" * bool(one["as_it_is"])
            rows.append(
                {
                    "if you care most about": OBJECTIVES[answer["objective"]].title,
                    "take": "any" if answer["any_is_as_good"] else taken,
                    "it is": format_seconds(answer["value_s"]),
                    "worse by <=": format_seconds(answer["regret_at_most_s"]) if answer["regret_at_most_s"] else "",
                    **{
                        OBJECTIVES[name].short: format_seconds(one[f"{name}_s"])
                        for name in ("stall", "guest_time_lost", "clear")
                    },
                    "as good (stall)": self._as_good(answer),
                }
            )
        return pd.DataFrame(rows)

    def _as_good(self, answer: Mapping[Any, Any]) -> str:
        """What is as good, and its longest stalls beside it."""
        names = [name for name in answer["equivalent"].split("; ") if name]
        if not names:
            return ""
        stalls = self.table.loc[self.table["strategy"].isin(names), "stall_s"]
        least, most = format_seconds(float(stalls.min()), 2), format_seconds(float(stalls.max()), 2)
        shown = ", ".join(names) if len(names) <= 2 else f"{names[0]}, {len(names) - 1} more"
        shown = "all" if answer["any_is_as_good"] else shown
        return f"{shown} ({least if least == most else f'{least} to {most}'})"

    def readable(self, main: str = "") -> pd.DataFrame:
        """Every strategy, for people to read; those that nobody needs to tell apart share the line of the first.

        - `main`: the objective that counts most: what is taken for it first, and only columns that decide.
        """
        table, marks, shown = self.table, {"as_it_is": "as it is", "knee": "knee"}, list(OBJECTIVES)
        lines = table[table["strategy"] == table["line_of"]]
        if main:
            marks = {"taken": "recommended", "as_it_is": "as it is"}
            table = table.assign(taken=table["strategy"] == self.take(main))
            first = [~table.groupby("line_of")[key].any()[lines["line_of"]] for key in marks]
            lines = lines.iloc[np.lexsort([lines[f"{main}_s"], *first[::-1]])]
            alike = self.answers.loc[self.answers["any_is_as_good"].astype(bool), "objective"]
            shown = [main, "stall", *(name for name in _MAIN if name not in {main, *alike})]
        found: dict[str, list[str]] = {"strategy": []}
        for row in lines.to_dict("records"):
            others = table[table["line_of"] == row["line_of"]]
            words = [word for key, word in marks.items() if others[key].any()]
            words += ["stalls too long"] * (not row["allowed"])
            rest = [name for name in others["strategy"] if name != row["line_of"]]
            found["strategy"].append(shared_line(row["line_of"], rest) + (f" ({', '.join(words)})" if words else ""))
        for name in dict.fromkeys(shown):
            found[OBJECTIVES[name].short] = lines[f"{name}_s"].map(format_seconds).tolist()
            if name == "stall" and not main:
                found["90 %"] = lines["stall_bound_s"].map(format_seconds).tolist()
        return pd.DataFrame(found)

    @property
    def notes(self) -> list[str]:
        """What stands below the table of strategies: shared lines, budgets, and what would change the answer."""
        said = [f"Not told apart from {first}: {', '.join(rows['strategy'][rows['strategy'] != first])}"
                for first, rows in self.table.groupby("line_of", sort=False) if len(rows) > 3]  # fmt: skip
        budgets, known = self.readable_budgets(), self.readable_information().drop_duplicates("if one knew").head(2)
        more = budgets["more"].map(lambda share: f" ({share} CPU time in all)" if share else "")
        least = format_seconds(float(self.table.loc[self.table["allowed"], "stall_bound_s"].min()))
        budgets["take"] += np.where((budgets.index == 0) & (budgets["CPU time in all"] == ""),
                                    f" (90 % bound of the least: {least})", "")  # fmt: skip
        said.append(f"If no stall may exceed {'; '.join(budgets['no stall above'] + ': ' + budgets['take'] + more)}")
        rows = known.iloc[:, :5].itertuples(index=False, name=None)
        costs = [f"{cost} ({saved} of {title}, with {other})" for title, cost, saved, _, other in rows]
        return [*said, f"Would change the answer, if known: {joined(costs, 'and')}" if costs else
                "To know any one cost better would not change the answer"]  # fmt: skip

    def readable_budgets(self) -> pd.DataFrame:
        """What keeping the longest stall short costs, for people to read, up to the first that costs nothing more."""
        rows = []
        for row in self.budgets.to_dict("records"):
            found = {"take": "none keeps to it", "its longest stall, 90 %": "", "CPU time in all": "", "more": ""}
            if row["take"]:
                found = {"take": row["take"], "its longest stall, 90 %": format_seconds(row["stall_bound_s"]),
                         "CPU time in all": format_seconds(row["cost_s"]),
                         "more": f"{row['share_more']:+.1%}" * (abs(row["share_more"]) >= 5e-4)}  # fmt: skip
            rows.append({"no stall above": format_seconds(row["stall_budget_s"])} | found)
            if row["take"] == self.take("cost"):
                break
        return pd.DataFrame(rows)

    def readable_costs(self) -> pd.DataFrame:
        """What the costs rest on, for people to read: no picoseconds."""
        found = self.costs.copy()
        time, ends = found["unit"] == "ps", ["value", "low", "high"]
        found[ends] = found[ends].where(~time, found[ends] / 1000)
        return found.assign(unit=found["unit"].mask(time, "ns").replace("dimensionless", "ratio"))

    def readable_information(self) -> pd.DataFrame:
        """What would change the answer, for people to read: savings are averages over all that the cost may be."""
        found = self.information[self.information["matters"].astype(bool)]
        found = found.groupby("objective", sort=False).head(2)
        return pd.DataFrame(
            {"for": [OBJECTIVES[name].title for name in found["objective"]],
             "if one knew": found["cost"].tolist(),
             "it would save on average": [format_seconds(value) for value in found["saving"]],
             "what does not matter": [format_seconds(value) for value in found["indifference_s"]],
             "by taking, where that is better": found["switches_to"].tolist()}
        )  # fmt: skip

    def summary(self) -> str:
        """The guest, the answers, and what to know of them."""
        lines = [self.headline, self.guest,
                 f"evidence: {self.grounds}; {self.guarantee}"]  # fmt: skip
        for answer in self.answers.to_dict("records"):
            title, value = OBJECTIVES[answer["objective"]].title, format_seconds(answer["value_s"])
            lines.append(f"{title}: {'any' if answer['any_is_as_good'] else answer['take']} ({value})")
        return "\n".join([*lines, *self.flags, text_of(self.table)])

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON has it; tables are lists of rows."""
        plain = {
            "headline": self.headline,
            "advice": self.advice(),
            "evidence": self.evidence,
            "grounds": self.grounds,
            "guarantee": self.guarantee,
            "flags": list(self.flags),
            "knee": self.knee,
            "weight": self.weight,
            "indifference_share": self.indifference,
            "confidence": self.confidence,
            "seed": self.seed,
            "simulated": self.how,
            "replications": list(self.runs),
            "scenario": self.scenario.to_toml(),
        }
        return plain | {
            k: json.loads(f.to_json(orient="records", double_precision=15)) for k, f in self.files().items()
        }

    def files(self) -> dict[str, pd.DataFrame]:
        """Its tables by name."""
        return {"answers": self.answers, "strategies": self.table, "differences": self.pairs, "budgets": self.budgets,
                "information": self.information, "costs": self.costs}  # fmt: skip

    def _repr_html_(self) -> str:
        what = f" ({self.how}), seed {self.seed}. {self.headline}. {self.guest}; evidence: {self.grounds}."
        tables = (self.readable_answers(), self.readable(), self.readable_budgets(), self.readable_information())
        return result_html("Simulated", what, (self.guarantee, *self.flags), *tables)


def comparison(choices: Mapping[str, Choice]) -> pd.DataFrame:
    """One row a choice and objective, by the choice's name: the table of all architectures.

    Returns: architecture, evidence, grounds, and the columns of `Choice.answers` with the taken strategy's stall_s,
    clear_s, guest_time_lost_s.
    """
    parts = []
    for name, choice in choices.items():
        costs = choice.table.set_index("strategy")[["stall_s", "clear_s", "guest_time_lost_s"]]
        found = choice.answers.join(costs, on="take")
        found.insert(0, "architecture", name)
        parts.append(found.assign(evidence=choice.evidence, grounds=choice.grounds, knee=choice.knee))
    return pd.concat(parts, ignore_index=True)
