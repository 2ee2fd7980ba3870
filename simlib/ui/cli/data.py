# SPDX-License-Identifier: BSD-3-Clause
"""``simlib data``: list, show, check and import measurement tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option, Typer
from typer.core import TyperCommand

import simlib
from simlib._lib.errors import InputError, nearest
from simlib.ui.cli.output import Format, FormatOption, into_folder, patient_progress, read_file, say, show, write

app = Typer(no_args_is_help=True, help="List, show, check and import measurement tables.")

PRINTED_ROWS = 60  # maximum number of rows of an imported table that are printed


class ImportCommand(TyperCommand):
    """Command whose help lists the kinds of files that can be imported; they are looked up only for the help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        kinds = (f"  {name:20} {kind.description}" for name, kind in simlib.measurements.KINDS.items())
        self.epilog = "\b\nKINDs:\n" + "\n".join(kinds)
        super().format_help(ctx, formatter)


@app.command("list")
def data_list(how: FormatOption = Format.TABLE) -> None:
    """List the measurement tables in data/."""
    frame = simlib.measurements.list_tables()
    if how is Format.TABLE:
        frame = frame[["name", "rows", "kind", "title"]]
    show(frame, how)


@app.command("show")
def data_show(
    name: Annotated[str, Argument(help="Name of a table, as printed by 'simlib data list'.")],
    where: Annotated[str, Option(help="Show only rows that meet this condition, e.g. 'vcpus <= 8'.")] = "",
    how: FormatOption = Format.TABLE,
) -> None:
    """Show one table, with its source, hardware and caveats."""
    table = simlib.measurements.load(name)
    say(table.title)
    say("source: " + ", ".join(f"{v}" for v in table.source.values()))
    say(f"hardware: {table.hardware}")
    for caveat in table.caveats:
        say(f"caveat: {caveat}")
    show(table.rows(where), how)


@app.command("check")
def data_check(
    path: Annotated[Path, Argument(help="CSV file; its descriptor, if any, is the .json file of the same name.")],
) -> None:
    """Check a measurement file against its schema and the rules of docs/data.md."""
    for line in simlib.measurements.check(path):
        write(line + "\n")


@app.command("import", cls=ImportCommand)
def data_import(
    kind: Annotated[str, Argument(metavar="KIND", help="Kind of the input, one of the KINDs below.")],
    path: Annotated[Path, Argument(metavar="PATH", help="Input file; -: standard input.", callback=read_file)],
    out: Annotated[Path | None, into_folder("FOLDER", "Also write all tables as CSV files with descriptors.")] = None,
    name: Annotated[str, Option(help="Base name of the files in FOLDER. Default: that of PATH.")] = "",
    table: Annotated[str, Option(help="Table to print. Default: all; with --format csv or json: the main one.")] = "",
    lock: Annotated[str, Option(help="For lock-stat: part of a class's name, or 'all'. Default: mmu_lock.")] = "",
    histograms: Annotated[
        bool, Option("--histograms", help="For kvm-stats and contention-test: also import the histograms.")
    ] = False,
    add: Annotated[
        list[str] | None,
        Option("--set", metavar="COLUMN=VALUE", help="Add a constant column, e.g. vcpus=8; may be repeated."),
    ] = None,
    how: FormatOption = Format.TABLE,
) -> None:
    """Convert output of lock_stat, trace-cmd, perf, KVM's selftests or KVM's statistics to tidy tables.

    Examples: simlib data import lock-stat /proc/lock_stat

    trace-cmd report | simlib data import trace-cmd - --format csv > waits.csv

    simlib data import dirty-log-perf-test run8.log --set vcpus=8 --out mine; simlib data check mine/run8.csv
    """
    options = {key: value for key, value in (("lock", lock), ("histograms", histograms)) if value}
    with patient_progress() as progress:
        imported = simlib.measurements.import_log(kind, path, progress=progress, **options).with_columns(
            settings(add or [])
        )
        if table and table not in imported.tables:
            raise InputError("--table", table, f"is not among the tables of {path}", nearest(table, imported.tables))
        files = [] if out is None else simlib.measurements.write_imported(imported, out, name)
    for file in files:
        say(f"wrote {file} and its descriptor")
    for warning in imported.warnings:
        say(f"warning: {warning}")
    if how is not Format.TABLE:
        others = [other for other in imported.tables if other != (table or imported.main.name)]
        show(imported.tables[table or imported.main.name].frame, how)
        if others and not table and out is None:
            say(f"other tables, which --table prints: {', '.join(others)}")
        return
    for number, chosen in enumerate([table] if table else list(imported.tables)):
        rows = imported.tables[chosen].frame
        write("\n" if number else "")
        say(f"{chosen}: {imported.tables[chosen].title}; rows: {len(rows)}")
        shown = rows.head(PRINTED_ROWS)
        show(shown.astype(object).where(shown.notna(), ""), how)
        if len(rows) > PRINTED_ROWS:
            say(f"rows not shown: {len(rows) - PRINTED_ROWS}; use --out or --format csv for all rows")


def settings(texts: list[str]) -> dict[str, str]:
    """Read ``NAME=VALUE`` arguments."""
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name in values:
            raise InputError("--set", text, "must be COLUMN=VALUE, with each column once", "write --set vcpus=8")
        values[name] = value
    return values
