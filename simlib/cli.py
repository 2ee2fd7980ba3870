# SPDX-License-Identifier: BSD-3-Clause
"""The ``simlib`` command: thin, one function a subcommand.

Results go to stdout; progress and messages to stderr. Exit codes: 0 done,
1 failed, 2 wrong input, 130 interrupted.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import simlib
from simlib import calibration, measurements
from simlib.calibration import Fit
from simlib.engine.simulate import SimulationResult, perfetto_trace
from simlib.errors import InputError, RunInterruptedError, SimlibError, nearest
from simlib.files import write_text
from simlib.model.scenario import Scenario, load_scenario
from simlib.predict import LEVEL, METRICS, complete
from simlib.predict import predict as predict_curves

app = typer.Typer(
    name="simlib",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="What does KVM's mmu_lock cost, and what would another way of taking it cost? "
    "A model of dirty logging, calibrated on measurements.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong input, 130 interrupted.",
)
data_app = typer.Typer(no_args_is_help=True, help="List, show, check and import measurement tables.")
app.add_typer(data_app, name="data")

QUIET_S = 10.0
"""Without a terminal, longest silence of a stage, s."""

PATIENCE_S = 2.0
"""What is read faster than this shows no progress, s."""

PRINTED_ROWS = 60
"""Most rows of an imported table that are printed as a table."""

TRACE_EVENTS = 2_000_000
"""Most events that a trace file holds."""


class Format(StrEnum):
    """How a result is printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


class EngineName(StrEnum):
    """Which engine runs."""

    COMPILED = "compiled"
    REFERENCE = "reference"


FormatOption = Annotated[Format, typer.Option("--format", help="Print the result as a table, CSV or JSON.")]
ScenarioArgument = Annotated[
    Path, typer.Argument(metavar="SCENARIO.toml", help="Scenario file; docs/scenario.md lists its keys.")
]
FitOption = Annotated[
    Path | None,
    typer.Option(metavar="FIT.json", help="Calibrated costs. Default: the shipped fit for the scenario's machine."),
]
SeedOption = Annotated[int, typer.Option(help="Root of all random streams.")]


def show(frame: pd.DataFrame, how: Format) -> None:
    """Print a result on stdout."""
    # Whole numbers with a missing one among them are floats in pandas; print them as whole numbers.
    frame = frame.convert_dtypes()
    if how is Format.CSV:
        text = frame.to_csv(index=False)
    elif how is Format.JSON:
        text = json.dumps(json.loads(frame.to_json(orient="records", double_precision=12)), indent=1) + "\n"
    else:
        text = frame.to_string(index=False, float_format=number, na_rep="") + "\n"
    sys.stdout.write(text)


def number(value: float) -> str:
    """A number for a table: whole numbers in full, others with six digits.

    Examples
    --------
    >>> number(4732558.0), number(10.07921)
    ('4732558', '10.0792')
    """
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.6g}"


def say(text: str) -> None:
    """Print a message on stderr."""
    sys.stderr.write(f"simlib: {text}\n")


@contextmanager
def progress_bar() -> Iterator[Callable[[str, float], None]]:
    """A progress display on stderr; without a terminal, a line for each stage. Ctrl-C ends in one sentence."""
    try:
        with _display() as progress:
            yield progress
    except KeyboardInterrupt:
        raise RunInterruptedError("interrupted; nothing half-written is left behind") from None


@contextmanager
def _display() -> Iterator[Callable[[str, float], None]]:
    if not sys.stderr.isatty():
        last_stage, last_time = "", 0.0

        def line(what: str, share: float) -> None:
            """One line for each stage, and one now and then while it lasts; what stands before ``:`` is the stage."""
            nonlocal last_stage, last_time
            stage, now = what.partition(":")[0], time.monotonic()
            if stage != last_stage or now - last_time > QUIET_S:
                last_stage, last_time = stage, now
                say(f"{what} …")

        yield line
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting (the first run compiles the engine)", total=1.0)
        yield lambda what, share: bar.update(task, description=what, completed=share)


@contextmanager
def patient_progress() -> Iterator[Callable[[str, float], None]]:
    """A progress display that appears only when it takes longer than `PATIENCE_S`."""
    began, report = time.monotonic(), None
    with ExitStack() as stack:

        def progress(what: str, share: float) -> None:
            nonlocal report
            if report is None and time.monotonic() - began > PATIENCE_S:
                report = stack.enter_context(progress_bar())
            if report is not None:
                report(f"{what}: {share:.0%}", share)

        try:
            yield progress
        except KeyboardInterrupt:
            raise RunInterruptedError("interrupted; nothing half-written is left behind") from None


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


