# SPDX-License-Identifier: BSD-3-Clause
"""What commands are asked, where their simulations run, and how an answer is shown: options, in groups."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, is_dataclass
from enum import StrEnum
from functools import wraps
from importlib.util import find_spec
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

import simlib
from simlib._lib.errors import InputError
from simlib._lib.parallel import MOST_WORKERS, cpus
from simlib.ui.cli.output import (
    Format,
    FormatOption,
    from_file,
    into_file,
    into_folder,
    progress_bar,
    read_file,
    say,
    whole_numbers,
    writable_file,
)

if TYPE_CHECKING:
    import pandas as pd

    from simlib import Scenario
    from simlib.figures.results import Result

Returned = TypeVar("Returned")
Curve = TypeVar("Curve", "simlib.PredictionResult", "simlib.Comparison")


def grouped(command: Callable[..., Returned]) -> Callable[..., Returned]:
    """A command for Typer whose parameters that are dataclasses have become their fields, each where its group stood.

    A field is declared like a parameter of a command, by `Annotated` with `typer.Option` or `typer.Argument`, and may
    be a group itself. A field without a default is required. What a group's ``__post_init__`` raises is raised before
    the command runs.

    A group has no default of its own, so that it stands after ``*`` where a parameter before it has one; Typer calls by
    name. Raises `ValueError` if two parameters have the same name.
    """

    @wraps(command)
    def run(**given: Any) -> Returned:
        return _call(command, given)

    parameters = list(_parameters(command))
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # where inspect looks for it, and so Typer
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameters(called: Callable[..., object]) -> Iterator[Parameter]:
    """What a function, or the constructor of a dataclass, takes: its parameters, with groups replaced by fields."""
    hints = get_type_hints(called, include_extras=True)
    for name, parameter in signature(called).parameters.items():
        if is_dataclass(hints[name]):
            yield from _parameters(hints[name])
        else:
            yield parameter.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY)


def _call(called: Callable[..., Returned], given: Mapping[str, Any]) -> Returned:
    """Call a function, or construct a dataclass, with its part of what was given."""
    hints = get_type_hints(called, include_extras=True)
    names = signature(called).parameters
    return called(**{name: _call(hints[name], given) if is_dataclass(hints[name]) else given[name] for name in names})


class CostsName(StrEnum):
    """What becomes of a cost that has no value."""

    DRAWN = "drawn"
    MEDIAN = "median"
    EXACT = "exact"


@dataclass(frozen=True)
class Unknown:
    """How costs that are not known are treated, and whether all are listed."""

    costs: Annotated[
        CostsName,
        typer.Option(
            help="What neither the scenario nor a fit has: drawn from its prior, which widens the answer; median: that "
            "of the prior, without a range; exact: refuse."
        ),
    ] = CostsName.DRAWN
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="List every cost: what it is, its value, its source.")
    ] = False

    def tell(self, table: pd.DataFrame | None) -> None:
        """List the costs that are spent, if that is wanted."""
        if self.verbose and table is not None:
            from simlib.measurements.fits import readable_costs

            for row in readable_costs(table).to_dict("records"):
                value = row["value"] + (f" ({row['90 %']})" if row["90 %"] else "")
                say(f"{row['cost']} = {value}, {row['from']}: {row['what it is']}; source: {row['source']}")


class EngineName(StrEnum):
    """Which engine runs."""

    COMPILED = "compiled"
    REFERENCE = "reference"


ScenarioArgument = Annotated[
    Path,
    typer.Argument(metavar="SCENARIO.toml", help="Scenario file; docs/scenario.md lists its keys.", callback=read_file),
]
VariantOption = Annotated[str, typer.Option(metavar="NAME", help="Which variant, if the scenario has any.")]
PolicyOption = Annotated[
    str, typer.Option(metavar="NAME", help="A way of taking the lock; simlib policies lists them.")
]
FitOption = Annotated[
    Path | None, from_file("FIT.json", "Calibrated costs. Default: the shipped fit for the machine, if any.")
]
SeedOption = Annotated[int, typer.Option(help="Root of all random streams.")]
LEVEL = 0.90
"""Probability of the intervals, as of `simlib.calibrate`, `simlib.predict` and `simlib.compare`."""


@dataclass(frozen=True)
class Intervals:
    """How sure an interval is, and the root of what it is drawn from."""

    level: Annotated[float, typer.Option(min=0.5, max=0.999, help="Probability of the intervals.")] = LEVEL
    seed: SeedOption = 1


ClusterOption = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Simulate on a Dask cluster, such as tcp://127.0.0.1:8786.")
]


_WORKERS = "Simulate in so many processes; 0: in this one's threads."


@dataclass(frozen=True)
class Elsewhere:
    """Processes, or a cluster; neither: threads of this process."""

    workers: Annotated[int | None, typer.Option(min=0, max=MOST_WORKERS, help=_WORKERS)] = 0
    cluster: ClusterOption = ""

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Within the block, simulations run there."""
        workers = _one_a_cpu() if self.workers is None else self.workers
        if not workers and not self.cluster:
            yield
            return
        from simlib._lib.parallel import use_executor
        from simlib.analysis.sweep import Cluster, Pool

        with Cluster(self.cluster) if self.cluster else Pool(workers) as executor, use_executor(executor):
            yield


