# SPDX-License-Identifier: BSD-3-Clause
"""Translation of the lab's instructions into nanoseconds, by kind of action, from published times.

For an action with both a count and a published time, their ratio is the time of an instruction on hardware. It includes
caches, barriers and invalidations, which lab time leaves out. The spread of the ratios between architectures is the
uncertainty for an architecture without a published time. The instructions of the lab's statistics are subtracted first:
the same cells were run on kernels without them (``data/experiments/plain.toml``).
"""

from __future__ import annotations

import datetime
import json

import numpy as np
import pandas as pd

from simlib._lib.version import __version__
from simlib.lab.hardware.instructions import instruction_costs, plain_costs
from simlib.lab.hardware.machines import LAB_HOSTS
from simlib.lab.hardware.translation import KINDS, translate
from simlib.measurements import load
from simlib.measurements.fits import CostEstimate
from simlib.model.host import HOSTS
from studies.arm64 import altra
from studies.study import shipped_fit
from studies.x86 import growth
from studies.x86.hosts import configurations
from studies.x86.parked import PAGES_PER_GIB


def instructions(name: str) -> dict[str, float]:
    """Instructions of each kind of action on one of the lab's machines, without those of the statistics.

    The share of the statistics' instructions that lies within the hold is not known; half is assumed.

    - `name`: one of `simlib.lab.hardware.machines.LABS`.

    >>> drop = instructions("x86-npt")["drop"]
    >>> drop < 60 < 200 < statistics_instructions("x86-npt")["drop"] + drop
    True
    """
    known, plain = _values_of(instruction_costs(name)), _values_of(plain_costs(name))
    statistics = max(0.0, statistics_instructions(name)["fault"])  # 0 if faults take no lock
    fault = {kind: known[KINDS[kind]] - statistics / 2 for kind in ("hold", "exit")}
    return fault | {kind: plain[KINDS[kind]] for kind in ("clear", "drop")}


def statistics_instructions(name: str) -> dict[str, float]:
    """Instructions of the lab's statistics: in a fault, and in dropping and reacquiring mmu_lock."""
    known, plain = _values_of(instruction_costs(name)), _values_of(plain_costs(name))
    fault = known["fault_unlocked"] + known["fault_hold"] + known["guest_access"]
    return {"fault": fault - plain["fault"], "drop": known["reacquire"] - plain["reacquire"]}


def _values_of(costs: pd.DataFrame) -> dict[str, float]:
    return dict(zip(costs["name"], costs["value"], strict=True))


def times() -> pd.DataFrame:
    """List the actions with both a count and a time: kind, architecture, machine of the lab, time_ns, source."""
    x86 = _nanoseconds(shipped_fit(configurations()).estimate)
    ampere = _nanoseconds(altra.shipped_fit().estimate)
    paging = _nanoseconds(growth.growth_fit("shadow-paging-few").estimate)
    # Time that a fault holds the lock, without transfers of the lock's cache lines: the growth is assumed to be work.
    vcpus = 16  # the hold grows with their number
    hold = HOSTS["x86-published"].slowed(vcpus) * paging["fault_hold"]
    hold += x86["queue_length_penalty"] * float(np.log2(vcpus - 1))
    enable = load("arm64-enable-dirty-log-chunks").rows("page_size == '4K' and variant == 'before'")
    enabling = float(enable["enable_time_ms"].iloc[0]) / (128 * PAGES_PER_GIB) * 1e6
    shadow, tdp, arm64 = ("x86-shadow-paging", "x86-shadow"), ("x86-tdp", "x86-npt"), ("arm64", "arm64-write")
    rows = [
        ("exit", *shadow, paging["fault_unlocked"], "calibrated, ept=N"),
        ("exit", *arm64, ampere["fault_unlocked[fixed test]"], "calibrated, the January 2022 series"),
        ("hold", *shadow, hold, f"calibrated, ept=N, with its growth at {vcpus} vCPUs"),
        ("hold", *arm64, ampere["fault_hold"], "calibrated, the January 2022 series"),
        ("clear", *shadow, x86["clear_page[shadow]"], "CLEAR with parked vCPUs"),
        ("clear", *tdp, x86["clear_page[tdp]"], "CLEAR with parked vCPUs"),
        ("clear", *arm64, enabling, "write-protection when the log is enabled, Kunpeng 920 (not CLEAR)"),
        ("drop", *tdp, x86["reacquire"], "the April 2024 mail, configuration 1"),
    ]
    return pd.DataFrame(rows, columns=["kind", "architecture", "machine", "time_ns", "source"])


