# SPDX-License-Identifier: BSD-3-Clause
"""Fit files: calibrated costs as JSON, with everything needed to judge and repeat them."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simlib.errors import InputError
from simlib.files import write_text
from simlib.fits.estimate import CostEstimate
from simlib.fits.report import (
    FIT_FIGURES,
    FitReport,
    cost_table,
    drawable_figures,
    fit_report,
    physical,
)
from simlib.fits.soundness import check_fit
from simlib.measurements import data_dir
from simlib.model.machine import Machine
from simlib.model.scenario import FILE, Scenario
from simlib.reading import parse_toml, read_json
from simlib.results import Result
from simlib.version import __version__

SCHEMA = "simlib-fit"
UNNAMED = Machine().name
"""What a machine is called that has no name, and so no fit."""

VERSION = 1
"""Version of the format; a file of another version is refused."""

_FILE_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)
_KEYS = {"schema", "version", "simlib", "date", "dataset", "train", "scenario", "seed", "pages_per_vcpu",
         "level", "parameters", "log_covariance", "dof", "discrepancy", "spread", "valid", "observations"}  # fmt: skip


@dataclass(frozen=True, repr=False)
class Fit(Result):
    """Calibrated costs as a fit file holds them.

    Attributes
    ----------
    scenario : Scenario
        The scenario that was calibrated.
    parameters : DataFrame
        name, value, low, high, at_bound, determined; unit once it was read.
    observations : DataFrame
        variant, vcpus, metric, value, train, model, error.
    meta : dict
        Everything else of the file: dataset, date, train, seed, pages_per_vcpu, level, valid, …
    """

    scenario: Scenario
    estimate: CostEstimate
    parameters: pd.DataFrame
    observations: pd.DataFrame
    meta: dict[str, Any]

    FIGURES = FIT_FIGURES

    def figures(self) -> tuple[str, ...]:
        """Names of the figures that can be drawn of it; the first one is what `plot` draws unless told otherwise."""
        return drawable_figures(self.FIGURES, self.report())

    def costs(self) -> pd.DataFrame:
        """The costs with their intervals, times in nanoseconds: name, value, low, high, unit, fit."""
        return costs_in_ns(self.parameters, str(self.meta["dataset"]))

    def curves(self) -> pd.DataFrame:
        """What was measured, and the model beside it: variant, vcpus, metric, kind, value, low, high, held_out."""
        return fitted_curves(self.observations)

    def report(self) -> FitReport:
        """Costs with intervals, χ², residuals, correlations, flags; what the file lacks is computed or named.

        Examples
        --------
        >>> found = load_fit(data_dir() / "fits" / "ampere-altra.json").report()
        >>> found.costs.loc[0, ["cost", "unit", "bound"]].tolist(), found.dof
        (['fault_hold', 'ns', ''], 8)
        """
        meta = self.meta
        heading = f"Fit to {meta['dataset']} ({meta['train'] or 'all rows'}), {meta['date']}"
        valid = {name: good for name, good in meta["valid"].items() if isinstance(good, bool)}
        unit = "times are those of an emulator's serial clock, which counts instructions (docs/lab.md), not of hardware"
        return fit_report(
            heading, self.estimate, self.parameters, self.observations, level=float(meta["level"]), valid=valid,
            noise=pd.DataFrame(meta.get("noise", [])), notes=() if self.scenario.machine.clock == "wall" else (unit,),
        )  # fmt: skip

    def summary(self) -> str:
        """The same as text."""
        return self.report().text()

    def _repr_html_(self) -> str:
        return self.report().html()


def unit_of(name: str) -> str:
    """Unit of a parameter's value in a fit file.

    Examples
    --------
    >>> unit_of("fault_hold"), unit_of("fault_jitter[old test]")
    ('ps', 'dimensionless')
    """
    return "dimensionless" if name.startswith("fault_jitter") else "ps"


def costs_in_ns(parameters: pd.DataFrame, dataset: str) -> pd.DataFrame:
    """Calibrated costs as the figures draw them: name, value, low, high, unit (ns or dimensionless), fit, bound."""
    units = [unit_of(name) for name in parameters["name"]]
    per = np.where(np.array(units) == "ps", 1000.0, 1.0)
    ends = [physical(*row) for row in parameters[["name", "value", "low", "high"]].to_numpy().tolist()]
    known = {"value": parameters["value"], "low": [low for low, _ in ends], "high": [high for _, high in ends]}
    values = {column: np.asarray(found, dtype=float) / per for column, found in known.items()}
    named = {"name": parameters["name"].to_numpy()} | values
    bound = cost_table(parameters)["bound"].to_numpy()
    return pd.DataFrame(named).assign(unit=["ns" if unit == "ps" else unit for unit in units], fit=dataset, bound=bound)


def fitted_curves(observations: pd.DataFrame) -> pd.DataFrame:
    """Observations and the model beside them, as the figures of curves draw them."""
    known = observations[["variant", "vcpus", "metric"]].assign(held_out=~observations["train"].astype(bool))
    measured = known.assign(kind="measured", value=observations["value"])
    kinds = np.where(known["held_out"], "predicted", "fitted")
    model = known.assign(kind=kinds, value=observations["model"])
    return pd.concat([measured, model], ignore_index=True).assign(low=np.nan, high=np.nan)


def write_fit(fit: Fit, path: str | Path) -> None:
    """Write a fit, however its costs were found, as a fit file: beside and renamed."""
    write_text(path, fit_text(fit))


def fit_text(fit: Fit) -> str:
    """A fit as its file has it."""
    parameters = fit.parameters.assign(unit=[unit_of(n) for n in fit.parameters["name"]])
    content = {
        "schema": SCHEMA,
        "version": VERSION,
        "simlib": __version__,
        "scenario": fit.scenario.to_toml(),
        "parameters": json.loads(parameters.to_json(orient="records", double_precision=12)),
        "log_covariance": fit.estimate.covariance.tolist(),
        "dof": fit.estimate.dof,
        "discrepancy": fit.estimate.discrepancy,
        "spread": dict(fit.estimate.spread),
        "observations": json.loads(fit.observations.to_json(orient="records", double_precision=10)),
    }
    return json.dumps(content | fit.meta, indent=1) + "\n"


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
    parameters = pd.DataFrame(content["parameters"])
    values = parameters["value"].to_numpy(dtype=float)
    covariance = np.array(content["log_covariance"], dtype=float)
    estimate = CostEstimate(
        tuple(parameters["name"]), np.log(values), covariance, int(content["dof"]), float(content["discrepancy"]),
        {str(k): float(v) for k, v in content["spread"].items()},
    )  # fmt: skip
    meta = {k: v for k, v in content.items() if k not in ("parameters", "log_covariance", "observations", "scenario")}
    scenario = Scenario.parse(parse_toml(content["scenario"], "scenario", FILE))
    return Fit(scenario, estimate, parameters, pd.DataFrame(content["observations"]), meta)


def fit_path(machine: str) -> Path | None:
    """The file of the shipped fit for a machine, if there is one (``data/fits/MACHINE.json``).

    Examples
    --------
    >>> fit_path("ampere-altra").name, fit_path("nobody-s"), fit_path("../priors/costs")
    ('ampere-altra.json', None, None)
    """
    if machine == UNNAMED or not _FILE_NAME.fullmatch(machine):  # the latter perhaps a way out of the folder
        return None
    path = data_dir() / "fits" / f"{machine}.json"
    return path if path.is_file() else None


def find_fit(scenario: Scenario) -> Fit | None:
    """The shipped fit for a scenario's machine, if there is one.

    Examples
    --------
    >>> find_fit(Scenario.parse({"machine": {"name": "nobody-s"}})) is None
    True
    """
    path = fit_path(scenario.machine.name)
    if path is None:
        return None
    found = _shipped(path, path.stat().st_mtime_ns)
    # The tables are the caller's own: what is kept for the next one stays as it was read.
    parameters, observations = found.parameters.copy(), found.observations.copy()
    return dataclasses.replace(found, parameters=parameters, observations=observations, meta=dict(found.meta))


@lru_cache(maxsize=16)
def _shipped(path: Path, _changed: int) -> Fit:
    """A shipped fit, read once as long as its file does not change."""
    return load_fit(path)
