# SPDX-License-Identifier: BSD-3-Clause
"""Timeline of lock waits and lock holds, read from the trace of a run, exact to the picosecond.

A trace event that ends a wait (``acquired``) or a hold (``released``) is paired with the preceding event of the same
thread and lock, which began that wait or hold.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simlib._lib.errors import InputError, nearest
from simlib.model.job import Job
from simlib.model.steps import Mode
from simlib.simulator.engine.result import EVENTS, PS, EngineResult


class TracedRun(Protocol):
    """A run with a trace, such as a `simlib.SimulationResult`."""

    @property
    def job(self) -> Job:
        """The programs."""

    @property
    def raw(self) -> EngineResult:
        """The engine's result."""

    @property
    def seed(self) -> int:
        """Seed of the run's random streams."""


OWNERS = ("write, vCPUs", "write, clearing threads", "read", "free")
"""Owners of a lock in `ownership_over_time`."""

_TRY, _ACQUIRED, _RELEASED, _RETRY = (EVENTS.index(name) for name in ("try", "acquired", "released", "retry"))
_MODES = np.array([mode.name.lower() for mode in Mode], dtype=object)


def timeline(result: TracedRun, window: tuple[float, float] | None = None) -> pd.DataFrame:
    """Every wait for a lock and every hold of a traced run, in the order in which they began.

    Returns: ``thread``, ``lock``, ``mode`` (``read`` or ``write``), ``what`` (``wait`` or ``hold``), ``begin_s``,
    ``end_s``. A wait ends when the thread owns the lock, so it includes the transfers of the lock's cache line.
    Lockless updates count as holds, except those that lost a race and were retried. Raises `InputError` if the run was
    not traced, or the window is empty.

    - `result`: result of ``simulate(scenario, trace=N)``.
    - `window`: begin and end, s of simulated time, to which the waits and holds are clipped.

    >>> from simlib import Scenario
    >>> from simlib.analysis.simulate import run_scenario as simulate
    >>> s = Scenario.parse({"guest": {"memory_per_vcpu": "2M"}, "costs": {"fault_hold": "1us", "others": "0ns"}})
    >>> timeline(simulate(s, trace=10_000)).loc[0, ["thread", "lock", "mode", "what"]].tolist()
    ['vcpu 0', 'mmu_lock', 'read', 'hold']
    """
    trace = _ordered(result.raw)
    ends, begins = _pairs(trace)
    waits = trace[ends, 2] == _ACQUIRED
    frame: pd.DataFrame = pd.DataFrame(
        {
            "thread": np.array(result.job.thread_names, dtype=object)[trace[ends, 1]],
            "lock": np.array(result.job.lock_names, dtype=object)[trace[ends, 3]],
            "mode": _MODES[trace[ends, 4]],
            "what": np.where(waits, "wait", "hold").astype(object),
            "begin_s": trace[begins, 0] * PS,
            "end_s": trace[ends, 0] * PS,
        }
    )
    frame = frame[~waits | (trace[begins, 0] < trace[ends, 0])]
    if window is not None:
        begin, end = _span(window)
        frame = frame[(frame["begin_s"] < end) & (frame["end_s"] > begin)]
        frame = frame.assign(begin_s=frame["begin_s"].clip(lower=begin), end_s=frame["end_s"].clip(upper=end))
    return frame.sort_values(["begin_s", "end_s"], kind="stable").reset_index(drop=True)


def ownership_over_time(
    run: TracedRun | pd.DataFrame, bins: int = 200, *, lock: str = "mmu_lock", window: tuple[float, float] | None = None
) -> pd.DataFrame:
    """Share of each time bin in which a lock is held (by owner) or free.

    Returns: ``time_s`` (middle of the bin), ``width_s``, ``owner`` (one of `OWNERS`), ``share``; the shares of a bin
    add up to 1. Overlapping readers count once. Raises `InputError` if the run was not traced or does not take the
    lock, or if `bins` is below 1.

    - `run`: a traced run, or its `timeline`.
    - `window`: begin and end, s of simulated time, between which the bins lie. Default: the whole run or table.

    >>> held = pd.DataFrame({"thread": ["vcpu 0", "main"], "lock": "mmu_lock", "mode": "write", "what": "hold",
    ...                      "begin_s": [0.0, 2.0], "end_s": [1.0, 4.0]})
    >>> ownership_over_time(held, bins=2)["share"].tolist()
    [0.5, 0.0, 0.0, 0.5, 0.0, 1.0, 0.0, 0.0]
    """
    if bins < 1:
        raise InputError("bins", bins, "must be at least 1")
    if isinstance(run, pd.DataFrame):
        frame, whole_run = run, (float(run["begin_s"].min()), float(run["end_s"].max()))
    else:
        frame, whole_run = timeline(run), (0.0, run.raw.end_ps * PS)
    known = sorted(frame["lock"].unique())
    if lock not in known:
        raise InputError("lock", lock, "is not taken in this run", nearest(lock, known))
    held = frame[(frame["lock"] == lock) & (frame["what"] == "hold")]
    begin, end = _span(whole_run if window is None else window)
    edges = np.linspace(begin, end, bins + 1)
    write, vcpu = held["mode"] == "write", held["thread"].str.startswith("vcpu ")
    owned = [_covered(held[selected], edges) / np.diff(edges) for selected in (write & vcpu, write & ~vcpu, ~write)]
    shares = np.column_stack([*owned, 1 - np.sum(owned, axis=0)]).clip(0.0, 1.0)
    return pd.DataFrame(
        {
            "time_s": np.repeat((edges[:-1] + edges[1:]) / 2, len(OWNERS)),
            "width_s": (end - begin) / bins,
            "owner": list(OWNERS) * bins,
            "share": shares.ravel(),
        }
    )


