# SPDX-License-Identifier: BSD-3-Clause
"""The timeline of a run: its waits and holds are those of the engine's books, and so are their modes."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from engine_strategies import SEEDS, TRACE, jobs, scenarios
from hypothesis import given, settings

from simlib._lib.errors import InputError
from simlib.analysis.simulate import simulate
from simlib.model.scenario import Scenario
from simlib.model.steps import Mode
from simlib.simulator.engine import compiled
from simlib.simulator.engine.result import EVENTS, PS
from simlib.simulator.engine.timeline import OWNERS, ownership_over_time, perfetto_trace, timeline
from simlib.simulator.workloads import build

PICO = 1e-12
COLUMNS = ["thread", "lock", "mode", "what", "begin_s", "end_s"]


def migration(architecture, **policy):
    """Three vCPUs that write 6 MiB while it is sent; arm64 takes the lock in both modes."""
    return Scenario.parse(
        {
            "guest": {"vcpus": 3, "memory": "6M"},
            "policy": {"architecture": architecture} | policy,
            "workload": {"kind": "migration", "link": "25Gbit/s", "warm_up": "1ms", "pass_limit": 2,
                         "downtime": "0ps", "clear_chunk": "1M"},
            "costs": {"fault_unlocked": "1us", "fault_hold": "800ns", "line_transfer": "50ns", "line_local": "10ns",
                      "clear_page": "30ns", "flush": "5us", "split_block": "20us", "tlb_invalidate": "400ns"},
        }
    )  # fmt: skip


def books(run):
    """Number of holds, seconds waited and seconds held, by lock and mode: from the engine, and from the timeline."""
    frame = timeline(run)
    from_trace, from_counters = {}, {}
    for lock, name in enumerate(run.job.lock_names):
        for mode in Mode:
            stats = run.raw.lock_stats[lock, mode]
            part = frame[(frame["lock"] == name) & (frame["mode"] == mode.name.lower())]
            long = (part["end_s"] - part["begin_s"]).groupby(part["what"]).sum()
            from_counters[name, mode] = [int(stats[0]), stats[2] * PS, stats[4] * PS]
            from_trace[name, mode] = [int((part["what"] == "hold").sum()), long.get("wait", 0.0), long.get("hold", 0.0)]
    return frame, from_trace, from_counters


@given(scenario=scenarios(), seed=SEEDS)
@settings(max_examples=60)
def test_modes_and_times_agree_with_the_counters_for_any_scenario(scenario, seed):
    job = build(scenario)
    run = SimpleNamespace(job=job, raw=compiled.run(job, seed, trace=TRACE))
    frame, from_trace, from_counters = books(run)
    assert set(frame["mode"]) <= {"read", "write"}
    assert from_trace.keys() == from_counters.keys()
    for key, values in from_counters.items():
        assert from_trace[key] == pytest.approx(values, abs=1e-9), key


@given(job=jobs(), seed=SEEDS)
@settings(max_examples=100)
def test_modes_and_times_agree_with_the_counters_for_any_program(job, seed):
    frame, from_trace, from_counters = books(SimpleNamespace(job=job, raw=compiled.run(job, seed, trace=TRACE)))
    assert (frame["end_s"] >= frame["begin_s"]).all()
    assert frame["begin_s"].is_monotonic_increasing
    for key, (holds, _, held) in from_counters.items():
        assert from_trace[key][::2] == pytest.approx([holds, held], abs=1e-9), key


def test_readers_and_writers_of_one_lock_are_distinguished():
    run = simulate(migration("arm64"), trace=TRACE)
    frame = timeline(run)
    rows = frame[frame["lock"] == "mmu_lock"]
    assert list(frame.columns) == COLUMNS
    assert set(rows.loc[rows["thread"] == "main", "mode"]) == {"write"}
    assert set(rows.loc[rows["thread"] != "main", "mode"]) == {"read"}


def test_a_window_cuts_off_what_reaches_beyond_it():
    run = simulate(migration("x86-shadow"), trace=TRACE)
    whole = timeline(run)
    longest = whole.loc[(whole["end_s"] - whole["begin_s"]).idxmax()]
    middle, width = (longest["begin_s"] + longest["end_s"]) / 2, longest["end_s"] - longest["begin_s"]
    part = timeline(run, (middle - width / 4, middle + width / 4))
    assert part["begin_s"].min() == middle - width / 4
    assert part["end_s"].max() == middle + width / 4
    assert 0 < len(part) < len(whole)
    with pytest.raises(InputError, match="must end after it begins"):
        timeline(run, (1.0, 1.0))


@pytest.mark.parametrize("architecture", ["x86-shadow", "arm64"])
def test_ownership_adds_up_and_is_free_where_the_engine_says_so(architecture):
    run = simulate(migration(architecture), trace=TRACE)
    shares = ownership_over_time(run, 50)
    assert shares["owner"].tolist() == list(OWNERS) * 50
    assert shares.groupby("time_s")["share"].sum().tolist() == pytest.approx([1.0] * 50)
    total = shares.groupby("owner")["share"].mean() * run.raw.end_ps * PICO
    stats = run.raw.lock_stats[0]
    assert 1 - total["free"] / (run.raw.end_ps * PICO) == pytest.approx(run.metrics["mmu_lock_utilisation"], abs=1e-3)
    assert total["write, vCPUs"] + total["write, clearing threads"] == pytest.approx(stats[Mode.WRITE, 4] * PICO)
    assert (total["read"] > 0) == (architecture == "arm64")
    assert total["read"] <= stats[Mode.READ, 4] * PICO  # readers overlap


def test_readers_that_overlap_count_once_and_the_table_gives_the_bins():
    rows = [("vcpu 0", "read", 0, 2), ("vcpu 1", "read", 1, 3), ("vcpu 2", "read", 1, 2), ("clear 0", "write", 3, 4)]
    frame = pd.DataFrame(
        [(thread, "mmu_lock", mode, "hold", float(b), float(e)) for thread, mode, b, e in rows], columns=COLUMNS
    )
    shares = ownership_over_time(frame, 4).pivot_table(index="time_s", columns="owner", values="share")
    assert shares["read"].tolist() == [1, 1, 1, 0]
    assert shares["write, clearing threads"].tolist() == [0, 0, 0, 1]
    later = ownership_over_time(frame, 1, window=(2.0, 6.0)).set_index("owner")["share"]
    assert later.to_dict() == {"write, vCPUs": 0, "write, clearing threads": 0.25, "read": 0.25, "free": 0.5}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [({"bins": 0}, "bins = 0"), ({"lock": "mmu"}, "did you mean 'mmu_lock'"), ({"window": (2, 1)}, "window = 2 to 1")],
)
def test_bad_arguments_are_named(arguments, sentence):
    frame = pd.DataFrame([("main", "mmu_lock", "write", "hold", 0.0, 1.0)], columns=COLUMNS)
    with pytest.raises(InputError, match=sentence):
        ownership_over_time(frame, **arguments)


def test_a_run_without_a_trace_is_refused():
    run = simulate(migration("x86-shadow"))
    for show in (timeline, ownership_over_time, perfetto_trace):
        with pytest.raises(InputError, match="the run was not traced"):
            show(run)


def test_perfetto_has_the_same_waits_and_holds():
    run = simulate(migration("arm64"), trace=TRACE)
    slices = [row for row in perfetto_trace(run)["traceEvents"] if row["ph"] == "X"]
    frame = timeline(run)
    assert len(slices) == len(frame)
    assert sum(row["dur"] for row in slices) * 1e-6 == pytest.approx((frame["end_s"] - frame["begin_s"]).sum())
    events = [row for row in perfetto_trace(run)["traceEvents"] if row["ph"] == "i"]
    shown = ("fault", "retry", "barrier", "scan", "stamp", "lap", "signal", "kick")
    assert len(events) == np.isin(run.raw.trace[:, 2], [EVENTS.index(name) for name in shown]).sum()
