# SPDX-License-Identifier: BSD-3-Clause
"""Why a fault in the saturated lock takes longer with more vCPUs on x86: readings, each calibrated and held to account.

Each reading changes the machine of the published x86 hosts, or what is calibrated, and nothing else. What a reading
explains, it explains with costs from few vCPUs; the others are held out. The fits are kept in
``data/fits/x86-growth``, written by ``checks/shipped.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from simlib.analysis.calibrate.problem import Problem, build_problem, parameters_of
from simlib.analysis.predict import evaluate, predict
from simlib.measurements import data_dir, load
from simlib.measurements.fits import CostEstimate, Fit, load_fit
from simlib.model.scenario import load_scenario
from studies.study import FITTED, HELD_OUT, numbers
from studies.x86.hosts import DIRTY_TIME, fault_problem, guest_access
from studies.x86.parked import PAGES_PER_GIB

FEW_VCPUS, FEWER_VCPUS = 16, 8
"""vCPUs up to which ept=Y, and ept=N, are calibrated where the others are held out."""

BEYOND = (96, 128)
"""vCPUs that no table of the shadow MMU has."""

PAGING, BEFOREHAND = "dirty_memory_time, ept=N", "dirty_memory_time, ept=N, eager_page_split=Y"
"""Shadow paging among the published numbers: split on fault, and with everything split beforehand."""

_QUEUE = ("fault_unlocked", "fault_hold", "line_transfer", "fault_jitter")
_GROWS = (*_QUEUE, "queue_length_penalty")
_FLAT: dict[str, Any] = {"slowdown": [], "remote_ratio": 1.0}


class GrowthHypothesis(NamedTuple):
    """One explanation: what it changes of the machine, which costs are calibrated, and what it says."""

    machine: Mapping[str, Any]
    costs: tuple[str, ...]
    says: str
    line_transfer: str = ""
    """Given by hand, from a published latency; then the TDP MMU's point, at 96 vCPUs, is held out too."""


def readings() -> dict[str, GrowthHypothesis]:
    """All readings by name, the plainest first; a cluster's cores are as near each other as those of an EPYC 7R13."""
    near = load("core-to-core-latency").frame
    xeons = near[near["processor"].str.startswith("Xeon") & (near["scope"] == "whole-socket")]
    dual = xeons[xeons["processor"].isin(near[near["scope"] == "cross-socket"]["processor"])]["latency_ns"].median()
    epyc = near[near["processor"] == "EPYC 7R13"].set_index("scope")["latency_ns"]
    ratio = float(epyc["within-ccx"] / epyc["whole-socket"])
    return {
        "constant": GrowthHypothesis(_FLAT, _QUEUE, "nothing grows"),
        "busy": GrowthHypothesis({"remote_ratio": 1.0}, _QUEUE, "work slows down as the pass without a lock does"),
        "sockets": GrowthHypothesis({}, _QUEUE, "that, and lines come from another socket"),
        "clusters-of-4": GrowthHypothesis(
            {"clusters": 24, "cluster_ratio": ratio}, _QUEUE, "that, and within a cluster of 4 cores sooner"
        ),
        "clusters-of-8": GrowthHypothesis(
            {"clusters": 12, "cluster_ratio": ratio}, _QUEUE, "that, and within a cluster of 8 cores sooner"
        ),
        "queue_length_penalty": GrowthHypothesis(
            _FLAT, _GROWS, "only the hand-over grows, with the waiters' logarithm"
        ),
        CHOSEN: GrowthHypothesis({}, _GROWS, "busy CPUs and sockets, and the hand-over grows"),
        "published-latency": GrowthHypothesis(
            {},
            tuple(name for name in _GROWS if name != "line_transfer"),
            "the same, a line's time as two-socket Xeons have it",
            f"{dual}ns",
        ),
        "sockets-of-32": GrowthHypothesis({"cores": 64}, _GROWS, "the same with 32 CPUs a socket"),
        "sockets-of-63": GrowthHypothesis({"cores": 126}, _GROWS, "the same with 63 CPUs a socket"),
    }


CHOSEN = "chosen"
"""The reading of the shipped costs."""

PLAUSIBLE = (CHOSEN, "queue_length_penalty", "clusters-of-4", "published-latency", "sockets-of-63")
"""Readings between which the tables do not decide, or not by much; a prediction beyond them rests on all of these."""


