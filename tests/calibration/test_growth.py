# SPDX-License-Identifier: BSD-3-Clause
"""Why x86's faults take longer with more vCPUs: the kept fits against the published tables, and the bars."""

import numpy as np
import pytest

from simlib.calibration import growth, parked, search, x86
from simlib.calibration.fit import calibrate
from simlib.model.machine import MACHINES

KEPT = sorted(path.stem for path in growth.folder().glob("*.json"))


def test_the_machine_is_what_the_tables_say():
    machine = MACHINES[parked.MACHINE]
    assert machine.remote_ratio == x86.remote_ratio()
    known = dict(x86.lock_free_pass())
    assert dict(machine.slowdown) == pytest.approx(known, abs=5e-4)


def test_no_fit_is_kept_that_no_reading_has():
    names = {f"{name}-few" for name in growth.readings()} | {f"{name}-all" for name in growth.PLAUSIBLE}
    assert set(KEPT) == names | {"arm64-grows", "arm64-constant", "shadow-paging-few"}


@pytest.mark.study
@pytest.mark.parametrize(("name", "followed"), [(growth.CHOSEN, 1), ("constant", search.FOLLOWED)])
def test_a_kept_fit_is_what_the_tables_give(name, followed, monkeypatch):
    """``simlib data growth`` writes it; without profile intervals, and with fewer starts, the values are equal."""
    monkeypatch.setattr(search, "FOLLOWED", followed)
    kept = growth.growth_fit(f"{name}-few")
    again = calibrate(growth.reading_problem(growth.readings()[name]), profile=False)
    assert kept.estimate.logs == pytest.approx(again.estimate.logs, abs=1e-4)
    assert not kept.observations[kept.observations["vcpus"].isin([32, 64])]["train"].any()


def test_ept_calibrated_on_16_vcpus_predicts_32_and_64():
    table = growth.reading_table().set_index("reading")
    for name in (growth.CHOSEN, "published-latency", "sockets-of-32", "sockets-of-63"):
        row = table.loc[name]
        assert abs(row["trained"]) < 0.10, name
        assert max(abs(row["at_32"]), abs(row["at_64"])) < 0.12, name
    worst = table[["at_32", "at_64"]].abs().max(axis=1)
    assert worst["constant"] > 0.3  # what the bar is about
    assert worst[["busy", "sockets", "clusters-of-4", "clusters-of-8"]].min() > 0.12


def test_shadow_paging_takes_the_growth_over():
    rows = growth.growth_fit("shadow-paging-few").observations
    assert rows["train"].tolist() == (rows["vcpus"] <= growth.FEWER_VCPUS).tolist()
    held_out = rows[~rows["train"]].groupby("vcpus")["error"].agg(lambda error: error.abs().max())
    assert held_out[[16, 32]].max() < 0.12
    assert held_out[64] < 0.20


def test_a_published_time_is_drawn_once_whatever_the_readings():
    curves = growth.curves()
    assert not curves.duplicated(["panel", "reading", "vcpus", "kind"]).any()
    measured = curves[curves["kind"] == "measured"]
    tables = [growth.growth_fit(f"{name}-few").observations for name in (growth.CHOSEN, "shadow-paging")]
    published = [table[table["variant"].isin(["shadow, 100 % written", growth._written(100)])] for table in tables]
    pages = [table["vcpus"] * 2**18 for table in published]  # 1 GiB of 4 KiB pages each
    assert measured["us_per_page"].tolist() == pytest.approx(
        np.concatenate([1e6 * table["value"] / count for table, count in zip(published, pages, strict=True)])
    )


def test_what_is_split_beforehand_is_predicted_by_share_written():
    """No cost was fitted to any of it; with few vCPUs and few writes what a read takes decides."""
    table = growth.split_beforehand(growth.growth_fit("shadow-paging-few").estimate)
    assert table["error"].abs().max() < 0.45
    assert table[table["vcpus"].isin([2, 32, 64])]["error"].abs().max() < 0.15


def test_arm64_needs_no_growth():
    found = growth.arm64_growth()
    chosen = growth.growth_fit(f"{growth.CHOSEN}-all").parameters.set_index("name").loc["crowding"]
    assert found.p > 0.1
    assert found.high < chosen["low"] / 3


@pytest.mark.study
def test_intervals_widen_beyond_the_data():
    table = growth.beyond()
    span = table[table["reading"] == "all"].set_index("vcpus")
    one = table[table["reading"] == growth.CHOSEN].set_index("vcpus")
    assert (span["low"] <= one["low"]).all()
    assert (span["high"] >= one["high"]).all()
    widths = np.log(span["high"] / span["low"])
    assert widths[128] > widths[96] > np.log(one["high"] / one["low"])[96]
