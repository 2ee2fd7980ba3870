# SPDX-License-Identifier: BSD-3-Clause
"""Output of results, messages and progress."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from typer import Context, Option

from simlib._lib import signals
from simlib._lib.errors import InputError, RunInterruptedError, printable
from simlib._lib.files import check_writable
from simlib._lib.signals import state

if TYPE_CHECKING:
    import pandas as pd

QUIET_S = 10.0  # without a terminal, longest time between two messages of a stage, s
STARTING = "starting (the first run compiles the engine)"  # first message of a progress display
PATIENCE_S = 2.0  # time after which reading shows its progress, s
WIDTH = 120  # columns of text where stdout is not a terminal
PROSE = 80  # maximum columns of sentences
NARROWEST, LONGEST_WORD = 14, 30
"""Width to which a column of short words may be narrowed, and length up to which a word is not split."""

GAP = "  "

Named = TypeVar("Named", Path | None, str, list[str])
"""Type of an argument that names one file, several files or none."""


class Format(StrEnum):
    """Output format of a result."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


FormatOption = Annotated[Format, Option("--format", help="Print the result as a table, CSV or JSON.")]


def read_file(context: Context, path: Named) -> Named:
    """Register the input files of an argument or option, so that no output replaces them."""
    for name in path if isinstance(path, list) else [path]:
        if name is not None and os.path.isfile(name):
            _named_once(context, Path(name), "read")
            if Path(name).suffix == ".csv":  # with its descriptor
                _named_once(context, Path(name).with_suffix(".json"), "read")
    return path


def writable_file(context: Context, path: Path | None) -> Path | None:
    """Register a file that is written after the work; refuse it at once if it cannot be written."""
    return None if path is None else _named_once(context, check_writable(path), "written")


def writable_folder(context: Context, path: Path | None) -> Path | None:
    """Register a folder that is written after the work; refuse it at once if it cannot be written."""
    return None if path is None else _named_once(context, check_writable(path, folder=True), "written")


def from_file(metavar: str, text: str) -> Any:
    """Return an option for `read_file`, with its help."""
    return Option(metavar=metavar, help=text, callback=read_file)


def into_file(metavar: str, text: str) -> Any:
    """Return an option for `writable_file`, with its help."""
    return Option(metavar=metavar, help=text, callback=writable_file)


def into_folder(metavar: str, text: str) -> Any:
    """Return an option for `writable_folder`, with its help."""
    return Option(metavar=metavar, help=text, callback=writable_folder)


def _named_once(context: Context, path: Path, use: str) -> Path:
    """Refuse an output file that is also an input or another output: one of the two would be lost."""
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):  # a device or a pipe takes both
        return path
    before = context.meta.setdefault(__name__, {}).setdefault(os.path.realpath(path), [])
    before.append(use)
    if len(before) > 1 and "written" in before:
        why = "would be read and replaced" if "read" in before else "would be written twice"
        raise InputError("output", str(path), f"is named twice: it {why}", "give each output a different name")
    return path


def show(rows: pd.DataFrame | list[dict[str, Any]], how: Format) -> None:
    """Print a result on stdout. Columns of a table that do not fit the terminal are omitted and named on stderr."""
    import pandas as pd

    # Whole numbers with a missing one among them are floats in pandas; print them as whole numbers.
    frame = pd.DataFrame(rows).convert_dtypes()
    if how is Format.CSV:
        text = frame.to_csv(index=False)
    elif how is Format.JSON:
        text = json.dumps(json.loads(frame.to_json(orient="records", double_precision=12)), indent=1) + "\n"
    else:
        numeric = [
            pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_bool_dtype(kind) for kind in frame.dtypes
        ]
        cells = [[_cell(value) for value in row] for row in frame.itertuples(index=False)]
        text, left_out = fitted([printable(str(name)) for name in frame.columns], cells, numeric, terminal_width())
        if left_out:
            say(f"no room for {', '.join(left_out)}: use a wider terminal, or --format csv")
    write(text)


