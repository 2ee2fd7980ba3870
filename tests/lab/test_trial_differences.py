# SPDX-License-Identifier: BSD-3-Clause
"""What a trial calls a difference: none where nothing changed, all that is decided, and how it is told."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path

import numpy as np
import pytest
from lab_fakes import OUTPUT, built, outcome

from simlib._lib.errors import InputError, SimlibError
from simlib.lab.experiment import ExperimentRow
from simlib.lab.qemu import Qemu
from simlib.lab.records import load_record, save_record, split_record
from simlib.lab.source import Source
from simlib.lab.trial import FailRule, Trial, bisect_series, load_trial, try_each_patch, try_series
from simlib.lab.trial.cells import DESIGNS, MACHINES, cells, designs
from simlib.lab.trial.differences import ALIKE, CHANGED, EQUAL, TOO_FEW, compare, judge
from simlib.lab.trial.kernels import WITH, WITHOUT, Kernel
from simlib.lab.trial.quantities import COUNT, TIME, TrialQuantity, quantities
from simlib.lab.trial.tree import Staged

asking, machine_of = (importlib.import_module(f"simlib.lab.trial.{name}") for name in ("request", "machine"))

KNOWN = '"when":"end","name":"mmu_lock_clear_write_acquired","value":'
NUMBERS = [TrialQuantity(f"site{number}", "time", TIME) for number in range(100)]


def drawn(rng, times=1.0, spread=0.3, runs=12):
    """Runs of one kernel, all of whose numbers have noise."""
    return [
        {name: float(np.exp(rng.normal(0, spread))) * 1e6 * (times if name == NUMBERS[0] else 1) for name in NUMBERS}
        for _ in range(runs)
    ]


def test_nothing_is_called_changed_where_nothing_changed():
    rng = np.random.default_rng(1)
    tries = [judge(compare("x86_64/npt", "load", drawn(rng), drawn(rng))) for _ in range(200)]
    wrong = sum(any(one.verdict == CHANGED for one in found) for found in tries)
    assert wrong <= 6  # 2 are to be expected; more in one of 200 such tests


def test_what_changed_is_found_and_nothing_else():
    rng = np.random.default_rng(2)
    found = judge(compare("x86_64/npt", "load", drawn(rng, spread=0.1), drawn(rng, times=1.5, spread=0.1)))
    [one] = [one for one in found if one.verdict == CHANGED]
    assert one.quantity == NUMBERS[0]
    assert one.low < 1.5 < one.high


def test_what_cannot_be_told_says_how_many_runs_could():
    rng = np.random.default_rng(3)
    few = judge(compare("m", "load", drawn(rng, runs=3), drawn(rng, runs=3)))
    assert {one.verdict for one in few} == {TOO_FEW}
    needed = sorted(one.runs for one in few)[len(few) // 2]
    many = judge(compare("m", "load", drawn(rng, runs=needed), drawn(rng, runs=needed)))
    assert sum(one.verdict == ALIKE for one in many) > len(many) / 3


SITE, SMALL = TrialQuantity("clear write (rounds)", "acquisitions", COUNT), TrialQuantity("clear", "time", TIME)


@pytest.mark.parametrize(
    ("name", "base", "changed", "verdict"),
    [(SITE, 2, 3, CHANGED), (SITE, 2, 34, CHANGED), (SITE, 2, 2, EQUAL), (SITE, 0, 1, CHANGED),
     (SMALL, 1000, 1005, ALIKE), (SMALL, 1000, 1020, CHANGED)],
)  # fmt: skip
def test_numbers_that_every_run_has_alike_are_compared_by_value(name, base, changed, verdict):
    [one] = judge(compare("m", "parked", [{name: base}] * 6, [{name: changed}] * 6))
    assert one.verdict == verdict
    assert one.new == (base == 0)


def trial(*found, **more):
    source = {"version": "6.12.1", "origin": "directory", "sha256": "ab" * 32, "series_sha256": "cd" * 32}
    about = {
        "command": "simlib lab try mine", "patches": ["KVM: let go"], "series_sha256": "5e" * 32, "parameters": {},
        "source": source, "boots": 6,
    }  # fmt: skip
    return Trial(about, ("x86_64/npt",), **{"same": (), "failures": {}, "differences": tuple(judge(found)), **more})


def test_the_text_fits_a_mail_and_names_what_differs():
    found = compare("x86_64/npt", "parked", [{SITE: 2.0, SMALL: 5.0}] * 3, [{SITE: 32.0, SMALL: 5.0}] * 3)
    text = trial(*found).summary()
    assert max(map(len, text.splitlines())) <= 72
    assert "clear write (rounds): acquisitions" in text
    assert "× 16" in text
    assert "1 other numbers are equal" in " ".join(text.split())
    assert "the same kernel" in trial(same=("x86_64/npt",)).summary()
    assert "FAILS: it panics" in trial(failures={"x86_64/npt": "it panics"}).summary()
    assert trial(*found).plot().data[0].x.tolist() == [pytest.approx(16)]
    with pytest.raises(InputError, match="no rows: the figure needs at least one row"):
        trial(same=("x86_64/npt",)).plot()
    assert "| parked | clear write (rounds): acquisitions | 2 | 32 | × 16 |" in trial(*found).markdown()


def test_a_trial_that_was_written_is_read_again(tmp_path):
    found = trial(*compare("x86_64/npt", "parked", [{SITE: 2.0, SMALL: 5.0}] * 3, [{SITE: 32.0, SMALL: 5.0}] * 3))
    path = tmp_path / "trial.json"
    path.write_text(found.json())
    assert load_trial(path) == found
    for broken in ("[]", "{}", '{"differences": [{"quantity": 1}]}', found.json().replace('"base"', '"first"')):
        path.write_text(broken)
        with pytest.raises(InputError, match="is no trial"):
            load_trial(path)


def test_one_run_does_not_tell_what_is_decided():
    assert compare("m", "parked", [{SITE: 2.0}], [{SITE: 3.0}] * 6) == []


def test_a_rule_fails_on_what_it_names():
    found = trial(*compare("x86_64/npt", "parked", [{SMALL: 1000.0}] * 3, [{SMALL: 1200.0}] * 3))
    assert FailRule.parse("clear time > 5%").broken(found) == "x86_64/npt parked, clear: time +20.0 %"
    assert FailRule.parse("changed").broken(found)
    assert not FailRule.parse("clear time > 25%").broken(found)
    assert not FailRule.parse("clear time < 0%").broken(found)
    with pytest.raises(InputError, match="is the name of no number of this trial; such as clear time"):
        FailRule.parse("clr time > 5%").broken(found)
    with pytest.raises(InputError, match="is no rule; write 'clear time > 5%'"):
        FailRule.parse("clear time 5")


def test_a_kernel_with_lock_stat_is_counted_by_lock_and_has_no_times_but_waits(tmp_path):
    [one, *_] = cells(MACHINES[0], DESIGNS[0], 0, {}, "lock-stat")
    gave = outcome(OUTPUT, one)
    sample = (Path(__file__).parents[1] / "measurements" / "samples" / "lock_stat.txt").read_text("utf-8")
    gave = dataclasses.replace(gave, outputs=(*gave.outputs[:-1], sample))
    record = save_record(tmp_path / "one.json", one, [gave], {})
    found = quantities(record)
    assert found[TrialQuantity("&(kvm)->mmu_lock write", "contentions", COUNT)] == 1204
    assert found[TrialQuantity("&(kvm)->mmu_lock read", "waits", TIME)] > 0
    assert found[TrialQuantity("clear", "calls", COUNT)] > 0
    assert not any(name.of.startswith("&rq") for name in found)  # no lock of KVM's
    assert {name.what for name in found if name.unit == TIME} == {"waits"}


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A lab in which nothing is compiled or booted; a dictionary says what each kernel prints."""
    monkeypatch.setenv("SIMLIB_LAB", str(tmp_path / "lab"))
    printed = {WITHOUT: OUTPUT, WITH: OUTPUT}

    def build(source, kernel, target, progress):
        image = built(tmp_path / f"{kernel.name}-{kernel.layout}")
        image.provenance["image_sha256"] = printed.get("image", f"{kernel.name} {kernel.layout}")
        image.provenance["side"] = kernel.name
        return image

    def run(boots, **options):
        found = []
        for one in boots:
            text = printed[one.built.provenance["side"]]
            if text == "panic":
                found.append("check: the guest's kernel stopped: panic")
            else:
                path = tmp_path / "records" / f"{len(found)}.json"
                found.append(save_record(path, one.cell, [outcome(text, one.cell)], {}))
        return found

    staged = Staged(Path(), (), {}, {})
    source = Source(tmp_path / "source", "directory", "ab", (6, 12, 0), "cd")
    monkeypatch.setattr(asking, "open_source", lambda *_: source)
    monkeypatch.setattr(asking, "need_compiler", lambda _: "gcc")
    monkeypatch.setattr(asking, "stage_both", lambda *_: (Kernel(WITHOUT, staged), Kernel(WITH, staged)))
    monkeypatch.setattr(asking, "find_qemu", lambda _: Qemu("qemu-system-x86_64", (10, 0), "10.0"))
    monkeypatch.setattr(machine_of, "build_kernel", build)
    monkeypatch.setattr(machine_of, "made_with", lambda *_: {"configuration_sha256": "ef"})
    monkeypatch.setattr(machine_of, "run_boots", run)
    (tmp_path / "mine.patch").write_text(
        "Subject: mine\n\ndiff --git a/arch/x86/kvm/mmu/tdp_mmu.c b/arch/x86/kvm/mmu/tdp_mmu.c\n"
    )
    return printed


