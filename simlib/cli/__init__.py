# SPDX-License-Identifier: BSD-3-Clause
"""The ``simlib`` command: thin, one function a subcommand.

Results go to stdout; progress and messages to stderr. Exit codes: 0 done,
1 failed, 2 wrong input, 128 + the signal if interrupted (130: Ctrl-C, 143: SIGTERM).
"""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import simlib
from simlib import interruption
from simlib.cli import data, decide, host, lab
from simlib.cli.output import Format, FormatOption, interruptible, progress_bar, say, show, whole_numbers
from simlib.cli.policies import policies
from simlib.errors import SimlibError
from simlib.files import write_text


class Commands(TyperGroup):
    """The commands, each of which a signal ends in order."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        with interruptible():
            return super().invoke(ctx)


app = typer.Typer(
    name="simlib",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="What does KVM's mmu_lock cost, and what would another way of taking it cost? "
    "A model of dirty logging, calibrated on measurements.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong input, 128 + the signal if interrupted (130: Ctrl-C, 143: SIGTERM).",
)
app.add_typer(data.app, name="data")
app.add_typer(lab.app, name="lab")
app.add_typer(host.app, name="host")
app.command()(decide.choose)
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


VcpusOption = Annotated[str, typer.Option(help="Numbers of vCPUs, e.g. 16,32,48.")]
VariantOption = Annotated[str, typer.Option(metavar="NAME", help="Which variant, if the scenario has any.")]
PolicyOption = Annotated[
    str, typer.Option(metavar="NAME", help="A way of taking the lock; simlib policies lists them.")
]
MetricsOption = Annotated[
    str,
    typer.Option(
        metavar="NAME,…", help="Metrics; dirty_memory_time[2]: of one iteration. Default: the workload's own."
    ),
]
LEVEL = 0.90
LevelOption = Annotated[float, typer.Option(min=0.5, max=0.999, help="Probability of the intervals.")]


@app.callback()
def options(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    """What stands before a subcommand; `main` answers --version."""


@app.command()
def calibrate(
    scenario: ScenarioArgument,
    tables: Annotated[
        list[str], typer.Argument(metavar="MEASUREMENTS.csv…", help="CSV files, or names of tables in data/.")
    ],
    out: Annotated[Path, typer.Option(metavar="FIT.json", help="Where to write the fit.")],
    train: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[TABLE:]CONDITION",
            help="Rows that the calibration may see, e.g. 'vcpus <= 8', of all tables or of one; may be repeated.",
        ),
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[TABLE:]CONDITION",
            help="Rows to use at all, e.g. \"series == 'spinlock-old-test'\"; may be repeated.",
        ),
    ] = None,
    level: LevelOption = LEVEL,
    seed: SeedOption = 1,
    how: FormatOption = Format.TABLE,
) -> None:
    """Determine a scenario's costs from measurements, with intervals.

    The scenario's [calibration] table names the costs that are unknown, and the metrics; each table gives those that
    it has. Examples: simlib calibrate data/scenarios/arm64-ampere-altra.toml arm64-dirty-memory-time
    --train "vcpus <= 8" --out build/fit.json

    simlib calibrate mine.toml times.csv clear.csv --train "vcpus <= 8" --train "clear:iteration > 1" --out fit.json
    """
    from simlib.calibration.tables import one_or_all, read_tables, split_conditions

    found = read_tables(tables)
    names = [table.name for table in found]
    chosen = one_or_all(split_conditions("train", train or [], names))
    used = one_or_all(split_conditions("select", select or [], names))
    with progress_bar() as progress:
        fit = simlib.calibrate(scenario, found, chosen, select=used, level=level, seed=seed, progress=progress)
    simlib.save_fit(fit, out, chosen)
    counts = f"{len(fit.problem.train)} observations, {len(fit.estimate.names)} costs"
    say(f"{counts}, discrepancy {fit.estimate.discrepancy:.1%}; written to {out}")
    for warning in fit.warnings:
        say(warning)
    for a, b, r in simlib.calibration.strongest_correlations(fit, 1):
        say(f"strongest correlation: {a} with {b}, {r:+.2f}")
    for variant in dict.fromkeys(fit.sensitivity["variant"].astype(str)) if len(fit.sensitivity) else ():
        rows = fit.sensitivity[fit.sensitivity["variant"] == variant]
        first = rows.sort_values("total", ascending=False).iloc[0]
        where = f"{variant or 'the time'} at {first['vcpus']} vCPUs"
        say(f"what moves {where} most: {first['name']} (total Sobol index {first['total']:.2f})")
    units = [simlib.fits.unit_of(n) for n in fit.intervals["name"]]
    show(fit.intervals[["name", "value", "low", "high", "determined"]].assign(unit=units), how)


@app.command()
def predict(
    scenario: ScenarioArgument,
    vcpus: VcpusOption,
    variant: VariantOption = "",
    policy: PolicyOption = "",
    fit: FitOption = None,
    metrics: MetricsOption = "",
    level: LevelOption = LEVEL,
    seed: SeedOption = 1,
    how: FormatOption = Format.TABLE,
) -> None:
    """Predict curves over vCPUs, with intervals: vcpus, metric, estimate, low, high, unit.

    A scenario with variants gives one curve a variant. Example: simlib predict
    data/scenarios/arm64-ampere-altra.toml --vcpus 16,32,48
    """
    with progress_bar() as progress:
        result = simlib.predict(
            scenario, whole_numbers(vcpus, "--vcpus"), variant=variant, policy=policy, fit=fit,
            metrics=_names(metrics), level=level, seed=seed, progress=progress,
        )  # fmt: skip
    for flag in result.flags:
        say(flag)
    show(result.frame if (result.frame["variant"] != "").any() else result.frame.drop(columns="variant"), how)


@app.command()
def compare(
    scenario: ScenarioArgument,
    policies: Annotated[
        list[str],
        typer.Argument(metavar="POLICY…", help="Names of policies, every-512 and the like for batches, own for what "
                       "the scenario says itself. The others are compared with the first."),
    ],
    vcpus: VcpusOption,
    variant: VariantOption = "",
    fit: FitOption = None,
    metrics: MetricsOption = "",
    level: LevelOption = LEVEL,
    seed: SeedOption = 1,
    how: FormatOption = Format.TABLE,
) -> None:  # fmt: skip
    """Set policies side by side over vCPUs, on the same costs and random numbers, with intervals.

    change_percent is against the first policy, as a paired comparison. Examples: simlib compare
    data/scenarios/lab-x86-shadow.toml whole-ioctl every-64 every-512 --vcpus 4,8

    simlib compare data/scenarios/x86-160-vcpus.toml own every-64 --variant before --vcpus 16
    """
    with progress_bar() as progress:
        result = simlib.compare(
            scenario, policies, whole_numbers(vcpus, "--vcpus"), variant=variant, fit=fit, metrics=_names(metrics),
            level=level, seed=seed, progress=progress,
        )  # fmt: skip
    for flag in result.flags:
        say(flag)
    show(result.readable() if how is Format.TABLE else result.frame, how)


def _names(text: str) -> list[str] | None:
    """Names of a list such as ``a,b``; none for the workload's own."""
    return [name.strip() for name in text.split(",")] if text else None


