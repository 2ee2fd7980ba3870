# SPDX-License-Identifier: BSD-3-Clause
"""Repeat commands in one process, and check that its memory, descriptors and threads do not grow.

    python checks/endurance.py MINUTES [PIECES]

(`make endurance`) runs PIECES processes one after another, each for an equal part of the minutes. A process repeats the
commands of ``checks/kills.py`` and a sweep, and records its memory, descriptors and threads after each round. The first
quarter of the time is warm-up, in which the allocator's pools fill. Memory may grow by 5 % from the median of the
second quarter to that of the last one; descriptors and threads may not grow. Memory is the resident memory that no file
backs: pages of libraries become private or shared as other processes that use them start and end.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow
from kills import ROOT, commands

from simlib.ui.cli import main as run

MOST_GROWTH = 0.05
"""Largest accepted growth of the memory, relative."""


def run_silently(arguments: tuple[object, ...]) -> None:
    """Run a command in this process without output; other tests check its exit status."""
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
        with contextlib.suppress(SystemExit):
            run([str(argument) for argument in arguments])


def release_memory() -> None:
    """Make the allocators return unused memory; else it varies by 15 %, more than the growth to detect."""
    gc.collect()
    pyarrow.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def run_piece(minutes: float) -> int:
    """Repeat the commands in this process for some minutes, and print its resources; return 1 if they grew."""
    process, start_time = psutil.Process(), time.monotonic()
    samples = []
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        all_arguments = [command.arguments for command in commands(place)]
        os.chdir(place)
        while time.monotonic() - start_time < 60 * minutes:
            for arguments in all_arguments:
                run_silently(arguments)
            with tempfile.TemporaryDirectory(dir=place) as folder:
                run_silently(
                    ("sweep", ROOT / "data" / "grids" / "first.toml", "--out", f"{folder}/out", "--workers", 1)
                )
            release_memory()
            memory_info, elapsed = process.memory_info(), time.monotonic() - start_time
            samples.append((elapsed, memory_info.rss - memory_info.shared, process.num_fds(), process.num_threads()))
        os.chdir(ROOT)
    times, memory, descriptors, threads = np.array(samples).T
    quarter = np.minimum(times // (15 * minutes), 3)
    medians = np.array([[np.median(values[quarter == q]) for values in (memory / 2**20, descriptors, threads)]
                        for q in range(4)])  # fmt: skip
    before, after = medians[1], medians[3]
    growth = after[0] / before[0] - 1
    print(f"{minutes:g} min, {len(samples)} rounds; medians of the quarters: memory {medians[:, 0].round()} MiB, "
          f"{growth:+.1%} from the second to the last; descriptors {medians[:, 1]}; threads {medians[:, 2]}",
          flush=True)  # fmt: skip
    leaked = max(after[1] - before[1], after[2] - before[2])
    return int(growth > MOST_GROWTH or leaked > 0)


def main(minutes: float, pieces: int = 2) -> int:
    """Run the pieces; return the number of those whose resources grew."""
    if pieces == 0:  # this process is a piece
        return run_piece(minutes)
    command = [sys.executable, __file__, str(minutes / pieces), "0"]
    return sum(subprocess.run(command, check=False).returncode != 0 for _ in range(pieces))


if __name__ == "__main__":
    sys.exit(min(1, main(*map(float, sys.argv[1:2]), *map(int, sys.argv[2:3]))))
