# SPDX-License-Identifier: BSD-3-Clause
"""Questions about a host with PML that were answered by the model before anybody measured them.

    python -m studies.hardware_logs.preregistered

writes ``data/predictions/pml-xeon-times`` and ``-ratios``. Every draw has a value of each cost from its prior;
a prediction is the median over the draws, and its interval contains 90 % of them.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd

from simlib._lib import parallel
from simlib._lib.files import write_together
from simlib.analysis.prediction_options import LEVEL
from simlib.analysis.simulate import SimulationResult, run_scenario
from simlib.measurements import data_dir
from simlib.measurements.fits import UncertainCosts
from simlib.measurements.fits.priors import priors_path
from simlib.measurements.importers.tables import Column, DescribedTable, predicted_files
from simlib.model.scenario import Scenario, load_scenario
from simlib.model.steps import Stamp
from simlib.simulator.engine.result import ACTIVITIES, LOGGED, PS
from simlib.simulator.workloads.degradation import SWITCHOVER
from studies.x86.parked import PAGES_PER_GIB

NAME, DRAWS, SEED = "pml-xeon", 60, 1

ALIKE = 0.05
"""Assumed standard deviation of the logarithms of GET's and CLEAR's times for a page, which are equal in the model."""

INITIALLY_SET = "enable the log, initially set, for a GiB", 2e-5, 1e-6, 1e-4
"""Not simulated, as it is free in the model: at most the published 10 ms for 128 GiB (x86-enable-dirty-log-chunks)."""


def _columns(unit: str) -> tuple[Column, ...]:
    """Columns of a table of predictions."""
    return (
        Column("question", "text", "what was asked"),
        Column("guest_memory", "text", "memory of the guest"),
        Column(f"estimate_{unit}", "number", "median over the draws of the costs"),
        Column(f"low_{unit}", "number", "lower end of its interval"),
        Column(f"high_{unit}", "number", "upper end of its interval"),
    )


RATIO = "GET that clears over GET and CLEAR of everything"
QUESTIONS = (
    "enable the log, not initially set, for a GiB",
    RATIO,
    "mmu_lock held for CLEAR of a GiB",
    "a page written again after CLEAR",
    "a vCPU out of the guest, in a minute of passes that GET clears",
    "a vCPU held up in all, in such a minute",
    "a vCPU waiting for mmu_lock, in such passes",
)
"""Predicted quantities: times in s, and a ratio of ioctl times."""


class PreregisteredQuestion(NamedTuple):
    """A guest of one size: with manual protection, and with a GET that clears."""

    memory: str
    manual: Scenario
    clears: Scenario


def asked() -> list[PreregisteredQuestion]:
    """The scenarios of ``data/scenarios/pml-xeon.toml``, by the guest's size."""
    cases = load_scenario(data_dir() / "scenarios" / f"{NAME}.toml").variants
    sizes = ("8G", "64G")
    return [PreregisteredQuestion(n, cases[f"manual-{n.lower()}"], cases[f"get-clears-{n.lower()}"]) for n in sizes]


def _span(run: SimulationResult, first: Stamp, last: Stamp) -> float:
    begin, end = (int(run.raw.stamp_ps[run.job.stamps.index(stamp)]) for stamp in (first, last))
    return (end - begin) * PS


def answers(question: PreregisteredQuestion, number: int, check: parallel.Check) -> list[float]:
    """Values of `QUESTIONS` with one draw of the costs."""
    random = np.random.default_rng([SEED, number])
    costs = UncertainCosts.of(question.clears).draw(random).costs
    paths = float(np.exp(ALIKE * random.standard_normal() * 2**0.5))
    manual, clears = (
        run_scenario(UncertainCosts.of(case.with_costs(**costs.given())).central(), seed=number, progress=check)
        for case in (question.manual, question.clears)
    )
    gib, vcpus = question.manual.guest.pages / PAGES_PER_GIB, question.manual.guest.vcpus
    get_clears, get = (_span(run, Stamp("sent", 1), Stamp("collected", 2)) for run in (clears, manual))
    passes = manual.metrics["passes"]
    clear = manual.metrics["clear_cpu_time"] / passes
    over = clears.job.stamps.index(SWITCHOVER)
    began = clears.job.stamps.index(Stamp("enabled"))
    minutes = _span(clears, Stamp("enabled"), SWITCHOVER) / 60
    logged = int(clears.raw.stamp_sums[over, LOGGED] - clears.raw.stamp_sums[began, LOGGED])
    lost = clears.metrics["fault_cpu_time"] / vcpus / minutes
    setting = logged * (clears.scenario.costs.dirty_set or 0) * PS / vcpus / minutes
    exits = (costs.log_exit or 0) / question.clears.policy.buffer_entries
    again = (costs.dirty_set or 0) + (costs.log_entry or 0) + exits
    return [
        clears.metrics["enable_time"] / gib,
        paths * get_clears / (get + clear),
        manual.metrics["clear_work_time"] / passes / gib,
        again * PS,
        lost - setting,
        lost,
        float(clears.raw.thread_ps[:vcpus, ACTIVITIES.index("wait")].max()) * PS,
    ]


def predictions(progress: parallel.Progress | None = None) -> pd.DataFrame:
    """All predictions: question, guest_memory, estimate, low, high; times in s."""
    rows = []
    for question in asked():
        tasks = [partial(answers, question, number) for number in range(DRAWS)]
        drawn = np.array(parallel.run_all(tasks, question.memory, progress))
        ends = np.quantile(drawn, [0.5, (1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0).T
        rows += [(what, question.memory, *own) for what, own in zip(QUESTIONS, ends, strict=True)]
        rows.append((INITIALLY_SET[0], question.memory, *INITIALLY_SET[1:]))
    return pd.DataFrame(rows, columns=["question", "guest_memory", "estimate", "low", "high"])


def files_of(table: pd.DataFrame) -> dict[str, str]:
    """Both tables, each a CSV with its descriptor."""
    used = data_dir() / "scenarios" / f"{NAME}.toml", priors_path()
    about = {
        "source": {"subject": "simlib", "author": "simlib"},
        "level": LEVEL,
        "seeds": [SEED],
        "command": "python -m studies.hardware_logs.preregistered",
        "answers": [],
        "notes": [
            "Written before anybody answered, and not changed afterwards.",
            "Enabling with KVM_DIRTY_LOG_INITIALLY_SET is free in the model. The value given for it was not "
            "simulated: it is at most the published 10 ms for 128 GiB.",
            "GET and CLEAR take as long for a page in the model; the ratio's interval adds 5 % for each.",
        ],
        "caveats": ["No cost of such a host is known: all are drawn from data/priors/costs.toml."],
    }
    files: dict[str, str] = {}
    for kind, unit in (("ratios", "ratio"), ("times", "s")):
        columns = _columns(unit)
        rows = table[(table["question"] == RATIO) == (unit == "ratio")]
        rows = rows.set_axis([column.name for column in columns], axis=1)
        title = f"a server with PML, {kind}: predicted before it was measured"
        described = DescribedTable(f"{NAME}-{kind}", title, columns, ("question", "guest_memory"), rows)
        files |= predicted_files(described, about, used)
    return files


def main() -> None:
    """Compute and write the predictions."""
    table = predictions()
    write_together(data_dir() / "predictions", files_of(table))
    print(table.to_string())


if __name__ == "__main__":
    main()
