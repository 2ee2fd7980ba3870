# SPDX-License-Identifier: BSD-3-Clause
"""A measured host to costs: what `simlib.host` measured, the costs that follow, and what was held out beside the model.

Costs come from one vCPU alone: slopes over memory and over ioctls while it is parked or only reads, and the probe of
the lock. Nothing that is held out is among it: CLEAR while vCPUs write, and faults of more than one vCPU. A kernel with
simlib's patches tells more: its statistics how long a fault holds the lock, and its switches what letting go of it
costs (calibrated to), and CLEAR in batches while vCPUs write (held out).

Every time is the median over a run's rounds; what a cost is uncertain by comes from the repeats, resampled as a whole,
with Student's t for their number.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from simlib.engine.result import PS
from simlib.errors import CalibrationError, InputError
from simlib.fits import CostEstimate, Fit
from simlib.fits.estimate import BOUNDS
from simlib.lab.records import FAULT_SITES, switch
from simlib.measurements import data_dir
from simlib.measurements.table import read
from simlib.model.quantities import parse_size
from simlib.model.scenario import Scenario
from simlib.prediction import LEVEL, Progress, evaluate
from simlib.simulation import run_scenario

NAME = "host"
"""First part of the names of a host's tables, unless told otherwise."""

SHIPPED = "host-pvm"
"""First part of the names of the tables that the data set has of a host."""

PAGE = 4096
PAUSE = "1ms"
"""Pause before the one round that is simulated, in which all is dirty from the beginning."""

RESAMPLES = 500
"""Times that the repeats are resampled."""

WORD = 64
"""Pages of a word of the dirty bitmap: the shortest hold that CLEAR can be given."""

LEAST_REPEATS = 3
"""Fewest repeats of a cell that were quiet."""

