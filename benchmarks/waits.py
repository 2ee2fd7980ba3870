# SPDX-License-Identifier: BSD-3-Clause
"""What people wait for, as commands, beside the same commands of a version before."""

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


@dataclass(frozen=True)
class Wait:
    """A command, what of it is measured, and for how long one would wait at most, s.

    - `compiles`: nothing was compiled before; else it was run before.
    - `cpu`: processor time, rather than the wall's.
    """

    name: str
    arguments: tuple[str, ...]
    limit: float
    compiles: bool = False
    cpu: bool = False


def waits(folder: Path) -> list[Wait]:
    """All of them; their scenarios are written into a folder."""
    small, curve = folder / "small.toml", folder / "curve.toml"
    small.write_text(SMALL)
    curve.write_text(CURVE)
    which = ("--select", "series == 'spinlock-old-test'", "--out", str(folder / "fit.json"))
    return [
        Wait("first answer, nothing compiled", ("simulate", str(small)), 8, compiles=True),
        Wait("calibrate, 7 points, 4 costs: processor time",
             ("calibrate", str(curve), "arm64-dirty-memory-time", *which), 10, cpu=True),
        Wait("choose, 64 vCPUs, 256 GiB, arm64", ("choose", "--architecture", "arm64"), 20),
        Wait("choose-batch, the same", ("choose-batch", "--architecture", "arm64"), 15),
    ]  # fmt: skip


@contextmanager
def version_before(ref: str) -> Iterator[Path]:
    """A tree of another version, as Git has it."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "before"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "--force", str(tree), ref], check=True, capture_output=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True, capture_output=True)


def waited(wait: Wait, tree: Path, cache: Path) -> float:
    """How long it took, s."""
    with tempfile.TemporaryDirectory() as empty:
        places = {"PYTHONPATH": str(tree), "NUMBA_CACHE_DIR": empty if wait.compiles else str(cache)}
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run(
            [sys.executable, "-P", "-m", "simlib", *wait.arguments], cwd=tree, env={**os.environ, **places},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        seconds, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"simlib {' '.join(wait.arguments)} failed:\n{done.stderr}")
    if not wait.cpu:
        return seconds
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
