# SPDX-License-Identifier: BSD-3-Clause
"""Seed 000: arm64 dirty memory time over vCPUs, calibrated on few vCPUs and predicted for many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from simlib import calibration, figures, measurements
from simlib.figures.style import signed
from simlib.fits import Fit
from simlib.measurements import MeasurementTable, data_dir
from simlib.model.scenario import Scenario, load_scenario
from simlib.parallel import both, portion
from simlib.prediction import LEVEL, PredictionResult, evaluate, predict
from simlib.report.block import Chart, Note, Prose, Table, number_text
from simlib.report.page import Section
from simlib.theory import fit_amdahl, fit_universal_scalability, from_time_per_vcpu_work

TABLE = "arm64-dirty-memory-time"
TRAIN = "vcpus <= 8"
TRAIN_VCPUS = 8

AS_IT_READS = "as the selftest's source reads (2 faulting passes, counters over 3 runs)"
"""The reading of the shipped scenario."""

READINGS: dict[str, dict[str, object]] = {
    "write-protected at enable (3 faulting passes, counters over 2 runs)": {
        "workload": {"initially_set": False, "counted_runs": 2}
    },
    "2 faulting passes, a fault takes the lock 3 times, 1 run": {
        "workload": {"counted_runs": 1}, "policy": {"fault_lock_sections": 3},
    },
    "3 faulting passes, a fault takes the lock twice, 1 run": {
        "workload": {"initially_set": False, "counted_runs": 1}, "policy": {"fault_lock_sections": 2},
    },
    "2 MiB blocks in stage 2 (split by the first write), counters over 6 runs": {
        "guest": {"memslot_aligned": True}, "workload": {"counted_runs": 6},
    },
    "no broadcast invalidation: only the lock word's cache line saturates": {
        "costs": {"tlb_invalidate": "0ps"},
        "calibration": {"costs": ["fault_hold", "fault_jitter"], "own_costs": ["fault_exit", "line_transfer"]},
    },
    "the two versions of the test cost the same": {
        "calibration": {
            "costs": ["fault_hold", "line_transfer", "fault_jitter", "fault_exit", "tlb_invalidate"], "own_costs": [],
        }
    },
}  # fmt: skip
"""Other readings of what the published test did, each calibrated on the same rows."""

LAWS = {"simlib": "simlib", "usl": "universal scalability law", "amdahl": "Amdahl's law"}
"""Models that are compared: their columns, and what they are called."""

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Study:
    """Everything that seed 000's sections show.

    Attributes
    ----------
    prediction : PredictionResult
        At every published number of vCPUs.
    curves : DataFrame
        variant, vcpus, metric, kind, value, low, high, held_out.
    held_out : DataFrame
        One row a held-out time: published, predicted, interval, errors of the model and of the baselines.
    split : DataFrame
        variant, vcpus, activity, microseconds_per_fault.
    """

    table: MeasurementTable
    fit: Fit
    prediction: PredictionResult
    curves: pd.DataFrame
    held_out: pd.DataFrame
    split: pd.DataFrame


def scenario() -> Scenario:
    """The shipped scenario of seed 000.

    Examples
    --------
    >>> sorted(scenario().variants)
    ['rwlock-fixed-test', 'rwlock-old-test', 'spinlock-old-test']
    """
    return load_scenario(data_dir() / "scenarios" / "arm64-ampere-altra.toml")


def study(*, seed: int = 1, progress: Progress | None = None) -> Study:
    """Calibrate on at most 8 vCPUs, predict every published point, fit the baselines, split the time.

    Parameters
    ----------
    progress : callable, optional
        Called with (what, share done).
    """
    table = measurements.load(TABLE)
    subject = scenario()
    fit = calibration.calibrate(subject, table, TRAIN, seed=seed, progress=portion(progress, 0.0, 0.85))
    vcpus = sorted({int(n) for n in table.column("vcpus")})
    prediction = predict(subject, vcpus, fit=fit.estimate, seed=seed, progress=portion(progress, 0.85, 1.0))
    curves = pd.concat([_measured(fit), _modelled(prediction), *_baselines(fit, vcpus)], ignore_index=True)
    return Study(table, fit, prediction, curves, _held_out(fit, prediction, curves), _split(fit, vcpus, seed))


def _measured(fit: Fit) -> pd.DataFrame:
    rows = fit.observations
    return pd.DataFrame(
        {"variant": rows["variant"], "vcpus": rows["vcpus"], "metric": rows["metric"], "kind": "measured",
         "value": rows["value"], "low": np.nan, "high": np.nan, "held_out": rows["vcpus"] > TRAIN_VCPUS}
    )  # fmt: skip


def _modelled(prediction: PredictionResult) -> pd.DataFrame:
    rows = prediction.frame
    held_out = rows["vcpus"] > TRAIN_VCPUS
    # Contentions are published for the spinlock only; of the others there is nothing to compare with.
    keep = (rows["metric"] != "contentions") | rows["variant"].str.startswith("spinlock")
    frame = pd.DataFrame(
        {"variant": rows["variant"], "vcpus": rows["vcpus"], "metric": rows["metric"],
         "kind": np.where(held_out, "predicted", "fitted"), "value": rows["estimate"],
         "low": np.where(held_out, rows["low"], np.nan), "high": np.where(held_out, rows["high"], np.nan),
         "held_out": held_out}
    )  # fmt: skip
    return frame[keep]


def _baselines(fit: Fit, vcpus: list[int]) -> list[pd.DataFrame]:
    """Amdahl's law and the universal scalability law, fitted to the same training points."""
    parts = []
    times = fit.observations[fit.observations["metric"] == "dirty_memory_time"]
    for variant, rows in times.groupby("variant"):
        train = rows[rows["train"]]
        n = train["vcpus"].to_numpy()
        throughput = from_time_per_vcpu_work(n, train["value"].to_numpy())
        for kind, law in (("amdahl", fit_amdahl), ("usl", fit_universal_scalability)):
            value = np.array(vcpus) / law(n, throughput).predict(np.array(vcpus))
            parts.append(
                pd.DataFrame(
                    {"variant": variant, "vcpus": vcpus, "metric": "dirty_memory_time", "kind": kind, "value": value,
                     "low": np.nan, "high": np.nan, "held_out": np.array(vcpus) > TRAIN_VCPUS}
                )
            )  # fmt: skip
    return parts


