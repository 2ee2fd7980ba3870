# SPDX-License-Identifier: BSD-3-Clause
"""The comparison of strategies: what the locks imply, and that nothing is computed beside predict and simulate."""

from __future__ import annotations

import pandas as pd
import pytest

from simlib import measurements, simulate
from simlib.errors import InputError
from simlib.explorer import STRATEGIES, compare, figure, published, shipped_fit, starting_point
from simlib.explorer.strategies import COLOURS, MEASURED_AS, PAGES, VCPUS
from simlib.figures.curves import COLUMNS
from simlib.model.scenario import Scenario

SPIN, TICKET, RWLOCK, LOCKLESS = STRATEGIES


@pytest.fixture(scope="module")
def start() -> Scenario:
    return starting_point()


@pytest.fixture(scope="module")
def frame(start: Scenario) -> pd.DataFrame:
    return compare(start)


def wide(frame: pd.DataFrame) -> pd.DataFrame:
    """Seconds, vCPUs by strategy."""
    return frame.pivot_table(index="vcpus", columns="variant", values="value")


def test_frame_is_tidy_and_in_order(frame: pd.DataFrame) -> None:
    assert tuple(frame.columns) == COLUMNS
    assert frame["variant"].unique().tolist() == list(STRATEGIES)
    assert frame["vcpus"].tolist() == list(VCPUS) * len(STRATEGIES)
    assert frame["kind"].eq("simulated").all()
    assert frame["held_out"].all()
    assert frame[["low", "high"]].isna().all(axis=None)


def test_every_point_is_a_run_of_the_engine(start: Scenario, frame: pd.DataFrame) -> None:
    for name, policy in STRATEGIES.items():
        run = simulate(start.changed({"policy": policy}).with_vcpus(16), seed=1, pages_per_vcpu=PAGES)
        assert wide(frame).loc[16, name] == run.metrics["dirty_memory_time"]


def test_strategies_agree_where_nobody_contends(frame: pd.DataFrame) -> None:
    alone = wide(frame).loc[1]
    assert alone.max() / alone.min() == pytest.approx(1, abs=1e-3)


def test_order_at_64_vcpus(frame: pd.DataFrame) -> None:
    at = wide(frame).loc[64]
    assert at[TICKET] > at[SPIN] > at[RWLOCK]
    assert at[LOCKLESS] <= at[RWLOCK] * 1.002  # both queue for the interconnect; the rest is chance


def test_ticket_lock_loses_with_waiters_and_spinlock_only_saturates(frame: pd.DataFrame) -> None:
    times = wide(frame)
    ratio = (times[TICKET] / times[SPIN]).loc[[8, 16, 32, 64]]
    assert ratio.is_monotonic_increasing
    assert ratio.iloc[0] > 1
    assert times.loc[64, SPIN] / times.loc[16, SPIN] == pytest.approx(4, rel=0.01)


def test_rwlock_and_lockless_end_at_the_interconnect(start: Scenario, frame: pd.DataFrame) -> None:
    """One broadcast a fault, served one at a time: no policy is faster, and these two come within a per cent."""
    assert start.costs.tlb_invalidate is not None
    least = 64 * start.guest.pages_per_vcpu * start.costs.tlb_invalidate * 1e-12
    at = wide(frame).loc[64]
    assert (at > 0.995 * least).all()
    assert at[[RWLOCK, LOCKLESS]].max() < 1.01 * least


def test_lockless_faults_scale_once_nothing_is_shared(start: Scenario) -> None:
    free = wide(compare(start.with_costs(tlb_invalidate=10_000), [1, 64]))
    assert free.loc[64, LOCKLESS] / free.loc[1, LOCKLESS] == pytest.approx(1, abs=0.05)
    assert free.loc[64, RWLOCK] > 2 * free.loc[64, LOCKLESS]  # readers still move the lock word's line


