# SPDX-License-Identifier: BSD-3-Clause
"""``--plot FILE`` and ``--format``: the answer as one HTML page, and how it is printed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simlib.cli.output import Format, FormatOption, say, writable_file
from simlib.errors import InputError

if TYPE_CHECKING:
    from simlib import Scenario
    from simlib.results import Result


asked: ContextVar[Sequence[str]] = ContextVar("asked", default=())
"""The command's arguments as they were given."""


def page_file(context: typer.Context, path: Path | None) -> Path | None:
    """An option that names a page which is written after the work; refused before if it cannot be, or is no page."""
    if path is not None and path.suffix.lower() not in (".html", ".htm"):
        cure = f"write {path.with_suffix('.html')}"
        raise InputError("--plot", str(path), "is a page, whose name ends in .html", cure)
    return writable_file(context, path)


@dataclass(frozen=True)
class Output:
    """How an answer is shown."""

    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE.html", help="Write the answer as one HTML page too: tables, figures, and "
                     "where it comes from; it needs no network.", callback=page_file),
    ] = None  # fmt: skip
    how: FormatOption = Format.TABLE

    def write_page(
        self, result: Result | Mapping[str, Result], scenario: Scenario | None = None, seed: int | None = None
    ) -> None:
        """Write the page, if one was asked for."""
        if self.plot is None:
            return
        from simlib.report.answer import result_report

        command = shlex.join(["simlib", *asked.get()])
        result_report(result, command, scenario=scenario, seed=seed).write(self.plot)
        say(f"page written to {self.plot}")
