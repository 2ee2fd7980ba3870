# SPDX-License-Identifier: BSD-3-Clause
"""``simlib host``: measure this host, calibrate the model to it, report, and watch a guest on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

import simlib
from simlib.ui.cli.output import Format, FormatOption, from_file, into_file, into_folder, progress_bar, say, show

app = Typer(
    no_args_is_help=True,
    help="Measure this host, calibrate the model to it, check the model's predictions, and watch a guest. "
    "docs/on-a-real-host.md describes every step.",
)

FolderArgument = Annotated[Path, Argument(metavar="DIR", help="Folder that 'simlib host measure' wrote.")]
NameOption = Annotated[str, Option(help="Prefix of the tables' names.")]


@app.command("measure")
def host_measure(
    out: Annotated[
        Path, into_folder("DIR", "Folder for the measurements; if it contains an incomplete measurement, continue it.")
    ],
    duration: Annotated[str, Option(help="Approximate total duration, e.g. 90s.")] = "300s",
    cpus: Annotated[str, Option(metavar="LIST", help="CPUs to use, e.g. 0-3,8. Default: all.")] = "",
    numa: Annotated[int | None, Option(metavar="NODE", help="Use the CPUs and memory of this NUMA node.")] = None,
    hugepages: Annotated[bool, Option("--hugepages", help="Back guests with reserved huge pages (hugetlb).")] = False,
    source: Annotated[
        Path | None,
        Option(metavar="DIR", help="Linux source tree with KVM's selftests. Default: Debian's linux-source package."),
    ] = None,
    program: Annotated[Path | None, Option(metavar="FILE", help="Use this built mmu_lock_contention_test.")] = None,
    seed: Annotated[int, Option(help="Random seed for the order of the runs.")] = 1,
    restart: Annotated[bool, Option("--restart", help="Discard the folder's measurements and start again.")] = False,
    allow_busy: Annotated[bool, Option("--allow-busy", help="Measure even if other programs use the CPUs.")] = False,
    name: NameOption = "host",
) -> None:
    """Measure the costs of faults and CLEAR on this host, with its running kernel. PML must be off (pml=0).

    Needs access to /dev/kvm. Builds a KVM selftest, which takes 30 s, and runs it in several cells: faults, GET and
    CLEAR with parked vCPUs, and CLEAR under load. An interrupted measurement continues where it stopped.

    Example: simlib host measure --out host, then: simlib host calibrate host
    """
    from simlib.model.quantities import PS_PER_S, parse_duration

    seconds = parse_duration(duration, "--duration") / PS_PER_S
    with progress_bar() as progress:
        plan = simlib.lab.host.MeasurementPlan(
            source, program, cpus, numa, hugepages, seconds, seed, restart, allow_busy
        )
        measurement = simlib.lab.host.measure_host(out, plan, name=name, progress=progress)
    facts = measurement.facts
    say(f"{facts.cpu}, CPUs: {len(facts.cpus)}, Linux {facts.kernel}, page tables: {facts.page_tables}")
    used = f"repeats: {measurement.repeats}, noisy runs, which are not used: {measurement.noisy}"
    say(f"runs: {len(measurement.records)}, {used}")
    for path in measurement.tables:
        say(f"{path}")


@app.command("calibrate")
def host_calibrate(
    folder: FolderArgument,
    name: NameOption = "host",
    out: Annotated[Path | None, into_file("FIT.json", "File for the fit. Default: DIR/fit.json.")] = None,
    seed: Annotated[int, Option(help="Random seed for the resampling and the replications.")] = 1,
    how: FormatOption = Format.TABLE,
) -> None:
    """Estimate the costs of a measured host, with intervals, and predict the held-out measurements.

    Example: simlib host calibrate host, then: simlib choose --fit host/fit.json
    """
    from simlib.lab.host.fit import calibrate_host
    from simlib.lab.host.measured import load_host

    with progress_bar() as progress:
        fit = calibrate_host(load_host(folder, name), seed, progress=progress)
    path = out or folder / "fit.json"
    simlib.save_fit(fit, path)
    show(fit.costs().drop(columns="fit"), how)
    for metric, rows in fit.observations.groupby("metric", sort=False):
        ratio = (rows["model"] / rows["value"]).median()
        say(f"held-out cells of {metric}: {len(rows)}; median of predicted / measured: {ratio:.2f}")
    say(f"fit written to {path}; simlib host report {folder} writes a report")


@app.command("report")
def host_report(
    folder: FolderArgument,
    name: NameOption = "host",
    fit: Annotated[Path | None, from_file("FIT.json", "Fit to report. Default: DIR/fit.json.")] = None,
    out: Annotated[Path | None, into_file("FILE.html", "File for the report. Default: DIR/report.html.")] = None,
) -> None:
    """Write an HTML page: the measurements, the costs, and the predictions of the held-out measurements.

    Example: simlib host report host
    """
    from simlib.ui.report.host import host_report as page

    path = page(folder, None if fit is None else simlib.load_fit(fit), name).write(out or folder / "report.html")
    say(f"{path}")


@app.command("watch")
def host_watch(
    pid: Annotated[int | None, Argument(metavar="[PID]", help="Process ID of QEMU; required without --qmp.")] = None,
    qmp: Annotated[Path | None, Option(metavar="SOCKET", help="QMP socket of QEMU without another client.")] = None,
    interval: Annotated[float, Option(metavar="SECONDS", help="Time between successive samples.")] = 0.5,
    duration: Annotated[
        float, Option(metavar="SECONDS", help="Stop after this time; 0: when a migration has ended.")
    ] = 0.0,
    events: Annotated[
        str | None, Option(metavar="SYSTEM:EVENT,…", help="Tracepoints; '': none. Default: those of locks and faults.")
    ] = None,
    out: Annotated[Path | None, into_folder("FOLDER", "Also write all tables as CSV files with descriptors.")] = None,
    name: Annotated[str, Option(help="Prefix of the files' names.")] = "watch",
    how: FormatOption = Format.TABLE,
) -> None:
    """Record a running QEMU until its migration ends: passes, KVM's statistics, mmu_lock, threads and tracepoints.

    Ctrl-C ends the recording and keeps the samples. Examples: simlib host watch --qmp /run/vm.qmp --out vm

    simlib host watch 4095 --duration 30 --events ''
    """
    from simlib.lab.host import watch_guest
    from simlib.lab.host.tracing import EVENTS

    names = EVENTS if events is None else [event.strip() for event in events.split(",") if event.strip()]
    with progress_bar() as progress:
        watched = watch_guest(qmp, pid, interval=interval, duration=duration or None, events=names, progress=progress)
        files = [] if out is None else watched.write(out, name)
        for warning in watched.imported.warnings:
            say(warning)
        for file in files:
            say(f"wrote {file} and its descriptor")
        show(watched.summary, how)
        if watched.interrupted:
            raise KeyboardInterrupt
