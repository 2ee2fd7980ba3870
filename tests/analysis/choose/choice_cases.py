# SPDX-License-Identifier: BSD-3-Clause
"""Scenarios for tests of choices, and checks that their tables agree."""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np
import pandas as pd
import pytest

from simlib.analysis.choose import OBJECTIVES, Choice
from simlib.analysis.choose import choice as choice_module
from simlib.analysis.choose.ranking import BUDGETS
from simlib.model.costs import Costs
from simlib.model.scenario import Scenario

COSTS = {
    "fault_unlocked": "500ns",
    "fault_hold": "500ns",
    "split_hold": "500ns",
    "line_transfer": "20ns",
    "line_local": "5ns",
    "clear_page": "50ns",
    "clear_word": "50ns",
    "clear_ioctl": "1us",
    "reacquire": "20ns",
    "flush": "1us",
    "flush_per_vcpu": "100ns",
    "kick": "500ns",
    "fault_jitter": 0.3,
}


WRITE = {"write_protect_fault": "write", "translation_fault": "write"}


READ = {"write_protect_fault": "read", "translation_fault": "read"}


def scenario(policy=None, costs=None, guest=None, **workload):
    """Return a migration of 1024 pages, each mapped by itself: four batches and the whole ioctl."""
    return Scenario.parse(
        {
            "guest": {"vcpus": 8, "memory": "4M", "backing": "4k"} | (guest or {}),
            "policy": {"architecture": "x86-shadow"} | (policy or {}),
            "workload": {"kind": "migration", "pass_limit": 2, "downtime": "0ps", "warm_up": "50us",
                         "access": "uniform", "shared": True} | workload,
            "costs": COSTS | (costs or {}),
        }
    )  # fmt: skip


def vague(policy=None, **changes):
    """Return a migration of 256 pages without known costs."""
    case = scenario(WRITE | (policy or {}), guest={"vcpus": 4, "memory": "1M"}, **changes)
    return dataclasses.replace(case, costs=Costs())


def answer_for(result, name):
    """Return the answer for one objective."""
    return result.answers.set_index("objective").loc[name]


def check_consistent(result):
    """Answers, pairs, table and budgets agree."""
    table = result.table.set_index("strategy")
    for name in OBJECTIVES:
        pairs, answer = result.pairs[result.pairs["objective"] == name].set_index("strategy"), answer_for(result, name)
        assert pairs.index.tolist() == table.index.tolist() == [strategy.name for strategy in result.strategies]
        assert pairs.index[pairs["selected"]].tolist() == [answer["recommended"]] == [result.recommended(name)]
        assert pairs["value_s"].tolist() == pytest.approx(table[f"{name}_s"].tolist())
        assert pairs["allowed"].tolist() == table["allowed"].tolist()
        assert table.loc[answer["recommended"], "allowed"]
        gap = pairs["value_s"] - answer["value_s"]
        assert np.allclose(gap, pairs["difference_s"], rtol=0, atol=1e-12)
        assert pairs["difference_low_s"].le(pairs["difference_s"] + 1e-18).all()
        assert pairs["difference_low_s"].ge(-answer["value_s"]).all()
        assert pairs["difference_s"].le(pairs["difference_high_s"] + 1e-18).all()
        assert pairs["low_s"].le(pairs["value_s"]).all()
        assert (pairs["indifference_s"] == answer["indifference_s"]).all()
        assert answer["indifference_s"] == max(result.indifference * answer["value_s"], OBJECTIVES[name].floor)
        allowed = pairs[pairs["allowed"]]
        assert answer["regret_at_most_s"] == max(0.0, -allowed["difference_low_s"].min())
        assert answer["certain"] == (answer["regret_at_most_s"] <= answer["indifference_s"])
        good = allowed["difference_high_s"] <= answer["indifference_s"]
        assert allowed["equivalent"].tolist() == good.tolist()
        assert not pairs.loc[~pairs["allowed"], "equivalent"].any()
        assert [*filter(None, answer["equivalent"].split("; "))] == [
            s for s in good.index[good] if s != answer["recommended"]
        ]
        assert answer["all_equivalent"] == good.all()
    assert result.budgets["stall_budget_s"].tolist() == list(BUDGETS)
    answer = answer_for(result, "cost")
    for row in result.budgets.to_dict("records"):
        within = table[table["allowed"] & (table["stall_bound_s"] <= row["stall_budget_s"])]
        if within.empty:
            assert row["recommended"] == ""
            assert math.isnan(row["cost_s"])
            continue
        assert row["recommended"] in within.index
        assert row["cost_s"] == table.loc[row["recommended"], "cost_s"]
        assert row["cost_s"] <= within["cost_s"].min() * (1 + result.indifference)
        assert row["stall_bound_s"] == table.loc[row["recommended"], "stall_bound_s"]
        assert row["share_more"] == pytest.approx(row["cost_s"] / answer["value_s"] - 1)
        if len(within) == table["allowed"].sum():
            assert row["recommended"] == answer["recommended"]
    assert table["knee"].sum() == 1
    assert table.loc[result.knee, "allowed"]
    assert result.guarantee.startswith(
        f"with a joint confidence of {result.confidence * 100:g} %, all {9 * (len(table) - 1)} differences"
    )


def check_stalls_are_listed(result):
    """Equivalent strategies are listed with their longest stalls."""
    for row, answer in zip(
        result.readable_answers().to_dict("records"), result.answers.to_dict("records"), strict=True
    ):
        assert row["stall"].endswith("s")
        assert (re.search(r" \([0-9.]+[mun]?s( to [0-9.]+[mun]?s)?\)$", row["equivalent (stall)"]) is not None) == bool(
            answer["equivalent"]
        )


def choice_of(ranking, case, logs=None, *, costs=None, evidence="", grounds="known"):
    """Return the choice that follows from a ranking; `logs`: logarithms of the costs, for the value of information."""
    options = ranking.options
    return Choice(
        case, ranking.strategies, options.weight, options.indifference, options.confidence, options.seed, "whole",
        (1, 1), ranking.table, ranking.pairs, ranking.answers, ranking.budgets,
        choice_module._information(logs or {}, ranking), pd.DataFrame() if costs is None else costs, evidence, grounds,
        (),
    )  # fmt: skip