def terminal_width() -> int:
    """Return ``COLUMNS``, or the columns of the terminal; `WIDTH` if there is neither."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return shutil.get_terminal_size((WIDTH, 24)).columns if known else WIDTH


def paragraph(text: str) -> str:
    """Wrap a string to at most `PROSE` columns."""
    kept = re.sub(r"(?<=[0-9]) (?=%|[nµm]?s\b|[GM]iB)", "\0", text)  # a number stays with its unit
    lines = textwrap.wrap(kept, min(PROSE, terminal_width()), subsequent_indent=GAP, break_long_words=False,
                          break_on_hyphens=False)  # fmt: skip
    return "\n".join(lines).replace("\0", " ")


def fitted(
    header: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool], width: int
) -> tuple[str, list[str]]:
    """Format a table within `width` columns of text, and return the names of columns that do not fit.

    - `numeric`: columns of numbers, which are right-aligned and never wrapped.
    """
    shown = len(header)
    widths = _widths(header, rows, numeric, shown, width)
    while shown > 1 and sum(widths) + len(GAP) * (shown - 1) > width:
        shown -= 1
        widths = _widths(header, rows, numeric, shown, width)
    lines = [line for row in [header, *rows] for line in _lines(row[:shown], widths, numeric)]
    return "\n".join(lines) + "\n", list(header[shown:])


def _widths(
    header: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool], shown: int, width: int
) -> list[int]:
    """Widths of the first columns: the width that each needs, with the widest columns narrowed until all fit."""
    needed = [max(len(row[i]) for row in [header, *rows]) for i in range(shown)]
    words = [max((len(word) for row in rows for word in row[i].split()), default=0) for i in range(shown)]
    least = [
        needed[i] if numeric[i] else min(needed[i], max(len(header[i]), NARROWEST, min(words[i], LONGEST_WORD)))
        for i in range(shown)
    ]
    room = width - len(GAP) * (shown - 1)
    while sum(needed) > room:
        widest = max(range(shown), key=lambda i: needed[i] - least[i])
        if needed[widest] <= least[widest]:
            break
        others = sorted((needed[i] for i in range(shown) if i != widest and needed[i] > least[i]), reverse=True)
        step = max(1, min(sum(needed) - room, needed[widest] - max([least[widest], *others[:1]])))
        needed[widest] -= step
    return needed


def _lines(row: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> list[str]:
    """Lines of one row, as many as its longest cell needs."""
    cells = [[text] if numeric[i] else textwrap.wrap(text, widths[i]) or [""] for i, text in enumerate(row)]
    lines = []
    for number in range(max(map(len, cells))):
        parts = [cell[number] if number < len(cell) else "" for cell in cells]
        sides = [
            part.rjust(w) if numeric[i] else part.ljust(w)
            for i, (part, w) in enumerate(zip(parts, widths, strict=True))
        ]
        lines.append(GAP.join(sides).rstrip())
    return lines


def write(text: str) -> None:
    """Print on stdout; on a terminal, control characters become escapes."""
    sys.stdout.write(printable(text, keep="\n\t") if sys.stdout.isatty() else text)


def _cell(value: Any) -> str:
    """Format a value of a table as a string; a missing value gives an empty string."""
    if isinstance(value, float):
        return "" if math.isnan(value) else number(value)
    return "" if value is None or str(value) == "<NA>" else printable(str(value))


def number(value: float) -> str:
    """Format a number for a table: whole numbers in full, others with six digits.

    >>> number(4732558.0), number(10.07921)
    ('4732558', '10.0792')
    """
    return f"{value:.0f}" if value == round(value, 0) and abs(value) < 1e15 else f"{value:.6g}"


def say(text: str) -> None:
    """Print a message on stderr."""
    sys.stderr.write(printable(f"simlib: {text}\n", keep="\n\t"))


@contextmanager
def interruptible() -> Iterator[None]:
    """Let `SIGNALS` raise `KeyboardInterrupt`, which becomes one sentence and an exit code."""
    ours = threading.current_thread() is threading.main_thread() and not signals.handlers_installed()
    before = signals.install_handlers() if ours else {}
    at_once, state.exit_at_next_signal = state.exit_at_next_signal, False
    try:
        yield
    except BaseException as error:
        # Another error after a signal: C code that is being imported replaces KeyboardInterrupt by its own error.
        if not state.received and not isinstance(error, KeyboardInterrupt):
            raise
        interrupted = RunInterruptedError(signals.SENTENCE)
        interrupted.exit_code = 128 + (state.received or signal.SIGINT)
        raise interrupted from None
    finally:
        state.exit_at_next_signal = at_once
        if ours:
            signals.restore_handlers(before)


@contextmanager
def progress_bar() -> Iterator[Callable[[str, float], None]]:
    """Show progress on stderr; without a terminal, as occasional lines. A signal ends the work with one sentence."""
    with interruptible(), _display() as progress:

        def report(what: str, share: float) -> None:
            if state.received:  # another library may have caught it
                raise KeyboardInterrupt
            progress(what, share)

        yield report


@contextmanager
def _display() -> Iterator[Callable[[str, float], None]]:
    if not sys.stderr.isatty():
        began = timed = last_time = time.monotonic()
        last, last_share, first, stages = STARTING, 0.0, 0.0, set[str]()
        ended = threading.Event()

        def line(what: str, share: float) -> None:
            """Print a line for each stage, and one every `QUIET_S` while it lasts; the stage is `what` before ``:``.

            A share of 0 means that the share is unknown, or that work begins. The remaining time is estimated from the
            share done since the last such call, or since the first line: earlier time was spent on other work.
            """
            nonlocal timed, first, last_time, last, last_share
            stage, now, last, last_share = what.partition(":")[0], time.monotonic(), what, share
            if not stages or not share:
                timed, first = now, share
            if stage not in stages or now - last_time > QUIET_S:
                stages.add(stage)
                last_time = now
                say(f"{what} …{time_left(now - timed, share, first)}")

        def remind() -> None:
            nonlocal last_time
            while not ended.wait(QUIET_S / 10):
                now = time.monotonic()
                if now - last_time > QUIET_S:
                    last_time = now
                    say(f"{last} … {now - began:.0f} s{time_left(now - timed, last_share, first)}")

        reminder = threading.Thread(target=remind, daemon=True)
        reminder.start()
        try:
            yield line
        finally:
            ended.set()
            reminder.join()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn(),
               TextColumn("left:"), TimeRemainingColumn(elapsed_when_finished=True))  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(STARTING, total=1.0)
        yield lambda what, share: bar.update(task, description=printable(what), completed=share)


def time_left(elapsed: float, share: float, first: float = 0.0) -> str:
    """Remaining time as a string; empty if too little is done to estimate it.

    >>> time_left(30.0, 0.25), time_left(30.0, 0.75, 0.5), time_left(0.5, 0.25), time_left(30.0, 0.0)
    (', about 90 s left', ', about 30 s left', '', '')
    """
    if elapsed < PATIENCE_S or share - first < 0.02 or share >= 1:
        return ""
    return f", about {elapsed * (1 - share) / (share - first):.0f} s left"


@contextmanager
def patient_progress() -> Iterator[Callable[[str, float], None]]:
    """Show progress only if the work takes longer than `PATIENCE_S`."""
    began, report = time.monotonic(), None
    with interruptible(), ExitStack() as stack:

        def progress(what: str, share: float) -> None:
            nonlocal report
            if report is None and time.monotonic() - began > PATIENCE_S:
                report = stack.enter_context(progress_bar())
            if report is not None:
                report(f"{what}: {100 * share:.0f} %", share)

        yield progress


def whole_numbers(text: str, what: str) -> list[int]:
    """Read whole numbers of a list such as ``16,32,48``."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(what, text, "must be whole numbers separated by commas", "write 16,32,48") from None