ENOUGH_WORKERS = 16
"""Processes that a command starts unasked, at most; each takes 80 MiB."""


@dataclass(frozen=True)
class Processes(Elsewhere):
    """The same where a half of the work is Python, at which threads take turns: processes unless told otherwise."""

    workers: Annotated[
        int | None,
        typer.Option(min=0, max=MOST_WORKERS, show_default=f"one a CPU, {ENOUGH_WORKERS} at most", help=_WORKERS),
    ] = None


def _one_a_cpu() -> int:
    """A process for each CPU, if there are several and processes can be given work; else threads."""
    count = min(cpus(), ENOUGH_WORKERS)
    return count if count > 1 and find_spec("cloudpickle") is not None else 0


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
        from simlib.ui.report.answer import result_report

        command = shlex.join(["simlib", *asked.get()])
        result_report(result, command, scenario=scenario, seed=seed).write(self.plot)
        say(f"page written to {self.plot}")


@dataclass(frozen=True, kw_only=True)
class Curves:
    """What is computed over vCPUs, from which costs, and where."""

    scenario: ScenarioArgument
    vcpus: Annotated[str, typer.Option(help="Numbers of vCPUs, e.g. 16,32,48.")]
    variant: VariantOption = ""
    fit: FitOption = None
    metrics: Annotated[
        str,
        typer.Option(metavar="NAME,…", help="Metrics; dirty_memory_time[2]: of one iteration. "
                     "Default: the workload's own."),
    ] = ""  # fmt: skip
    intervals: Intervals
    unknown: Unknown
    elsewhere: Elsewhere

    def answer(self, compute: Callable[..., Curve], output: Output, **more: Any) -> Curve:
        """What `simlib.predict` or `simlib.compare` gives; its flags are said, and its page is written."""
        vcpus = whole_numbers(self.vcpus, "--vcpus")
        metrics = [name.strip() for name in self.metrics.split(",")] if self.metrics else None
        with progress_bar() as progress, self.elsewhere.in_use():
            result = compute(
                scenario=self.scenario, vcpus=vcpus, variant=self.variant, fit=self.fit, metrics=metrics,
                costs=self.unknown.costs.value, progress=progress, **asdict(self.intervals), **more,
            )  # fmt: skip
        for flag in result.flags:
            say(flag)
        self.unknown.tell(result.costs)
        output.write_page(result, simlib.load_scenario(self.scenario), self.intervals.seed)
        return result


@dataclass(frozen=True)
class ScenarioOptions:
    """The scenario that is simulated, with what is changed of it."""

    scenario: ScenarioArgument
    variant: VariantOption = ""
    fit: FitOption = None
    vcpus: Annotated[int, typer.Option(min=0, help="Number of vCPUs instead of the scenario's.")] = 0
    policy: PolicyOption = ""

    def arguments(self) -> dict[str, Any]:
        """The same for `simlib.simulate`, `simlib.sample` and `simlib.programs`."""
        return asdict(self) | {"vcpus": self.vcpus or None}


@dataclass(frozen=True)
class RunOptions:
    """How much of it is simulated, and how."""

    pages: Annotated[int, typer.Option(min=0, help="Pages a vCPU at most, scaled; 0: every page.")] = 0
    sample: Annotated[
        int, typer.Option(min=0, metavar="WALKS", help="A migration: windows of so many walks, e.g. 8; 0: all of it.")
    ] = 0
    engine: Annotated[EngineName, typer.Option(help="compiled, or reference: same result, slower.")] = (
        EngineName.COMPILED
    )
    seed: SeedOption = 1


@dataclass(frozen=True)
class Files:
    """What is written of a run."""

    trace: Annotated[Path | None, into_file("OUT.json", "Write a trace that Perfetto reads.")] = None
    out: Annotated[Path | None, into_folder("FOLDER", "Write all tables of the run as CSV files.")] = None
