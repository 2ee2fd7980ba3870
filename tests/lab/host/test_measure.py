# SPDX-License-Identifier: BSD-3-Clause
"""Measurement, calibration and page of a simulated host, whose costs are known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from simulated_host import COSTS, FACTS, SimulatedHost

import simlib
from simlib._lib.errors import CalibrationError, InputError
from simlib.lab.boot import BootOutcome
from simlib.lab.host import fit as fitting
from simlib.lab.host import held_out, measure, noise
from simlib.lab.host.facts import detect_dirty_tracking, page_tables, parse_cpus, read_facts
from simlib.lab.host.held_out import compare_held_out
from simlib.lab.host.measured import load_host
from simlib.lab.host.program import StressProgram
from simlib.model.quantities import parse_duration

CELLS = 21
"""Runs per repeat on this small host."""
QUIET = noise.Snapshot(0.0, 0.0, 0.0, 0.0, ())


@pytest.fixture
def host(monkeypatch, tmp_path):
    """A simulated host, on which `measure_host` runs."""
    return simulated_on(monkeypatch, tmp_path, SimulatedHost())


def simulated_on(monkeypatch, tmp_path, simulated):
    def outcome(cell, program, progress=None):
        lines = cell.script().splitlines()
        out = simulated.output(dict(cell.test), cell.parameters.get("dirty_log_clear_batch", 0))
        return BootOutcome(tuple(out if line.startswith("run ") else "" for line in lines), "5e", "test", 1.0, 1.0)

    monkeypatch.setenv("SIMLIB_LAB", str(tmp_path / "lab"))
    monkeypatch.setattr(measure, "native_target", lambda: "x86_64")
    monkeypatch.setattr(measure, "read_facts", lambda cpus: FACTS)
    monkeypatch.setattr(
        measure, "build_program", lambda source, progress: StressProgram(tmp_path / "test", {"program": "x"})
    )
    monkeypatch.setattr(measure, "run_native", outcome)
    monkeypatch.setattr(noise, "take_snapshot", lambda cpus: QUIET)
    monkeypatch.setattr(measure.time, "sleep", lambda seconds: None)
    return simulated


def measured(folder, **options):
    return measure.measure_host(folder, measure.MeasurementPlan(duration_s=0.0, **options))


@pytest.fixture(scope="module", params=["stock", "patched"])
def folder(request, tmp_path_factory):
    """Folder of a measured and calibrated host, with a stock kernel and with a patched kernel."""
    patched = request.param == "patched"
    with pytest.MonkeyPatch.context() as patch:
        parent = tmp_path_factory.mktemp("host")
        simulated_on(patch, parent, SimulatedHost(patched=patched))
        if patched:
            (parent / "dirty_log_clear_batch").write_text("0\n")
            patch.setattr(measure, "PARAMETERS", parent)
        measurement = measured(parent / "host")
        assert (measurement.repeats, measurement.noisy, len(measurement.records)) == (3, 0, 3 * (CELLS + 18 * patched))
        patch.setattr(held_out, "SEEDS", 16)
        fit = fitting.calibrate_host(load_host(measurement.folder))
    simlib.measurements.fits.save_fit(fit, measurement.folder / "fit.json")
    return measurement.folder


def is_patched(folder):
    return (folder / "host-locks.csv").is_file()


def test_known_costs_are_recovered(folder):
    fit = simlib.load_fit(folder / "fit.json")
    parameters = fit.parameters.set_index("name")
    assert set(parameters.index) == set(COSTS) - (set() if is_patched(folder) else {"reacquire"})
    for name in parameters.index:
        truth, row = parse_duration(COSTS[name]), parameters.loc[name]
        tolerance = {
            "line_transfer": 1.0,
            "fault_hold": 0.03 if is_patched(folder) else 0.08,
            "flush": 0.3,
            "populate_block": 0.1,
            "interrupt": 0.1,
            "reacquire": 0.25,
        }.get(name, 0.05)
        assert row["value"] == pytest.approx(truth, rel=tolerance), name
        assert row["low"] <= row["value"] <= row["high"], name


def test_held_out_cells_are_predicted(folder):
    cells = simlib.load_fit(folder / "fit.json").observations
    assert sorted(set(zip(cells["metric"], cells["vcpus"], strict=True))) == [
        ("clear_dirty_log_time", 1), ("clear_dirty_log_time", 2), ("dirty_memory_time", 2), ("longest_stall", 1),
        ("longest_stall", 2),
    ]  # fmt: skip
    assert not cells["train"].any()
    batches = {(study, batch) for study, batch in zip(cells["study"], cells["batch"], strict=True) if batch}
    assert batches == ({("batches", 512), ("batches", 64)} if is_patched(folder) else set())
    ratio = cells["model"] / cells["value"]
    assert ratio[cells["metric"] != "longest_stall"].between(0.8, 1.25).all()
    assert ratio.between(0.4, 2.5).all()


def test_a_cost_at_either_bound_is_not_determined(folder, monkeypatch):
    """The true costs lie beyond these bounds."""
    bounds = {"clear_page": (50_000.0, 1e9), "fault_unlocked": (1.0, 1e6)}  # 25 ns and 1500 ns, in ps
    monkeypatch.setattr(fitting, "BOUNDS", fitting.BOUNDS | bounds)
    monkeypatch.setattr(fitting, "predict_held_out", lambda *_: simlib.load_fit(folder / "fit.json").observations)
    fit = fitting.calibrate_host(load_host(folder))
    parameters = fit.parameters.set_index("name")
    assert set(parameters.index[parameters["at_bound"]]) == set(bounds)
    assert (parameters["determined"] == ~parameters["at_bound"]).all()
    assert (parameters.loc["clear_page", "value"], parameters.loc["fault_unlocked", "value"]) == (50_000.0, 1e6)
    assert not fit.meta["valid"]["all_determined"]


def test_the_page_and_the_choice_need_only_the_folder(folder, ask, monkeypatch):
    assert ask("host", "report", folder)[0] == 0
    page = (folder / "report.html").read_text("utf-8")
    for text in ("Held-out measurements", "Simulated CPU, 2 CPUs", "shadow paging (NPT is off)", "fault_hold"):
        assert text in page
    calls = {}

    def choose(case, **options):
        calls["case"] = case
        raise InputError("enough", "", "seen")

    monkeypatch.setattr(simlib, "choose", choose, raising=False)
    ask("choose", "--fit", folder / "fit.json")
    case = calls["case"]
    assert (case.policy.architecture, case.host.cores, case.guest.vcpus) == ("x86-shadow-paging", 2, 2)


def test_finished_runs_are_not_repeated(host, tmp_path):
    measured(tmp_path / "h")
    before = len(host.runs)
    (removed := next((tmp_path / "h" / "runs").glob("02-*-load.json"))).unlink()
    measured(tmp_path / "h")
    assert len(host.runs) == before + 1
    assert removed.is_file()
    seeds = {run["seed"] for run in host.runs if "seed" in run}
    assert seeds == {1, 2, 3}


def test_a_folder_of_another_host_is_not_changed(host, tmp_path, monkeypatch):
    measured(tmp_path / "h")
    monkeypatch.setattr(measure, "read_facts", lambda cpus: replace(FACTS, kernel="6.19.0"))
    with pytest.raises(
        InputError, match=r"holds a measurement with different facts \(host\.json\); choose another folder, or use"
    ):
        measured(tmp_path / "h")
    assert measured(tmp_path / "h", restart=True).facts.kernel == "6.19.0"


def test_a_guest_that_is_emulated_runs_in_user_mode(host, tmp_path):
    host.emulated = 50.0
    measurement = measured(tmp_path / "h")
    assert all(run.get("user") for run in host.runs[1:])
    state = json.loads((tmp_path / "h" / "host.json").read_text("utf-8"))
    assert state["emulated_instructions_per_access"] == pytest.approx(50.0, rel=0.01)
    assert measurement.records[0].content["provenance"]["pilot"]["base"] == {"user": True}


def test_noisy_runs_are_flagged_and_not_used(host, tmp_path, monkeypatch):
    busy = iter(range(10**9))
    monkeypatch.setattr(noise, "take_snapshot", lambda cpus: noise.Snapshot(*(float(next(busy)),) * 3, 0.0, ()))
    with pytest.raises(InputError, match=r"other programs ran for 50\.0 % of the time"):
        measured(tmp_path / "h")
    measurement = measured(tmp_path / "h", allow_busy=True)
    assert measurement.noisy == len(measurement.records)
    with pytest.raises(
        CalibrationError,
        match=f"quiet runs: 0 of {3 * CELLS}; repeats with a quiet run: 0, but at least 3 are needed: measure",
    ):
        load_host(tmp_path / "h")


@pytest.mark.parametrize("setup", [5, {"kernels": [1]}, {"kernels": {"x": {"host": 1, "pilot": {}}}}, {"kernels": {}}])
def test_a_folder_that_does_not_identify_its_host_is_refused(tmp_path, setup):
    for path in (simlib.measurements.data_dir() / "collected").glob("host-pvm-*"):
        few = path.read_bytes().splitlines(keepends=True)[: 20 if path.suffix == ".csv" else None]
        (tmp_path / path.name.replace("host-pvm", "host")).write_bytes(b"".join(few))
    for path in tmp_path.glob("*.json"):
        content = json.loads(path.read_text("utf-8").replace("host-pvm", "host"))
        path.write_text(json.dumps(content | {"setup": setup}), "utf-8")
    with pytest.raises(InputError, match=r"host-ioctls.json: does not identify its host"):
        load_host(tmp_path)


def test_the_error_for_an_empty_folder_names_the_command(tmp_path):
    with pytest.raises(InputError, match=r"host-ioctls.csv: does not exist; measure first: simlib host measure --out"):
        load_host(tmp_path)


@pytest.mark.parametrize(
    ("modules", "name"),
    [
        ({"kvm_intel": "", "kvm_intel.ept": "Y", "kvm.tdp_mmu": "Y"}, "x86-tdp"),
        ({"kvm_amd": "", "kvm_amd.npt": "1", "kvm.tdp_mmu": "N"}, "x86-shadow"),
        ({"kvm_amd": "", "kvm_amd.npt": "0", "kvm.tdp_mmu": "Y"}, "x86-shadow-paging"),
        ({"kvm_pvm": "", "kvm.tdp_mmu": "N"}, "x86-shadow-paging"),
    ],
)
def test_the_page_tables_are_read_from_the_modules(modules, name):
    assert page_tables("x86_64", "6.12.1", modules)[0] == name


def test_facts_of_a_host_with_two_sockets(tmp_path):
    for cpu in range(4):
        place = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        place.mkdir(parents=True)
        (place / "physical_package_id").write_text(f"{cpu // 2}\n")
        (place / "core_id").write_text("0\n")
    for node in range(2):
        place = tmp_path / f"sys/devices/system/node/node{node}"
        place.mkdir(parents=True)
        (place / "cpulist").write_text(f"{2 * node}-{2 * node + 1}\n")
    for name, text in {"kvm/parameters/tdp_mmu": "Y", "kvm_intel/parameters/ept": "Y"}.items():
        (path := tmp_path / "sys/module" / name).parent.mkdir(parents=True)
        path.write_text(text + "\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("model name\t: A CPU\nflags\t\t: fpu hypervisor\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal:       1024 kB\n")
    facts = read_facts([0, 1, 2, 3], tmp_path)
    assert (facts.cores, facts.sockets, facts.threads_per_core) == (2, 2, 2)
    assert (facts.nodes, facts.cpu, facts.memory_bytes) == ({"0": (0, 1), "1": (2, 3)}, "A CPU", 2**20)
    assert facts.hypervisor
    assert facts.architecture == "x86-tdp"


@pytest.mark.parametrize(
    ("parameters", "tracking"),
    [
        ({"kvm_intel/parameters/pml": "Y"}, "pml"),
        ({"kvm_intel/parameters/pml": "N"}, "write_protect"),
        ({"kvm_amd/parameters/npt": "1"}, "write_protect"),
        ({"kvm_amd/parameters/npt": "1", "kvm_amd/parameters/pml": "Y"}, "pml"),
        ({"kvm/parameters/tdp_mmu": "Y"}, ""),
        ({}, ""),
    ],
)
def test_dirty_tracking_is_read_from_the_modules(tmp_path, parameters, tracking):
    for name, text in parameters.items():
        (path := tmp_path / "sys/module" / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert detect_dirty_tracking(tmp_path) == tracking


def test_a_host_with_pml_is_not_measured(host, monkeypatch, tmp_path):
    logs = replace(FACTS, modules={**FACTS.modules, "kvm_intel.pml": "Y"})
    monkeypatch.setattr(measure, "read_facts", lambda cpus: logs)
    with pytest.raises(InputError, match=r"pml = Y: must be off while measuring.*load KVM's module with pml=0"):
        measured(tmp_path / "h")
    assert not (tmp_path / "h").exists()


@pytest.mark.parametrize("text", ["a", "3-1", "1;2"])
def test_bad_lists_of_cpus(text):
    with pytest.raises(InputError, match="must be numbers and ranges; write 0-3,8"):
        parse_cpus(text)


def test_the_documentation_has_the_numbers_of_the_shipped_host():
    cells = compare_held_out(simlib.load_fit(simlib.measurements.data_dir() / "fits" / "host-amd-epyc-2.json"))
    small = cells[(cells["metric"] == "clear_dirty_log_time") & (cells["chunk_pages"] == 64)]
    ratio = small.set_index("vcpus")["ratio"]
    data = load_host(simlib.measurements.data_dir() / "collected", "host-pvm")
    words = " ".join((Path(__file__).parents[3] / "docs" / "on-a-real-host.md").read_text("utf-8").split())
    assert f"{len(data.repeats)} repeats in five minutes" in words
    assert f"for {int(cells['within'].sum())} of {len(cells)} held-out cells are within 15 %" in words
    sentence = (
        f"for CLEAR of 64 pages is {ratio[2]:.2f} times the measured time with two vCPUs, "
        f"and {ratio[1]:.2f} times with one"
    )
    assert sentence in words
    assert 0.85 < ratio[2] < 1.15


def test_the_shipped_fit_comes_from_its_data():
    data = load_host(simlib.measurements.data_dir() / "collected", "host-pvm")
    values = fitting.values_of(data, np.arange(len(data.repeats)))
    fit = simlib.load_fit(simlib.measurements.data_dir() / "fits" / "host-amd-epyc-2.json")
    shipped = fit.parameters.set_index("name")["value"]
    for name in ("guest_access", "clear_page", "clear_ioctl", "interrupt", "kick", "populate_block"):
        assert values[name] == pytest.approx(shipped[name], rel=1e-6), name
