# SPDX-License-Identifier: BSD-3-Clause
"""Commands whose time is measured, also with the simlib of another commit."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

SMALL = """
[guest]
vcpus = 4
memory_per_vcpu = "2M"
[policy]
architecture = "arm64"
"""

CURVE = """
[host]
cores = 64
[guest]
memory_per_vcpu = "2G"
backing = "hugetlb_2mb"
memslot_aligned = false
[policy]
architecture = "arm64-spinlock"
[workload]
kind = "dirty_log_perf_test"
iterations = 2
initially_set = true
lock_stat_runs = 3
[calibration]
costs = ["fault_hold", "line_transfer", "fault_unlocked", "tlb_invalidate"]
metrics = ["dirty_memory_time", "contentions"]
included_in_others = ["guest_access", "line_local"]
"""
"""The published curve of the old test under a spinlock: seven numbers of vCPUs."""


GUEST = ("--vcpus", "64", "--memory", "512G", "--dirty", "900000/s over 40G", "--link", "25Gbit/s")
"""A guest that `migrate` of all commits accepts."""


@dataclass(frozen=True)
class TimedCommand:
    """Command, and the largest accepted time (`limit`), s.

    - `compiles`: the command runs without a cache of compiled code; otherwise it has run before.
    - `cpu`: the processor time is measured, not the wall time.
    """

    name: str
    arguments: tuple[str, ...]
    limit: float
    compiles: bool = False
    cpu: bool = False


def commands(folder: Path) -> list[TimedCommand]:
    """Return all commands, and write their scenarios into a folder."""
    small, curve = folder / "small.toml", folder / "curve.toml"
    small.write_text(SMALL)
    curve.write_text(CURVE)
    selection = ("--select", "series == 'spinlock-old-test'", "--out", str(folder / "fit.json"))
    return [
        TimedCommand("first simulate, nothing compiled yet", ("simulate", str(small)), 8, compiles=True),
        TimedCommand("first migrate, nothing compiled yet", ("migrate", *GUEST), 20, compiles=True),
        TimedCommand("calibrate, 7 points, 4 costs: CPU time",
             ("calibrate", str(curve), "arm64-dirty-memory-time", *selection), 10, cpu=True),
        TimedCommand("choose, 64 vCPUs, 256 GiB, arm64", ("choose", "--architecture", "arm64"), 20),
        TimedCommand("choose-batch, same guest", ("choose-batch", "--architecture", "arm64"), 15),
    ]  # fmt: skip


@contextmanager
def tree_of(commit: str) -> Iterator[Path]:
    """Check out a commit in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "before"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "--force", str(tree), commit], check=True, capture_output=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True, capture_output=True)


def time_of(command: TimedCommand, tree: Path, cache: Path) -> float:
    """Run a command of the simlib in a tree, and return its time, s."""
    with tempfile.TemporaryDirectory() as empty:
        variables = {"PYTHONPATH": str(tree), "NUMBA_CACHE_DIR": empty if command.compiles else str(cache)}
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run(
            [sys.executable, "-P", "-m", "simlib", *command.arguments], cwd=tree, env={**os.environ, **variables},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        seconds, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"simlib {' '.join(command.arguments)} failed:\n{done.stderr}")
    if not command.cpu:
        return seconds
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
