# SPDX-License-Identifier: BSD-3-Clause
"""Machines and cells of the lab as scenarios, and the calibrated hosts that correspond to them.

The lab's clock counts the instructions of all CPUs (docs/lab.md), and so does the model with
``host.clock = "serial"``: these times are not times on hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd

from simlib._lib.errors import InputError, nearest
from simlib.lab.experiment import Experiment
from simlib.lab.records import batch_of
from simlib.measurements import data_dir, load
from simlib.model.quantities import parse_size
from simlib.model.scenario import Scenario, load_scenario
from simlib.model.strategy import every
from simlib.vmm.qemu_rules import PAGE

LABS = ("x86-npt", "x86-shadow", "arm64-read", "arm64-write", "riscv")
"""Machines of the lab; ``data/scenarios/lab-<name>.toml`` describes each."""

FINE_TURN = Experiment.turn_instructions
"""Mean length of a turn, instructions, in the tables ``fine-*``."""

COARSE_TURN = 2000
"""Mean length of a turn, instructions, in tables without the column ``turn_instructions``."""


class LabHost(NamedTuple):
    """Hardware that corresponds to a machine of the lab.

    - `lab`: the machine, one of `LABS`.
    - `name`: the calibrated host; empty: none is published, and costs are sampled from their priors.
    - `architecture`: architecture of the model; `same_clear`: others with the same code for CLEAR.
    """

    lab: str
    name: str
    cost_group: str
    architecture: str
    same_clear: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Name in tables; it contains the architecture, because a host may have several."""
        return f"{self.name} {self.architecture}" if self.name else f"{self.architecture}, costs from priors"

    def scenario(self, workload: Mapping[str, Any], memory_per_vcpu: str) -> Scenario:
        """Return the scenario of a guest with one vCPU on this host, with a workload."""
        host = {"host": {"name": self.name}, "cost_group": self.cost_group} if self.name else {}
        guest = {"memory_per_vcpu": memory_per_vcpu, "backing": "4k"}
        return Scenario.parse({**host, "guest": guest, "policy": {"architecture": self.architecture},
                               "workload": dict(workload)})  # fmt: skip


LAB_HOSTS = {
    "x86_64/npt": LabHost("x86-npt", "x86-published", "tdp", "x86-tdp"),
    "x86_64/shadow": LabHost("x86-shadow", "x86-published", "shadow", "x86-shadow-paging", ("x86-shadow",)),
    "arm64/vhe": LabHost("arm64-read", "ampere-altra", "fixed test", "arm64", ("arm64-2022",)),
    "riscv64/h": LabHost("riscv", "", "", "riscv"),
}
"""Hosts by target and MMU mode of a trial."""


def lab_scenario(name: str) -> Scenario:
    """Load the scenario of a machine; its costs are in its fit."""
    return load_scenario(data_dir() / "scenarios" / f"lab-{name}.toml")


def lab_case(name: str, row: pd.Series) -> Scenario:
    """Return the scenario of a row of any of the lab's tables; `name`: one of `LABS`."""
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
            "host": {"turn": f"{row.get('turn_instructions', COARSE_TURN)}ns"},
            "guest": {"vcpus": int(row["vcpus"]), "memory_per_vcpu": parse_size(row["memory_per_vcpu"])},
            "policy": {"clear_drop_when": every(batch_of(row["switches"]))},
            "workload": workload,
        }
    )


def lab_name(row: pd.Series) -> str:
    """Return the machine, one of `LABS`, of a row of the lab's tables.

    Raises `InputError` if the row's machine is not one of them.
    """
    machine = f"{row['architecture']} {row['mode']}"
    names = {"x86_64 npt": "x86-npt", "x86_64 shadow": "x86-shadow", "riscv64 h": "riscv"}
    names["arm64 vhe"] = "arm64-write" if "permission_fault_lock=write" in row["switches"] else "arm64-read"
    if machine not in names:
        raise InputError("machine", machine, "has no scenario to compare with", nearest(machine, names))
    return names[machine]


def rows_of(table: str, name: str, kind: str = "") -> pd.DataFrame:
    """Return the rows of a machine in a collected table (``counts-locks``, ``load-ioctls`` …), with ``batch``.

    - `kind`: prefix of the experiments' names. Default: that of the table's name.
    """
    frame = load(table).frame
    kind = kind or table.partition("-")[0]
    return with_batch(frame[frame["experiment"] == f"{kind}-{name}"].reset_index(drop=True))


def with_batch(rows: pd.DataFrame) -> pd.DataFrame:
    """Add ``batch`` to rows of the lab's tables: the pages after which CLEAR drops mmu_lock; 0: never."""
    return rows.assign(batch=rows["switches"].map(batch_of))