def perfetto_trace(result: TracedRun) -> dict[str, object]:
    """The run's trace in the JSON format that Perfetto and chrome://tracing read.

    It has one track per thread, with a slice for every wait for a lock and every hold, and instants for faults and
    stamps. Raises `InputError` if the run was not traced.

    >>> from simlib import Scenario
    >>> from simlib.analysis.simulate import run_scenario as simulate
    >>> s = Scenario.parse({"guest": {"memory_per_vcpu": "2M"}, "costs": {"fault_unlocked": "1us"}})
    >>> sorted(perfetto_trace(simulate(s, trace=10_000)))
    ['displayTimeUnit', 'otherData', 'traceEvents']
    """
    rows: list[dict[str, object]] = [
        {"ph": "M", "pid": 1, "tid": i, "name": "thread_name", "args": {"name": name}}
        for i, name in enumerate(result.job.thread_names)
    ]
    trace = _ordered(result.raw)
    ends, begins = _pairs(trace)
    began = dict(zip(ends.tolist(), trace[begins, 0].tolist(), strict=True))
    for at, (time, thread, kind, argument, _) in enumerate(trace.tolist()):
        name = EVENTS[kind]
        if at in began:
            begin = began[at]
            if kind == _ACQUIRED and begin == time:
                continue
            label = f"{'wait for' if kind == _ACQUIRED else 'hold'} {result.job.lock_names[argument]}"
            rows.append({"ph": "X", "pid": 1, "tid": thread, "name": label,
                         "ts": begin * 1e-6, "dur": (time - begin) * 1e-6})  # fmt: skip
        elif name not in ("try", "mapped", "end"):
            label = str(result.job.stamps[argument]) if name == "stamp" else f"{name} {argument}"
            rows.append({"ph": "i", "pid": 1, "tid": thread, "name": label, "ts": time * 1e-6, "s": "t"})
    return {"displayTimeUnit": "ns", "otherData": {"simulated": True, "seed": result.seed}, "traceEvents": rows}


def _span(window: tuple[float, float]) -> tuple[float, float]:
    begin, end = window
    if not begin < end:
        raise InputError("window", f"{begin:g} to {end:g} s", "must end after it begins")
    return begin, end


def _ordered(raw: EngineResult) -> NDArray[np.int64]:
    """The trace in order of time; simultaneous events in the order in which they were recorded."""
    if not len(raw.trace):
        raise InputError("result.raw.trace", "empty", "the run was not traced", "simulate with trace=1_000_000")
    return raw.trace[np.argsort(raw.trace[:, 0], kind="stable")]


def _pairs(trace: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of the events that end a wait or a hold, and of those that began it."""
    lock_rows = np.flatnonzero(np.isin(trace[:, 2], (_TRY, _ACQUIRED, _RELEASED, _RETRY)))
    lock_rows = lock_rows[np.lexsort((lock_rows, trace[lock_rows, 3], trace[lock_rows, 1]))]
    ends = np.flatnonzero(np.isin(trace[lock_rows, 2], (_ACQUIRED, _RELEASED)))
    return lock_rows[ends], lock_rows[ends - 1]


def _covered(held: pd.DataFrame, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds of each bin during which at least one of the holds is in progress."""
    if held.empty:
        return np.zeros(len(edges) - 1)
    held = held.sort_values("begin_s")
    ends = np.maximum.accumulate(held["end_s"].to_numpy(dtype=float))
    begins = np.maximum(held["begin_s"].to_numpy(dtype=float), np.concatenate([[-np.inf], ends[:-1]]))
    lasting = begins < ends  # a hold within an earlier one adds nothing
    begins, ends = begins[lasting], ends[lasting]
    total = np.concatenate([[0.0], np.cumsum(ends - begins)])
    corners = np.column_stack([begins, ends]).ravel()
    until = np.column_stack([total[:-1], total[1:]]).ravel()
    return np.diff(np.interp(edges, corners, until))
