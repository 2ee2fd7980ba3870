# SPDX-License-Identifier: BSD-3-Clause
"""The lab's machines and cells, as scenarios.

The lab's clock counts instructions over all CPUs (docs/lab.md), and so does the model with
``host.clock = "serial"``: nothing of it is a time on hardware.
"""

from __future__ import annotations

import pandas as pd

from simlib._lib.errors import InputError, nearest
from simlib.lab.experiment import Experiment
from simlib.lab.records import batch_of
from simlib.measurements import data_dir, load
from simlib.model.quantities import parse_size
from simlib.model.scenario import Scenario, load_scenario
from simlib.model.strategy import every

LABS = ("x86-npt", "x86-shadow", "arm64-read", "arm64-write", "riscv")
"""The lab's machines; ``data/scenarios/lab-<name>.toml`` describes each."""

PAGE = 4096
"""Bytes of a page of the lab's guests."""

FINE = Experiment.turn_instructions
"""Mean length of a turn, instructions, with which the load was measured."""

COARSE = 2000
"""Mean length of a turn, instructions, in tables that do not say it: all of them before the load was measured finer."""


def lab_scenario(name: str) -> Scenario:
    """The scenario of one of the lab's machines; its costs are in its fit."""
    return load_scenario(data_dir() / "scenarios" / f"lab-{name}.toml")


def lab_case(name: str, row: pd.Series) -> Scenario:
    """The scenario of one cell of the lab's tables.

    - `name`: one of `LABS`.
    - `row`: a row of any of the lab's tables.
    """
    parked = row["parked"] == "true"
    chunk = int(row["chunk_pages"])
    workload: dict[str, object] = {
        "kind": "dirty_log_perf_test" if parked else "clear_under_load",
        "iterations": int(row["rounds"]),
        "initially_set": row["protection"] == "initially_set",
        "write_percent": int(row["write_percent"]),
    }
    if chunk:
        workload["clear_chunk"] = chunk * PAGE
    if row["protection"] == "ring":
        workload |= {"clear_when": "ring", "ring_entries": int(row["ring_entries"])}
    return lab_scenario(name).changed(
        {
            "host": {"turn": f"{row.get('turn_instructions', COARSE)}ns"},
            "guest": {"vcpus": int(row["vcpus"]), "memory_per_vcpu": parse_size(row["memory_per_vcpu"])},
            "policy": {"clear_drop_when": every(batch_of(row["switches"]))},
            "workload": workload,
        }
    )


def lab_name(row: pd.Series) -> str:
    """Which of `LABS` a row of the lab's tables belongs to.

    Raises `InputError` if the row's machine is none of them.
    """
    machine = f"{row['architecture']} {row['mode']}"
    names = {"x86_64 npt": "x86-npt", "x86_64 shadow": "x86-shadow", "riscv64 h": "riscv"}
    names["arm64 vhe"] = "arm64-write" if "permission_fault_lock=write" in row["switches"] else "arm64-read"
    if machine not in names:
        raise InputError("machine", machine, "has no scenario to compare with", nearest(machine, names))
    return names[machine]


def rows_of(table: str, name: str, kind: str = "") -> pd.DataFrame:
    """Rows of one of the lab's machines in a collected table (``counts-locks``, ``load-ioctls`` …), with ``batch``.

    - `kind`: what the names of its experiments begin with, if not as the table's.
    """
    frame = load(table).frame
    kind = kind or table.partition("-")[0]
    return with_batch(frame[frame["experiment"] == f"{kind}-{name}"].reset_index(drop=True))


def with_batch(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of the lab's tables with ``batch``: the pages after which CLEAR lets go, 0: never."""
    return rows.assign(batch=rows["switches"].map(batch_of))
