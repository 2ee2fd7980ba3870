# SPDX-License-Identifier: BSD-3-Clause
"""The January 2022 table of an Ampere Altra: calibration on few vCPUs, prediction for many, alternative hypotheses."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from simlib import measurements
from simlib._lib import parallel
from simlib._lib.parallel import Progress
from simlib.analysis import calibrate
from simlib.analysis.calibrate.fit import calibrate as calibrate_problem
from simlib.analysis.predict import PredictionResult, evaluate
from simlib.figures.curves import COLUMNS
from simlib.measurements import MeasurementTable, data_dir
from simlib.measurements.fits import Fit, load_fit
from simlib.model.scenario import Scenario
from studies.arm64.scalability import fit_amdahl, fit_universal_scalability, from_time_per_vcpu_work
from studies.study import FITTED, HELD_OUT, SHOWN_ONLY, comparison_rows, held_out

TABLE = "arm64-dirty-memory-time"
TRAIN_VCPUS, MOST_VCPUS = 8, 64
TRAIN = f"vcpus <= {TRAIN_VCPUS}"

_ONLY_THE_LINE = {"costs": ["fault_hold", "fault_jitter"], "per_group_costs": ["fault_unlocked", "line_transfer"]}
_ALIKE = ["fault_hold", "line_transfer", "fault_jitter", "fault_unlocked", "tlb_invalidate"]
HYPOTHESES: dict[str, dict[str, object]] = {
    "write-protected at enable (3 faulting passes, counters over 2 runs)": {
        "workload": {"initially_set": False, "lock_stat_runs": 2}
    },
    "2 faulting passes, a fault takes the lock 3 times, 1 run": {
        "workload": {"lock_stat_runs": 1},
        "policy": {"fault_lock_sections": 3},
    },
    "3 faulting passes, a fault takes the lock twice, 1 run": {
        "workload": {"initially_set": False, "lock_stat_runs": 1},
        "policy": {"fault_lock_sections": 2},
    },
    "2 MiB blocks in stage 2 (split by the first write), counters over 6 runs": {
        "guest": {"memslot_aligned": True},
        "workload": {"lock_stat_runs": 6},
    },
    "no broadcast invalidation: only the lock word's cache line saturates": {
        "costs": {"tlb_invalidate": "0ps"},
        "calibration": _ONLY_THE_LINE,
    },
    "both versions of the test have the same costs": {"calibration": {"costs": _ALIKE, "per_group_costs": []}},
}
"""Alternative hypotheses on the published test, as changes to the scenario; each is calibrated on the same rows."""


def calibrate_training_rows(seed: int = 1, progress: Progress | None = None) -> Fit:
    """Calibrate the shipped scenario, which follows the published test's source, on the rows `TRAIN`."""
    scenario = data_dir() / "scenarios" / "arm64-ampere-altra.toml"
    return calibrate.calibrate(scenario, TABLE, TRAIN, seed=seed, progress=progress)


def shipped_fit() -> Fit:
    """Return the shipped fit of the January 2022 series' host."""
    return load_fit(data_dir() / "fits" / "ampere-altra.json")


def published_numbers(observations: pd.DataFrame, prediction: PredictionResult) -> pd.DataFrame:
    """Published dirty memory times and contentions with their predictions.

    - `observations`: variant, vcpus, metric, value, train (`Fit.observations`).
    - `prediction`: for the same variants and numbers of vCPUs.
    """
    keys = ["variant", "vcpus", "metric"]
    frame = prediction.frame.rename(columns={"estimate": "predicted"})
    rows = observations[[*keys, "value", "train"]].rename(columns={"value": "published"})
    rows = rows.merge(frame, on=keys, how="left")
    role = np.where(rows.pop("train"), FITTED, np.where(rows["published"] > 0, HELD_OUT, SHOWN_ONLY))
    return comparison_rows(rows.assign(role=role), TABLE)


def curves(fit: Fit, prediction: PredictionResult) -> pd.DataFrame:
    """Measured points, and curves of the model and both laws, in the format of `simlib.figures.dirty_memory_time`."""
    measured = fit.curves().query("kind == 'measured'")
    # Contentions are published only for the spinlock.
    model = prediction.curves().query("metric != 'contentions' or variant.str.startswith('spinlock')")
    trained = model["vcpus"] <= TRAIN_VCPUS
    model = model.assign(kind=np.where(trained, "fitted", "predicted"))
    model.loc[trained, ["low", "high"]] = np.nan
    rows = pd.concat([measured, model, _laws(fit)], ignore_index=True)
    return rows.assign(held_out=rows["vcpus"] > TRAIN_VCPUS)[list(COLUMNS)]


def _laws(fit: Fit) -> pd.DataFrame:
    """Curves of the laws, fitted to the same training points."""
    parts = []
    times = fit.observations[fit.observations["metric"] == "dirty_memory_time"]
    vcpus = np.unique(times["vcpus"])
    for variant, train in times[times["train"]].groupby("variant"):
        n = train["vcpus"].to_numpy()
        throughput = from_time_per_vcpu_work(n, train["value"].to_numpy())
        for kind, law in (("amdahl", fit_amdahl), ("usl", fit_universal_scalability)):
            value = vcpus / law(n, throughput).predict(vcpus)
            parts.append(pd.DataFrame({"variant": variant, "vcpus": vcpus, "kind": kind, "value": value}))
    return pd.concat(parts, ignore_index=True).assign(metric="dirty_memory_time", low=np.nan, high=np.nan)