def reading_problem(reading: GrowthHypothesis, vcpus: int | None = FEW_VCPUS) -> Problem:
    """Splitting on fault under one reading; up to so many vCPUs calibrated, the others held out; None: all.

    The TDP MMU's one point, at 96 vCPUs, is of another lock mode. It determines what moving a line costs, unless the
    reading says that.
    """
    given = fault_problem()
    costs: dict[str, Any] = {"line_transfer": reading.line_transfer} if reading.line_transfer else {}
    changes = {"host": dict(reading.machine), "calibration": {"costs": list(reading.costs)}, "costs": costs}
    scenario = given.scenario.everywhere(changes)
    rows = given.observations.copy()
    if vcpus is not None:
        rows["train"] = (rows["vcpus"] <= vcpus) | ((rows["variant"] == "tdp") & (not reading.line_transfer))
    names, bounds = parameters_of(scenario, tuple(scenario.variants))
    return Problem(scenario, rows, names, bounds, given.dataset)


def paging_problem(estimate: CostEstimate) -> Problem:
    """Splitting on fault with shadow paging (ept=N): its own exit and hold, all else carried over from ept=Y's fit.

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
    changes = {
        "policy": {"architecture": "x86-shadow-paging"},
        "calibration": {"costs": ["fault_unlocked", "fault_hold"]},
    }
    base = case.changed(changes)
    shares = list(dict.fromkeys(rows["write_percent"].astype(int).tolist()))
    variants = {_written(share): base.changed({"workload": {"write_percent": share}}) for share in shares}
    scenario = dataclasses.replace(base, variants=variants)
    frame = pd.DataFrame(
        {"table": DIRTY_TIME, "variant": [_written(share) for share in rows["write_percent"]],
         "vcpus": rows["vcpus"].to_numpy(), "metric": "dirty_memory_time",
         "value": rows["dirty_memory_time_s"].to_numpy()}
    )  # fmt: skip
    names, bounds = parameters_of(scenario, tuple(variants))
    return Problem(scenario, frame.assign(train=frame["vcpus"] <= FEWER_VCPUS), names, bounds, DIRTY_TIME)


def _written(share: float) -> str:
    return f"{share:.0f} % written"


def arm64_problem(grows: bool) -> Problem:
    """The January 2022 series' table, all rows, with a hand-over that may grow, or not."""
    scenario = load_scenario(data_dir() / "scenarios" / "arm64-ampere-altra.toml")
    if grows:
        costs = [*scenario.calibration.costs, "queue_length_penalty"]
        scenario = scenario.everywhere({"calibration": {"costs": costs}})
    return build_problem(scenario, load("arm64-dirty-memory-time"))


def folder() -> Path:
    """Where the fits of the readings are kept."""
    return data_dir() / "fits" / "x86-growth"


def growth_fit(name: str) -> Fit:
    """One of the kept fits.

    - `name`: a reading with ``-few`` or ``-all``; ``shadow-paging-few``; ``arm64-grows`` or ``arm64-constant``.
    """
    return load_fit(folder() / f"{name}.json")


def reading_table() -> pd.DataFrame:
    """What every reading explains of splitting on fault, calibrated on few vCPUs.

    Returns: ``reading``, ``says``, ``costs`` and ``observations`` (how many), ``trained`` (the worst error of a
    training point), ``at_32``, ``at_64`` (the worst of the held-out points, signed), ``tdp_at_96``.
    """
    rows = []
    for name, reading in readings().items():
        fit = growth_fit(f"{name}-few")
        seen = fit.observations
        errors = seen.set_index("vcpus")["error"]
        shadow, tdp = errors[(seen["variant"] != "tdp").to_numpy()], errors[(seen["variant"] == "tdp").to_numpy()]
        rows.append(
            {"reading": name, "says": reading.says, "costs": len(fit.estimate.names),
             "observations": int(seen["train"].sum()), "trained": max(shadow[shadow.index <= FEW_VCPUS], key=abs),
             "at_32": max(shadow[[32]], key=abs), "at_64": max(shadow[[64]], key=abs), "tdp_at_96": max(tdp, key=abs)}
        )  # fmt: skip
    return pd.DataFrame(rows)


def hand_over() -> pd.DataFrame:
    """What the hand-over of the lock takes longer for each doubling of its waiters, and whether arm64's table asks so.

    Returns: ``machine``, ``value_ns``, ``low_ns``, ``high_ns``, and ``p`` of an F-test of this one cost more (arm64).
    """
    x86, plain, more = (growth_fit(name) for name in (f"{CHOSEN}-all", "arm64-constant", "arm64-grows"))
    squares = [fit.estimate.discrepancy**2 * fit.estimate.dof for fit in (plain, more)]
    ratio = max(0.0, squares[0] - squares[1]) / (squares[1] / more.estimate.dof)
    rows = []
    for machine, fit, p in (("x86", x86, np.nan), ("arm64", more, float(stats.f.sf(ratio, 1, more.estimate.dof)))):
        cost = fit.costs().set_index("name").loc["queue_length_penalty"]
        rows.append({"machine": machine} | {f"{end}_ns": cost[end] for end in ("value", "low", "high")} | {"p": p})
    return pd.DataFrame(rows)


