# SPDX-License-Identifier: BSD-3-Clause
"""``simlib lab``: build, boot and run patched kernels, and collect their counts and times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option, Typer

import simlib
from simlib._lib.errors import InputError, SimlibError
from simlib.ui.cli.output import Format, FormatOption, into_folder, progress_bar, say, show, whole_numbers, write
from simlib.ui.cli.questions import grouped

if TYPE_CHECKING:
    from simlib import lab

app = Typer(
    no_args_is_help=True,
    help="Build patched kernels, boot them under emulation, and collect counts and times. See docs/lab.md.",
)


class LabTable(StrEnum):
    """Tables of a run."""

    RUNS = "runs"
    LOCKS = "locks"
    IOCTLS = "ioctls"
    STALLS = "stalls"


ArchitectureOption = Annotated[
    list[str] | None, Option("--arch", help="x86_64, arm64 or riscv64; may be repeated. Default: all three.")
]
ExperimentArgument = Annotated[Path, Argument(metavar="EXPERIMENT.toml", help="Experiment file; see docs/lab.md.")]
SourceOption = Annotated[
    Path | None, Option(metavar="TREE", help="Linux source tree; not modified. Default: Debian's linux-source package.")
]
KernelOption = Annotated[
    str, Option(help="Kernel: statistics (counts by call site), plain (times only), lock-stat (counts by lock class).")
]
JobsOption = Annotated[int, Option(min=0, help="Number of concurrent boots, each on one core; 0: one per core.")]
RestartOption = Annotated[bool, Option("--restart", help="Discard earlier results and run everything again.")]


@dataclass(frozen=True)
class LabRunOptions:
    """Host or emulator, concurrency, and reuse of results."""

    native: Annotated[bool, Option("--native", help="Run on this machine's /dev/kvm; results are not reused.")] = False
    jobs: JobsOption = 0
    restart: RestartOption = False


@app.command("check")
def lab_check(how: FormatOption = Format.TABLE) -> None:
    """Check whether this machine has what the lab needs, and name what to install."""
    rows = [
        {"what": f.what, "there": "yes" if f.present else "no", "detail": f.detail} for f in simlib.lab.check_host()
    ]
    show(rows, how)


@app.command("qemu")
def lab_qemu(
    arch: ArchitectureOption = None,
    if_needed: Annotated[
        bool, Option("--if-needed", help="Do nothing if the installed QEMU is recent enough.")
    ] = False,
) -> None:
    """Unpack a recent QEMU into the lab's folder, without installing it. Debian 12 only."""
    targets = _targets(arch)
    if not if_needed or simlib.lab.needs_qemu(targets):
        with _steps() as step:
            root = simlib.lab.fetch_qemu(targets, step)
        say(f"unpacked into {root}")


@app.command("build")
def lab_build(
    *,
    arch: ArchitectureOption = None,
    kernel: KernelOption = "statistics",
    source: SourceOption = None,
    skip: Annotated[
        list[str] | None, Option(metavar="PATCH", help="Number or file name of a patch to leave out; may be repeated.")
    ] = None,
) -> None:
    """Patch and build the kernel, its selftests and an initramfs. Takes minutes the first time, seconds afterwards.

    Example: simlib lab build --arch x86_64
    """
    for target in _targets(arch):
        with _steps() as step:
            built = simlib.lab.build(target.name, kernel, source, step, skip or ())
        say(f"{built.image}")


@app.command("run")
@grouped
def lab_run(
    experiment: ExperimentArgument,
    runs: LabRunOptions,
    table: Annotated[LabTable, Option(help="Table to print.")] = LabTable.RUNS,
    how: FormatOption = Format.TABLE,
) -> None:
    """Run all cells of an experiment, and print a table of the results.

    Results are kept: to resume an interrupted run, repeat the command.
    """
    collected = _collect(experiment, runs)
    show(simlib.lab.tables(collected.records)[table], how)
    _report(collected)


