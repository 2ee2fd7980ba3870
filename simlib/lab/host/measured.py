# SPDX-License-Identifier: BSD-3-Clause
"""What was measured on a host, read back: medians by cell and repeat, of quiet runs alone; and the host as a scenario.

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

from simlib._lib.errors import CalibrationError, InputError
from simlib.lab.host.design import PAGE
from simlib.lab.host.measure import NAME
from simlib.lab.records import FAULT_SITES, batch_of, read_gaps
from simlib.measurements import data_dir
from simlib.measurements.table import read
from simlib.model.quantities import parse_size
from simlib.model.scenario import Scenario

SHIPPED = "host-pvm"
"""First part of the names of the tables that the data set has of a host."""

KICKS = 256
"""Values by which a scenario has how interrupts vary."""

PAUSE = "1ms"
"""Pause before the one round that is simulated, in which all is dirty from the beginning."""

LEAST_REPEATS = 3
"""Fewest repeats of a cell that were quiet."""

CURE = "measure for longer (--duration), or when the host has nothing else to do"

Floats = NDArray[np.float64]


class Cells(NamedTuple):
    """What a phase took: of each cell its pages in all, pages of a hold of the lock (0: the kernel's own way), time
    (ps) and ioctls.
    """

    pages: Floats
    batch: Floats
    time: Floats
    calls: Floats


@dataclass(frozen=True)
class HostData:
    """What was measured on a host."""

    folder: Path
    name: str
    """First part of the tables' names."""
    facts: Mapping[str, Any]
    """The host, as `simlib.lab.host.HostFacts` has it."""
    pilot: Mapping[str, Any]
    """Options that every run had, and the pause before each round under load."""
    ioctls: pd.DataFrame
    rounds: pd.DataFrame
    """Rows of the quiet runs; columns as in the tables."""
    noise: pd.DataFrame
    """A row a run, quiet or not."""
    stalls: pd.DataFrame
    """Rows of the quiet runs, one a vCPU: how many gaps between its accesses were how long."""
    runs: pd.DataFrame
    """Rows of the quiet runs: how many flushes KVM counted."""
    locks: pd.DataFrame = field(default_factory=pd.DataFrame)
    """Rows of the quiet runs of the kernel's statistics of mmu_lock; none without them."""

    @property
    def repeats(self) -> list[int]:
        """Repeats of which any run was quiet."""
        return sorted(set(self.ioctls["seed"].tolist()))

    @cached_property
    def _cells(self) -> dict[tuple[str, str, bool], Cells]:
        """By study, phase, and whether of rounds after the first: times and ioctls by cell and repeat, NaN if noisy."""
        pages = self.ioctls["memory_per_vcpu"].map(lambda text: parse_size(text) // PAGE) * self.ioctls["vcpus"]
        frame = self.ioctls.assign(
            late=self.ioctls["round"] > 1, time=self.ioctls["total_time_ns"] * 1000.0, pages=pages,
            batch=batches(self.ioctls),
        )  # fmt: skip
        found = {}
        for (study, name, late), rows in frame.groupby(["experiment", "name", "late"]):
            index = ["pages", "chunk_pages", "vcpus", "batch"]
            wide = rows.pivot_table(["time", "calls"], index, "seed", aggfunc="median")
            time, calls = (wide[what].T.reindex(self.repeats).T.to_numpy(dtype=float) for what in ("time", "calls"))
            sizes, batch = (wide.index.get_level_values(what).to_numpy(dtype=float) for what in ("pages", "batch"))
            found[str(study), str(name), bool(late)] = Cells(sizes, batch, time, calls)
        return found

    def level(self, study: str, name: str, late: bool, repeats: NDArray[np.int64]) -> Cells:
        """Medians of a study's phase over some of the repeats, by their places; cells without any are left out."""
        if (study, name, late) not in self._cells:
            return Cells(*np.empty((4, 0)))
        pages, batch, time, calls = self._cells[study, name, late]
        time, calls = time[:, repeats], calls[:, repeats]
        seen = np.isfinite(time).any(axis=1)
        return Cells(pages[seen], batch[seen], np.nanmedian(time[seen], axis=1), np.nanmedian(calls[seen], axis=1))

    @cached_property
    def kicks(self) -> list[Floats]:
        """What interrupts of a vCPU that only reads take, by repeat, ps, each with an access.

        These are its longest gaps, as many as KVM counted flushes that interrupted a CPU; none where they are not kept.
        """
        if "gaps" not in self.stalls or "flush_interrupts" not in self.runs:
            return [np.empty(0)] * len(self.repeats)
        found: dict[int, list[Floats]] = {repeat: [np.empty(0)] for repeat in self.repeats}
        counts = self.runs[["experiment", "seed", "chunk_pages", "flush_interrupts"]].dropna()
        for row in self.stalls[self.stalls["experiment"] == "reads"].merge(counts).to_dict("records"):
            gaps = read_gaps([row["gaps"]])
            times = np.repeat((gaps["from"] + gaps["to"]).to_numpy(dtype=float) / 2, gaps["count"])
            found[row["seed"]].append(1000 * np.sort(times)[len(times) - int(row["flush_interrupts"]) :])
        return [np.concatenate(each) for each in found.values()]

    @cached_property
    def counted_holds(self) -> Floats:
        """How long a parked vCPU's fault holds the lock by the kernel's statistics, by repeat, ps; NaN without them.

        Of the faults that CLEAR's write-protection makes; where these take no lock, of those that map pages.
        """
        if len(self.locks):
            seen = self.locks[(self.locks["experiment"] == "parked") & self.locks["site"].isin(FAULT_SITES)]
            for phase in ("rounds", "populate"):
                sums = seen[seen["phase"] == phase].groupby("seed")[["hold_time_ns", "acquisitions"]].sum()
                if len(sums):
                    each = sums["hold_time_ns"] / sums["acquisitions"]
                    return each.reindex(self.repeats).to_numpy(dtype=float) * 1000
        return np.full(len(self.repeats), np.nan)


def batches(rows: pd.DataFrame) -> pd.Series:
    """Pages per hold of the lock that the kernel's switch was set to; 0: a whole ioctl, as without the switch."""
    return rows["switches"].map(lambda text: batch_of(text) if isinstance(text, str) else 0)


def is_quiet(noise: pd.DataFrame) -> pd.Series:
    """Which of the runs were quiet."""
    return noise["quiet"].astype(str).str.lower() == "true"


def load_host(folder: str | Path, name: str = NAME) -> HostData:
    """Read what `simlib host measure` wrote.

    Raises `InputError` if a table is missing or damaged, `CalibrationError` if too few runs were quiet.

    - `name`: first part of the tables' names.
    """
    folder = Path(folder)
    tables = {}
    for part in ("ioctls", "rounds", "noise", "stalls", "runs", "locks"):
        path = folder / f"{name}-{part}.csv"
        if path.is_file():
            tables[part] = read(path)
        elif part != "locks":  # which a stock kernel does not have
            cure = f"measure first: simlib host measure --out {folder}"
            raise InputError("host", str(path), "is not there", cure, flag="DIR")
    try:
        kernels = tables["ioctls"].descriptor["setup"]["kernels"]
        setup = next(iter(kernels.values()))
        facts, pilot = dict(setup["host"]), dict(setup["pilot"])
    except (AttributeError, KeyError, StopIteration, TypeError, ValueError):
        rule = "does not say which host it is of"
        raise InputError("host", f"{name}-ioctls.json", rule, "measure it again") from None
    noise = tables.pop("noise")
    keys = [column for column in noise.key if column in tables["ioctls"].frame.columns]
    quiet = noise.frame[is_quiet(noise.frame)][keys]
    frames = {part: table.frame.merge(quiet, on=keys) for part, table in tables.items()}
    data = HostData(folder, name, facts, pilot, noise=noise.frame, **frames)
    if len(data.repeats) < LEAST_REPEATS:
        raise CalibrationError(
            f"{len(quiet)} of {len(noise.frame)} runs were quiet, in {len(data.repeats)} repeats; at least "
            f"{LEAST_REPEATS} are needed: {CURE}"
        )
    return data


def shipped_host() -> HostData:
    """A host that was measured, as the data set has it: what a folder of one's own would be."""
    return load_host(data_dir() / "collected", SHIPPED)


def host_scenario(data: HostData, vcpus: int = 1, memory_per_vcpu: int | None = None) -> Scenario:
    """The host as a scenario, with CLEAR while its guest writes; its costs are in its fit."""
    facts = data.facts
    hugetlb = data.pilot["base"].get("backing", "").startswith("anonymous_hugetlb")
    blocks = hugetlb and facts["architecture"] != "x86-shadow-paging"
    load = data.ioctls[data.ioctls["experiment"] == "load"]
    size = memory_per_vcpu or max(parse_size(text) for text in (load if len(load) else data.ioctls)["memory_per_vcpu"])
    machine = {key: facts[key] for key in ("cores", "sockets", "threads_per_core")}
    if len(kicks := np.concatenate(data.kicks)):
        spread = np.quantile(kicks, (np.arange(KICKS) + 0.5) / KICKS)
        machine["kick_spread"] = [float(f"{value:.4g}") for value in spread / kicks.mean()]
    return Scenario.parse(
        {
            "host": {"name": machine_name(facts), **machine},
            "guest": {"vcpus": vcpus, "memory_per_vcpu": size, "backing": "hugetlb_2mb" if blocks else "4k"},
            "policy": {"architecture": facts["architecture"]},
            "workload": {"kind": "clear_under_load", "iterations": 1, "pause": PAUSE},
            # Slopes over full words, with the lock's line in each hold, contain the first two; a flush is that of one
            # vCPU, and nothing tells what another one adds beyond the interrupt.
            "calibration": {"included_in_others": ["clear_word", "line_local", "flush_per_vcpu"]},
        }
    )


def machine_name(facts: Mapping[str, Any]) -> str:
    """A name for a host, of its CPU and how many it has.

    >>> machine_name({"cpu": "AMD EPYC", "cpus": [0, 1]})
    'host-amd-epyc-2'
    """
    words = re.sub(r"[^a-z0-9]+", "-", str(facts["cpu"]).lower()).strip("-") or "unknown"
    return f"host-{words}-{len(facts['cpus'])}"
