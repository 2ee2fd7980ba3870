# SPDX-License-Identifier: BSD-3-Clause
"""Groups of command-line options: scenarios and costs, processes for simulations, and forms of output."""

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

from typer import Argument, Context, Option

import simlib
from simlib._lib.errors import InputError
from simlib._lib.parallel import MAX_WORKERS, cpus
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
    """Return a command for Typer in which each parameter that is a dataclass (a group) is replaced by its fields.

    A field is declared like a parameter of a command, by `Annotated` with `Option` or `Argument`, and may
    be a group itself. A field without a default is required. Exceptions of a group's ``__post_init__`` are raised
    before the command runs.

    A group has no default, so it must follow ``*`` if an earlier parameter has one; Typer calls by name. Raises
    `ValueError` if two parameters have the same name.
    """

    @wraps(command)
    def run(**given: Any) -> Returned:
        return _call(command, given)

    parameters = list(_parameters(command))
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # where inspect looks for it, and so Typer
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameters(called: Callable[..., object]) -> Iterator[Parameter]:
    """Yield the parameters of a function, or of a dataclass's constructor, with groups replaced by their fields."""
    hints = get_type_hints(called, include_extras=True)
    for name, parameter in signature(called).parameters.items():
        if is_dataclass(hints[name]):
            yield from _parameters(hints[name])
        else:
            yield parameter.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY)


def _call(called: Callable[..., Returned], given: Mapping[str, Any]) -> Returned:
    """Call a function, or construct a dataclass, with the given values that it takes."""
    hints = get_type_hints(called, include_extras=True)
    names = signature(called).parameters
    return called(**{name: _call(hints[name], given) if is_dataclass(hints[name]) else given[name] for name in names})


class UnknownCostsName(StrEnum):
    """Treatment of a cost that has no value."""

    SAMPLE = "sample"
    MEDIAN = "median"
    EXACT = "exact"


@dataclass(frozen=True)
class UnknownCostOptions:
    """Treatment of unknown costs, and the list of all costs."""

    unknown_costs: Annotated[
        UnknownCostsName,
        Option(
            help="Treatment of costs that neither the scenario nor a fit gives. median: use the medians of their "
            "priors; sample: also widen the intervals by the spread of the priors; exact: refuse the scenario."
        ),
    ] = UnknownCostsName.SAMPLE
    verbose: Annotated[
        bool, Option("--verbose", "-v", help="Print every cost that is used, with its description, value and source.")
    ] = False

    def report(self, table: pd.DataFrame | None) -> None:
        """Print the costs that the programs use, if ``--verbose`` is given."""
        if self.verbose and table is not None:
            from simlib.measurements.fits import readable_costs

            for row in readable_costs(table).to_dict("records"):
                value = row["value"] + (f" ({row['90 %']})" if row["90 %"] else "")
                say(f"{row['cost']} = {value}, {row['from']}: {row['what it is']}; source: {row['source']}")


class EngineName(StrEnum):
    """Names of the engines."""

    COMPILED = "compiled"
    REFERENCE = "reference"


ScenarioArgument = Annotated[
    Path, Argument(metavar="SCENARIO.toml", help="Scenario file; docs/scenario.md lists its keys.", callback=read_file)
]
VariantOption = Annotated[str, Option(metavar="NAME", help="Simulate only this variant of the scenario.")]
_POLICY = "Name of a policy (listed by 'simlib policies'), or a condition such as 'held >= 50us'."
PolicyOption = Annotated[str, Option(metavar="POLICY", help=_POLICY)]
_FIT = "Fit file with calibrated costs. Default: the shipped fit for the scenario's host, if there is one."
FitOption = Annotated[Path | None, from_file("FIT.json", _FIT)]
SeedOption = Annotated[int, Option(help="Random seed; the same seed gives the same result.")]
LEVEL = 0.90  # confidence level of intervals, the default of `simlib.calibrate`, `simlib.predict`, `simlib.compare`


@dataclass(frozen=True)
class Intervals:
    """Confidence level of intervals, and random seed."""

    level: Annotated[float, Option(min=0.5, max=0.999, help="Confidence level of the intervals.")] = LEVEL
    seed: SeedOption = 1


ClusterOption = Annotated[
    str,
    Option(
        metavar="ADDRESS", help="Simulate on the Dask cluster with the scheduler at ADDRESS, e.g. tcp://127.0.0.1:8786."
    ),
]

_WORKERS = "Number of worker processes; 0: use threads of this process."


