# SPDX-License-Identifier: BSD-3-Clause
"""Tests of the notebook on a measured host, with the shipped host and with another folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest
from notebook_run import (
    ROOT,
    Run,
    answer_of,
    assert_ran_without_complaint,
    code_cells,
    figures_of,
)

import simlib
from simlib.lab.host.measured import load_host, shipped_host
from simlib.measurements import data_dir

pytestmark = pytest.mark.study

NOTEBOOK = ROOT / "notebooks" / "10-your-own-host.ipynb"
SHIPPED = "host-pvm"
"""Name of the shipped tables of a host."""


def results(run: Run) -> dict[str, Any]:
    data, fit, held_out = (run["data"], run["fit"], run["held_out"])
    return {
        "within": int(held_out["within"].sum()),
        "cells": len(held_out),
        "folder": str(data.folder),
        "missed_chunks": sorted(set(held_out.loc[~held_out["within"], "chunk_pages"].tolist())),
        "costs": fit.parameters.set_index("name")[["value", "low", "high"]].T.to_dict(),
    }


@pytest.fixture(scope="module")
def run(ran: Any) -> Run:
    return ran(NOTEBOOK)


def test_it_runs_without_errors(run: Run) -> None:
    assert_ran_without_complaint(run)
    assert len(figures_of(run)) == 2


def test_the_answer_matches_the_results(run: Run) -> None:
    computed = results(run)
    assert computed["folder"].endswith("collected")
    assert f"{computed['within']} of {computed['cells']} held-out cells" in answer_of(run)
    assert computed["missed_chunks"] == [64, 512]  # as the text below the table explains
    shipped = simlib.load_fit(data_dir() / "fits" / "host-amd-epyc-2.json").parameters
    for row in shipped.to_dict("records"):
        cost = computed["costs"][row["name"]]
        assert cost["low"] < row["value"] < cost["high"], row["name"]


def test_it_reads_another_folder(tmp_path: Path) -> None:
    cells = code_cells(nbformat.read(NOTEBOOK, as_version=4))
    assert 'os.environ.get("SIMLIB_HOST", "")' in cells[0].source
    for path in (data_dir() / "collected").glob(f"{SHIPPED}-*"):
        shutil.copyfile(path, tmp_path / path.name.replace(SHIPPED, "host", 1))
    for path in tmp_path.glob("*.json"):
        path.write_text(path.read_text(encoding="utf-8").replace(SHIPPED, "host"), encoding="utf-8")
    host = load_host(tmp_path)
    assert host.folder == tmp_path
    assert len(host.noise) == len(shipped_host().noise)