def _held_out(fit: Fit, prediction: PredictionResult, curves: pd.DataFrame) -> pd.DataFrame:
    times = fit.observations[(fit.observations["metric"] == "dirty_memory_time") & ~fit.observations["train"]]
    frame = times[["variant", "vcpus", "value"]].rename(columns={"value": "published_s"})
    found = prediction.frame[prediction.frame["metric"] == "dirty_memory_time"]
    frame = frame.merge(found[["variant", "vcpus", "estimate", "low", "high"]], on=["variant", "vcpus"])
    frame = frame.rename(columns={"estimate": "predicted_s", "low": "low_s", "high": "high_s"})
    frame["covered"] = (frame["published_s"] >= frame["low_s"]) & (frame["published_s"] <= frame["high_s"])
    frame["simlib_percent"] = (frame["predicted_s"] / frame["published_s"] - 1) * 100
    for kind in ("usl", "amdahl"):
        rows = curves[curves["kind"] == kind][["variant", "vcpus", "value"]]
        merged = frame.merge(rows, on=["variant", "vcpus"])
        frame[f"{kind}_percent"] = (merged["value"] / merged["published_s"] - 1).to_numpy() * 100
    return frame


def _split(fit: Fit, vcpus: list[int], seed: int) -> pd.DataFrame:
    cases = [(v, n) for v in fit.scenario.variants for n in vcpus]
    runs = evaluate([fit.estimate.apply(fit.case(v, n)) for v, n in cases], seed=seed)
    parts = [r.time_per_fault().assign(variant=v, vcpus=n) for (v, n), r in zip(cases, runs, strict=True)]
    return pd.concat(parts, ignore_index=True)[["variant", "vcpus", "activity", "microseconds_per_fault"]]


