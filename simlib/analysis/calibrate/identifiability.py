# SPDX-License-Identifier: BSD-3-Clause
"""Identifiability of costs: correlations, and Sobol indices of predictions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
from SALib.analyze import sobol as analyze
from SALib.sample import sobol as sample

from simlib._lib.errors import InputError
from simlib.analysis.predict import evaluate
from simlib.analysis.prediction_options import LEVEL
from simlib.measurements.fits import Fit


def sobol_indices(
    fit: Fit, variant: str, vcpus: int, metric: str = "dirty_memory_time", *, seed: int = 1
) -> pd.DataFrame:
    """Sobol indices of one predicted value over the costs' profile intervals (Saltelli et al. 2010).

    Returns: name, first, first_confidence, total, total_confidence: shares of the variance, with 90 % half-widths.
    `variant` is empty if the scenario has no variants.
    """
    if seed < 1:
        raise InputError("seed", seed, "must be at least 1", "SALib treats 0 as no seed")
    logs = np.log(fit.parameters[["low", "high"]].to_numpy())
    logs[:, 1] = np.maximum(logs[:, 1], logs[:, 0] + 1e-6)
    names = list(fit.estimate.names)
    problem: dict[str, Any] = {"num_vars": len(names), "names": names, "bounds": logs.tolist()}
    points = sample.sample(problem, 64, calc_second_order=False, seed=seed)  # 64 × (number of costs + 2) points
    case = fit.case(variant, vcpus)
    runs = evaluate([fit.estimate.apply(case, p) for p in points], pages_per_vcpu=1024, seed=fit.meta["seed"])
    values = np.log(np.array([r.metrics[metric] for r in runs]))
    if np.ptp(values):
        indices = analyze.analyze(problem, values, calc_second_order=False, conf_level=LEVEL, seed=seed)
    else:  # no cost changes the metric: there is no variance to apportion
        indices = dict.fromkeys(("S1", "S1_conf", "ST", "ST_conf"), np.zeros(len(names)))
    return pd.DataFrame(
        {"name": names, "first": indices["S1"], "first_confidence": indices["S1_conf"], "total": indices["ST"],
         "total_confidence": indices["ST_conf"]}
    )  # fmt: skip


def sensitivity(fit: Fit) -> pd.DataFrame:
    """Sobol indices of each variant's dirty memory time at the median of the training rows' distinct vCPU counts.

    Returns: variant, vcpus and the columns of `sobol_indices`.
    """
    train = fit.train
    vcpus = sorted(set(train["vcpus"]))
    middle = int(vcpus[len(vcpus) // 2])
    parts = []
    for variant in dict.fromkeys(train["variant"]):
        indices = sobol_indices(fit, variant, middle, seed=max(1, fit.meta["seed"]))
        parts.append(indices.assign(variant=variant, vcpus=middle))
    frame = pd.concat(parts, ignore_index=True)
    return frame[["variant", "vcpus", "name", "first", "first_confidence", "total", "total_confidence"]]


def strongest_correlations(fit: Fit, count: int = 3) -> list[tuple[str, str, float]]:
    """Pairs of costs whose estimates are most strongly correlated, strongest first."""
    if fit.correlation is None:
        return []
    names, matrix = fit.estimate.names, fit.correlation.to_numpy()
    pairs = [(names[i], names[j], float(matrix[i, j])) for i, j in itertools.combinations(range(len(names)), 2)]
    return sorted(pairs, key=lambda p: -abs(p[2]))[:count]
