# SPDX-License-Identifier: BSD-3-Clause
"""The commands choose and choose-batch, and their sentences."""

from __future__ import annotations

import io
import json
import math
import re
import sys
import tomllib
import types

import numpy as np
import pandas as pd
import pytest
from choice_cases import WRITE, choice_of, scenario

from simlib.analysis.choose import (
    OBJECTIVES,
    preset_architectures,
    preset_scenario,
)
from simlib.analysis.choose.options import ChoiceOptions
from simlib.analysis.choose.ranking import Ranking
from simlib.analysis.choose.strategies import (
    Strategy,
)
from simlib.model.scenario import Scenario


def test_choose_batch_agrees_in_all_formats(ask, tmp_path, short):
    file = tmp_path / "mine.toml"
    file.write_text(scenario(WRITE).to_toml())
    options = ("choose-batch", file, "--memory", "1M", "--vcpus", 4, "--access-interval", "2us", "--objective", "clear")
    code, text, messages = ask(*options, "--format", "json", "--out", tmp_path / "out")
    result = json.loads(text)
    assert code == 0
    assert "written to" in messages
    assert json.loads((tmp_path / "out" / "choose-batch.json").read_text()) == result
    table = pd.read_csv(tmp_path / "out" / "alternatives.csv")
    assert table["objective_s"].tolist() == pytest.approx([row["objective_s"] for row in result["alternatives"]])
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "alternatives.csv", "choose-batch.json", "costs.csv", "regrets.csv"]  # fmt: skip
    asked = Scenario.parse(tomllib.loads(result["scenario"]))
    assert (asked.guest.vcpus, asked.workload.access_interval) == (4, 2_000_000)

    code, text, _ = ask(*options)
    assert code == 0
    words = " ".join(text.split())
    assert words.startswith(result["advice"][""])
    assert result["sentence"][1:] in words
    assert "every 64 pages" in words
    columns = re.search(r"(?m)^batch .*", text)[0]
    code, text, _ = ask(*options, "--verbose")
    assert code == 0
    assert set(columns.split()) < set(re.search(r"(?m)^batch .*", text)[0].split())
    assert result["guarantee"] in " ".join(text.split())


def test_choose_agrees_in_all_formats(ask, tmp_path, short):
    file = tmp_path / "mine.toml"
    file.write_text(scenario(WRITE).to_toml())
    names = [word for name in ("every-64", "whole-ioctl", "held >= 50us", "baseline") for word in ("--strategy", name)]
    options = ("choose", file, "--memory", "1M", "--vcpus", 4, "--confidence", 0.9, *names)
    code, text, messages = ask(*options, "--format", "json", "--out", tmp_path / "out")
    result = json.loads(text)
    assert code == 0
    assert "3 strategies, 30 to 36 simulations: whole migrations" in messages
    assert [row["strategy"] for row in result["strategies"]] == ["every-64", "whole-ioctl", "held >= 50us"]
    assert [row["as_it_is"] for row in result["strategies"]] == [False, True, False]
    assert [row["objective"] for row in result["answers"]] == list(OBJECTIVES)
    assert (result["simulated"], result["confidence"], result["evidence"]) == ("whole", 0.9, "costs given by hand")
    tables = ["answers", "budgets", "costs", "differences", "information", "strategies"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        ["choose.json", *(f"{name}.csv" for name in tables)]
    )
    assert json.loads((tmp_path / "out" / "choose.json").read_text()) == result
    for name in tables[:-2] + tables[-1:]:
        table = pd.read_csv(tmp_path / "out" / f"{name}.csv")
        assert len(table) == len(result[name])
        for column in table.select_dtypes("number"):
            there = [math.nan if row[column] is None else row[column] for row in result[name]]
            assert table[column].tolist() == pytest.approx(there, nan_ok=True)

    code, text, _ = ask(*options, "--objective", "clear", "--format", "json")
    led = json.loads(text)
    assert led["answers"] == result["answers"]
    assert led["advice"][""].startswith(
        "Leave KVM as it is (whole-ioctl): none of the 3 simulated strategies lowers the CPU"
    )
    assert led["advice"] != result["advice"]

    code, text, _ = ask(*options, "--format", "csv")
    assert code == 0
    assert text.splitlines()[0].startswith("strategy,as_it_is,allowed,stall_bound_s,cost_s,guest_time_lost_s,stall_s")
    assert len(text.splitlines()) == 4

    code, text, _ = ask(*options)
    assert code == 0
    words = " ".join(text.split())
    assert words.startswith(result["advice"][""])
    assert "Guest: x86-shadow, 4 vCPUs, 1 MiB (4k), CLEARs of 1 MiB; each vCPU accesses another page every " in words
    assert f"Evidence: {result['grounds']}. " in words
    assert "No single cost, if known, would change the answer." in words
    assert result["guarantee"] not in words
    code, text, _ = ask(*options, "-v")
    assert code == 0
    assert result["guarantee"] in " ".join(text.split())
    for objective_row in OBJECTIVES.values():
        assert objective_row.title in text


