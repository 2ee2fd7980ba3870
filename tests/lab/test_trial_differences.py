# SPDX-License-Identifier: BSD-3-Clause
"""Differences of a trial: false positives, exact counts, the texts, and trials with fake kernels."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path

import numpy as np
import pytest
from lab_fakes import OUTPUT, built, outcome

from simlib._lib.errors import InputError, SimlibError
from simlib.lab import FailRule, Trial, TrialOptions, bisect_series, load_trial, try_each_patch, try_series
from simlib.lab.experiment import CellSequence
from simlib.lab.qemu import Qemu
from simlib.lab.records import load_record, save_record, split_record
from simlib.lab.source import Source
from simlib.lab.trial.cells import DESIGNS, MMU_MODES, cells, designs
from simlib.lab.trial.differences import ALIKE, CHANGED, EQUAL, TOO_FEW, assign_verdicts, compare
from simlib.lab.trial.kernels import WITH_SERIES, WITHOUT_SERIES, Kernel
from simlib.lab.trial.quantities import COUNT, TIME, TrialQuantity, quantities
from simlib.lab.trial.tree import Staged

trying, mode_trial = (importlib.import_module(f"simlib.lab.trial.{name}") for name in ("run", "mode_trial"))

KNOWN = '"when":"end","name":"mmu_lock_clear_write_acquired","value":'
QUICK = TrialOptions(quick=True)
NUMBERS = [TrialQuantity(f"site{number}", "time", TIME) for number in range(100)]


def sample_runs(rng, times=1.0, spread=0.3, runs=12):
    """Runs of a kernel with noise in all numbers."""
    return [
        {name: float(np.exp(rng.normal(0, spread))) * 1e6 * (times if name == NUMBERS[0] else 1) for name in NUMBERS}
        for _ in range(runs)
    ]


def test_equal_kernels_rarely_have_differences():
    rng = np.random.default_rng(1)
    tries = [assign_verdicts(compare("x86_64/npt", "load", sample_runs(rng), sample_runs(rng))) for _ in range(200)]
    wrong = sum(any(number.verdict == CHANGED for number in numbers) for numbers in tries)
    assert wrong <= 6  # 2 are to be expected; more in one of 200 such tests


def test_only_the_number_that_changed_is_reported():
    rng = np.random.default_rng(2)
    numbers = assign_verdicts(
        compare("x86_64/npt", "load", sample_runs(rng, spread=0.1), sample_runs(rng, times=1.5, spread=0.1))
    )
    [changed] = [number for number in numbers if number.verdict == CHANGED]
    assert changed.quantity == NUMBERS[0]
    assert changed.low < 1.5 < changed.high


def test_too_few_runs_come_with_the_number_that_suffices():
    rng = np.random.default_rng(3)
    few = assign_verdicts(compare("m", "load", sample_runs(rng, runs=3), sample_runs(rng, runs=3)))
    assert {number.verdict for number in few} == {TOO_FEW}
    needed = sorted(number.runs for number in few)[len(few) // 2]
    many = assign_verdicts(compare("m", "load", sample_runs(rng, runs=needed), sample_runs(rng, runs=needed)))
    assert sum(number.verdict == ALIKE for number in many) > len(many) / 3


SITE, SMALL = TrialQuantity("clear write (rounds)", "acquisitions", COUNT), TrialQuantity("clear", "time", TIME)


@pytest.mark.parametrize(
    ("name", "base", "changed", "verdict"),
    [(SITE, 2, 3, CHANGED), (SITE, 2, 34, CHANGED), (SITE, 2, 2, EQUAL), (SITE, 0, 1, CHANGED),
     (SMALL, 1000, 1005, ALIKE), (SMALL, 1000, 1020, CHANGED)],
)  # fmt: skip
def test_numbers_without_scatter_are_compared_by_value(name, base, changed, verdict):
    [number] = assign_verdicts(compare("m", "parked", [{name: base}] * 6, [{name: changed}] * 6))
    assert number.verdict == verdict
    assert number.new == (base == 0)


def trial(*differences, **fields):
    source = {"version": "6.12.1", "origin": "directory", "sha256": "ab" * 32, "series_sha256": "cd" * 32}
    about = {
        "command": "simlib lab try mine", "patches": ["KVM: drop it"], "series_sha256": "5e" * 32, "parameters": {},
        "source": source, "boots": 6,
    }  # fmt: skip
    defaults = {"same": (), "failures": {}, "differences": tuple(assign_verdicts(differences))}
    return Trial(about, ("x86_64/npt",), **{**defaults, **fields})


def test_the_text_fits_a_mail_and_names_what_differs():
    differences = compare("x86_64/npt", "parked", [{SITE: 2.0, SMALL: 5.0}] * 3, [{SITE: 32.0, SMALL: 5.0}] * 3)
    text = trial(*differences).summary()
    assert max(map(len, text.splitlines())) <= 72
    assert "clear write (rounds): acquisitions" in text
    assert "× 16" in text
    assert "other numbers: 1 equal" in " ".join(text.split())
    assert "the same kernel" in trial(same=("x86_64/npt",)).summary()
    assert "FAILS: it panics" in trial(failures={"x86_64/npt": "it panics"}).summary()
    assert trial(*differences).plot().data[0].x.tolist() == [pytest.approx(16)]
    with pytest.raises(InputError, match="no rows: the figure needs at least one row"):
        trial(same=("x86_64/npt",)).plot()
    assert "| parked | clear write (rounds): acquisitions | 2 | 32 | × 16 |" in trial(*differences).markdown()


def test_a_written_trial_is_loaded_unchanged(tmp_path):
    written = trial(*compare("x86_64/npt", "parked", [{SITE: 2.0, SMALL: 5.0}] * 3, [{SITE: 32.0, SMALL: 5.0}] * 3))
    path = tmp_path / "trial.json"
    path.write_text(written.json())
    assert load_trial(path) == written
    for broken in ("[]", "{}", '{"differences": [{"quantity": 1}]}', written.json().replace('"base"', '"first"')):
        path.write_text(broken)
        with pytest.raises(InputError, match="is not a trial"):
            load_trial(path)


def test_a_single_run_is_not_compared():
    assert compare("m", "parked", [{SITE: 2.0}], [{SITE: 3.0}] * 6) == []


def test_a_rule_fails_on_the_numbers_that_it_matches():
    tried = trial(*compare("x86_64/npt", "parked", [{SMALL: 1000.0}] * 3, [{SMALL: 1200.0}] * 3))
    assert FailRule.parse("clear time > 5%").violation(tried) == "x86_64/npt parked, clear: time +20.0 %"
    assert FailRule.parse("changed").violation(tried)
    assert not FailRule.parse("clear time > 25%").violation(tried)
    assert not FailRule.parse("clear time < 0%").violation(tried)
    with pytest.raises(InputError, match="does not match a number of this trial; known: clear time"):
        FailRule.parse("clr time > 5%").violation(tried)
    with pytest.raises(InputError, match="is not a rule; write 'clear time > 5%'"):
        FailRule.parse("clear time 5")


def test_a_kernel_with_lock_stat_has_counts_by_lock_and_no_times_except_waits(tmp_path):
    [cell, *_] = cells(MMU_MODES[0], DESIGNS[0], 0, {}, "lock-stat")
    result = outcome(OUTPUT, cell)
    sample = (Path(__file__).parents[1] / "measurements" / "samples" / "lock_stat.txt").read_text("utf-8")
    result = dataclasses.replace(result, outputs=(*result.outputs[:-1], sample))
    record = save_record(tmp_path / "one.json", cell, [result], {})
    numbers = quantities(record)
    assert numbers[TrialQuantity("&(kvm)->mmu_lock write", "contentions", COUNT)] == 1204
    assert numbers[TrialQuantity("&(kvm)->mmu_lock read", "waits", TIME)] > 0
    assert numbers[TrialQuantity("clear", "calls", COUNT)] > 0
    assert not any(name.of.startswith("&rq") for name in numbers)  # not a lock of KVM
    assert {name.what for name in numbers if name.unit == TIME} == {"waits"}


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A lab that compiles and boots nothing; the dictionary has the output of each kernel."""
    monkeypatch.setenv("SIMLIB_LAB", str(tmp_path / "lab"))
    printed = {WITHOUT_SERIES: OUTPUT, WITH_SERIES: OUTPUT}

    def build(source, kernel, target, progress):
        image = built(tmp_path / f"{kernel.name}-{kernel.layout}")
        image.provenance["image_sha256"] = printed.get("image", f"{kernel.name} {kernel.layout}")
        image.provenance["side"] = kernel.name
        return image

    def run(boots, **options):
        results = []
        for task in boots:
            text = printed[task.built.provenance["side"]]
            if text == "panic":
                results.append("check: the guest kernel crashed: panic")
            else:
                path = tmp_path / "records" / f"{len(results)}.json"
                results.append(save_record(path, task.cell, [outcome(text, task.cell)], {}))
        return results

    staged = Staged(Path(), (), {}, {})
    source = Source(tmp_path / "source", "directory", "ab", (6, 12, 0), "cd")
    monkeypatch.setattr(trying, "open_source", lambda *_: source)
    monkeypatch.setattr(trying, "require_compiler", lambda _: "gcc")
    monkeypatch.setattr(
        trying, "stage_kernels", lambda *_: (Kernel(WITHOUT_SERIES, staged), Kernel(WITH_SERIES, staged))
    )
    monkeypatch.setattr(trying, "find_qemu", lambda _: Qemu("qemu-system-x86_64", (10, 0), "10.0"))
    monkeypatch.setattr(mode_trial, "build_kernel", build)
    monkeypatch.setattr(mode_trial, "build_provenance", lambda *_: {"configuration_sha256": "ef"})
    monkeypatch.setattr(mode_trial, "run_boots", run)
    (tmp_path / "mine.patch").write_text(
        "Subject: mine\n\ndiff --git a/arch/x86/kvm/mmu/tdp_mmu.c b/arch/x86/kvm/mmu/tdp_mmu.c\n"
    )
    return printed


