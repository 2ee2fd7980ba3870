# SPDX-License-Identifier: BSD-3-Clause
"""``simlib host``: measure this host, calibrate the model to it, report; watch a guest that it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import simlib
from simlib.ui.cli.output import Format, FormatOption, from_file, into_file, into_folder, progress_bar, say, show

app = typer.Typer(
    no_args_is_help=True,
    help="Your own host: measure it, calibrate the model to it, see how good that is, and watch its guests. "
    "docs/on-a-real-host.md has every step.",
)


FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="What simlib host measure wrote.")]
NameOption = Annotated[str, typer.Option(help="First part of the tables' names.")]


@app.command("measure")
def host_measure(
    out: Annotated[Path, into_folder("DIR", "Folder for what is measured; a begun one is continued.")],
    duration: Annotated[str, typer.Option(help="About how long to measure, e.g. 90s.")] = "300s",
    cpus: Annotated[str, typer.Option(metavar="LIST", help="CPUs to use, e.g. 0-3,8. Default: all.")] = "",
    numa: Annotated[int | None, typer.Option(metavar="NODE", help="Use this node's CPUs, and so its memory.")] = None,
    hugepages: Annotated[
        bool, typer.Option("--hugepages", help="Back guests with huge pages that are set aside.")
    ] = False,
    source: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A Linux tree to build the selftest from. Default: the source package."),
    ] = None,
    program: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The built selftest (mmu_lock_contention_test).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the order of the runs.")] = 1,
    restart: Annotated[bool, typer.Option("--restart", help="Begin anew, whatever the folder holds.")] = False,
    allow_busy: Annotated[bool, typer.Option("--allow-busy", help="Measure although other programs run.")] = False,
    name: NameOption = "host",
) -> None:
    """Measure this host's own /dev/kvm, on its kernel as it is; no rights are needed beyond those for /dev/kvm.

    Builds one selftest (half a minute), then runs small guests: faults, parked GET and CLEAR, CLEAR under load.
    A run that was cut off goes on where it stopped. Next: simlib host calibrate DIR

    Example: simlib host measure --out host
    """
    from simlib.model.quantities import PS_PER_S, parse_duration

    seconds = parse_duration(duration, "--duration") / PS_PER_S
    with progress_bar() as progress:
        plan = simlib.lab.host.MeasurementPlan(
            source, program, cpus, numa, hugepages, seconds, seed, restart, allow_busy
        )
        found = simlib.lab.host.measure_host(out, plan, name=name, progress=progress)
    say(f"{found.facts.cpu}, {len(found.facts.cpus)} CPUs, Linux {found.facts.kernel}: {found.facts.page_tables}")
    say(f"{len(found.records)} runs in {found.repeats} repeats, {found.noisy} of them noisy and not used")
    for path in found.tables:
        say(f"{path}")


@app.command("calibrate")
def host_calibrate(
    folder: FolderArgument,
    name: NameOption = "host",
    out: Annotated[Path | None, into_file("FIT.json", "Where to write the fit. Default: DIR/fit.json.")] = None,
    seed: Annotated[int, typer.Option(help="Of the resampling and of the replications.")] = 1,
    how: FormatOption = Format.TABLE,
) -> None:
    """Determine what actions cost on a measured host, with intervals, and predict what was held out.

    Example: simlib host calibrate host, then: simlib choose --fit host/fit.json
    """
    from simlib.lab.host.fit import calibrate_host
    from simlib.lab.host.measured import load_host

    with progress_bar() as progress:
        fit = calibrate_host(load_host(folder, name), seed, progress=progress)
    path = out or folder / "fit.json"
    simlib.save_fit(fit, path)
    show(fit.costs().drop(columns="fit"), how)
    seen = fit.observations
    for metric, rows in seen.groupby("metric", sort=False):
        ratio = (rows["model"] / rows["value"]).median()
        say(f"held out, {metric}: {len(rows)} cells, median of predicted / measured {ratio:.2f}")
    say(f"written to {path}; simlib host report {folder} shows all of it")


@app.command("report")
def host_report(
    folder: FolderArgument,
    name: NameOption = "host",
    fit: Annotated[Path | None, from_file("FIT.json", "The fit. Default: DIR/fit.json.")] = None,
    out: Annotated[Path | None, into_file("FILE.html", "Where to write it. Default: DIR/report.html.")] = None,
) -> None:
    """Write one HTML page: what was measured, the costs, and what was held out beside its prediction.

    Example: simlib host report host
    """
    from simlib.ui.report.host import host_report as page

    path = page(folder, None if fit is None else simlib.load_fit(fit), name).write(out or folder / "report.html")
    say(f"{path}")


@app.command("watch")
def host_watch(
    pid: Annotated[int | None, typer.Argument(metavar="[PID]", help="QEMU's process, instead of a socket.")] = None,
    qmp: Annotated[Path | None, typer.Option(metavar="SOCKET", help="A QMP socket that nobody else uses.")] = None,
    interval: Annotated[float, typer.Option(metavar="SECONDS", help="Time between two samples.")] = 0.5,
    duration: Annotated[
        float, typer.Option(metavar="SECONDS", help="End after so long. 0: when the migration is over.")
    ] = 0.0,
    events: Annotated[
        str | None,
        typer.Option(metavar="SYSTEM:EVENT,…", help="Tracepoints, '' for none. Default: locks and faults."),
    ] = None,
    out: Annotated[Path | None, into_folder("FOLDER", "Write every table there: CSV and descriptor.")] = None,
    name: Annotated[str, typer.Option(help="Name of the written files.")] = "watch",
    how: FormatOption = Format.TABLE,
) -> None:
    """Sample a running QEMU until its migration is over: passes, KVM's statistics, mmu_lock, threads, tracepoints.

    Ctrl-C ends it as well, and keeps what was sampled. Examples: simlib host watch --qmp /run/vm.qmp --out vm

    simlib host watch 4095 --duration 30 --events ''
    """
    from simlib.lab.host import watch_guest
    from simlib.lab.host.tracing import EVENTS

    chosen = EVENTS if events is None else [one.strip() for one in events.split(",") if one.strip()]
    with progress_bar() as progress:
        watched = watch_guest(qmp, pid, interval=interval, duration=duration or None, events=chosen, progress=progress)
        files = [] if out is None else watched.write(out, name)
        for warning in watched.imported.warnings:
            say(warning)
        for file in files:
            say(f"{file} and its descriptor written")
        show(watched.rows, how)
        if watched.interrupted:
            raise KeyboardInterrupt
