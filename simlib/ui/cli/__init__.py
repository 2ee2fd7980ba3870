# SPDX-License-Identifier: BSD-3-Clause
"""The ``simlib`` command, with one function per subcommand.

Results go to stdout, progress and messages to stderr. Exit status: 0 done, 1 failed, 2 invalid input, 3 the rule of
--fail-if is true, 128 + number of the signal if interrupted (Ctrl-C: 130, SIGTERM: 143).
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option, Typer
from typer.core import TyperGroup

import simlib
from simlib._lib import signals
from simlib._lib.errors import InputError, SimlibError
from simlib._lib.extras import missing
from simlib._lib.files import write_text, write_together
from simlib._lib.parallel import MAX_WORKERS
from simlib.ui.cli import data, decide, host, lab, migrate
from simlib.ui.cli.output import (
    Format,
    FormatOption,
    from_file,
    interruptible,
    into_file,
    into_folder,
    progress_bar,
    read_file,
    say,
    show,
    write,
)
from simlib.ui.cli.questions import (
    ClusterOption,
    Curves,
    ExecutorOptions,
    Intervals,
    Output,
    PolicyOption,
    RunOptions,
    ScenarioArgument,
    ScenarioOptions,
    SeedOption,
    command_arguments,
    grouped,
)

if TYPE_CHECKING:
    from simlib.model.policies import Tables


class Commands(TyperGroup):
    """Group of commands that a signal ends cleanly."""

    def invoke(self, ctx: Any) -> Any:
        """Run the selected command."""
        with interruptible():
            return super().invoke(ctx)


app = Typer(
    name="simlib",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Simulate contention on KVM's mmu_lock during dirty logging and live migration, with calibrated costs. "
    "Predict and compare metrics, choose a strategy for the lock, and plan a migration.",
    epilog="Exit status: 0 done, 1 failed, 2 invalid input, 3 the rule of --fail-if is true, 130 Ctrl-C, 143 SIGTERM.",
)
app.add_typer(data.app, name="data")
app.add_typer(lab.app, name="lab")
app.add_typer(host.app, name="host")
app.command()(migrate.migrate)
app.command()(decide.choose)
app.command("choose-batch")(decide.choose_batch)

TRACE_EVENTS = 2_000_000  # maximum number of events in a trace file


@app.callback()
def options(show_version: Annotated[bool, Option("--version", help="Print the version and exit.")] = False) -> None:
    """Options before a subcommand; `main` handles --version."""


@app.command()
def policies(how: FormatOption = Format.TABLE) -> None:
    """List the policies that --policy and 'simlib compare' accept by name, with their settings and sources.

    every-N is also accepted for any multiple N of 64: CLEAR drops mmu_lock after every N pages.
    """
    from simlib.model.policies import POLICIES

    rows = []
    for row in POLICIES.values():
        changes = changes_of(row.changes)
        if row.architectures:
            changes = f"{changes} on {', '.join(row.architectures)}; on other architectures {changes_of(row.elsewhere)}"
        rows.append({"name": row.name, "title": row.title, "exists": row.exists, "changes": changes,
                     "source": "; ".join(row.sources)})  # fmt: skip
    show(rows, how)


def changes_of(tables: Tables) -> str:
    """Format the changes of a policy as one line.

    >>> changes_of({"policy": {"eager_split": True}, "workload": {"clear_threads": 2}})
    'policy.eager_split = true, workload.clear_threads = 2'
    """
    values = ((f"{section}.{key}", value) for section, table in tables.items() for key, value in table.items())
    return ", ".join(f"{key} = {str(value).lower()}" for key, value in values)


@app.command()
def sweep(
    grid: Annotated[Path, Argument(metavar="GRID.toml", help="Grid file; docs/sweeps.md lists its keys.")],
    out: Annotated[Path, Option(metavar="FOLDER", help="Folder for the data sets.")],
    resume: Annotated[bool, Option("--resume", help="Continue the interrupted sweep in FOLDER.")] = False,
    cluster: ClusterOption = "",
    workers: Annotated[int, Option(min=0, max=MAX_WORKERS, help="Number of worker processes; 0: one per CPU.")] = 0,
) -> None:
    """Simulate a grid of scenario values, policies and architectures, each point to the requested precision.

    FOLDER/results is a Parquet data set for pandas, DuckDB or Polars; FOLDER/refused lists the points that are not
    valid scenarios. If the sweep is interrupted, finished points are kept; --resume simulates the remaining points. The
    results do not depend on the number of workers.

    Examples: simlib sweep data/grids/first.toml --out build/first

    simlib sweep mine.toml --out build/mine --resume --cluster tcp://10.0.0.1:8786
    """
    from simlib.analysis.sweep import run

    with progress_bar() as progress:
        result = run(grid, out, resume=resume, workers=cluster or workers, progress=progress, announce=say)
    results = result.points - result.refused
    say(f"points simulated: {results:,}, refused: {result.refused:,}; the results are in")
    write(f"{result.folder / 'results'}\n")


@app.command()
@grouped
def calibrate(
    *,
    scenario: ScenarioArgument,
    tables: Annotated[
        list[str],
        Argument(metavar="MEASUREMENTS.csv…", help="CSV files, or names of tables in data/.", callback=read_file),
    ],
    out: Annotated[Path, into_file("FIT.json", "File for the fit.")],
    train: Annotated[
        list[str] | None,
        Option(
            metavar="[TABLE:]CONDITION",
            help="Rows to calibrate on, e.g. 'vcpus <= 8'; others are held out. One condition per table. Default: all.",
        ),
    ] = None,
    select: Annotated[
        list[str] | None,
        Option(metavar="[TABLE:]CONDITION", help="Rows to use, e.g. \"series == 'spinlock-old-test'\". Default: all."),
    ] = None,
    intervals: Intervals,
    elsewhere: ExecutorOptions,
    output: Output,
) -> None:
    """Estimate a scenario's costs from measurements, with intervals.

    The scenario's [calibration] table names the costs to estimate and the measured metrics. Rows that --select does not
    select are ignored. A condition with the prefix TABLE: applies only to that table, any other to all tables.

    Examples: simlib calibrate data/scenarios/arm64-ampere-altra.toml arm64-dirty-memory-time
    --train "vcpus <= 8" --out build/fit.json

    simlib calibrate mine.toml times.csv clear.csv --train "vcpus <= 8" --train "clear:iteration > 1" --out fit.json
    """
    from simlib.analysis.calibrate.tables import read_tables, single_condition, split_conditions

    measured = read_tables(tables)
    names = [table.name for table in measured]
    chosen = single_condition(split_conditions("train", train or [], names))
    used = single_condition(split_conditions("select", select or [], names))
    with progress_bar() as progress, elsewhere.in_use():
        options = simlib.CalibrationOptions(select=used, level=intervals.level)
        fit = simlib.calibrate(scenario, measured, chosen, seed=intervals.seed, progress=progress, options=options)
    simlib.save_fit(fit, out)
    output.write_page(fit)
    counts = f"observations: {len(fit.train)}, costs: {len(fit.estimate.names)}"
    say(f"{counts}, discrepancy: {100 * fit.estimate.discrepancy:.1f} %; fit written to {out}")
    for warning in fit.warnings if output.how is not Format.TABLE else ():
        say(warning)
    for variant in dict.fromkeys(fit.sensitivity["variant"].astype(str)) if len(fit.sensitivity) else ():
        rows = fit.sensitivity[fit.sensitivity["variant"] == variant]
        first = rows.sort_values("total", ascending=False).iloc[0]
        where = f"the time{f' of {variant}' if variant else ''} with vcpus = {first['vcpus']}"
        say(f"{where} is most sensitive to {first['name']} (total Sobol index {first['total']:.2f})")
    if output.how is Format.TABLE:
        write(f"{fit.summary()}\n")
    else:
        show(fit.costs().drop(columns="fit").assign(determined=fit.parameters["determined"]), output.how)


@app.command()
@grouped
def predict(*, curves: Curves, policy: PolicyOption = "", output: Output) -> None:
    """Predict metrics at each given number of vCPUs, with intervals (columns vcpus, metric, estimate, low, high, unit).

    If the scenario has variants, each variant is predicted. Example: simlib predict
    data/scenarios/arm64-ampere-altra.toml --vcpus 16,32,48 --plot build/curves.html
    """
    result = curves.answer(simlib.predict, output, policy=policy)
    show(result.frame if (result.frame["variant"] != "").any() else result.frame.drop(columns="variant"), output.how)


@app.command()
@grouped
def compare(
    *,
    curves: Curves,
    policies: Annotated[
        list[str],
        Argument(metavar="POLICY…", help="Names of policies (listed by 'simlib policies'), or conditions; baseline is "
                       "the scenario's own policy. Each policy is compared with the first one."),
    ],
    output: Output,
) -> None:  # fmt: skip
    """Compare policies at each given number of vCPUs, with intervals. All use the same costs and common random numbers.

    The column change_percent is the change relative to the first policy, from paired runs. Examples: simlib compare
    data/scenarios/lab-x86-shadow.toml whole-ioctl every-64 every-512 --vcpus 4,8

    simlib compare data/scenarios/x86-160-vcpus.toml baseline every-64 --variant before --vcpus 16
    """
    result = curves.answer(simlib.compare, output, policies=policies)
    show(result.readable() if output.how is Format.TABLE else result.frame, output.how)


@app.command()
@grouped
def simulate(
    *,
    case: ScenarioOptions,
    run: RunOptions,
    listing: Annotated[
        bool, Option("--listing", help="Print the program of each thread, and exit. See docs/steps.md.")
    ] = False,
    output: Output,
) -> None:
    """Simulate a scenario once, page by page, and print its metrics and the statistics of each lock.

    Examples: simlib simulate mine.toml --vcpus 8

    simlib simulate mine.toml --policy "pages >= 512 or held >= 50us" --listing
    """
    if listing:
        write(simlib.programs(**case.arguments()).listing() + "\n")
        return
    if run.sample:
        _sample(case, run, output)
        return
    costs = run.unknown.unknown_costs
    with progress_bar() as progress:
        result = simlib.simulate(
            **case.arguments(), engine=run.engine.value, seed=run.seed, trace=TRACE_EVENTS if run.trace else 0,
            pages_per_vcpu=run.pages or None, unknown_costs=costs.value, announce=_offer_sample(case),
            progress=lambda events, now: progress(
                f"simulating: {events / 1e6:.0f} million events, {now * 1e-12:.2f} s of simulated time", 0.0
            ),
        )  # fmt: skip
        result.spread(progress)
    if run.trace is not None:
        write_text(run.trace, json.dumps(simlib.perfetto_trace(result)))
        say(f"trace written to {run.trace}")
    if run.out is not None:
        write_together(run.out, {f"{name}.csv": frame.to_csv(index=False) for name, frame in result.tables().items()})
        say(f"tables written to {run.out}")
    output.write_page(result)
    for flag in result.notes:
        say(flag)
    run.unknown.report(result.costs())
    show(result.table(), output.how)
    if output.how is Format.TABLE:
        write("\n")
        show(result.locks(), output.how)


def _offer_sample(case: ScenarioOptions) -> Callable[[str], None]:
    """Return a function that announces a long run, and a faster way if there is one."""
    from simlib.simulator.sampling import unsupported_reason

    scenario = simlib.load_scenario(case.scenario).variant(case.variant)
    faster = "" if unsupported_reason(scenario) else "; with --sample 8 it takes seconds (docs/sampling.md)"
    return lambda text: say(text + faster)


def _sample(case: ScenarioOptions, run: RunOptions, output: Output) -> None:
    given = [f"--{name}" for name in ("pages", "trace", "out") if getattr(run, name)]
    given += ["--engine"] * (run.engine.value != "compiled")
    if given:
        raise InputError("--sample", run.sample, f"cannot be combined with {', '.join(given)}", "omit one of them")
    number, seed, costs = run.sample, run.seed, run.unknown.unknown_costs
    with progress_bar() as progress:
        result = simlib.sample(
            **case.arguments(), replications=number, seed=seed, unknown_costs=costs.value, progress=progress
        )
    for flag in result.flags:
        say(flag)
    run.unknown.report(result.costs)
    output.write_page(result)
    say(f"sampled runs: {result.replications}, windows: {result.windows}; docs/sampling.md explains the method")
    show(result.table(), output.how)


@app.command()
def reproduce(
    out: Annotated[Path, into_folder("FOLDER", "Folder for the report and its tables.")] = Path("build/report"),
    seed: SeedOption = 1,
) -> None:
    """Recompute all studies, run all notebooks and write the HTML report. Needs a checkout of the repository."""
    from importlib import import_module

    from simlib._lib.checkout import require_checkout

    require_checkout("simlib reproduce")
    run = import_module("studies.reproduce").reproduce  # the studies are not in the package

    with progress_bar() as progress:
        report = run(out, seed=seed, progress=progress)
    say("the report is at")
    write(f"{report}\n")


@app.command()
def explore(
    port: Annotated[int, Option(min=0, max=65535, help="TCP port on the loopback interface; 0: any free port.")] = 0,
    browser: Annotated[bool, Option(help="Open the page in a browser.")] = True,
    lab: Annotated[bool, Option("--lab", help="Open the notebooks in JupyterLab instead of the page.")] = False,
    page: Annotated[str, Option(metavar="NAME", help="Page to open: strategies (default) or migration.")] = "",
    query: Annotated[str, Option(metavar="QUERY", help="Initial state of the page, as a URL query string.")] = "",
    scenario: Annotated[Path | None, from_file("FILE", "Scenario file with the initial state of the page.")] = None,
    table: Annotated[
        Path | None, into_file("OUT.csv", "Write the page's table to OUT.csv, and do not open the page.")
    ] = None,
) -> None:
    """Open the explorer, a web page that simulates migrations, and serve the notebooks. The server listens only on the
    loopback interface, and requires a token.

    Example: simlib explore --query 'architecture=arm64&guest.vcpus=128&strategy=every-64&pin=whole-ioctl'

    simlib explore --page migration
    """
    from simlib.ui import explorer
    from simlib.ui.explorer.server import explore as run

    query = "&".join(filter(None, [page and f"page={page}", query]))
    if not query and scenario is None and table is None:  # nothing to check, which would import half of simlib
        raise Exit(run(port=port, browser=browser, lab=lab))
    from simlib.ui.explorer.state import PAGES, ExplorerState, page_of

    asks, finds = PAGES[page_of(query) if scenario is None else ""]
    of_query = getattr(explorer, asks).from_query
    state = of_query(query) if scenario is None else ExplorerState(simlib.load_scenario(scenario))
    if table is None:
        raise Exit(run(port=port, browser=browser, query=state.query, lab=lab))
    with progress_bar() as progress:
        findings = getattr(explorer, finds)(state, progress)
    write_text(table, findings.table().to_csv(index=False))
    say(f"wrote {table}")


def main(arguments: list[str] | None = None) -> None:
    """Run the command; an error becomes one sentence and an exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    # Characters that the encoding lacks (µ in ASCII, lone surrogates of a file name) become escapes, not errors.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        command_arguments.set(given)
        try:
            if given[:1] == ["--version"]:  # before anything is parsed: Typer imports all of pydantic for that
                write(f"{simlib.__version__}\n")
            else:
                app(args=arguments, prog_name="simlib", standalone_mode=True)
        finally:
            sys.stdout.flush()
    except SimlibError as error:
        say(error.cli_message())
        signals.state.reported |= bool(signals.state.received)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        if not (sentence := missing(error.name)):
            raise
        say(sentence)
        sys.exit(1)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except MemoryError:
        say("not enough memory: simulate a smaller guest, or read a smaller file")
        sys.exit(1)
    except OSError as error:  # not handled elsewhere: standard output, or any other system call
        unnamed = "the current folder" if isinstance(error, FileNotFoundError) else "standard output"
        say(f"{error.filename or unnamed}: {error.strerror or error}")
        if sys.stdout is sys.__stdout__ and sys.stdout is not None:  # so that Python does not try again when it exits
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