def curves() -> pd.DataFrame:
    """Published times a page and those of some readings, as `studies.x86.figures.saturated_fault` draws them.

    Returns: ``panel``, ``reading``, ``vcpus``, ``kind`` (``measured``, ``fitted``, ``predicted``), ``us_per_page``.
    """
    shown = [
        ("EPT (ept=Y)", "shadow, ", name, f"{name}-few") for name in ("constant", "sockets", "clusters-of-4", CHOSEN)
    ]
    shown.append(("shadow paging (ept=N)", "", CHOSEN, "shadow-paging-few"))
    parts = []
    for panel, mmu, name, file in shown:
        seen = growth_fit(file).observations
        seen = seen[seen["variant"] == mmu + _written(100)]
        each = 1e6 / (PAGES_PER_GIB * seen["vcpus"])  # 1 GiB for each vCPU
        model = seen[["vcpus"]].assign(
            panel=f"{panel}, {_written(100)}", reading=name, kind=np.where(seen["train"], "fitted", "predicted"),
            us_per_page=seen["model"] * each,
        )  # fmt: skip
        parts.append(model)
        if name == CHOSEN:
            parts.append(model.assign(kind="measured", us_per_page=seen["value"] * each))
    return pd.concat(parts, ignore_index=True)


def fault_numbers(seed: int = 1) -> pd.DataFrame:
    """Splitting on fault, from few vCPUs to many, by the reading `CHOSEN`, and with shadow paging."""
    parts = []
    for name in (f"{CHOSEN}-few", "shadow-paging-few"):
        fit = growth_fit(name)
        for variant, mine in fit.observations.groupby("variant", sort=False):
            vcpus, metrics = sorted({int(n) for n in mine["vcpus"]}), ["dirty_memory_time"]
            found = predict(fit.scenario, vcpus, variant=str(variant), fit=fit, metrics=metrics, seed=seed).frame
            rows = mine[["variant", "vcpus", "value", "train"]].rename(columns={"value": "published"})
            rows = rows.merge(found.drop(columns="variant").rename(columns={"estimate": "predicted"}), on="vcpus")
            role = np.where(rows.pop("train").astype(bool), FITTED, HELD_OUT)
            metric = PAGING if name.startswith("shadow") else rows["metric"]
            tables = list(mine["table"]) if "table" in mine else DIRTY_TIME
            parts.append(numbers(rows.assign(role=role, metric=metric), tables))
    return pd.concat(parts, ignore_index=True)


def beforehand_numbers() -> pd.DataFrame:
    """Shadow paging with everything split beforehand: each write to a page faults once, under the write lock.

    Reads do not, and take what they take with ept=Y (`studies.x86.hosts.guest_access`). No cost was fitted to
    any of it.
    """
    rows = load(DIRTY_TIME).rows("ept == 'N' and eager_page_split == 'Y'").reset_index(drop=True)
    base = paging_problem(growth_fit(f"{CHOSEN}-all").estimate).scenario.changed({"policy": {"eager_split": True}})
    estimate = growth_fit("shadow-paging-few").estimate
    cases = [
        estimate.apply(base.changed({"workload": {"write_percent": int(share)}, "guest": {"vcpus": int(vcpus)}}))
        .with_costs(guest_access=guest_access(share))
        for share, vcpus in zip(rows["write_percent"], rows["vcpus"], strict=True)
    ]  # fmt: skip
    found = {"variant": rows["write_percent"].map(_written), "vcpus": rows["vcpus"], "metric": BEFOREHAND,
             "published": rows["dirty_memory_time_s"].astype(float), "unit": "s", "role": HELD_OUT,
             "predicted": [run.metrics["dirty_memory_time"] for run in evaluate(cases)]}  # fmt: skip
    return numbers(pd.DataFrame(found), DIRTY_TIME)


def beyond(seed: int = 1) -> pd.DataFrame:
    """Splitting on fault with more vCPUs than were measured: each reading's interval, and what spans them all.

    Returns: ``reading`` (``all``: lowest low, highest high, the chosen one's estimate), ``vcpus``, ``estimate``,
    ``low``, ``high`` (s).
    """
    rows = []
    for name in PLAUSIBLE:
        fit = growth_fit(f"{name}-all")
        case = fit.scenario.variants["shadow, 100 % written"]
        frame = predict(case, fit=fit.estimate, vcpus=BEYOND, metrics=["dirty_memory_time"], seed=seed).frame
        rows.append(frame[["vcpus", "estimate", "low", "high"]].assign(reading=name))
    found = pd.concat(rows, ignore_index=True)[["reading", "vcpus", "estimate", "low", "high"]]
    best = found[found["reading"] == CHOSEN].set_index("vcpus")["estimate"]
    span = found.groupby("vcpus").agg(low=("low", "min"), high=("high", "max")).reset_index()
    return pd.concat([found, span.assign(reading="all", estimate=span["vcpus"].map(best))], ignore_index=True)