def page_by_page(found: Study, *, seed: int = 1) -> pd.DataFrame:
    """Simulate the published 64-vCPU points with every page, nothing sampled, and compare.

    Returns: variant, faults, lock_acquisitions, published_s, every_page_s, sampled_s.
    """
    names = list(found.fit.scenario.variants)
    cases = [found.fit.estimate.apply(found.fit.case(variant, 64)) for variant in names]
    runs = evaluate(cases, pages_per_vcpu=cases[0].guest.pages_per_vcpu, seed=seed)
    rows = []
    for variant, run in zip(names, runs, strict=True):
        at = found.held_out[(found.held_out["variant"] == variant) & (found.held_out["vcpus"] == 64)].iloc[0]
        rows.append(
            {"variant": variant, "faults": int(run.raw.faults.sum()),
             "lock_acquisitions": int(run.metrics["lock_acquisitions"]), "published_s": at["published_s"],
             "every_page_s": run.metrics["dirty_memory_time"], "sampled_s": at["predicted_s"]}
        )  # fmt: skip
    return pd.DataFrame(rows)


def sections(found: Study, *, seed: int = 1, progress: Progress | None = None) -> list[Section]:
    """The report's sections on seed 000."""
    # Calibrations keep Python busy, runs of every page do not: together they end earlier.
    every_page, readings = both(
        lambda: page_by_page(found, seed=seed),
        lambda: calibration.alternatives(
            found.fit.scenario, found.table, TRAIN, READINGS, known={AS_IT_READS: found.fit}, seed=seed,
            progress=progress,
        ),
    )  # fmt: skip
    return [
        _question(found),
        _costs(found),
        _prediction(found, every_page),
        _contention(found, readings),
        _where_time_goes(found),
    ]


def _question(found: Study) -> Section:
    wide = found.table.frame.pivot_table(index="vcpus", columns="series", values="dirty_memory_time_ms").reset_index()
    counts = found.table.frame[found.table.frame["series"] == "spinlock-old-test"][["vcpus", "contentions"]]
    wide = wide.merge(counts, on="vcpus")[
        ["vcpus", "spinlock-old-test", "contentions", "rwlock-old-test", "rwlock-fixed-test"]
    ]
    source = found.table.source
    return Section(
        "What was published",
        [
            Prose(
                "On an Ampere Altra every write fault of a vCPU took mmu_lock, a spinlock; a series of January 2022 "
                "made it an rwlock and let faults that only make a page writable again take it for read. Can the "
                "curves to 64 vCPUs be told from measurements on at most 8, and what limits each of them?"
            ),
            Table(
                wide,
                f"Measured dirty memory time in ms and lock contentions. Source: {source['author']}, "
                f"{source['date']}, Message-ID {source['message_id']}. Hardware: {found.table.hardware}.",
            ),
            *(Note(caveat, title="Caveat", level="warning") for caveat in found.table.caveats[:1]),
        ],
    )


def cost_finding(costs: pd.DataFrame) -> str:
    """Which cost is known best, which least, and what is at a bound.

    Examples
    --------
    >>> costs = pd.DataFrame({"cost": ["fault_hold", "line_transfer"], "low": [9.0, 1.0], "high": [11.0, 5.0],
    ...                       "unit": "ns", "below": [10.0, 50.0], "above": [10.0, 150.0], "bound": ["", ""]})
    >>> cost_finding(costs)
    'Known best: fault_hold (9 to 11 ns); least: line_transfer (1 to 5 ns). None is at a physical bound.'
    """
    wide = costs.assign(width=costs["below"] + costs["above"]).sort_values("width")
    best, least = (
        f"{row['cost']} ({number_text(row['low'], 3)} to {number_text(row['high'], 3)} {row['unit']})".replace(
            " )", ")"
        )
        for row in (wide.iloc[0], wide.iloc[-1])
    )
    bounded = costs.loc[costs["bound"] != "", "cost"].tolist()
    ends = f"At a physical bound, or an end is: {', '.join(bounded)}." if bounded else "None is at a physical bound."
    return f"Known best: {best}; least: {least}. {ends}"


