# SPDX-License-Identifier: BSD-3-Clause
"""Prediction of a tried series (`simlib.lab.try_series`) on hardware: curves without the series and with it.

The trial's effect on policy and costs (`effect`) is applied to calibrated hosts. Instructions are converted to
time with the nanoseconds per instruction for each kind of action on the hardware (`translation`). The notes list costs
that no instruction counter shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from simlib._lib.parallel import Progress, subprogresses
from simlib.analysis.predict import CHANGES, curves_of
from simlib.analysis.prediction_options import LEVEL, PredictionOptions
from simlib.figures.results import Result
from simlib.lab import Trial
from simlib.lab.hardware.effect import UNSEEN, Effect, effect_of
from simlib.lab.hardware.machines import LAB_HOSTS, LabHost
from simlib.lab.hardware.translation import KINDS, instruction_times, translate
from simlib.lab.trial.kernels import STATISTICS_KERNEL
from simlib.lab.trial.result import wrap_lines
from simlib.measurements.fits import BOUNDS, AnyFit, UncertainCosts, choose_fit
from simlib.model.quantities import seconds_text
from simlib.model.scenario import Scenario, as_scenario

VCPUS = (1, 4, 16, 64)
"""Points of a curve."""

MEMORY = "8M"
"""Memory of each vCPU; a curve with all `VCPUS` takes half a minute to predict."""

WITHOUT, WITH = "without", "with"
"""Names of the two curves."""

_LOAD_METRICS = ("clear_dirty_log_time", "longest_stall", "gap_p999")
WORKLOADS: Mapping[str, tuple[Mapping[str, Any], tuple[str, ...]]] = {
    f"CLEAR while vCPUs write {MEMORY} each": ({"kind": "clear_under_load"}, _LOAD_METRICS),
    f"dirty_log_perf_test -b {MEMORY}": ({"kind": "dirty_log_perf_test"}, ("dirty_memory_time",)),
}
"""Workloads that are predicted by default, with their metrics."""


@dataclass(frozen=True, repr=False)
class OnHardware(Result):
    """Predicted effect of a series on hardware.

    - `frame`: ``mmu_mode`` (of the lab), ``host``, ``workload``, ``policy`` (``without``, ``with``), ``vcpus``,
      ``metric``, ``estimate``, ``low``, ``high``, ``unit``, ``change_percent``, ``change_low``, ``change_high``. The
      intervals, of `simlib.analysis.prediction_options.LEVEL`, include the uncertainty of costs and of the time per
      instruction.
    - `effects`: ``mmu_mode``, ``host``, ``what``, ``without``, ``with``, ``how``: policies and costs that change.
    - `notes`: costs that an emulator does not show for this series, and the hosts without a prediction.
    """

    frame: pd.DataFrame
    effects: pd.DataFrame
    notes: tuple[str, ...]

    FIGURES: ClassVar[Mapping[str, Callable[[Any], pd.DataFrame]]] = {"over_vcpus": lambda result: result.curves()}

    def curves(self) -> pd.DataFrame:
        """Return the frame for the figure of curves; ``policy`` names a host and a kernel."""
        return self.frame.assign(policy=self.frame["host"] + ", " + self.frame["policy"], variant="")

    def readable(self) -> pd.DataFrame:
        """Return a table for display: a row per point that changes, with the values of both kernels.

        Returns: ``host``, ``workload``, ``vcpus``, ``metric``, ``without``, ``with``, ``change`` (with its interval).
        """
        key = ["host", "workload", "vcpus", "metric"]
        points = [(tuple(row[name] for name in key), row) for row in self.frame.to_dict("records")]
        before = {at: row for at, row in points if row["policy"] == WITHOUT}
        after = [(at, row) for at, row in points if row["policy"] == WITH and _change(row)]
        rows = [(*at, _value(before[at]), _value(row), _change(row)) for at, row in after]
        return pd.DataFrame(rows, columns=[*key, WITHOUT, WITH, "change"])

    def summary(self) -> str:
        """Text for a mail, 72 columns wide."""
        lines = [f"On hardware (PREDICTED from the lab's counts, {100 * LEVEL:.0f} % intervals):"]
        template = "  {host}: {what} {without} -> {with}"
        lines += [template.format_map(row) for row in self.effects.to_dict("records")]
        table = self.readable()
        for (host, workload), rows in self.frame.groupby(["host", "workload"], sort=False):
            changes = table[(table["host"] == host) & (table["workload"] == workload)]
            same = [name for name in rows["metric"].unique() if name not in set(changes["metric"])]
            lines += wrap_lines(f"{host}, {workload}" + (f": no change in {', '.join(same)}" if same else ""), "  ")
            template = "    {vcpus:3} {metric:20} {without:>9} {with:>9} {change}"
            lines += [template.format_map(row) for row in changes.to_dict("records")]
        return "\n".join([*lines, *(line for note in self.notes for line in wrap_lines(note, "  "))])


def _value(row: Mapping[Any, Any]) -> str:
    return seconds_text(row["estimate"]) if row["unit"] == "s" else f"{row['estimate']:.4g}"


def _change(row: Mapping[Any, Any]) -> str:
    """Format a change with its interval; empty if the interval is within ±0.5 %."""
    value, low, high = (row[name] for name in CHANGES)
    return "" if max(abs(low), abs(high)) < 0.5 else f"{value:+.0f} % ({low:+.0f} to {high:+.0f})"


def on_hardware(
    trial: Trial,
    scenario: Scenario | str | Path | None = None,
    *,
    fit: AnyFit | None = None,
    vcpus: Sequence[int] = VCPUS,
    seed: int = 1,
    progress: Progress | None = None,
) -> OnHardware:
    """Predict the effect of a tried series on the calibrated hosts: curves without it and with it, for the same costs.

    Raises `InputError` for the reasons of `simlib.predict`.

    - `scenario`: a scenario or its file instead of `WORKLOADS`, for the hosts of its architecture. The metrics are
      those that its workload predicts by default.
    - `fit`: calibrated costs. Default: the shipped fits.
    - `vcpus`, `seed`, `progress`: as in `simlib.predict`.
    """
    modes = [mode for mode in trial.mmu_modes if mode in LAB_HOSTS]
    frames, effects, notes = list[pd.DataFrame](), list[tuple[str, ...]](), list[str]()
    for mode, share in zip(modes, subprogresses(progress, [1 / max(1, len(modes))] * len(modes)), strict=True):
        host, effect = LAB_HOSTS[mode], effect_of(trial, mode)
        cases = list(_cases(host, scenario))
        if not cases:
            continue
        notes += [f"Not in the lab's counts: {UNSEEN[kind]}." for kind in effect.unseen]
        if effect.empty:
            notes.append(f"{mode}: nothing to predict, because {effect.refusal or _empty_reason(trial, mode)}.")
            continue
        for workload, case, metrics in cases:
            options = PredictionOptions(fit=fit, metrics=metrics, seed=seed, progress=share)
            curves, changes = _predict_case(host, effect, case, vcpus, options)
            frames.append(curves.assign(mmu_mode=mode, host=host.label, workload=workload))
            effects += [(mode, host.label, *change) for change in changes]
    columns = ["mmu_mode", "host", "workload", "policy", "vcpus", "metric", "estimate", "low", "high", "unit",
               *CHANGES]  # fmt: skip
    frame = pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)
    table = pd.DataFrame(effects, columns=["mmu_mode", "host", "what", "without", "with", "how"])
    return OnHardware(frame, table.drop_duplicates(ignore_index=True), tuple(dict.fromkeys(notes)))


def _empty_reason(trial: Trial, mmu_mode: str) -> str:
    """Return the reason why a trial has no effect in terms of the model."""
    if mmu_mode in trial.failures:
        return "the kernel with the series FAILS"
    if trial.kernel != STATISTICS_KERNEL:
        return f"a {trial.kernel} kernel does not count acquisitions of mmu_lock by call site"
    return "nothing in the model changes"


def _cases(host: LabHost, given: Scenario | str | Path | None) -> Iterator[tuple[str, Scenario, Sequence[str] | None]]:
    """Yield what to predict on a host: a name, the scenario without the series, and metrics (None: the default)."""
    if given is None:
        for name, (workload, metrics) in WORKLOADS.items():
            yield name, host.scenario(workload, MEMORY), metrics
        return
    base = as_scenario(given)
    for label, case in (dict(base.variants) or {"": base}).items():
        if case.policy.architecture in (host.architecture, *host.same_clear):
            yield label or case.workload.kind, case, None


def _predict_case(
    host: LabHost, effect: Effect, scenario: Scenario, vcpus: Sequence[int], options: PredictionOptions
) -> tuple[pd.DataFrame, list[tuple[str, str, str, str]]]:
    """Predict the curves of a scenario without the series and with it; return them with the changes applied."""
    estimate, _ = choose_fit(scenario, options.fit)
    known = UncertainCosts.of(scenario, estimate).central().costs.given()
    before, after = (scenario.changed({"policy": dict(policy)}) if policy else scenario for policy in effect.policies)
    changes = [(key, str(effect.policies[0].get(key, "")), str(value), "counted")
               for key, value in effect.policies[1].items() if effect.policies[0].get(key) != value]  # fmt: skip
    if effect.lockless_ratio:
        page = known["clear_page"] * effect.lockless_ratio
        after = after.with_costs(lockless_page=page)
        times = (f"{known['clear_page'] / 1000:.3g} ns", f"{page / 1000:.3g} ns")
        changes.append(("CLEAR's walk, per page", *times, "instructions"))
    factors: dict[str, dict[str, float]] = {}
    ratios = instruction_times().ratios
    for cost, increase in effect.costs.items():
        kind = next(kind for kind, name in KINDS.items() if name == cost)
        ns, spread = _ns_per_instruction(kind, host, ratios)
        middle = increase.middle * ns
        ends = [(increase.middle + side * increase.half) * ns * by for side in (-1, 1) for by in (1 / spread, spread)]
        for name, longer in ((WITH, middle), ("low", min(ends)), ("high", max(ends))):
            factors.setdefault(name, {})[cost] = max(BOUNDS[cost][0], known[cost] + 1000 * longer) / known[cost]
        before_ns, after_ns = (f"{value / 1000:.4g} ns" for value in (known[cost], known[cost] + 1000 * middle))
        how = f"{increase.middle:+.3g} instructions, {ns:.2g} ns each (within a factor of {spread:.2g})"
        changes.append((cost, before_ns, after_ns, how))
    named = {WITHOUT: before, WITH: after} | ({"low": after, "high": after} if factors else {})
    frame, _, _ = curves_of(named, vcpus, replace(options, factors=factors))
    return _widen_intervals(frame), changes


def _ns_per_instruction(kind: str, host: LabHost, ratios: pd.DataFrame) -> tuple[float, float]:
    """Nanoseconds per instruction of a kind of action on a host, and the factor of its interval of `LEVEL`."""
    published = ratios.query("kind == @kind and architecture == @host.architecture")
    translated = translate(kind, 1.0, ratios)
    ns = float(published["ns_per_instruction"].iloc[0]) if len(published) else translated.time_ns
    return ns, translated.factor


def _widen_intervals(frame: pd.DataFrame) -> pd.DataFrame:
    """Add the uncertainty of the time per instruction to the intervals, in quadrature on a logarithmic scale."""
    key = ["variant", "vcpus", "metric"]
    parts = {name: rows.set_index(key) for name, rows in frame.groupby("policy", sort=False)}
    if "low" not in parts:
        return frame
    widened = parts[WITH].copy()
    for low, centre, high in (("low", "estimate", "high"), ("change_low", "change_percent", "change_high")):
        base = 100.0 if centre == "change_percent" else 0.0
        at, ends = np.log(base + widened[centre]), [np.log(base + parts[name][centre]) for name in ("low", "high")]
        down = np.hypot(at - np.log(base + widened[low]), np.maximum(0, at - np.minimum(*ends)))
        up = np.hypot(np.log(base + widened[high]) - at, np.maximum(0, np.maximum(*ends) - at))
        widened[low], widened[high] = np.exp(at - down) - base, np.exp(at + up) - base
    rows = pd.concat([parts[WITHOUT].reset_index(), widened.reset_index()], ignore_index=True)
    return rows[list(frame.columns)]