@data_app.command("list")
def data_list(how: FormatOption = Format.TABLE) -> None:
    """List the measurement tables in data/."""
    frame = measurements.list_tables()
    if how is Format.TABLE:
        frame = frame[["name", "rows", "kind", "title"]]
    show(frame, how)


@data_app.command("show")
def data_show(
    name: Annotated[str, typer.Argument(help="Name of a table, as `simlib data list` prints it.")],
    where: Annotated[str, typer.Option(help="Only rows that meet a condition, e.g. 'vcpus <= 8'.")] = "",
    how: FormatOption = Format.TABLE,
) -> None:
    """Show one table, with its source, hardware and caveats."""
    table = measurements.load(name)
    say(table.title)
    say("source: " + ", ".join(f"{v}" for v in table.source.values()))
    say(f"hardware: {table.hardware}")
    for caveat in table.caveats:
        say(f"caveat: {caveat}")
    show(table.rows(where), how)


@data_app.command("check")
def data_check(
    path: Annotated[Path, typer.Argument(help="A CSV file (its descriptor, if any, stands beside it as .json).")],
) -> None:
    """Check a measurement file against its schema and the rules of docs/data.md."""
    for line in measurements.check(path):
        sys.stdout.write(line + "\n")


@data_app.command(
    "import",
    epilog="\b\nKINDs:\n" + "\n".join(f"  {name:20} {kind.description}" for name, kind in measurements.KINDS.items()),
)
def data_import(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="What the file is; listed below.")],
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The file; - is standard input.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write every table there: CSV and descriptor.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the written files. Default: that of the file.")] = "",
    table: Annotated[
        str, typer.Option(help="Print this table. Default: with --format table all, else the first.")
    ] = "",
    lock: Annotated[
        str, typer.Option(help="lock-stat: part of the classes' names, or all. Default: those that are mmu_lock.")
    ] = "",
    histograms: Annotated[
        bool, typer.Option("--histograms", help="kvm-stats, contention-test: the histograms too.")
    ] = False,
    add: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="COLUMN=VALUE", help="Add a column that the file does not say; may be repeated."),
    ] = None,
    how: FormatOption = Format.TABLE,
) -> None:
    """Make a tidy table of what another tool printed: lock_stat, traces, perf, selftests, KVM statistics.

    Examples: simlib data import lock-stat /proc/lock_stat

    trace-cmd report | simlib data import trace-cmd - --format csv > waits.csv

    simlib data import dirty-log-perf-test run8.log --set vcpus=8 --out mine; simlib data check mine/run8.csv
    """
    options = {key: value for key, value in (("lock", lock), ("histograms", histograms)) if value}
    with patient_progress() as progress:
        imported = measurements.import_log(kind, path, progress=progress, **options).with_columns(settings(add or []))
        if table and table not in imported.tables:
            raise InputError("--table", table, f"is not among the tables of {path}", nearest(table, imported.tables))
        files = [] if out is None else measurements.write_imported(imported, out, name)
    for file in files:
        say(f"{file} and its descriptor written")
    for warning in imported.warnings:
        say(f"warning: {warning}")
    if how is not Format.TABLE:
        others = [other for other in imported.tables if other != (table or imported.main.name)]
        show(imported.tables[table or imported.main.name].frame, how)
        if others and not table and out is None:
            say(f"more with --table: {', '.join(others)}")
        return
    for number, chosen in enumerate([table] if table else list(imported.tables)):
        rows = imported.tables[chosen].frame
        sys.stdout.write("\n" if number else "")
        say(f"{chosen}: {imported.tables[chosen].title}; {len(rows)} rows")
        shown = rows.head(PRINTED_ROWS)
        show(shown.astype(object).where(shown.notna(), ""), how)
        if len(rows) > PRINTED_ROWS:
            say(f"… and {len(rows) - PRINTED_ROWS} more rows; --out or --format csv gives them all")


def settings(texts: list[str]) -> dict[str, str]:
    """Names and values of ``NAME=VALUE`` arguments.

    Examples
    --------
    >>> settings(["vcpus=8"])
    {'vcpus': '8'}
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name in found:
            raise InputError("--set", text, "must be COLUMN=VALUE, each column once", "write --set vcpus=8")
        found[name] = value
    return found


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


def whole_numbers(text: str, what: str) -> list[int]:
    """Whole numbers of a list such as ``16,32,48``.

    Examples
    --------
    >>> whole_numbers("16,32", "--vcpus")
    [16, 32]
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(what, text, "must be whole numbers separated by commas", "write 16,32,48") from None


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
