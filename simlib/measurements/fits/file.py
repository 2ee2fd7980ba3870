# SPDX-License-Identifier: BSD-3-Clause
"""Fit files: calibrated costs as JSON, with all that is needed to check and repeat the calibration."""

from __future__ import annotations

import copy
import datetime
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simlib._lib.errors import InputError
from simlib._lib.files import write_text
from simlib._lib.reading import parse_toml, read_json
from simlib._lib.version import __version__
from simlib.measurements import data_dir
from simlib.measurements.fits.estimate import CostEstimate, conventions
from simlib.measurements.fits.fit import Fit
from simlib.measurements.fits.soundness import check_fit
from simlib.measurements.fits.tables import unit_of
from simlib.model.host import Host
from simlib.model.scenario import FILE, Scenario

SCHEMA = "simlib-fit"
UNNAMED = Host().name
"""Name of a host that the scenario does not name; no fit is shipped for it."""

VERSION = 1
"""Version of the format; a file of another version is refused."""

_TABLES = ("parameters", "observations", "noise", "sensitivity")
_FILE_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)
_KEYS = {"schema", "version", "simlib", "date", "dataset", "train", "scenario", "seed", "pages_per_vcpu",
         "level", "parameters", "log_covariance", "dof", "discrepancy", "spread", "valid", "observations"}  # fmt: skip


def save_fit(
    fit: Fit, path: str | Path, train: str | Mapping[str, str] | None = None, date: datetime.date | None = None
) -> None:
    """Write a fit file atomically.

    - `train`: the condition that selected the training rows, or conditions by table name. Default: the condition in
      the fit.
    - `date`: date to record. Default: the date in the fit.
    """
    meta: dict[str, Any] = {} if train is None else {"train": conditions_text(train)}
    meta |= {} if date is None else {"date": date.isoformat()}
    write_text(path, fit_text(fit.with_meta(**meta)))


def conditions_text(conditions: str | Mapping[str, str]) -> str:
    """Join conditions, given by table name, into one string.

    >>> conditions_text("vcpus <= 8"), conditions_text({"": "vcpus <= 8", "mine": "vcpus > 1"})
    ('vcpus <= 8', 'vcpus <= 8; mine:vcpus > 1')
    """
    named = {"": conditions} if isinstance(conditions, str) else conditions
    return "; ".join(f"{table}:{text}" if table else text for table, text in named.items())


def fit_text(fit: Fit) -> str:
    """Text of a fit file."""
    parameters = fit.parameters.assign(unit=[unit_of(n) for n in fit.parameters["name"]])
    content = {"schema": SCHEMA, "version": VERSION, "simlib": __version__, "scenario": fit.scenario.to_toml()}
    content |= {"parameters": _records(parameters, 12), "log_covariance": fit.estimate.covariance.tolist()}
    content |= {name: getattr(fit.estimate, name) for name in ("dof", "discrepancy")}
    content |= {"spread": dict(fit.estimate.spread), "observations": _records(fit.observations, 13)} | fit.meta
    if len(fit.noise):  # a calibration; other fits have none
        content |= {"noise": _records(fit.noise, 10), "sensitivity": _records(fit.sensitivity, 4)}
    return json.dumps(content, indent=1) + "\n"


def _records(table: pd.DataFrame, digits: int) -> Any:
    return json.loads(table.to_json(orient="records", double_precision=digits))


def load_fit(path: str | Path) -> Fit:
    """Read a fit file.

    Raises `InputError` if it cannot be read, is not a fit file, or has another version.
    """
    content = read_json(path, "a fit file (JSON)")
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise InputError("fit file", str(path), f"is not a fit file (no schema {SCHEMA!r})")
    if content.get("version") != VERSION:
        raise InputError(
            "fit file", str(path), f"has version {content.get('version')!r}, but this simlib reads version {VERSION}",
            "calibrate again with simlib calibrate",
        )  # fmt: skip
    missing = sorted(_KEYS - set(content))
    if missing:
        raise InputError("fit file", str(path), f"lacks {', '.join(missing)}", "the file may be truncated")
    try:
        return _fit(content)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise InputError("fit file", str(path), f"is damaged ({error})", "calibrate again") from None


def _fit(content: dict[str, Any]) -> Fit:
    check_fit(content)
    scenario = Scenario.parse(parse_toml(content["scenario"], "scenario", FILE))
    parameters = pd.DataFrame(content["parameters"])
    values = parameters["value"].to_numpy(dtype=float)
    covariance = np.array(content["log_covariance"], dtype=float)
    estimate = CostEstimate(
        tuple(parameters["name"]), np.log(values), covariance, int(content["dof"]), float(content["discrepancy"]),
        {str(k): float(v) for k, v in content["spread"].items()}, **conventions(scenario),
    )  # fmt: skip
    meta = {k: v for k, v in content.items() if k not in (*_TABLES, "log_covariance", "scenario")}
    parameters, observations, noise, sensitivity = (pd.DataFrame(content.get(name, [])) for name in _TABLES)
    return Fit(scenario, estimate, parameters, observations, meta, noise, sensitivity)


def fit_path(host: str) -> Path | None:
    """Path of the shipped fit for a host (``data/fits/HOST.json``), or None.

    >>> fit_path("ampere-altra").name, fit_path("nobody-s"), fit_path("../priors/costs")
    ('ampere-altra.json', None, None)
    """
    if host == UNNAMED or not _FILE_NAME.fullmatch(host):  # the name may be a path out of the folder
        return None
    path = data_dir() / "fits" / f"{host}.json"
    return path if path.is_file() else None


def find_fit(scenario: Scenario) -> Fit | None:
    """Return a copy of the shipped fit for a scenario's host, or None."""
    return copy.deepcopy(shipped_fit(scenario.host.name))


def shipped_fit(host: str) -> Fit | None:
    """Return the cached shipped fit for a host, or None; the caller must not change it."""
    path = fit_path(host)
    return None if path is None else _shipped(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=16)
def _shipped(path: Path, _changed: int) -> Fit:
    return load_fit(path)
