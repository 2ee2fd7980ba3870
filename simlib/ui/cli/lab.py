# SPDX-License-Identifier: BSD-3-Clause
"""``simlib lab``: build, boot and run the patched kernels, and bring the data home."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import simlib
from simlib._lib.errors import InputError, SimlibError
from simlib.ui.cli.output import Format, FormatOption, into_folder, progress_bar, say, show, whole_numbers, write
from simlib.ui.cli.questions import grouped

if TYPE_CHECKING:
    from simlib import lab

app = typer.Typer(
    no_args_is_help=True,
    help="Build, boot and run the patched kernels, and bring the data home. docs/lab.md explains the numbers.",
)


class LabTable(StrEnum):
    """Tables that are made of a run."""

    RUNS = "runs"
    LOCKS = "locks"
    IOCTLS = "ioctls"
    STALLS = "stalls"


ArchitectureOption = Annotated[
    list[str] | None, typer.Option("--arch", help="Architecture; may be given again. Default: all three.")
]
ExperimentArgument = Annotated[Path, typer.Argument(metavar="EXPERIMENT.toml", help="docs/lab.md lists its keys.")]
SourceOption = Annotated[
    Path | None, typer.Option(metavar="TREE", help="A Linux tree; it is only read. Default: the source package.")
]
JobsOption = Annotated[int, typer.Option(min=0, help="Boots at a time, each on a core of its own. 0: all cores.")]


@dataclass(frozen=True)
class Tree:
    """The kernel that is patched, and with what."""

    source: SourceOption = None
    skip: Annotated[
        list[str] | None,
        typer.Option(metavar="PATCH", help="Leave out a patch, by number or file name; may be given again."),
    ] = None


@dataclass(frozen=True)
class Runs:
    """Where an experiment runs, and which of its runs."""

    native: Annotated[bool, typer.Option("--native", help="On this host's own /dev/kvm, with its kernel.")] = False
    jobs: JobsOption = 0
    restart: Annotated[bool, typer.Option("--restart", help="Run again what has a result already.")] = False


@app.command("check")
def lab_check(how: FormatOption = Format.TABLE) -> None:
    """Say what this machine can do for the lab, and what to install for more."""
    rows = [{"what": f.what, "there": "yes" if f.there else "no", "detail": f.detail} for f in simlib.lab.check_host()]
    show(rows, how)


@app.command("qemu")
def lab_qemu(
    arch: ArchitectureOption = None,
    if_needed: Annotated[bool, typer.Option("--if-needed", help="Only if none that is new enough is here.")] = False,
) -> None:
    """Unpack a new enough QEMU into the lab's folder; what is installed stays as it is. Debian only."""
    targets = _targets(arch)
    if not if_needed or simlib.lab.needs_qemu(targets):
        with _steps() as step:
            root = simlib.lab.fetch_qemu(targets, step)
        say(f"unpacked into {root}")


@app.command("build")
@grouped
def lab_build(
    *,
    arch: ArchitectureOption = None,
    kernel: Annotated[str, typer.Option(help="Kernel: statistics, plain or lock-stat.")] = "statistics",
    tree: Tree,
) -> None:
    """Patch and build kernel, selftests and initramfs: minutes the first time, seconds after that.

    Example: simlib lab build --arch x86_64
    """
    for target in _targets(arch):
        with _steps() as step:
            built = simlib.lab.build(target.name, kernel, tree.source, step, tree.skip or ())
        say(f"{built.image}")


@app.command("check-series")
@grouped
def lab_check_series(
    *,
    arch: ArchitectureOption = None,
    tree: Tree,
    each: Annotated[
        bool, typer.Option("--each/--whole", help="Compile each patch by itself, too, or the series as a whole alone.")
    ] = True,
) -> None:
    """Check the patch series: it applies, passes checkpatch --strict, and compiles with W=1 and sparse, each patch too.

    Takes half an hour on two cores; with --whole and two architectures a third of that.
    """
    with _steps() as step:
        good = simlib.lab.check_series(_targets(arch), tree.source, step, tree.skip or (), each)
    for line in good:
        say(f"good: {line}")


@app.command("run")
@grouped
def lab_run(
    experiment: ExperimentArgument,
    runs: Runs,
    table: Annotated[LabTable, typer.Option(help="Which table to print.")] = LabTable.RUNS,
    how: FormatOption = Format.TABLE,
) -> None:
    """Run an experiment, all cells of its matrix, and print what came out.

    Results are kept: a run that was cut off goes on where it stopped.
    """
    found = _collect(experiment, runs)
    show(simlib.lab.tables(found.records)[table], how)
    _report(found)