@app.command("compare")
def lab_compare(
    experiment: Annotated[Path, Argument(metavar="EXPERIMENT.toml", help="Experiment file with parked = true.")],
    jobs: JobsOption = 0,
    how: FormatOption = Format.TABLE,
) -> None:
    """Run an experiment, and compare its counts of lock acquisitions with the simulator's.

    Exits with status 1 if a count differs from the simulator's while vCPUs write and CLEAR runs. Differences in earlier
    phases are printed, but do not affect the exit status: while memory is populated, the guest also accesses its code
    and its page tables.
    """
    from simlib.lab.hardware.counts import count_comparison

    collected = _collect(experiment, LabRunOptions(jobs=jobs))
    _report(collected)
    locks = simlib.lab.tables(collected.records)["locks"]
    if not len(locks) or (locks["parked"] != "true").any():
        raise InputError(str(experiment), "not parked", "must park the vCPUs, for exact counts", "set parked = true")
    frame = count_comparison(locks)
    show(frame[["switches", "vcpus", "protection", "phase", "what", "lock_mode", "kernel", "model", "difference"]], how)
    wrong = frame[(frame["phase"] == "rounds") & (frame["difference"] != 0)]
    if len(wrong):
        raise SimlibError(f"counts that differ from the simulator's: {len(wrong)}")
    say(f"counts that equal the simulator's: {(frame['phase'] == 'rounds').sum()}")


@app.command("predict")
def lab_predict(
    *,
    experiment: ExperimentArgument,
    out: Annotated[Path, into_folder("DIR", "Folder for the table and its descriptor.")],
    name: Annotated[str, Option(help="Prefix of the tables' names; collect the experiment under the same name.")],
) -> None:
    """Predict the lab's measurements of an experiment before it is run.

    Writes a table with intervals, and its descriptor. The experiment must consist of cells under load or of migrations.

    Commit the prediction, and then collect the experiment under the same name. docs/lab.md describes the comparison.

    Example: simlib lab predict data/experiments/odd.toml --out data/predictions --name odd
    """
    from simlib._lib.files import write_together
    from simlib.lab.hardware.ledger import predict_cells, prediction_files

    simlib.lab.check_name("--name", name)
    if simlib.lab.has_migrations(experiment):
        from simlib.lab.migration.forecast import forecast_files

        files = forecast_files(experiment, name)
    else:
        with progress_bar() as progress:
            predicted = predict_cells(simlib.lab.load_experiment(experiment), progress)
        files = prediction_files(predicted, name, experiment)
    for path in write_together(out, files):
        say(f"{path}")
    _update_listing(out)


@app.command("collect")
@grouped
def lab_collect(
    *,
    experiment: ExperimentArgument,
    out: Annotated[Path, into_folder("DIR", "Folder for the tables and their descriptors.")],
    name: Annotated[str, Option(help="Prefix of the tables' names.")] = "lab",
    runs: LabRunOptions,
) -> None:
    """Run all cells of an experiment, and write tables with descriptors.

    Example: simlib lab collect data/experiments/load.toml --out mine --name load
    """
    simlib.lab.check_name("--name", name)
    collected = _collect(experiment, runs)
    _report(collected)
    for path in simlib.lab.write_tables(collected.records, out, name):
        say(f"{path}")
    _update_listing(out)


@app.command("migrate")
def lab_migrate(
    *,
    experiment: ExperimentArgument,
    out: Annotated[Path | None, into_folder("DIR", "Also write tables with descriptors.")] = None,
    name: Annotated[str, Option(help="Prefix of the tables' names.")] = "migrate",
    predict: Annotated[
        bool,
        Option("--predict", help="Predict the migration of each Linux guest from its measurement, before it begins."),
    ] = False,
    restart: RestartOption = False,
    how: FormatOption = Format.TABLE,
) -> None:
    """Migrate guests between two QEMU processes on this host, and record passes, times and throttling.

    The guest runs firmware of 64 KiB that writes to memory at a known rate, or a Debian kernel with a workload, which
    is measured first. Migrations run one after another; their times are valid only on an otherwise idle host.
    Results are kept: to resume an interrupted run, repeat the command.

    Example: simlib lab migrate data/experiments/migrate-smoke.toml
    """
    simlib.lab.check_name("--name", name)
    migrations = simlib.lab.load_migrations(experiment)
    with progress_bar() as progress:
        before = simlib.lab.predict_linux if predict else None
        migrated = simlib.lab.collect_migrations(
            migrations, restart=restart, progress=progress, before_migration=before
        )
    if migrated.results:
        show(migrated.readable() if how is Format.TABLE else migrated.frame(), how)
    if out is not None:
        for path in simlib.lab.write_migrations(migrated, out, name):
            say(f"{path}")
        _update_listing(out)
    for label, reason in migrated.failures.items():
        say(f"failed: {label}: {reason}")
    if migrated.failures:
        raise SimlibError(f"{len(migrated.failures)} of {len(migrations)} migrations failed")


