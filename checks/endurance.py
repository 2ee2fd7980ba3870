# SPDX-License-Identifier: BSD-3-Clause
"""The same commands again and again in one process: does it keep memory, descriptors or threads?

    python checks/endurance.py MINUTES [PIECES]

(`make endurance`) runs so many processes one after another, each for its part of the minutes. A process goes round the
commands that ``checks/kills.py`` ends, and a sweep; after each round its memory, descriptors and threads are written
down. The first quarter of the time is warm-up, in which the allocator's pools fill. Memory is flat if the median of the
last quarter is at most 5 % above that of the second one. Memory is what a process has that no file holds: pages of
libraries are its own or shared as other processes come and go that use them, too.
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

MOST = 0.05
"""By how much memory may grow."""


def once(words: tuple[object, ...]) -> None:
    """Run a command in this process, silently; whether it succeeds is for other tests."""
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
        with contextlib.suppress(SystemExit):
            run([str(word) for word in words])


def give_back() -> None:
    """Have the allocators return what nobody uses: else they waver by 15 %, more than what is sought."""
    gc.collect()
    pyarrow.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def piece(minutes: float) -> int:
    """Go round for so long in this process; print what it kept. Returns 1 if that grew."""
    process, begun = psutil.Process(), time.monotonic()
    seen = []
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        rounds = [command.arguments for command in commands(place)]
        os.chdir(place)
        while time.monotonic() - begun < 60 * minutes:
            for words in rounds:
                once(words)
            with tempfile.TemporaryDirectory(dir=place) as swept:
                once(("sweep", ROOT / "data" / "grids" / "first.toml", "--out", f"{swept}/out", "--workers", 1))
            give_back()
            held = process.memory_info()
            seen.append((time.monotonic() - begun, held.rss - held.shared, process.num_fds(), process.num_threads()))
        os.chdir(ROOT)
    at, memory, descriptors, threads = np.array(seen).T
    quarter = np.minimum(at // (15 * minutes), 3)
    medians = np.array([[np.median(each[quarter == q]) for each in (memory / 2**20, descriptors, threads)]
                        for q in range(4)])  # fmt: skip
    before, after = medians[1], medians[3]
    grown = after[0] / before[0] - 1
    print(f"{minutes:g} min, {len(seen)} rounds; medians of the quarters: memory {medians[:, 0].round()} MiB, of the "
          f"last one {grown:+.1%} against the second; descriptors {medians[:, 1]}; threads {medians[:, 2]}",
          flush=True)  # fmt: skip
    kept = max(after[1] - before[1], after[2] - before[2])
    return int(grown > MOST or kept > 0)


def main(minutes: float, pieces: int = 2) -> int:
    """Run the pieces; return how many grew."""
    if pieces == 0:  # this is one of them
        return piece(minutes)
    command = [sys.executable, __file__, str(minutes / pieces), "0"]
    return sum(subprocess.run(command, check=False).returncode != 0 for _ in range(pieces))


if __name__ == "__main__":
    sys.exit(min(1, main(*map(float, sys.argv[1:2]), *map(int, sys.argv[2:3]))))