@dataclass(frozen=True)
class ExecutorOptions:
    """Processes or a cluster for simulations; by default threads of this process."""

    workers: Annotated[int | None, Option(min=0, max=MAX_WORKERS, help=_WORKERS)] = 0
    cluster: ClusterOption = ""

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Run the simulations of the `with` block in these processes or on this cluster."""
        workers = self.workers
        if workers is None:  # threads for a single CPU or without cloudpickle
            workers = min(cpus(), DEFAULT_MAX_WORKERS)
            workers = workers if workers > 1 and find_spec("cloudpickle") is not None else 0
        if not workers and not self.cluster:
            yield
            return
        from simlib._lib.parallel import use_executor
        from simlib.analysis.sweep import Cluster, Pool

        with Cluster(self.cluster) if self.cluster else Pool(workers) as executor, use_executor(executor):
            yield


DEFAULT_MAX_WORKERS = 16  # maximum number of processes that a command starts by default; each takes 80 MiB
_ONE_PER_CPU = f"one per CPU, at most {DEFAULT_MAX_WORKERS}"  # Sphinx cannot read an f-string in an annotation


@dataclass(frozen=True)
class Processes(ExecutorOptions):
    """Processes by default, for commands that spend half of their time in Python code, which holds the GIL."""

    workers: Annotated[int | None, Option(min=0, max=MAX_WORKERS, show_default=_ONE_PER_CPU, help=_WORKERS)] = None


command_arguments: ContextVar[Sequence[str]] = ContextVar("asked", default=())
"""Arguments of the running command."""


def page_file(context: Context, path: Path | None) -> Path | None:
    """Check the file of ``--plot`` before the work. Raises `InputError` if it is not writable or not an HTML file."""
    if path is not None and path.suffix.lower() not in (".html", ".htm"):
        hint = f"write {path.with_suffix('.html')}"
        raise InputError("--plot", str(path), "must be a file name that ends in .html", hint)
    return writable_file(context, path)


@dataclass(frozen=True)
class Output:
    """Form of the output."""

    plot: Annotated[
        Path | None,
        Option("--plot", metavar="FILE.html", help="Also write the result, with tables, figures and sources, as "
               "a self-contained HTML page.", callback=page_file),
    ] = None  # fmt: skip
    how: FormatOption = Format.TABLE

    def write_page(
        self, result: Result | Mapping[str, Result], scenario: Scenario | None = None, seed: int | None = None
    ) -> None:
        """Write the page of ``--plot``, if given."""
        if self.plot is None:
            return
        from simlib.ui.report.answer import result_report

        command = shlex.join(["simlib", *command_arguments.get()])
        result_report(result, command, scenario=scenario, seed=seed).write(self.plot)
        say(f"page written to {self.plot}")


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Options of commands that compute curves against the number of vCPUs."""

    scenario: ScenarioArgument
    vcpus: Annotated[str, Option(help="Numbers of vCPUs, separated by commas, e.g. 16,32,48.")]
    variant: VariantOption = ""
    fit: FitOption = None
    metrics: Annotated[
        str, Option(metavar="NAME,…", help="Metrics (NAME[2]: in iteration 2). Default: the workload's main metrics.")
    ] = ""
    intervals: Intervals
    unknown: UnknownCostOptions
    elsewhere: ExecutorOptions

    def answer(self, compute: Callable[..., Curve], output: Output, **more: Any) -> Curve:
        """Call `simlib.predict` or `simlib.compare`, print the flags, and write the page."""
        vcpus = whole_numbers(self.vcpus, "--vcpus")
        metrics = [name.strip() for name in self.metrics.split(",")] if self.metrics else None
        with progress_bar() as progress, self.elsewhere.in_use():
            result = compute(
                scenario=self.scenario, vcpus=vcpus, variant=self.variant, fit=self.fit, metrics=metrics,
                unknown_costs=self.unknown.unknown_costs.value, progress=progress, **asdict(self.intervals), **more,
            )  # fmt: skip
        for flag in result.flags:
            say(flag)
        self.unknown.report(result.costs)
        output.write_page(result, simlib.load_scenario(self.scenario), self.intervals.seed)
        return result


@dataclass(frozen=True)
class ScenarioOptions:
    """The scenario to simulate, and changes to it."""

    scenario: ScenarioArgument
    variant: VariantOption = ""
    fit: FitOption = None
    vcpus: Annotated[int, Option(min=0, help="Number of vCPUs; 0: as in the scenario.")] = 0
    policy: PolicyOption = ""

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of `simlib.simulate`, `simlib.sample` and `simlib.programs`."""
        return asdict(self) | {"vcpus": self.vcpus or None}


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Size of the run, engine, random seed, unknown costs, and files to write."""

    pages: Annotated[
        int, Option(min=0, help="Maximum number of pages to simulate per vCPU; results are scaled. 0: all pages.")
    ] = 0
    sample: Annotated[
        int, Option(min=0, metavar="N", help="Estimate a migration from N sampled runs, e.g. 8; 0: no sampling.")
    ] = 0
    engine: Annotated[
        EngineName, Option(help="Simulation engine; the reference engine is slower and gives the same results.")
    ] = EngineName.COMPILED
    seed: SeedOption = 1
    unknown: UnknownCostOptions
    trace: Annotated[Path | None, into_file("OUT.json", "Also write a trace for Perfetto (ui.perfetto.dev).")] = None
    out: Annotated[Path | None, into_folder("FOLDER", "Also write all tables of the run as CSV files.")] = None