_CURE = "measure for longer (--duration), or when the host has nothing else to do"

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class HostData:
    """What was measured on a host.

    Attributes
    ----------
    name : str
        First part of the tables' names.
    facts : dict
        The host, as `simlib.host.HostFacts` has it.
    pilot : dict
        Options that every run had, and the pause before each round under load.
    ioctls, rounds : DataFrame
        Rows of the quiet runs; columns as in the tables.
    noise : DataFrame
        A row a run, quiet or not.
    locks : DataFrame
        Rows of the quiet runs of the kernel's statistics of mmu_lock; none without them.
    """

    folder: Path
    name: str
    facts: Mapping[str, Any]
    pilot: Mapping[str, Any]
    ioctls: pd.DataFrame
    rounds: pd.DataFrame
    noise: pd.DataFrame
    locks: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def repeats(self) -> list[int]:
        """Repeats of which any run was quiet."""
        return sorted(set(self.ioctls["seed"].tolist()))

    @cached_property
    def _medians(self) -> dict[tuple[str, str, bool], Cells]:
        """`Cells` by study, phase, and whether they are of rounds after the first, over which the median is taken."""
        pages = self.ioctls["memory_per_vcpu"].map(lambda text: parse_size(text) // PAGE) * self.ioctls["vcpus"]
        frame = self.ioctls.assign(
            late=self.ioctls["round"] > 1, time=self.ioctls["total_time_ns"] * 1000.0, pages=pages,
            batch=_batches(self.ioctls),
        )  # fmt: skip
        found = {}
        for (study, name, late), rows in frame.groupby(["experiment", "name", "late"]):
            index = ["pages", "chunk_pages", "vcpus", "batch"]
            wide = rows.pivot_table(["time", "calls"], index, "seed", aggfunc="median")
            each = wide.index.to_frame()
            time, calls = (wide[what].T.reindex(self.repeats).T.to_numpy(dtype=float) for what in ("time", "calls"))
            sizes, chunks, batches = (each[what].to_numpy(dtype=float) for what in index if what != "vcpus")
            found[str(study), str(name), bool(late)] = Cells(sizes, chunks, batches, time, calls)
        return found

    @cached_property
    def read_stalls(self) -> Floats:
        """Longest gap of a vCPU that only reads while all of its memory is cleared in one ioctl, by repeat, ps."""
        rows = self.rounds[(self.rounds["experiment"] == "reads") & (self.rounds["chunk_pages"] == 0)]
        longest = rows.groupby("seed")["longest_stall_ns"].median().reindex(self.repeats)
        return longest.to_numpy(dtype=float) * 1000

    @cached_property
    def counted_holds(self) -> Floats:
        """How long a parked vCPU's fault holds the lock by the kernel's statistics, by repeat, ps; NaN without them.

        Of the faults that CLEAR's write-protection makes; where these take no lock, of those that map pages.
        """
        none = np.full(len(self.repeats), np.nan)
        if not len(self.locks):
            return none
        seen = self.locks[(self.locks["experiment"] == "parked") & self.locks["site"].isin(FAULT_SITES)]
        for phase in ("rounds", "populate"):
            sums = seen[seen["phase"] == phase].groupby("seed")[["hold_time_ns", "acquisitions"]].sum()
            if len(sums):
                each = sums["hold_time_ns"] / sums["acquisitions"]
                return each.reindex(self.repeats).to_numpy(dtype=float) * 1000
        return none

    def cells(self, study: str, name: str, late: bool) -> Cells:
        """Medians of a study's phase, by cell and repeat."""
        nothing = np.empty((0, len(self.repeats)))
        return self._medians.get((study, name, late), Cells(np.empty(0), np.empty(0), np.empty(0), nothing, nothing))


class Cells(NamedTuple):
    """What a phase took: of each cell its pages in all, of an ioctl, of a hold of the lock (0: the kernel's own way);
    times (ps) and ioctls, by cell and repeat.

    NaN: that run was noisy.
    """

    pages: Floats
    chunk_pages: Floats
    batch: Floats
    time: Floats
    calls: Floats

    def level(self, repeats: NDArray[np.int64], where: NDArray[np.bool_] | None = None) -> Cells:
        """Medians over some of the repeats, by their places; cells without any are left out."""
        time, calls = self.time[:, repeats], self.calls[:, repeats]
        seen = np.isfinite(time).any(axis=1)
        seen = seen if where is None else seen & where
        middle = np.nanmedian(time[seen], axis=1), np.nanmedian(calls[seen], axis=1)
        return Cells(self.pages[seen], self.chunk_pages[seen], self.batch[seen], *middle)


def _batches(rows: pd.DataFrame) -> pd.Series:
    """Pages per hold of the lock that the kernel's switch was set to; 0: a whole ioctl, as without the switch."""
    return rows["switches"].map(lambda text: switch(text, "dirty_log_clear_batch") if isinstance(text, str) else 0)


def load_host(folder: str | Path, name: str = NAME) -> HostData:
    """Read what `simlib host measure` wrote.

    Raises `InputError` if a table is missing or damaged, or too few runs were quiet.

    Parameters
    ----------
    name : str
        First part of the tables' names.
    """
    folder = Path(folder)
    tables = {}
    for part in ("ioctls", "rounds", "noise"):
        path = folder / f"{name}-{part}.csv"
        if not path.is_file():
            raise InputError(
                "host", str(path), "is not there", f"measure first: simlib host measure --out {folder}", flag="DIR"
            )
        tables[part] = read(path)
    try:
        kernels = tables["ioctls"].descriptor["setup"]["kernels"]
        setup = next(iter(kernels.values()))
        facts, pilot = dict(setup["host"]), dict(setup["pilot"])
    except (AttributeError, KeyError, StopIteration, TypeError, ValueError):
        raise InputError(
            "host", f"{name}-ioctls.json", "does not say which host it is of", "measure it again"
        ) from None
    noise = tables["noise"].frame
    keys = [column for column in tables["noise"].key if column in tables["ioctls"].frame.columns]
    quiet = noise[noise["quiet"].astype(str).str.lower() == "true"][keys]
    statistics = folder / f"{name}-locks.csv"
    data = HostData(
        folder,
        name,
        facts,
        pilot,
        tables["ioctls"].frame.merge(quiet, on=keys),
        tables["rounds"].frame.merge(quiet, on=keys),
        noise,
        read(statistics).frame.merge(quiet, on=keys) if statistics.is_file() else pd.DataFrame(),
    )
    if len(data.repeats) < LEAST_REPEATS:
        raise CalibrationError(
            f"{len(quiet)} of {len(noise)} runs were quiet, in {len(data.repeats)} repeats; at least {LEAST_REPEATS} "
            f"are needed: {_CURE}"
        )
    return data


def shipped_host() -> HostData:
    """A host that was measured, as the data set has it: what a folder of one's own would be.

    Examples
    --------
    >>> shipped_host().facts["architecture"]
    'x86-shadow-paging'
    """
    return load_host(data_dir() / "collected", SHIPPED)


def host_scenario(data: HostData, vcpus: int = 1, memory_per_vcpu: int | None = None) -> Scenario:
    """The host as a scenario, with CLEAR while its guest writes; its costs are in its fit."""
    facts = data.facts
    hugetlb = data.pilot["base"].get("backing", "").startswith("anonymous_hugetlb")
    blocks = hugetlb and facts["architecture"] != "x86-shadow-paging"
    load = data.ioctls[data.ioctls["experiment"] == "load"]
    size = memory_per_vcpu or max(parse_size(text) for text in (load if len(load) else data.ioctls)["memory_per_vcpu"])
    return Scenario.parse(
        {
            "machine": {
                "name": machine_name(facts),
                "cores": facts["cores"],
                "sockets": facts["sockets"],
                "threads_per_core": facts["threads_per_core"],
            },
            "guest": {
                "vcpus": vcpus,
                "memory_per_vcpu": size,
                "backing": "hugetlb_2mb" if blocks else "4k",
            },
            "policy": {"architecture": facts["architecture"]},
            "workload": {"kind": "clear_under_load", "iterations": 1, "pause": PAUSE},
        }
    )


def machine_name(facts: Mapping[str, Any]) -> str:
    """A name for a host, of its CPU and how many it has.

    Examples
    --------
    >>> machine_name({"cpu": "AMD EPYC", "cpus": [0, 1]})
    'host-amd-epyc-2'
    """
    words = re.sub(r"[^a-z0-9]+", "-", str(facts["cpu"]).lower()).strip("-") or "unknown"
    return f"host-{words}-{len(facts['cpus'])}"


# -- costs -----------------------------------------------------------------------------------------------


def calibrate_host(data: HostData, seed: int = 1, *, progress: Progress = lambda text, share: None) -> Fit:
    """The costs of a host with their intervals.

    Returns: As a fit file holds it: ``write_fit`` saves it. Raises `CalibrationError` if too few cells were quiet to
    determine what every prediction needs.

    Parameters
    ----------
    seed : int
        Of the resampling, of the simulated probe and of the replications.
    progress : callable
        Told what is being done, and the share of it that is done.
    """
    random = np.random.default_rng(seed)
    repeats = np.arange(len(data.repeats))
    best = _values(data, repeats)
    probe = _Probe(data, seed)
    found = best | probe.solve(best)
    draws = []
    for _ in range(RESAMPLES):
        values = _values(data, random.choice(repeats, len(repeats)))
        draws.append(values | probe.near(values, random))
    names = tuple(name for name in found if name in BOUNDS and all(_known(draw.get(name)) for draw in draws))
    bounds = {name: BOUNDS[name] for name in names}
    centre = np.array([_within(found[name], bounds[name]) for name in names])
    logs = np.log([[_within(draw[name], bounds[name]) for name in names] for draw in draws])
    dof = max(len(repeats) - 1, 1)
    covariance = np.atleast_2d(np.cov(logs, rowvar=False)) * len(repeats) / dof
    half = stats.t.ppf(0.5 + LEVEL / 2, dof) * np.sqrt(np.diag(covariance))
    estimate = CostEstimate(names, np.log(centre), covariance, dof, 0.0, {})
    at_bound = [not bounds[n][0] < c < bounds[n][1] for n, c in zip(names, centre, strict=True)]
    parameters = pd.DataFrame(
        {"name": names, "value": centre, "low": centre * np.exp(-half), "high": centre * np.exp(half),
         "at_bound": at_bound, "determined": ~np.array(at_bound)}
    )  # fmt: skip
    held = held_out(data, estimate, seed, progress)
    seen = held.assign(variant="", train=False, error=held["model"] / held["value"] - 1)
    clear = seen[seen["metric"] == "clear_dirty_log_time"]["error"]
    stall = seen[seen["metric"] == "longest_stall"]["error"]
    discrepancy = _deviation(clear)
    spread = {"longest_stall": _deviation(stall) / discrepancy} if discrepancy else {}
    meta = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "dataset": f"{data.name}: {data.facts['cpu']}, {len(data.facts['cpus'])} CPUs, Linux {data.facts['kernel']}",
        "train": "one vCPU, parked or reading, and the probe of the lock; no observation below",
        "seed": seed,
        "pages_per_vcpu": None,
        "level": LEVEL,
        "valid": {"all_determined": not any(at_bound), "repeats": len(repeats)},
    }
    return Fit(host_scenario(data), replace(estimate, discrepancy=discrepancy, spread=spread), parameters, seen, meta)


