# SPDX-License-Identifier: BSD-3-Clause
"""From instructions to nanoseconds: what the lab counts, beside what was published, by kind of action.

Where both a count and a time exist, their ratio says what an instruction of such an action takes on hardware: caches,
barriers and invalidations that emulated time leaves out are in it. How far the ratios of different architectures lie
apart is how far an untried one's may be off. The statistics' own instructions are taken off first: the same cells were
run on kernels without them (``data/experiments/plain.toml``).
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

_WAITERS_AT = 16
"""vCPUs at which x86's hold is taken, since it grows with them."""


def instructions(name: str) -> dict[str, float]:
    """What each kind of action executes on one of the lab's machines, the statistics' own taken off.

    How many of the statistics' instructions lie within the hold is not known; half of them are taken to.

    - `name`: one of `simlib.lab.hardware.machines.LABS`.

    >>> found = instructions("x86-npt")["drop"]
    >>> found < 60 < 200 < statistics_own("x86-npt")["drop"] + found
    True
    """
    known, plain = _values_of(instruction_costs(name)), _values_of(plain_costs(name))
    within = max(0.0, statistics_own(name)["fault"])  # none where faults take no lock
    both = {kind: known[KINDS[kind]] - within / 2 for kind in ("hold", "exit")}
    return both | {kind: plain[KINDS[kind]] for kind in ("clear", "drop")}


def statistics_own(name: str) -> dict[str, float]:
    """Instructions of the lab's statistics themselves: in a fault, and in letting go and taking the lock again."""
    known, plain = _values_of(instruction_costs(name)), _values_of(plain_costs(name))
    fault = known["fault_unlocked"] + known["fault_hold"] + known["guest_access"]
    return {"fault": fault - plain["fault"], "drop": known["reacquire"] - plain["reacquire"]}


def _values_of(costs: pd.DataFrame) -> dict[str, float]:
    return dict(zip(costs["name"], costs["value"], strict=True))


def times() -> pd.DataFrame:
    """All actions of which both a count and a time exist: kind, architecture, machine (the lab's), time_ns, source."""
    x86 = _nanoseconds(shipped_fit(configurations()).estimate)
    ampere = _nanoseconds(altra.shipped_fit().estimate)
    paging = _nanoseconds(growth.growth_fit("shadow-paging-few").estimate)
    # What a fault occupies the lock for, moving the lock's own lines left out: the growth is work of some kind.
    hold = HOSTS["x86-published"].slowed(_WAITERS_AT) * paging["fault_hold"]
    hold += x86["queue_length_penalty"] * float(np.log2(_WAITERS_AT - 1))
    enable = load("arm64-enable-dirty-log-chunks").rows("page_size == '4K' and variant == 'before'")
    enabling = float(enable["enable_time_ms"].iloc[0]) / (128 * PAGES_PER_GIB) * 1e6
    shadow, tdp, arm64 = ("x86-shadow-paging", "x86-shadow"), ("x86-tdp", "x86-npt"), ("arm64", "arm64-write")
    rows = [
        ("exit", *shadow, paging["fault_unlocked"], "calibrated, ept=N"),
        ("exit", *arm64, ampere["fault_unlocked[fixed test]"], "calibrated, the January 2022 series"),
        ("hold", *shadow, hold, f"calibrated, ept=N, with its growth at {_WAITERS_AT} vCPUs"),
        ("hold", *arm64, ampere["fault_hold"], "calibrated, the January 2022 series"),
        ("clear", *shadow, x86["clear_page[shadow]"], "CLEAR with parked vCPUs"),
        ("clear", *tdp, x86["clear_page[tdp]"], "CLEAR with parked vCPUs"),
        ("clear", *arm64, enabling, "write-protecting at enable, Kunpeng 920: not CLEAR"),
        ("drop", *tdp, x86["reacquire"], "the April 2024 mail, configuration 1"),
    ]
    return pd.DataFrame(rows, columns=["kind", "architecture", "machine", "time_ns", "source"])


def _nanoseconds(estimate: CostEstimate) -> dict[str, float]:
    return dict(zip(estimate.names, (np.exp(estimate.logs) / 1000).tolist(), strict=True))


def ratio_table() -> pd.DataFrame:
    """Nanoseconds an instruction, by kind and architecture, and each one's as the others say it.

    Returns: ``kind``, ``architecture``, ``instructions``, ``statistics`` (taken off), ``time_ns``,
    ``ns_per_instruction``, ``by_the_others_ns``, ``factor`` (by the others over its own, or the inverse; NaN: there is
    no other), ``source``.

    >>> table = ratio_table()
    >>> bool(table[table["kind"] == "clear"]["factor"].max() < 2)
    True
    """
    table = times()
    counted, taken = [], []
    for kind, machine in zip(table["kind"], table["machine"], strict=True):
        own = statistics_own(machine)
        counted.append(instructions(machine)[kind])
        taken.append({"clear": 0.0, "drop": own["drop"]}.get(kind, own["fault"] / 2))
    table = table.assign(instructions=counted, statistics=taken)
    table["ns_per_instruction"] = table["time_ns"] / table["instructions"]
    logs = np.log(table["ns_per_instruction"])
    kinds = logs.groupby(table["kind"])
    others = np.exp((kinds.transform("sum") - logs) / (kinds.transform("size") - 1).replace(0, np.nan))
    table["by_the_others_ns"] = others * table["instructions"]
    table["factor"] = np.exp(np.abs(np.log(table["by_the_others_ns"] / table["time_ns"])))
    return table[["kind", "architecture", "instructions", "statistics", "time_ns", "ns_per_instruction",
                  "by_the_others_ns", "factor", "source"]]  # fmt: skip


def shipped_text() -> str:
    """Contents of ``data/fits/lab/instruction-times.json``, which `simlib.lab.hardware.translation` reads."""
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
            name: instructions(name)["drop"] + statistics_own(name)["drop"] for name in sorted(machines)
        },
    }
    return json.dumps(shipped, indent=1, ensure_ascii=False) + "\n"


def riscv_priors(ratios: pd.DataFrame) -> pd.DataFrame:
    """riscv's costs, which nobody has timed, as the others translate them.

    Returns: ``cost``, ``instructions``, ``median_ns``, ``factor`` (90 %).

    - `ratios`: of `ratio_table`.
    """
    counted = instructions("riscv")
    rows = [(KINDS[kind], counted[kind], *translate(kind, counted[kind], ratios)) for kind in KINDS]
    return pd.DataFrame(rows, columns=["cost", "instructions", "median_ns", "factor"])
