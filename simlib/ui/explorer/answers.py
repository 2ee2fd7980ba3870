# SPDX-License-Identifier: BSD-3-Clause
"""Answers of the explorer: theory at once, and simulation part by part."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import pandas as pd

from simlib._lib.errors import RunInterruptedError, SimlibError
from simlib._lib.parallel import Check, run_all
from simlib.analysis.choose.closed_form import chunk_pages
from simlib.analysis.choose.evidence import fit_of, grounds
from simlib.analysis.choose.objectives import METRICS, OBJECTIVES
from simlib.analysis.curve_points import Values
from simlib.analysis.simulate import flags_of, run_scenario
from simlib.measurements.fits import UncertainCosts, choose_fit, describe_costs
from simlib.measurements.fits.file import shipped_fit
from simlib.measurements.fits.spread import decisive, variations
from simlib.model.job import Job
from simlib.model.pagetable import WORD_PAGES
from simlib.model.policies import BASELINE
from simlib.model.scenario import Guest, Scenario
from simlib.model.workload import Workload
from simlib.simulator.engine import compiled
from simlib.simulator.engine.result import ACTIVITIES, PS, EngineResult
from simlib.simulator.engine.timeline import ownership_over_time, timeline
from simlib.simulator.sampling import unsupported_reason
from simlib.simulator.sampling.estimator import SampledRun, job_of_clear, sample_once
from simlib.ui.explorer.state import ExplorerState

BATCHES = (64, 512, 4096, 32768, 0)  # pages of a hold in the trade-off; 0: the whole ioctl
CURVE_PAGES = 2**16  # total pages of a point of the curve with 8 or more vCPUs, for equal running times
MIN_PAGES = 256  # minimum pages per vCPU
DRAWS = 12  # vectors of costs for the curve's band
TRACE = 2_000_000  # events of a window whose lock ownership is drawn
RANGED = ["series", "quantity", "low", "high", "change_low", "change_high"]  # columns of `Ranges.frame`
MAX_VCPUS, SEED = 1023, 1


class Theory(NamedTuple):
    """Answer that needs no simulation of the migration."""

    evidence: str  # sentence on the evidence for the costs (`simlib.analysis.choose.evidence.grounds`)
    flags: tuple[str, ...]  # validity flags, as sentences
    bound: pd.DataFrame
    published: pd.DataFrame


def costed(scenario: Scenario) -> tuple[Scenario, UncertainCosts]:
    """Return the scenario with each cost at its median, and the costs: given, calibrated, or from priors."""
    costs = UncertainCosts.of(scenario, choose_fit(scenario)[0])
    return costs.central(), costs


def theory(state: ExplorerState) -> Theory:
    """Return what theory and measurements say about a state."""
    case, costs = costed(state.case())
    flags = (*describe_costs(costs), *flags_of(case))
    return Theory(grounds(costs.evidence, fit_of(case, None)), flags, bound(case), published(case.host.name))


def selftest(scenario: Scenario) -> Scenario:
    """Return the scenario under dirty_log_perf_test: every vCPU writes all of its pages, and each write faults.

    Most published curves against the number of vCPUs come from this test.
    """
    size = scenario.guest.page_size
    guest = Guest(vcpus=1, memory_per_vcpu=MIN_PAGES * size, page_size=size, backing="4k")
    return dataclasses.replace(scenario, guest=guest, workload=Workload(kind="dirty_log_perf_test"))


def curve_vcpus(vcpus: int) -> list[int]:
    """Return the powers of two up to 64 or twice `vcpus`, at most 512; `vcpus`; and, above 512 vCPUs, `MAX_VCPUS`.

    >>> curve_vcpus(160)
    [1, 2, 4, 8, 16, 32, 64, 128, 160, 256]
    """
    powers = [2**k for k in range(10) if 2**k <= max(64, 2 * vcpus)]
    return sorted({*powers, vcpus} | ({MAX_VCPUS} if vcpus > 512 else set()))


def bound(case: Scenario) -> pd.DataFrame:
    """Lower bound, by the utilisation law, on the time with n vCPUs relative to one vCPU, for any lock discipline.

    The time of a page is at least its time with one vCPU, and at least n times the part of it that only one CPU can do
    at a time (Denning and Buzen 1978): the hold and two transfers of the lock's cache line under an exclusive lock, the
    transfers alone under a shared one, and the broadcast TLB invalidation where there is one. The time with one vCPU is
    simulated.

    Returns: vcpus, times.

    - `case`: a migration all of whose costs have values.
    """
    policy, costs = case.policy.resolved(), case.host_costs
    # The selftest's pages are protected one by one, so that its faults are those of a write-protected page.
    mode = policy.write_protect_fault
    crossing = 2.0 * (costs.line_transfer or 0) * (case.policy.fault_lock_sections or 1)
    hold = float(costs.fault_hold or 0)
    broadcast = float(costs.tlb_invalidate or 0) if policy.facts.fault_flush == "broadcast" else 0.0
    exclusive = mode == "write" or (mode == "read" and policy.lock != "rwlock")
    serial = max({"lockless": 0.0}.get(mode, crossing) + (hold if exclusive else 0.0), broadcast)
    alone = run_scenario(selftest(case)).metrics["dirty_memory_time"] / MIN_PAGES / PS
    vcpus = np.array(curve_vcpus(case.guest.vcpus))
    return pd.DataFrame({"vcpus": vcpus, "times": np.maximum(alone, vcpus * serial) / alone})


@lru_cache(maxsize=16)
def published(host: str) -> pd.DataFrame:
    """Measured curves of the host with this name, as multiples of their first points.

    Returns: variant, kernel (as an architecture's name), vcpus, times; empty where none is published. The table is
    cached: do not change it.

    >>> published("ampere-altra")["variant"].unique().tolist()
    ['spinlock-old-test', 'rwlock-old-test', 'rwlock-fixed-test']
    >>> len(published("unknown"))
    0
    """
    fit = shipped_fit(host)
    parts = [pd.DataFrame(columns=["variant", "kernel", "vcpus", "times"])]
    if fit is not None:
        rows = fit.observations
        rows = rows[rows["metric"].str.startswith("dirty_memory_time")]
        for variant, part in rows.groupby("variant", sort=False):
            if len(part) > 1:
                kernel = fit.scenario.variants[str(variant)].policy.architecture if variant else ""
                times = part["value"] / part.sort_values("vcpus")["value"].iloc[0]
                parts.append(part[["variant", "vcpus"]].assign(kernel=kernel, times=times))
    return pd.concat(parts[1:] or parts, ignore_index=True)


def curve(state: ExplorerState, check: Check) -> pd.DataFrame:
    """Dirty memory time by number of vCPUs, relative to one vCPU, with a band for the uncertainty of the costs.

    Returns: vcpus, times (costs at their medians), low, high (5 % and 95 % of `DRAWS` vectors of costs).
    """
    vcpus = curve_vcpus(state.scenario.guest.vcpus)
    medians, costs = costed(state.case())
    random = np.random.default_rng(1)
    drawn = [medians, *(costs.draw(random) for _ in range(DRAWS))]
    cases = [(selftest(case).with_vcpus(n), n) for case in drawn for n in vcpus]

    def page_time(case: Scenario, n: int, inner: Check) -> float:
        pages = max(MIN_PAGES, CURVE_PAGES // max(8, n) // WORD_PAGES * WORD_PAGES)
        guest = dataclasses.replace(case.guest, memory_per_vcpu=pages * case.guest.page_size)
        whole = dataclasses.replace(case, guest=guest)
        return run_scenario(whole, progress=_either(check, inner)).metrics["dirty_memory_time"] / pages

    page_times = np.array(run_all([partial(page_time, case, n) for case, n in cases]))
    page_times = page_times.reshape(len(drawn), len(vcpus))
    times = page_times / page_times[:, :1]
    low, high = np.quantile(times[1:], [0.05, 0.95], axis=0)
    return pd.DataFrame({"vcpus": vcpus, "times": times[0], "low": low, "high": high})


def _either(check: Check, inner: Check) -> Check:
    """Return a check that interrupts a simulation when either of two checks does."""

    def either(*arguments: object) -> None:
        check()
        inner(*arguments)

    return either


class Trip(NamedTuple):
    """A sampled run of a migration with a strategy."""

    strategy: str
    run: SampledRun

    def row(self, vcpus: int) -> dict[str, float | str]:
        """Return a row of the table of strategies; the objectives are those of `simlib.choose`."""
        values = self.run.metrics
        metrics = np.array([values[name] for name in METRICS])
        cost, lost = (float(OBJECTIVES[name].value(metrics, vcpus, 1.0)) for name in ("cost", "guest_time_lost"))
        return {
            "strategy": self.strategy,
            "cost_s": cost,
            "clear_cpu_time_s": values["clear_cpu_time"],
            "guest_time_lost_s": lost,
            "longest_stall_s": values["longest_stall"],
            "stall_p999_s": values["stall_p999"],
            "guest_throughput": values["guest_throughput"],
            "precopy_s": values["precopy_duration"],
        }


def trips(state: ExplorerState, strategies: Sequence[str], check: Check) -> list[Trip]:
    """Sample one run for each strategy, with common random numbers."""

    def trip(name: str, inner: Check) -> Trip:
        return Trip(name, sample_once(costed(state.case(name))[0], SEED, 0.5, _either(check, inner)))

    return run_all([partial(trip, name) for name in strategies])


class Ranges(NamedTuple):
    """Uncertainty due to the costs that are drawn from priors.

    - `frame`: series (a strategy), quantity (a column of `Trip.row`), its low and high, and change_low and change_high
      of its ratio to the baseline: each drawn cost at the ends of its 90 % interval, combined in quadrature.
    - `decisive`: sentence on the costs that cause nearly all uncertainty of the selected strategy; empty if none.
    """

    frame: pd.DataFrame
    decisive: str


def ranges(state: ExplorerState, strategies: Sequence[str], check: Check) -> Ranges:
    """Sample the runs with each drawn cost at both ends of its prior; a change compares runs at the same end."""
    known = {name: costed(state.case(name))[1] for name in dict.fromkeys((*strategies, BASELINE))}
    if not any(costs.drawn for costs in known.values()):
        return Ranges(pd.DataFrame(columns=RANGED), "")
    cases = {name: [costs.central(), *variations(costs)] for name, costs in known.items()}
    distinct: list[Scenario] = []  # identical scenarios of several strategies are simulated once
    distinct.extend(case for rows in cases.values() for case in rows if case not in distinct)

    def sampled_row(case: Scenario, inner: Check) -> dict[str, float | str]:
        return Trip("", sample_once(case, SEED, 0.5, _either(check, inner))).row(case.guest.vcpus)

    def values(name: str) -> Values:
        rows = sampled.to_numpy(dtype=float)[[distinct.index(case) for case in cases[name]]]
        return Values(rows[:1], rows[1:], known[name].drawn)

    sampled = pd.DataFrame(run_all([partial(sampled_row, case) for case in distinct])).drop(columns="strategy")
    most, parts = np.where(sampled.columns == "guest_throughput", 1.0, np.inf), []
    for name in strategies:
        low, high, change_low, change_high = (
            ends for series in (values(name), values(name).over(values(BASELINE)))
            for ends in np.array([series.spread().interval(*point) for point in enumerate(series.points[0])]).T
        )  # fmt: skip
        rows = (name, sampled.columns, low, np.minimum(high, most), change_low, change_high)
        parts.append(pd.DataFrame(dict(zip(RANGED, rows, strict=True))))
    return Ranges(pd.concat(parts, ignore_index=True), decisive(values(strategies[0]).spread().shares()))


def batches(scenario: Scenario) -> list[int]:
    """Batches that a CLEAR of this migration can have, pages."""
    pages = chunk_pages(scenario)
    return [batch for batch in BATCHES if batch < pages]


@dataclasses.dataclass(frozen=True)
class Glimpse:
    """Simulated window around one CLEAR of the first pass, with its trace.

    - `job`, `raw`, `seed`: the traced run (`simlib.simulator.engine.timeline.TracedRun`).
    """

    job: Job
    raw: EngineResult
    seed: int = SEED

    @property
    def span(self) -> tuple[float, float]:
        """Start and end of the window, from shortly before CLEAR to shortly after it, s."""
        _, opened, cleared, closed = (float(time) * PS for time in self.raw.stamp_ps)
        margin = min(0.1 * (cleared - opened), closed - cleared)
        return max(0.0, opened - margin), cleared + margin

    def shares(self, bins: int = 120) -> pd.DataFrame:
        """Shares of time by owner of the lock during the `span`."""
        return ownership_over_time(timeline(self), bins, window=self.span)

    def by_class(self) -> pd.DataFrame:
        """Share of each activity in the time of each class of threads: thread_class, activity, share."""
        threads = self.raw.threads(self.job)
        kind = np.where(threads["thread"].str.startswith("vcpu "), "vCPUs", "CLEAR")
        seconds = threads[[f"{activity}_s" for activity in ACTIVITIES]].groupby(kind).sum()
        shares = seconds.div(seconds.sum(axis=1), axis=0)
        rows = shares.rename(columns=lambda name: name.removesuffix("_s")).rename_axis("thread_class").reset_index()
        return rows.melt("thread_class", var_name="activity", value_name="share")


def glimpse(state: ExplorerState, check: Check) -> Glimpse:
    """Trace the window around one CLEAR; raises `SimlibError` if there are more events than a trace can hold."""
    job = job_of_clear(costed(state.case())[0], SEED)
    return Glimpse(job, compiled.run(job, seed=SEED, trace=TRACE, progress=check))


def stages(state: ExplorerState, check: Check) -> Iterator[tuple[str, object]]:
    """Simulate in parts, starting with the answer to the question.

    Yields a name and a result: ``baseline``, a list with the `Trip` of the baseline; ``trips``, a list of those of the
    strategy and the pins; ``glimpse``, a `Glimpse`; ``curve``, the table of `curve`; ``batches``, a list of `Trip` by
    batch; ``ranges``, `Ranges`; or ``reason``, why only the curve can be simulated.
    """
    reason = unsupported_reason(state.case())
    if reason:
        yield "reason", reason
        yield "curve", curve(state, check)
        return
    names = list(dict.fromkeys((state.strategy, *state.pins)))
    by_name = {trip.strategy: trip for trip in trips(state, list(dict.fromkeys((*names, BASELINE))), check)}
    yield "baseline", [by_name[BASELINE]]
    yield "trips", [by_name[name] for name in names]
    try:
        yield "glimpse", glimpse(state, check)
    except RunInterruptedError:
        raise
    except SimlibError as error:
        yield "no glimpse", str(error)
    yield "curve", curve(state, check)
    batched = [f"every-{batch}" if batch else "whole-ioctl" for batch in batches(state.scenario)]
    missing = [name for name in batched if name not in by_name]
    by_name |= {trip.strategy: trip for trip in trips(state, missing, check)}
    yield "batches", [by_name[name] for name in batched]
    yield "ranges", ranges(state, names, check)
