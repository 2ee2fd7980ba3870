# SPDX-License-Identifier: BSD-3-Clause
"""Hypotheses on the growth of x86's fault time with the vCPU count while the lock is saturated, each calibrated.

A hypothesis changes only the host description of the published x86 hosts or the list of calibrated costs. It is
calibrated on few vCPUs, and the other points are held out. ``checks/shipped.py`` writes the fits to
``data/fits/x86-growth``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from simlib.analysis.calibrate.problem import Problem, build_problem, parameters_of
from simlib.analysis.predict import evaluate, predict
from simlib.measurements import data_dir, load
from simlib.measurements.fits import CostEstimate, Fit, load_fit
from simlib.model.scenario import load_scenario
from studies.study import FITTED, HELD_OUT, comparison_rows
from studies.x86.hosts import DIRTY_TIME, fault_problem, guest_access
from studies.x86.parked import PAGES_PER_GIB

TRAIN_VCPUS, TRAIN_VCPUS_PAGING = 16, 8
"""Maximum number of vCPUs of the training rows, for ept=Y and for ept=N."""

PAGING, PRESPLIT = "dirty_memory_time, ept=N", "dirty_memory_time, ept=N, eager_page_split=Y"
"""Metrics of shadow paging among the published numbers: with blocks split on fault, and split beforehand."""

_QUEUE = ("fault_unlocked", "fault_hold", "line_transfer", "fault_jitter")
_GROWS = (*_QUEUE, "queue_length_penalty")
_FLAT: dict[str, Any] = {"slowdown": [], "remote_ratio": 1.0}


class GrowthHypothesis(NamedTuple):
    """A hypothesis: its changes to the host, its calibrated costs, and its description."""

    machine: Mapping[str, Any]
    costs: tuple[str, ...]
    description: str
    line_transfer: str = ""
    """Fixed value from a published latency; the TDP MMU's point, at 96 vCPUs, is then held out too."""


def hypotheses() -> dict[str, GrowthHypothesis]:
    """All hypotheses by name, simplest first; the speed of transfers within a core complex is an EPYC 7R13's."""
    latencies = load("core-to-core-latency").frame
    xeons = latencies[latencies["processor"].str.startswith("Xeon") & (latencies["scope"] == "whole-socket")]
    dual_socket = latencies[latencies["scope"] == "cross-socket"]["processor"]
    dual = xeons[xeons["processor"].isin(dual_socket)]["latency_ns"].median()
    epyc = latencies[latencies["processor"] == "EPYC 7R13"].set_index("scope")["latency_ns"]
    ratio = float(epyc["within-ccx"] / epyc["whole-socket"])
    four, eight = ({"clusters": number, "cluster_ratio": ratio} for number in (24, 12))
    fixed = tuple(name for name in _GROWS if name != "line_transfer")
    as_xeons = "as in 'chosen', with the line transfer of two-socket Xeons"
    return {
        "constant": GrowthHypothesis(_FLAT, _QUEUE, "no cost grows"),
        "busy": GrowthHypothesis({"remote_ratio": 1.0}, _QUEUE, "work slows down as much as a pass without locks"),
        "sockets": GrowthHypothesis({}, _QUEUE, "as in 'busy', and cache lines come from the other socket"),
        "clusters-of-4": GrowthHypothesis(four, _QUEUE, "as in 'sockets', but faster within 4-core complexes"),
        "clusters-of-8": GrowthHypothesis(eight, _QUEUE, "as in 'sockets', but faster within 8-core complexes"),
        "queue_length_penalty": GrowthHypothesis(_FLAT, _GROWS, "only the hand-off grows, with log(waiting threads)"),
        CHOSEN: GrowthHypothesis({}, _GROWS, "as in 'sockets', and the hand-off grows"),
        "published-latency": GrowthHypothesis({}, fixed, as_xeons, f"{dual}ns"),
        "sockets-of-32": GrowthHypothesis({"cores": 64}, _GROWS, "as in 'chosen', with 32 CPUs per socket"),
        "sockets-of-63": GrowthHypothesis({"cores": 126}, _GROWS, "as in 'chosen', with 63 CPUs per socket"),
    }


