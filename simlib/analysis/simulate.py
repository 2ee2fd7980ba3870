# SPDX-License-Identifier: BSD-3-Clause
"""Simulation of a scenario: build its programs, run an engine, and name the results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Literal, TypedDict, Unpack

import numpy as np
import pandas as pd

from simlib._lib import parallel
from simlib._lib.errors import InputError
from simlib.figures.results import Result, result_html, text_of
from simlib.measurements.fits import (
    AnyFit,
    Spread,
    UncertainCosts,
    choose_fit,
    complete,
    decisive,
    describe_costs,
    variations,
)
from simlib.model.job import Job
from simlib.model.policies import apply
from simlib.model.quantities import size_text
from simlib.model.scenario import Scenario, as_scenario
from simlib.simulator.engine import engine_selection, reference
from simlib.simulator.engine.result import ACTIVITIES, FAULTS, PS, EngineResult
from simlib.simulator.sampling import DEFAULT_REPLICATIONS, SampleResult, sample_migration, sample_several
from simlib.simulator.workloads import build, find_metric, kind_of
from simlib.simulator.workloads.horizon import check_length, long_run_notice

Engine = Literal["compiled", "reference"]
UnknownCosts = Literal["sample", "median", "exact"]


@dataclass(frozen=True, repr=False)
class SimulationResult(Result):
    """One simulated run. None of its values was measured.

    - `scenario`: the simulated scenario (with fewer pages, if pages were sampled).
    - `job`: the programs.
    - `raw`: every counter of the engine.
    - `scale`: ratio of the scenario's pages to the simulated pages. If it is not 1, `metrics` that are proportional to
      the memory are multiplied by it, and those of a single stall are omitted.
    - `flags`: assumptions and limits that affect the result.
    - `known`: costs of the whole scenario with their uncertainty; None: those of `scenario`.
    - `ranges`: True if the metrics have a range over the uncertain costs.
    - `pages_per_vcpu`: maximum number of simulated pages per vCPU; None: every page.
    """

    scenario: Scenario
    job: Job
    raw: EngineResult
    seed: int
    scale: float
    flags: tuple[str, ...]
    known: UncertainCosts | None = None
    ranges: bool = False
    pages_per_vcpu: int | None = None

    FIGURES: ClassVar[Mapping[str, Callable[[Any], pd.DataFrame]]] = {
        "degradation_over_time": lambda run: run.degradation().assign(series=run.scenario.policy.architecture),
        "lock_over_time": lambda run: run.raw.queue_over_time(run.job),
        "time_per_page": lambda run: run.time_per_fault().assign(
            variant=run.scenario.policy.architecture, vcpus=run.scenario.guest.vcpus
        ),
        "progress": lambda run: run.raw.progress_over_time(run.job),
        "histogram": lambda run: run.raw.histogram(run.job, "wait"),
    }

    @property
    def metrics(self) -> dict[str, float]:
        """The workload's metrics by name, each summed over all iterations.

        `simlib.simulator.workloads.KINDS` has their definitions.
        """
        return {name: float(np.sum(value)) for name, value in self._values.items()}

    def value(self, name: str) -> float:
        """Return a metric by its name; ``dirty_memory_time[2]`` is the value of a single iteration.

        Raises `InputError` if the workload has no such metric or iteration, or the metric needs a run over all memory.

        >>> costs = {"fault_unlocked": "1us", "others": "0ns"}
        >>> s = Scenario.parse({"guest": {"memory_per_vcpu": "2M"}, "costs": costs})
        >>> run = run_scenario(s)
        >>> run.value("dirty_memory_time[1]"), run.value("dirty_memory_time") == run.value("dirty_memory_time[2]")
        (0.0, True)
        """
        metric, number = kind_of(self.scenario).find(name, self.scenario.workload.iterations)
        values = self._values
        if metric.name not in values:
            raise InputError("metric", name, "needs a run over all memory", "simulate without pages_per_vcpu",
                             "simulate without --pages")  # fmt: skip
        return float(np.sum(values[metric.name])) if number == 0 else float(np.asarray(values[metric.name])[number - 1])

    @cached_property
    def _values(self) -> dict[str, np.ndarray]:
        """Every metric, scaled to all memory; metrics by iteration are arrays."""
        kind = kind_of(self.scenario)
        return kind.scale_to_whole(kind.measure(self.scenario, self.job, self.raw), self.scale)

    def table(self) -> pd.DataFrame:
        """Return metric, value and unit; if costs are uncertain, also low and high, the ends of the range over them.

        The first call simulates two runs for each of these costs.
        """
        rows = [(name, value, find_metric(self.scenario, name).unit) for name, value in self.metrics.items()]
        frame, spread = pd.DataFrame(rows, columns=["metric", "value", "unit"]), self.spread()
        if spread is None:
            return frame
        return _with_ranges(self.scenario, frame, spread, self.scale)[["metric", "value", "low", "high", "unit"]]

    def spread(self, progress: parallel.Progress | None = None) -> Spread | None:
        """Return the effect of the uncertain costs: each of `metrics` with each cost at the ends of its prior.

        The first call simulates it, in parallel on all CPUs. Returns None if no cost is uncertain.
        """
        known = self.known
        if known is None or not self.ranges or not known.drawn:
            return None
        if "_spread" not in self.__dict__:
            tasks = [partial(_metrics_of, case, self.seed, self.pages_per_vcpu) for case in variations(known)]
            results = parallel.run_all(tasks, "simulating unknown costs", progress)
            ends = np.array([[metrics[name] for name in self.metrics] for metrics in results])
            self.__dict__["_spread"] = Spread.of(known.drawn, np.array(list(self.metrics.values())), ends)
        spread: Spread = self.__dict__["_spread"]
        return spread

    @property
    def notes(self) -> tuple[str, ...]:
        """`flags`, and the unknown costs with the largest effect."""
        spread = self.spread()
        note = decisive(spread.shares()) if spread is not None else ""
        return (*self.flags, *([note] if note else []))

    def costs(self) -> pd.DataFrame:
        """Return one row per cost that the programs spend: cost, evidence, value, low, high, unit, source."""
        return (self.known or UncertainCosts.of(self.scenario)).table()

    def locks(self) -> pd.DataFrame:
        """Return one row per lock and mode (see `EngineResult.locks`); counts are not scaled."""
        return self.raw.locks(self.job)

    def threads(self) -> pd.DataFrame:
        """Return one row per thread: seconds by activity, faults by kind."""
        return self.raw.threads(self.job)

    def phases(self) -> pd.DataFrame:
        """Return one row per phase between stamps: phase, start_s, seconds, faults, and mean microseconds by activity.

        Values are not scaled. The means are per fault: the time of all threads, divided by the faults of the phase.
        Parked threads count as idle.
        """
        raw, names = self.raw, self.job.stamps
        rows = []
        for i in range(1, len(names)):
            sums = raw.stamp_sums[i] - raw.stamp_sums[i - 1]
            faults = int(sums[FAULTS].sum())
            per_fault = sums[: len(ACTIVITIES)] * 1e-6 / max(1, faults)
            row = {"phase": str(names[i]), "start_s": raw.stamp_ps[i - 1] * PS,
                   "seconds": (raw.stamp_ps[i] - raw.stamp_ps[i - 1]) * PS, "faults": faults}  # fmt: skip
            rows.append(row | dict(zip(ACTIVITIES, per_fault.tolist(), strict=True)))
        return pd.DataFrame(rows)

    def time_per_fault(self) -> pd.DataFrame:
        """Return the mean time of a fault while the guest dirties its memory: activity, microseconds_per_fault.

        Populating is excluded, as in the selftest's dirty memory time. All values are 0 if the guest has no such phase.
        """
        phase = kind_of(self.scenario).dirtying_phase
        dirtying = self.phases()[[stamp.phase == phase for stamp in self.job.stamps[1:]]]
        shares = dirtying["faults"].to_numpy() / max(1, int(dirtying["faults"].sum()))
        activities = [a for a in ACTIVITIES if a != "idle"]
        spent = [float((dirtying[a].to_numpy() * shares).sum()) for a in activities]
        return pd.DataFrame({"activity": activities, "microseconds_per_fault": spent})

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return every table of the run, by its name."""
        raw, job = self.raw, self.job
        return {
            "metrics": self.table(), "costs": self.costs(), "locks": self.locks(), "threads": self.threads(),
            "phases": self.phases(),
            "queue_over_time": raw.queue_over_time(job), "progress_over_time": raw.progress_over_time(job),
            "wait_histogram": raw.histogram(job, "wait"), "hold_histogram": raw.histogram(job, "hold"),
        }  # fmt: skip

    def summary(self) -> str:
        """Return the scenario, the metrics, the locks and the notes as text."""
        scenario = self.scenario
        guest, policy = scenario.guest, scenario.policy.resolved()
        memory = size_text(guest.pages * guest.page_size)
        return "\n".join(
            [f"Simulated: {scenario.workload.kind}, {guest.vcpus} vCPU{'s' * (guest.vcpus > 1)}, {memory}, "
             f"{policy.architecture} ({policy.lock} lock); seed {self.seed}, {self.raw.events:,} events",
             text_of(self.table()), "", text_of(self.locks()), *self.notes]
        )  # fmt: skip

    def figures(self) -> tuple[str, ...]:
        """Names of the available figures; `plot` draws the first by default."""
        kind = kind_of(self.scenario)
        has = {"degradation_over_time": kind.curve is not None, "time_per_page": bool(kind.dirtying_phase)}
        return tuple(name for name in self.FIGURES if has.get(name, True))

    def degradation(self) -> pd.DataFrame:
        """Return the guest's loss of throughput over time, for workloads during which the guest runs.

        Returns: time_s, width_s, throughput, degradation. Raises `InputError` for other workloads.
        """
        curve = kind_of(self.scenario).curve
        if curve is None:
            raise InputError("workload.kind", self.scenario.workload.kind, "has no guest throughput over time")
        return curve(self.scenario, self.job, self.raw)

    def _repr_html_(self) -> str:
        what = f", seed {self.seed}, {self.raw.events:,} events."
        return result_html("Simulated", what, self.notes, self.table(), self.locks())


