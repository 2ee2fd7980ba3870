# SPDX-License-Identifier: BSD-3-Clause
"""Write the small table of a sweep of ``data/grids/strategies.toml``, and its descriptor: ``make strategy-map``.

python benchmarks/strategy_map.py SWEEP data/sweeps/strategies
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from simlib._lib.files import write_together
from simlib.analysis.sweep import load
from studies.decision.sweep import best_policies

COLUMNS = {
    "variant": ("string", "none", "architecture, with its machine and its costs"),
    "vcpus": ("integer", "count", "virtual CPUs of the guest"),
    "access_rate": ("number", "1/s", "accesses of a vCPU in a second, each of any page"),
    "clear_chunk": ("integer", "bytes", "memory of one CLEAR"),
    "clear_lock": ("string", "none", "mode in which CLEAR holds mmu_lock"),
    "policy": ("string", "none", "the policy with the lowest weighted cost: CPU time of CLEAR, plus guest time lost"),
    "value_s": ("number", "s", "its weighted cost"),
    "against_s": ("number", "s", "weighted cost with one hold of the whole ioctl"),
    "equivalent": ("integer", "count", "policies within a tenth of the least, that one among them"),
    "matters": ("boolean", "none", "true if one hold of the whole ioctl is not one of them"),
}


def write(folder: Path, out: Path) -> list[Path]:
    """Write the table of a sweep, and its descriptor."""
    dataset = load(folder)
    frame = best_policies(dataset)
    frame["access_rate"] = 1 / frame.pop("access_interval_s")
    frame = frame[list(COLUMNS)]
    frame = frame.sort_values(list(COLUMNS)[:5], ignore_index=True)
    points = int((dataset["replications"] > 0).sum())
    fields = [{"name": name, "type": kind, "unit": unit, "description": text}
              for name, (kind, unit, text) in COLUMNS.items()]  # fmt: skip
    descriptor = {
        "name": "best-policies", "path": "best-policies.csv", "kind": "simulated",
        "title": f"Best policy at each of {len(frame):,} places, of {points:,} simulated points",
        "command": "make strategy-map", "simlib": dataset.attrs["simlib"], "grid": dataset.attrs["grid"],
        "seed": dataset.attrs["seed"],
        "caveats": ["Guests of 16 MiB and two passes: how long a hold and a wait are is that of a large guest, what "
                    "grows with all of the memory is not.",
                    "Costs are medians, of fits where the machine has one, else of priors."],
        "schema": {"fields": fields},
    }  # fmt: skip
    text = frame.to_csv(index=False, float_format="%.4g", lineterminator="\n")
    return write_together(
        out, {"best-policies.csv": text, "best-policies.json": json.dumps(descriptor, indent=2) + "\n"}
    )


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