def _update_listing(out: Path) -> None:
    """Update the listing of the data package that contains a folder, if there is one."""
    if (out.parent / "datapackage.json").is_file():
        simlib.measurements.update_listing(out.parent)
        say(f"{out.parent / 'datapackage.json'}")


@dataclass(frozen=True)
class TryOptions:
    """Kernels, cells and patches of a trial, the rule by which it fails, and the prediction for hardware."""

    source: SourceOption = None
    arch: Annotated[
        list[str] | None,
        Option("--arch", help="Architecture or MMU mode, e.g. x86_64/npt; may be repeated. Default: all affected."),
    ] = None
    quick: Annotated[bool, Option("--quick", help="Run fewer cells; this takes minutes on two cores.")] = False
    parameter: Annotated[
        list[str] | None,
        Option("--set", metavar="NAME=VALUE", help="Parameter of kvm.ko, only for the kernel with the series."),
    ] = None
    set_all: Annotated[
        list[str] | None, Option("--set-all", metavar="NAME=VALUE", help="Parameter of kvm.ko for both kernels.")
    ] = None
    kernel: KernelOption = "statistics"
    jobs: JobsOption = 0
    each_patch: Annotated[
        bool, Option("--each-patch", help="Compare the kernel after each patch with the kernel before it.")
    ] = False
    bisect: Annotated[
        str, Option(metavar="METRIC", help="Find the patch that changes a metric, e.g. 'clear time', by bisection.")
    ] = ""
    fail_if: Annotated[
        str, Option(metavar="RULE", help="Exit with status 3 if RULE is true, e.g. 'clear time > 5%' or 'changed'.")
    ] = ""
    on: Annotated[
        Path | None,
        Option(metavar="SCENARIO.toml", help="Scenario for the prediction. Default: workloads on calibrated hosts."),
    ] = None
    fit: Annotated[Path | None, Option(metavar="FIT.json", help="Fit of your host. Default: the shipped fits.")] = None
    vcpus: Annotated[str, Option(help="Numbers of vCPUs for the prediction, separated by commas.")] = "1,4,16,64"


@app.command("try")
@grouped
def lab_try(
    *,
    series: Annotated[
        str,
        Argument(
            metavar="SERIES",
            help="Patch, folder of patches, mailbox, commits of --source (HEAD~3..HEAD), or simlib's patches (16-17).",
        ),
    ],
    options: TryOptions,
    out: Annotated[
        Path | None, into_folder("DIR", "Also write the answer (mail, Markdown, HTML) and all numbers (CSV, JSON).")
    ] = None,
) -> None:
    """Try a patch series: compare two kernels, one without the series and one with it.

    Boots both kernels under emulation, and counts the acquisitions of mmu_lock by call site. Reports significant
    differences, and predicts from them the effect on calibrated hosts. Exits with status 1 if the kernel with the
    series does not boot, or fails a test. docs/try-a-patch.md explains the answer.

    Example: simlib lab try 0001-mine.patch --quick
    """
    from simlib.simulator.engine.compiled import compiling_engine

    rule = simlib.lab.FailRule.parse(options.fail_if) if options.fail_if else None
    vcpus = whole_numbers(options.vcpus, "--vcpus")
    with compiling_engine():
        trials, bisection = _try_series(series, options)
    predictions = []
    for trial in trials:  # prints the measured differences first, as the prediction takes a while
        write(f"{trial.summary()}\n\n")
        with progress_bar() as progress:
            prediction = simlib.on_hardware(trial, options.on, fit=options.fit, vcpus=vcpus, progress=progress)
        write(f"{prediction.summary()}\n\n")
        predictions.append(prediction)
    write(bisection)
    if out is not None:
        _write_trials(out, trials, predictions)
    for trial in trials:
        if trial.failures:
            raise SimlibError(f"the kernel with the series fails on {', '.join(trial.failures)}")
    for trial in trials:
        if rule is not None and (violation := rule.violation(trial)):
            say(f"--fail-if {options.fail_if}: {violation}")
            raise Exit(3)