def test_a_trial_boots_both_kernels_and_reports_the_difference(lab, tmp_path):
    same = try_series(tmp_path / "mine.patch", QUICK)
    assert same.mmu_modes == ("x86_64/npt",)  # the only one that uses this file
    assert not same.changed
    assert "nothing differs" in same.summary()
    assert {number.cell for number in same.differences} == {d.name for d in designs("x86_64/npt", True)}
    lab[WITH_SERIES] = OUTPUT.replace(KNOWN, f"{KNOWN}1")  # another digit
    other = try_series(tmp_path / "mine.patch", QUICK)
    assert {number.quantity for number in other.changed} == {
        TrialQuantity("clear write (rounds)", "acquisitions", COUNT)
    }


def test_each_patch_is_compared_with_those_before_it(lab, tmp_path, monkeypatch):
    staged = []
    kernels = trying.stage_kernels(None, ())

    def stage(_, patches, before, kind):
        staged.append((len(before), len(patches)))
        return kernels

    monkeypatch.setattr(trying, "stage_kernels", stage)
    series = tmp_path / "series"
    series.mkdir()
    for number in range(3):
        (series / f"{number}.patch").write_text((tmp_path / "mine.patch").read_text())
    trials = try_each_patch(series, QUICK)
    assert staged == [(0, 3), (0, 1), (1, 1), (2, 1)]  # first a check that all patches apply
    assert [tried.about["patches"] for tried in trials] == [["0.patch"], ["1.patch"], ["2.patch"]]
    with pytest.raises(InputError, match="names bundled patches"):
        try_each_patch("7")
    with pytest.raises(InputError, match="parameters = a: apply only to a whole series"):
        try_each_patch(series, TrialOptions(parameters={"a": 1}))