def _deviation(errors: pd.Series) -> float:
    """Root mean square of the logarithms of model over measured."""
    return float(np.sqrt(np.mean(np.log1p(errors) ** 2))) if len(errors) else 0.0


def _known(value: float | None) -> bool:
    return value is not None and np.isfinite(value)


def _within(value: float, bounds: tuple[float, float]) -> float:
    """A value, or the bound that it lies beyond."""
    return float(np.clip(value, *bounds))


def _values(data: HostData, repeats: NDArray[np.int64]) -> dict[str, float]:
    """Costs and what the probe saw, of some repeats by their places: picoseconds, counts."""

    def level(study: str, name: str, late: bool) -> Cells:
        return data.cells(study, name, late).level(repeats)

    values: dict[str, float] = {}
    first, later, clear = (
        level("parked", "write", False),
        level("parked", "write", True),
        level("parked", "clear", True),
    )
    values["guest_access"] = slope(first.pages, first.time)
    values["fault"] = slope(later.pages, later.time)
    populated, enabled = level("parked", "populate", False), level("enable", "enable", False)
    values["populate_block"] = slope(populated.pages, populated.time) - values["fault"]
    values["clear_page"] = slope(clear.pages, clear.time)
    values["enable_page"] = slope(enabled.pages, enabled.time)
    chunks, reads = level("chunks", "clear", True), level("reads", "clear", False)
    whole = clear.pages == (chunks.pages[0] if len(chunks.pages) else 0)
    calls, times = np.append(chunks.calls, clear.calls[whole]), np.append(chunks.time, clear.time[whole])
    values["ioctl"] = slope(calls, times)
    values["interrupt"] = slope(reads.calls, reads.time) - values["ioctl"]
    probes, idle = (level("probe", name, True) for name in ("probe", "probe_idle"))
    if len(probes.pages) and len(idle.pages):
        values["probe_ioctl"] = values["clear_ioctl"] = float(idle.time[0] / idle.calls[0])
        values["probes"], values["probe_time"] = float(probes.calls[0]), float(probes.time[0])
        values["probe_pages"] = float(probes.pages[0])
        values["flush"] = values["ioctl"] - values["probe_ioctl"]
    words = level("reacquire", "clear", True)
    many, one = (words.time[words.batch == batch] for batch in (WORD, 0))
    if len(many) == len(one):
        values["reacquire"] = slope(words.pages[words.batch == WORD] / WORD, many - one)
    holds = data.counted_holds[repeats]
    if np.isfinite(holds).any():
        values["counted_hold"] = float(np.nanmedian(holds))
    stalls = data.read_stalls[repeats]
    if np.isfinite(stalls).any():
        values["kick"] = float(np.nanmedian(stalls)) - values["guest_access"]
    return values


