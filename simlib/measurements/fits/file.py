# SPDX-License-Identifier: BSD-3-Clause
"""Fit files: calibrated costs as JSON, with everything needed to judge and repeat them."""

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
"""What a machine is called that has no name, and so no fit."""

VERSION = 1
"""Version of the format; a file of another version is refused."""

_TABLES = ("parameters", "observations", "noise", "sensitivity")
_FILE_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)
_KEYS = {"schema", "version", "simlib", "date", "dataset", "train", "scenario", "seed", "pages_per_vcpu",
         "level", "parameters", "log_covariance", "dof", "discrepancy", "spread", "valid", "observations"}  # fmt: skip


def save_fit(
    fit: Fit, path: str | Path, train: str | Mapping[str, str] | None = None, date: datetime.date | None = None
) -> None:
    """Write a fit file, beside and renamed.

    - `train`: the condition that chose the training rows, or those by the names of tables. By default the fit's own.
    - `date`: by default the fit's own.
    """
    changes: dict[str, Any] = {} if train is None else {"train": conditions_text(train)}
    changes |= {} if date is None else {"date": date.isoformat()}
    write_text(path, fit_text(fit.with_meta(**changes)))


def conditions_text(conditions: str | Mapping[str, str]) -> str:
    """Conditions by the names of tables in one text.

    >>> conditions_text("vcpus <= 8"), conditions_text({"": "vcpus <= 8", "mine": "vcpus > 1"})
    ('vcpus <= 8', 'vcpus <= 8; mine:vcpus > 1')
    """
    return (
        conditions if isinstance(conditions, str) else "; ".join(f"{k}:{v}" if k else v for k, v in conditions.items())
    )


def fit_text(fit: Fit) -> str:
    """A fit as its file has it."""
    parameters = fit.parameters.assign(unit=[unit_of(n) for n in fit.parameters["name"]])
    content = {
        "schema": SCHEMA,
        "version": VERSION,
        "simlib": __version__,
        "scenario": fit.scenario.to_toml(),
        "parameters": _records(parameters, 12),
        "log_covariance": fit.estimate.covariance.tolist(),
        "dof": fit.estimate.dof,
        "discrepancy": fit.estimate.discrepancy,
        "spread": dict(fit.estimate.spread),
        "observations": _records(fit.observations, 13),
    } | fit.meta
    if len(fit.noise):  # of a calibration
        content |= {"noise": _records(fit.noise, 10), "sensitivity": _records(fit.sensitivity, 4)}
    return json.dumps(content, indent=1) + "\n"


def _records(table: pd.DataFrame, digits: int) -> Any:
    """The rows of a table as JSON has them."""
    return json.loads(table.to_json(orient="records", double_precision=digits))


def load_fit(path: str | Path) -> Fit:
    """Read a fit file.

    Raises `InputError` if it cannot be read, is no fit file, or is of another version.
    """
    content = read_json(path, "a fit file (JSON)")
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise InputError("fit file", str(path), f"is not a fit file (no schema {SCHEMA!r})")
    if content.get("version") != VERSION:
        raise InputError(
            "fit file", str(path), f"has version {content.get('version')}, this simlib reads version {VERSION}",
            "calibrate again with simlib calibrate",
        )  # fmt: skip
    missing = sorted(_KEYS - set(content))
    if missing:
        raise InputError("fit file", str(path), f"lacks {', '.join(missing)}", "it may have been cut short")
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


def fit_path(machine: str) -> Path | None:
    """The file of the shipped fit for a machine, if there is one (``data/fits/MACHINE.json``).

    >>> fit_path("ampere-altra").name, fit_path("nobody-s"), fit_path("../priors/costs")
    ('ampere-altra.json', None, None)
    """
    if machine == UNNAMED or not _FILE_NAME.fullmatch(machine):  # the latter perhaps a way out of the folder
        return None
    path = data_dir() / "fits" / f"{machine}.json"
    return path if path.is_file() else None


def find_fit(scenario: Scenario) -> Fit | None:
    """The shipped fit for a scenario's machine, if there is one; the caller's own."""
    return copy.deepcopy(shipped_fit(scenario.host.name))


def shipped_fit(machine: str) -> Fit | None:
    """The same by the machine's name, but everybody's: it stays as it was read."""
    path = fit_path(machine)
    return None if path is None else _shipped(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=16)
def _shipped(path: Path, _changed: int) -> Fit:
    """A shipped fit, read once as long as its file does not change."""
    return load_fit(path)