def _try_series(series: str, given: TryOptions) -> tuple[list[lab.Trial], str]:
    """Run the trials of a series, and return them with the summary of a bisection."""
    options = simlib.lab.TrialOptions(
        source=given.source,
        mmu_modes=given.arch or (),
        quick=given.quick,
        parameters=_parameters("--set", given.parameter or []),
        shared_parameters=_parameters("--set-all", given.set_all or []),
        kernel=given.kernel,
        jobs=given.jobs,
    )
    with progress_bar() as progress:
        if given.bisect:
            bisection = simlib.lab.bisect_series(series, given.bisect, options, progress=progress)
            return [bisection.trial], f"{bisection.summary()}\n"
        if given.each_patch:
            return simlib.lab.try_each_patch(series, options, progress=progress), ""
        return [simlib.lab.try_series(series, options, progress=progress)], ""


def _write_trials(out: Path, trials: Sequence[lab.Trial], predictions: Sequence[simlib.OnHardware]) -> None:
    """Write each trial's files; with several trials, the names begin with the trial's number."""
    from simlib._lib.files import write_together
    from simlib.ui.report.answer import result_report

    texts = dict[str, str]()
    for number, (trial, prediction) in enumerate(zip(trials, predictions, strict=True), 1):
        prefix = f"{number:04}-" if len(trials) > 1 else ""
        page = result_report({"Lab": trial, "Hardware": prediction}, trial.about["command"])
        texts |= trial.files(prefix)
        texts |= {f"{prefix}hardware.csv": prediction.frame.to_csv(index=False), f"{prefix}trial.html": page.to_html()}
    for path in write_together(out, texts):
        say(f"{path}")


def _parameters(option: str, settings: list[str]) -> dict[str, str]:
    for text in settings:
        if not all(text.partition("=")[::2]):
            raise InputError(option, text, "must be NAME=VALUE", f"write {option} dirty_log_clear_batch=64")
    return dict(text.split("=", 1) for text in settings)


@app.command("costs")
def lab_costs(
    out: Annotated[Path | None, into_folder("DIR", "Estimate the costs from data/collected; write the fits.")] = None,
    how: FormatOption = Format.TABLE,
) -> None:
    """Print the costs of KVM's actions on the lab's emulated machines, in instructions.

    Lab time counts instructions, so these costs serve to compare code paths; they are not times on hardware. The costs
    are read from the shipped fits. With --out, they are estimated from the collected data; this needs a checkout.

    Example: simlib lab costs --out data/fits
    """
    from simlib._lib.checkout import require_checkout
    from simlib._lib.files import write_together
    from simlib.lab.hardware.machines import LABS
    from simlib.measurements.fits.file import fit_text

    if out is None:
        fits = [simlib.load_fit(simlib.measurements.data_dir() / "fits" / f"lab-{name}.json") for name in LABS]
    else:
        from simlib.lab.hardware.load import lab_fit

        require_checkout("simlib lab costs --out")
        fits = []
        with progress_bar() as progress:
            for number, name in enumerate(LABS, 1):
                fits.append(lab_fit(name))
                progress(name, number / len(LABS))
        write_together(out, {f"{fit.scenario.host.name}.json": fit_text(fit) for fit in fits})
    rows = [
        {"machine": fit.scenario.host.name, "name": cost, "value": value / 1000, "low": low / 1000,
         "high": high / 1000, "unit": "instructions"}
        for fit in fits
        for cost, value, low, high in fit.parameters[["name", "value", "low", "high"]].itertuples(index=False)
    ]  # fmt: skip
    show(rows, how)


@contextmanager
def _steps() -> Iterator[Callable[[str], None]]:
    """Show the progress of steps whose share of the whole is unknown, without an estimate of the remaining time."""
    with progress_bar() as progress:
        yield lambda step: progress(step, 0.0)


def _collect(experiment: Path, runs: LabRunOptions) -> lab.Collected:
    experiments = simlib.lab.load_experiment(experiment)
    with progress_bar() as progress:
        if runs.native:
            return simlib.lab.collect_native(experiments, progress=progress)
        return simlib.lab.collect(experiments, jobs=runs.jobs, restart=runs.restart, progress=progress)


def _report(collected: lab.Collected) -> None:
    """Print the cells that failed and those whose repeats differ; raise `SimlibError` if any failed."""
    for label, reason in collected.failures.items():
        say(f"failed: {reason if reason.startswith(label) else f'{label}: {reason}'}")
    for record in collected.records:
        if not record.repeatable:
            say(f"not repeatable: {record.label}")
    if collected.failures:
        total = len(collected.failures) + len(collected.records)
        raise SimlibError(f"{len(collected.failures)} of {total} cells failed")


def _targets(names: list[str] | None) -> list[lab.Target]:
    return [simlib.lab.find_target(name) for name in names or simlib.lab.TARGETS]
