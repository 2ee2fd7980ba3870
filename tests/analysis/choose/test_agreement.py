# SPDX-License-Identifier: BSD-3-Clause
"""Over a thousand tables of random values: recommendation, table, sentences, budgets and bounds agree.

Nothing is simulated. The values include ties, strategies that are 0 in all or in most replications, differences of a
billionth and of a factor of a million, and very little and very much noise.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from choice_cases import choice_of

from simlib.analysis.choose import OBJECTIVES, information
from simlib.analysis.choose.batches import batches_below
from simlib.analysis.choose.closed_form import ClosedForm, chunk_pages
from simlib.analysis.choose.options import ChoiceOptions
from simlib.analysis.choose.ranking import BUDGETS, Ranking
from simlib.analysis.choose.strategies import Strategy
from simlib.model.quantities import format_seconds, seconds_text
from simlib.model.scenario import Scenario

SCENARIO = Scenario.parse(
    {"guest": {"vcpus": 4, "memory": "4M", "backing": "4k"}, "workload": {"kind": "migration", "downtime": "0ps"}}
)
BATCHES = batches_below(chunk_pages(SCENARIO))
COSTS = pd.DataFrame(columns=["cost", "evidence", "value", "low", "high", "unit", "source"])


def column(random, n, count):
    """Return values of all strategies for one objective."""
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
    """Return a ranking of random values, and the logarithms of two costs, of which the first affects some of them."""
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
    options = ChoiceOptions(indifference=zone, confidence=float(random.choice([0.8, 0.95])), seed=seed)
    return Ranking(strategies, allowed, options, simulated, bounds, 2), logs


def answered(ranking, logs=None):
    """Return the choice that follows from a ranking, with the value of information if there are logarithms."""
    return choice_of(ranking, SCENARIO, logs, costs=COSTS, evidence="facts alone", grounds="facts alone")


def check_objective(choice, name, changes):
    """The recommended strategy has the least mean, or is equivalent to that one with fewer changes."""
    rows = choice.pairs[choice.pairs["objective"] == name].set_index("strategy")
    answer = choice.answers.set_index("objective").loc[name]
    recommended, zone = answer["recommended"], answer["indifference_s"]
    here = rows[rows["allowed"]]
    assert rows.index[rows["selected"]].tolist() == [recommended]
    assert rows.loc[recommended, "allowed"]
    assert rows.loc[recommended, "equivalent"]
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
    if changes[least] <= changes[recommended]:
        assert here.loc[recommended, "value_s"] == here.loc[least, "value_s"]
    assert here.loc[recommended, "value_s"] <= here.loc[least, "value_s"] + zone
    better = here[here["difference_high_s"] < 0]
    assert better["equivalent"].all()
    assert (better["difference_low_s"] >= -zone).all()
    assert all(changes[name] > changes[recommended] for name in better.index)
    good = [name for name in here.index if name == recommended or here.loc[name, "difference_high_s"] <= zone]
    assert here.index[here["equivalent"]].tolist() == good
    assert [*filter(None, answer["equivalent"].split("; "))] == [name for name in good if name != recommended]
    assert answer["all_equivalent"] == (len(good) == len(here))


def check_budgets(choice, changes):
    """A budget's strategy has the lowest weighted cost of those that satisfy it, or is equivalent."""
    table = choice.table.set_index("strategy")
    assert choice.budgets["stall_budget_s"].tolist() == list(BUDGETS)
    for row in choice.budgets.to_dict("records"):
        within = table[table["allowed"] & (table["stall_bound_s"] <= row["stall_budget_s"])]
        assert (row["recommended"] == "") == within.empty
        if within.empty:
            continue
        assert row["recommended"] in within.index
        least = within["cost_s"].idxmin()
        assert row["cost_s"] == table.loc[row["recommended"], "cost_s"]
        assert row["cost_s"] <= within["cost_s"].min() * (1 + choice.indifference)
        if changes[least] <= changes[row["recommended"]]:
            assert row["cost_s"] == within.loc[least, "cost_s"]
        if len(within) == table["allowed"].sum():
            assert row["recommended"] == choice.recommended("cost")


def check_words(choice):
    """The sentences agree with the tables."""
    answers, pairs, headline = choice.answers, choice.pairs, choice.headline
    allowed = pairs[pairs["allowed"]]
    for row, answer in zip(choice.readable_answers().to_dict("records"), answers.to_dict("records"), strict=True):
        assert (row["recommended"] == "any") == answer["all_equivalent"]
        assert row["recommended"].removesuffix(" (current)") in ("any", answer["recommended"])
        assert row["regret <="] == (format_seconds(answer["regret_at_most_s"]) if answer["regret_at_most_s"] else "")
    if choice.nothing_to_do:
        assert answers["all_equivalent"].all()
        assert answers["certain"].all()
        kept = (choice.table["as_it_is"] & choice.table["allowed"]).any()
        none = r"(?:none of the (\d+)|no other) simulated strateg(?:ies|y)( within the stall limit)? changes any"
        words = re.match(
            rf"(Leave KVM as it is|Use any strategy, such as) .*: {none} objective by more than (\S+) %", headline
        )
        assert words[1] == ("Leave KVM as it is" if kept else "Use any strategy, such as")
        assert int(words[2] or 1) == choice.table["allowed"].sum()
        assert bool(words[3]) == (not choice.table["allowed"].all())
        value = allowed["objective"].map(answers.set_index("objective")["value_s"])
        floor = allowed["objective"].map({name: criterion.floor for name, criterion in OBJECTIVES.items()})
        most = np.maximum(floor, float(words[4]) / 100 * value) * (1 + 1e-9)
        assert (allowed["difference_high_s"] <= most).all()
        assert (allowed["difference_low_s"] >= -most).all()
        return
    current = choice.table.loc[choice.table["as_it_is"] & choice.table["allowed"], "strategy"].tolist()
    mattering = answers[~answers["all_equivalent"]]
    assert all(name in headline for name in mattering["recommended"])
    check_stalls(choice, choice.advice()["Longest stall"], current)
    stays = choice.recommended("cost") in current
    assert headline.startswith("Leave KVM as it is") == stays
    uncertain = not answers["certain"].iloc[0] and not answers["all_equivalent"].iloc[0]
    assert headline.startswith("Best on average, but not certain") == (uncertain and not stays)
    advice = choice.advice()
    assert next(iter(advice)) == ""
    assert ("To do so" in advice) == (choice.recommended("cost") not in current)
    for title, certain in zip(
        answers["objective"].map(lambda name: OBJECTIVES[name].title), answers["certain"], strict=True
    ):
        assert (title in advice.get("How sure", "").partition("except")[2]) == (not certain)