def sensitivity_finding(sobol: pd.DataFrame) -> str:
    """Which cost moves the time most, and how much of its variance it makes by itself.

    Examples
    --------
    >>> sensitivity_finding(pd.DataFrame({"name": ["a", "b"], "first": [0.7, 0.2], "total": [0.8, 0.3]}))
    'a moves it most: 70 % of the variance by itself, 80 % with interactions.'
    """
    top = max(sobol.to_dict("records"), key=lambda row: row["total"])
    return (
        f"{top['name']} moves it most: {100 * top['first']:.0f} % of the variance by itself, {100 * top['total']:.0f} "
        "% with interactions."
    )


def held_out_finding(held: pd.DataFrame) -> str:
    """How many held-out times their intervals hold, and which prediction is furthest off.

    Examples
    --------
    >>> held = pd.DataFrame({"variant": ["a", "b"], "vcpus": [16, 64], "covered": [True, False],
    ...                      "simlib_percent": [1.0, -6.2]})
    >>> held_out_finding(held)
    '1 of 2 held-out times lie inside their 90% interval; furthest off: b with 64 vCPUs, −6.2 %.'
    """
    worst = max(held.to_dict("records"), key=lambda row: abs(row["simlib_percent"]))
    return (
        f"{int(held['covered'].sum())} of {len(held)} held-out times lie inside their {LEVEL:.0%} interval; furthest "
        f"off: {worst['variant']} with {worst['vcpus']} vCPUs, {signed(worst['simlib_percent'])} %."
    )


def error_finding(held: pd.DataFrame) -> str:
    """Mean absolute errors of the model and of the two laws."""
    mean = {name: held[f"{key}_percent"].abs().mean() for key, name in LAWS.items()}
    return f"Mean absolute error: {', '.join(f'{name} {value:.1f} %' for name, value in mean.items())}."


def speed_finding(curves: pd.DataFrame) -> str:
    """How many times the work of one vCPU the most vCPUs did, as measured and by the model.

    Parameters
    ----------
    curves : DataFrame
        `Study.curves`, of dirty memory times.
    """
    parts = []
    for variant, rows in curves.groupby("variant", sort=False):
        n = int(rows["vcpus"].max())
        done = {}
        for kind, kinds in (("measured", ["measured"]), ("model", ["fitted", "predicted"])):
            time = rows[rows["kind"].isin(kinds)].set_index("vcpus")["value"]
            done[kind] = n * time[1] / time[n]
        parts.append(f"{variant} {done['measured']:.2f} (model {done['model']:.2f})")
    return f"{n} vCPUs get done, times what one does: {'; '.join(parts)}."


def contention_finding(curves: pd.DataFrame, pages: int) -> str:
    """Contentions a page with the most vCPUs, as measured and by the model."""
    n = int(curves["vcpus"].max())
    last = curves[(curves["vcpus"] == n) & (curves["metric"] == "contentions")].set_index("kind")["value"] / (n * pages)
    return (
        f"With {n} vCPUs {last['measured']:.2f} contentions a page were measured; the model has "
        f"{last['predicted']:.2f}."
    )


