# SPDX-License-Identifier: BSD-3-Clause
"""Advice on a calibration that did not pass all checks: the problem and a remedy."""

from __future__ import annotations

import numpy as np
import pandas as pd

from simlib.analysis.calibrate.search import MAX_STEPS, Minimum
from simlib.measurements.fits import BOUNDS, Fit

INFORMATIVE_ROWS = {
    "fault_unlocked": "times with one vCPU",
    "fault_hold": "times at a vCPU count that saturates the lock",
    "line_transfer": "times or contentions with 2 to 8 vCPUs",
    "queue_length_penalty": "times at several vCPU counts, each of which saturates the lock",
    "tlb_invalidate": "times with many vCPUs whose faults take the lock for read",
    "fault_jitter": "contentions with 2 to 8 vCPUs",
    "guest_access": "times of an iteration without faults",
    "populate_block": "populate_time",
    "clear_page": "clear_dirty_log_time",
}
"""Measurements that are most sensitive to the cost, by the cost's name."""


def advice(fit: Fit, end: Minimum) -> dict[str, str]:
    """Return a sentence for each flag of ``fit.valid`` that is false; `end` is the result of the last descent."""
    texts = {
        "starts_agree": _starts_differ, "inside_bounds": _at_bound, "more_data_than_costs": _few_data,
        "all_determined": _not_determined, "rows_explained": _not_explained,
    }  # fmt: skip
    failed = [name for name, good in fit.valid.items() if not good]
    return {name: _not_converged(fit, end) if name == "converged" else texts[name](fit) for name in failed}


def _not_converged(fit: Fit, end: Minimum) -> str:
    cost, width = _least_determined(fit), np.sqrt(np.diag(fit.estimate.covariance).max())
    return (
        f"the search was stopped at step {end.steps}: the last {MAX_STEPS} steps still reduced the sum of squares by "
        f"{100 * end.gain:.1f} %; the rows constrain {cost} least (to a factor of {np.exp(width):.2g}): "
        f"{_remedy([cost])}"
    )


def _starts_differ(fit: Fit) -> str:
    last = sorted(fit.starts["last"])
    more = 100 * (last[1] / last[0] - 1) if len(last) > 1 and 0 < last[0] <= last[1] < np.inf else None
    ratio = "" if more is None else f" (the next sum of squares is {more:.0f} % larger)"
    return (
        f"only one start (of {len(last)}) reached the best minimum{ratio}, so a better minimum may exist: try "
        f"other seeds; if the costs change with the seed, {_remedy([_least_determined(fit)])}"
    )


def _at_bound(fit: Fit) -> str:
    rows = fit.parameters[fit.parameters["at_bound"]]
    texts = [
        f"{name} is at its {'lower' if value < 1.01 * BOUNDS[name.partition('[')[0]][0] else 'upper'} bound "
        + (f"({value:.2g})" if name.startswith("fault_jitter") else f"({value / 1000:.4g} ns)")
        for name, value in zip(rows["name"], rows["value"], strict=True)
    ]
    return (
        f"{', '.join(texts)}; check the units, the vCPU counts, and the architecture, which determines the path of a "
        f"fault; if these are right, {_remedy(list(rows['name']))}"
    )


def _few_data(fit: Fit) -> str:
    rows, costs = len(fit.train), len(fit.estimate.names)
    return (
        f"there are fewer than two distinct observations per cost (observations: {rows}, distinct: "
        f"{rows - repeats(fit.train)}, costs: {costs}): measure at more vCPU counts, add metrics, or fit fewer costs"
    )


def repeats(observations: pd.DataFrame) -> int:
    """Return the number of observations that repeat an earlier one and so do not help to identify a cost."""
    return int(observations.duplicated(["table", "variant", "vcpus", "metric"]).sum())


def _not_determined(fit: Fit) -> str:
    names = list(fit.parameters.loc[~fit.parameters["determined"], "name"])
    return f"the rows do not constrain {', '.join(names)} within the physical bounds: {_remedy(names)}"


def _not_explained(fit: Fit) -> str:
    deviations = np.abs(np.log(np.maximum(fit.train["model"], 1e-12) / fit.train["value"]))
    worst = fit.train.iloc[int(np.argmax(deviations))]
    return (
        f"{worst['metric']} (vcpus = {worst['vcpus']}) is {worst['value']:.4g} in the data and {worst['model']:.4g} in "
        "the model with the best costs: the scenario may differ from the measured workload; check its iterations (with "
        "initially_set, the first iteration has no faults), its backing, and whether its faults contend for a lock"
    )


def _least_determined(fit: Fit) -> str:
    return fit.estimate.names[int(np.argmax(np.diag(fit.estimate.covariance)))]


def _remedy(names: list[str]) -> str:
    """Return a remedy for costs that the rows hardly constrain."""
    costs = list(dict.fromkeys(name.partition("[")[0] for name in names))
    other = "a metric that depends on the cost, see docs/metrics.md"
    rows = dict.fromkeys(INFORMATIVE_ROWS.get(cost, other) for cost in costs)
    pronoun = "it" if len(costs) == 1 else "them"
    return (
        f"add rows that constrain {pronoun} ({'; '.join(rows)}), or give {' or '.join(costs)} a value under [costs] "
        f"and remove {'it' if len(costs) == 1 else 'that cost'} from [calibration]"
    )