def held_out_times(rows: pd.DataFrame, curves_table: pd.DataFrame) -> pd.DataFrame:
    """Held-out times of `published_numbers`, with the errors of the model and of the laws' curves.

    - `rows`, `curves_table`: as `published_numbers` and `curves` return them.

    Returns: variant, vcpus, published, predicted, low, high, inside, error_percent, usl_percent, amdahl_percent.
    """
    times = held_out(rows[rows["metric"] == "dirty_memory_time"])
    times = times[["variant", "vcpus", "published", "predicted", "low", "high", "inside", "error_percent"]]
    for kind in ("usl", "amdahl"):
        law = times.merge(curves_table[curves_table["kind"] == kind], on=["variant", "vcpus"])["value"]
        times = times.assign(**{f"{kind}_percent": (law / times["published"] - 1) * 100})
    return times


def time_per_fault(fit: Fit, vcpus: list[int], seed: int = 1) -> pd.DataFrame:
    """Simulated time of a fault by activity: variant, vcpus, activity, microseconds_per_fault."""
    cases = [(v, n) for v in fit.scenario.variants for n in vcpus]
    runs = evaluate([fit.estimate.apply(fit.case(v, n)) for v, n in cases], seed=seed)
    parts = [r.time_per_fault().assign(variant=v, vcpus=n) for (v, n), r in zip(cases, runs, strict=True)]
    return pd.concat(parts, ignore_index=True)[["variant", "vcpus", "activity", "microseconds_per_fault"]]


def simulate_every_page(fit: Fit, rows: pd.DataFrame, seed: int = 1) -> pd.DataFrame:
    """Simulate all pages, without sampling, at `MOST_VCPUS`, and add the times of `published_numbers`.

    Returns: variant, faults, lock_acquisitions, published, predicted, every_page (s).
    """
    names = list(fit.scenario.variants)
    cases = [fit.estimate.apply(fit.case(variant, MOST_VCPUS)) for variant in names]
    runs = evaluate(cases, pages_per_vcpu=cases[0].guest.pages_per_vcpu, seed=seed)
    counts = [(int(run.raw.faults.sum()), int(run.metrics["lock_acquisitions"])) for run in runs]
    simulated = pd.DataFrame(counts, columns=["faults", "lock_acquisitions"])
    simulated = simulated.assign(variant=names, every_page=[run.metrics["dirty_memory_time"] for run in runs])
    published = rows[(rows["metric"] == "dirty_memory_time") & (rows["vcpus"] == MOST_VCPUS)]
    table = simulated.merge(published[["variant", "published", "predicted"]], on="variant")
    return table[["variant", "faults", "lock_acquisitions", "published", "predicted", "every_page"]]


def hypotheses(fit: Fit, seed: int = 1, progress: Progress | None = None) -> pd.DataFrame:
    """Calibrate the table under each of `HYPOTHESES` instead of the shipped hypothesis, and compare.

    Returns: hypothesis, costs, discrepancy, and the worst relative error of training and held-out points by metric:
    train_time, held_out_time, train_count, held_out_count. The shipped hypothesis comes first.

    - `fit`: calibration of the shipped hypothesis.
    """
    if progress is not None:
        progress("alternative hypotheses on the data", 0.0)
    table = measurements.load(TABLE)
    tasks = [
        partial(_calibrate_hypothesis, fit.scenario.everywhere(changes), table, seed) for changes in HYPOTHESES.values()
    ]
    fits = dict(zip(HYPOTHESES, parallel.run_all(tasks, "alternative hypotheses on the data", progress), strict=True))
    shipped = {"as in the selftest's source (2 faulting passes, counters over 3 runs)": fit}
    return pd.DataFrame([_errors(name, hypothesis) for name, hypothesis in (shipped | fits).items()])


def _calibrate_hypothesis(scenario: Scenario, table: MeasurementTable, seed: int, check: parallel.Check) -> Fit:
    problem, pages = calibrate.build_problem(scenario, table, TRAIN), 1024
    return calibrate_problem(problem, seed=seed, pages_per_vcpu=pages, profile=False, progress=lambda *_: check(0, 0))


def _errors(name: str, fit: Fit) -> dict[str, object]:
    """Return a row of `hypotheses`."""
    estimate = fit.estimate
    row: dict[str, object] = {"hypothesis": name, "costs": len(estimate.names), "discrepancy": estimate.discrepancy}
    for label, metric in (("time", "dirty_memory_time"), ("count", "contentions")):
        for split, mask in (("train", fit.observations["train"]), ("held_out", ~fit.observations["train"])):
            rows = fit.observations[mask & (fit.observations["metric"] == metric)]
            row[f"{split}_{label}"] = float(rows["error"].abs().max())
    return row
