# SPDX-License-Identifier: BSD-3-Clause
"""Which costs the data can tell apart, and which ones a prediction depends on."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from SALib.analyze import sobol as analyze
from SALib.sample import sobol as sample

from simlib._lib import parallel
from simlib._lib.errors import InputError
from simlib.analysis.calibrate.fit import calibrate
from simlib.analysis.calibrate.problem import build_problem
from simlib.analysis.predict import LEVEL, evaluate
from simlib.measurements import MeasurementTable
from simlib.measurements.fits import Fit
from simlib.model.scenario import Scenario

SOBOL_BASE = 64
"""Base sample of the Sobol design: (number of costs + 2) times as many evaluations."""

SOBOL_PAGES = 1024


def sobol_indices(
    fit: Fit, variant: str, vcpus: int, metric: str = "dirty_memory_time", *, seed: int = 1
) -> pd.DataFrame:
    """Sobol indices of one predicted number over the costs' profile intervals (Saltelli et al. 2010).

    Returns: name, first, first_confidence, total, total_confidence: shares of the variance, with 90 % half-widths.
    `variant` is empty if the scenario has none.
    """
    if seed < 1:
        raise InputError("seed", seed, "must be at least 1", "SALib takes 0 for no seed")
    logs = np.log(fit.parameters[["low", "high"]].to_numpy())
    logs[:, 1] = np.maximum(logs[:, 1], logs[:, 0] + 1e-6)
    names = list(fit.estimate.names)
    problem: dict[str, Any] = {"num_vars": len(names), "names": names, "bounds": logs.tolist()}
    points = sample.sample(problem, SOBOL_BASE, calc_second_order=False, seed=seed)
    case = fit.case(variant, vcpus)
    runs = evaluate([fit.estimate.apply(case, p) for p in points], pages_per_vcpu=SOBOL_PAGES, seed=fit.meta["seed"])
    values = np.log(np.array([r.metrics[metric] for r in runs]))
    if np.ptp(values):
        found = analyze.analyze(problem, values, calc_second_order=False, conf_level=LEVEL, seed=seed)
    else:  # no cost moves the metric, so that there is no variance to share
        found = dict.fromkeys(("S1", "S1_conf", "ST", "ST_conf"), np.zeros(len(names)))
    return pd.DataFrame(
        {"name": names, "first": found["S1"], "first_confidence": found["S1_conf"], "total": found["ST"],
         "total_confidence": found["ST_conf"]}
    )  # fmt: skip


def sensitivity(fit: Fit) -> pd.DataFrame:
    """Sobol indices of each variant's dirty memory time in the middle of the training vCPUs.

    Returns: variant, vcpus and the columns of `sobol_indices`.
    """
    train = fit.train
    vcpus = sorted(set(train["vcpus"]))
    middle = int(vcpus[len(vcpus) // 2])
    parts = []
    for variant in dict.fromkeys(train["variant"]):
        found = sobol_indices(fit, variant, middle, seed=max(1, fit.meta["seed"]))
        parts.append(found.assign(variant=variant, vcpus=middle))
    frame = pd.concat(parts, ignore_index=True)
    return frame[["variant", "vcpus", "name", "first", "first_confidence", "total", "total_confidence"]]


def alternatives(
    scenario: Scenario,
    table: MeasurementTable,
    train: str,
    readings: Mapping[str, Mapping[str, Any]],
    *,
    known: Mapping[str, Fit] | None = None,
    seed: int = 1,
    pages_per_vcpu: int = 1024,
    progress: Any = None,
) -> pd.DataFrame:
    """Calibrate the same data under other readings of what happened, and compare.

    Returns: reading, costs, discrepancy, and the worst relative error of training and held-out points by metric:
    train_time, held_out_time, train_count, held_out_count.

    - `train`: condition on the rows that each calibration may see.
    - `readings`: what each reading changes in every variant, as tables of a scenario file; ``calibration`` may name
      other costs.
    - `known`: readings that were calibrated before; they come first.
    """
    if progress is not None:
        progress("other readings of the data", 0.0)
    tasks = [partial(_reading, scenario, table, train, changes, seed, pages_per_vcpu) for changes in readings.values()]
    fits = dict(zip(readings, parallel.run_all(tasks, "other readings of the data", progress), strict=True))
    return pd.DataFrame([_errors(name, fit) for name, fit in {**(known or {}), **fits}.items()])


def _reading(
    scenario: Scenario, table: MeasurementTable, train: str, changes: Mapping[str, Any], seed: int,
    pages_per_vcpu: int, check: parallel.Check,
) -> Fit:  # fmt: skip
    problem = build_problem(scenario.everywhere(changes), table, train)
    return calibrate(problem, seed=seed, pages_per_vcpu=pages_per_vcpu, profile=False, progress=lambda *_: check(0, 0))


def _errors(name: str, fit: Fit) -> dict[str, Any]:
    """One row of `alternatives`."""
    row: dict[str, Any] = {
        "reading": name, "costs": len(fit.estimate.names), "discrepancy": fit.estimate.discrepancy,
    }  # fmt: skip
    for label, metric in (("time", "dirty_memory_time"), ("count", "contentions")):
        for split, mask in (("train", fit.observations["train"]), ("held_out", ~fit.observations["train"])):
            chosen = fit.observations[mask & (fit.observations["metric"] == metric)]
            row[f"{split}_{label}"] = float(chosen["error"].abs().max())
    return row


def strongest_correlations(fit: Fit, count: int = 3) -> list[tuple[str, str, float]]:
    """Pairs of costs whose estimates depend on each other most, strongest first."""
    if fit.correlation is None:
        return []
    names, matrix = fit.estimate.names, fit.correlation.to_numpy()
    pairs = [(names[i], names[j], float(matrix[i, j])) for i, j in itertools.combinations(range(len(names)), 2)]
    return sorted(pairs, key=lambda p: -abs(p[2]))[:count]
