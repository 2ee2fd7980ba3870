# SPDX-License-Identifier: BSD-3-Clause
"""Tries series of patches in the lab and keeps what each changes: ``data/collected/tried.*``, hours on two cores.

Patches of our own are tried with the switch that each adds; those in ``kernel-patches/tried`` were written anew after
series that others posted. A trial that is kept in ``build/tried`` is not run again.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from simlib._lib.files import write_text, write_together
from simlib.lab import load_trial, try_series
from simlib.lab.trial.data import trial_files
from simlib.measurements import update_listing
from simlib.ui.cli.output import progress_bar

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "build" / "tried"


class Try(NamedTuple):
    """A series, where it is tried, and with which parameters of the module kvm."""

    series: str
    machines: tuple[str, ...]
    parameters: dict[str, Any]
    of_both: Mapping[str, Any] = MappingProxyType({})


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
"""By name."""


def main(names: list[str]) -> None:
    """Try those that have no result yet, or those that are named, and write the table of all."""
    for name, one in TRIES.items():
        kept = KEPT / f"{name}.json"
        if (names and name not in names) or (kept.is_file() and not names):
            continue
        own = one.series[0].isdigit()
        series = one.series if own else ROOT / "kernel-patches" / "tried" / f"{one.series}.patch"
        with progress_bar() as progress:
            found = try_series(
                series, machines=one.machines, quick=True, parameters=one.parameters, of_both=one.of_both,
                progress=progress,
            )  # fmt: skip
        write_text(kept, found.json())
        print(found.summary(), flush=True)
    trials = {name: load_trial(KEPT / f"{name}.json") for name in TRIES if (KEPT / f"{name}.json").is_file()}
    write_together(ROOT / "data" / "collected", trial_files(trials, "tried"))
    update_listing(ROOT / "data")


if __name__ == "__main__":
    main(sys.argv[1:])
