# SPDX-License-Identifier: BSD-3-Clause
"""Results of a sweep as labelled arrays."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import xarray as xr

from simlib._lib.errors import InputError
from simlib.analysis.sweep.axis import Axis
from simlib.analysis.sweep.store import REFUSED, RESULTS, parts, read_description, translate_errors
from simlib.simulator.workloads import KINDS
from simlib.simulator.workloads.metrics import split_name

_UNITS = {metric.name: metric.unit for kind in KINDS.values() for metric in kind.metrics}


def load(folder: str | Path) -> xr.Dataset:
    """Load the finished results of a sweep with labelled dimensions.

    Returns: Dimensions ``variant`` or ``architecture``, ``policy``, and one for each axis; for a sampled design
    ``place``, along which the axes are coordinates. Variables are the metrics with the ends of their intervals
    (``_low``, ``_high``), ``replications``, ``seed``, ``key``, ``scenario``; their values are NaN, 0 or "" if a point
    was refused or is not finished. Raises `InputError` if the folder holds no sweep, or a part of it is damaged.

    - `folder`: folder written by `simlib.analysis.sweep.run`.

    >>> import tempfile
    >>> from simlib.analysis.sweep import read_grid, run
    >>> grid = read_grid({"axes": {"guest": {"vcpus": [1, 2]}}, "unknown_costs": "median", "replications": {"most": 3},
    ...                   "scenario": {"guest": {"memory_per_vcpu": "2M"}}})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dataset = run(grid, folder, workers=1).load()
    >>> dict(dataset.sizes), dataset["dirty_memory_time"].attrs["unit"]
    ({'architecture': 1, 'vcpus': 2, 'policy': 1}, 's')
    """
    meta = read_description(Path(folder))
    table = _table(Path(folder), RESULTS, meta)
    shape = _dimensions(meta)
    sizes = tuple(len(labels) for labels in shape.values())
    if math.prod(sizes) != meta["points"]:
        raise InputError("sweep", str(folder), f"its axes have {math.prod(sizes):,} points, not {meta['points']:,}",
                         "rewrite its description: run with resume=True",
                         "rewrite its description: simlib sweep … --resume")  # fmt: skip
    points = table["point"].to_numpy() if table is not None else np.empty(0, dtype=np.int64)
    numbers = [f"{name}{end}" for name in meta["metrics"] for end in ("", "_low", "_high")]
    empty: dict[str, Any] = dict.fromkeys(numbers, np.nan) | {"replications": 0, "seed": 0, "key": "", "scenario": ""}
    variables = {}
    for name, fill in empty.items():
        values = np.full(meta["points"], fill, dtype=object if isinstance(fill, str) else type(fill))
        if table is not None:
            values[points] = table[name].to_numpy()
        values = values.astype(str) if values.dtype == object else values
        variables[name] = (tuple(shape), values.reshape(sizes), _attributes(name))
    coordinates: dict[str, Any] = dict(shape) | _axis_coordinates(Path(folder), meta, shape)
    dataset = xr.Dataset(variables, coordinates, {key: meta[key] for key in ("simlib", "grid", "seed", "level")})
    for axis in meta["axes"]:
        if axis["column"] in dataset.coords:
            dataset[axis["column"]].attrs = {"field": axis["field"]} | ({"unit": axis["unit"]} if axis["unit"] else {})
    return dataset


def refused(folder: str | Path) -> pd.DataFrame:
    """List the refused points of a sweep: their values, the refused field, and the rule.

    Returns: point, architecture, policy, the axes, field, rule, version.
    """
    meta = read_description(Path(folder))
    table = _table(Path(folder), REFUSED, meta)
    if table is None:
        axes = [axis["column"] for axis in meta["axes"]]
        return pd.DataFrame(columns=["point", "architecture", "policy", *axes, "field", "rule", "version"])
    frame: pd.DataFrame = table.to_pandas()
    return frame.sort_values("point", ignore_index=True)


def _table(folder: Path, name: str, meta: dict[str, Any]) -> pa.Table | None:
    """Read all parts of a data set; None if it has no parts."""
    tables = []
    with translate_errors(folder):
        for path, part in parts(folder, name, meta["points"]):
            if part is None:
                raise InputError(
                    "part", str(path), "is damaged or does not belong to this sweep",
                    "compute it again: run with resume=True", "compute it again: simlib sweep … --resume",
                )  # fmt: skip
            architecture = path.parent.name.partition("=")[2]
            tables.append(part.append_column("architecture", pa.array([architecture] * part.num_rows)))
    return pa.concat_tables(tables) if tables else None


def _dimensions(meta: dict[str, Any]) -> dict[str, list[Any]]:
    """Labels of each dimension, in the order of the points."""
    first = {"variant": meta["variants"]} if meta["variants"] else {"architecture": meta["architectures"]}
    if meta["design"] == "full":
        places = {axis["column"]: _labels(axis) for axis in meta["axes"]}
    else:
        per_place = len(next(iter(first.values()))) * len(meta["policies"])
        places = {"place": list(range(meta["points"] // per_place))}
    return first | places | {"policy": meta["policies"]}


def _labels(axis: dict[str, Any]) -> list[Any]:
    section, _, key = axis["field"].partition(".")
    field_axis = Axis(section, key, ())
    return [field_axis.cell(tuple(value) if isinstance(value, list) else value) for value in axis["values"]]


def _axis_coordinates(folder: Path, meta: dict[str, Any], shape: dict[str, list[Any]]) -> dict[str, Any]:
    """Values of the axes at each place of a sampled design; missing if none of its points is finished."""
    if meta["design"] == "full":
        return {}
    names = ["point", *(axis["column"] for axis in meta["axes"])]
    tables = [table.select(names) for name in (RESULTS, REFUSED) if (table := _table(folder, name, meta)) is not None]
    if not tables:
        return {}
    rows = pa.concat_tables(tables).to_pandas()
    rows["place"] = rows["point"] // len(meta["policies"]) % len(shape["place"])
    values = rows.drop_duplicates("place").set_index("place").reindex(shape["place"])
    return {name: ("place", values[name].to_numpy()) for name in names[1:]}


def _attributes(name: str) -> dict[str, str]:
    metric = split_name(name)[0]
    for end in ("_low", "_high"):
        metric = metric if metric in _UNITS else metric.removesuffix(end)
    return {"unit": _UNITS[metric]} if metric in _UNITS else {}