def split_finding(split: pd.DataFrame) -> str:
    """How long a fault takes with the most vCPUs, and what takes most of it.

    Examples
    --------
    >>> split_finding(pd.DataFrame({"variant": "a", "vcpus": 64, "activity": ["wait", "hold"],
    ...                             "microseconds_per_fault": [38.0, 0.6]}))
    'With 64 vCPUs a fault takes 38.6 µs (a; wait: 38 µs).'
    """
    n, parts = int(split["vcpus"].max()), []
    for variant, rows in split[split["vcpus"] == n].groupby("variant", sort=False):
        times = dict(zip(rows["activity"], rows["microseconds_per_fault"], strict=True))
        most = max(times, key=lambda name: times[name])
        parts.append(f"{sum(times.values()):.3g} µs ({variant}; {most}: {times[most]:.3g} µs)")
    return f"With {n} vCPUs a fault takes {', '.join(parts)}."


def _costs(found: Study) -> Section:
    fit = found.fit
    shown = fit.costs()
    pairs = calibration.strongest_correlations(fit)
    latency = measurements.load("core-to-core-latency").frame
    peer = latency[latency["processor"] == "Graviton2"].iloc[0]
    line = shown[shown["name"] == "line_transfer"].iloc[0]
    sobol = fit.sensitivity[fit.sensitivity["variant"] == "spinlock-old-test"]
    return Section(
        "Calibrated costs",
        [
            Prose(
                f"Calibrated on the {len(fit.train)} published numbers with at most {TRAIN_VCPUS} vCPUs: "
                f"{len(fit.estimate.names)} costs, {fit.estimate.dof} degrees of freedom. The source gives no "
                "spread, so the deviation of the model from the data it was fitted to, "
                f"{fit.estimate.discrepancy:.1%} of a time, stands for noise and model error together and widens "
                "every interval; contention counts are taken to deviate twice as much. Spinlock and rwlock of the "
                "old test share every cost: between them only the lock policy changes. The fixed test has its own "
                "exit (outside the lock) and its own cost of a broadcast TLB invalidation. Why a change of the test "
                "should change the cost of a broadcast the model does not explain: the two plateaus demand it (last "
                "reading in the table of readings)."
            ),
            Chart(
                figures.cost_intervals(shown),
                f"{cost_finding(fit.cost_table)} Values and {fit.level:.0%} profile intervals. All starting points and "
                "flags: "
                + ", ".join(f"{k.replace('_', ' ')}: {'yes' if v else 'no'}" for k, v in fit.valid.items())
                + ".",
            ),
            Note(
                f"The cost of moving the lock's cache line comes out at {line['value']:.0f} ns "
                f"({line['low']:.0f} to {line['high']:.0f}). The published compare-and-swap latency between cores "
                f"of a Graviton2, which has the same Neoverse N1 cores, is {peer['latency_ns']:.0f} ns: "
                f"{'inside' if line['low'] <= peer['latency_ns'] <= line['high'] else 'outside'} that interval. It was "
                "not used in the calibration. The interval is wide, so the check is a weak one.",
                title="An independent check",
            ),
            Chart(
                figures.correlation(fit),
                "Correlation of the estimates. Strongest: "
                + "; ".join(f"{a} with {b} {r:+.2f}" for a, b, r in pairs)
                + ". Pairs near ±1 are known as a sum or difference better than one by one.",
            ),
            Chart(
                figures.sensitivity(sobol),
                f"{sensitivity_finding(sobol)} "
                f"Sobol indices of the spinlock's time at {sobol['vcpus'].iloc[0]} vCPUs over the intervals above: "
                "which cost's "
                "uncertainty moves the answer. At many vCPUs the serial part alone decides.",
            ),
        ],
    )


