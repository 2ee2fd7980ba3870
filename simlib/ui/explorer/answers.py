# SPDX-License-Identifier: BSD-3-Clause
"""What the explorer answers: by theory at once, and by simulation a while later, part by part."""

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
from simlib.analysis.predict import Values
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
from simlib.simulator.sampling import why_not
from simlib.simulator.sampling.estimator import SampledRun, job_of_clear, sample_once
from simlib.ui.explorer.state import ExplorerState

BATCHES = (64, 512, 4096, 32768, 0)
"""Pages of a hold in the trade-off; 0: the whole ioctl."""

CURVE_PAGES = 2**16
"""Pages that a point of the curve simulates in all, from eight vCPUs on: many take no longer than few."""

LEAST_PAGES = 256
"""Pages of each vCPU, at least."""

DRAWS = 12
"""Vectors of costs behind the curve's band."""

TRACE = 2_000_000
"""Events of a window whose lock ownership is drawn."""

RANGED = ["series", "quantity", "low", "high", "change_low", "change_high"]
"""Columns of what drawn costs leave open."""

MOST_VCPUS, SEED = 1023, 1


class Theory(NamedTuple):
    """What is known of a state at once, without simulating its migration."""

    evidence: str
    """What the costs rest on, in a sentence (`simlib.analysis.choose.evidence.grounds`)."""
    flags: tuple[str, ...]
    """What to know before believing a number."""
    bound: pd.DataFrame
    published: pd.DataFrame


def costed(scenario: Scenario) -> tuple[Scenario, UncertainCosts]:
    """The scenario with each cost at its median, and what they rest on: given, else calibrated, else the priors."""
    costs = UncertainCosts.of(scenario, choose_fit(scenario)[0])
    return costs.central(), costs


def theory(state: ExplorerState) -> Theory:
    """All that theory and measurements say of a state."""
    case, costs = costed(state.case())
    return Theory(
        grounds(costs.evidence, fit_of(case, None)),
        (*describe_costs(costs), *flags_of(case)),
        bound(case),
        published(case.host.name),
    )


def selftest(scenario: Scenario) -> Scenario:
    """The same kernel, machine and costs under dirty_log_perf_test: every vCPU writes all of its pages, each a fault.

    It is what most published curves over vCPUs measure.
    """
    guest = scenario.guest
    return dataclasses.replace(
        scenario,
        guest=Guest(vcpus=1, memory_per_vcpu=LEAST_PAGES * guest.page_size, page_size=guest.page_size, backing="4k"),
        workload=Workload(kind="dirty_log_perf_test"),
    )


def curve_vcpus(vcpus: int) -> list[int]:
    """Powers of two, up to twice the guest's vCPUs and at least 64, and the guest's own number.

    >>> curve_vcpus(160)
    [1, 2, 4, 8, 16, 32, 64, 128, 160, 256]
    """
    powers = [2**k for k in range(10) if 2**k <= max(64, 2 * vcpus)]
    return sorted({*powers, vcpus} | ({MOST_VCPUS} if vcpus > 512 else set()))


