# SPDX-License-Identifier: BSD-3-Clause
"""Comparison of policies for one guest, with the same costs and random numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Unpack

import pandas as pd

from simlib._lib.errors import InputError
from simlib.analysis.predict import curves_of
from simlib.analysis.prediction_options import PredictionKeywords, PredictionOptions
from simlib.figures.results import Result, result_html, text_of
from simlib.model.policies import BASELINE, apply
from simlib.model.quantities import format_seconds
from simlib.model.scenario import Scenario, as_scenario


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """Metrics of several policies, and their changes relative to the first.

    - `frame`: policy, variant, vcpus, metric, estimate, low, high, unit; and the change relative to the first policy:
      change_percent, change_low, change_high (NaN if the first policy's metric is 0). The comparison is paired.
    - `policies`: the policies as given; all are compared with the first.
    - `level`: confidence level of the intervals.
    - `costs`: one row per cost that the programs spend: cost, evidence, value, low, high, unit, source.
    - `flags`: assumptions and limits that affect the result.
    """

    frame: pd.DataFrame
    policies: tuple[str, ...]
    level: float
    costs: pd.DataFrame
    flags: tuple[str, ...]

    FIGURES: ClassVar[Mapping[str, Callable[[Any], pd.DataFrame]]] = {
        "over_vcpus": lambda result: result._named_frame(),
        "dirty_memory_time": lambda result: result.curves(),
        "speed_up": lambda result: result.curves(),
    }

    def readable(self) -> pd.DataFrame:
        """Return the frame with formatted intervals, and without the column of variants if there are none."""
        frame = self.frame
        time = frame["unit"] == "s"
        estimate, low, high = (
            frame[name].map("{:.4g}".format).mask(time, frame[name].map(lambda value: format_seconds(value, 4)))
            for name in ("estimate", "low", "high")
        )
        shares = frame[["change_percent", "change_low", "change_high"]]
        changes = shares.abs().max(axis=1) >= 0.05  # False if the change is NaN
        ends = frame[["change_low", "change_high"]].map("{:+.1f}".format)
        table = frame[["policy", "variant", "vcpus", "metric"]].assign(
            estimate=estimate, interval=low + " … " + high, unit=frame["unit"].mask(time, ""),
            change=frame["change_percent"].map("{:+.1f} %".format).where(changes, ""),
        )  # fmt: skip
        table["of the change"] = (ends["change_low"] + " … " + ends["change_high"]).where(changes, "")
        return table if (frame["variant"] != "").any() else table.drop(columns="variant")

    def summary(self) -> str:
        """Return the comparison and the flags as text."""
        title = f"Compared with {self.policies[0]}, {100 * self.level:g} % intervals."
        return "\n".join([title, text_of(self.readable()), *self.flags])

    def curves(self) -> pd.DataFrame:
        """Return the table for figures of curves: variant (here the policy), vcpus, metric, kind, value …"""
        frame = self._named_frame()
        frame = frame[["policy", "vcpus", "metric", "estimate", "low", "high"]].assign(kind="predicted", held_out=True)
        return frame.rename(columns={"policy": "variant", "estimate": "value"})

    def _named_frame(self) -> pd.DataFrame:
        prefix = (self.frame["variant"] + ": ").where(self.frame["variant"] != "", "")
        return self.frame.assign(policy=prefix + self.frame["policy"])

    def _repr_html_(self) -> str:
        what = f", compared with {self.policies[0]}, {100 * self.level:g} % intervals."
        return result_html("Predicted", what, self.flags, self.frame)


def compare(
    scenario: Scenario | str | Path,
    policies: Sequence[str],
    vcpus: Sequence[int],
    *,
    variant: str = "",
    **options: Unpack[PredictionKeywords],
) -> Comparison:
    """Compare policies at each given vCPU count.

    Raises `InputError` if a policy is unknown or named twice, and in the cases listed for `simlib.predict`.

    - `scenario`: a scenario, or its file.
    - `policies`: names in `simlib.model.policies.POLICIES`, batches such as ``"every-512"``, several policies joined by
      ``+``, or ``"baseline"`` for the scenario's own policy. All are compared with the first.
    - `variant`: variant to compare, if the scenario has variants; by default all of them.
    - `fit`, `metrics`, `level`, `seed`, `replications`, `pages_per_vcpu`, `unknown_costs`, `progress`: see
      `simlib.analysis.prediction_options.PredictionOptions`.

    >>> s = Scenario.parse({"guest": {"memory_per_vcpu": "2M"}, "policy": {"architecture": "x86-shadow-paging"},
    ...                     "costs": {"fault_unlocked": "700ns", "fault_hold": "600ns", "line_transfer": "50ns"}})
    >>> compare(s, ["baseline", "fast-path-read-lock"], [8], metrics=["dirty_memory_time"]).policies
    ('baseline', 'fast-path-read-lock')
    """
    names = tuple(policies)
    if not names:
        raise InputError("policies", "", "must name at least one policy", 'such as ["baseline", "every-64"]')
    for name in names:
        if names.count(name) > 1:
            raise InputError("policies", name, "is given more than once", "give each policy once")
    subject = as_scenario(scenario)
    subject = subject.variant(variant) if variant else subject
    scenarios = {name: subject if name == BASELINE else apply(subject, name) for name in names}
    precision = PredictionOptions(**options)
    frame, costs, flags = curves_of(scenarios, vcpus, precision)
    return Comparison(frame, names, precision.level, costs, flags)