def check_stalls(choice, text, current):
    """The sentence on the longest stall names the best strategy, unless the scenario's own is equivalent to it."""
    answer, table = choice.answers.set_index("objective").loc["stall"], choice.table.set_index("strategy")
    stays = bool(current) and (answer["recommended"] in current or answer["all_equivalent"])
    assert ("no strategy" in text) == stays
    assert stays or f"shortest with {answer['recommended']}, {seconds_text(answer['value_s'])} (" in text
    assert (" now (at most " in text) == table["as_it_is"].any()


def check_lines(choice):
    """Each strategy is on one line, with others from which it differs by less than the zones."""
    table = choice.table.set_index("strategy")
    assert len(choice.readable()) == table["line_of"].nunique()
    for name, row in table.iterrows():
        first = table.loc[row["line_of"]]
        assert first["line_of"] == row["line_of"]
        assert first["allowed"] == row["allowed"]
        for criterion in OBJECTIVES.values():
            gap = abs(row[f"{criterion.name}_s"] - first[f"{criterion.name}_s"])
            assert gap <= max(choice.indifference * first[f"{criterion.name}_s"], criterion.floor) * (1 + 1e-9), name
    assert table.index[table["knee"]].tolist() == [choice.knee]
    assert table.loc[choice.knee, "allowed"]


def situations(choice):
    """Return the checked situations that occur."""
    pairs, answers = choice.pairs, choice.answers
    better = pairs["difference_high_s"] < 0
    return {
        "a tie": (pairs.loc[~pairs["selected"], "difference_s"] == 0).any(),
        "nothing at all": (answers["value_s"] == 0).any(),
        "better, but as good": (better & pairs["allowed"]).any(),
        "better, but left out": (better & ~pairs["allowed"]).any(),
        "an answer that is not certain": not answers["certain"].all(),
        "nothing to do": choice.nothing_to_do,
        "as it is": choice.headline.startswith("Leave KVM as it is"),
        "a line that is shared": choice.table["line_of"].duplicated().any(),
        "worth knowing": choice.information["matters"].any(),
    }


@pytest.mark.parametrize("part", [0, 1, *(pytest.param(part, marks=pytest.mark.study) for part in range(2, 10))])
def test_a_choice_agrees_with_its_table(part, monkeypatch):
    monkeypatch.setattr(information, "SHUFFLES", 3)
    counts = Counter()
    for seed in range(100 * part, 100 * part + 100):
        ranking, logs = made_up(seed)
        choice = answered(ranking, None if seed % 4 else logs)
        changes = {strategy.name: strategy.changes for strategy in ranking.strategies}
        for name in OBJECTIVES:
            check_objective(choice, name, changes)
        check_budgets(choice, changes)
        check_words(choice)
        check_lines(choice)
        answers = choice.answers.set_index("objective")
        for row in choice.information.to_dict("records"):
            assert 0 <= row["saving"] <= answers.loc[row["objective"], "value_s"] * (1 + 1e-9)
            assert row["switches_to"] != answers.loc[row["objective"], "recommended"]
            assert row["switches_to"] == "" or choice.table.set_index("strategy").loc[row["switches_to"], "allowed"]
        counts.update({name: int(occurs) for name, occurs in situations(choice).items()})
    assert min(counts.values()) > 0, counts


def test_a_choice_of_a_batch_agrees_with_its_table():
    law = ClosedForm(None, 64, float("nan"))
    for seed in range(1000, 1100):
        ranking, _ = made_up(seed, len(BATCHES))
        choice = answered(ranking)
        changes = [strategy.changes for strategy in ranking.strategies]
        for objective in ("cost", "stall", "above10", "clear"):
            batches = replace(choice, objective=objective, closed_form=law).batches
            rows, best = batches.table, BATCHES.index(batches.recommended)
            here = rows[rows["allowed"]]
            assert rows.loc[best, "allowed"]
            assert rows.loc[best, "equivalent"]
            assert (rows["difference_low_s"] >= -rows.loc[best, "objective_s"]).all()
            least = int(here["objective_s"].idxmin())
            assert changes[best] < changes[least] or rows.loc[best, "objective_s"] == rows.loc[least, "objective_s"]
            better = here.index[here["difference_high_s"] < 0]
            assert all(rows.loc[batch, "equivalent"] and changes[batch] > changes[best] for batch in better)
            low, high = batches.equivalent
            assert low <= rows.loc[best, "effective_pages"] <= high
            inside = rows[rows["effective_pages"].between(low, high)]
            assert inside["equivalent"].all()
            words = f"recommended: {batches.label(batches.recommended)}; "
            assert batches.sentence.startswith("recommended: any batch; " if rows["equivalent"].all() else words)
            assert batches.certain == ((here["difference_low_s"] >= -here["indifference_s"]).all())