def test_hold_moves_the_spinlock_and_not_the_saturated_rwlock(start: Scenario, frame: pd.DataFrame) -> None:
    assert start.costs.fault_hold is not None
    doubled = wide(compare(start.with_costs(fault_hold=2 * start.costs.fault_hold), [64])).loc[64]
    before = wide(frame).loc[64]
    assert doubled[SPIN] > 1.4 * before[SPIN]
    assert doubled[RWLOCK] == pytest.approx(before[RWLOCK], rel=0.01)


def test_few_pages_stand_for_many(start: Scenario, frame: pd.DataFrame) -> None:
    more = compare(start, pages_per_vcpu=2 * PAGES)
    assert (frame["value"] / more["value"] - 1).abs().max() < 0.01


def test_the_same_twice_and_another_seed(start: Scenario) -> None:
    first = compare(start, [4], pages_per_vcpu=512)
    pd.testing.assert_frame_equal(first, compare(start, [4], pages_per_vcpu=512))
    assert not first["value"].equals(compare(start, [4], pages_per_vcpu=512, seed=2)["value"])


def test_own_strategies_and_metrics(start: Scenario) -> None:
    sections = {"two sections": {**STRATEGIES[SPIN], "fault_lock_sections": 2}}
    frame = compare(start, [8], strategies=sections, metrics=["contentions", "lock_acquisitions"])
    assert frame["metric"].tolist() == ["contentions", "lock_acquisitions"]
    assert frame["variant"].unique().tolist() == ["two sections"]


def test_published_rows_are_the_published_table() -> None:
    rows = published()
    table = measurements.load("arm64-dirty-memory-time").frame
    for name, series in MEASURED_AS.items():
        mine, theirs = rows[rows["variant"] == name], table[table["series"] == series]
        assert mine["vcpus"].tolist() == theirs["vcpus"].tolist()
        assert mine["value"].tolist() == pytest.approx((theirs["dirty_memory_time_ms"] / 1000).tolist())
        assert (mine["held_out"] == (mine["vcpus"] > 8)).all()


def test_start_has_the_calibrated_costs(start: Scenario) -> None:
    values = shipped_fit().parameters.set_index("name")["value"]
    assert start.costs.fault_hold == round(values["fault_hold"])
    assert start.costs.tlb_invalidate == round(values["tlb_invalidate[old test]"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vcpus": []}, "vcpus = : must name at least one"),
        ({"strategies": {}}, "strategies = : must name at least one"),
        ({"metrics": ["contention"]}, "did you mean 'contentions'"),
        ({"strategies": {"mine": {"lock": "mutex"}}}, "policy.lock = mutex"),
        ({"strategies": {"mine": {"locks": "spin"}}}, "did you mean 'lock'"),
    ],
)
def test_wrong_input_is_named(start: Scenario, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        compare(start, **({"vcpus": [1]} | arguments))
    assert message in str(caught.value)


def test_a_missing_cost_is_named() -> None:
    with pytest.raises(InputError, match="fault_exit"):
        compare(Scenario(), [1])


def test_figure_shows_every_strategy_in_its_colour(frame: pd.DataFrame) -> None:
    drawn = figure(pd.concat([frame, published()]))
    for name in STRATEGIES:
        line = next(t for t in drawn.data if t.name == f"{name}, simulated")
        assert line.line.color == COLOURS[name]
        assert list(line.y) == wide(frame)[name].tolist()
    lines = [t.line for t in drawn.data if t.name.endswith(", simulated")]
    assert [line.dash == "solid" for line in lines] == [True, False] * 2  # none hides the one before it
    assert lines[0].width > lines[1].width + 1
    points = {t.legendgroup for t in drawn.data if t.mode == "markers" and t.legendgroup}
    assert points == set(MEASURED_AS)
    assert "simulated" in drawn.layout.title.subtitle.text
    assert "measurements" in drawn.layout.title.subtitle.text
    assert "measurements" not in figure(frame).layout.title.subtitle.text
