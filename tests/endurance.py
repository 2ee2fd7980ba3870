# SPDX-License-Identifier: BSD-3-Clause
"""The same commands again and again in one process: does it keep memory, descriptors or threads?

    python tests/endurance.py MINUTES [PIECES]

(`make endurance`) runs so many processes one after another, each for its part of the minutes. A process goes round the
commands that ``tests/kills.py`` ends, and a sweep; after each round its memory, descriptors and threads are written
down. The first quarter of the time is warm-up, in which the allocator's pools fill. Memory is flat if the median of the
last quarter is at most 5 % above that of the second one.
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

from simlib.cli import main as run

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
        rounds = [command.words for command in commands(place)]
        os.chdir(place)
        while time.monotonic() - begun < 60 * minutes:
            for words in rounds:
                once(words)
            with tempfile.TemporaryDirectory(dir=place) as swept:
                once(("sweep", ROOT / "data" / "grids" / "first.toml", "--out", f"{swept}/out", "--workers", 1))
            give_back()
            seen.append((time.monotonic() - begun, process.memory_full_info().uss, process.num_fds(),
                         process.num_threads()))  # fmt: skip
        os.chdir(ROOT)
    at, memory, descriptors, threads = np.array(seen).T
    early, late = (at > 15 * minutes) & (at <= 30 * minutes), at > 45 * minutes
    before, after = ([np.median(each[part]) for each in (memory, descriptors, threads)] for part in (early, late))
    grown = after[0] / before[0] - 1
    print(f"{minutes:g} min, {len(seen)} rounds: memory {before[0] / 2**20:.0f} and {after[0] / 2**20:.0f} MiB "
          f"({grown:+.1%}), descriptors {before[1]:g} and {after[1]:g}, threads {before[2]:g} and {after[2]:g}",
          flush=True)  # fmt: skip
    kept = max(after[1] - before[1], after[2] - before[2])
    return int(grown > MOST or kept > 0)


def main(minutes: float, pieces: int = 2) -> int:
    """Run the pieces; return how many grew."""
    if pieces == 1:
        return piece(minutes)
    command = [sys.executable, __file__, str(minutes / pieces), "1"]
    return sum(subprocess.run(command, check=False).returncode != 0 for _ in range(pieces))


if __name__ == "__main__":
    sys.exit(min(1, main(*map(float, sys.argv[1:2]), *map(int, sys.argv[2:3]))))