def flags_of(scenario: Scenario, scale: float = 1.0) -> tuple[str, ...]:
    """Return the assumptions and limits that affect the result of a scenario."""
    vcpus, cores, flags = scenario.guest.vcpus, scenario.host.cores, []
    if vcpus > cores:
        flags.append(f"{vcpus} vCPUs on {cores} core{'s' * (cores > 1)}: each vCPU is simulated on a separate core")
    if scale != 1.0:
        flags.append(f"one page in {scale:g} was simulated; metrics are scaled, statistics of locks are not")
    return tuple(flags)


@dataclass(frozen=True, kw_only=True)
class CaseOptions:
    """Changes to a scenario before it runs, and its costs: common options of `simulate`, `sample` and `programs`.

    - `variant`: name of the variant, if the scenario has any.
    - `vcpus`: number of vCPUs; by default the scenario's.
    - `policy`: name of a strategy for taking the lock (`simlib.model.policies.POLICIES`).
    - `fit`: calibrated costs; by default the shipped fit for the host, if there is one. Costs given in the scenario
      keep their values.
    """

    variant: str = ""
    vcpus: int | None = None
    policy: str = ""
    fit: AnyFit | None = None

    def costs_of(self, scenario: Scenario | str | Path) -> tuple[UncertainCosts, tuple[str, ...]]:
        """Return the changed scenario with its costs, and notes on them. Raises `InputError` for a wrong value."""
        case = as_scenario(scenario).variant(self.variant)
        case = case if self.vcpus is None else case.with_vcpus(self.vcpus)
        case = apply(case, self.policy) if self.policy else case
        estimate, notes = choose_fit(case, self.fit)
        return UncertainCosts.of(case, estimate), tuple(notes)


