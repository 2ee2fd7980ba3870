# SPDX-License-Identifier: BSD-3-Clause
"""The origin of the costs behind a choice, as a sentence; `UncertainCosts.evidence` has it as a keyword."""

from __future__ import annotations

from pathlib import Path

from simlib.measurements.fits import AnyFit, Fit, find_fit, load_fit
from simlib.model.host import UNSTATED
from simlib.model.scenario import Scenario

UNSTATED_HOST = "whose hardware no source states"
"""Phrase that marks, in a sentence, costs calibrated on hosts of unknown hardware."""

_PRIORS = "published or assumed (data/priors/costs.toml)"


def fit_of(scenario: Scenario, fit: AnyFit | None) -> Fit | None:
    """Return the fit whose costs a choice uses, or None if the costs were given without a fit."""
    if fit is None:
        return find_fit(scenario)
    if isinstance(fit, str | Path):
        return load_fit(fit)
    return fit if isinstance(fit, Fit) else None


def origin(fit: Fit | None) -> str:
    """Describe the measurements that a fit was calibrated on."""
    if fit is None:
        return "measurements that were not given with the costs"
    host = fit.scenario.host
    if host.name in UNSTATED:
        return f"published tables of hosts {UNSTATED_HOST} ({host.name})"
    if host.clock != "wall":
        return f"kernels in an emulator, not on hardware ({host.name})"
    if "repeats" in fit.meta["valid"]:
        return f"measurements by simlib ({fit.meta['dataset']})"
    return f"{host.name} ({fit.meta['dataset']})"


def grounds(evidence: str, fit: Fit | None, *, given: bool = False) -> str:
    """Explain a value of `UncertainCosts.evidence` in a sentence; calibrated costs come from the fit.

    - `given`: True if the user gave the fit; the sentence then includes the fit's defects (`Fit.doubt`).
    """
    source, doubt = origin(fit), fit.doubt if fit is not None and given else ""
    sentence = {
        "calibrated": f"calibrated on {source}",
        "partly calibrated: faults only": f"costs of faults are calibrated on {source}; those of CLEAR are {_PRIORS}",
        "partly calibrated": f"partly calibrated on {source}; the other costs are {_PRIORS}",
        "facts alone": f"no cost that affects the result was calibrated; all are {_PRIORS}",
        "costs given by hand": "the scenario gives all costs that are used; none was calibrated",
        "partly given by hand": f"the scenario gives some costs; the others are {_PRIORS}; no cost was calibrated",
    }[evidence]
    return f"{sentence}; but {doubt}" if doubt else sentence