def test_a_trial_boots_both_kernels_and_tells_the_difference(lab, tmp_path):
    same = try_series(tmp_path / "mine.patch", quick=True)
    assert same.machines == ("x86_64/npt",)  # the only one that has this file
    assert not same.changed
    assert "nothing differs" in same.summary()
    assert {one.cell for one in same.differences} == {d.name for d in designs("x86_64/npt", True)}
    lab[WITH] = OUTPUT.replace(KNOWN, f"{KNOWN}1")  # another digit
    other = try_series(tmp_path / "mine.patch", quick=True)
    assert {one.quantity for one in other.changed} == {TrialQuantity("clear write (rounds)", "acquisitions", COUNT)}


def test_each_patch_is_tried_beside_those_before_it(lab, tmp_path, monkeypatch):
    told = []
    kernels = asking.stage_both(None, ())

    def stage(_, mine, before, kind):
        told.append((len(before), len(mine)))
        return kernels

    monkeypatch.setattr(asking, "stage_both", stage)
    series = tmp_path / "series"
    series.mkdir()
    for number in range(3):
        (series / f"{number}.patch").write_text((tmp_path / "mine.patch").read_text())
    found = try_each_patch(series, quick=True)
    assert told == [(0, 3), (0, 1), (1, 1), (2, 1)]  # first whether all of them apply
    assert [one.about["patches"] for one in found] == [["0.patch"], ["1.patch"], ["2.patch"]]
    with pytest.raises(InputError, match="names patches of ours"):
        try_each_patch("7")


