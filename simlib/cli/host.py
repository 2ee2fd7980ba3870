# SPDX-License-Identifier: BSD-3-Clause
"""``simlib host``: what a real host and its guests say of themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simlib.cli.output import Format, FormatOption, progress_bar, say, show

app = typer.Typer(
    no_args_is_help=True,
    help="Watch guests on this host. docs/on-a-real-host.md goes from a stock kernel to a watched migration.",
)


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
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write every table there: CSV and descriptor.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the written files.")] = "watch",
    how: FormatOption = Format.TABLE,
) -> None:
    """Sample a running QEMU until its migration is over: passes, KVM's statistics, mmu_lock, threads, tracepoints.

    Ctrl-C ends it as well, and keeps what was sampled. Examples: simlib host watch --qmp /run/vm.qmp --out vm

    simlib host watch 4095 --duration 30 --events ''
    """
    from simlib.host import watch_guest
    from simlib.host.tracing import EVENTS

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