@pytest.mark.parametrize("guilty", [1, 4])
def test_bisection_finds_the_patch_that_changes_a_number(lab, tmp_path, monkeypatch, guilty):
    kernels = trying.stage_kernels(None, ())
    changed = OUTPUT.replace(KNOWN, f"{KNOWN}1")

    def stage(_, patches, before, kind):
        count = len(before) + len(patches)
        name = f"{WITH_SERIES} {count}"
        lab[name] = changed if count >= guilty else OUTPUT
        lab[f"the kernel with {count} of the patches"] = lab[name]
        return kernels[0], dataclasses.replace(kernels[1], name=name)

    monkeypatch.setattr(trying, "stage_kernels", stage)
    series = tmp_path / "series"
    series.mkdir()
    for number in range(1, 6):
        (series / f"{number}.patch").write_text((tmp_path / "mine.patch").read_text())
    bisection = bisect_series(series, "clear acquisitions", QUICK)
    assert bisection.patches[bisection.patch_number - 1] == f"{guilty}.patch"
    assert len(bisection.values) <= 2 + 3
    assert f"Patch {guilty} changes it: {guilty}.patch" in bisection.summary()
    with pytest.raises(InputError, match="is not changed by the series"):
        bisect_series(series, "get calls", QUICK)


def test_equal_images_are_not_booted_and_a_kernel_that_fails_once_is_not_measured(lab, tmp_path):
    lab[WITH_SERIES] = "panic"
    failed = try_series(tmp_path / "mine.patch", QUICK)
    assert failed.about["boots"] == 2
    assert failed.failures == {"x86_64/npt": "check: the guest kernel crashed: panic"}
    lab[WITHOUT_SERIES] = "panic"
    lab[WITH_SERIES] = OUTPUT
    with pytest.raises(SimlibError, match="the kernel without the series fails on x86_64/npt"):
        try_series(tmp_path / "mine.patch", QUICK)
    lab["image"] = "one"
    assert try_series(tmp_path / "mine.patch", QUICK).same == ("x86_64/npt",)


def test_an_unknown_mmu_mode_is_refused_and_architectures_select(lab, tmp_path):
    with pytest.raises(InputError, match="mmu_modes = x86: is not known; did you mean 'x86_64'"):
        try_series(tmp_path / "mine.patch", TrialOptions(mmu_modes=["x86"]))
    none = try_series(tmp_path / "mine.patch", TrialOptions(mmu_modes=["arm64"]))
    assert "The series changes nothing in the selected kernels" in none.summary()


def test_the_record_of_a_boot_is_split_by_cell(lab, tmp_path):
    sequence = CellSequence.of(
        [cell for design in DESIGNS[:2] for cell in cells(MMU_MODES[0], design, 0, {"a": 1}, "statistics")]
    )
    path = tmp_path / "boot.json"
    save_record(path, sequence, [outcome(of=sequence)], {})
    first, second = split_record(load_record(path), sequence)
    assert (first.content["test_line"], second.content["test_line"]) == (1, 3)
    assert second.keys["protection"] == "enable"
    assert quantities(first).keys() == quantities(second).keys()