@app.command()
def simulate(
    scenario: ScenarioArgument,
    variant: VariantOption = "",
    fit: FitOption = None,
    vcpus: Annotated[int, typer.Option(min=0, help="Number of vCPUs instead of the scenario's.")] = 0,
    policy: PolicyOption = "",
    pages: Annotated[int, typer.Option(min=0, help="Pages a vCPU at most, scaled; 0: every page.")] = 0,
    sample: Annotated[
        int,
        typer.Option(min=0, metavar="WALKS", help="A migration: windows of so many walks, e.g. 8; 0: all of it."),
    ] = 0,
    engine: Annotated[EngineName, typer.Option(help="compiled, or reference: same result, slower.")] = (
        EngineName.COMPILED
    ),
    seed: SeedOption = 1,
    trace: Annotated[Path | None, typer.Option(metavar="OUT.json", help="Write a trace that Perfetto reads.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write all tables of the run as CSV files.")
    ] = None,
    listing: Annotated[
        bool, typer.Option("--listing", help="Print the programs that would run, and leave; docs/steps.md explains.")
    ] = False,
    how: FormatOption = Format.TABLE,
) -> None:
    """Simulate a scenario once, page by page, and print its metrics and each lock's statistics.

    Examples: simlib simulate mine.toml --vcpus 8

    simlib simulate mine.toml --policy "pages >= 512 or held >= 50us" --listing
    """
    if listing:
        case = simlib.programs(scenario, variant=variant, vcpus=vcpus or None, policy=policy, fit=fit)
        sys.stdout.write(case.listing() + "\n")
        return
    if sample:
        _sample(scenario, variant, fit, vcpus, policy, sample, seed, how)
        return
    _offer_sample(simlib.load_scenario(scenario), variant)
    with progress_bar() as progress:
        result = simlib.simulate(
            scenario, variant=variant, vcpus=vcpus or None, policy=policy, fit=fit, engine=engine.value, seed=seed,
            trace=TRACE_EVENTS if trace else 0, pages_per_vcpu=pages or None,
            progress=lambda events, now: progress(
                f"simulating: {events / 1e6:.0f} M events, {now * 1e-12:.2f} s", 0.5
            ),
        )  # fmt: skip
    if trace is not None:
        write_text(trace, json.dumps(simlib.perfetto_trace(result)))
        say(f"trace written to {trace}")
    if out is not None:
        for name, frame in result.tables().items():
            write_text(out / f"{name}.csv", frame.to_csv(index=False))
        say(f"tables written to {out}")
    for flag in result.flags:
        say(flag)
    show(result.table(), how)
    if how is Format.TABLE:
        sys.stdout.write("\n")
        show(result.locks(), how)