@dataclass(frozen=True, kw_only=True)
class SimulationOptions(CaseOptions):
    """Options of `simulate`: those of `CaseOptions`, and the following.

    - `engine`: ``"compiled"``, or ``"reference"``, which gives the same result but is some hundred times slower. Small
      runs use it until the compiled engine is loaded (`simlib.simulator.engine.engine_selection`).
    - `seed`: random seed.
    - `trace`: maximum number of trace events to keep (the run fails if there are more).
    - `pages_per_vcpu`: simulate at most this many pages per vCPU and scale the result; by default every page.
    - `unknown_costs`: treatment of a cost that the programs spend and that neither the scenario nor a fit has.
      ``"sample"``: the run uses the median of the cost's prior, and `SimulationResult.table` includes the range over
      the prior. ``"median"``: the same without the range. ``"exact"``: such a scenario is refused.
    - `announce`: called with the expected duration before a long run.
    - `progress`: called with (events, simulated picoseconds) from time to time.
    """

    engine: Engine = "compiled"
    seed: int = 1
    trace: int = 0
    pages_per_vcpu: int | None = None
    unknown_costs: UnknownCosts = "sample"
    announce: Callable[[str], None] | None = None
    progress: Callable[[int, int], None] | None = None


class CaseKeywords(TypedDict, total=False):
    """`CaseOptions` as keyword arguments."""

    variant: str
    vcpus: int | None
    policy: str
    fit: AnyFit | None


