# SPDX-License-Identifier: BSD-3-Clause
"""The January 2022 table of an Ampere Altra: calibrated on few vCPUs, predicted for many, and read in other ways."""

from __future__ import annotations

import numpy as np
import pandas as pd

from simlib import measurements
from simlib._lib.parallel import Progress
from simlib.analysis import calibrate
from simlib.analysis.predict import PredictionResult, evaluate
from simlib.figures.curves import COLUMNS
from simlib.measurements import data_dir
from simlib.measurements.fits import Fit, load_fit
from studies.arm64.scalability import fit_amdahl, fit_universal_scalability, from_time_per_vcpu_work
from studies.study import COUNTED, FITTED, HELD_OUT, held_out, numbers

TABLE = "arm64-dirty-memory-time"
TRAIN_VCPUS, MOST_VCPUS = 8, 64
TRAIN = f"vcpus <= {TRAIN_VCPUS}"

AS_IT_READS = "as the selftest's source reads (2 faulting passes, counters over 3 runs)"
"""The reading of the shipped scenario."""

READINGS: dict[str, dict[str, object]] = {
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
        "calibration": {
            "costs": ["fault_hold", "fault_jitter"],
            "per_group_costs": ["fault_unlocked", "line_transfer"],
        },
    },
    "the two versions of the test cost the same": {
        "calibration": {
            "costs": ["fault_hold", "line_transfer", "fault_jitter", "fault_unlocked", "tlb_invalidate"],
            "per_group_costs": [],
        }
    },
}
"""Other readings of what the published test did, each calibrated on the same rows."""

LAWS = {"amdahl": fit_amdahl, "usl": fit_universal_scalability}
"""Amdahl's law and the universal scalability law, as `simlib.figures` calls their curves."""


def calibrated(seed: int = 1, progress: Progress | None = None) -> Fit:
    """The shipped scenario, which is the published test as its source reads, calibrated on the rows `TRAIN`."""
    scenario = data_dir() / "scenarios" / "arm64-ampere-altra.toml"
    return calibrate.calibrate(scenario, TABLE, TRAIN, seed=seed, progress=progress)


def shipped_fit() -> Fit:
    """The fit that simlib brings along for the machine of the January 2022 series."""
    return load_fit(data_dir() / "fits" / "ampere-altra.json")


def published_numbers(observations: pd.DataFrame, prediction: PredictionResult) -> pd.DataFrame:
    """Dirty memory times and contentions beside the model.

    - `observations`: variant, vcpus, metric, value, train: of a fit.
    - `prediction`: for the same variants and numbers of vCPUs.
    """
    keys = ["variant", "vcpus", "metric"]
    frame = prediction.frame.rename(columns={"estimate": "predicted"})
    rows = observations[[*keys, "value", "train"]].rename(columns={"value": "published"})
    rows = rows.merge(frame, on=keys, how="left")
    role = np.where(rows.pop("train"), FITTED, np.where(rows["published"] > 0, HELD_OUT, COUNTED))
    return numbers(rows.assign(role=role), TABLE)


def curves(fit: Fit, prediction: PredictionResult) -> pd.DataFrame:
    """What was measured, the model and the two laws, as `simlib.figures.dirty_memory_time` draws them."""
    measured = fit.curves().query("kind == 'measured'")
    # Contentions are published for the spinlock only; of the others there is nothing to compare with.
    model = prediction.curves().query("metric != 'contentions' or variant.str.startswith('spinlock')")
    trained = model["vcpus"] <= TRAIN_VCPUS
    model = model.assign(kind=np.where(trained, "fitted", "predicted"))
    model.loc[trained, ["low", "high"]] = np.nan
    found = pd.concat([measured, model, _laws(fit)], ignore_index=True)
    return found.assign(held_out=found["vcpus"] > TRAIN_VCPUS)[list(COLUMNS)]


def _laws(fit: Fit) -> pd.DataFrame:
    """The laws, fitted to the same training points."""
    parts = []
    times = fit.observations[fit.observations["metric"] == "dirty_memory_time"]
    vcpus = np.unique(times["vcpus"])
    for variant, rows in times.groupby("variant"):
        train = rows[rows["train"]]
        n = train["vcpus"].to_numpy()
        throughput = from_time_per_vcpu_work(n, train["value"].to_numpy())
        for kind, law in LAWS.items():
            value = vcpus / law(n, throughput).predict(vcpus)
            parts.append(pd.DataFrame({"variant": variant, "vcpus": vcpus, "kind": kind, "value": value}))
    rows = pd.concat(parts, ignore_index=True)
    return rows.assign(metric="dirty_memory_time", low=np.nan, high=np.nan)


def held_out_times(rows: pd.DataFrame, drawn: pd.DataFrame) -> pd.DataFrame:
    """Held-out times of `published_numbers` with the errors of the model, and of the laws among `curves`.

    Returns: variant, vcpus, published, predicted, low, high, inside, error_percent, usl_percent, amdahl_percent.
    """
    times = held_out(rows[rows["metric"] == "dirty_memory_time"])
    times = times[["variant", "vcpus", "published", "predicted", "low", "high", "inside", "error_percent"]]
    for kind in ("usl", "amdahl"):
        law = times.merge(drawn[drawn["kind"] == kind], on=["variant", "vcpus"])["value"]
        times = times.assign(**{f"{kind}_percent": (law / times["published"] - 1) * 100})
    return times


def time_per_fault(fit: Fit, vcpus: list[int], seed: int = 1) -> pd.DataFrame:
    """Where the time of a fault goes, simulated: variant, vcpus, activity, microseconds_per_fault."""
    cases = [(v, n) for v in fit.scenario.variants for n in vcpus]
    runs = evaluate([fit.estimate.apply(fit.case(v, n)) for v, n in cases], seed=seed)
    parts = [r.time_per_fault().assign(variant=v, vcpus=n) for (v, n), r in zip(cases, runs, strict=True)]
    return pd.concat(parts, ignore_index=True)[["variant", "vcpus", "activity", "microseconds_per_fault"]]


def page_by_page(fit: Fit, rows: pd.DataFrame, seed: int = 1) -> pd.DataFrame:
    """The points with the most vCPUs, simulated with every page, nothing sampled, beside `published_numbers`.

    Returns: variant, faults, lock_acquisitions, published, predicted, every_page (s).
    """
    names = list(fit.scenario.variants)
    cases = [fit.estimate.apply(fit.case(variant, MOST_VCPUS)) for variant in names]
    runs = evaluate(cases, pages_per_vcpu=cases[0].guest.pages_per_vcpu, seed=seed)
    ran = pd.DataFrame(
        {"variant": names, "faults": [int(run.raw.faults.sum()) for run in runs],
         "lock_acquisitions": [int(run.metrics["lock_acquisitions"]) for run in runs],
         "every_page": [run.metrics["dirty_memory_time"] for run in runs]}
    )  # fmt: skip
    at = rows[(rows["metric"] == "dirty_memory_time") & (rows["vcpus"] == MOST_VCPUS)]
    found = ran.merge(at[["variant", "published", "predicted"]], on="variant")
    return found[["variant", "faults", "lock_acquisitions", "published", "predicted", "every_page"]]


def readings(fit: Fit, seed: int = 1, progress: Progress | None = None) -> pd.DataFrame:
    """`READINGS` and the shipped one, as of `simlib.analysis.calibrate.alternatives`."""
    return calibrate.alternatives(
        fit.scenario, measurements.load(TABLE), TRAIN, READINGS, known={AS_IT_READS: fit}, seed=seed, progress=progress
    )