@pytest.mark.parametrize(
    ("names", "text", "to_do"),
    [("read-lock-clear", "Let CLEAR hold mmu_lock for read (read-lock-clear): the longest stall falls from 1 ms to "
      "1 µs, the weighted cost from 8 s to 2 s; but the CPU time of CLEAR rises from 1 s to 3 s",
      "no kernel has this yet; patches for arm64 were posted in June 2023, but not merged"),
     ("chunk-16M", "Let CLEAR cover 16M at a time (chunk-16M): ",
      "start QEMU with -global migration.x-clear-bitmap-shift=12"),
     ("no-eager-split", "Use no-eager-split: ", "nothing, unless QEMU's eager-split-size is set"),
     ("every-512+eager-split-drop", "Let CLEAR drop mmu_lock after every 512 pages and let an eager split drop "
      "mmu_lock to allocate its table (every-512+eager-split-drop): ", "every-512: no kernel has this yet; the patch "
      "is kernel-patches/0007, with kvm.dirty_log_clear_batch=512; eager-split-drop: start QEMU with -accel "
      "kvm,eager-split-size=2M")],
)  # fmt: skip
def test_the_advice_has_the_setting_its_effect_and_its_cost(names, text, to_do):
    values = np.ones((8, 2, len(OBJECTIVES)))
    for name, pair in {"cost": (8, 2), "stall": (1e-3, 1e-6), "clear": (1, 3)}.items():
        values[:, :, list(OBJECTIVES).index(name)] = pair
    strategies = (Strategy("whole-ioctl", 0), Strategy(names))
    ranking = Ranking(strategies, [0, 1], ChoiceOptions(), values, np.ones(2), 2)
    result = choice_of(ranking, preset_scenario("arm64"))
    advice = result.advice()
    assert advice[""].startswith(text)
    assert advice["To do so"] == to_do
    assert ("Without a patch" in advice) == ("no kernel has this yet" in to_do)
    lower = "gives a lower weighted cost"
    assert advice["How sure"] == f"95 % confidence that no other of the 2 simulated strategies {lower}"
    assert advice["Other goals"] == "for CPU time of CLEAR, use whole-ioctl (no change; longest stall then 1 ms)"
    assert advice["Longest stall"] == (
        f"1 ms now (at most 1 s with 90 % probability; 99.9 % of stalls are at most 1 s); "
        f"shortest with {names}, 1 µs (1 s)"
    )
    assert result.advice()["Limits"].startswith("stalls are simulated: their ranking is more reliable than")
    assert any(note.startswith("Recommended if no stall may exceed 10us: none (lowest 90 % bound: 1s); ")
               for note in result.notes)  # fmt: skip
    assert result.readable("cost")["strategy"].tolist() == [f"{names} (recommended)", "whole-ioctl (current)"]
    assert list(result.readable("cost")) == ["strategy", "cost", "stall", "CLEAR"]


def test_the_best_strategy_without_a_patch_is_named():
    values = np.ones((8, 4, len(OBJECTIVES)))
    values[:, :, list(OBJECTIVES).index("cost")] = (8, 2, 5, 4)
    values[:, :, list(OBJECTIVES).index("stall")] = (1e-3, 1e-6, 1e-4, 1e-5)
    names = ("whole-ioctl", "read-lock-clear", "chunk-64M", "chunk-16M")
    strategies = tuple(Strategy(name, *[0] * (not number)) for number, name in enumerate(names))
    ranking = Ranking(strategies, [0, 1, 2, 3], ChoiceOptions(), values, np.ones(4), 2)
    result = choice_of(ranking, preset_scenario("arm64"))
    assert result.recommended("cost") == "read-lock-clear"
    assert result.advice()["Without a patch"] == (
        "chunk-16M has the lowest weighted cost, 4 s (longest stall 10 µs): start QEMU with -global "
        "migration.x-clear-bitmap-shift=12"
    )