def slope(x: Floats, y: Floats) -> float:
    """Slope of a line through times whose relative deviations are alike; NaN without two different `x`.

    Examples
    --------
    >>> round(slope(np.array([1.0, 2.0, 4.0]), np.array([12.0, 14.0, 18.0])), 9)
    2.0
    """
    if len(set(x.tolist())) < 2:
        return float("nan")
    weights = 1 / y**2
    x_mean, y_mean = np.average(x, weights=weights), np.average(y, weights=weights)
    return float(np.sum(weights * (x - x_mean) * (y - y_mean)) / np.sum(weights * (x - x_mean) ** 2))


JITTER = 0.3
"""Coefficient of variation that the simulated faults are given, so that probes and faults do not fall into step."""

TRANSFER = (60e3, 3.0)
"""A cache line's transfer where the probe says little: picoseconds, and the factor within which it lies with `LEVEL`.
Within a CCX of an EPYC 7R13 it takes 23 ns, within its socket 107 ns (data/published/core-to-core-latency)."""

_PRIOR_DEVIATION = float(np.log(TRANSFER[1]) / stats.norm.ppf(0.5 + LEVEL / 2))

_RESOLVED = 0.01
"""Relative deviation to which the model has to give the probes and the time that were seen."""

_COUNTED = 0.02
"""The same of a hold that the kernel's statistics timed, in which half of their two reads of the clock are: some 10 ns
of one that is at least as many times as long as a fault's (docs/lab.md)."""

