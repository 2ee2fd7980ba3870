# SPDX-License-Identifier: BSD-3-Clause
"""Trials compared with other data: the lab's own collections, and two published outcomes."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from simlib._lib.parallel import Progress
from simlib.lab import Trial
from simlib.lab.hardware.prediction import on_hardware
from studies.lab.switches import switch_effects
from studies.lockless import get_time, kernbench
from studies.migrations.drops import published_change
from studies.x86.hosts import PUBLISHED_CHANGE, configurations


class PatchComparison(NamedTuple):
    """A number of a trial, and the same number of an experiment of ``data/experiments/switches.toml``.

    - `settings`: the experiment's settings without the switch and with it.
    """

    trial: str
    mmu_mode: str
    cell: str
    of: str
    what: str
    experiment: str
    metric: str
    settings: tuple[str, str]


_ARCH = ("dirty_log_arch_lock=N", "dirty_log_arch_lock=Y")
_LOCKLESS = ("lockless_write_protect=N", "lockless_write_protect=Y")
_CHUNK = "eager_split_chunk=2097152 split_skip_levels"
_SPLIT = (f"{_CHUNK}=N, enable", f"{_CHUNK}=Y, enable")
OWN = (
    PatchComparison("arch-lock", "x86_64/shadow", "load", "clear", "time", "lock-inside", "clear_time_s", _ARCH),
    PatchComparison("arch-lock", "x86_64/shadow", "load", "vCPUs", "longest stall", "lock-inside", "longest_stall_s",
                    _ARCH),
    PatchComparison("lockless", "x86_64/shadow", "load", "clear", "time", "lockless-write-protect", "clear_time_s",
                    _LOCKLESS),
    PatchComparison("lockless", "x86_64/shadow", "load", "vCPUs", "longest stall", "lockless-write-protect",
                    "longest_stall_s", _LOCKLESS),
    PatchComparison("split-walk", "arm64/vhe", "blocks", "enable", "time", "split-arm64", "enable_hold_s", _SPLIT),
)  # fmt: skip
"""Numbers of both trials and collections; where enabling splits blocks, nearly all of its time is a hold."""


def own_patches(trials: dict[str, Trial]) -> pd.DataFrame:
    """Ratios that both the trials of bundled patches and the lab's collections contain.

    Returns: ``trial``, ``mmu_mode``, ``number``, ``tried`` (the ratio), ``low``, ``high``, ``collected`` (the ratio
    in other cells: their memory and vCPUs differ, so only direction and order of magnitude have to agree).
    """
    rows = []
    for pair in OWN:
        frame = trials[pair.trial].frame()
        row = frame.query("mmu_mode == @pair.mmu_mode and cell == @pair.cell and of == @pair.of and what == @pair.what")
        effects = switch_effects(pair.experiment).query("metric == @pair.metric").set_index("setting")["value"]
        values = [float(effects[setting]) for setting in pair.settings]
        number = f"{pair.of}: {pair.what}"
        rows.append((pair.trial, pair.mmu_mode, number, *row[["ratio", "low", "high"]].iloc[0], values[1] / values[0]))
    return pd.DataFrame(rows, columns=["trial", "mmu_mode", "number", "tried", "low", "high", "collected"])


def seed_001(trial: Trial, seed: int = 1, progress: Progress | None = None) -> pd.DataFrame:
    """Compare the April 2024 mail's nine changes with the model's from the trial's counts.

    Returns: ``configuration``, ``metric``, ``published``, ``predicted``, ``low``, ``high`` (percent), ``inside``.
    """
    result = on_hardware(trial, configurations(), vcpus=[16], seed=seed, progress=progress)
    frame = result.frame.query("policy == 'with' and metric in @PUBLISHED_CHANGE")
    rows = []
    for row in frame.to_dict("records"):
        number = int(row["workload"].rpartition("-")[2])
        published = published_change(number, row["metric"])
        ends = (row["change_percent"], row["change_low"], row["change_high"])
        rows.append((number, row["metric"], published, *ends, ends[1] <= published <= ends[2]))
    rows.sort(key=lambda row: (row[0], list(PUBLISHED_CHANGE).index(row[1])))
    return pd.DataFrame(rows, columns=["configuration", "metric", "published", "predicted", "low", "high", "inside"])


def seed_002(trial: Trial) -> pd.DataFrame:
    """Compare the 2013 series' ratio of GET's times, after to before, with the model's from the trial's counts.

    Returns: per guest: ``guest``, ``published`` (ratio), ``low``, ``high``: over settings that the mail does not state.
    """
    frame = trial.frame().query("mmu_mode == 'x86_64/shadow' and cell == 'parked'")
    page = frame.query("of == 'clear' and what == 'time a dirty page'").iloc[0]
    locked, lockless = (
        (float(page[name]), float(page[f"{name}_low"]), float(page[f"{name}_high"])) for name in ("base", "changed")
    )
    ratios = get_time.simulate_settings(get_time.Walk(locked, lockless, int(page["runs"]))).groupby("guest", sort=False)
    spread = ratios["ratio_lab"].agg(low="min", high="max").reset_index()
    published = kernbench.get_means().ratio
    spread.insert(1, "published", published)
    return spread.assign(inside=(spread["low"] <= published) & (published <= spread["high"]))