@pytest.mark.parametrize("columns", [60, 80])
def test_the_first_lines_fit_the_columns_of_a_pipe(ask, tmp_path, short, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    file = tmp_path / "mine.toml"
    file.write_text(scenario(WRITE).to_toml())
    code, text, _ = ask("choose", file, "--memory", "1M", "--vcpus", 4, "--kernel")
    assert code == 0
    assert max(map(len, text.splitlines())) <= columns
    assert not re.search(r"[0-9]\n *([nµm]?s|%|[MG]iB)\b", text)


@pytest.mark.parametrize("name", ["choose", "choose-batch"])
def test_all_architectures_in_one_table(ask, tmp_path, short, name):
    file = {"choose": "answers", "choose-batch": "architectures"}[name]
    case = ("--all", "--memory", "2M", "--vcpus", 1, "--link", "1Mbit/s", "--access-interval", "10ms")
    names = ("--strategy", "every-64", "--strategy", "whole-ioctl") if name == "choose" else ()
    code, text, messages = ask(name, *case, *names, "--out", tmp_path)
    assert code == 0
    table = pd.read_csv(tmp_path / f"{file}.csv")
    choices = json.loads((tmp_path / f"{name}.json").read_text())
    assert list(dict.fromkeys(table["architecture"])) == list(choices) == list(preset_architectures())
    evidence = table.drop_duplicates("architecture")["evidence"].tolist()
    assert evidence == [choice["evidence"] for choice in choices.values()]
    assert {"facts alone", "partly calibrated: faults only"} <= set(evidence)
    rows = {line.split()[0]: line for line in text.splitlines()[1:] if line.split()[0] in choices}
    assert list(rows) == list(choices)
    assert "simlib: ppc-radix: computed as if write_protect_fault were 'write'" in messages
    if name == "choose-batch":
        assert "whole" in rows["x86-tdp"]
        assert "512" not in rows["x86-tdp"]  # the whole chunk has that name
    else:
        assert re.search(r"\([0-9.]+[mun]?s\)", text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((), "choose-batch = nothing: must be one of SCENARIO.toml, --architecture NAME and --all"),
     (("--all", "--architecture", "arm64"), "choose-batch = --architecture --all: must be one of"),
     (("--architecture", "arm46"), "policy.architecture = arm46: unknown architecture; did you mean 'arm64'"),
     (("--architecture", "s390"), "policy.lock = default: s390 does not take mmu_lock in this case"),
     (("--architecture", "arm64", "--memory", "1G", "--chunk", "2G"),
      "clear_chunk = 2G: must not be larger than the guest's memory of 1G"),
     (("--architecture", "arm64", "--guest", "databse"), "guest = databse: unknown guest; did you mean 'database'"),
     (("--architecture", "arm64", "--objective", "stalls"), "objective = stalls: unknown objective; did you mean"),
     (("--architecture", "arm64", "--link", "0Gbit/s"), "--link = 0Gbit/s: must be at least 1 bit/s"),
     (("--architecture", "arm64", "--max-stall", "soon"), "--max-stall = soon: a duration needs a unit")],
)  # fmt: skip
def test_the_command_refuses_wrong_input(ask, arguments, message):
    code, text, messages = ask("choose-batch", *arguments)
    assert (code, text) == (2, "")
    assert message in messages


def test_a_scenario_file_excludes_a_named_guest(ask, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(scenario().to_toml())
    code, text, messages = ask("choose", file, "--guest", "web")
    assert (code, text) == (2, "")
    assert "--guest = web: cannot replace the guest of a scenario file; give --architecture instead" in messages
    code, _, messages = ask("choose", file, "--kernel", "--strategy", "baseline", "--strategy", "every-sixty")
    assert code == 2
    assert "policy = every-sixty: unknown policy" in messages


RINGED = {"dirty_set": "100ns", "log_exit": "2us", "log_entry": "30ns", "log_kick": "300ns", "ring_exit": "2us",
          "ring_entry": "20ns", "reset_entry": "10ns"}  # fmt: skip


def test_rings_are_compared_with_the_bitmap_and_hardware_logging(ask, tmp_path, short):
    """A scenario file has its own tracking; the alternatives are all those of its architecture."""
    file = tmp_path / "mine.toml"
    file.write_text(scenario({"architecture": "x86-tdp"}, RINGED).to_toml())
    code, text, messages = ask("choose", file, "--rings", "--format", "json")
    assert code == 0, messages
    names = ["baseline", "write-protect", "pml", "dirty-ring-1024", "dirty-ring-4096", "dirty-ring-65536"]
    assert [row["strategy"] for row in json.loads(text)["strategies"]] == [
        name for name in names if name != "write-protect"
    ]  # the scenario's own
    assert json.loads(text)["strategies"][0]["as_it_is"]
    code, text, _ = ask("choose", file, "--dirty-tracking", "pml", "--strategy", "baseline", "--strategy", "every-64")
    assert code == 0
    assert text.startswith("With PML: ")


def test_the_command_is_brief_if_nothing_matters(ask, tmp_path):
    """Faults take no lock, and dropping the lock costs almost nothing."""
    file = tmp_path / "mine.toml"
    file.write_text(scenario(costs={"reacquire": "10ps", "line_transfer": "1ps", "line_local": "1ps"}).to_toml())
    names = [word for name in ("every-256", "every-512", "baseline") for word in ("--strategy", name)]
    code, text, _ = ask("choose", file, *names)
    assert code == 0
    words = " ".join(text.split())
    none = "none of the 3 simulated strategies changes any objective by more than"
    assert re.match(rf"Leave KVM as it is \(baseline\): {none} [0-9.]+ % \(95 % confidence", words)
    assert len(text.splitlines()) <= 16
    assert "baseline, every-256, every-512 (recommended, current)" in words


def test_replies_of_qemu_are_read_from_standard_input(ask, monkeypatch):
    replies = b'{"return": [{"cpu-index": 0, "target": "x86_64"}]}'
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(replies)))
    code, _, messages = ask("choose", "--from", "-", "--strategy", "every-sixty")
    assert code == 2
    assert "policy = every-sixty: unknown policy" in messages