_STEP = 0.1
"""Step of the logarithms for a derivative."""

_PROBE_PAGES = 16384


@dataclass
class _Probe:
    """The probe of the lock: which hold, and which transfer of a cache line, give as many probes in as long a time.

    The probe says little of the transfer, which has a prior. Where the kernel's statistics timed the hold, that is one
    more thing to agree with.
    """

    data: HostData
    seed: int

    def solve(self, values: Mapping[str, float]) -> dict[str, float]:
        """`fault_hold`, `line_transfer` and `fault_exit`, by Gauss and Newton's method on the simulated probe."""
        if not all(_known(values.get(name)) for name in ("probes", "fault", "guest_access", "probe_ioctl")):
            raise CalibrationError(f"no quiet run of the probe of the lock, or of parked vCPUs: {_CURE}")
        blocked = (values["probe_time"] - values["probes"] * values["probe_ioctl"]) / values["probe_pages"]
        most = values["fault"] - values["guest_access"]
        x = np.log([np.clip(blocked, 0.05 * most, 0.9 * most), TRANSFER[0]])
        for _ in range(8):
            seen, self.slopes = self._linear(x, values)
            step = self._step(self._target(values) - seen, np.log(TRANSFER[0]) - x[1], self._counted(values) - x[0])
            x = self._clipped(x + np.clip(step, -0.7, 0.7), values)
            if np.abs(step).max() < 0.01:  # below what repeats differ by
                break
        self.solved, self.solved_target, self.solved_hold = x, self._target(values), self._counted(values)
        return self._costs(x, values)

    def near(self, values: Mapping[str, float], random: np.random.Generator) -> dict[str, float]:
        """The same for values that differ little, to first order, with a transfer drawn from its prior."""
        step = self._step(self._target(values) - self.solved_target, random.normal(0.0, _PRIOR_DEVIATION),
                          self._counted(values) - self.solved_hold)  # fmt: skip
        return self._costs(self._clipped(self.solved + step, values), values)

    def _step(self, missing: Floats, prior: float, counted: float) -> Floats:
        """Least squares: what is missing, how far the transfer's logarithm is from what it shall be, and the hold's."""
        rows = np.vstack([self.slopes / _RESOLVED, [0.0, 1 / _PRIOR_DEVIATION]])
        wanted = np.append(missing / _RESOLVED, prior / _PRIOR_DEVIATION)
        if np.isfinite(counted):
            rows, wanted = np.vstack([rows, [1 / _COUNTED, 0.0]]), np.append(wanted, counted / _COUNTED)
        return np.asarray(np.linalg.lstsq(rows, wanted, rcond=None)[0])

    def _target(self, values: Mapping[str, float]) -> Floats:
        """Logarithms of what was seen: probes and time for each page."""
        return np.log([values["probes"] / values["probe_pages"], values["probe_time"] / values["probe_pages"]])

    @staticmethod
    def _counted(values: Mapping[str, float]) -> float:
        """Logarithm of the hold that the kernel's statistics timed; NaN without them."""
        return float(np.log(values.get("counted_hold", np.nan)))

    def _clipped(self, x: Floats, values: Mapping[str, float]) -> Floats:
        most = 0.98 * (values["fault"] - values["guest_access"])
        low = np.log([BOUNDS["fault_hold"][0], BOUNDS["line_transfer"][0]])
        return np.asarray(np.clip(x, low, np.log([most, BOUNDS["line_transfer"][1]])))

    def _costs(self, x: Floats, values: Mapping[str, float]) -> dict[str, float]:
        hold, transfer = np.exp(x).tolist()
        outside = values["fault"] - values["guest_access"] - hold
        return {"fault_hold": hold, "line_transfer": transfer, "fault_exit": outside}

    def _linear(self, x: Floats, values: Mapping[str, float]) -> tuple[Floats, Floats]:
        """What the model sees, and by how much each unknown changes it."""
        points = x + np.array([[0, 0], [_STEP, 0], [0, _STEP]])
        seen = np.array([self._simulated(point, values) for point in points])
        return seen[0], ((seen[1:] - seen[0]) / _STEP).T

    def _simulated(self, x: Floats, values: Mapping[str, float]) -> Floats:
        probing = {"workload": {"kind": "lock_probe", "iterations": 2}}
        case = host_scenario(self.data, 1, _PROBE_PAGES * PAGE).changed(probing)
        costs = self._costs(x, values) | {"guest_access": values["guest_access"], "clear_ioctl": values["probe_ioctl"]}
        whole = {name: round(max(value, 1000.0)) for name, value in costs.items()}
        run = run_scenario(case.with_costs(**whole, fault_jitter=JITTER), seed=self.seed)
        seen = run.value("lock_probes[2]"), run.value("dirty_memory_time[2]") / PS
        return np.log(np.array(seen) / _PROBE_PAGES)


