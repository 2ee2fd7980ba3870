# SPDX-License-Identifier: BSD-3-Clause
"""The ``simlib`` command: thin, one function a subcommand.

Results go to stdout; progress and messages to stderr. Exit codes: 0 done,
1 failed, 2 wrong input, 128 + the signal if interrupted (130: Ctrl-C).
"""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

import simlib
from simlib import calibration, measurements
from simlib.calibration import Fit
from simlib.cli import data, decide, lab
from simlib.cli.output import Format, FormatOption, progress_bar, say, show, whole_numbers
from simlib.cli.policies import policies
from simlib.engine.timeline import perfetto_trace
from simlib.errors import InputError, SimlibError
from simlib.files import write_text
from simlib.model.policies import apply
from simlib.model.scenario import Scenario, load_scenario
from simlib.prediction import LEVEL, METRICS, complete
from simlib.prediction import predict as predict_curves
from simlib.simulation import SimulationResult

app = typer.Typer(
    name="simlib",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="What does KVM's mmu_lock cost, and what would another way of taking it cost? "
    "A model of dirty logging, calibrated on measurements.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong input, 128 + the signal if interrupted (130: Ctrl-C).",
)
app.add_typer(data.app, name="data")
app.add_typer(lab.app, name="lab")
app.command("choose-batch")(decide.choose_batch)
app.command()(policies)

TRACE_EVENTS = 2_000_000
"""Most events that a trace file holds."""


class EngineName(StrEnum):
    """Which engine runs."""

    COMPILED = "compiled"
    REFERENCE = "reference"


ScenarioArgument = Annotated[
    Path, typer.Argument(metavar="SCENARIO.toml", help="Scenario file; docs/scenario.md lists its keys.")
]
FitOption = Annotated[
    Path | None,
    typer.Option(metavar="FIT.json", help="Calibrated costs. Default: the shipped fit for the scenario's machine."),
]
SeedOption = Annotated[int, typer.Option(help="Root of all random streams.")]


def fit_for(scenario: Scenario, path: Path | None) -> Fit | None:
    """The fit that the user names, or the shipped one for the scenario's machine."""
    found = calibration.find_fit(scenario) if path is None else calibration.load_fit(path)
    if found is not None and path is None:
        say(f"costs: the shipped fit for {scenario.machine.name} ({found.meta['dataset']}, {found.meta['date']})")
    if found is not None:
        warn_foreign(scenario, found)
    return found


def warn_foreign(scenario: Scenario, fit: Fit) -> None:
    """Say so if costs of one architecture are used for another."""
    fitted = {case.policy.architecture for case in fit.scenario.variants.values() or (fit.scenario,)}
    asked = {case.policy.architecture for case in scenario.variants.values() or (scenario,)}
    for name in sorted(asked - fitted):
        say(f"warning: the costs were calibrated on {', '.join(sorted(fitted))}; that they hold for {name} is assumed")


