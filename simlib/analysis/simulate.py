# SPDX-License-Identifier: BSD-3-Clause
"""Run a scenario: build its programs, run an engine, name what came out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Literal

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
from simlib.model.quantities import say_size
from simlib.model.scenario import Scenario, as_scenario
from simlib.simulator.engine import engine_selection, reference
from simlib.simulator.engine.result import ACTIVITIES, FAULTS, PS, EngineResult
from simlib.simulator.sampling import SAMPLED_RUNS, SampleResult, sample_migration, sample_several
from simlib.simulator.workloads import build, find_metric, kind_of
from simlib.simulator.workloads.horizon import check_length, how_long

Engine = Literal["compiled", "reference"]
Known = Literal["drawn", "median", "exact"]
_ENGINES = {"compiled": engine_selection.run, "reference": reference.run}


@dataclass(frozen=True, repr=False)
class SimulationResult(Result):
    """One simulated run. Nothing in it was measured.

    - `scenario`: what was simulated (after sampling, if pages were sampled).
    - `job`: the programs.
    - `raw`: every counter of the engine.
    - `scale`: pages of the scenario over pages simulated; 1 if nothing was sampled. Those of the `metrics` that are
      proportional to the memory are multiplied by it, and those of a single stall are left out.
    - `flags`: what to know before believing the result.
    - `known`: the costs as they are known, of the whole scenario; None: as the scenario has them.
    - `ranges`: whether the metrics are shown with the range over the costs that are drawn.
    - `pages_per_vcpu`: pages a vCPU that were simulated at most; None: every page.
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
        """The workload's metrics by name, over all iterations.

        `simlib.simulator.workloads.KINDS` has their definitions.
        """
        return {name: float(np.sum(value)) for name, value in self._values.items()}

    def value(self, name: str) -> float:
        """One metric by its name, or of a single iteration: ``dirty_memory_time[2]``.

        Raises `InputError` if the workload has no such metric or iteration, or only a run of all memory would tell.

        >>> costs = {"fault_unlocked": "1us", "others": "0ns"}
        >>> s = Scenario.parse({"guest": {"memory_per_vcpu": "2M"}, "costs": costs})
        >>> found = run_scenario(s)
        >>> found.value("dirty_memory_time[1]"), found.value("dirty_memory_time") == found.value("dirty_memory_time[2]")
        (0.0, True)
        """
        metric, number = kind_of(self.scenario).find(name, self.scenario.workload.iterations)
        values = self._values
        if metric.name not in values:
            raise InputError("metric", name, "a part of the memory does not tell it", "simulate without pages_per_vcpu",
                             "simulate without --pages")  # fmt: skip
        return float(np.sum(values[metric.name])) if number == 0 else float(np.asarray(values[metric.name])[number - 1])

    @cached_property
    def _values(self) -> dict[str, np.ndarray]:
        """Every metric, of the whole memory; those by rounds as one value each."""
        kind = kind_of(self.scenario)
        return kind.of_all(kind.measure(self.scenario, self.job, self.raw), self.scale)

    def table(self) -> pd.DataFrame:
        """The metrics, tidy: metric, value, unit; and low and high, the range over the costs that are drawn, if any.

        The range takes two runs for each of these costs, once.
        """
        rows = [(name, value, find_metric(self.scenario, name).unit) for name, value in self.metrics.items()]
        found, spread = pd.DataFrame(rows, columns=["metric", "value", "unit"]), self.spread()
        if spread is None:
            return found
        return _ranged(self.scenario, found, spread, self.scale)[["metric", "value", "low", "high", "unit"]]

    def spread(self, progress: parallel.Progress | None = None) -> Spread | None:
        """What the costs that are drawn move: each of `metrics` with each cost at the ends of its prior.

        Simulated when it is first asked for, as many runs at a time as there are CPUs; None: no cost is drawn.
        """
        known = self.known
        if known is None or not self.ranges or not known.drawn:
            return None
        if "_spread" not in self.__dict__:
            tasks = [partial(_metrics_of, case, self.seed, self.pages_per_vcpu) for case in variations(known)]
            found = parallel.run_all(tasks, "simulating what is not known", progress)
            ends = np.array([[metrics[name] for name in self.metrics] for metrics in found])
            self.__dict__["_spread"] = Spread.of(known.drawn, np.array(list(self.metrics.values())), ends)
        spread: Spread = self.__dict__["_spread"]
        return spread

    @property
    def notes(self) -> tuple[str, ...]:
        """`flags`, and which of the costs that are not known decide."""
        spread = self.spread()
        words = decisive(spread.shares()) if spread is not None else ""
        return (*self.flags, *([words] if words else []))

    def costs(self) -> pd.DataFrame:
        """One row a cost that the programs spend: cost, evidence, value, low, high, unit, source."""
        return (self.known or UncertainCosts.of(self.scenario)).table()

    def locks(self) -> pd.DataFrame:
        """One row a lock and mode (see `EngineResult.locks`); counts as simulated, not scaled."""
        return self.raw.locks(self.job)

    def threads(self) -> pd.DataFrame:
        """One row a thread: seconds by activity, faults by kind."""
        return self.raw.threads(self.job)

    def phases(self) -> pd.DataFrame:
        """One row a phase between stamps: phase, start_s, seconds, faults, and mean microseconds by activity a fault.

        As simulated, not scaled. The time of a fault is summed over all threads and divided by the phase's
        faults; parked threads count as idle.
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
        """Mean microseconds of a fault while the guest dirties its memory: activity, microseconds_per_fault.

        Populating is left out, as in the selftest's dirty memory time. Zeros where the guest has no phase of its own.
        """
        phase = kind_of(self.scenario).dirtying
        dirtying = self.phases()[[stamp.phase == phase for stamp in self.job.stamps[1:]]]
        shares = dirtying["faults"].to_numpy() / max(1, int(dirtying["faults"].sum()))
        activities = [a for a in ACTIVITIES if a != "idle"]
        spent = [float((dirtying[a].to_numpy() * shares).sum()) for a in activities]
        return pd.DataFrame({"activity": activities, "microseconds_per_fault": spent})

    def tables(self) -> dict[str, pd.DataFrame]:
        """Every table of the run, by its name."""
        raw, job = self.raw, self.job
        return {
            "metrics": self.table(), "costs": self.costs(), "locks": self.locks(), "threads": self.threads(),
            "phases": self.phases(),
            "queue_over_time": raw.queue_over_time(job), "progress_over_time": raw.progress_over_time(job),
            "wait_histogram": raw.histogram(job, "wait"), "hold_histogram": raw.histogram(job, "hold"),
        }  # fmt: skip

    def summary(self) -> str:
        """What was simulated, its metrics, its locks, and what to know of it."""
        scenario = self.scenario
        guest, policy = scenario.guest, scenario.policy.resolved()
        memory = say_size(guest.pages * guest.page_size)
        return "\n".join(
            [f"Simulated: {scenario.workload.kind}, {guest.vcpus} vCPUs, {memory}, {policy.architecture} "
             f"({policy.lock} lock); seed {self.seed}, {self.raw.events:,} events",
             text_of(self.table()), "", text_of(self.locks()), *self.notes]
        )  # fmt: skip

    def figures(self) -> tuple[str, ...]:
        """Names of the figures that can be drawn of it; the first one is what `plot` draws unless told otherwise."""
        kind = kind_of(self.scenario)
        has = {"degradation_over_time": kind.curve is not None, "time_per_page": bool(kind.dirtying)}
        return tuple(name for name in self.FIGURES if has.get(name, True))

    def degradation(self) -> pd.DataFrame:
        """How much of its undisturbed throughput the guest lost over time, where it works on.

        Returns: time_s, width_s, throughput, degradation. Raises `InputError` if the guest of the workload does not
        work on.
        """
        curve = kind_of(self.scenario).curve
        if curve is None:
            raise InputError("workload.kind", self.scenario.workload.kind, "its guest has no undisturbed throughput")
        return curve(self.scenario, self.job, self.raw)

    def _repr_html_(self) -> str:
        what = f", seed {self.seed}, {self.raw.events:,} events."
        return result_html("Simulated", what, self.notes, self.table(), self.locks())


def flags_of(scenario: Scenario, scale: float = 1.0) -> tuple[str, ...]:
    """What a reader should know of a scenario's result before believing it."""
    flags = []
    if scenario.guest.vcpus > scenario.host.cores:
        flags.append(
            f"{scenario.guest.vcpus} vCPUs on {scenario.host.cores} cores: each vCPU is given a core of its own"
        )
    if scale != 1.0:
        flags.append(f"one page in {scale:g} was simulated; times and counts are scaled")
    return tuple(flags)