def _offer_sample(scenario: simlib.Scenario, variant: str) -> None:
    """Say that there is a faster way, where there is."""
    from simlib.sampling import WHOLE_PAGES, why_not

    case = scenario.variant(variant)
    if case.guest.pages_per_vcpu * case.guest.vcpus > 16 * WHOLE_PAGES and not why_not(case):
        say("all of it will be simulated, which may take minutes: --sample 8 takes seconds (docs/sampling.md)")


def _sample(
    scenario: Path, variant: str, fit: Path | None, vcpus: int, policy: str, walks: int, seed: int, how: Format
) -> None:
    """Some windows of a migration."""
    with progress_bar() as progress:
        result = simlib.sample(
            scenario, variant=variant, vcpus=vcpus or None, policy=policy, fit=fit, walks=walks, seed=seed,
            progress=progress,
        )  # fmt: skip
    for flag in result.flags:
        say(flag)
    say(f"sampled: {result.windows} windows of {result.walks} walks; docs/sampling.md says what is kept")
    show(result.table(), how)


@app.command()
def reproduce(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to write the report and its tables.")] = Path(
        "build/report"
    ),
    seed: SeedOption = 1,
) -> None:
    """Everything: calibrate, check, predict, draw; one self-contained HTML report. The main job."""
    from simlib.report.reproduce import reproduce as run

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
    from simlib.explorer.server import explore as run

    raise typer.Exit(run(port=port, browser=browser))


def main(arguments: list[str] | None = None) -> None:
    """Entry point: run the command, turn faults into one sentence and an exit code."""
    if (sys.argv[1:] if arguments is None else arguments)[:1] == ["--version"]:
        print(simlib.__version__)  # before anything is parsed: Typer imports all of pydantic for that
        return
    try:
        app(args=arguments, prog_name="simlib", standalone_mode=True)
    except SimlibError as error:
        say(error.on_command_line())
        interruption.state.told |= bool(interruption.state.asked)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
