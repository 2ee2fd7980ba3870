# SPDX-License-Identifier: BSD-3-Clause
"""What a choice rests on, in a sentence: `UncertainCosts.evidence` says it in a word."""

from __future__ import annotations

from pathlib import Path

from simlib.measurements.fits import AnyFit, Fit, find_fit, load_fit
from simlib.model.host import UNSTATED
from simlib.model.scenario import Scenario

UNSTATED_HOST = "whose hardware no source states"
"""Words of every sentence on what was calibrated on such hosts."""

_REST = "published or assumed (data/priors/costs.toml)"


def fit_of(scenario: Scenario, fit: AnyFit | None) -> Fit | None:
    """The fit whose costs a choice takes, where it is one that says where it comes from."""
    if fit is None:
        return find_fit(scenario)
    return fit if isinstance(fit, Fit) else None if not isinstance(fit, str | Path) else load_fit(fit)


def origin(fit: Fit | None) -> str:
    """What the costs of a fit were calibrated on, in words."""
    if fit is None:
        return "costs that were given as such"
    machine = fit.scenario.host
    if machine.name in UNSTATED:
        return f"published tables of hosts {UNSTATED_HOST} ({machine.name})"
    if machine.clock != "wall":
        return f"kernels in an emulator, which is no host ({machine.name})"
    if "repeats" in fit.meta["valid"]:
        return f"what simlib measured ({fit.meta['dataset']})"
    return f"{machine.name} ({fit.meta['dataset']})"


def grounds(evidence: str, fit: Fit | None, *, given: bool = False) -> str:
    """The sentence behind a value of `UncertainCosts.evidence`; calibrated costs come from the fit.

    - `given`: whether somebody gave the fit, who is told what is bad about it.
    """
    where, doubt = origin(fit), fit.doubt if fit is not None and given else ""
    said = {
        "calibrated": f"calibrated on {where}",
        "partly calibrated: faults only": f"costs of faults calibrated on {where}; those of CLEAR {_REST}",
        "partly calibrated": f"partly calibrated on {where}; the rest {_REST}",
        "facts alone": f"no cost that decides was calibrated; all are {_REST}",
        "costs given by hand": "the scenario gives every cost that decides; none was calibrated",
        "partly given by hand": f"the scenario gives some costs, none was calibrated; the rest {_REST}",
    }[evidence]
    return f"{said}; but {doubt}" if doubt else said
