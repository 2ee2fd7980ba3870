# SPDX-License-Identifier: BSD-3-Clause
"""Data of the lab compared with the model: counts, instruction costs, cells under load, and effects of each switch."""

from __future__ import annotations

import pandas as pd

from simlib._lib.parallel import Progress
from simlib.figures.results import Answer
from simlib.lab.hardware.counts import count_comparison, repeat_table
from simlib.lab.hardware.instructions import cost_estimate, instruction_costs
from simlib.lab.hardware.ledger import load_ledger
from simlib.lab.hardware.load import TURN_MACHINES, load_comparison, load_errors, turn_comparison
from simlib.lab.hardware.machines import LABS, rows_of
from studies.lab.rings import ring_table
from studies.lab.switches import SWITCHES, switch_effects
from studies.lab.translation import ratio_table, riscv_priors
from studies.study import COLUMNS, HELD_OUT, Study, StudyFindings


def compute(*, seed: int = 1, progress: Progress | None = None) -> StudyFindings:
    """Compute all tables from the committed data. They contain no published number and do not depend on the seed."""
    counts, costs, load, turns = [], [], [], []
    for number, name in enumerate(LABS):
        if progress is not None:
            progress(f"the lab: {name}", number / len(LABS))
        costs.append(instruction_costs(name))
        counts.append(count_comparison(rows_of("counts-locks", name)).assign(machine=name))
        estimate = cost_estimate(costs[-1], name)
        load.append(load_comparison(name, estimate).assign(machine=name, role=HELD_OUT))
        if name in TURN_MACHINES:
            turns.append(turn_comparison(name, estimate).assign(machine=name, role=HELD_OUT))
        costs[-1].insert(0, "machine", name)
    cells, ratios = pd.concat(load, ignore_index=True), ratio_table()
    tables = {
        "counts": pd.concat(counts, ignore_index=True),
        "instruction-costs": pd.concat(costs, ignore_index=True),
        "under-load": cells,
        "errors": load_errors(cells),
        "turns": pd.concat(turns, ignore_index=True),
        "ledger": load_ledger(),
        "switches": pd.concat([switch_effects(name).assign(experiment=name) for name in SWITCHES], ignore_index=True),
        "repeats": repeat_table(),
        "ratios": ratios,
        "rings": ring_table(),
        "riscv-priors": riscv_priors(ratios),
    }
    return StudyFindings(pd.DataFrame(columns=list(COLUMNS)), tables)


def answer(findings: StudyFindings) -> Answer:
    """Return the agreement of the simulator with counts and times of running kernels."""
    errors = findings.tables["errors"].query("machine == 'all'").set_index("metric")["median"] * 100
    return Answer(
        "After the log is enabled, the simulator's number of acquisitions of mmu_lock equals the kernel's in every "
        "parked cell. No cost was fitted to times under load. The median error is "
        f"{errors['clear_dirty_log_time']:.3g} % for the time of CLEAR and {errors['longest_stall']:.3g} % for the "
        "longest stall."
    )


TABLES = (
    "counts-locks", "counts-runs", "memory-ioctls", "memory-locks", "memory-runs", "plain-ioctls", "load-ioctls",
    "load-locks", "load-stalls", "load-runs", "fine-ioctls", "fine-stalls", "turns-ioctls", "turns-stalls",
    "odd-predicted", "odd-ioctls", "odd-stalls", "even-predicted", "rings-ioctls", "rings-locks", "switches-ioctls",
    "switches-locks", "switches-stalls", "switches-runs",
)  # fmt: skip
STUDY = Study("lab", "The contention lab", ("02-contention-lab",), TABLES, compute, answer, runtime_s=60)
