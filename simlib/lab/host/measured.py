# SPDX-License-Identifier: BSD-3-Clause
"""Measurements of a host: medians by cell and repeat, from quiet runs only; and the host as a scenario.

Every time is the median over a run's rounds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simlib._lib.checkout import require_checkout
from simlib._lib.errors import CalibrationError, InputError
from simlib.lab.host.measure import NAME
from simlib.lab.record_tables import read_gaps
from simlib.lab.records import FAULT_SITES, batch_of
from simlib.measurements import data_dir
from simlib.measurements.table import read
from simlib.model.quantities import parse_size
from simlib.model.scenario import Scenario
from simlib.vmm.qemu_rules import PAGE

KICKS = 256
"""Number of quantiles that describe the distribution of an interrupt's duration in a scenario."""

MIN_REPEATS = 3
"""Minimum number of repeats with a quiet run."""

HINT = "measure for longer (--duration), or while the host is idle"

Floats = NDArray[np.float64]


class Cells(NamedTuple):
    """Medians of a phase by cell: pages, pages per hold of mmu_lock (0: the kernel's default), time (ps), ioctls."""

    pages: Floats
    batch: Floats
    time: Floats
    calls: Floats


@dataclass(frozen=True)
class HostData:
    """Measurements of a host."""

    folder: Path
    name: str
    """Prefix of the tables' names."""
    facts: Mapping[str, Any]
    """Facts about the host, as in `simlib.lab.host.HostFacts`."""
    pilot: Mapping[str, Any]
    """Options of all runs, and the pause before each round under load."""
    ioctls: pd.DataFrame
    rounds: pd.DataFrame
    """Rows of the quiet runs; columns as in the tables."""
    noise: pd.DataFrame
    """A row per run, quiet or not."""
    stalls: pd.DataFrame
    """Rows of the quiet runs, one per vCPU: histogram of the gaps between its accesses."""
    runs: pd.DataFrame
    """Rows of the quiet runs: TLB flushes that KVM counted."""
    locks: pd.DataFrame = field(default_factory=pd.DataFrame)
    """Rows of the quiet runs: the kernel's statistics of mmu_lock; empty on a stock kernel."""

    @property
    def repeats(self) -> list[int]:
        """Repeats with at least one quiet run."""
        return sorted(set(self.ioctls["seed"].tolist()))

    @cached_property
    def _cells(self) -> dict[tuple[str, str, bool], Cells]:
        """Times and ioctl counts by cell and repeat (NaN: noisy); keys: study, phase, true for rounds after round 1."""
        pages = self.ioctls["memory_per_vcpu"].map(lambda text: parse_size(text) // PAGE) * self.ioctls["vcpus"]
        frame = self.ioctls.assign(
            late=self.ioctls["round"] > 1, time=self.ioctls["total_time_ns"] * 1000.0, pages=pages,
            batch=batch_sizes(self.ioctls),
        )  # fmt: skip
        cells = {}
        for (study, name, late), rows in frame.groupby(["experiment", "name", "late"]):
            index = ["pages", "chunk_pages", "vcpus", "batch"]
            wide = rows.pivot_table(["time", "calls"], index, "seed", aggfunc="median")
            time, calls = (wide[what].T.reindex(self.repeats).T.to_numpy(dtype=float) for what in ("time", "calls"))
            sizes, batch = (wide.index.get_level_values(what).to_numpy(dtype=float) for what in ("pages", "batch"))
            cells[str(study), str(name), bool(late)] = Cells(sizes, batch, time, calls)
        return cells

    def phase_medians(self, study: str, name: str, late: bool, repeats: NDArray[np.int64]) -> Cells:
        """Medians of a phase over the repeats with these indices; cells without a quiet repeat are excluded."""
        if (study, name, late) not in self._cells:
            return Cells(*np.empty((4, 0)))
        pages, batch, time, calls = self._cells[study, name, late]
        time, calls = time[:, repeats], calls[:, repeats]
        quiet = np.isfinite(time).any(axis=1)
        return Cells(pages[quiet], batch[quiet], np.nanmedian(time[quiet], axis=1), np.nanmedian(calls[quiet], axis=1))

    @cached_property
    def kicks(self) -> list[Floats]:
        """Interruptions of a vCPU that only reads: durations in ps, each including an access, by repeat.

        These are the vCPU's longest gaps, one for each flush that interrupted a CPU (KVM's count); none if gaps or
        counts are missing.
        """
        if "gaps" not in self.stalls or "flush_interrupts" not in self.runs:
            return [np.empty(0)] * len(self.repeats)
        kicks: dict[int, list[Floats]] = {repeat: [np.empty(0)] for repeat in self.repeats}
        counts = self.runs[["experiment", "seed", "chunk_pages", "flush_interrupts"]].dropna()
        for row in self.stalls[self.stalls["experiment"] == "reads"].merge(counts).to_dict("records"):
            gaps = read_gaps([row["gaps"]])
            times = np.repeat((gaps["from"] + gaps["to"]).to_numpy(dtype=float) / 2, gaps["count"])
            kicks[row["seed"]].append(1000 * np.sort(times)[len(times) - int(row["flush_interrupts"]) :])
        return [np.concatenate(times) for times in kicks.values()]

    @cached_property
    def counted_holds(self) -> Floats:
        """Mean hold in ps of mmu_lock by a parked vCPU's fault, by repeat; NaN without the kernel's statistics.

        The faults are those after CLEAR's write-protection; if these take no lock, the faults that map pages.
        """
        if len(self.locks):
            faults = self.locks[(self.locks["experiment"] == "parked") & self.locks["site"].isin(FAULT_SITES)]
            for phase in ("rounds", "populate"):
                sums = faults[faults["phase"] == phase].groupby("seed")[["hold_time_ns", "acquisitions"]].sum()
                if len(sums):
                    holds = sums["hold_time_ns"] / sums["acquisitions"]
                    return holds.reindex(self.repeats).to_numpy(dtype=float) * 1000
        return np.full(len(self.repeats), np.nan)


def batch_sizes(rows: pd.DataFrame) -> pd.Series:
    """Pages per hold of mmu_lock, from the patched kernel's parameter; 0: the whole ioctl, as on a stock kernel."""
    return rows["switches"].map(lambda text: batch_of(text) if isinstance(text, str) else 0)


def is_quiet(noise: pd.DataFrame) -> pd.Series:
    """True for each quiet run."""
    return noise["quiet"].astype(str).str.lower() == "true"


def load_host(folder: str | Path, name: str = NAME) -> HostData:
    """Load the tables that `simlib host measure` wrote, by the prefix of their names.

    Raises `InputError` if a table is missing or damaged, `CalibrationError` if too few runs were quiet.
    """
    folder = Path(folder)
    tables = {}
    for part in ("ioctls", "rounds", "noise", "stalls", "runs", "locks"):
        path = folder / f"{name}-{part}.csv"
        if path.is_file():
            tables[part] = read(path)
        elif part != "locks":  # a stock kernel has no such table
            hint = f"measure first: simlib host measure --out {folder}"
            raise InputError("host", str(path), "does not exist", hint, flag="DIR")
    try:
        setup = next(iter(tables["ioctls"].descriptor["setup"]["kernels"].values()))
        facts, pilot = dict(setup["host"]), dict(setup["pilot"])
    except (AttributeError, KeyError, StopIteration, TypeError, ValueError):
        rule = "does not identify its host"
        raise InputError("host", f"{name}-ioctls.json", rule, "measure the host again") from None
    noise = tables.pop("noise")
    keys = [column for column in noise.key if column in tables["ioctls"].frame.columns]
    quiet = noise.frame[is_quiet(noise.frame)][keys]
    frames = {part: table.frame.merge(quiet, on=keys) for part, table in tables.items()}
    data = HostData(folder, name, facts, pilot, noise=noise.frame, **frames)
    if len(data.repeats) < MIN_REPEATS:
        raise CalibrationError(
            f"quiet runs: {len(quiet)} of {len(noise.frame)}; repeats with a quiet run: {len(data.repeats)}, but at "
            f"least {MIN_REPEATS} are needed: {HINT}"
        )
    return data


def shipped_host() -> HostData:
    """Load the measured host of the data set. Raises `SimlibError` outside a checkout: a wheel lacks it."""
    require_checkout("the measured host of the data set")
    return load_host(data_dir() / "collected", "host-pvm")


def host_scenario(data: HostData, vcpus: int = 1, memory_per_vcpu: int | None = None) -> Scenario:
    """Return a scenario of the host in which CLEAR runs while the guest writes. Its costs are in the host's fit."""
    facts = data.facts
    hugetlb = data.pilot["base"].get("backing", "").startswith("anonymous_hugetlb")
    huge_pages = hugetlb and facts["architecture"] != "x86-shadow-paging"
    load = data.ioctls[data.ioctls["experiment"] == "load"]
    size = memory_per_vcpu or max(parse_size(text) for text in (load if len(load) else data.ioctls)["memory_per_vcpu"])
    host = {key: facts[key] for key in ("cores", "sockets", "threads_per_core")}
    if len(kicks := np.concatenate(data.kicks)):
        quantiles = np.quantile(kicks, (np.arange(KICKS) + 0.5) / KICKS)
        host["kick_spread"] = [float(f"{value:.4g}") for value in quantiles / kicks.mean()]
    return Scenario.parse(
        {
            "host": {"name": host_name(facts), **host},
            "guest": {"vcpus": vcpus, "memory_per_vcpu": size, "backing": "hugetlb_2mb" if huge_pages else "4k"},
            "policy": {"architecture": facts["architecture"]},
            # All pages are dirty from the start of the simulated round.
            "workload": {"kind": "clear_under_load", "iterations": 1, "pause": "1ms"},
            # Slopes over full words, with the lock's cache line in each hold, include the first two. The flush was
            # measured with one vCPU, and no measurement separates the cost of another vCPU from the interrupt.
            "calibration": {"included_in_others": ["clear_word", "line_local", "flush_per_vcpu"]},
        }
    )


def host_name(facts: Mapping[str, Any]) -> str:
    """Name of a host: its CPU model and the number of its CPUs.

    >>> host_name({"cpu": "AMD EPYC", "cpus": [0, 1]})
    'host-amd-epyc-2'
    """
    model = re.sub(r"[^a-z0-9]+", "-", str(facts["cpu"]).lower()).strip("-") or "unknown"
    return f"host-{model}-{len(facts['cpus'])}"
