# SPDX-License-Identifier: BSD-3-Clause
"""Over a thousand tables of made-up values: recommendation, table, sentences, budgets and bounds say the same.

Nothing is simulated. The values are as hard as they come: strategies that tie, that are 0 throughout or but for a few
replications, that differ by a billionth or by a factor of a million, with next to no noise and with far too much.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from simlib.analysis.choose import OBJECTIVES, Choice, choice, information
from simlib.analysis.choose.batch import among_batches, batches_below
from simlib.analysis.choose.closed_form import ClosedForm, chunk_pages
from simlib.analysis.choose.ranking import BUDGETS, Ranking, Terms
from simlib.analysis.choose.strategies import Strategy
from simlib.model.quantities import format_seconds, say_seconds
from simlib.model.scenario import Scenario

SCENARIO = Scenario.parse(
    {"guest": {"vcpus": 4, "memory": "4M", "backing": "4k"}, "workload": {"kind": "migration", "downtime": "0ps"}}
)
BATCHES = batches_below(chunk_pages(SCENARIO))
COSTS = pd.DataFrame(columns=["cost", "evidence", "value", "low", "high", "unit", "source"])


def column(random, n, count):
    """Values of all strategies for one objective."""
    scale = 10.0 ** random.integers(-7, 3)
    common = np.exp(random.choice([0.0, 1e-9, 0.05, 1.0]) * random.standard_normal((n, 1)))
    own = np.exp(random.choice([0.0, 1e-10, 1e-3, 0.05, 2.0]) * random.standard_normal((n, count)))
    levels = np.exp(random.choice([0.0, 1e-9, 0.002, 0.01, 0.1, 5.0]) * random.standard_normal(count))
    values = scale * common * own * levels
    for s in np.flatnonzero(random.random(count) < 0.25):
        values[:, s] = values[:, random.integers(count)]  # a tie
    if random.random() < 0.2:
        values[:, random.random(count) < 0.5] = 0.0
    if random.random() < 0.2:
        values[random.random((n, count)) < 0.9] = 0.0  # seldom, and then much
    return values


def made_up(seed, count=None):
    """A ranking of made-up values, and the logarithms of two costs, of which the first decides about some of them."""
    random = np.random.default_rng(seed)
    n, count = int(random.integers(3, 40)), count or int(random.integers(2, 9))
    simulated = np.stack([column(random, n, count) for _ in OBJECTIVES], axis=-1)
    logs = {"decides": np.log(simulated[:, 0, 0] + 1e-9), "has nothing to do with it": random.standard_normal(n)}
    changes = random.integers(1, 4, count)
    if random.random() < 0.8:
        changes[random.integers(count)] = 0
    strategies = tuple(Strategy(f"every-{64 << s}", int(changes[s])) for s in range(count))
    bounds = simulated[:, :, list(OBJECTIVES).index("stall")].max(axis=0) * random.uniform(0.8, 2)
    allowed = [s for s in range(count) if random.random() < 0.8] or [0]
    zone = float(random.choice([1e-6, 0.02, 0.3]))
    terms = Terms(1.0, zone, float(random.choice([0.8, 0.95])), None, seed)
    return Ranking(strategies, allowed, terms, simulated, bounds, 2), logs


def answered(ranking, logs=None):
    """The choice that is made of a ranking, with the value of information if there are logarithms."""
    terms = ranking.terms
    return Choice(
        SCENARIO, ranking.strategies, terms.weight, terms.indifference, terms.confidence, terms.seed, "whole", (1, 1),
        ranking.table, ranking.pairs, ranking.answers, ranking.budgets, choice._information(logs or {}, ranking), COSTS,
        "facts alone", "facts alone", (),
    )  # fmt: skip


def check_objective(found, name, changes):
    """What is taken for an objective is what its rows say is best, or as good with fewer changes."""
    rows = found.pairs[found.pairs["objective"] == name].set_index("strategy")
    answer = found.answers.set_index("objective").loc[name]
    take, zone = answer["take"], answer["indifference_s"]
    here = rows[rows["allowed"]]
    assert rows.index[rows["selected"]].tolist() == [take]
    assert rows.loc[take, "allowed"]
    assert rows.loc[take, "equivalent"]
    assert (rows["difference_low_s"] <= rows["difference_s"]).all()
    assert (rows["difference_s"] <= rows["difference_high_s"]).all()
    assert (rows["difference_low_s"] >= -answer["value_s"] - 1e-18).all()
    assert rows["low_s"].min() >= 0
    gap = rows["value_s"] - answer["value_s"]
    assert np.allclose(rows["difference_s"], gap, rtol=1e-9, atol=1e-12 * rows["value_s"].max())
    assert answer["regret_at_most_s"] == max(0.0, -here["difference_low_s"].min())
    assert answer["regret_at_most_s"] <= answer["value_s"]
    assert answer["certain"] == (answer["regret_at_most_s"] <= zone)
    least = here["value_s"].idxmin()
    assert here.loc[least, "equivalent"]
    if changes[least] <= changes[take]:
        assert here.loc[take, "value_s"] == here.loc[least, "value_s"]
    assert here.loc[take, "value_s"] <= here.loc[least, "value_s"] + zone
    better = here[here["difference_high_s"] < 0]
    assert better["equivalent"].all()
    assert (better["difference_low_s"] >= -zone).all()
    assert all(changes[one] > changes[take] for one in better.index)
    good = [one for one in here.index if one == take or here.loc[one, "difference_high_s"] <= zone]
    assert here.index[here["equivalent"]].tolist() == good
    assert [*filter(None, answer["equivalent"].split("; "))] == [one for one in good if one != take]
    assert answer["any_is_as_good"] == (len(good) == len(here))


def check_budgets(found, changes):
    """A budget takes what the rows for the CPU time in all say is best of what keeps to it."""
    table = found.table.set_index("strategy")
    assert found.budgets["stall_budget_s"].tolist() == list(BUDGETS)
    for row in found.budgets.to_dict("records"):
        within = table[table["allowed"] & (table["stall_bound_s"] <= row["stall_budget_s"])]
        assert (row["take"] == "") == within.empty
        if within.empty:
            continue
        assert row["take"] in within.index
        least = within["cost_s"].idxmin()
        assert row["cost_s"] == table.loc[row["take"], "cost_s"]
        assert row["cost_s"] <= within["cost_s"].min() * (1 + found.indifference)
        if changes[least] <= changes[row["take"]]:
            assert row["cost_s"] == within.loc[least, "cost_s"]
        if len(within) == table["allowed"].sum():
            assert row["take"] == found.take("cost")


def check_words(found):
    """What people read is what the tables say."""
    answers, pairs, headline = found.answers, found.pairs, found.headline
    allowed = pairs[pairs["allowed"]]
    for shown, answer in zip(found.readable_answers().to_dict("records"), answers.to_dict("records"), strict=True):
        assert (shown["take"] == "any") == answer["any_is_as_good"]
        assert shown["take"].removesuffix(" (as it is)") in ("any", answer["take"])
        assert shown["worse by <="] == (
            format_seconds(answer["regret_at_most_s"]) if answer["regret_at_most_s"] else ""
        )
    if found.nothing_to_do:
        assert answers["any_is_as_good"].all()
        assert answers["certain"].all()
        kept = (found.table["as_it_is"] & found.table["allowed"]).any()
        ways = r"of (\d+) ways that were simulated none changes anything by more than (\S+) %"
        said = re.match(rf"(Leave KVM as it is|Take any, such as) .*: {ways}", headline)
        assert said[1] == ("Leave KVM as it is" if kept else "Take any, such as")
        assert int(said[2]) == found.table["allowed"].sum()
        value = allowed["objective"].map(answers.set_index("objective")["value_s"])
        floor = allowed["objective"].map({name: one.floor for name, one in OBJECTIVES.items()})
        most = np.maximum(floor, float(said[3]) / 100 * value) * (1 + 1e-9)
        assert (allowed["difference_high_s"] <= most).all()
        assert (allowed["difference_low_s"] >= -most).all()
        return
    now = found.table.loc[found.table["as_it_is"] & found.table["allowed"], "strategy"].tolist()
    mattering = answers[~answers["any_is_as_good"]]
    assert all(take in headline for take in mattering["take"])
    check_stalls(found, found.advice()["Longest stall"], now)
    assert headline.startswith("Leave KVM as it is") == (found.take("cost") in now)
    assert headline.startswith("Best on average, if not for sure") == (
        not answers["certain"].iloc[0] and not answers["any_is_as_good"].iloc[0] and found.take("cost") not in now
    )
    advice = found.advice()
    assert next(iter(advice)) == ""
    assert ("To do so" in advice) == (found.take("cost") not in now)
    for title, certain in zip(
        answers["objective"].map(lambda name: OBJECTIVES[name].title), answers["certain"], strict=True
    ):
        assert (title in advice.get("How sure", "").partition("except")[2]) == (not certain)


def check_stalls(found, said, now):
    """The line on the longest stall names what is taken for it, unless that is what is now, or as good as it."""
    answer, table = found.answers.set_index("objective").loc["stall"], found.table.set_index("strategy")
    stays = bool(now) and (answer["take"] in now or answer["any_is_as_good"])
    assert ("nothing simulated" in said) == stays
    assert stays or f"shortest with {answer['take']}, {say_seconds(answer['value_s'])} (" in said
    assert (" as it is (in 90 % of migrations at most " in said) == table["as_it_is"].any()


def check_lines(found):
    """Each strategy is on one line, with others from which it differs by no more than does not matter."""
    table = found.table.set_index("strategy")
    assert len(found.readable()) == table["line_of"].nunique()
    for name, row in table.iterrows():
        first = table.loc[row["line_of"]]
        assert first["line_of"] == row["line_of"]
        assert first["allowed"] == row["allowed"]
        for one in OBJECTIVES.values():
            gap = abs(row[f"{one.name}_s"] - first[f"{one.name}_s"])
            assert gap <= max(found.indifference * first[f"{one.name}_s"], one.floor) * (1 + 1e-9), name
    assert table.index[table["knee"]].tolist() == [found.knee]
    assert table.loc[found.knee, "allowed"]


def what_comes_up(found):
    """What of the things that are checked occurs."""
    pairs, answers = found.pairs, found.answers
    better = pairs["difference_high_s"] < 0
    return {
        "a tie": (pairs.loc[~pairs["selected"], "difference_s"] == 0).any(),
        "nothing at all": (answers["value_s"] == 0).any(),
        "better, but as good": (better & pairs["allowed"]).any(),
        "better, but left out": (better & ~pairs["allowed"]).any(),
        "an answer that is not certain": not answers["certain"].all(),
        "nothing to do": found.nothing_to_do,
        "as it is": found.headline.startswith("Leave KVM as it is"),
        "a line that is shared": found.table["line_of"].duplicated().any(),
        "worth knowing": found.information["matters"].any(),
    }


@pytest.mark.parametrize("part", [0, 1, *(pytest.param(part, marks=pytest.mark.study) for part in range(2, 10))])
def test_a_choice_agrees_with_its_table(part, monkeypatch):
    monkeypatch.setattr(information, "SHUFFLES", 3)
    seen = Counter()
    for seed in range(100 * part, 100 * part + 100):
        ranking, logs = made_up(seed)
        found = answered(ranking, None if seed % 4 else logs)
        changes = {one.name: one.changes for one in ranking.strategies}
        for name in OBJECTIVES:
            check_objective(found, name, changes)
        check_budgets(found, changes)
        check_words(found)
        check_lines(found)
        taken = found.answers.set_index("objective")
        for row in found.information.to_dict("records"):
            assert 0 <= row["saving"] <= taken.loc[row["objective"], "value_s"] * (1 + 1e-9)
            assert row["switches_to"] != taken.loc[row["objective"], "take"]
            assert row["switches_to"] == "" or found.table.set_index("strategy").loc[row["switches_to"], "allowed"]
        seen.update({what: int(there) for what, there in what_comes_up(found).items()})
    assert min(seen.values()) > 0, seen


def test_a_choice_of_a_batch_agrees_with_its_table():
    law = ClosedForm(None, 64, float("nan"))
    for seed in range(1000, 1100):
        ranking, _ = made_up(seed, len(BATCHES))
        choice_of_all = answered(ranking)
        changes = [one.changes for one in ranking.strategies]
        for objective in ("cost", "stall", "above10", "clear"):
            found = among_batches(choice_of_all, objective, BATCHES, law)
            rows, best = found.table, BATCHES.index(found.recommended)
            here = rows[rows["allowed"]]
            assert rows.loc[best, "allowed"]
            assert rows.loc[best, "equivalent"]
            assert (rows["difference_low_s"] >= -rows.loc[best, "objective_s"]).all()
            least = int(here["objective_s"].idxmin())
            assert changes[best] < changes[least] or rows.loc[best, "objective_s"] == rows.loc[least, "objective_s"]
            better = here.index[here["difference_high_s"] < 0]
            assert all(rows.loc[one, "equivalent"] and changes[one] > changes[best] for one in better)
            low, high = found.equivalent
            assert low <= rows.loc[best, "effective_pages"] <= high
            inside = rows[rows["effective_pages"].between(low, high)]
            assert inside["equivalent"].all()
            words = f"recommended {found._pages(found.recommended)}; "
            assert found.sentence.startswith("it does not matter; " if rows["equivalent"].all() else words)
            assert found.certain == ((here["difference_low_s"] >= -here["indifference_s"]).all())
