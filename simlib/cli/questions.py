# SPDX-License-Identifier: BSD-3-Clause
"""What ``simlib calibrate``, ``predict``, ``compare`` and ``simulate`` are asked: their options, in groups."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from simlib.cli.output import from_file, into_file, into_folder, read_file


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
VcpusOption = Annotated[str, typer.Option(help="Numbers of vCPUs, e.g. 16,32,48.")]
SeedOption = Annotated[int, typer.Option(help="Root of all random streams.")]
LEVEL = 0.90
"""Probability of the intervals, as of `simlib.calibrate`, `simlib.predict` and `simlib.compare`."""


@dataclass(frozen=True)
class Intervals:
    """How sure an interval is, and the root of what it is drawn from."""

    level: Annotated[float, typer.Option(min=0.5, max=0.999, help="Probability of the intervals.")] = LEVEL
    seed: SeedOption = 1


@dataclass(frozen=True, kw_only=True)
class Curves:
    """What is computed over vCPUs, from which costs."""

    fit: FitOption = None
    metrics: Annotated[
        str,
        typer.Option(metavar="NAME,…", help="Metrics; dirty_memory_time[2]: of one iteration. "
                     "Default: the workload's own."),
    ] = ""  # fmt: skip
    intervals: Intervals

    def arguments(self) -> dict[str, Any]:
        """The same for `simlib.predict` and `simlib.compare`."""
        metrics = [name.strip() for name in self.metrics.split(",")] if self.metrics else None
        return {"fit": self.fit, "metrics": metrics, **asdict(self.intervals)}


@dataclass(frozen=True)
class Case:
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
class Run:
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
