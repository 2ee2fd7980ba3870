# SPDX-License-Identifier: BSD-3-Clause
"""A sweep's rows: the same however they were computed, whole, and what `simlib simulate` says of each."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib

import numpy as np
import pandas as pd
import polars
import pytest
from small_sweep import TABLES, rows

from simlib import Scenario, calibrate, choose
from simlib._lib import parallel
from simlib._lib.errors import InputError, SimlibError
from simlib.analysis.calibrate import sobol_indices
from simlib.analysis.predict import predict
from simlib.analysis.simulate import run_scenario
from simlib.analysis.sweep import Pool, batch, driver, load, read_grid, refused, run, store
from simlib.measurements import data_dir


def test_two_workers_and_small_batches_give_the_same_to_the_bit(grid, undisturbed, tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "MOST_BATCH", 3)
    found = run(grid, tmp_path / "out", workers=2)
    assert (found.points, found.refused) == (48, 16)
    for name in ("results", "refused"):
        pd.testing.assert_frame_equal(rows(tmp_path / "out", name), rows(undisturbed, name), check_exact=True)


def test_a_row_can_be_simulated_again_from_what_it_says(undisturbed):
    row = rows(undisturbed).iloc[7]
    scenario = Scenario.parse(tomllib.loads(row["scenario"]))
    runs = [run_scenario(scenario, seed=int(row["seed"]) + n).metrics for n in range(row["replications"])]
    assert np.mean([one["precopy_duration"] for one in runs]) == row["precopy_duration"]
    assert row["precopy_duration_low"] <= row["precopy_duration"] <= row["precopy_duration_high"]
    assert 2 <= row["replications"] <= 4


def test_policies_at_a_place_have_common_random_numbers_and_keys_of_their_own(undisturbed):
    frame = rows(undisturbed)
    assert frame["key"].is_unique
    seeds = frame[["vcpus", "access_interval", "seed"]].drop_duplicates()
    assert len(seeds) == seeds["seed"].nunique() == 8


def test_refused_points_stand_beside_the_results_with_their_rule(undisturbed):
    frame = refused(undisturbed)
    assert (frame["vcpus"] == 3).all()
    assert set(frame["field"]) == {"guest.memory"}
    assert frame["rule"].str.contains("must be a multiple of 6M for 3 vCPUs").all()
    assert sorted([*frame["point"], *rows(undisturbed)["point"]]) == list(range(48))


def test_results_have_labelled_dimensions(undisturbed):
    found = load(undisturbed)
    assert dict(found.sizes) == {"architecture": 2, "vcpus": 3, "access_interval": 4, "policy": 2}
    one = found.sel(architecture="riscv", vcpus=2, access_interval=5_000_000, policy="every-64")
    row = rows(undisturbed).query("architecture == 'riscv' and vcpus == 2 and access_interval == 5_000_000")
    row = row[row["policy"] == "every-64"].iloc[0]
    assert one["passes"].item() == row["passes"]
    assert one["key"].item() == row["key"]
    assert np.isnan(found["passes"].sel(vcpus=3)).all()


DUCKDB = """
import json, sys, duckdb
found = duckdb.sql(f"SELECT * FROM '{sys.argv[1]}/**/*.parquet' ORDER BY point")
json.dump([found.columns, found.fetchall()], sys.stdout)
"""
# In a process of its own: where another has frozen its garbage, DuckDB complains of leaks at the end.


def test_pandas_duckdb_and_polars_read_the_folder_as_it_stands(undisturbed):
    """As docs/sweeps.md has it: the same columns, rows and partitions, to the bit."""
    folder = undisturbed / "results"
    frame = pd.read_parquet(folder).sort_values("point")
    told = subprocess.run([sys.executable, "-c", DUCKDB, folder], capture_output=True, text=True, check=True).stdout
    columns, values = json.loads(told)
    of_duckdb = dict(zip(columns, zip(*values, strict=True), strict=True))
    of_polars = polars.scan_parquet(folder).sort("point").collect().to_dict(as_series=False)
    assert set(of_duckdb) == set(of_polars) == set(frame.columns)
    assert {"architecture", "scenario", "seed", "version", "key"} <= set(frame.columns)
    for name, column in frame.items():
        mine = [None if pd.isna(value) else value for value in column.tolist()]
        for theirs in (of_duckdb[name], of_polars[name]):
            assert [None if value != value else value for value in theirs] == mine, name  # noqa: PLR0124  # NaN


def test_a_sampled_design_has_its_places_as_coordinates(tmp_path):
    grid = read_grid(TABLES | {"design": {"kind": "sobol", "points": 4}, "architectures": [], "axes": {
        "guest": {"vcpus": {"low": 1, "high": 8, "scale": "log"}, "backing": ["4k", "hugetlb_2mb"]}}})  # fmt: skip
    run(grid, tmp_path / "out", workers=1)
    found = load(tmp_path / "out")
    assert dict(found.sizes) == {"architecture": 1, "place": 4, "policy": 2}
    assert found["vcpus"].dims == ("place",)
    assert set(found["backing"].values) == {"4k", "hugetlb_2mb"}


def test_what_is_finished_is_not_repeated_and_what_is_damaged_is(grid, undisturbed, tmp_path, monkeypatch):
    out = tmp_path / "out"
    monkeypatch.setattr(store, "BETWEEN_S", 0.0)
    monkeypatch.setattr(store, "SHARE", 0.0)
    monkeypatch.setattr(driver, "MOST_BATCH", 5)
    run(grid, out, workers=1)
    parts = sorted(out.glob("results/*/part-*.parquet"))
    assert len(parts) > 4
    lost = pd.read_parquet(parts[0])["point"].tolist() + pd.read_parquet(parts[1])["point"].tolist()
    parts[0].write_bytes(parts[0].read_bytes()[:-100])
    content = bytearray(parts[1].read_bytes())
    content[len(content) // 2] ^= 1
    parts[1].write_bytes(content)
    parts[2].with_name(f".{parts[2].name}.part").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="is damaged"):
        load(out)
    told = []
    assert run(grid, out, resume=True, workers=1, announce=told.append).kept == 48 - len(lost)
    assert [text.split(" ")[0] for text in told[:-1]] == [str(parts[0]), str(parts[1])]
    pd.testing.assert_frame_equal(rows(out), rows(undisturbed), check_exact=True)
    assert run(grid, out, resume=True).kept == 48
    assert not list(out.rglob("*.part"))


def test_a_folder_belongs_to_one_grid_and_one_driver(grid, undisturbed, tmp_path):
    with pytest.raises(InputError, match="holds this sweep already; give resume=True"):
        run(grid, undisturbed)
    with pytest.raises(InputError, match="holds a sweep of another grid"):
        run(read_grid(TABLES | {"seed": 2}), undisturbed, resume=True)
    (tmp_path / "mine.txt").touch()
    with pytest.raises(InputError, match=r"holds mine\.txt, which is no sweep's"):
        run(grid, tmp_path)
    with store.opened(tmp_path / "out", grid, resume=False), pytest.raises(SimlibError, match="another process is at"):
        run(grid, tmp_path / "out", resume=True)


def test_a_sweep_goes_on_with_the_costs_that_it_began_with_or_not_at_all(tmp_path, monkeypatch):
    tables = TABLES | {"costs": "median", "axes": {"host": {"name": ["ampere-altra", "nobody-s"]}}}
    out, began = tmp_path / "out", read_grid(tables)
    run(began, out, workers=1)
    data = shutil.copytree(data_dir(), tmp_path / "data", ignore=shutil.ignore_patterns("published", "collected"))
    monkeypatch.setenv("SIMLIB_DATA", str(data))
    assert run(read_grid(tables), out, resume=True).kept == began.points
    for name in ("fits/ampere-altra.json", "priors/costs.toml"):
        content = (data / name).read_bytes()
        (data / name).write_bytes(content + b"\n")
        with pytest.raises(InputError, match="holds a sweep of another grid, or of other fits or priors"):
            run(read_grid(tables), out, resume=True)
        monkeypatch.setattr(batch, "_checked", set())
        with pytest.raises(SimlibError, match="a worker has another version of simlib, other fits or other priors"):
            batch.run_batch(began, 0, 1, 60.0)
        (data / name).write_bytes(content)
    (data / "fits" / "host-amd-epyc-2.json").unlink()  # of no machine of the grid
    assert run(read_grid(tables), out, resume=True).kept == began.points


def test_each_runs_in_other_processes_with_the_same_results():
    scenario = Scenario.parse({"guest": {"memory_per_vcpu": "2M"}}).with_costs(
        fault_unlocked="700ns", fault_hold="600ns", line_transfer="50ns", fault_jitter=0.3
    )
    here = predict(scenario, [1, 2, 3]).frame
    told = []
    with Pool(2) as pool, parallel.use_executor(pool):
        there = predict(scenario, [1, 2, 3], progress=lambda *of: told.append(of)).frame
    pd.testing.assert_frame_equal(here, there, check_exact=True)
    assert told[-1] == ("predicting", 1.0)


@pytest.mark.study
def test_calibrations_indices_and_choices_take_the_same_executor():
    """Profile intervals and sensitivities, too: to the bit what threads give."""
    asked = Scenario.parse(
        {
            "guest": {"memory_per_vcpu": "2M", "memslot_aligned": False},
            "policy": {"architecture": "x86-shadow-paging"},
            "costs": {"line_transfer": "60ns", "fault_jitter": 0.3},
            "calibration": {"costs": ["fault_unlocked", "fault_hold"]},
        }
    )
    table = pd.DataFrame(
        {"vcpus": [1, 2, 3, 4, 6, 8], "dirty_memory_time_s": [0.001, 0.0013, 0.0017, 0.0021, 0.003, 0.0039]}
    )
    guest = Scenario.parse({
        "guest": {"vcpus": 2, "memory": "8M"}, "policy": {"architecture": "arm64"},
        "workload": {"kind": "migration", "pass_limit": 1, "clear_chunk": "1M", "warm_up": "10us", "downtime": "0ps"},
    })  # fmt: skip

    def everything():
        fit = calibrate(asked, table, pages_per_vcpu=256)
        chosen = choose(guest, strategies=["whole-ioctl", "every-64"])
        return fit.parameters, fit.sensitivity, sobol_indices(fit, "", 16), chosen.table, chosen.pairs

    here = everything()
    with Pool(2) as pool, parallel.use_executor(pool):
        there = everything()
    for one, other in zip(here, there, strict=True):
        pd.testing.assert_frame_equal(one, other, check_exact=True)