def bound(case: Scenario) -> pd.DataFrame:
    """How many times as long as one vCPU n of them take at least, whatever the lock's discipline: the utilisation law.

    A page takes what it takes one vCPU alone, or n times what only one CPU at a time can do of it, whichever is longer
    (Denning and Buzen 1978): the hold and two transfers of the lock's cache line under an exclusive lock, the transfers
    alone under one that is shared, and the broadcast invalidation where there is one. What it takes alone is simulated:
    nobody waits there.

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
    alone = run_scenario(selftest(case)).metrics["dirty_memory_time"] / LEAST_PAGES / PS
    vcpus = np.array(curve_vcpus(case.guest.vcpus))
    return pd.DataFrame({"vcpus": vcpus, "times": np.maximum(alone, vcpus * serial) / alone})


@lru_cache(maxsize=16)
def published(machine: str) -> pd.DataFrame:
    """Measured curves of a machine by its name, in multiples of their first point.

    Returns: variant, kernel (as an architecture's name), vcpus, times; empty where nobody measured one. Everybody who
    asks for a machine gets the same table, so nobody changes it.

    >>> published("ampere-altra")["variant"].unique().tolist()
    ['spinlock-old-test', 'rwlock-old-test', 'rwlock-fixed-test']
    >>> len(published("nobody-s"))
    0
    """
    fit = shipped_fit(machine)
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
    """Dirty memory time over vCPUs, in multiples of one vCPU's, with a band for what the costs leave open.

    Returns: vcpus, times (costs at their medians), low, high (5 % and 95 % of `DRAWS` vectors of costs).
    """
    vcpus = curve_vcpus(state.scenario.guest.vcpus)
    medians, costs = costed(state.case())
    random = np.random.default_rng(1)
    worlds = [medians, *(costs.draw(random) for _ in range(DRAWS))]
    jobs = [(selftest(world).with_vcpus(n), n) for world in worlds for n in vcpus]

    def one(case: Scenario, n: int, inner: Check) -> float:
        pages = max(LEAST_PAGES, CURVE_PAGES // max(8, n) // WORD_PAGES * WORD_PAGES)
        whole = dataclasses.replace(
            case, guest=dataclasses.replace(case.guest, memory_per_vcpu=pages * case.guest.page_size)
        )
        return run_scenario(whole, progress=_both(check, inner)).metrics["dirty_memory_time"] / pages

    found = np.array(run_all([partial(one, case, n) for case, n in jobs])).reshape(len(worlds), len(vcpus))
    times = found / found[:, :1]
    low, high = np.quantile(times[1:], [0.05, 0.95], axis=0)
    return pd.DataFrame({"vcpus": vcpus, "times": times[0], "low": low, "high": high})


def _both(check: Check, inner: Check) -> Check:
    """What ends a simulation that one of two does not want any more."""

    def both(*of: object) -> None:
        check()
        inner(*of)

    return both


class Trip(NamedTuple):
    """One walk through a migration."""

    strategy: str
    journey: SampledRun

    def row(self, vcpus: int) -> dict[str, float | str]:
        """What a table says of it; cost and guest time lost are those of a choice."""
        found = self.journey.metrics
        metrics = np.array([found[name] for name in METRICS])
        cost, lost = (float(OBJECTIVES[name].value(metrics, vcpus, 1.0)) for name in ("cost", "guest_time_lost"))
        return {
            "strategy": self.strategy,
            "cost_s": cost,
            "clear_cpu_time_s": found["clear_cpu_time"],
            "guest_time_lost_s": lost,
            "longest_stall_s": found["longest_stall"],
            "stall_p999_s": found["stall_p999"],
            "guest_throughput": found["guest_throughput"],
            "precopy_s": found["precopy_duration"],
        }


def trips(state: ExplorerState, strategies: Sequence[str], check: Check) -> list[Trip]:
    """A walk for each of some strategies, on common random numbers."""

    def one(name: str, inner: Check) -> Trip:
        return Trip(name, sample_once(costed(state.case(name))[0], SEED, 0.5, _both(check, inner)))

    return run_all([partial(one, name) for name in strategies])


class Ranges(NamedTuple):
    """What the costs that are drawn from priors leave open.

    - `frame`: series (a strategy), quantity (a column of `Trip.row`), its low and high, and change_low and change_high
      of its ratio to the migration as it is: each drawn cost at the ends of its 90 % interval, joined as squares.
    - `decisive`: which costs make nearly all of it for the strategy that is asked about, in words; empty if none is
      drawn.
    """

    frame: pd.DataFrame
    decisive: str


def ranges(state: ExplorerState, strategies: Sequence[str], check: Check) -> Ranges:
    """The same walks with each drawn cost at both ends of its prior; a change compares two walks at the same end."""
    known = {name: costed(state.case(name))[1] for name in dict.fromkeys((*strategies, BASELINE))}
    if not any(one.drawn for one in known.values()):
        return Ranges(pd.DataFrame(columns=RANGED), "")
    cases = {name: [one.central(), *variations(one)] for name, one in known.items()}
    apart: list[Scenario] = []  # strategies that come to the same walk once
    apart.extend(case for rows in cases.values() for case in rows if case not in apart)

    def one_walk(case: Scenario, inner: Check) -> dict[str, float | str]:
        return Trip("", sample_once(case, SEED, 0.5, _both(check, inner))).row(case.guest.vcpus)

    def values(name: str) -> Values:
        rows = walked.to_numpy(dtype=float)[[apart.index(case) for case in cases[name]]]
        return Values(rows[:1], rows[1:], known[name].drawn)

    walked = pd.DataFrame(run_all([partial(one_walk, case) for case in apart])).drop(columns="strategy")
    most, parts = np.where(walked.columns == "guest_throughput", 1.0, np.inf), []
    for name in strategies:
        low, high, change_low, change_high = (
            ends for one in (values(name), values(name).over(values(BASELINE)))
            for ends in np.array([one.spread().interval(*each_one) for each_one in enumerate(one.points[0])]).T
        )  # fmt: skip
        rows = (name, walked.columns, low, np.minimum(high, most), change_low, change_high)
        parts.append(pd.DataFrame(dict(zip(RANGED, rows, strict=True))))
    return Ranges(pd.concat(parts, ignore_index=True), decisive(values(strategies[0]).spread().shares()))


def batches(scenario: Scenario) -> list[int]:
    """The batches that a CLEAR of this migration can have."""
    pages = chunk_pages(scenario)
    return [batch for batch in BATCHES if batch < pages]


@dataclasses.dataclass(frozen=True)
class Glimpse:
    """A window on one CLEAR of the first pass, with its trace.

    - `job`, `raw`, `seed`: what a trace is read from (`simlib.simulator.engine.timeline.TracedRun`).
    """

    job: Job
    raw: EngineResult
    seed: int = SEED

    @property
    def span(self) -> tuple[float, float]:
        """From shortly before CLEAR to shortly after it, s."""
        _, opened, cleared, closed = (float(time) * PS for time in self.raw.stamp_ps)
        margin = min(0.1 * (cleared - opened), closed - cleared)
        return max(0.0, opened - margin), cleared + margin

    def shares(self, bins: int = 120) -> pd.DataFrame:
        """Who owned the lock over the `span`."""
        return ownership_over_time(timeline(self), bins, window=self.span)

    def by_class(self) -> pd.DataFrame:
        """Share of its time that each class of threads spends on what: thread_class, activity, share."""
        threads = self.raw.threads(self.job)
        kind = np.where(threads["thread"].str.startswith("vcpu "), "vCPUs", "CLEAR")
        seconds = threads[[f"{activity}_s" for activity in ACTIVITIES]].groupby(kind).sum()
        shares = seconds.div(seconds.sum(axis=1), axis=0)
        rows = shares.rename(columns=lambda name: name.removesuffix("_s")).rename_axis("thread_class").reset_index()
        return rows.melt("thread_class", var_name="activity", value_name="share")


def glimpse(state: ExplorerState, check: Check) -> Glimpse:
    """Run the window on one CLEAR with a trace.

    Raises `SimlibError` if there are more events than a trace may have.
    """
    job = job_of_clear(costed(state.case())[0], SEED)
    return Glimpse(job, compiled.run(job, seed=SEED, trace=TRACE, progress=check))


def stages(state: ExplorerState, check: Check) -> Iterator[tuple[str, object]]:
    """Everything that is simulated, part by part, what answers the question first.

    Yields a name and what was found: ``baseline``, a list of the migration's `Trip` as it is; ``trips``, a list of
    those of the strategy and the pins; ``glimpse``, a `Glimpse`; ``curve``, `curve`'s table; ``batches``, a list of
    `Trip` by batch; ``ranges``, `Ranges`; or ``reason``, why there is none of these but the curve.
    """
    reason = why_not(state.case())
    if reason:
        yield "reason", reason
        yield "curve", curve(state, check)
        return
    names = list(dict.fromkeys((state.strategy, *state.pins)))
    found = {trip.strategy: trip for trip in trips(state, list(dict.fromkeys((*names, BASELINE))), check)}
    yield "baseline", [found[BASELINE]]
    yield "trips", [found[name] for name in names]
    try:
        yield "glimpse", glimpse(state, check)
    except RunInterruptedError:
        raise
    except SimlibError as error:
        yield "no glimpse", str(error)
    yield "curve", curve(state, check)
    rest = [f"every-{batch}" if batch else "whole-ioctl" for batch in batches(state.scenario)]
    found |= {trip.strategy: trip for trip in trips(state, [name for name in rest if name not in found], check)}
    yield "batches", [found[name] for name in rest]
    yield "ranges", ranges(state, names, check)
