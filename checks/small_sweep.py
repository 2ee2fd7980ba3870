# SPDX-License-Identifier: BSD-3-Clause
"""Tables of a sweep that takes seconds."""

from __future__ import annotations

import pandas as pd

TABLES = {
    "architectures": ["arm64", "riscv"],
    "policies": ["whole-ioctl", "every-64"],
    "unknown_costs": "median",
    "replications": {"least": 2, "most": 4},
    "scenario": {
        "guest": {"memory": "4M"},
        "workload": {"kind": "migration", "warm_up": "1ms", "clear_chunk": "2M", "downtime": "0ps", "pass_limit": 2},
    },
    "axes": {"guest": {"vcpus": [1, 2, 3]}, "workload": {"access_interval": ["1us", "2us", "5us", "10us"]}},
}
"""48 points, of which a third are refused: 4 MiB cannot be divided into whole blocks for three vCPUs."""


def rows(folder, name="results"):
    """Read a data set with pandas, sorted."""
    frame = pd.read_parquet(folder / name)
    return frame.assign(architecture=frame["architecture"].astype(str)).sort_values("point", ignore_index=True)