CHOSEN = "chosen"
"""Hypothesis of the shipped costs."""

PLAUSIBLE = (CHOSEN, "queue_length_penalty", "clusters-of-4", "published-latency", "sockets-of-63")
"""Hypotheses that the tables hardly distinguish; extrapolations span all of them."""


def hypothesis_problem(hypothesis: GrowthHypothesis, vcpus: int | None = TRAIN_VCPUS) -> Problem:
    """Calibration problem of a hypothesis for blocks split on fault.

    The TDP MMU's single point, at 96 vCPUs, has another lock mode. It identifies the line transfer, unless the
    hypothesis fixes it.

    - `vcpus`: maximum of the training rows; None: all rows are training rows.
    """
    given = fault_problem()
    costs: dict[str, Any] = {"line_transfer": hypothesis.line_transfer} if hypothesis.line_transfer else {}
    changes = {"host": dict(hypothesis.machine), "calibration": {"costs": list(hypothesis.costs)}, "costs": costs}
    scenario = given.scenario.everywhere(changes)
    rows = given.observations.copy()
    if vcpus is not None:
        rows["train"] = (rows["vcpus"] <= vcpus) | ((rows["variant"] == "tdp") & (not hypothesis.line_transfer))
    names, bounds = parameters_of(scenario, tuple(scenario.variants))
    return Problem(scenario, rows, names, bounds, given.dataset)


def paging_problem(estimate: CostEstimate) -> Problem:
    """Calibration problem of shadow paging (ept=N), splits on fault: costs of the exit and the hold; others from ept=Y.

    >>> from simlib.measurements.fits import find_fit
    >>> from studies.x86.hosts import configurations
    >>> paging_problem(find_fit(configurations()).estimate).names
    ('fault_unlocked', 'fault_hold')
    """
    rows = load(DIRTY_TIME).rows("ept == 'N' and eager_page_split == 'N'")
    carried = dict(zip(estimate.names, np.exp(estimate.logs).tolist(), strict=True))
    case = fault_problem().scenario.variants["shadow, 100 % written"].with_costs(
        **{name: carried[name] for name in ("line_transfer", "queue_length_penalty", "fault_jitter")}
    )  # fmt: skip
    costs = {"costs": ["fault_unlocked", "fault_hold"]}
    base = case.changed({"policy": {"architecture": "x86-shadow-paging"}, "calibration": costs})
    shares = rows["write_percent"].astype(int)
    variants = {_written(n): base.changed({"workload": {"write_percent": n}}) for n in shares.unique().tolist()}
    scenario = dataclasses.replace(base, variants=variants)
    frame = pd.DataFrame({"table": DIRTY_TIME, "variant": shares.map(_written), "vcpus": rows["vcpus"]})
    frame = frame.assign(metric="dirty_memory_time", value=rows["dirty_memory_time_s"]).reset_index(drop=True)
    names, bounds = parameters_of(scenario, tuple(variants))
    return Problem(scenario, frame.assign(train=frame["vcpus"] <= TRAIN_VCPUS_PAGING), names, bounds, DIRTY_TIME)


def _written(share: float) -> str:
    return f"{share:.0f} % written"


def arm64_problem(grows: bool) -> Problem:
    """Calibration problem of all rows of the January 2022 table; `grows`: the lock's hand-off may grow."""
    scenario = load_scenario(data_dir() / "scenarios" / "arm64-ampere-altra.toml")
    if grows:
        costs = [*scenario.calibration.costs, "queue_length_penalty"]
        scenario = scenario.everywhere({"calibration": {"costs": costs}})
    return build_problem(scenario, load("arm64-dirty-memory-time"))


