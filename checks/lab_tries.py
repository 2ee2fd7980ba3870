# SPDX-License-Identifier: BSD-3-Clause
"""Try patch series in the lab, and write their differences to ``data/collected/tried.*``: hours on two cores.

Bundled patches are tried with the switch that each adds. The patches in ``kernel-patches/tried`` were rewritten after
posted series. Trials in ``build/tried`` are not run again.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from simlib._lib.files import write_text, write_together
from simlib.lab import TrialOptions, load_trial, try_series
from simlib.lab.trial.result import trial_files
from simlib.measurements import update_listing
from simlib.ui.cli.output import progress_bar

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "build" / "tried"


class Try(NamedTuple):
    """A series, and the MMU modes and parameters of the module kvm with which it is tried."""

    series: str
    mmu_modes: tuple[str, ...]
    parameters: dict[str, Any]
    shared_parameters: Mapping[str, Any] = MappingProxyType({})


TRIES = {
    "clear-batch": Try("7", ("x86_64", "arm64", "riscv64"), {"dirty_log_clear_batch": 64}),
    "arch-lock": Try("8", ("x86_64/shadow",), {"dirty_log_arch_lock": "Y"}),
    "fault-mode": Try("10", ("arm64",), {"permission_fault_lock": "write", "translation_fault_lock": "write"}),
    "split-walk": Try("15", ("arm64",), {"split_skip_levels": "Y"}, {"eager_split_chunk": 2 << 20}),
    "rmap-lock": Try("16", ("x86_64/shadow",), {}),
    "lockless": Try("16-17", ("x86_64/shadow",), {"lockless_write_protect": "Y"}),
    "clear-two-words": Try("clear-two-words", ("x86_64/shadow",), {}),
    "yield-order": Try("yield-order", ("x86_64/npt",), {}),
    "collapse-flush": Try("collapse-flush", ("x86_64/npt",), {}),
    "ring-resched": Try("ring-resched", ("x86_64/npt",), {}),
    "arm64-destroy": Try("arm64-destroy", ("arm64",), {}),
}
"""Series to try, by name."""


def main(names: list[str]) -> None:
    """Try the series with these names, by default those without a result, and write the table of all results."""
    for name, attempt in TRIES.items():
        result = RESULTS / f"{name}.json"
        if (names and name not in names) or (result.is_file() and not names):
            continue
        bundled = attempt.series[0].isdigit()
        series = attempt.series if bundled else ROOT / "kernel-patches" / "tried" / f"{attempt.series}.patch"
        options = TrialOptions(
            mmu_modes=attempt.mmu_modes, quick=True, parameters=attempt.parameters,
            shared_parameters=attempt.shared_parameters,
        )  # fmt: skip
        with progress_bar() as progress:
            trial = try_series(series, options, progress=progress)
        write_text(result, trial.json())
        print(trial.summary(), flush=True)
    trials = {name: load_trial(RESULTS / f"{name}.json") for name in TRIES if (RESULTS / f"{name}.json").is_file()}
    write_together(ROOT / "data" / "collected", trial_files(trials, "tried"))
    update_listing(ROOT / "data")


if __name__ == "__main__":
    main(sys.argv[1:])