# -- what was held out ---------------------------------------------------------------------------------------

SEEDS = 60
"""Replications of each cell that is held out, each with costs drawn from the estimate."""


def preempted(cpus: int, vcpus: int) -> int:
    """vCPUs that share a CPU with the clearing thread: the test pins that first, and begins again with the first CPU.

    Examples
    --------
    >>> preempted(2, 1), preempted(2, 2), preempted(8, 8)
    (0, 1, 1)
    """
    return 1 if vcpus >= cpus else 0


def held_out(
    data: HostData, estimate: CostEstimate, seed: int = 1, progress: Progress = lambda text, share: None
) -> pd.DataFrame:
    """What was measured and not calibrated to, beside the model.

    Returns: ``study``, ``vcpus``, ``chunk_pages``, ``batch`` (pages per hold of the lock; 0: an ioctl), ``metric``;
    ``value`` (median over rounds and repeats, s), ``value_low`` and ``value_high`` (its interval of `LEVEL`, of the
    median); ``model`` (median over replications with drawn costs), ``model_low`` and ``model_high`` (between which
    `LEVEL` of them lie).
    """
    random = np.random.default_rng([seed, 7])
    cells = _measured(data)
    columns = [*_CELL, "metric", "value", "value_low", "value_high", "model", "model_low", "model_high"]
    if not len(cells):
        return pd.DataFrame(columns=columns)
    cases, places = [], []
    keys = list(dict.fromkeys(cells[[*_CELL, "memory"]].itertuples(index=False, name=None)))
    for place, key in enumerate(keys):
        case = _case(data, *key)
        for _ in range(SEEDS):
            cases.append(estimate.apply(case, estimate.draw(random)))
            places.append(place)
    runs = []
    for number in range(SEEDS):
        progress(f"predicting what was held out, replication {number + 1} of {SEEDS}", number / SEEDS)
        runs += evaluate(cases[number::SEEDS], pages_per_vcpu=None, seed=seed + number)
    by_key = {key: [runs[number * len(keys) + place] for number in range(SEEDS)] for place, key in enumerate(keys)}
    out = []
    for *cell, memory, metric, value, value_low, value_high in cells.to_numpy().tolist():
        found = [run.value(_METRIC[metric]) for run in by_key[*cell, memory]]
        low, middle, high = np.quantile(found, [0.5 - LEVEL / 2, 0.5, 0.5 + LEVEL / 2])
        out.append((*cell, metric, value, value_low, value_high, middle, low, high))
    return pd.DataFrame(out, columns=columns)


_CELL = ["study", "vcpus", "chunk_pages", "batch"]

_METRIC = {
    "clear_dirty_log_time": "clear_dirty_log_time",
    "longest_stall": "longest_stall",
    "dirty_memory_time": "dirty_memory_time[2]",
}


