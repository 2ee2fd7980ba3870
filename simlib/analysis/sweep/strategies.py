# SPDX-License-Identifier: BSD-3-Clause
"""Which policy was best at each place of a sweep, and by how much: a small table of a large data set."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from simlib._lib.errors import InputError
from simlib.analysis.choose.objectives import METRICS, objective
from simlib.measurements import data_dir
from simlib.simulator.engine.result import PS

ZONE = 0.1
"""Share of the best below which a difference does not matter: that of the replications' precision."""


def best_policies(
    found: xr.Dataset, name: str = "cost", *, weight: float = 1.0, against: str = "whole-ioctl", zone: float = ZONE
) -> pd.DataFrame:
    """The policy with the least objective at each place of a sweep of migrations.

    Means over replications are compared; what they are uncertain by is in `indifference`.

    Returns: The place (times as ``…_s``), ``policy`` (the best), ``value_s`` and ``against_s``, ``equivalent``
    (policies within the zone, the best among them) and ``matters`` (whether `against` is not). Places where a policy is
    missing are left out. Raises `InputError` if the sweep lacks a metric of the objective, the axis ``vcpus``, or the
    policy to compare with.

    - `found`: as `simlib.analysis.sweep.load` gives it, of a full design.
    - `name`: one of `simlib.analysis.choose.OBJECTIVES`.
    - `weight`: what a second of a vCPU is worth, of ``cost``.
    - `against`: the policy that the best is compared with.
    - `indifference`: share of the best below which a difference does not matter.

    >>> values = {metric: (("vcpus", "policy"), [[1.0, 2.0]]) for metric in METRICS}
    >>> one = xr.Dataset(values, {"vcpus": [4], "policy": ["whole-ioctl", "every-64"]})
    >>> best_policies(one, "stall").to_dict("records")
    [{'vcpus': 4, 'policy': 'whole-ioctl', 'value_s': 1.0, 'against_s': 1.0, 'equivalent': 1, 'matters': False}]
    """
    wanted = objective(name)
    for needed in ("vcpus", "policy"):
        if needed not in found.dims:
            raise InputError("sweep", needed, "is no axis of it", "sweep it, in a full design")
    if against not in found["policy"].to_numpy():
        raise InputError("against", against, "is no policy of the sweep")
    shape = xr.broadcast(found["precopy_duration"] if "precopy_duration" in found else found[next(iter(found))])[0]
    metrics = [found[metric].transpose(*shape.dims) if metric in found else shape * np.nan for metric in METRICS]
    vcpus = shape["vcpus"].broadcast_like(shape).transpose(*shape.dims).to_numpy()
    values = shape.copy(data=wanted.value(np.stack([one.to_numpy() for one in metrics], axis=-1), vcpus, weight))  # type: ignore[arg-type]  # the objectives' arithmetic takes an array for a number
    if np.isnan(values.to_numpy()).all():
        raise InputError("objective", name, "the sweep did not keep all that it is made of", "name it under metrics")
    table = values.stack(place=[dim for dim in values.dims if dim != "policy"]).transpose("place", "policy")  # noqa: PD013  # xarray's
    table = table.dropna("place")
    least = table.min("policy").to_numpy()
    frame = table["place"].to_index().to_frame(index=False)
    times = [str(name) for name in frame if found[name].attrs.get("unit") == "ps"]
    frame = frame.assign(**{name: frame[name] * PS for name in times}).rename(columns={n: f"{n}_s" for n in times})
    frame["policy"] = table["policy"].to_numpy()[table.argmin("policy").to_numpy()]
    frame["value_s"], frame["against_s"] = least, table.sel(policy=against).to_numpy()
    near = np.maximum(zone * least, wanted.floor)
    frame["equivalent"] = (table.to_numpy() <= (least + near)[:, None]).sum(axis=1)
    frame["matters"] = frame["against_s"].to_numpy() > least + near
    return frame


def shipped() -> pd.DataFrame:
    """The best policies of ``data/grids/strategies.toml``, 100 800 points on seven architectures.

    Returns: ``data/sweeps/strategies/best-policies.json`` describes its columns.
    """
    return pd.read_csv(data_dir() / "sweeps" / "strategies" / "best-policies.csv")
