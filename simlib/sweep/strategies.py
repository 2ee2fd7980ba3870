# SPDX-License-Identifier: BSD-3-Clause
"""Which policy was best at each place of a sweep, and by how much: a small table of a large data set."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from simlib.decision.objectives import METRICS, objective
from simlib.engine.result import PS
from simlib.errors import InputError
from simlib.files import write_together
from simlib.measurements import data_dir
from simlib.sweep.dataset import load

_COLUMNS = {
    "variant": ("string", "none", "architecture, with its machine and its costs"),
    "vcpus": ("integer", "count", "virtual CPUs of the guest"),
    "access_rate": ("number", "1/s", "accesses of a vCPU in a second, each of any page"),
    "clear_chunk": ("integer", "bytes", "memory of one CLEAR"),
    "clear_lock": ("string", "none", "mode in which CLEAR holds mmu_lock"),
    "policy": ("string", "none", "the policy with the least CPU time in all: of CLEAR, and guest time lost"),
    "value_s": ("number", "s", "its CPU time in all"),
    "against_s": ("number", "s", "CPU time in all of never letting go"),
    "as_good": ("integer", "count", "policies within a tenth of the least, that one among them"),
    "matters": ("boolean", "none", "whether never letting go is not one of them"),
}

ZONE = 0.1
"""Share of the best below which a difference does not matter: that of the replications' precision."""


def best_policies(
    found: xr.Dataset, name: str = "cost", *, weight: float = 1.0, against: str = "whole-ioctl", zone: float = ZONE
) -> pd.DataFrame:
    """The policy with the least objective at each place of a sweep of migrations.

    Means over replications are compared; what they are uncertain by is in `zone`.

    Returns: The place (times as ``…_s``), ``policy`` (the best), ``value_s`` and ``against_s``, ``as_good`` (policies
    within the zone, the best among them) and ``matters`` (whether `against` is not). Places where a policy is missing
    are left out. Raises `InputError` if the sweep lacks a metric of the objective, the axis ``vcpus``, or the policy to
    compare with.

    Parameters
    ----------
    found : xarray.Dataset
        As `simlib.sweep.load` gives it, of a full design.
    name : str
        One of `simlib.decision.OBJECTIVES`.
    weight : float
        What a second of a vCPU is worth, of ``cost``.
    against : str
        The policy that the best is compared with.
    zone : float
        Share of the best below which a difference does not matter.

    Examples
    --------
    >>> values = {metric: (("vcpus", "policy"), [[1.0, 2.0]]) for metric in METRICS}
    >>> one = xr.Dataset(values, {"vcpus": [4], "policy": ["whole-ioctl", "every-64"]})
    >>> best_policies(one, "stall").to_dict("records")
    [{'vcpus': 4, 'policy': 'whole-ioctl', 'value_s': 1.0, 'against_s': 1.0, 'as_good': 1, 'matters': False}]
    """
    wanted = objective(name)
    for needed, where in (("vcpus", found.dims), ("policy", found.dims)):
        if needed not in where:
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
    frame["as_good"] = (table.to_numpy() <= (least + near)[:, None]).sum(axis=1)
    frame["matters"] = frame["against_s"].to_numpy() > least + near
    return frame


def shipped() -> pd.DataFrame:
    """The best policies of ``data/grids/strategies.toml``, 100 800 points on seven architectures.

    Returns: ``data/sweeps/strategies/best-policies.json`` describes its columns.

    Examples
    --------
    >>> shipped().groupby("variant").ngroups
    7
    """
    return pd.read_csv(data_dir() / "sweeps" / "strategies" / "best-policies.csv")


def write(folder: Path, out: Path) -> list[Path]:
    """Write the small table of a sweep of ``data/grids/strategies.toml``, and its descriptor.

    Parameters
    ----------
    folder : Path
        The sweep.
    out : Path
        ``data/sweeps/strategies``.
    """
    found = load(folder)
    frame = best_policies(found)
    frame["access_rate"] = 1 / frame.pop("access_interval_s")
    frame = frame[list(_COLUMNS)]
    frame = frame.sort_values(list(_COLUMNS)[:5], ignore_index=True)
    points = int((found["replications"] > 0).sum())
    fields = [{"name": name, "type": kind, "unit": unit, "description": text}
              for name, (kind, unit, text) in _COLUMNS.items()]  # fmt: skip
    descriptor = {
        "name": "best-policies", "path": "best-policies.csv", "kind": "simulated",
        "title": f"Best policy at each of {len(frame):,} places, of {points:,} simulated points",
        "command": "make strategy-map", "simlib": found.attrs["simlib"], "grid": found.attrs["grid"],
        "seed": found.attrs["seed"],
        "caveats": ["Guests of 16 MiB and two passes: how long a hold and a wait are is that of a large guest, what "
                    "grows with all of the memory is not.",
                    "Costs are medians, of fits where the machine has one, else of priors."],
        "schema": {"fields": fields},
    }  # fmt: skip
    text = frame.to_csv(index=False, float_format="%.4g", lineterminator="\n")
    return write_together(
        out, {"best-policies.csv": text, "best-policies.json": json.dumps(descriptor, indent=2) + "\n"}
    )


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