def growth_fit(name: str) -> Fit:
    """Load a shipped fit: a hypothesis with ``-few`` or ``-all``, ``shadow-paging-few``, ``arm64-grows``, …."""
    return load_fit(data_dir() / "fits" / "x86-growth" / f"{name}.json")


def hypothesis_table() -> pd.DataFrame:
    """Errors of all hypotheses for blocks split on fault, calibrated on few vCPUs.

    Returns: ``hypothesis``, ``description``, ``costs`` and ``observations`` (their numbers), ``trained`` (largest
    error of a training point), ``at_32``, ``at_64`` (largest errors of the held-out points, signed), ``tdp_at_96``.
    """
    rows = []
    for name, hypothesis in hypotheses().items():
        fit = growth_fit(f"{name}-few")
        observations = fit.observations
        errors = observations.set_index("vcpus")["error"]
        is_tdp = (observations["variant"] == "tdp").to_numpy()
        shadow, tdp = errors[~is_tdp], errors[is_tdp]
        largest = [
            max(part, key=abs) for part in (shadow[shadow.index <= TRAIN_VCPUS], shadow[[32]], shadow[[64]], tdp)
        ]
        counts = len(fit.estimate.names), int(observations["train"].sum())
        rows.append((name, hypothesis.description, *counts, *largest))
    columns = ["hypothesis", "description", "costs", "observations", "trained", "at_32", "at_64", "tdp_at_96"]
    return pd.DataFrame(rows, columns=columns)


def handoff_growth() -> pd.DataFrame:
    """Growth of the lock's hand-off time for each doubling of the number of waiters, and arm64's evidence for it.

    Returns: ``machine``, ``value_ns``, ``low_ns``, ``high_ns``, and ``p`` of an F-test for this extra cost (arm64).
    """
    x86, constant, grows = (growth_fit(name) for name in (f"{CHOSEN}-all", "arm64-constant", "arm64-grows"))
    squares = [fit.estimate.discrepancy**2 * fit.estimate.dof for fit in (constant, grows)]
    ratio = max(0.0, squares[0] - squares[1]) / (squares[1] / grows.estimate.dof)
    rows = []
    for machine, fit, p in (("x86", x86, np.nan), ("arm64", grows, float(stats.f.sf(ratio, 1, grows.estimate.dof)))):
        cost = fit.costs().set_index("name").loc["queue_length_penalty"]
        rows.append({"machine": machine} | {f"{end}_ns": cost[end] for end in ("value", "low", "high")} | {"p": p})
    return pd.DataFrame(rows)


def curves() -> pd.DataFrame:
    """Published times per page, and times under some hypotheses, as input of `studies.x86.figures.saturated_fault`.

    Returns: ``panel``, ``hypothesis``, ``vcpus``, ``kind`` (``measured``, ``fitted``, ``predicted``), ``us_per_page``.
    """
    names = ("constant", "sockets", "clusters-of-4", CHOSEN)
    selected = [("EPT (ept=Y)", "shadow, ", name, f"{name}-few") for name in names]
    selected.append(("shadow paging (ept=N)", "", CHOSEN, "shadow-paging-few"))
    parts = []
    for panel, mmu, name, file in selected:
        rows = growth_fit(file).observations
        rows = rows[rows["variant"] == mmu + _written(100)]
        us_per_page = 1e6 / (PAGES_PER_GIB * rows["vcpus"])  # 1 GiB for each vCPU
        model = rows[["vcpus"]].assign(
            panel=f"{panel}, {_written(100)}", hypothesis=name, kind=np.where(rows["train"], "fitted", "predicted"),
            us_per_page=rows["model"] * us_per_page,
        )  # fmt: skip
        parts.append(model)
        if name == CHOSEN:
            parts.append(model.assign(kind="measured", us_per_page=rows["value"] * us_per_page))
    return pd.concat(parts, ignore_index=True)