@app.callback(invoke_without_command=True)
def version(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    """Options of the command itself."""
    if show_version:
        print(simlib.__version__)
        raise typer.Exit


@app.command()
def calibrate(
    scenario: ScenarioArgument,
    table: Annotated[
        str, typer.Argument(metavar="MEASUREMENTS.csv", help="A CSV file, or the name of a table in data/.")
    ],
    out: Annotated[Path, typer.Option(metavar="FIT.json", help="Where to write the fit.")],
    train: Annotated[str, typer.Option(help="Rows that the calibration may see, e.g. 'vcpus <= 8'.")] = "",
    select: Annotated[str, typer.Option(help="Rows to use at all, e.g. \"series == 'spinlock-old-test'\".")] = "",
    level: Annotated[float, typer.Option(min=0.5, max=0.999, help="Probability of the intervals.")] = LEVEL,
    seed: SeedOption = 1,
    how: FormatOption = Format.TABLE,
) -> None:
    """Determine a scenario's costs from measurements, with intervals.

    The scenario's [calibration] table names the costs that are unknown.

    Example: simlib calibrate data/scenarios/arm64-ampere-altra.toml arm64-dirty-memory-time
    --train "vcpus <= 8" --out build/fit.json
    """
    subject = load_scenario(scenario)
    is_file = table.endswith(".csv") or Path(table).exists()
    source = measurements.read(table) if is_file else measurements.load(table)
    with progress_bar() as progress:
        fit = calibration.calibrate(subject, source.select(select), train, level=level, seed=seed, progress=progress)
    calibration.save_fit(fit, out, train)
    counts = f"{len(fit.problem.train)} observations, {len(fit.estimate.names)} costs"
    say(f"{counts}, discrepancy {fit.estimate.discrepancy:.1%}; written to {out}")
    for name, good in fit.valid.items():
        if not good:
            say(f"warning: not {name.replace('_', ' ')}")
    for a, b, r in calibration.strongest_correlations(fit, 1):
        say(f"strongest correlation: {a} with {b}, {r:+.2f}")
    for variant in dict.fromkeys(fit.sensitivity["variant"].astype(str)) if len(fit.sensitivity) else ():
        rows = fit.sensitivity[fit.sensitivity["variant"] == variant]
        first = rows.sort_values("total", ascending=False).iloc[0]
        where = f"{variant or 'the time'} at {first['vcpus']} vCPUs"
        say(f"what moves {where} most: {first['name']} (total Sobol index {first['total']:.2f})")
    units = [calibration.fitfile.unit_of(n) for n in fit.intervals["name"]]
    show(fit.intervals[["name", "value", "low", "high", "determined"]].assign(unit=units), how)


@app.command()
def predict(
    scenario: ScenarioArgument,
    vcpus: Annotated[str, typer.Option(help="Numbers of vCPUs, e.g. 16,32,48.")],
    fit: FitOption = None,
    metrics: Annotated[str, typer.Option(help="Metrics, separated by commas.")] = ",".join(METRICS),
    level: Annotated[float, typer.Option(min=0.5, max=0.999, help="Probability of the intervals.")] = LEVEL,
    seed: SeedOption = 1,
    how: FormatOption = Format.TABLE,
) -> None:
    """Predict curves over vCPUs, with intervals: vcpus, metric, estimate, low, high, unit.

    A scenario with variants gives one curve a variant. Example: simlib predict
    data/scenarios/arm64-ampere-altra.toml --vcpus 16,32,48
    """
    subject = load_scenario(scenario)
    found = fit_for(subject, fit)
    with progress_bar() as progress:
        result = predict_curves(
            subject, whole_numbers(vcpus, "--vcpus"), estimate=None if found is None else found.estimate,
            metrics=[m.strip() for m in metrics.split(",")], level=level, seed=seed, progress=progress,
        )  # fmt: skip
    for flag in result.flags:
        say(flag)
    show(result.frame if subject.variants else result.frame.drop(columns="variant"), how)


@app.command()
def simulate(
    scenario: ScenarioArgument,
    variant: Annotated[str, typer.Option(help="Which variant, if the scenario has any.")] = "",
    fit: FitOption = None,
    vcpus: Annotated[int, typer.Option(min=0, help="Number of vCPUs instead of the scenario's.")] = 0,
    policy: Annotated[
        str, typer.Option(metavar="NAME", help="A way of taking the lock; simlib policies lists them.")
    ] = "",
    pages: Annotated[int, typer.Option(min=0, help="Pages a vCPU at most, scaled; 0: every page.")] = 0,
    engine: Annotated[EngineName, typer.Option(help="compiled, or reference: same result, slower.")] = (
        EngineName.COMPILED
    ),
    seed: SeedOption = 1,
    trace: Annotated[Path | None, typer.Option(metavar="OUT.json", help="Write a trace that Perfetto reads.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write all tables of the run as CSV files.")
    ] = None,
    how: FormatOption = Format.TABLE,
) -> None:
    """Simulate a scenario once, page by page, and print its metrics and each lock's statistics."""
    subject = load_scenario(scenario)
    if subject.variants and variant not in subject.variants:
        raise InputError(
            "--variant",
            variant,
            "the scenario has variants; name one",
            f"known: {', '.join(subject.variants)}",
        )
    if variant and not subject.variants:
        raise InputError("--variant", variant, "the scenario has no variants")
    case = subject.variants[variant] if variant else subject
    case = case.with_vcpus(vcpus) if vcpus else case
    case = apply(case, policy) if policy else case
    found = fit_for(case, fit)
    filled = complete(case, None if found is None else found.estimate)
    with progress_bar() as progress:
        result = simlib.simulate(
            filled, engine=engine.value, seed=seed, trace=TRACE_EVENTS if trace else 0, pages_per_vcpu=pages or None,
            progress=lambda events, now: progress(
                f"simulating: {events / 1e6:.0f} M events, {now * 1e-12:.2f} s", 0.5
            ),
        )  # fmt: skip
    if trace is not None:
        write_text(trace, json.dumps(perfetto_trace(result)))
        say(f"trace written to {trace}")
    if out is not None:
        for name, frame in tables_of(result).items():
            write_text(out / f"{name}.csv", frame.to_csv(index=False))
        say(f"tables written to {out}")
    for flag in result.flags:
        say(flag)
    if how is Format.TABLE:
        show(result.table(), how)
        sys.stdout.write("\n")
        show(result.locks(), how)
    else:
        show(result.table(), how)


def tables_of(result: SimulationResult) -> dict[str, pd.DataFrame]:
    """Every table of a run, by the name of its file."""
    raw, job = result.raw, result.job
    return {
        "metrics": result.table(), "locks": result.locks(), "threads": result.threads(), "phases": result.phases(),
        "queue_over_time": raw.queue_over_time(job), "progress_over_time": raw.progress_over_time(job),
        "wait_histogram": raw.histogram(job, "wait"), "hold_histogram": raw.histogram(job, "hold"),
    }  # fmt: skip


@app.command()
def reproduce(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to write the report and its tables.")] = Path(
        "build/report"
    ),
    seed: SeedOption = 1,
) -> None:
    """Everything: calibrate, check, predict, draw; one self-contained HTML report. The main job."""
    from simlib.report.reproduce import reproduce as run  # noqa: PLC0415  # drawing is slow to import

    with progress_bar() as progress:
        report = run(out, seed=seed, progress=progress)
    say("the report is at")
    sys.stdout.write(f"{report}\n")


@app.command()
def explore(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on loopback; 0: any free one.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open a browser.")] = True,
) -> None:
    """Open the notebooks in JupyterLab, on loopback, with its token."""
    from simlib.explorer.server import explore as run  # noqa: PLC0415  # JupyterLab is slow to import

    raise typer.Exit(run(port=port, browser=browser))


def main(arguments: list[str] | None = None) -> None:
    """Entry point: run the command, turn faults into one sentence and an exit code."""
    try:
        app(args=arguments, standalone_mode=True)
    except SimlibError as error:
        say(str(error))
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
