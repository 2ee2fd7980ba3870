# SPDX-License-Identifier: BSD-3-Clause
"""Best policy at each place of a sweep, as a small table of a large data set."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from simlib._lib.errors import InputError
from simlib.analysis.choose.objectives import METRICS, objective
from simlib.measurements import data_dir
from simlib.simulator.engine.result import PS

INDIFFERENCE = 0.1
"""Relative difference that counts as equal, by default the precision of the replications."""


def best_policies(
    dataset: xr.Dataset,
    name: str = "cost",
    *,
    weight: float = 1.0,
    against: str = "whole-ioctl",
    indifference: float = INDIFFERENCE,
) -> pd.DataFrame:
    """Find the policy with the smallest objective at each place of a sweep of migrations.

    Means over replications are compared; `indifference` must cover their uncertainty.

    Returns: The place (times as ``…_s``), ``policy`` (the best), ``value_s`` and ``against_s``, ``equivalent`` (number
    of policies within the indifference zone, including the best) and ``matters`` (True if `against` is outside it).
    Places where a policy is missing are left out. Raises `InputError` if the sweep lacks a metric of the objective, the
    axis ``vcpus``, or the policy to compare with.

    - `dataset`: result of `simlib.analysis.sweep.load`, with a full design.
    - `name`: one of `simlib.analysis.choose.OBJECTIVES`.
    - `weight`: weight of a vCPU second in the objective ``cost``.
    - `against`: policy with which the best is compared.
    - `indifference`: relative difference that counts as equal (indifference zone).

    >>> values = {metric: (("vcpus", "policy"), [[1.0, 2.0]]) for metric in METRICS}
    >>> dataset = xr.Dataset(values, {"vcpus": [4], "policy": ["whole-ioctl", "every-64"]})
    >>> best_policies(dataset, "stall").to_dict("records")
    [{'vcpus': 4, 'policy': 'whole-ioctl', 'value_s': 1.0, 'against_s': 1.0, 'equivalent': 1, 'matters': False}]
    """
    selected = objective(name)
    for axis in ("vcpus", "policy"):
        if axis not in dataset.dims:
            raise InputError("sweep", axis, "must be an axis of the sweep", "add it as an axis, in a full design")
    if against not in dataset["policy"].to_numpy():
        raise InputError("against", against, "is not a policy of the sweep")
    shape = dataset["precopy_duration" if "precopy_duration" in dataset else next(iter(dataset))]
    metrics = [dataset[metric].transpose(*shape.dims) if metric in dataset else shape * np.nan for metric in METRICS]
    vcpus = shape["vcpus"].broadcast_like(shape).transpose(*shape.dims).to_numpy()
    stacked = np.stack([metric.to_numpy() for metric in metrics], axis=-1)
    values = shape.copy(data=selected.value(stacked, vcpus, weight))  # type: ignore[arg-type]  # accepts arrays, too
    if np.isnan(values.to_numpy()).all():
        raise InputError("objective", name, "the sweep lacks a metric of the objective", "add it under metrics")
    table = values.stack(place=[dim for dim in values.dims if dim != "policy"]).transpose("place", "policy")  # noqa: PD013  # xarray's
    table = table.dropna("place")
    best = table.min("policy").to_numpy()
    frame = table["place"].to_index().to_frame(index=False)
    times = [str(name) for name in frame if dataset[name].attrs.get("unit") == "ps"]
    frame = frame.assign(**{name: frame[name] * PS for name in times}).rename(columns={n: f"{n}_s" for n in times})
    frame["policy"] = table["policy"].to_numpy()[table.argmin("policy").to_numpy()]
    frame["value_s"], frame["against_s"] = best, table.sel(policy=against).to_numpy()
    margin = np.maximum(indifference * best, selected.floor)
    frame["equivalent"] = (table.to_numpy() <= (best + margin)[:, None]).sum(axis=1)
    frame["matters"] = frame["against_s"].to_numpy() > best + margin
    return frame


def shipped() -> pd.DataFrame:
    """Load the best policies of ``data/grids/strategies.toml``, 100,800 points on seven architectures.

    Returns: a table whose columns ``data/sweeps/strategies/best-policies.json`` describes.
    """
    return pd.read_csv(data_dir() / "sweeps" / "strategies" / "best-policies.csv")
