# SPDX-License-Identifier: BSD-3-Clause
"""The first sentence of a choice: nothing to do, leave it as it is, or what to take for what."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from simlib.decision.objectives import OBJECTIVES
from simlib.model.quantities import format_seconds

ROUNDED_UP = 1e-4
"""The least share that is said."""


def headline(table: pd.DataFrame, pairs: pd.DataFrame, answers: pd.DataFrame, confidence: float) -> str:
    """What to do, in a sentence; the arguments are those of `simlib.Choice`."""
    allowed = table[table["allowed"]]
    now = allowed.loc[allowed["as_it_is"], "strategy"].tolist()
    sure = f"with {confidence * 100:.6g} %"
    if nothing_matters(answers):
        what = "Nothing to do" if now else "It does not matter"
        share, left_out = _most(pairs)
        return f"{what}: of {len(allowed)} ways none differs by more than {share} ({sure}{left_out})"
    matter = answers[~answers["any_is_as_good"].astype(bool)]
    told = {
        str(take): joined([OBJECTIVES[name].title for name in rows["objective"]], "or")
        for take, rows in matter.groupby("take", sort=False)
    }
    others = [(take, titles) for take, titles in told.items() if take not in now]
    if not others:
        text = f"Leave it as it is ({now[0]})" if now else "Take any"
        text += f": none of {len(allowed)} ways is better by what matters"
    elif now and now[0] in told and _as_good_in_all(answers, now[0]):
        text = f"Leave it as it is ({now[0]}), unless you care most about {others[0][1]}: then {others[0][0]}"
        text += "".join(f"; or about {titles}: {take}" for take, titles in others[1:])
    else:
        ways = [*others, *((f"{take} (as it is)", told[take]) for take in now if take in told)]
        text = "Take " + "; ".join(f"{take} for {titles}" for take, titles in ways)
        text += "; for all else any is as good" * (len(matter) < len(answers))
    unsure = answers[~answers["certain"].astype(bool)]
    if unsure.empty:
        return f"{text} ({sure})"
    titles = joined([OBJECTIVES[name].title for name in unsure["objective"]], "and")
    return f"{text} ({sure}, but for {titles}: there another may be better)"


def _as_good_in_all(answers: pd.DataFrame, now: str) -> bool:
    """Whether what is done now takes no more CPU time in all: then it is other objectives that ask for a change."""
    whole = answers[answers["objective"] == "cost"]
    return bool((whole["any_is_as_good"].astype(bool) | (whole["take"] == now)).all())


def nothing_matters(answers: pd.DataFrame) -> bool:
    """Whether any strategy is as good for every objective, and none may be better by what matters."""
    return bool(answers["any_is_as_good"].astype(bool).all() and answers["certain"].astype(bool).all())


def _most(pairs: pd.DataFrame) -> tuple[str, str]:
    """The largest share by which an allowed strategy may differ, and what was left out: what is below a floor."""
    share, small = 0.0, list[str]()
    for name, rows in pairs[pairs["allowed"].astype(bool)].groupby("objective", sort=False):
        what = OBJECTIVES[str(name)]
        value = float(rows.loc[rows["picked"].astype(bool), "value_s"].iloc[0])
        end = float(np.abs(rows[["difference_low_s", "difference_high_s"]].to_numpy(dtype=float)).max())
        if 0 < what.floor >= end > ROUNDED_UP * value:
            small.append(f"{format_seconds(what.floor)} of {what.title}")
        elif value:
            share = max(share, end / value)
    digits = 1 - math.floor(math.log10(max(share, ROUNDED_UP)))
    percent = max(ROUNDED_UP, math.ceil(share * 10**digits) / 10**digits) * 100
    return f"{percent:.2g} %", f"; less than {joined(small, 'and')} left out" if small else ""


def joined(words: Sequence[str], last: str) -> str:
    """Words as a list in a sentence."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def shared_line(first: str, rest: Sequence[str]) -> str:
    """The names of strategies that share a line.

    >>> shared_line("a", []), shared_line("a", ["b"]), shared_line("a", ["b", "c", "d"])
    ('a', 'a and b', 'a, b and 2 more')
    """
    if len(rest) < 3:
        return joined([first, *rest], "and")
    return f"{first}, {rest[0]} and {len(rest) - 1} more"