class SimulationKeywords(CaseKeywords, total=False):
    """`SimulationOptions` as keyword arguments."""

    engine: Engine
    seed: int
    trace: int
    pages_per_vcpu: int | None
    unknown_costs: UnknownCosts
    announce: Callable[[str], None] | None
    progress: Callable[[int, int], None] | None


def simulate(scenario: Scenario | str | Path, **options: Unpack[SimulationKeywords]) -> SimulationResult:
    """Simulate a scenario once, with the costs that were calibrated for its host.

    Raises `InputError` if an argument is invalid, or if `unknown_costs` is ``"exact"`` and a cost has no value. Raises
    `DeadlockError` if all threads wait for each other, and `HorizonError` if the run exceeds a limit.

    - `scenario`: a scenario, or its file.
    - `variant`, `vcpus`, `policy`, `fit`: see `CaseOptions`.
    - `engine`, `seed`, `trace`, `pages_per_vcpu`, `unknown_costs`, `announce`, `progress`: see `SimulationOptions`.

    >>> s = Scenario.parse({"guest": {"vcpus": 4, "memory_per_vcpu": "4M", "memslot_aligned": False},
    ...                     "host": {"name": "ampere-altra"}, "policy": {"architecture": "arm64-2022"},
    ...                     "cost_group": "fixed test"})
    >>> result = simulate(s)
    >>> result.metrics["lock_acquisitions"], result.flags[0]
    (8194.0, 'costs: the shipped fit for ampere-altra (arm64-dirty-memory-time, ...)')
    >>> simulate(s, engine="reference").raw == result.raw
    True
    """
    run = SimulationOptions(**options)
    known, notes = run.costs_of(scenario)
    sampled = run.unknown_costs == "sample"
    if run.announce is not None and run.pages_per_vcpu is None:
        runs = 1 + (2 * len(known.drawn) if sampled else 0)
        if notice := long_run_notice(known.scenario, runs, parallel.concurrency()):
            run.announce(notice)
    result = run_scenario(
        known.exact() if run.unknown_costs == "exact" else known.central(),
        engine=run.engine, seed=run.seed, trace=run.trace, pages_per_vcpu=run.pages_per_vcpu, progress=run.progress,
    )  # fmt: skip
    flags = (*notes, *describe_costs(known), *result.flags)
    return dataclasses.replace(result, known=known, ranges=sampled, flags=flags)


def sample(
    scenario: Scenario | str | Path,
    *,
    replications: int = DEFAULT_REPLICATIONS,
    seed: int = 1,
    unknown_costs: UnknownCosts = "sample",
    progress: parallel.Progress | None = None,
    **options: Unpack[CaseKeywords],
) -> SampleResult:
    """Simulate some windows of a migration of any size, with the costs that were calibrated for its host.

    Returns: Every metric with the standard error of the sampling. Raises `InputError` if the migration cannot be
    sampled (`simlib.simulator.sampling.unsupported_reason`), or an argument is invalid.

    - `scenario`: a scenario, or its file.
    - `replications`: number of sampled runs, each with windows at different chunks; at least 2.
    - `seed`, `unknown_costs`: see `SimulationOptions`.
    - `progress`: called with (stage, share done).
    - `variant`, `vcpus`, `policy`, `fit`: see `CaseOptions`.

    >>> s = Scenario.parse({"guest": {"vcpus": 8, "memory": "4G", "backing": "hugetlb_2mb"},
    ...     "host": {"name": "ampere-altra"}, "policy": {"architecture": "arm64"}, "cost_group": "fixed test",
    ...     "workload": {"kind": "migration", "access": "uniform", "shared": True, "clear_chunk": "256M",
    ...                  "pass_limit": 2}, "costs": {"clear_page": "30ns"}})
    >>> sample(s, replications=2).frame.columns.tolist()
    ['metric', 'value', 'standard_error', 'low', 'high', 'unit']
    """
    known, notes = CaseOptions(**options).costs_of(scenario)
    central = known.exact() if unknown_costs == "exact" else known.central()
    ranges = unknown_costs == "sample" and bool(known.drawn)
    part = parallel.subprogress(progress, 0, 0.3 if ranges else 1)
    result = sample_migration(central, replications=replications, seed=seed, progress=part)
    frame, note = result.frame, ""
    if ranges:
        # Each end of a cost's prior is simulated in one replication, whose run at the central costs is the reference.
        cases, names = variations(known), list(result.metrics)
        numbers = [number % replications for number in range(len(cases))]
        tasks = [partial(sample_several, case, replications, seed, only=number)
                 for case, number in zip(cases, numbers, strict=True)]  # fmt: skip
        part = parallel.subprogress(progress, 0.3, 1.0)
        ends = [run for (run,) in parallel.run_all(tasks, "sampling unknown costs", part)]
        base = [result.runs[number] for number in numbers]
        values = (np.array([[run.metrics[name] for name in names] for run in runs]) for runs in (base, ends))
        spread = Spread.of(known.drawn, *values)
        frame, note = _with_ranges(result.scenario, frame, spread), decisive(spread.shares())
    flags = (*notes, *describe_costs(known), *result.flags, *flags_of(central), *([note] if note else ()))
    return dataclasses.replace(result, frame=frame, flags=flags, costs=known.table())