@pytest.mark.parametrize("guilty", [1, 4])
def test_the_patch_that_changes_a_number_is_found_by_halves(lab, tmp_path, monkeypatch, guilty):
    kernels = asking.stage_both(None, ())
    changed = OUTPUT.replace(KNOWN, f"{KNOWN}1")

    def stage(_, mine, before, kind):
        name = f"{WITH} {len(before) + len(mine)}"
        lab[name] = changed if len(before) + len(mine) >= guilty else OUTPUT
        lab[f"the kernel with {len(before) + len(mine)} patches"] = lab[name]
        return kernels[0], dataclasses.replace(kernels[1], name=name)

    monkeypatch.setattr(asking, "stage_both", stage)
    series = tmp_path / "series"
    series.mkdir()
    for number in range(1, 6):
        (series / f"{number}.patch").write_text((tmp_path / "mine.patch").read_text())
    found = bisect_series(series, "clear acquisitions", quick=True)
    assert found.patches[found.found - 1] == f"{guilty}.patch"
    assert len(found.values) <= 2 + 3
    assert f"Patch {guilty} changes it: {guilty}.patch" in found.summary()
    with pytest.raises(InputError, match="does not change such a number"):
        bisect_series(series, "get calls", quick=True)


def test_equal_images_are_not_booted_and_a_kernel_that_fails_once_is_not_measured(lab, tmp_path):
    lab[WITH] = "panic"
    failed = try_series(tmp_path / "mine.patch", quick=True)
    assert failed.about["boots"] == 2
    assert failed.failures == {"x86_64/npt": "check: the guest's kernel stopped: panic"}
    lab[WITHOUT] = "panic"
    lab[WITH] = OUTPUT
    with pytest.raises(SimlibError, match="the kernel without the series fails on x86_64/npt"):
        try_series(tmp_path / "mine.patch", quick=True)
    lab["image"] = "one"
    assert try_series(tmp_path / "mine.patch", quick=True).same == ("x86_64/npt",)


def test_an_unknown_machine_is_refused_and_known_ones_choose(lab, tmp_path):
    with pytest.raises(InputError, match="machine = x86: is not known; did you mean 'x86_64'"):
        try_series(tmp_path / "mine.patch", machines=["x86"])
    assert "Nothing that it changes" in try_series(tmp_path / "mine.patch", machines=["arm64"]).summary()


def test_cells_of_one_boot_are_records_of_their_own(lab, tmp_path):
    row = ExperimentRow.of(
        [cell for design in DESIGNS[:2] for cell in cells(MACHINES[0], design, 0, {"a": 1}, "statistics")]
    )
    path = tmp_path / "row.json"
    save_record(path, row, [outcome(of=row)], {})
    first, second = split_record(load_record(path), row)
    assert (first.content["test_line"], second.content["test_line"]) == (1, 3)
    assert second.keys["protection"] == "enable"
    assert quantities(first).keys() == quantities(second).keys()
