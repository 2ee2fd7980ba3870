# SPDX-License-Identifier: BSD-3-Clause
"""Policies side by side: the same guest, the same costs, the same random numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from simlib._lib.errors import InputError
from simlib.analysis.predict import LEVEL, PAGES_PER_VCPU, REPLICATIONS, PredictionOptions, Progress, curves_of
from simlib.analysis.simulate import Known
from simlib.figures.results import Result, result_html, text_of
from simlib.measurements.fits import AnyFit
from simlib.model.policies import BASELINE, apply
from simlib.model.quantities import format_seconds
from simlib.model.scenario import Scenario, as_scenario


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """What policies do, side by side.

    - `frame`: policy, variant, vcpus, metric, estimate, low, high, unit; and against the first policy, change_percent,
      change_low, change_high (NaN where that gives 0): a paired comparison, so that what both share cancels.
    - `policies`: as they were asked for; the first is what the others are compared with.
    - `level`: probability that the intervals are meant to cover.
    - `costs`: one row a cost that the programs spend: cost, evidence, value, low, high, unit, source.
    - `flags`: what to know before believing the result.
    """

    frame: pd.DataFrame
    policies: tuple[str, ...]
    level: float
    costs: pd.DataFrame
    flags: tuple[str, ...]

    FIGURES: ClassVar[Mapping[str, Callable[[Any], pd.DataFrame]]] = {
        "over_vcpus": lambda found: found._frame(),
        "dirty_memory_time": lambda found: found.curves(),
        "speed_up": lambda found: found.curves(),
    }

    def readable(self) -> pd.DataFrame:
        """The frame for people to read: intervals in one column each, and no column of variants if there are none."""
        frame = self.frame
        time = frame["unit"] == "s"
        estimate, low, high = (
            frame[name].map("{:.4g}".format).mask(time, frame[name].map(lambda value: format_seconds(value, 4)))
            for name in ("estimate", "low", "high")
        )
        shares = frame[["change_percent", "change_low", "change_high"]]
        changes = shares.abs().max(axis=1) >= 0.05  # false where it is unknown
        points = frame[["change_low", "change_high"]].map("{:+.1f}".format)
        shown = frame[["policy", "variant", "vcpus", "metric"]].assign(
            estimate=estimate, interval=low + " … " + high, unit=frame["unit"].mask(time, ""),
            change=frame["change_percent"].map("{:+.1f} %".format).where(changes, ""),
        )  # fmt: skip
        shown["of the change"] = (points["change_low"] + " … " + points["change_high"]).where(changes, "")
        return shown if (frame["variant"] != "").any() else shown.drop(columns="variant")

    def summary(self) -> str:
        """The policies, and what to know of them."""
        title = f"Compared with {self.policies[0]}, {self.level:.0%} intervals."
        return "\n".join([title, text_of(self.readable()), *self.flags])

    def curves(self) -> pd.DataFrame:
        """The table that the figures of curves draw: variant (here the policy), vcpus, metric, kind, value …"""
        frame = self._frame()
        frame = frame[["policy", "vcpus", "metric", "estimate", "low", "high"]].assign(kind="predicted", held_out=True)
        return frame.rename(columns={"policy": "variant", "estimate": "value"})

    def _frame(self) -> pd.DataFrame:
        named = (self.frame["variant"] + ": ").where(self.frame["variant"] != "", "")
        return self.frame.assign(policy=named + self.frame["policy"])

    def _repr_html_(self) -> str:
        what = f", compared with {self.policies[0]}, {self.level:.0%} intervals."
        return result_html("Predicted", what, self.flags, self.frame)


def compare(
    scenario: Scenario | str | Path,
    policies: Sequence[str],
    vcpus: Sequence[int],
    *,
    variant: str = "",
    fit: AnyFit | None = None,
    metrics: Sequence[str] | None = None,
    level: float = LEVEL,
    seed: int = 1,
    replications: int = REPLICATIONS,
    pages_per_vcpu: int = PAGES_PER_VCPU,
    costs: Known = "drawn",
    progress: Progress | None = None,
) -> Comparison:
    """Set policies side by side over vCPUs.

    Raises `InputError` if a policy is unknown or named twice, or for what `simlib.predict` refuses.

    - `scenario`: a scenario, or its file.
    - `policies`: names of `simlib.model.policies.POLICIES`, ``"every-512"`` and the like for batches, several
      joined by ``+``, or ``"baseline"`` for what the scenario says itself. The others are compared with the first.
    - `variant`: only this one, if the scenario has variants; by default all.
    - `fit`, `metrics`, `level`, `seed`, `replications`, `pages_per_vcpu`, `costs`, `progress`: see `simlib.predict`.

    >>> s = Scenario.parse({"guest": {"memory_per_vcpu": "2M"}, "policy": {"architecture": "x86-shadow-paging"},
    ...                     "costs": {"fault_unlocked": "700ns", "fault_hold": "600ns", "line_transfer": "50ns"}})
    >>> compare(s, ["baseline", "fast-path-read-lock"], [8], metrics=["dirty_memory_time"]).policies
    ('baseline', 'fast-path-read-lock')
    """
    names = tuple(policies)
    if not names:
        raise InputError("policies", "", "must name at least one", 'such as ["baseline", "every-64"]')
    for name in names:
        if names.count(name) > 1:
            raise InputError("policies", name, "is named more than once", "name each once")
    subject = as_scenario(scenario)
    subject = subject.variant(variant) if variant else subject
    named = {name: subject if name == BASELINE else apply(subject, name) for name in names}
    asked = PredictionOptions(fit, metrics, level, seed, replications, pages_per_vcpu, costs, progress)
    frame, costs_used, flags = curves_of(named, vcpus, asked)
    return Comparison(frame, names, level, costs_used, flags)
