# SPDX-License-Identifier: BSD-3-Clause
"""What a calibration that is not good in every respect lacks, and what to do about it."""

from __future__ import annotations

import numpy as np
import pandas as pd

from simlib.analysis.calibrate.search import STEPS, Minimum
from simlib.measurements.fits import BOUNDS, Fit

TELLS = {
    "fault_unlocked": "times with one vCPU",
    "fault_hold": "times with so many vCPUs that they queue for the lock",
    "line_transfer": "times or contentions with 2 to 8 vCPUs",
    "queue_length_penalty": "times with several numbers of vCPUs that all queue for the lock",
    "tlb_invalidate": "times with many vCPUs whose faults take the lock for read",
    "fault_jitter": "contentions with 2 to 8 vCPUs",
    "guest_access": "times of an iteration that takes no fault",
    "populate_block": "populate_time",
    "clear_page": "clear_dirty_log_time",
}
"""Measurements that depend on a cost most."""


def advice(fit: Fit, end: Minimum) -> dict[str, str]:
    """One sentence for each flag of ``fit.valid`` that does not hold; `end` is where the last descent ended."""
    say = {
        "starts_agree": _starts_differ, "inside_bounds": _at_bound, "more_data_than_costs": _few_data,
        "all_determined": _not_determined, "rows_explained": _not_explained,
    }  # fmt: skip
    failed = [name for name, good in fit.valid.items() if not good]
    return {name: _not_converged(fit, end) if name == "converged" else say[name](fit) for name in failed}


def _not_converged(fit: Fit, end: Minimum) -> str:
    loosest, width = _loosest(fit), np.sqrt(np.diag(fit.estimate.covariance).max())
    return (
        f"the search was stopped after {end.steps} steps, the last {STEPS} of which still took {end.gain:.1%} off the "
        f"sum of squares; {loosest} is what the rows tell least of (a factor of {np.exp(width):.2g} either way): "
        f"{_cure([loosest])}"
    )


def _starts_differ(fit: Fit) -> str:
    last = sorted(fit.starts["last"])
    ratio = f" ({last[1] / last[0]:.1f} times its sum of squares)" if len(last) > 1 and last[0] > 0 else ""
    return (
        f"of {len(last)} starts only one came to the best minimum, the next one ended elsewhere{ratio}, so that a "
        f"better one may be there; try other seeds, and if they give other costs: {_cure([_loosest(fit)])}"
    )


def _at_bound(fit: Fit) -> str:
    rows = fit.parameters[fit.parameters["at_bound"]]
    where = [
        f"{name} is at its {'lower' if value < 1.01 * BOUNDS[name.partition('[')[0]][0] else 'upper'} bound, "
        + (f"{value:.2g}" if name.startswith("fault_jitter") else f"{value / 1000:.4g} ns")
        for name, value in zip(rows["name"], rows["value"], strict=True)
    ]
    return (
        f"{', '.join(where)}; check units, vCPUs and the architecture, which decides what a fault does; if they are "
        f"right: {_cure(list(rows['name']))}"
    )


def _few_data(fit: Fit) -> str:
    rows, costs = len(fit.train), len(fit.estimate.names)
    return (
        f"{rows - repeats(fit.train)} different observations ({rows} with repeats) are few for {costs} costs, which "
        "may then not be told apart: measure at other vCPUs or other metrics, or ask for fewer costs"
    )


def repeats(observations: pd.DataFrame) -> int:
    """How many observations measure again what another one does: they tell no further cost."""
    return int(observations.duplicated(["table", "variant", "vcpus", "metric"]).sum())


def _not_determined(fit: Fit) -> str:
    names = list(fit.parameters.loc[~fit.parameters["determined"], "name"])
    return f"the interval of {', '.join(names)} reaches a physical bound: {_cure(names)}"


def _not_explained(fit: Fit) -> str:
    far = np.abs(np.log(np.maximum(fit.train["model"], 1e-12) / fit.train["value"]))
    worst = fit.train.iloc[int(np.argmax(far))]
    return (
        f"{worst['metric']} with {worst['vcpus']} vCPUs is {worst['value']:.4g} and the model's {worst['model']:.4g}, "
        "whatever its costs: the scenario does other things than what was measured; check its iterations (with "
        "initially_set the first takes no fault), its backing, and whether its architecture's faults contend for a lock"
    )


def _loosest(fit: Fit) -> str:
    return fit.estimate.names[int(np.argmax(np.diag(fit.estimate.covariance)))]


def _cure(names: list[str]) -> str:
    """What to do about costs of which the rows tell too little."""
    costs = list(dict.fromkeys(name.partition("[")[0] for name in names))
    rows = list(dict.fromkeys(TELLS.get(cost, "a metric that it decides (docs/metrics.md)") for cost in costs))
    one = len(costs) == 1
    return (
        f"add rows that tell {'it' if one else 'them'} ({'; '.join(rows)}), or give {' or '.join(costs)} under [costs] "
        f"and take {'it' if one else 'that'} out of [calibration]"
    )
