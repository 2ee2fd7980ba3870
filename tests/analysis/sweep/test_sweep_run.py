# SPDX-License-Identifier: BSD-3-Clause
"""Rows of a sweep: independent of how they were computed, complete, and equal to single simulations."""

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

from simlib import CalibrationOptions, Scenario, calibrate, choose
from simlib._lib import parallel
from simlib._lib.errors import InputError, SimlibError
from simlib.analysis.calibrate import sobol_indices
from simlib.analysis.predict import predict
from simlib.analysis.simulate import run_scenario
from simlib.analysis.sweep import Pool, batch, driver, load, read_grid, refused, run, store
from simlib.measurements import data_dir


def test_results_are_bitwise_identical_with_two_workers_and_small_batches(grid, undisturbed, tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "MAX_BATCH", 3)
    result = run(grid, tmp_path / "out", workers=2)
    assert (result.points, result.refused) == (48, 16)
    for name in ("results", "refused"):
        pd.testing.assert_frame_equal(rows(tmp_path / "out", name), rows(undisturbed, name), check_exact=True)


def test_a_row_can_be_reproduced_from_its_scenario_and_seed(undisturbed):
    row = rows(undisturbed).iloc[7]
    scenario = Scenario.parse(tomllib.loads(row["scenario"]))
    runs = [run_scenario(scenario, seed=int(row["seed"]) + n).metrics for n in range(row["replications"])]
    assert np.mean([metrics["precopy_duration"] for metrics in runs]) == row["precopy_duration"]
    assert row["precopy_duration_low"] <= row["precopy_duration"] <= row["precopy_duration_high"]
    assert 2 <= row["replications"] <= 4


def test_policies_at_a_place_have_common_random_numbers_and_distinct_keys(undisturbed):
    frame = rows(undisturbed)
    assert frame["key"].is_unique
    seeds = frame[["vcpus", "access_interval", "seed"]].drop_duplicates()
    assert len(seeds) == seeds["seed"].nunique() == 8


def test_refused_points_are_stored_with_their_rule(undisturbed):
    frame = refused(undisturbed)
    assert (frame["vcpus"] == 3).all()
    assert set(frame["field"]) == {"guest.memory"}
    assert frame["rule"].str.contains("must be a multiple of 6M for 3 vCPUs").all()
    assert sorted([*frame["point"], *rows(undisturbed)["point"]]) == list(range(48))


def test_results_have_labelled_dimensions(undisturbed):
    dataset = load(undisturbed)
    assert dict(dataset.sizes) == {"architecture": 2, "vcpus": 3, "access_interval": 4, "policy": 2}
    point = dataset.sel(architecture="riscv", vcpus=2, access_interval=5_000_000, policy="every-64")
    row = rows(undisturbed).query("architecture == 'riscv' and vcpus == 2 and access_interval == 5_000_000")
    row = row[row["policy"] == "every-64"].iloc[0]
    assert point["passes"].item() == row["passes"]
    assert point["key"].item() == row["key"]
    assert np.isnan(dataset["passes"].sel(vcpus=3)).all()


DUCKDB = """
import json, sys, duckdb
result = duckdb.sql(f"SELECT * FROM '{sys.argv[1]}/**/*.parquet' ORDER BY point")
json.dump([result.columns, result.fetchall()], sys.stdout)
"""
# In a separate process: DuckDB reports leaks at exit in a process that called gc.freeze().


def test_pandas_duckdb_and_polars_read_the_folder_directly(undisturbed):
    """As docs/sweeps.md says: the same columns, rows and partitions, bitwise."""
    folder = undisturbed / "results"
    frame = pd.read_parquet(folder).sort_values("point")
    output = subprocess.run([sys.executable, "-c", DUCKDB, folder], capture_output=True, text=True, check=True).stdout
    columns, values = json.loads(output)
    of_duckdb = dict(zip(columns, zip(*values, strict=True), strict=True))
    of_polars = polars.scan_parquet(folder).sort("point").collect().to_dict(as_series=False)
    assert set(of_duckdb) == set(of_polars) == set(frame.columns)
    assert {"architecture", "scenario", "seed", "version", "key"} <= set(frame.columns)
    for name, column in frame.items():
        expected = [None if pd.isna(value) else value for value in column.tolist()]
        for values_read in (of_duckdb[name], of_polars[name]):
            assert [None if value != value else value for value in values_read] == expected, name  # noqa: PLR0124  # NaN