def _nanoseconds(estimate: CostEstimate) -> dict[str, float]:
    return dict(zip(estimate.names, (np.exp(estimate.logs) / 1000).tolist(), strict=True))


def ratio_table() -> pd.DataFrame:
    """Compute nanoseconds per instruction, by kind and architecture, and predict each time from the other rows.

    Returns: ``kind``, ``architecture``, ``instructions``, ``statistics`` (subtracted), ``time_ns``,
    ``ns_per_instruction``, ``by_the_others_ns`` (predicted from the other rows of the kind), ``factor`` (predicted
    over published time, or the inverse, whichever is larger; NaN: no other row), ``source``.

    >>> table = ratio_table()
    >>> bool(table[table["kind"] == "clear"]["factor"].max() < 2)
    True
    """
    table = times()
    counts, subtracted = [], []
    for kind, machine in zip(table["kind"], table["machine"], strict=True):
        statistics = statistics_instructions(machine)
        counts.append(instructions(machine)[kind])
        subtracted.append({"clear": 0.0, "drop": statistics["drop"]}.get(kind, statistics["fault"] / 2))
    table = table.assign(instructions=counts, statistics=subtracted)
    table["ns_per_instruction"] = table["time_ns"] / table["instructions"]
    logs = np.log(table["ns_per_instruction"])
    kinds = logs.groupby(table["kind"])
    others = np.exp((kinds.transform("sum") - logs) / (kinds.transform("size") - 1).replace(0, np.nan))
    table["by_the_others_ns"] = others * table["instructions"]
    table["factor"] = np.exp(np.abs(np.log(table["by_the_others_ns"] / table["time_ns"])))
    return table[["kind", "architecture", "instructions", "statistics", "time_ns", "ns_per_instruction",
                  "by_the_others_ns", "factor", "source"]]  # fmt: skip


def shipped_text() -> str:
    """Return the text of ``data/fits/lab/instruction-times.json``, which `simlib.lab.hardware.translation` reads."""
    ratios = ratio_table()[
        ["kind", "architecture", "instructions", "statistics", "time_ns", "ns_per_instruction", "source"]
    ]
    machines = {host.lab for host in LAB_HOSTS.values()}
    shipped = {
        "title": "Time on hardware of the lab's instructions, by kind of action and architecture",
        "made_by": "python checks/shipped.py lab-instruction-times",
        "date": datetime.date.today().isoformat(),
        "version": __version__,
        "ratios": ratios.to_dict("records"),
        "reacquire_instructions": {
            name: instructions(name)["drop"] + statistics_instructions(name)["drop"] for name in sorted(machines)
        },
    }
    return json.dumps(shipped, indent=1, ensure_ascii=False) + "\n"


def riscv_priors(ratios: pd.DataFrame) -> pd.DataFrame:
    """Estimate riscv's costs, for which no times are published, from the ratios of the other architectures.

    Returns: ``cost``, ``instructions``, ``median_ns``, ``factor`` (90 %).

    - `ratios`: from `ratio_table`.
    """
    counts = instructions("riscv")
    rows = [(KINDS[kind], counts[kind], *translate(kind, counts[kind], ratios)) for kind in KINDS]
    return pd.DataFrame(rows, columns=["cost", "instructions", "median_ns", "factor"])