def fault_numbers(seed: int = 1) -> pd.DataFrame:
    """Published times with blocks split on fault, with EPT and shadow paging, and `CHOSEN`'s predictions."""
    parts = []
    for name in (f"{CHOSEN}-few", "shadow-paging-few"):
        fit = growth_fit(name)
        for variant, observations in fit.observations.groupby("variant", sort=False):
            vcpus, metrics = sorted({int(n) for n in observations["vcpus"]}), ["dirty_memory_time"]
            predicted = predict(fit.scenario, vcpus, variant=str(variant), fit=fit, metrics=metrics, seed=seed).frame
            rows = observations[["variant", "vcpus", "value", "train"]].rename(columns={"value": "published"})
            rows = rows.merge(predicted.drop(columns="variant").rename(columns={"estimate": "predicted"}), on="vcpus")
            role = np.where(rows.pop("train").astype(bool), FITTED, HELD_OUT)
            metric = PAGING if name.startswith("shadow") else rows["metric"]
            tables = list(observations["table"]) if "table" in observations else DIRTY_TIME
            parts.append(comparison_rows(rows.assign(role=role, metric=metric), tables))
    return pd.concat(parts, ignore_index=True)


def presplit_numbers() -> pd.DataFrame:
    """Published and predicted times of shadow paging with blocks split beforehand.

    A page faults once, when it is written, and the fault holds the write lock. Reads do not fault, and take as long as
    with ept=Y (`studies.x86.hosts.guest_access`). No cost was fitted to these rows.
    """
    rows = load(DIRTY_TIME).rows("ept == 'N' and eager_page_split == 'Y'").reset_index(drop=True)
    base = paging_problem(growth_fit(f"{CHOSEN}-all").estimate).scenario.changed({"policy": {"eager_split": True}})
    estimate = growth_fit("shadow-paging-few").estimate
    cases = [
        estimate.apply(base.changed({"workload": {"write_percent": int(share)}, "guest": {"vcpus": int(vcpus)}}))
        .with_costs(guest_access=guest_access(share))
        for share, vcpus in zip(rows["write_percent"], rows["vcpus"], strict=True)
    ]  # fmt: skip
    numbers = {"variant": rows["write_percent"].map(_written), "vcpus": rows["vcpus"], "metric": PRESPLIT,
             "published": rows["dirty_memory_time_s"].astype(float), "unit": "s", "role": HELD_OUT,
             "predicted": [run.metrics["dirty_memory_time"] for run in evaluate(cases)]}  # fmt: skip
    return comparison_rows(pd.DataFrame(numbers), DIRTY_TIME)


def extrapolations(seed: int = 1) -> pd.DataFrame:
    """Predicted times with blocks split on fault, for 96 and 128 vCPUs, which are not in the shadow MMU's tables.

    Returns: ``hypothesis`` (``all``: lowest low and highest high of all hypotheses, estimate of `CHOSEN`), ``vcpus``,
    ``estimate``, ``low``, ``high`` (s).
    """
    rows = []
    options: dict[str, Any] = {"vcpus": (96, 128), "metrics": ["dirty_memory_time"], "seed": seed}
    for name in PLAUSIBLE:
        fit = growth_fit(f"{name}-all")
        frame = predict(fit.scenario.variants["shadow, 100 % written"], fit=fit.estimate, **options).frame
        rows.append(frame[["vcpus", "estimate", "low", "high"]].assign(hypothesis=name))
    intervals = pd.concat(rows, ignore_index=True)[["hypothesis", "vcpus", "estimate", "low", "high"]]
    best = intervals[intervals["hypothesis"] == CHOSEN].set_index("vcpus")["estimate"]
    span = intervals.groupby("vcpus").agg(low=("low", "min"), high=("high", "max")).reset_index()
    return pd.concat([intervals, span.assign(hypothesis="all", estimate=span["vcpus"].map(best))], ignore_index=True)