def test_a_sampled_design_has_its_places_as_coordinates(tmp_path):
    grid = read_grid(TABLES | {"design": {"kind": "sobol", "points": 4}, "architectures": [], "axes": {
        "guest": {"vcpus": {"low": 1, "high": 8, "scale": "log"}, "backing": ["4k", "hugetlb_2mb"]}}})  # fmt: skip
    run(grid, tmp_path / "out", workers=1)
    dataset = load(tmp_path / "out")
    assert dict(dataset.sizes) == {"architecture": 1, "place": 4, "policy": 2}
    assert dataset["vcpus"].dims == ("place",)
    assert set(dataset["backing"].values) == {"4k", "hugetlb_2mb"}


def test_damaged_parts_are_computed_again_and_others_are_not(grid, undisturbed, tmp_path, monkeypatch):
    out = tmp_path / "out"
    monkeypatch.setattr(store, "FLUSH_INTERVAL_S", 0.0)
    monkeypatch.setattr(store, "FLUSH_SHARE", 0.0)
    monkeypatch.setattr(driver, "MAX_BATCH", 5)
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
    messages = []
    assert run(grid, out, resume=True, workers=1, announce=messages.append).kept == 48 - len(lost)
    assert [text.split(" ")[0] for text in messages[:-1]] == [str(parts[0]), str(parts[1])]
    pd.testing.assert_frame_equal(rows(out), rows(undisturbed), check_exact=True)
    assert run(grid, out, resume=True).kept == 48
    assert not list(out.rglob("*.part"))


def test_a_folder_belongs_to_one_grid_and_one_driver(grid, undisturbed, tmp_path):
    with pytest.raises(InputError, match="holds this sweep already; give resume=True"):
        run(grid, undisturbed)
    with pytest.raises(InputError, match="holds a sweep of another grid"):
        run(read_grid(TABLES | {"seed": 2}), undisturbed, resume=True)
    (tmp_path / "mine.txt").touch()
    with pytest.raises(InputError, match=r"holds mine\.txt, which does not belong to a sweep"):
        run(grid, tmp_path)
    with (
        store.open_store(tmp_path / "out", grid, resume=False),
        pytest.raises(SimlibError, match="another process uses"),
    ):
        run(grid, tmp_path / "out", resume=True)


def test_a_sweep_is_resumed_only_with_unchanged_costs(tmp_path, monkeypatch):
    tables = TABLES | {"unknown_costs": "median", "axes": {"host": {"name": ["ampere-altra", "nobody-s"]}}}
    out, original = tmp_path / "out", read_grid(tables)
    run(original, out, workers=1)
    data = shutil.copytree(data_dir(), tmp_path / "data", ignore=shutil.ignore_patterns("published", "collected"))
    monkeypatch.setenv("SIMLIB_DATA", str(data))
    assert run(read_grid(tables), out, resume=True).kept == original.points
    for name in ("fits/ampere-altra.json", "priors/costs.toml"):
        content = (data / name).read_bytes()
        (data / name).write_bytes(content + b"\n")
        with pytest.raises(InputError, match="holds a sweep of another grid, or with other fits or priors"):
            run(read_grid(tables), out, resume=True)
        monkeypatch.setattr(batch, "_checked", set())
        with pytest.raises(SimlibError, match="a worker differs from the driver of the sweep in its version of simlib"):
            batch.run_batch(original, 0, 1, 60.0)
        (data / name).write_bytes(content)
    (data / "fits" / "host-amd-epyc-2.json").unlink()  # of no host of the grid
    assert run(read_grid(tables), out, resume=True).kept == original.points


def test_predictions_in_other_processes_have_the_same_results():
    scenario = Scenario.parse({"guest": {"memory_per_vcpu": "2M"}}).with_costs(
        fault_unlocked="700ns", fault_hold="600ns", line_transfer="50ns", fault_jitter=0.3
    )
    here = predict(scenario, [1, 2, 3]).frame
    calls = []
    with Pool(2) as pool, parallel.use_executor(pool):
        there = predict(scenario, [1, 2, 3], progress=lambda *call: calls.append(call)).frame
    pd.testing.assert_frame_equal(here, there, check_exact=True)
    assert calls[-1] == ("predicting", 1.0)


@pytest.mark.study
def test_calibrations_indices_and_choices_use_the_executor():
    """Also profile intervals and sensitivities are bitwise identical to those of threads."""
    scenario = Scenario.parse(
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
        fit = calibrate(scenario, table, options=CalibrationOptions(pages_per_vcpu=256))
        chosen = choose(guest, strategies=["whole-ioctl", "every-64"])
        return fit.parameters, fit.sensitivity, sobol_indices(fit, "", 16), chosen.table, chosen.pairs

    here = everything()
    with Pool(2) as pool, parallel.use_executor(pool):
        there = everything()
    for local, remote in zip(here, there, strict=True):
        pd.testing.assert_frame_equal(local, remote, check_exact=True)
