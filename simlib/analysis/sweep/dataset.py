# SPDX-License-Identifier: BSD-3-Clause
"""The results of a sweep as labelled arrays."""

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
from simlib.analysis.sweep.store import REFUSED, RESULTS, faults, parts, read_description
from simlib.simulator.workloads import KINDS
from simlib.simulator.workloads.metrics import split_name

_UNITS = {metric.name: metric.unit for kind in KINDS.values() for metric in kind.metrics}


def load(folder: str | Path) -> xr.Dataset:
    """The results of a sweep with labelled dimensions, of as many points as are finished.

    Returns: Dimensions ``variant`` or ``architecture``, ``policy``, and one for each axis; of a sampled design
    ``place``, along which the axes are coordinates. Variables are the metrics with the ends of their intervals
    (``_low``, ``_high``), ``replications``, ``seed``, ``key``; NaN, 0 or "" where a point was refused or is not done.
    Raises `InputError` if the folder holds no sweep, or a part of it is damaged.

    - `folder`: as `simlib.analysis.sweep.run` wrote it.

    >>> import tempfile
    >>> from simlib.analysis.sweep import read_grid, run
    >>> grid = read_grid({"axes": {"guest": {"vcpus": [1, 2]}}, "costs": "median", "replications": {"most": 3},
    ...                   "scenario": {"guest": {"memory_per_vcpu": "2M"}}})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = run(grid, folder, workers=1).load()
    >>> dict(found.sizes), found["dirty_memory_time"].attrs["unit"]
    ({'architecture': 1, 'vcpus': 2, 'policy': 1}, 's')
    """
    about = read_description(Path(folder))
    table = _table(Path(folder), RESULTS, about)
    shape = _dimensions(about)
    sizes = tuple(len(labels) for labels in shape.values())
    if math.prod(sizes) != about["points"]:
        raise InputError("sweep", str(folder), f"its axes have {math.prod(sizes):,} points, not {about['points']:,}",
                         "have its description written anew: run with resume=True",
                         "have its description written anew: simlib sweep … --resume")  # fmt: skip
    points = table["point"].to_numpy() if table is not None else np.empty(0, dtype=np.int64)
    numbers = [f"{name}{end}" for name in about["metrics"] for end in ("", "_low", "_high")]
    empty: dict[str, Any] = dict.fromkeys(numbers, np.nan) | {"replications": 0, "seed": 0, "key": "", "scenario": ""}
    variables = {}
    for name, nothing in empty.items():
        values = np.full(about["points"], nothing, dtype=object if isinstance(nothing, str) else type(nothing))
        if table is not None:
            values[points] = table[name].to_numpy()
        values = values.astype(str) if values.dtype == object else values
        variables[name] = (tuple(shape), values.reshape(sizes), _attributes(name))
    coordinates: dict[str, Any] = dict(shape) | _sampled(Path(folder), about, shape)
    found = xr.Dataset(variables, coordinates, {key: about[key] for key in ("simlib", "grid", "seed", "level")})
    for axis in about["axes"]:
        if axis["column"] in found.coords:
            found[axis["column"]].attrs = {"field": axis["field"]} | ({"unit": axis["unit"]} if axis["unit"] else {})
    return found


def refused(folder: str | Path) -> pd.DataFrame:
    """The points of a sweep that a rule refused: their values, the field, and the rule.

    Returns: point, architecture, policy, the axes, field, rule, version.
    """
    about = read_description(Path(folder))
    table = _table(Path(folder), REFUSED, about)
    if table is None:
        axes = [axis["column"] for axis in about["axes"]]
        return pd.DataFrame(columns=["point", "architecture", "policy", *axes, "field", "rule", "version"])
    frame: pd.DataFrame = table.to_pandas()
    return frame.sort_values("point", ignore_index=True)


def _table(folder: Path, name: str, about: dict[str, Any]) -> pa.Table | None:
    """All parts of a data set; None if there is none."""
    tables = []
    with faults(folder):
        for path, part in parts(folder, name, about["points"]):
            if part is None:
                raise InputError(
                    "part", str(path), "is damaged or no part of this sweep",
                    "compute it anew: run with resume=True", "compute it anew: simlib sweep … --resume",
                )  # fmt: skip
            architecture = path.parent.name.partition("=")[2]
            tables.append(part.append_column("architecture", pa.array([architecture] * part.num_rows)))
    return pa.concat_tables(tables) if tables else None


def _dimensions(about: dict[str, Any]) -> dict[str, list[Any]]:
    """The labels of each dimension, in the order of the points."""
    first = {"variant": about["variants"]} if about["variants"] else {"architecture": about["architectures"]}
    if about["design"] == "full":
        places = {axis["column"]: _labels(axis) for axis in about["axes"]}
    else:
        each = len(next(iter(first.values()))) * len(about["policies"])
        places = {"place": list(range(about["points"] // each))}
    return first | places | {"policy": about["policies"]}


def _labels(axis: dict[str, Any]) -> list[Any]:
    section, _, key = axis["field"].partition(".")
    read = Axis(section, key, ())
    return [read.cell(tuple(value) if isinstance(value, list) else value) for value in axis["values"]]


def _sampled(folder: Path, about: dict[str, Any], shape: dict[str, list[Any]]) -> dict[str, Any]:
    """Of a sampled design, the values of the axes at each place; missing where none of its points is done."""
    if about["design"] == "full":
        return {}
    names = ["point", *(axis["column"] for axis in about["axes"])]
    tables = [table.select(names) for name in (RESULTS, REFUSED) if (table := _table(folder, name, about)) is not None]
    if not tables:
        return {}
    rows = pa.concat_tables(tables).to_pandas()
    rows["place"] = rows["point"] // len(about["policies"]) % len(shape["place"])
    found = rows.drop_duplicates("place").set_index("place").reindex(shape["place"])
    return {name: ("place", found[name].to_numpy()) for name in names[1:]}


def _attributes(name: str) -> dict[str, str]:
    metric = split_name(name)[0]
    for end in ("_low", "_high"):
        metric = metric if metric in _UNITS else metric.removesuffix(end)
    return {"unit": _UNITS[metric]} if metric in _UNITS else {}