def _case(data: HostData, study: str, vcpus: int, chunk: int, batch: int, memory: int) -> Scenario:
    """The scenario of a cell that is held out."""
    case = host_scenario(data, vcpus, memory)
    if study == "faults":
        return case.changed({"workload": {"kind": "dirty_log_perf_test", "iterations": 2}})
    workload: dict[str, object] = {"preempted_vcpus": preempted(len(data.facts["cpus"]), vcpus)}
    if chunk:
        workload["clear_chunk"] = chunk * PAGE
    policy = {"lets_go": f"pages >= {batch}"} if batch else {}
    return case.changed({"workload": workload, "policy": policy})


def _measured(data: HostData) -> pd.DataFrame:
    """Medians of the cells that are held out, with their intervals."""
    ioctls, rounds = (
        frame.assign(study=frame["experiment"], batch=_batches(frame)) for frame in (data.ioctls, data.rounds)
    )
    known, out = [*_CELL, "memory_per_vcpu"], []
    clears = ioctls[ioctls["study"].isin(("load", "batches")) & (ioctls["name"] == "clear")]
    full = clears[clears["dirty_pages"] == clears["range_pages"]]  # as the model's: every page was written again
    longest = rounds.groupby([*known, "seed", "round"])["longest_stall_ns"].max().reset_index()
    stalls = longest.merge(full[[*known, "seed", "round"]], on=[*known, "seed", "round"])
    several = ioctls[(ioctls["study"] == "faults") & (ioctls["name"] == "write") & (ioctls["round"] > 1)]
    several = several[several["vcpus"] > 1]
    parts = (
        ("clear_dirty_log_time", full, "total_time_ns"),
        ("longest_stall", stalls, "longest_stall_ns"),
        ("dirty_memory_time", several, "total_time_ns"),
    )
    for metric, frame, column in parts:
        for cell, rows in frame.groupby(known):
            study, vcpus, chunk, batch, memory = map(str, cell)
            values = rows[column].to_numpy(dtype=float) * 1000 * PS
            middle = float(np.median(values)), *median_interval(values)
            out.append((study, int(vcpus), int(chunk), int(batch), parse_size(memory), metric, *middle))
    return pd.DataFrame(out, columns=[*_CELL, "memory", "metric", "value", "low", "high"])


def median_interval(values: Sequence[float] | Floats) -> tuple[float, float]:
    """Between which of the values their median lies with probability `LEVEL`, whatever their distribution.

    Source: the binomial distribution of how many lie below it.

    Examples
    --------
    >>> median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])
    (2.0, 8.0)
    """

    ordered = np.sort(np.asarray(values, dtype=float))
    below = max(int(stats.binom.ppf((1 - LEVEL) / 2, len(ordered), 0.5)), 1)
    return float(ordered[below - 1]), float(ordered[len(ordered) - below])


def interrupted_shares(fit: Fit) -> pd.DataFrame:
    """Of the CLEAR ioctls under load, the share that had to interrupt a vCPU, as far as their time tells.

    What they took beyond their own costs, over what an interrupt costs; a wait for the lock counts as a part of one.

    Returns: ``vcpus``, ``chunk_pages``, ``measured``, ``predicted``; a row for each cell of several ioctls.
    """
    costs = dict(zip(fit.parameters["name"], fit.parameters["value"], strict=True))
    if "interrupt" not in costs:
        return pd.DataFrame(columns=["vcpus", "chunk_pages", "measured", "predicted"])
    seen = fit.observations
    rows = seen[(seen["study"] == "load") & (seen["metric"] == "clear_dirty_log_time") & (seen["chunk_pages"] > 0)]
    pages = rows["vcpus"] * fit.scenario.guest.pages_per_vcpu
    calls = pages / rows["chunk_pages"]
    own = calls * sum(costs.get(name, 0.0) for name in ("clear_ioctl", "flush")) + pages * costs["clear_page"]
    shares = {
        name: ((rows[column] / PS - own) / (calls * costs["interrupt"])).clip(0, 1)
        for name, column in (("measured", "value"), ("predicted", "model"))
    }
    return rows[["vcpus", "chunk_pages"]].assign(**shares).reset_index(drop=True)
