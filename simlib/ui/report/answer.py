# SPDX-License-Identifier: BSD-3-Clause
"""One answer as one page: what was asked, what came out as a table and as figures, and where it comes from."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any

import numpy as np
import pandas as pd

from simlib._lib.errors import InputError
from simlib._lib.version import __version__
from simlib.analysis.choose import BatchChoice, Choice
from simlib.analysis.compare import Comparison
from simlib.analysis.predict import PredictionResult
from simlib.analysis.simulate import SimulationResult
from simlib.figures.results import Result
from simlib.figures.style import signed
from simlib.lab import Trial
from simlib.lab.hardware.prediction import OnHardware
from simlib.measurements.fits import Fit
from simlib.measurements.fits.tables import numbered
from simlib.model.quantities import say_seconds
from simlib.model.scenario import Scenario
from simlib.simulator.sampling import SampleResult
from simlib.ui.report.block import Block, Chart, Listing, Prose, Table, number_text
from simlib.ui.report.page import Report, Section

LONG = 40
"""Rows of a table above which it is folded."""


SIMULATED = (
    "Every number here is simulated or predicted by simlib, with costs that were calibrated or given; nothing is "
    "measured unless it says so. The version, the seed and the scenario give the same numbers again."
)
TRIED = (
    "Every number is measured on kernels that were booted under emulation. A time is a number of instructions of all "
    "CPUs together: it is no time of hardware. The same tree, series and seeds give the same numbers again."
)


@dataclass(frozen=True)
class AnswerPage:
    """What a page shows of a result."""

    title: str
    subtitle: str
    blocks: Sequence[Block]
    captions: Mapping[str, str]
    """The figures that are drawn, and what each shows."""
    facts: Mapping[str, object] = field(default_factory=dict)
    origin: str = SIMULATED
    """What kind of numbers these are."""


@singledispatch
def answer_of(result: Result) -> AnswerPage:
    """What a page shows of a result. Raises `InputError` if it is of no kind that is registered below."""
    raise InputError("result", type(result).__name__, "there is no page for it")


def result_report(
    result: Result | Mapping[str, Result], asked: str = "", *, scenario: Scenario | None = None, seed: int | None = None
) -> Report:
    """A result as one page that needs nothing beside it.

    Returns: Its ``write`` makes the file. Raises `InputError` if there is no page for such a result.

    - `result`: several get a section each.
    - `asked`: what was asked: the command, or the call.
    - `scenario`: what it was asked of; else that of the result, if it has one.
    - `seed`: root of the random streams; else that of the result, if it has one.
    """
    results = dict(result) if isinstance(result, Mapping) else {"": result}
    labels = [f"{name}: " if len(results) > 1 else "" for name in results]
    answers = [answer_of(found) for found in results.values()]
    one, *others = results.values()
    sections, notes = [], []
    for label, found, answer in zip(labels, results.values(), answers, strict=True):
        sections.append(Section(f"{label}Answer", answer.blocks))
        if answer.captions:
            sections.append(Section(f"{label}Figures", _charts(found, answer.captions)))
        notes += [f"- {label}{flag}" for flag in getattr(found, "flags", ())]
    if notes:
        sections.append(Section("What to know", ["\n".join(notes)]))
    sections.append(
        Section("Where it comes from", _origin(one, scenario, list(dict.fromkeys(each.origin for each in answers))))
    )
    if seed is None:
        seed = getattr(one.choice if isinstance(one, BatchChoice) else one, "seed", None)
    facts = {"asked": asked} if asked else {}
    facts |= {"simlib": __version__, "made": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")}
    facts |= {"seed": str(seed)} if seed is not None else {}
    first = answers[0]
    return Report(first.title, "" if others else first.subtitle, sections, facts | dict(first.facts))


def _charts(result: Result, captions: Mapping[str, str]) -> list[Block]:
    """The figures, and a sentence on those for which the result has nothing to draw."""
    charts: list[Block] = []
    left = []
    for name, caption in captions.items():
        try:
            charts.append(Chart(result.plot(name), caption))
        except InputError:  # such as a run in which nobody waited
            left.append(name.replace("_", " "))
    return [*charts, *[Prose(f"Nothing to draw: {', '.join(left)}.")] * bool(left)]


def _origin(result: Result, scenario: Scenario | None, kinds: Sequence[str]) -> list[Block | str]:
    """Scenario and costs, and what kinds of numbers these are."""
    found = scenario if scenario is not None else getattr(result, "scenario", None)
    blocks: list[Block | str] = [*kinds]
    if isinstance(result, Choice | BatchChoice):
        blocks.append(Table(result.costs, "The costs, and what each rests on.", folded=True))
    if found is not None:
        blocks.append(Listing(found.to_toml(), "The scenario as a file; what it does not say is at its default."))
    return blocks


def value_text(value: float, unit: str) -> str:
    """A value for a sentence: a time in the unit that keeps it short, a share in percent.

    >>> value_text(0.0012345, "s"), value_text(0.25, "share"), value_text(1234567.0, "count")
    ('1.23 ms', '25 %', '1,234,567')
    """
    if not np.isfinite(value):
        return "not known"
    if unit == "s":
        return say_seconds(value)
    if unit == "share":
        return f"{100 * value:.3g} %"
    return number_text(float(value)) + ("" if unit in ("count", "") else f" {unit}")


def readable_times(frame: pd.DataFrame) -> pd.DataFrame:
    """A table whose columns of seconds (``…_s``) are text, each time in the unit that keeps it short.

    >>> readable_times(pd.DataFrame({"lock": ["mmu_lock"], "hold_max_s": [1.791e-06]})).to_dict("records")
    [{'lock': 'mmu_lock', 'hold_max': '1.79 µs'}]
    """
    times = [str(name) for name in frame.columns if str(name).endswith("_s")]
    texts = {name: [value_text(float(value), "s") for value in frame[name]] for name in times}
    return frame.assign(**texts).rename(columns={name: name.removesuffix("_s") for name in times})


def _metrics(table: pd.DataFrame) -> pd.DataFrame:
    """Metrics, their values with their units as text."""
    values = table.columns.difference(["metric", "unit"], sort=False)
    return table[["metric"]].assign(**{name: list(map(value_text, table[name], table["unit"])) for name in values})


def _with_interval(row: Mapping[Any, Any]) -> str:
    estimate, low, high = (value_text(float(row[name]), row["unit"]) for name in ("estimate", "low", "high"))
    return estimate if low == "not known" else f"{estimate} ({low} to {high})"


def prediction_findings(frame: pd.DataFrame) -> list[str]:
    """One sentence a metric and curve: its value with the fewest and the most vCPUs, and the ratio of both.

    - `frame`: variant or policy, vcpus, metric, estimate, low, high, unit.
    """
    curve = "policy" if "policy" in frame else "variant"
    sentences = []
    for (name, metric), rows in frame.groupby([curve, "metric"], sort=False):
        ends = rows.sort_values("vcpus").iloc[[0, -1]].to_dict("records")
        parts = [f"{_with_interval(row)} with {_vcpus(row['vcpus'])}" for row in ends[: 1 if len(rows) == 1 else 2]]
        if len(rows) > 1 and ends[0]["estimate"] > 0:
            parts.append(f"{number_text(ends[1]['estimate'] / ends[0]['estimate'], 3)} times as much")
        sentences.append(f"{f'{name}, ' * bool(name)}{metric}: {', '.join(parts)}")
    return sentences


def comparison_findings(frame: pd.DataFrame, first: str) -> list[str]:
    """One sentence a metric: what changes it most against the first policy, and whether that could be no change.

    - `frame`: `Comparison.frame`.
    - `first`: the policy that the others are compared with.
    """
    sentences = []
    others = frame[(frame["policy"] != first) & frame["change_percent"].notna()]
    for metric, rows in others.groupby("metric", sort=False):
        row = max(rows.to_dict("records"), key=lambda one: abs(one["change_percent"]))
        low, high = float(row["change_low"]), float(row["change_high"])
        open_sign = "" if low > 0 or high < 0 else "; the interval holds no change at all"
        label = f"{row['variant']}: " * bool(row["variant"])
        sentences.append(
            f"{metric}: {label}{row['policy']} changes it most against {first}, by {signed(row['change_percent'])} % "
            f"({signed(low)} to {signed(high)} %) with {_vcpus(row['vcpus'])}{open_sign}"
        )
    return sentences


def _vcpus(count: object) -> str:
    return f"{count} vCPU{'' if count == 1 else 's'}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _list(sentences: Sequence[str]) -> Prose:
    return Prose("\n".join(f"- {sentence}." for sentence in sentences))


@answer_of.register
def _prediction(result: PredictionResult) -> AnswerPage:
    frame = result.frame if (result.frame["variant"] != "").any() else result.frame.drop(columns="variant")
    found = prediction_findings(result.frame)
    return AnswerPage(
        "Predicted",
        f"curves over vCPUs with {result.level:.0%} intervals",
        [_list(found), Table(frame, f"Predicted, with {result.level:.0%} intervals.", folded=len(frame) > LONG)],
        {"over_vcpus": f"Predicted; bands are {result.level:.0%} intervals. {found[0]}."},
    )


@answer_of.register
def _comparison(result: Comparison) -> AnswerPage:
    found = comparison_findings(result.frame, result.policies[0]) or prediction_findings(result.frame)
    shown = result.readable()
    shown = shown if (shown["unit"] != "").any() else shown.drop(columns="unit")
    caption = f"{result.level:.0%} intervals; the change is that to {result.policies[0]}, on the same random numbers."
    return AnswerPage(
        f"Compared: {', '.join(result.policies)}",
        f"predicted, on the same costs and random numbers, against {result.policies[0]}",
        [_list(found), Table(shown, f"Predicted, {caption}")],
        {"over_vcpus": f"Predicted; bands are {result.level:.0%} intervals. {found[0]}."},
    )


@answer_of.register
def _choice(result: Choice) -> AnswerPage:
    runs = f"{result.runs[0]} + {result.runs[1]} replications"
    known = result.readable_information()
    front = int(result.table["on_front"].sum())
    blocks: list[Block] = [
        _list([f"{label}: {text}" if label else text for label, text in result.advice().items()]),
        Prose(f"{_capital(result.evidence_shown)}; {runs}, {result.how}. {_capital(result.guarantee)}."),
        Table(result.readable_answers(), "What to take, by what one cares about most."),
        Table(
            result.readable(),
            f"Every strategy, simulated; times, means over {sum(result.runs)} replications. Those that differ in "
            "nothing by more than does not matter share a line.",
        ),
        Table(result.readable_budgets(), "The longest stall that may be, and what keeping to it costs."),
    ]
    if len(known):
        blocks.append(
            Table(known, "Which cost would change the answer, if it were known, and what that would save on average.")
        )
    else:
        blocks.append(Prose("Knowing any one cost better would not change the answer by more than does not matter."))
    caption = (
        f"Simulated: longest stall, CLEAR's CPU time and guest time lost of {len(result.table)} strategies. {front} "
        f"are on the front: no other is as good in every respect. Nearest to the best of each: {result.knee}."
    )
    return AnswerPage(
        f"How CLEAR_DIRTY_LOG should hold mmu_lock on {result.scenario.policy.architecture}", "simulated migrations",
        blocks, {"pareto": caption}, {"evidence": result.evidence_shown},
    )  # fmt: skip


@answer_of.register
def _batch(result: BatchChoice) -> AnswerPage:
    batches = result.readable()
    cost = [*batches.columns[: batches.columns.get_loc("longest stall")], "longest stall"]
    blocks: list[Block] = [
        Prose(
            f"{_capital(result.sentence)}. {_capital(result.law)}. Evidence: {result.grounds}. {result.choice.guest}."
        ),
        Table(batches[cost], f"Every batch, simulated: what it costs. {_capital(result.choice.guarantee)}."),
        Table(batches.drop(columns=cost[1:-1]), "Every batch, simulated: what else it does."),
        Table(result.readable_regrets(), "What three simple rules would cost more than the recommended batch."),
    ]
    captions = {
        "batch_costs": f"Simulated. {_capital(result.sentence)}.",
        "pareto": f"Simulated: what each batch trades. {int(result.table['on_front'].sum())} of {len(result.table)} "
        "are on the front: no other is as good in every respect.",
    }
    return AnswerPage(
        f"How many pages CLEAR_DIRTY_LOG should write-protect in one hold on {result.scenario.policy.architecture}",
        "simulated migrations", blocks, captions, {"evidence": result.choice.evidence_shown},
    )  # fmt: skip


@answer_of.register
def _simulation(result: SimulationResult) -> AnswerPage:
    blocks: list[Block] = [
        Prose(f"{result.summary().splitlines()[0]}."),
        Table(_metrics(result.table()), "Metrics of the run."),
        Table(readable_times(result.locks()), "Each lock and mode, as simulated."),
        Table(readable_times(result.threads()), "Each thread: time by activity, faults by kind.", folded=True),
    ]
    said = simulation_captions(result)
    return AnswerPage(
        "Simulated", result.scenario.workload.kind, blocks, {name: said[name] for name in result.figures()}
    )


def simulation_captions(result: SimulationResult) -> dict[str, str]:
    """What each figure of a run shows, with the number that a reader would look for."""
    queue = result.table_for("lock_over_time")["queue"].max()
    taken, waited = result.locks().query("lock == 'mmu_lock'")[["acquisitions", "contended"]].sum()
    captions = {
        "lock_over_time": f"At most {number_text(float(queue), 3)} threads queue for a lock at a time, "
        "on average over a bin.",
        "progress": "Pages that each thread gets done over time.",
        "histogram": f"How long waits for a lock last; {number_text(waited)} of {number_text(taken)} acquisitions of "
        "mmu_lock had to wait.",
    }
    if "time_per_page" in result.figures():
        times = result.time_per_fault().set_index("activity")["microseconds_per_fault"]
        captions["time_per_page"] = (
            f"A fault takes {number_text(float(times.sum()), 3)} µs on average, most of it: {times.idxmax()}, "
            f"{number_text(float(times.max()), 3)} µs."
        )
    if "degradation_over_time" in result.figures():
        captions["degradation_over_time"] = _lost(result.degradation())
    return captions


def _lost(curve: pd.DataFrame) -> str:
    half = float(curve.loc[curve["degradation"] > 0.5, "width_s"].sum())
    return (
        f"The guest loses up to {100 * float(curve['degradation'].max()):.0f} % of its throughput in a bin of time, "
        f"and more than half of it for {say_seconds(half)} in all."
    )


@answer_of.register
def _trial(result: Trial) -> AnswerPage:
    changed = result.frame().query("verdict == 'changed'")
    columns = ["machine", "cell", "of", "what", "base", "changed", "unit", "ratio", "low", "high"]
    blocks: list[Block] = [
        Listing(result.summary(), "The answer as text for a mail."),
        Table(
            changed[columns],
            "What is changed: medians, and the ratio with its 95 % interval.",
            folded=len(changed) > LONG,
        ),
        Table(result.frame(), "All numbers that were compared.", folded=True),
    ]
    about = result.about
    facts = {"series": str(about["series_sha256"])[:12], "kernel": about["source"]["version"], "boots": about["boots"]}
    caption = f"Measured under emulation. {len(changed)} of {len(result.differences)} numbers are changed."
    title = f"Tried: {', '.join(about['patches']) or 'no patch'}"
    return AnswerPage(title, "two kernels booted under emulation, without the series and with it", blocks,
                 {"differences": caption}, facts, TRIED)  # fmt: skip


@answer_of.register
def _on_hardware(result: OnHardware) -> AnswerPage:
    shown = result.readable()
    tables: list[Block] = [
        Table(result.effects, "What was carried."),
        Table(shown, "Predicted; the change has its 90 % interval. What does not change is left out."),
        Table(result.frame, "All of it, with 90 % intervals.", folded=True),
    ]
    blocks: list[Block] = [
        Prose("What the lab counted, carried to calibrated hosts by the model."),
        *(tables if len(result.frame) else []),
        *[Prose("\n".join(f"- {note}" for note in result.notes))] * bool(result.notes),
    ]  # fmt: skip
    names = {"over_vcpus": "Predicted; bands are 90 % intervals."} if len(shown) else {}
    return AnswerPage("On hardware", "predicted from what the lab counted", blocks, names)


@answer_of.register
def _sample(result: SampleResult) -> AnswerPage:
    blocks: list[Block] = [
        Prose(f"{result.summary().splitlines()[0]}."),
        Table(_metrics(result.table()), "Metrics, with the standard error of the sampling."),
    ]
    return AnswerPage("Sampled", result.scenario.workload.kind, blocks, {"degradation_over_time": _lost(result.curve)})


@answer_of.register
def _fit(result: Fit) -> AnswerPage:
    worst, correlation, costs = result.by_metric(), result.correlation, result.cost_table
    tables: list[Block] = [
        Prose("\n".join(f"- {line}" for line in (*result.quality, *result.flags, *result.notes))),
        Table(result.shown_costs(), f"Costs, with {result.level:.0%} intervals."),
        Table(worst, "Residuals, a metric at a time.", digits=3),
    ]
    if correlation is not None:
        tables.append(Table(numbered(correlation), "Correlations; a column has its row's number."))
    bounded = costs[costs["bound"] != ""]["cost"].tolist()
    bounds = f"at a physical bound, or an end of it is: {', '.join(bounded)}" if bounded else "none is at a bound"
    errors = "; ".join(
        f"{row['metric']}, {row['role']}: worst {signed(row['worst error'])} % of {row['rows']}"
        for row in worst[worst["worst error"].notna()].to_dict("records")
    )
    captions = {
        "cost_intervals": f"Costs with their intervals; {bounds}.",
        "residuals": f"Error of the model at each row. {errors}.",
        "correlation": f"Correlation of the costs' logarithms. {_strongest(correlation)}",
        "dirty_memory_time": "Dirty memory time: measured, and by the model.",
        "contentions": "Contentions of the lock: measured, and by the model.",
        "sensitivity": "Which cost's uncertainty moves the first variant's time.",
    }
    drawn = {name: captions[name] for name in result.figures()}
    return AnswerPage("Calibrated costs", result.heading, tables, drawn, {"degrees of freedom": result.estimate.dof})


def _strongest(correlation: pd.DataFrame | None) -> str:
    """The pair that the data tell apart least."""
    if correlation is None or len(correlation) < 2:
        return ""
    values, names = np.nan_to_num(correlation.to_numpy(dtype=float)), list(correlation.columns)
    row, column = np.unravel_index(np.argmax(np.abs(np.triu(values, 1))), values.shape)
    return f"Strongest: {names[row]} with {names[column]}, {values[row, column]:+.2f}.".replace("-", "−")
