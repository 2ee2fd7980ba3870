# SPDX-License-Identifier: BSD-3-Clause
"""The sentences on a choice: the recommendation, its settings, its confidence, and the origin of its costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from simlib.analysis.choose.objectives import OBJECTIVES
from simlib.model.architectures import TRACKING
from simlib.model.policies import BASELINE, policy
from simlib.model.quantities import seconds_text
from simlib.model.scenario import Scenario

Choice = Any
"""`simlib.Choice`, which imports this module."""

MIN_SHARE = 1e-4
"""Smaller shares are printed as this share."""


def advice(choice: Choice, objective: str) -> dict[str, str]:
    """Return a dict from label to sentence, in reading order; the label of the first sentence is empty.

    - `objective`: name of the objective to optimise.
    """
    recommended = choice.recommended(objective)
    sentences = {"": _tracking_prefix(choice.scenario) + _recommendation(choice, objective)}
    if not choice.nothing_to_do and not choice.table.set_index("strategy").loc[recommended, "as_it_is"]:
        sentences["To do so"], shipped = _settings(choice, recommended)
        sentences["Without a patch"] = "" if shipped else _best_shipped(choice, objective)
    sentences |= {"Longest stall": _stalls(choice), "How sure": _confidence(choice, objective),
                  "Evidence": choice.grounds,
                  "Limits": "stalls are simulated: their ranking is more reliable than their length (docs/choose.md)",
                  "Other goals": _other_goals(choice, recommended)}  # fmt: skip
    return {label: text for label, text in sentences.items() if text} | {"Guest": choice.guest}


def _tracking_prefix(scenario: Scenario) -> str:
    """Return the method of dirty tracking as a prefix, if hardware sets dirty bits; otherwise an empty string.

    >>> _tracking_prefix(Scenario.parse({"policy": {"architecture": "x86-tdp", "dirty_tracking": "pml"}}))
    'With PML: '
    """
    method = scenario.policy.resolved().dirty_tracking
    return f"With {method.upper()}: " if TRACKING[method].dirty_bits else ""


def _recommendation(choice: Choice, objective: str) -> str:
    """Return the first sentence: the recommended strategy and its effects."""
    table, title = choice.table.set_index("strategy"), OBJECTIVES[objective].title
    recommended = choice.recommended(objective)
    answer = choice.answers.set_index("objective").loc[objective]
    as_it_is = table.loc[recommended, "as_it_is"]
    keep = f"Leave KVM as it is ({recommended})" if as_it_is else f"Use any strategy, such as {recommended}"
    count, within = table["allowed"].sum(), " within the stall limit" * (not table["allowed"].all())
    tested = f"none of the {count} simulated strategies" if count > 1 else "no other simulated strategy"
    none = f"{keep}: {tested}{within}"
    confidence = f"{_percent(choice.confidence)} confidence"
    if choice.nothing_to_do:
        share, below_floor = _largest_change(choice.pairs)
        return f"{none} changes any objective by more than {share} ({confidence}{below_floor})"
    if as_it_is or answer["all_equivalent"]:
        value = f"the {title} ({seconds_text(answer['value_s'])})"
        if not answer["certain"]:
            return f"{none} is certain to lower {value} by more than the indifference zone"
        share = _share(answer["regret_at_most_s"], answer["value_s"])
        return f"{none} lowers {value} by more than {share} ({confidence})"
    text = f"{_imperative(recommended)}: {_effects(choice, recommended, objective)}"
    return text if answer["certain"] else f"Best on average, but not certain: {text[0].lower()}{text[1:]}"


def _imperative(name: str) -> str:
    """Return a strategy as an instruction.

    >>> _imperative("every-512"), _imperative("no-eager-split")
    ('Let CLEAR drop mmu_lock after every 512 pages (every-512)', 'Use no-eager-split')
    """
    instructions = [policy(part.strip()).imperative for part in name.split("+")]
    if not all(instructions):
        return f"Use {name}"
    text = joined(instructions, "and")
    return f"{text[0].upper()}{text[1:]} ({name})"


def _effects(choice: Choice, recommended: str, objective: str) -> str:
    """Describe the changes of the objective and of the longest stall, and the objectives that become worse."""
    table = choice.table.set_index("strategy")
    current = table[table["as_it_is"]]
    if current.empty:
        values = [f"the {OBJECTIVES[name].title} is {seconds_text(table.loc[recommended, f'{name}_s'])}"
                  for name in dict.fromkeys((objective, "stall"))]  # fmt: skip
        return joined(values, "and")
    better, worse = list[str](), list[str]()
    for name in dict.fromkeys(("stall", objective, "clear", "guest_time_lost", "precopy")):
        old, new = float(current[f"{name}_s"].iloc[0]), float(table.loc[recommended, f"{name}_s"])
        if abs(new - old) > max(OBJECTIVES[name].floor, choice.indifference * min(old, new)):
            verb, changes = ("rises", worse) if new > old else ("falls", better)
            if changes is worse or name in ("stall", objective):
                title = f"the {OBJECTIVES[name].title}{'' if changes else f' {verb}'}"
                changes.append(f"{title} from {seconds_text(old)} to {seconds_text(new)}")
    better = better or [f"the {OBJECTIVES[objective].title} falls by less than the indifference zone"]
    return "; but ".join(", ".join(changes) for changes in (better, worse) if changes)


def _settings(choice: Choice, strategy: str) -> tuple[str, bool]:
    """Return the settings or patches of a strategy, and True if shipped software has all of them."""
    names = [part.strip() for part in strategy.split("+")]
    steps = {name: policy(name).to_do(choice.scenario.policy.architecture) for name in names if name != BASELINE}
    texts = [f"{name}: {text}" if len(names) > 1 else text for name, (text, _) in steps.items()]
    return "; ".join(texts), all(shipped for _, shipped in steps.values())


def _best_shipped(choice: Choice, objective: str) -> str:
    """Return the best strategy of shipped software, or a hint on where to look for one."""
    table = choice.table[choice.table["allowed"].astype(bool)]
    shipped = [name for name in table["strategy"] if _settings(choice, name)[1]]
    best = table[table["strategy"].isin(shipped)].sort_values(f"{objective}_s", kind="stable").head(1)
    if not shipped or best["as_it_is"].iloc[0]:
        return "QEMU can clear less memory per CLEAR; 'simlib choose' without --kernel compares the sizes"
    row, title = best.iloc[0], OBJECTIVES[objective].title
    text, stall = _settings(choice, row["strategy"])[0], seconds_text(row["stall_s"])
    return (f"{row['strategy']} has the lowest {title}, {seconds_text(row[f'{objective}_s'])} (longest stall "
            f"{stall}): {text}")  # fmt: skip


def _stalls(choice: Choice) -> str:
    """Describe the longest stall now, and with the strategy that is best for this objective, with their bounds."""
    table, answer = choice.table.set_index("strategy"), choice.answers.set_index("objective").loc["stall"]
    current, best = table[table["as_it_is"]], table.loc[answer["recommended"]]
    row = best if current.empty else current.iloc[0]
    value, bound, percentile = (seconds_text(row[column]) for column in ("stall_s", "stall_bound_s", "p999_s"))
    bounds = f"(at most {bound} with 90 % probability; 99.9 % of stalls are at most {percentile})"
    shortest = f"shortest with {answer['recommended']}"
    if current.empty:
        return f"{shortest}, {value} {bounds}"
    if best["as_it_is"] or (answer["all_equivalent"] and current["allowed"].iloc[0]):
        verb = "shortens" if answer["certain"] else "is certain to shorten"
        comparison = f"no strategy {verb} it by more than {seconds_text(answer['indifference_s'])}"
    else:
        comparison = f"{shortest}, {seconds_text(best['stall_s'])} ({seconds_text(best['stall_bound_s'])})"
    return f"{value} now {bounds}; {comparison}"


def _confidence(choice: Choice, objective: str) -> str:
    """Describe by how much another strategy could be better, and the objectives whose answers are uncertain."""
    answers, title = choice.answers.set_index("objective"), OBJECTIVES[objective].title
    answer, exceptions = answers.loc[objective], list[str]()
    if not answer["certain"]:
        rows = choice.pairs[(choice.pairs["objective"] == objective) & choice.pairs["allowed"].astype(bool)]
        rows = rows[rows["difference_low_s"] < -rows["indifference_s"]].sort_values("difference_low_s")
        first, *others = rows["strategy"]
        saving = seconds_text(answer["regret_at_most_s"])
        exceptions.append(f"that the {title} may be up to {saving} lower with {shared_line(first, others)}")
    uncertain = [OBJECTIVES[str(name)].title
                 for name in answers.index[~answers["certain"].astype(bool)] if name != objective]  # fmt: skip
    exceptions += [f"for {joined(uncertain, 'and')}"] if uncertain else []
    level = _percent(choice.confidence)
    if exceptions:
        return f"{level}, except {joined(exceptions, 'and except')}"
    if choice.table.set_index("strategy").loc[answer["recommended"], "as_it_is"] or answer["all_equivalent"]:
        return ""  # the first sentence has it
    share = f" (by over {_share(answer['regret_at_most_s'], answer['value_s'])})" * bool(answer["regret_at_most_s"])
    count, within = choice.table["allowed"].sum(), " within the stall limit" * (not choice.table["allowed"].all())
    return f"{level} confidence that no other of the {count} simulated strategies{within} gives a lower {title}{share}"


def _other_goals(choice: Choice, recommended: str) -> str:
    """Describe the recommendations for other objectives, with their longest stalls and their settings."""
    answers = choice.answers[~choice.answers["all_equivalent"].astype(bool)]
    table, sentences = choice.table.set_index("strategy"), []
    for name, rows in answers[answers["recommended"] != recommended].groupby("recommended", sort=False):
        text, shipped = _settings(choice, str(name))
        settings = "no change; " if table.loc[name, "as_it_is"] else f"{text}; " if shipped else ""
        stall = f"longest stall then {seconds_text(table.loc[name, 'stall_s'])}"
        goals = joined([OBJECTIVES[objective].title for objective in rows["objective"]], "or")
        sentences.append(f"for {goals}, use {name} ({settings}{stall})")
    return "; ".join(sentences)


def _percent(share: float) -> str:
    return f"{share * 100:.6g} %"


def _share(part: float, whole: float) -> str:
    """Format a share in percent, rounded up."""
    share = max(part / whole if whole else 0.0, MIN_SHARE)
    digits = 1 - math.floor(math.log10(share))
    percent = 100 * max(MIN_SHARE, math.ceil(share * 10**digits) / 10**digits)
    return f"{percent:.2g} %" if percent < 99.5 else f"{percent:.0f} %"


def _largest_change(pairs: pd.DataFrame) -> tuple[str, str]:
    """Return the largest share by which an allowed strategy may differ, and a remark on changes below a floor."""
    share, below_floor = 0.0, list[str]()
    for name, rows in pairs[pairs["allowed"].astype(bool)].groupby("objective", sort=False):
        objective = OBJECTIVES[str(name)]
        value = float(rows.loc[rows["selected"].astype(bool), "value_s"].iloc[0])
        change = float(np.abs(rows[["difference_low_s", "difference_high_s"]].to_numpy(dtype=float)).max())
        if 0 < objective.floor >= change > MIN_SHARE * value:
            below_floor.append(f"less than {seconds_text(objective.floor)} in the {objective.title}")
        elif value:
            share = max(share, change / value)
    return _share(share, 1.0), f"; ignoring changes of {joined(below_floor, 'and')}" if below_floor else ""


def joined(words: Sequence[str], last: str) -> str:
    """Join expressions into a list for a sentence."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def shared_line(first: str, others: Sequence[str]) -> str:
    """Abbreviate the names of strategies that share a row.

    >>> shared_line("a", []), shared_line("a", ["b"]), shared_line("a", ["b", "c", "d"])
    ('a', 'a, b', 'a, b and 2 more')
    """
    return ", ".join([first, *others]) if len(others) < 3 else f"{first}, {others[0]} and {len(others) - 1} more"
