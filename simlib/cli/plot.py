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

from simlib.cli.output import Format, FormatOption, say
from simlib.errors import InputError
from simlib.files import check_writable

if TYPE_CHECKING:
    from simlib import Scenario
    from simlib.results import Result


asked: ContextVar[Sequence[str]] = ContextVar("asked", default=())
"""The command's arguments as they were given."""


@dataclass(frozen=True)
class Output:
    """How an answer is shown.

    Raises
    ------
    InputError
        The page could not be written: said before the work.
    """

    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE.html", help="Write the answer as one HTML page too: tables, figures, and "
                     "where it comes from; it needs no network."),
    ] = None  # fmt: skip
    how: FormatOption = Format.TABLE

    def __post_init__(self) -> None:
        if self.plot is None:
            return
        if self.plot.suffix.lower() not in (".html", ".htm"):
            cure = f"write {self.plot.with_suffix('.html')}"
            raise InputError("--plot", str(self.plot), "is a page, whose name ends in .html", cure)
        check_writable(self.plot)

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
