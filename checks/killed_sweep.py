# SPDX-License-Identifier: BSD-3-Clause
"""Sweep a grid while its driver is killed several times; report the duration and the driver's peak memory.

python checks/killed_sweep.py GRID.toml FOLDER [KILLS] [SECONDS BEFORE A KILL]
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path


def peak_mib(pid: int) -> float:
    """Peak memory of a process, MiB; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    return max((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), default=0.0)


def sweep(grid: str, folder: str, seconds: float) -> tuple[int, float]:
    """Run `simlib sweep --resume`, for `seconds` if not 0; return its exit code and peak memory, MiB."""
    command = [sys.executable, "-m", "simlib", "sweep", grid, "--out", folder, "--resume"]
    deadline, highest = time.monotonic() + seconds, 0.0
    with subprocess.Popen(command) as driver:
        while driver.poll() is None:
            highest = max(highest, peak_mib(driver.pid))
            if seconds and time.monotonic() > deadline:
                driver.kill()
            time.sleep(0.2)
    return driver.returncode, highest


def main(grid: str, folder: str, kills: int = 3, seconds: float = 120.0) -> int:
    """Kill the driver several times, complete the sweep, and print the result; return the exit code."""
    start, highest = time.monotonic(), 0.0
    for _ in range(kills):
        code, peak = sweep(grid, folder, seconds)
        highest = max(highest, peak)
        if code != -9:
            print(f"not killed: the driver ended with status {code}")
            return 1
    code, peak = sweep(grid, folder, 0.0)
    result = {"exit_code": code, "kills": kills, "wall_s": round(time.monotonic() - start),
              "driver_peak_mib": round(max(highest, peak))}  # fmt: skip
    print(json.dumps(result))
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3], *(int(number) for number in sys.argv[3:])))