@app.command("compare")
def lab_compare(
    experiment: Annotated[
        Path, typer.Argument(metavar="EXPERIMENT.toml", help="With parked = true: counts are exact.")
    ],
    jobs: JobsOption = 0,
    how: FormatOption = Format.TABLE,
) -> None:
    """Run an experiment and compare its lock acquisitions with the simulator's; fail if they differ.

    What happens before the log is enabled is shown but not judged: the guest also accesses its own code and tables.
    """
    from simlib.lab.hardware.counts import count_comparison

    found = _collect(experiment, Runs(jobs=jobs))
    _report(found)
    locks = simlib.lab.tables(found.records)["locks"]
    if not len(locks) or (locks["parked"] != "true").any():
        raise InputError(str(experiment), "not parked", "counts are exact only while the vCPUs wait", "parked = true")
    frame = count_comparison(locks)
    show(frame[["switches", "vcpus", "protection", "phase", "what", "lock_mode", "kernel", "model", "difference"]], how)
    wrong = frame[(frame["phase"] == "rounds") & (frame["difference"] != 0)]
    if len(wrong):
        raise SimlibError(f"{len(wrong)} counts differ from the simulator's")
    say(f"{(frame['phase'] == 'rounds').sum()} counts equal the simulator's")


@app.command("predict")
def lab_predict(
    *,
    experiment: Annotated[Path, typer.Argument(metavar="EXPERIMENT.toml", help="Cells under load, or migrations.")],
    out: Annotated[Path, into_folder("DIR", "Folder for the table and its descriptor.")],
    name: Annotated[str, typer.Option(help="What the lab's tables are going to be called.")],
) -> None:
    """Predict what the lab will measure in an experiment, with intervals, before it is run: a table and a descriptor.

    Cells under load, or real migrations. Commit it, then collect the experiment under the same name. docs/lab.md shows
    how both are compared.

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
    _list_again(out)


@app.command("collect")
@grouped
def lab_collect(
    *,
    experiment: ExperimentArgument,
    out: Annotated[Path, into_folder("DIR", "Folder for the tables and their descriptors.")],
    name: Annotated[str, typer.Option(help="First part of the tables' names.")] = "lab",
    runs: Runs,
) -> None:
    """Run an experiment's whole matrix and write tables with descriptors: a data package of one's own.

    Example: simlib lab collect data/experiments/load.toml --out mine --name load
    """
    simlib.lab.check_name("--name", name)
    found = _collect(experiment, runs)
    _report(found)
    for path in simlib.lab.write_tables(found.records, out, name):
        say(f"{path}")
    _list_again(out)


@app.command("migrate")
@grouped
def lab_migrate(
    *,
    experiment: Annotated[
        Path, typer.Argument(metavar="EXPERIMENT.toml", help="Migrations; docs/lab.md has its keys.")
    ],
    out: Annotated[Path | None, into_folder("DIR", "Also write the tables and their descriptors.")] = None,
    name: Annotated[str, typer.Option(help="First part of the tables' names.")] = "migrate",
    restart: Annotated[bool, typer.Option("--restart", help="Run again what has a result already.")] = False,
    how: FormatOption = Format.TABLE,
) -> None:
    """Migrate guests from one real QEMU to another on this machine, and see what it decides.

    The guest is 64 KiB of firmware that writes to its memory at a known rate. One migration runs at a time, with
    nothing else on the machine if its times are to be believed. Results are kept: a run that was cut off goes on.

    Example: simlib lab migrate data/experiments/migrate-smoke.toml
    """
    simlib.lab.check_name("--name", name)
    migrations = simlib.lab.load_migrations(experiment)
    with progress_bar() as progress:
        found = simlib.lab.collect_migrations(migrations, restart=restart, progress=progress)
    if found.found:
        show(found.readable() if how is Format.TABLE else found.frame(), how)
    if out is not None:
        for path in simlib.lab.write_migrations(found, out, name):
            say(f"{path}")
        _list_again(out)
    for label, reason in found.failures.items():
        say(f"failed: {label}: {reason}")
    if found.failures:
        raise SimlibError(f"{len(found.failures)} of {len(migrations)} migrations failed")


def _list_again(out: Path) -> None:
    """Bring the listing of a data package up to date, if a folder belongs to one."""
    if (out.parent / "datapackage.json").is_file():
        simlib.measurements.update_listing(out.parent)
        say(f"{out.parent / 'datapackage.json'}")


@dataclass(frozen=True)
class Kernels:
    """Which kernels are tried, and where."""

    source: SourceOption = None
    arch: Annotated[
        list[str] | None,
        typer.Option(
            "--arch",
            help="Architecture, or machine such as x86_64/npt. Default: all that are built from what it changes.",
        ),
    ] = None
    quick: Annotated[bool, typer.Option("--quick", help="The small matrix: minutes on two cores.")] = False
    parameter: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Parameter of the module kvm, for the changed kernel."),
    ] = None
    set_all: Annotated[
        list[str] | None, typer.Option("--set-all", metavar="NAME=VALUE", help="The same, for both kernels.")
    ] = None
    kernel: Annotated[
        str, typer.Option(help="statistics; plain: times alone; lock-stat: counts by lock, whatever lock it is.")
    ] = "statistics"
    jobs: JobsOption = 0


@dataclass(frozen=True)
class Ways:
    """How a series is taken apart, and when it is refused."""

    each_patch: Annotated[
        bool, typer.Option("--each-patch", help="Each patch beside the kernel with those before it.")
    ] = False
    bisect: Annotated[
        str, typer.Option(metavar="METRIC", help="Which patch changes a number, by halves: 'clear time'.")
    ] = ""
    fail_if: Annotated[
        str, typer.Option(metavar="RULE", help="End with 3 if it holds: 'clear time > 5%', or 'changed'.")
    ] = ""


@dataclass(frozen=True)
class Hardware:
    """To which hardware a trial is carried."""

    on: Annotated[
        Path | None,
        typer.Option(metavar="SCENARIO.toml", help="Predict this scenario without the series and with it."),
    ] = None
    fit: Annotated[Path | None, typer.Option(metavar="FIT.json", help="Costs of a host of one's own.")] = None
    vcpus: Annotated[str, typer.Option(help="Numbers of vCPUs to predict.")] = "1,4,16,64"


@app.command("try")
@grouped
def lab_try(
    *,
    series: Annotated[
        str,
        typer.Argument(
            metavar="SERIES",
            help="Folder of patches, mailbox, patch, commits of --source (HEAD~3..HEAD), patches of ours (7, 16-17).",
        ),
    ],
    kernels: Kernels,
    ways: Ways,
    hardware: Hardware,
    out: Annotated[
        Path | None,
        into_folder("DIR", "Also write a page, the text, as Markdown too, and all numbers as CSV and JSON."),
    ] = None,
) -> None:
    """Try a patch series: boot a kernel without it and one with it, and say what differs, beyond seeds and layout.

    Both are patched to count who takes mmu_lock. What differs is carried to calibrated hosts. Ends with 1 if the kernel
    with the series fails. docs/try-a-patch.md reads an answer.

    Example: simlib lab try 0001-mine.patch --quick
    """
    from simlib.simulator.engine.compiled import compiling_meanwhile

    rule = simlib.lab.FailRule.parse(ways.fail_if) if ways.fail_if else None
    vcpus = whole_numbers(hardware.vcpus, "--vcpus")
    with compiling_meanwhile():
        trials, more = _trials_of(series, kernels, ways)
    carried = []
    for found in trials:  # what was measured is told before it is predicted from
        write(f"{found.summary()}\n\n")
        with progress_bar() as progress:
            meant = simlib.on_hardware(found, hardware.on, fit=hardware.fit, vcpus=vcpus, progress=progress)
        write(f"{meant.summary()}\n\n")
        carried.append(meant)
    write(more)
    if out is not None:
        _write_trials(out, trials, carried)
    for found in trials:
        if found.failures:
            raise SimlibError(f"the kernel with the series fails on {', '.join(found.failures)}")
    for found in trials:
        if rule is not None and (broken := rule.broken(found)):
            say(f"--fail-if {ways.fail_if}: {broken}")
            raise typer.Exit(3)


def _trials_of(series: str, kernels: Kernels, ways: Ways) -> tuple[list[lab.Trial], str]:
    """The trials of a series, and what is to be said beside them."""
    settings, of_both = _settings("--set", kernels.parameter or []), _settings("--set-all", kernels.set_all or [])
    if (settings or of_both) and (ways.each_patch or ways.bisect):
        cure = "leave out --each-patch and --bisect, or --set and --set-all"
        raise InputError("--set", ", ".join(settings | of_both), "belongs to one patch", cure)
    with progress_bar() as progress:
        tried: dict[str, Any] = {
            "source": kernels.source, "machines": kernels.arch or (), "quick": kernels.quick,
            "kernel": kernels.kernel, "jobs": kernels.jobs, "progress": progress,
        }  # fmt: skip
        if ways.bisect:
            bisection = simlib.lab.bisect_series(series, ways.bisect, **tried)
            return [bisection.trial], f"{bisection.summary()}\n"
        if ways.each_patch:
            return simlib.lab.try_each_patch(series, **tried), ""
        return [simlib.lab.try_series(series, parameters=settings, of_both=of_both, **tried)], ""


def _write_trials(out: Path, trials: Sequence[lab.Trial], carried: Sequence[simlib.OnHardware]) -> None:
    """Write each trial's files, those of several with a number before their names."""
    from simlib._lib.files import write_together
    from simlib.ui.report.answer import result_report

    texts = dict[str, str]()
    for number, (found, meant) in enumerate(zip(trials, carried, strict=True), 1):
        first = f"{number:04}-" if len(trials) > 1 else ""
        page = result_report({"Lab": found, "Hardware": meant}, found.about["command"])
        texts |= found.files(first) | {f"{first}hardware.csv": meant.frame.to_csv(index=False),
                                       f"{first}trial.html": page.to_html()}  # fmt: skip
    for path in write_together(out, texts):
        say(f"{path}")


