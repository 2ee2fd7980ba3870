# SPDX-License-Identifier: BSD-3-Clause
"""QEMU's dirty ring compared with its bitmap: how long a published migration takes with each.

The source states neither the bandwidth of the migration nor, except for its writes, the guest. The simulated
bandwidth makes the migration with the bitmap take the published time; the time with the ring is then predicted.
The bitmap is cleared just before a page is sent, the ring at the harvest: a page written in between is sent twice.
"""

from __future__ import annotations

from functools import partial

import pandas as pd
from scipy.optimize import brentq

from simlib._lib import parallel
from simlib.analysis.simulate import run_scenario
from simlib.measurements import data_dir, load
from simlib.measurements.fits import UncertainCosts
from simlib.model.scenario import Scenario, load_scenario
from simlib.simulator.workloads.scaled import scaled
from studies.study import FITTED, HELD_OUT, comparison_rows

NAME, TABLE = "qemu-dirty-ring", "qemu-dirty-ring-migration"
AVERAGE = f"{TABLE}-average"
PART = 4
"""A quarter of the memory is simulated, with passes of a quarter of the time (`simlib.simulator.workloads.scaled`)."""


def scenarios() -> Scenario:
    """The variants ``bitmap`` and ``ring``, and both with PML."""
    return load_scenario(data_dir() / "scenarios" / f"{NAME}.toml")


def migration_time(way: str, link: float, seed: int, check: parallel.Check | None = None) -> float:
    """Time in s of a whole migration over a link of `link` bytes/s."""
    case = UncertainCosts.of(scenarios().variant(way)).central().changed({"workload": {"link": f"{round(link)}B/s"}})
    metrics = run_scenario(scaled(case, PART), seed=seed, progress=check).metrics
    idle_bytes = 4e9  # memory that the guest does not write, sent once: it has 24 GB and writes 20
    return PART * (metrics["precopy_duration"] + metrics["downtime"]) + idle_bytes / link


def link_of(seconds: float, seed: int = 1, check: parallel.Check | None = None) -> float:
    """Link with which the migration with the dirty bitmap takes `seconds`, bytes/s."""
    links = (0.84e9, 1.25e9)  # with less the published guest does not converge; the network has no more
    return float(brentq(lambda link: migration_time("bitmap", link, seed, check) - seconds, *links, xtol=3e6))


def _predicted(seconds: float, seed: int, check: parallel.Check) -> tuple[float, dict[str, float]]:
    link = link_of(seconds, seed, check)
    return link, {way: migration_time(way, link, seed, check) for way in ("bitmap", "ring", "bitmap-pml", "ring-pml")}


def ring_numbers(seed: int = 1, progress: parallel.Progress | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Compare the published means with the model's, and simulate each method with the links found for the bitmap.

    The ring's interval is that of the links with which the bitmap takes as long as its shortest and its longest run.
    """
    runs, means = load(TABLE).frame, load(AVERAGE).frame.set_index("method")["migration_time_s"]
    bitmap = runs[runs["method"] == "dirty-log"]["migration_time_s"]
    wanted = float(means["dirty-log"]), float(bitmap.min()), float(bitmap.max())
    tasks = [partial(_predicted, seconds, seed) for seconds in wanted]
    (_, mean), *ends = runs_of_links = parallel.run_all(tasks, "dirty rings", progress)
    rows = [
        ("bitmap", float(means["dirty-log"]), mean["bitmap"], wanted[1], wanted[2], FITTED),
        ("ring of 4096", float(means["dirty-ring"]), mean["ring"], *sorted(own["ring"] for _, own in ends), HELD_OUT),
    ]
    table = pd.DataFrame(rows, columns=["variant", "published", "predicted", "low", "high", "role"])
    table = comparison_rows(table.assign(metric="migration_time", unit="s", vcpus=8, cause=""), AVERAGE)
    ways = [
        {"published_s": seconds, "link_gb_per_s": link * 1e-9, **{f"{way}_s": time for way, time in times.items()}}
        for seconds, (link, times) in zip(wanted, runs_of_links, strict=True)
    ]
    return table, pd.DataFrame(ways)