def _prediction(found: Study, every_page: pd.DataFrame) -> Section:
    held = found.held_out
    errors = pd.concat(
        [
            held[["variant", "vcpus"]].assign(model=name, error_percent=held[f"{column}_percent"])
            for name, column in (("simlib", "simlib"), ("USL", "usl"), ("Amdahl", "amdahl"))
        ]
    )
    return Section(
        "Predicted beyond 8 vCPUs",
        [
            Chart(
                figures.dirty_memory_time(found.curves),
                f"{held_out_finding(held)} "
                "Filled circles: measured, calibrated on. Open diamonds: measured, held out. Lines: the model. "
                f"Band: {LEVEL:.0%} interval of the prediction.",
            ),
            Table(
                held,
                f"The {len(held)} held-out points. {held_out_finding(held)} {error_finding(held)} The laws were fitted "
                "to the same points.",
                digits=4,
            ),
            Chart(
                figures.held_out_errors(errors),
                f"{error_finding(held)} Error of each prediction, beside those of the two scaling laws.",
            ),
            Chart(
                figures.speed_up(found.curves[found.curves["metric"] == "dirty_memory_time"]),
                f"{speed_finding(found.curves[found.curves['metric'] == 'dirty_memory_time'])} "
                "Speed-up over one vCPU. The laws bend where their formula lets them; the model bends where a "
                "resource saturates.",
            ),
            Table(
                every_page,
                "The 64-vCPU points simulated with every page of all 128 GiB, nothing sampled, beside the sampled "
                "runs behind the curves.",
            ),
        ],
    )


def _contention(found: Study, readings: pd.DataFrame) -> Section:
    pages = found.fit.scenario.guest.pages_per_vcpu
    shown = readings.copy()
    columns = ["discrepancy", "train_time", "held_out_time", "train_count", "held_out_count"]
    shown[columns] *= 100
    return Section(
        "Why contentions saturate at 6.00 a page",
        [
            Prose(
                "The selftest of that time put its memslot one page below the top of the address space, so stage 2 "
                "could not map 2 MiB blocks, hugetlbfs or not: every page faults by itself when it is populated "
                "and once more after CLEAR has write-protected it. Under KVM_DIRTY_LOG_INITIALLY_SET, which the test "
                "asks for, the first iteration faults nothing. So a page takes the lock twice. With many vCPUs every "
                "acquisition finds the lock held, and the count is a whole number a page: 2 a run. Six would mean "
                "that the counters had summed three runs, which is inferred: the source does not say. With 2 and 4 "
                "vCPUs the passes differ: populating holds the lock "
                "for less time (no entry was valid, so nothing is broadcast to the TLBs) and contends less."
            ),
            Chart(
                figures.contentions(found.curves[found.curves["variant"] == "spinlock-old-test"], pages),
                contention_finding(found.curves[found.curves["variant"] == "spinlock-old-test"], pages),
            ),
            Table(
                shown,
                "Other readings of the same table, each calibrated on the same rows: largest relative error in %, of "
                "times and counts, on training and held-out points. No correction for trying several; they differ by "
                "structure, not by a tuned value.",
                digits=3,
            ),
            Note(
                "The first two readings cannot be told apart by these data: they differ in how many passes fault "
                "and, inversely, in how many runs were counted, and fit equally well. They give different costs of a "
                "fault by a factor of two. The first follows the selftest's source. The data rule out blocks in stage "
                "2 (the rwlock could not have helped), a plateau of the rwlock made by the lock word's line alone, "
                "without a serial resource that is paid with one vCPU too, and equal costs of both versions of the "
                "test: each leaves a discrepancy about four times as large, or more. More than one lock section a "
                "fault leaves about twice as much: with eight degrees of freedom that speaks against it and does not "
                "exclude it. That a serial resource exists is in the data; that it is the broadcast TLB invalidation "
                "under the lock is a reading, supported by the kernel's later change to local invalidation there.",
                title="What the data cannot decide, and what they rule out",
                level="warning",
            ),
        ],
    )


def _where_time_goes(found: Study) -> Section:
    return Section(
        "Where the time goes",
        [
            Chart(
                figures.time_per_page(found.split),
                "Simulated mean time of a fault while the guest dirties its memory: outside the lock, queued "
                "for mmu_lock (wait), working under it (hold), moving cache lines (line transfer), queued for the "
                "interconnect's broadcast invalidation (broadcast). The rwlock removes the queue for the lock; the "
                f"queue for the interconnect takes its place. {split_finding(found.split)}",
            ),
        ],
    )