def _settings(option: str, given: list[str]) -> dict[str, str]:
    """Parameters of the form NAME=VALUE."""
    for text in given:
        if not all(text.partition("=")[::2]):
            raise InputError(option, text, "is not of the form NAME=VALUE", f"write {option} dirty_log_clear_batch=64")
    return dict(text.split("=", 1) for text in given)


@app.command("costs")
def lab_costs(
    out: Annotated[Path | None, into_folder("DIR", "Also write a fit file for each machine.")] = None,
    how: FormatOption = Format.TABLE,
) -> None:
    """Print what actions cost on the lab's machines, in instructions, from data/collected.

    Lab time counts instructions: these are relative costs of code paths, not of hardware.

    Example: simlib lab costs --out data/fits
    """
    from simlib._lib.files import write_together
    from simlib.lab.hardware.load import lab_fit
    from simlib.lab.hardware.machines import LABS
    from simlib.measurements.fits.file import fit_text

    rows, texts = [], {}
    with progress_bar() as progress:
        for number, name in enumerate(LABS, 1):
            fit = lab_fit(name)
            values = fit.parameters[["name", "value", "low", "high"]].itertuples(index=False)
            rows += [
                {"machine": fit.scenario.host.name, "name": cost, "value": value / 1000, "low": low / 1000,
                 "high": high / 1000, "unit": "instructions"}
                for cost, value, low, high in values
            ]  # fmt: skip
            texts[f"{fit.scenario.host.name}.json"] = fit_text(fit)
            progress(name, number / len(LABS))
    if out is not None:
        write_together(out, texts)
    show(rows, how)


@contextmanager
def _steps() -> Iterator[Callable[[str], None]]:
    """A progress display of steps whose share of the whole nobody knows: it foretells nothing."""
    with progress_bar() as progress:
        yield lambda step: progress(step, 0.0)


def _collect(experiment: Path, runs: Runs) -> lab.Collected:
    experiments = simlib.lab.load_experiment(experiment)
    with progress_bar() as progress:
        if runs.native:
            return simlib.lab.collect_native(experiments, progress=progress)
        return simlib.lab.collect(experiments, jobs=runs.jobs, restart=runs.restart, progress=progress)


def _report(found: lab.Collected) -> None:
    """Say which cells failed and which did not repeat themselves; fail if any did."""
    for label, reason in found.failures.items():
        say(f"failed: {reason if reason.startswith(label) else f'{label}: {reason}'}")
    different = [record.label for record in found.records if not record.repeatable]
    for label in different:
        say(f"not repeatable: {label}")
    if found.failures:
        raise SimlibError(f"{len(found.failures)} of {len(found.failures) + len(found.records)} cells failed")


def _targets(names: list[str] | None) -> list[lab.Target]:
    return [simlib.lab.find_target(name) for name in names or simlib.lab.TARGETS]