def _with_ranges(scenario: Scenario, frame: pd.DataFrame, spread: Spread, scale: float = 1.0) -> pd.DataFrame:
    """Return metrics with their ranges over the uncertain costs, combined with any intervals that they already have.

    The range of an integer metric is that of all simulated values.
    """
    bounds, ends = kind_of(scenario).lower_bounds(scenario), []
    for number, row in enumerate(frame.to_dict("records")):
        metric, value = find_metric(scenario, row["metric"]), row["value"]
        interval = [row[end] for end in ("low", "high") if end in row]
        if metric.integer:
            values = (*interval, *spread.extremes(number, value))
            low, high = min(values), max(values)
        else:
            low, high = spread.widened(number, value, *interval) if interval else spread.interval(number, value)
        ends.append(metric.within(low, high, scale * bounds.get(metric.name, 0.0)))
    return frame.assign(low=[low for low, _ in ends], high=[high for _, high in ends])


def programs(scenario: Scenario | str | Path, **options: Unpack[CaseKeywords]) -> Job:
    """Return the programs that `simulate` would run; ``listing()`` returns them as a string.

    A cost without a value is set to the median of its prior. Raises `InputError` if an argument is invalid.

    - `scenario`: a scenario, or its file.
    - `variant`, `vcpus`, `policy`, `fit`: see `CaseOptions`.

    >>> print(programs(Scenario()).listing())
    vcpu 0:
      0  L0  open      extent 1, pages 512
    ...
    """
    known, _ = CaseOptions(**options).costs_of(scenario)
    return build(known.central())


def run_scenario(
    scenario: Scenario,
    *,
    engine: Engine = "compiled",
    seed: int = 1,
    trace: int = 0,
    pages_per_vcpu: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SimulationResult:
    """Run a scenario with its own costs, without a fit; a cost without a value is set to the median of its prior.

    Raises `InputError`, `DeadlockError` or `HorizonError` as `simulate` does.

    - `scenario`: a scenario without variants.
    - `engine`, `seed`, `trace`, `pages_per_vcpu`, `progress`: see `SimulationOptions`.

    >>> result = run_scenario(Scenario.parse({"guest": {"memory_per_vcpu": "2M"}}))
    >>> result.scenario.costs.fault_hold
    600000
    """
    return _run(scenario, (pages_per_vcpu, 1), engine, seed, trace, progress)


def run_part(
    scenario: Scenario, pages: int | None, part: int, *, seed: int, progress: Callable[[int, int], None] | None = None
) -> SimulationResult:
    """Run a scenario as `run_scenario` does, with one in `part` of `pages` pages per vCPU, for comparison."""
    return _run(scenario, (pages, part), "compiled", seed, 0, progress)


def _run(
    scenario: Scenario, pages: tuple[int | None, int], engine: Engine, seed: int, trace: int,
    progress: Callable[[int, int], None] | None,
) -> SimulationResult:  # fmt: skip
    """Build and run the programs of a scenario; `pages`: pages per vCPU (None: all), and a divisor of these."""
    scenario = complete(scenario)
    kind, (pages_per_vcpu, part) = kind_of(scenario), pages
    small, scale = (scenario, 1.0) if pages_per_vcpu is None else kind.sample(scenario, pages_per_vcpu, part)
    kind.check_horizon(small)
    check_length(small)
    job = build(small)
    run = {"compiled": engine_selection.run, "reference": reference.run}[engine]
    raw = run(job, seed, trace=trace, progress=progress)
    flags = (*kind.warnings(small, job, raw, scale), *flags_of(scenario, scale))
    return SimulationResult(small, job, raw, seed, scale, flags, pages_per_vcpu=pages_per_vcpu)


def _metrics_of(scenario: Scenario, seed: int, pages_per_vcpu: int | None, check: parallel.Check) -> dict[str, float]:
    return run_scenario(scenario, seed=seed, pages_per_vcpu=pages_per_vcpu, progress=check).metrics
