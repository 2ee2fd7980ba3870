# SPDX-License-Identifier: BSD-3-Clause
"""What is said first of a choice: what to do, how to do it, how sure that is, and what it rests on."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from simlib.analysis.choose.objectives import OBJECTIVES
from simlib.model.architectures import TRACKING
from simlib.model.policies import BASELINE, policy
from simlib.model.quantities import say_seconds
from simlib.model.scenario import Scenario

Choice = Any
"""`simlib.Choice`, which imports this module."""

ROUNDED_UP = 1e-4
"""The least share that is said."""

_IMPERATIVE = re.compile(r"(CLEAR|an eager split) (let|hold|cover|allocate)s ([^(]*[^( ])")


def advice(choice: Choice, objective: str) -> dict[str, str]:
    """Sentences by their labels, in the order in which they are read; the first has none.

    - `objective`: what counts most.
    """
    take = choice.take(objective)
    said = {"": _where(choice.scenario) + _first(choice, objective)}
    if not choice.nothing_to_do and not choice.table.set_index("strategy").loc[take, "as_it_is"]:
        said["To do so"], shipped = _means(choice, take)
        said["Without a patch"] = "" if shipped else _shipped(choice, objective)
    said |= {"Longest stall": _stalls(choice), "How sure": _sure(choice, objective), "Evidence": choice.grounds,
             "Limits": "stalls are the model's: trust their order more than their size (docs/choose.md)",
             "Other goals": _others(choice, take)}  # fmt: skip
    return {label: text for label, text in said.items() if text} | {"Guest": choice.guest}


def headline(choice: Choice) -> str:
    """What to do for every objective, as one text."""
    said = advice(choice, choice.objective)
    return ". ".join([said[""], *(f"{label}: {said[label]}" for label in ("Other goals", "How sure") if label in said)])


def nothing_matters(answers: pd.DataFrame) -> bool:
    """Whether any strategy is as good for every objective, and none may be better by what matters."""
    return bool(answers["any_is_as_good"].astype(bool).all() and answers["certain"].astype(bool).all())


def _where(scenario: Scenario) -> str:
    """Of which hosts the answer is, where hardware tracks writes.

    >>> _where(Scenario.parse({"policy": {"architecture": "x86-tdp", "dirty_tracking": "pml"}}))
    'With PML: '
    """
    way = scenario.policy.resolved().dirty_tracking
    return f"With {way.upper()}: " if TRACKING[way].dirty_bits else ""


def _first(choice: Choice, objective: str) -> str:
    """What to do."""
    table, what, take = choice.table.set_index("strategy"), OBJECTIVES[objective], choice.take(objective)
    answer = choice.answers.set_index("objective").loc[objective]
    keep = f"Leave KVM as it is ({take})" if table.loc[take, "as_it_is"] else f"Take any, such as {take}"
    ways, sure = f"of {table['allowed'].sum()} ways that were simulated", _percent(choice.confidence)
    if choice.nothing_to_do:
        share, left_out = _most(choice.pairs)
        return f"{keep}: {ways} none changes anything by more than {share} ({sure} sure{left_out})"
    if table.loc[take, "as_it_is"] or answer["any_is_as_good"]:
        value = f"{what.title}, {say_seconds(answer['value_s'])},"
        if not answer["certain"]:
            return f"{keep}: {ways} none is sure to lower {value} by what matters"
        most = _share(answer["regret_at_most_s"], answer["value_s"])
        return f"{keep}: {ways} none lowers {value} by more than {most} ({sure} sure)"
    text = f"{_imperative(take)}: {_effects(choice, take, objective)}"
    return text if answer["certain"] else f"Best on average, if not for sure: {text[0].lower()}{text[1:]}"


def _imperative(name: str) -> str:
    """A strategy as one tells a colleague to take it.

    >>> _imperative("every-512"), _imperative("no-eager-split")
    ('Let CLEAR drop mmu_lock after every 512 pages (every-512)', 'Use no-eager-split')
    """
    found = [_IMPERATIVE.match(policy(part.strip()).title) for part in name.split("+")]
    if not all(found):
        return f"Use {name}"
    told = [f"let {one[1]} {one[2]} {one[3]}" for one in found if one]
    text = joined(told, "and").replace("let go", "drop mmu_lock").replace("the lock", "mmu_lock")
    return f"L{text[1:]} ({name})"


def _effects(choice: Choice, take: str, objective: str) -> str:
    """What becomes of the objective and of the longest stall, and what must be paid for it."""
    table = choice.table.set_index("strategy")
    now = table[table["as_it_is"]]
    if now.empty:
        names = dict.fromkeys((objective, "stall"))
        return joined([f"the {OBJECTIVES[n].title} is {say_seconds(table.loc[take, f'{n}_s'])}" for n in names], "and")
    better, worse = list[str](), list[str]()
    for name in dict.fromkeys(("stall", objective, "clear", "guest_time_lost", "precopy")):
        old, new = float(now[f"{name}_s"].iloc[0]), float(table.loc[take, f"{name}_s"])
        if abs(new - old) > max(OBJECTIVES[name].floor, choice.indifference * min(old, new)):
            verb, told = ("rises", worse) if new > old else ("falls", better)
            if told is worse or name in ("stall", objective):
                title = f"the {OBJECTIVES[name].title}{'' if told else f' {verb}'}"
                told.append(f"{title} from {say_seconds(old)} to {say_seconds(new)}")
    better = better or [f"the {OBJECTIVES[objective].title} falls by little"]
    return "; but ".join(", ".join(told) for told in (better, worse) if told)


def _means(choice: Choice, take: str) -> tuple[str, bool]:
    """What to set or to patch for a strategy, and whether shipped software has all of it."""
    names = [part.strip() for part in take.split("+")]
    found = {name: policy(name).to_do(choice.scenario.policy.architecture) for name in names if name != BASELINE}
    texts = [f"{name}: {text}" if len(names) > 1 else text for name, (text, _) in found.items()]
    return "; ".join(texts), all(shipped for _, shipped in found.values())


def _shipped(choice: Choice, objective: str) -> str:
    """The best of what shipped software can do, or where to look for more of that."""
    table = choice.table[choice.table["allowed"].astype(bool)]
    able = [name for name in table["strategy"] if _means(choice, name)[1]]
    best = table[table["strategy"].isin(able)].sort_values(f"{objective}_s", kind="stable").head(1)
    if not able or best["as_it_is"].iloc[0]:
        return "QEMU can have one CLEAR cover less memory; simlib choose without --kernel compares sizes"
    row, what = best.iloc[0], OBJECTIVES[objective]
    text, stall = _means(choice, row["strategy"])[0], say_seconds(row["stall_s"])
    return (f"{row['strategy']} has the least {what.title}, {say_seconds(row[f'{objective}_s'])} (longest stall "
            f"{stall}): {text}")  # fmt: skip


def _stalls(choice: Choice) -> str:
    """The longest stall as it is, and with what shortens it most, each with its bound."""
    table, answer = choice.table.set_index("strategy"), choice.answers.set_index("objective").loc["stall"]
    now, best = table[table["as_it_is"]], table.loc[answer["take"]]
    shown = best if now.empty else now.iloc[0]
    value, bound, rare = (say_seconds(shown[column]) for column in ("stall_s", "stall_bound_s", "p999_s"))
    usual = f"(in 90 % of migrations at most {bound}; 99.9 % of stalls at most {rare})"
    if now.empty:
        return f"shortest with {answer['take']}, {value} {usual}"
    least = f"shortest with {answer['take']}, {say_seconds(best['stall_s'])} ({say_seconds(best['stall_bound_s'])})"
    if best["as_it_is"] or (answer["any_is_as_good"] and now["allowed"].iloc[0]):
        shortens = "shortens" if answer["certain"] else "is sure to shorten"
        least = f"nothing simulated {shortens} it by more than {say_seconds(answer['indifference_s'])}"
    return f"{value} as it is {usual}; {least}"


def _sure(choice: Choice, objective: str) -> str:
    """By how much another strategy may be better, and for what else that is open."""
    answers, title = choice.answers.set_index("objective"), OBJECTIVES[objective].title
    mine, said = answers.loc[objective], []
    if not mine["certain"]:
        rows = choice.pairs[(choice.pairs["objective"] == objective) & choice.pairs["allowed"].astype(bool)]
        may = (
            rows.sort_values("difference_low_s")
            .loc[rows["difference_low_s"] < -rows["indifference_s"], "strategy"]
            .tolist()
        )
        most = say_seconds(mine["regret_at_most_s"])
        said.append(f"that {title} may be up to {most} less with {shared_line(may[0], may[1:])}")
    rest = [
        OBJECTIVES[str(name)].title for name in answers.index[~answers["certain"].astype(bool)] if name != objective
    ]
    said += [f"for {joined(rest, 'and')}"] if rest else []
    sure = _percent(choice.confidence)
    if said:
        return f"{sure}, except {joined(said, 'and except')}"
    if choice.table.set_index("strategy").loc[mine["take"], "as_it_is"] or mine["any_is_as_good"]:
        return ""  # the first sentence has it
    most = f" by more than {_share(mine['regret_at_most_s'], mine['value_s'])}" * bool(mine["regret_at_most_s"])
    lowers = "needs less" if "CPU" in title else "further lowers the"
    return f"{sure} that no other of the {choice.table['allowed'].sum()} simulated {lowers} {title}{most}"


def _others(choice: Choice, take: str) -> str:
    """What to take for the objectives that ask for something else, at which price, and what to set if no patch is."""
    rows = choice.answers[~choice.answers["any_is_as_good"].astype(bool) & (choice.answers["take"] != take)]
    table, said = choice.table.set_index("strategy"), []
    for name, mine in rows.groupby("take", sort=False):
        text, shipped = _means(choice, str(name))
        how = "as it is; " if table.loc[name, "as_it_is"] else f"{text}; " if shipped else ""
        stall = f"longest stall then {say_seconds(table.loc[name, 'stall_s'])}"
        goals = joined([OBJECTIVES[one].title for one in mine["objective"]], "or")
        said.append(f"for {goals} take {name} ({how}{stall})")
    return "; ".join(said)


def _percent(share: float) -> str:
    return f"{share * 100:.6g} %"


def _share(part: float, whole: float) -> str:
    """A share, rounded up."""
    share = max(part / whole if whole else 0.0, ROUNDED_UP)
    digits = 1 - math.floor(math.log10(share))
    return f"{max(ROUNDED_UP, math.ceil(share * 10**digits) / 10**digits) * 100:.2g} %"


def _most(pairs: pd.DataFrame) -> tuple[str, str]:
    """The largest share by which an allowed strategy may differ, and what was left out: what is below a floor."""
    share, small = 0.0, list[str]()
    for name, rows in pairs[pairs["allowed"].astype(bool)].groupby("objective", sort=False):
        what = OBJECTIVES[str(name)]
        value = float(rows.loc[rows["selected"].astype(bool), "value_s"].iloc[0])
        end = float(np.abs(rows[["difference_low_s", "difference_high_s"]].to_numpy(dtype=float)).max())
        if 0 < what.floor >= end > ROUNDED_UP * value:
            small.append(f"{say_seconds(what.floor)} of {what.title}")
        elif value:
            share = max(share, end / value)
    return _share(share, 1.0), f"; less than {joined(small, 'and')} left out" if small else ""


def joined(words: Sequence[str], last: str) -> str:
    """Words as a list in a sentence."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def shared_line(first: str, rest: Sequence[str]) -> str:
    """The names of strategies that share a line.

    >>> shared_line("a", []), shared_line("a", ["b"]), shared_line("a", ["b", "c", "d"])
    ('a', 'a, b', 'a, b and 2 more')
    """
    return ", ".join([first, *rest]) if len(rest) < 3 else f"{first}, {rest[0]} and {len(rest) - 1} more"