def simulate(
    scenario: Scenario | str | Path,
    *,
    variant: str = "",
    vcpus: int | None = None,
    policy: str = "",
    fit: AnyFit | None = None,
    engine: Engine = "compiled",
    seed: int = 1,
    trace: int = 0,
    pages_per_vcpu: int | None = None,
    costs: Known = "drawn",
    announce: Callable[[str], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SimulationResult:
    """Simulate a scenario once, with the costs that were calibrated for its machine.

    Raises `InputError` if anything given breaks its rule, or a cost has no value and `costs` is ``"exact"``. Raises
    `DeadlockError`, `HorizonError`.

    - `scenario`: a scenario, or its file.
    - `variant`: which one, if the scenario has any.
    - `vcpus`: number of vCPUs instead of the scenario's.
    - `policy`: a way of taking the lock, by its name (`simlib.model.policies.POLICIES`).
    - `fit`: calibrated costs; by default the shipped fit of the machine, if there is one. Costs that the scenario gives
      keep their values.
    - `engine`: both give the same result; the reference engine is some hundred times slower. Small runs are left to it
      while the other is not compiled or loaded yet (`simlib.simulator.engine.engine_selection`).
    - `trace`: keep up to this many trace events (the run fails if there are more).
    - `pages_per_vcpu`: simulate at most so many pages a vCPU and scale; by default every page.
    - `costs`: a cost that the programs spend and that neither the scenario nor a fit has is ``"drawn"`` from its prior:
      the run has its median, and `SimulationResult.table` the range. ``"median"``: without the range. ``"exact"``
      refuses instead.
    - `announce`: told in words, before it begins, if it will take long.
    - `progress`: called with (events, simulated picoseconds) from time to time.

    >>> s = Scenario.parse({"guest": {"vcpus": 4, "memory_per_vcpu": "4M", "memslot_aligned": False},
    ...                     "host": {"name": "ampere-altra"}, "policy": {"architecture": "arm64-2022"},
    ...                     "cost_group": "fixed test"})
    >>> result = simulate(s)
    >>> result.metrics["lock_acquisitions"], result.flags[0]
    (8194.0, 'costs: the shipped fit for ampere-altra (arm64-dirty-memory-time, ...)')
    >>> simulate(s, engine="reference").raw == result.raw
    True
    """
    known, notes = _case(scenario, variant, vcpus, policy, fit)
    if announce is not None and pages_per_vcpu is None:
        runs = 1 + (2 * len(known.drawn) if costs == "drawn" else 0)
        if long := how_long(known.scenario, runs, parallel.concurrency()):
            announce(long)
    found = run_scenario(
        known.exact() if costs == "exact" else known.central(),
        engine=engine,
        seed=seed,
        trace=trace,
        pages_per_vcpu=pages_per_vcpu,
        progress=progress,
    )
    return dataclasses.replace(
        found, known=known, ranges=costs == "drawn", flags=(*notes, *describe_costs(known), *found.flags)
    )


def sample(
    scenario: Scenario | str | Path,
    *,
    variant: str = "",
    vcpus: int | None = None,
    policy: str = "",
    fit: AnyFit | None = None,
    replications: int = SAMPLED_RUNS,
    seed: int = 1,
    costs: Known = "drawn",
    progress: Callable[[str, float], None] | None = None,
) -> SampleResult:
    """Simulate some windows of a migration, of whatever size, with the costs that were calibrated for its machine.

    Returns: Every metric with the standard error of the sampling. Raises `InputError` if it cannot be sampled
    (`simlib.simulator.sampling.why_not`), or anything given breaks its rule.

    - `scenario`, `variant`, `vcpus`, `policy`, `fit`, `seed`, `costs`: see `simulate`.
    - `walks`: how often to walk through it, with windows at other chunks each time; at least 2.
    - `progress`: called with (what, share done).

    >>> s = Scenario.parse({"guest": {"vcpus": 8, "memory": "4G", "backing": "hugetlb_2mb"},
    ...     "host": {"name": "ampere-altra"}, "policy": {"architecture": "arm64"}, "cost_group": "fixed test",
    ...     "workload": {"kind": "migration", "access": "uniform", "shared": True, "clear_chunk": "256M",
    ...                  "pass_limit": 2}, "costs": {"clear_page": "30ns"}})
    >>> sample(s, walks=2).frame.columns.tolist()
    ['metric', 'value', 'standard_error', 'low', 'high', 'unit']
    """
    known, notes = _case(scenario, variant, vcpus, policy, fit)
    full = known.exact() if costs == "exact" else known.central()
    both = costs == "drawn" and bool(known.drawn)
    found = sample_migration(
        full, replications=replications, seed=seed, progress=parallel.subprogress(progress, 0, 0.3 if both else 1)
    )
    frame, words = found.frame, ""
    if both:
        # each end by one walk, beside the same walk at the best costs
        cases, names = variations(known), list(found.metrics)
        which = [number % replications for number in range(len(cases))]
        tasks = [
            partial(sample_several, case, replications, seed, only=n) for case, n in zip(cases, which, strict=True)
        ]
        ends = parallel.run_all(tasks, "sampling what is not known", parallel.subprogress(progress, 0.3, 1.0))
        pairs = [found.journeys[n] for n in which], [one for (one,) in ends]
        spread = Spread.of(known.drawn, *(np.array([[w.metrics[m] for m in names] for w in each]) for each in pairs))
        frame, words = _ranged(found.scenario, frame, spread), decisive(spread.shares())
    flags = (*notes, *describe_costs(known), *found.flags, *flags_of(full), *([words] if words else ()))
    return dataclasses.replace(found, frame=frame, flags=flags, costs=known.table())


def _ranged(scenario: Scenario, frame: pd.DataFrame, spread: Spread, scale: float = 1.0) -> pd.DataFrame:
    """Metrics, each with its range over the costs that are drawn, joined with the interval that it has already, if any.

    Of one in whole numbers that is all that was seen.
    """
    least, ends = kind_of(scenario).least(scenario), []
    for number, row in enumerate(frame.to_dict("records")):
        metric, value = find_metric(scenario, row["metric"]), row["value"]
        own = [row[end] for end in ("low", "high") if end in row]
        if metric.whole:
            seen = (*own, *spread.extremes(number, value))
            low, high = min(seen), max(seen)
        else:
            low, high = spread.widened(number, value, *own) if own else spread.interval(number, value)
        ends.append(metric.within(low, high, scale * least.get(metric.name, 0.0)))
    return frame.assign(low=[low for low, _ in ends], high=[high for _, high in ends])


def programs(
    scenario: Scenario | str | Path,
    *,
    variant: str = "",
    vcpus: int | None = None,
    policy: str = "",
    fit: AnyFit | None = None,
) -> Job:
    """The programs that `simulate` would run; their ``listing()`` is for people. A cost without a value has the
    median of its prior.

    Raises `InputError` if anything given breaks its rule.

    - `scenario`, `variant`, `vcpus`, `policy`, `fit`: see `simulate`.

    >>> print(programs(Scenario()).listing())
    vcpu 0:
      0  L0  open      extent 1, pages 512
    ...
    """
    known, _ = _case(scenario, variant, vcpus, policy, fit)
    return build(known.central())


def _case(
    scenario: Scenario | str | Path, variant: str, vcpus: int | None, policy: str, fit: AnyFit | None
) -> tuple[UncertainCosts, tuple[str, ...]]:
    """The scenario that is to run with its costs, and what to know of them."""
    case = as_scenario(scenario).variant(variant)
    case = case if vcpus is None else case.with_vcpus(vcpus)
    case = apply(case, policy) if policy else case
    estimate, notes = choose_fit(case, fit)
    return UncertainCosts.of(case, estimate), tuple(notes)


def run_scenario(
    scenario: Scenario,
    *,
    engine: Engine = "compiled",
    seed: int = 1,
    trace: int = 0,
    pages_per_vcpu: int | None = None,
    part: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> SimulationResult:
    """Run a scenario as it is: no calibrated cost is looked for; one without a value has the median of its prior.

    Raises `InputError`, `DeadlockError`, `HorizonError`.

    - `scenario`: without variants.
    - `engine`, `seed`, `trace`, `pages_per_vcpu`, `progress`: see `simulate`.
    - `part`: of those pages simulate only one in so many.

    >>> result = run_scenario(Scenario.parse({"guest": {"memory_per_vcpu": "2M"}}))
    >>> result.scenario.costs.fault_hold
    600000
    """
    scenario = complete(scenario)
    kind = kind_of(scenario)
    small, scale = (scenario, 1.0) if pages_per_vcpu is None else kind.sample(scenario, pages_per_vcpu, part)
    kind.check_horizon(small)
    check_length(small)
    job = build(small)
    raw = _ENGINES[engine](job, seed, trace=trace, progress=progress)
    flags = (*kind.warnings(small, job, raw, scale), *flags_of(scenario, scale))
    return SimulationResult(small, job, raw, seed, scale, flags, pages_per_vcpu=pages_per_vcpu)


def _metrics_of(scenario: Scenario, seed: int, pages_per_vcpu: int | None, check: parallel.Check) -> dict[str, float]:
    return run_scenario(scenario, seed=seed, pages_per_vcpu=pages_per_vcpu, progress=check).metrics
