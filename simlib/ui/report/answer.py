# SPDX-License-Identifier: BSD-3-Clause
"""Page of a result: the command, the result as tables and figures, and its origin."""

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
from simlib.analysis.choose import Choice
from simlib.analysis.compare import Comparison
from simlib.analysis.predict import PredictionResult
from simlib.analysis.simulate import SimulationResult
from simlib.figures.results import Result
from simlib.figures.style import signed
from simlib.lab import Trial
from simlib.lab.hardware.prediction import OnHardware
from simlib.measurements.fits import Fit
from simlib.measurements.fits.tables import number_columns
from simlib.model.quantities import seconds_text
from simlib.model.scenario import Scenario
from simlib.simulator.sampling import SampleResult
from simlib.ui.report.block import Block, Chart, Listing, Prose, Table, number_text
from simlib.ui.report.page import Report, Section

FOLD_ROWS = 40  # number of rows above which a table is folded
SIMULATED = (
    "Every number on this page is simulated or predicted by simlib, unless it is marked as measured. The costs are "
    "given, calibrated, or from priors. The same version, seed and scenario reproduce the numbers."
)
TRIED = (
    "Every number was counted or timed in kernels that ran under emulation. A time is the total number of instructions "
    "of all CPUs, not a time on hardware. The same kernel tree, patch series and seeds reproduce the numbers."
)


@dataclass(frozen=True)
class AnswerPage:
    """Content of a result's page."""

    title: str
    subtitle: str
    blocks: Sequence[Block]
    captions: Mapping[str, str]  # of the figures, by name
    facts: Mapping[str, object] = field(default_factory=dict)
    origin: str = SIMULATED  # statement on the kind of numbers


@singledispatch
def answer_of(result: Result) -> AnswerPage:
    """Return the content of a result's page. Raises `InputError` for a type that is not registered below."""
    raise InputError("result", type(result).__name__, "has no page: this type of result is not supported")


