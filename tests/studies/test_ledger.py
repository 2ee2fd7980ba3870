# SPDX-License-Identifier: BSD-3-Clause
"""Ledger: predictions of a file's cells are written completely, not changed, and scored against the answers."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pandas as pd
import pytest
from notebook_run import ROOT, text_of

from simlib import InputError
from simlib.lab.experiment import load_experiment, parse_experiment
from simlib.lab.hardware import ledger
from simlib.lab.hardware.load import CELL, MAIN_METRICS
from simlib.measurements import check, data_dir

PREDICTIONS = sorted((data_dir() / "predictions").glob("*-predicted.json"))
SMALL = {"name": "small", "target": "x86_64", "parameters": {"dirty_log_clear_batch": [0, 64]},
         "test": {"vcpus": 1, "memory_per_vcpu": "2M", "rounds": 2, "flush_accesses": 64, "seed": [1, 2]}}  # fmt: skip


@pytest.fixture(scope="module")
def entries():
    return ledger.load_ledger()


def test_each_cell_is_predicted_once_and_all_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger, "SEEDS", (1,))
    predicted = ledger.predict_cells([parse_experiment(SMALL)])
    assert predicted[["batch", "metric"]].to_numpy().tolist() == [
        [batch, metric] for batch in (0, 64) for metric in MAIN_METRICS
    ]
    assert ((predicted["low_s"] < predicted["estimate_s"]) & (predicted["estimate_s"] < predicted["high_s"])).all()
    experiment = tmp_path / "small.toml"
    experiment.write_text("", encoding="utf-8")
    for name, text in ledger.prediction_files(predicted, "small", experiment).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert check(tmp_path / "small-predicted.csv")[0].startswith("small-predicted: 6 rows")
    described = json.loads((tmp_path / "small-predicted.json").read_text(encoding="utf-8"))
    assert described["kind"] == "simulated"
    assert {"small.toml", "lab-x86-npt.toml", "lab-x86-npt.json"} == set(described["sha256"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"test": {"parked": True}}, "is not under load"), ({"target": "arm64", "mode": "nvhe"}, "has no scenario")],
)
def test_cells_that_are_parked_or_unknown_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        ledger.predict_cells([parse_experiment(SMALL | changes)])


@pytest.mark.parametrize("path", PREDICTIONS, ids=lambda path: path.stem)
def test_the_experiment_is_the_one_that_was_predicted(path):
    described = json.loads(path.read_text(encoding="utf-8"))
    (name,) = (name for name in described["sha256"] if not name.startswith("lab-"))
    experiment = ROOT / "data" / "experiments" / name
    assert hashlib.sha256(experiment.read_bytes()).hexdigest() == described["sha256"][name]
    cells = {(cell.experiment.name, *cell.parameters.items(), *((k, v) for k, v in cell.test.items() if k != "seed"))
             for part in load_experiment(experiment) for cell in part.cells()}  # fmt: skip
    predicted = pd.read_csv(Path(path).with_suffix(".csv"))
    assert len(predicted) == len(cells) * len(MAIN_METRICS)
    assert not predicted.duplicated(["machine", *CELL, "metric"]).any()


def test_predictions_are_joined_with_their_answers(entries):
    odd = entries[entries["ledger"] == "odd"]
    assert len(odd) == 135
    assert odd["lab"].notna().all()
    assert (odd["inside"] == ((odd["low_s"] <= odd["lab"]) & (odd["lab"] <= odd["high_s"]))).all()
    assert odd[odd["metric"] == "clear_dirty_log_time"]["error"].abs().max() < 0.06
    waiting = entries[entries["lab"].isna()]
    assert not waiting["inside"].any()
    notebook = ROOT / "notebooks" / "12-validation-and-limits.ipynb"
    text = text_of(notebook, "cell-ledger-text", tables={"ledger": entries})
    assert f"{odd['inside'].sum()} of 135 answers are within" in text
    assert f"{len(waiting)} predictions have no answer yet" in text


def test_a_score_counts_only_predictions_with_an_answer():
    rows = [("a", "m", 0.1, True, 1.0), ("a", "m", -0.3, False, 1.0), ("b", "m", 9.0, False, None)]
    cells = pd.DataFrame(rows, columns=["machine", "metric", "error", "inside", "lab"])
    score = ledger.score(cells).set_index("machine")
    assert score.loc["a", ["predictions", "inside", "median", "largest"]].tolist() == [2, 0.5, pytest.approx(0.2), 0.3]
    assert score.loc["all", "predictions"] == 2
    assert "b" not in score.index
