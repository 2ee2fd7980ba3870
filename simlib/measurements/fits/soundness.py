# SPDX-License-Identifier: BSD-3-Clause
"""Consistency checks of a fit file, which may be damaged or written by another program."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simlib.measurements.fits.estimate import BOUNDS
from simlib.simulator.engine.limits import HORIZON_PS

LARGEST = 1e15
"""Largest count, time or number of degrees of freedom that is accepted; a float64 represents it exactly."""

MOST_DISCREPANCY = 100.0
"""Largest discrepancy that is accepted; above it, the fit is meaningless."""

_NEGATIVE = 1e-6
"""Relative tolerance for negative eigenvalues and asymmetry of a covariance, which may come from rounding."""

_COLUMNS: dict[str, dict[str, type]] = {
    "parameters": {"name": str, "value": float, "low": float, "high": float, "determined": bool},
    "observations": {"variant": str, "vcpus": int, "metric": str, "value": float, "model": float, "train": bool},
    "noise": {"table": str, "metric": str, "ratio": float},
}
"""Required columns of every row of a table; floats may be missing, except in ``parameters``."""


def check_fit(content: Mapping[str, Any]) -> None:
    """Check the content of a fit file that has all its keys.

    Raises `ValueError` with the first fault if no calibration could have written the content.

    >>> check_fit({"dataset": 5})
    Traceback (most recent call last):
    ValueError: dataset must be a string
    """
    for key, kind in (("dataset", str), ("date", str), ("train", str), ("scenario", str), ("valid", dict),
                      ("spread", dict), ("parameters", list), ("observations", list)):  # fmt: skip
        if not isinstance(content.get(key), kind):
            raise ValueError(f"{key} must be {'a string' if kind is str else 'a table' if kind is dict else 'a list'}")
    held = content.get("held_at_medians", [])
    if not isinstance(held, list) or not all(isinstance(name, str) for name in held):
        raise ValueError("held_at_medians must be a list of strings")
    for table, columns in _COLUMNS.items():
        _check_rows(table, content.get(table, []), columns)
    _check_number("dof", content["dof"], lambda v: isinstance(v, int) and 1 <= v <= LARGEST, "a whole number above 0")
    _check_number("discrepancy", content["discrepancy"], lambda v: 0 <= v <= MOST_DISCREPANCY,
                  f"from 0 to {MOST_DISCREPANCY:g}")  # fmt: skip
    _check_number("level", content["level"], lambda v: 0 < v < 1, "between 0 and 1")
    for key in ("seed", *(("pages_per_vcpu",) if content["pages_per_vcpu"] is not None else ())):
        _check_number(key, content[key], lambda v: isinstance(v, int) and 0 <= v < 2**63, "a whole number")
    for metric, ratio in content["spread"].items():
        _check_number(f"spread of {metric}", ratio, lambda v: 0 < v <= LARGEST, "above 0")
    _check_costs(content["parameters"])
    _check_covariance(np.array(content["log_covariance"], dtype=float), len(content["parameters"]))


def _check_rows(table: str, rows: Any, columns: Mapping[str, type]) -> None:
    if not isinstance(rows, list):
        raise ValueError(f"{table} must be a list")
    for row_number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise ValueError(f"{table}, row {row_number} must be a table")
        for name, kind in columns.items():
            value, where = row.get(name), f"{table}, row {row_number}: {name}"
            if kind is float or kind is int:
                if value is not None or kind is int or table == "parameters":
                    _check_number(where, value, lambda v: abs(v) <= sys.float_info.max, "a number")
            elif not isinstance(value, kind):
                raise ValueError(f"{where} must be {'a string' if kind is str else 'true or false'}")
        for name, value in row.items():
            if not isinstance(value, str | int | float | None):
                raise ValueError(f"{table}, row {row_number}: {name} must be a string, a number, true, false or null")


def _check_number(what: str, value: Any, good: Callable[[Any], bool], rule: str) -> None:
    """Refuse a value that is not a finite number or breaks its rule."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or (isinstance(value, float) and not math.isfinite(value)) or not good(value):
        raise ValueError(f"{what} must be {rule}")


def _check_costs(parameters: Iterable[Mapping[str, Any]]) -> None:
    names = set()
    for row in parameters:
        name, value = row["name"], row["value"]
        if name.partition("[")[0] not in BOUNDS:
            raise ValueError(f"{name!r} is not a cost")
        if name in names:
            raise ValueError(f"{name!r} occurs twice")
        if not 0 < value <= HORIZON_PS:
            raise ValueError(f"{name!r} must be above 0 and at most {HORIZON_PS} (the longest simulated time in ps)")
        if not 0 <= row["low"] <= row["high"]:
            raise ValueError(f"low and high of {name!r} must be in ascending order and at least 0")
        names.add(name)
    if not names:
        raise ValueError("parameters must not be empty")


def _check_covariance(covariance: NDArray[np.float64], size: int) -> None:
    if covariance.shape != (size, size):
        raise ValueError("log_covariance must be square, with one row per parameter")
    if not np.isfinite(covariance).all() or np.abs(covariance).max() > LARGEST:
        raise ValueError("log_covariance must be finite")
    scale = float(np.abs(covariance).max())
    if np.abs(covariance - covariance.T).max() > _NEGATIVE * scale:
        raise ValueError("log_covariance must be symmetric")
    if (np.diag(covariance) < 0).any() or np.linalg.eigvalsh(covariance).min() < -_NEGATIVE * scale:
        raise ValueError("log_covariance must be positive semidefinite")