def result_report(
    result: Result | Mapping[str, Result], command: str = "", *, scenario: Scenario | None = None,
    seed: int | None = None,
) -> Report:  # fmt: skip
    """Return a result as one self-contained page.

    Returns: A report, whose ``write`` writes the file. Raises `InputError` if there is no page for this type of result.

    - `result`: one result, or several by name, which get a section each.
    - `command`: the command or the call that gave the result.
    - `scenario`: scenario of the result. Default: the result's own, if it has one.
    - `seed`: random seed. Default: the result's own, if it has one.
    """
    results = dict(result) if isinstance(result, Mapping) else {"": result}
    labels = [f"{name}: " if len(results) > 1 else "" for name in results]
    answers = [answer_of(value) for value in results.values()]
    first_result, *others = results.values()
    sections, notes = [], []
    for label, value, answer in zip(labels, results.values(), answers, strict=True):
        sections.append(Section(f"{label}Answer", answer.blocks))
        if answer.captions:
            sections.append(Section(f"{label}Figures", _charts(value, answer.captions)))
        notes += [f"- {label}{flag}" for flag in getattr(value, "flags", ())]
    if notes:
        sections.append(Section("Notes", ["\n".join(notes)]))
    kinds = list(dict.fromkeys(answer.origin for answer in answers))
    sections.append(Section("Origin", _origin(first_result, scenario, kinds)))
    seed = getattr(first_result, "seed", None) if seed is None else seed
    facts = {"command": command} if command else {}
    facts |= {"simlib": __version__, "made": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")}
    facts |= {"seed": str(seed)} if seed is not None else {}
    return Report(answers[0].title, "" if others else answers[0].subtitle, sections, facts | dict(answers[0].facts))


def _charts(result: Result, captions: Mapping[str, str]) -> list[Block]:
    """Return the figures, and a sentence that lists those without data."""
    charts: list[Block] = []
    empty = []
    for name, caption in captions.items():
        try:
            charts.append(Chart(result.plot(name), caption))
        except InputError:  # such as a run without contention
            empty.append(name.replace("_", " "))
    return [*charts, *[Prose(f"Figures without data: {', '.join(empty)}.")] * bool(empty)]


def _origin(result: Result, scenario: Scenario | None, kinds: Sequence[str]) -> list[Block | str]:
    """Return the statements on the kinds of numbers, the costs and the scenario."""
    source = scenario if scenario is not None else getattr(result, "scenario", None)
    blocks: list[Block | str] = [*kinds]
    if isinstance(result, Choice):
        blocks.append(Table(result.costs, "Costs and their sources.", folded=True))
    if source is not None:
        blocks.append(Listing(source.to_toml(), "Scenario file; other keys have their default values."))
    return blocks


def value_text(value: float, unit: str) -> str:
    """Format a value for a sentence: a time in the unit that keeps it short, a share in percent.

    >>> value_text(0.0012345, "s"), value_text(0.25, "share"), value_text(1234567.0, "count")
    ('1.23 ms', '25 %', '1,234,567')
    """
    if not np.isfinite(value):
        return "not known"
    if unit == "s":
        return seconds_text(value)
    if unit == "share":
        return f"{100 * value:.3g} %"
    return number_text(float(value)) + ("" if unit in ("count", "") else f" {unit}")


def readable_times(frame: pd.DataFrame) -> pd.DataFrame:
    """Format a table's columns of seconds (``…_s``) as strings, each time in the unit that keeps it short.

    >>> readable_times(pd.DataFrame({"lock": ["mmu_lock"], "hold_max_s": [1.791e-06]})).to_dict("records")
    [{'lock': 'mmu_lock', 'hold_max': '1.79 µs'}]
    """
    times = [str(name) for name in frame.columns if str(name).endswith("_s")]
    texts = {name: [value_text(float(value), "s") for value in frame[name]] for name in times}
    return frame.assign(**texts).rename(columns={name: name.removesuffix("_s") for name in times})


def _metrics(table: pd.DataFrame) -> pd.DataFrame:
    values = table.columns.difference(["metric", "unit"], sort=False)
    return table[["metric"]].assign(**{name: list(map(value_text, table[name], table["unit"])) for name in values})


def _with_interval(row: Mapping[Any, Any]) -> str:
    estimate, low, high = (value_text(float(row[name]), row["unit"]) for name in ("estimate", "low", "high"))
    return estimate if low == "not known" else f"{estimate} ({low} to {high})"


def prediction_findings(frame: pd.DataFrame) -> list[str]:
    """Return a sentence per metric and curve: the values with the fewest and the most vCPUs, and their ratio.

    - `frame`: variant or policy, vcpus, metric, estimate, low, high, unit.
    """
    curve = "policy" if "policy" in frame else "variant"
    sentences = []
    for (name, metric), rows in frame.groupby([curve, "metric"], sort=False):
        ends = rows.sort_values("vcpus").iloc[[0, -1]].to_dict("records")
        parts = [f"{_with_interval(row)} with {_vcpus(row['vcpus'])}" for row in ends[: 1 if len(rows) == 1 else 2]]
        if len(rows) > 1 and ends[0]["estimate"] > 0:
            parts.append(f"ratio {number_text(ends[1]['estimate'] / ends[0]['estimate'], 3)}")
        sentences.append(f"{f'{name}, ' * bool(name)}{metric}: {', '.join(parts)}")
    return sentences


def comparison_findings(frame: pd.DataFrame, first: str) -> list[str]:
    """Return a sentence per metric: the policy with the largest change, and a remark if the interval contains 0.

    - `frame`: `Comparison.frame`.
    - `first`: the policy with which the others are compared.
    """
    sentences = []
    others = frame[(frame["policy"] != first) & frame["change_percent"].notna()]
    for metric, rows in others.groupby("metric", sort=False):
        row = max(rows.to_dict("records"), key=lambda candidate: abs(candidate["change_percent"]))
        low, high = float(row["change_low"]), float(row["change_high"])
        remark = "" if low > 0 or high < 0 else "; the interval contains 0"
        label = f"{row['variant']}: " * bool(row["variant"])
        sentences.append(
            f"{metric}: {label}{row['policy']} differs most from {first}, by {signed(row['change_percent'])} % "
            f"({signed(low)} to {signed(high)} %) with {_vcpus(row['vcpus'])}{remark}"
        )
    return sentences


def _vcpus(count: object) -> str:
    return f"{count} vCPU{'' if count == 1 else 's'}"


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _bullets(sentences: Sequence[str]) -> Prose:
    return Prose("\n".join(f"- {sentence}." for sentence in sentences))


@answer_of.register
def _prediction(result: PredictionResult) -> AnswerPage:
    frame = result.frame if (result.frame["variant"] != "").any() else result.frame.drop(columns="variant")
    findings, intervals = prediction_findings(result.frame), f"{100 * result.level:g} % intervals"
    table = Table(frame, f"Predicted, with {intervals}.", folded=len(frame) > FOLD_ROWS)
    captions = {"over_vcpus": f"Predicted; the bands are {intervals}. {findings[0]}."}
    return AnswerPage("Predicted", f"metrics by vCPU count, with {intervals}", [_bullets(findings), table], captions)


@answer_of.register
def _comparison(result: Comparison) -> AnswerPage:
    findings = comparison_findings(result.frame, result.policies[0]) or prediction_findings(result.frame)
    table = result.readable()
    table = table if (table["unit"] != "").any() else table.drop(columns="unit")
    first, intervals = result.policies[0], f"{100 * result.level:g} % intervals"
    caption = f"Predicted, with {intervals}; changes are relative to {first}, with common random numbers."
    return AnswerPage(
        f"Compared: {', '.join(result.policies)}",
        f"predicted with the same costs and common random numbers, relative to {first}",
        [_bullets(findings), Table(table, caption)],
        {"over_vcpus": f"Predicted; the bands are {intervals}. {findings[0]}."},
    )


@answer_of.register
def _choice(result: Choice) -> AnswerPage:
    if result.closed_form is not None:
        return _batch(result)
    runs = f"{result.runs[0]} + {result.runs[1]} replications"
    on_front = int(result.table["on_front"].sum())
    known = "Costs whose exact values could change the recommendation, and the average saving from knowing each."
    equal = "Knowing any single cost exactly would improve the objective by no more than the indifference zone."
    information = result.readable_information()
    blocks: list[Block] = [
        _bullets([f"{label}: {text}" if label else text for label, text in result.advice().items()]),
        Prose(f"{_capitalized(result.evidence_label)}; {runs}, {result.how}. {_capitalized(result.guarantee)}."),
        Table(result.readable_answers(), "Recommended strategy by objective."),
        Table(
            result.readable(),
            f"All strategies, simulated: means of {sum(result.runs)} replications. Strategies whose results differ by "
            "less than the indifference zone share a row.",
        ),
        Table(result.readable_budgets(), "Limits on the longest stall, and the cost of each."),
        Table(information, known) if len(information) else Prose(equal),
    ]
    caption = (
        f"Simulated: longest stall, CPU time of CLEAR and guest time lost of {len(result.table)} strategies. Of these, "
        f"on the Pareto front: {on_front}. Closest to the best values of all objectives: {result.knee}."
    )
    return AnswerPage(
        f"How CLEAR_DIRTY_LOG should hold mmu_lock on {result.scenario.policy.architecture}", "simulated migrations",
        blocks, {"pareto": caption}, {"evidence": result.evidence_label},
    )  # fmt: skip


def _batch(result: Choice) -> AnswerPage:
    batches = result.batches
    table, sentence = batches.readable(), _capitalized(batches.sentence)
    cost = [*table.columns[: table.columns.get_loc("longest stall")], "longest stall"]
    blocks: list[Block] = [
        Prose(f"{sentence}. {_capitalized(batches.law)}. Evidence: {result.grounds}. {result.guest}."),
        Table(table[cost], f"Cost of every batch, simulated. {_capitalized(result.guarantee)}."),
        Table(table.drop(columns=cost[1:-1]), "Other objectives for every batch, simulated."),
        Table(batches.readable_regrets(), "Excess cost of three simple rules over the recommended batch."),
    ]
    captions = {
        "batch_costs": f"Simulated. {sentence}.",
        "pareto": "Simulated: trade-off between the objectives. Batches on the Pareto front: "
        f"{int(result.table['on_front'].sum())} of {len(result.table)}.",
    }
    return AnswerPage(
        f"How many pages CLEAR_DIRTY_LOG should process in one hold on {result.scenario.policy.architecture}",
        "simulated migrations", blocks, captions, {"evidence": result.evidence_label},
    )  # fmt: skip


@answer_of.register
def _simulation(result: SimulationResult) -> AnswerPage:
    blocks: list[Block] = [
        Prose(f"{result.summary().splitlines()[0]}."),
        Table(_metrics(result.table()), "Metrics of the run."),
        Table(readable_times(result.locks()), "Statistics of each lock by mode, simulated."),
        Table(readable_times(result.threads()), "Threads: time by activity, and faults by kind.", folded=True),
    ]
    captions = simulation_captions(result)
    captions = {name: captions[name] for name in result.figures()}
    return AnswerPage("Simulated", result.scenario.workload.kind, blocks, captions)


def simulation_captions(result: SimulationResult) -> dict[str, str]:
    """Return the captions of a run's figures, each with its main number."""
    queue = result.table_for("lock_over_time")["queue"].max()
    taken, waited = result.locks().query("lock == 'mmu_lock'")[["acquisitions", "contended"]].sum()
    captions = {
        "lock_over_time": f"Mean number of threads in a lock's queue; maximum {number_text(float(queue), 3)}.",
        "progress": "Number of pages that each thread has processed, over time.",
        "histogram": f"Durations of waits for a lock; {number_text(waited)} of {number_text(taken)} acquisitions of "
        "mmu_lock were contended.",
    }
    if "time_per_page" in result.figures():
        times = result.time_per_fault().set_index("activity")["microseconds_per_fault"]
        captions["time_per_page"] = (
            f"A fault takes {number_text(float(times.sum()), 3)} µs on average; its largest part is {times.idxmax()} "
            f"({number_text(float(times.max()), 3)} µs)."
        )
    if "degradation_over_time" in result.figures():
        captions["degradation_over_time"] = _throughput_caption(result.degradation())
    return captions


def _throughput_caption(curve: pd.DataFrame) -> str:
    half = float(curve.loc[curve["degradation"] > 0.5, "width_s"].sum())
    return (
        f"The guest loses up to {100 * float(curve['degradation'].max()):.0f} % of its throughput in a time bin, "
        f"and more than half of it for a total of {seconds_text(half)}."
    )


@answer_of.register
def _trial(result: Trial) -> AnswerPage:
    changed = result.frame().query("verdict == 'changed'")
    rows = changed[["mmu_mode", "cell", "of", "what", "base", "changed", "unit", "ratio", "low", "high"]]
    caption = "Changed numbers: medians, and ratios with 95 % intervals."
    blocks: list[Block] = [
        Listing(result.summary(), "The result as plain text for an e-mail."),
        Table(rows, caption, folded=len(rows) > FOLD_ROWS),
        Table(result.frame(), "All compared numbers.", folded=True),
    ]
    about = result.about
    facts = {"series": str(about["series_sha256"])[:12], "kernel": about["source"]["version"], "boots": about["boots"]}
    caption = f"Counted or timed under emulation. Numbers that changed: {len(changed)} of {len(result.differences)}."
    title = f"Tried: {', '.join(about['patches']) or 'no patch'}"
    return AnswerPage(title, "two kernels booted under emulation, without and with the patch series", blocks,
                 {"differences": caption}, facts, TRIED)  # fmt: skip


@answer_of.register
def _on_hardware(result: OnHardware) -> AnswerPage:
    changes = result.readable()
    tables: list[Block] = [
        Table(result.effects, "Changes to the policy and to costs, from the lab's numbers."),
        Table(changes, "Predicted changes with 90 % intervals; points without a change are omitted."),
        Table(result.frame, "All predictions, with 90 % intervals.", folded=True),
    ]
    blocks: list[Block] = [
        Prose("Predicted by the model for calibrated hosts, from the lab's numbers."),
        *(tables if len(result.frame) else []),
        *[Prose("\n".join(f"- {note}" for note in result.notes))] * bool(result.notes),
    ]  # fmt: skip
    captions = {"over_vcpus": "Predicted; the bands are 90 % intervals."} if len(changes) else {}
    return AnswerPage("On hardware", "predicted from the lab's numbers", blocks, captions)


@answer_of.register
def _sample(result: SampleResult) -> AnswerPage:
    blocks: list[Block] = [
        Prose(f"{result.summary().splitlines()[0]}."),
        Table(_metrics(result.table()), "Metrics, with their standard errors, which are due to sampling."),
    ]
    captions = {"degradation_over_time": _throughput_caption(result.curve)}
    return AnswerPage("Sampled", result.scenario.workload.kind, blocks, captions)


@answer_of.register
def _fit(result: Fit) -> AnswerPage:
    worst, correlation, costs = result.by_metric(), result.correlation, result.cost_table
    tables: list[Block] = [
        Prose("\n".join(f"- {line}" for line in (*result.quality, *result.flags, *result.notes))),
        Table(result.formatted_costs(), f"Costs, with {100 * result.level:g} % intervals."),
        Table(worst, "Residuals by metric.", digits=3),
    ]
    if correlation is not None:
        tables.append(Table(number_columns(correlation), "Correlations; columns are numbered like the rows."))
    bounded = costs[costs["bound"] != ""]["cost"].tolist()
    at_bound = f"value or end of an interval at a physical bound: {', '.join(bounded)}"
    errors = "; ".join(
        f"{row['metric']} ({row['role']}, rows: {row['rows']}): largest error {signed(row['worst error'])} %"
        for row in worst[worst["worst error"].notna()].to_dict("records")
    )
    captions = {
        "cost_intervals": f"Costs with their intervals; {at_bound if bounded else 'no cost reaches a physical bound'}.",
        "residuals": f"Relative error of the model for each row. {errors}.",
        "correlation": f"Correlations between the logarithms of the costs. {_strongest(correlation)}",
        "dirty_memory_time": "Dirty memory time, measured and from the model.",
        "contentions": "Contentions of the lock, measured and from the model.",
        "sensitivity": "Contribution of each cost to the uncertainty of the first variant's time (Sobol indices).",
    }
    captions = {name: captions[name] for name in result.figures()}
    return AnswerPage("Calibrated costs", result.heading, tables, captions, {"degrees of freedom": result.estimate.dof})


def _strongest(correlation: pd.DataFrame | None) -> str:
    """Name the pair of costs that the data distinguish least."""
    if correlation is None or len(correlation) < 2:
        return ""
    values, names = np.nan_to_num(correlation.to_numpy(dtype=float)), list(correlation.columns)
    row, column = np.unravel_index(np.argmax(np.abs(np.triu(values, 1))), values.shape)
    return f"Strongest: {names[row]} and {names[column]}, {values[row, column]:+.2f}.".replace("-", "−")
