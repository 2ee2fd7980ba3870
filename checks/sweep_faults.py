# SPDX-License-Identifier: BSD-3-Clause
"""Faults of sweeps with separate processes: after a fault, no finished point is lost or counted twice.

    python checks/sweep_faults.py [KILLS]

After every fault the sweep is resumed, and its data sets are bitwise identical to those of an undisturbed sweep.
"""

from __future__ import annotations

import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import psutil
import tomli_w
from processes import (
    DRIVER,
    at_work,
    dask_worker,
    descendants,
    port,
    rows_on_disk,
    scheduler,
    started,
    until,
    workers_of,
)
from small_sweep import TABLES, rows

from simlib.analysis.sweep import read_grid, run


class Bench:
    """Grid with its undisturbed data sets, and folders for disturbed sweeps.

    - `intervals`: number of values of one axis, with 12 points each, of which a third are refused.
    - `least`: replications of each point, which determine its duration.
    """

    def __init__(self, folder: Path, intervals: int, least: int) -> None:
        self.folder, self.count = folder, 0
        tables = TABLES | {"replications": {"least": least, "most": least}}
        tables["axes"] = {"guest": {"vcpus": [1, 2, 3]},
                          "workload": {"access_interval": [f"{1000 + 7 * n}ns" for n in range(intervals)]}}  # fmt: skip
        self.points = read_grid(tables).points
        self.grid = folder / "grid.toml"
        self.grid.write_text(tomli_w.dumps(tables), encoding="utf-8")
        self.undisturbed = folder / "undisturbed"
        run(self.grid, self.undisturbed)

    def place(self) -> Path:
        """Return the folder for another sweep."""
        self.count += 1
        return self.folder / f"sweep-{self.count}"

    def command(self, out: Path, *options: str) -> list[str]:
        """Return the command that starts or resumes the sweep in a folder."""
        return [*DRIVER, str(self.grid), "--out", str(out), "--resume", *options]

    def finish(self, out: Path, *options: str) -> str:
        """Resume a sweep to its end, compare the results, and return the messages of the command."""
        result = subprocess.run(self.command(out, *options), capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        self.compare(out)
        return result.stderr

    def compare(self, out: Path) -> None:
        """Check that the data sets equal the undisturbed ones, and that there are no temporary files."""
        for name in ("results", "refused"):
            pd.testing.assert_frame_equal(rows(out, name), rows(self.undisturbed, name), check_exact=True)
        assert rows_on_disk(out) == self.points
        assert not list(out.rglob("*.part"))


def driver_killed(bench: Bench, kills: int, moments: random.Random) -> str:
    """Kill the driver at random moments with SIGKILL, until `kills` of them happened while it was working."""
    out, killed, at_work_count, sweeps = bench.place(), 0, 0, 1
    while at_work_count < kills:
        assert killed < 4 * kills, f"only {at_work_count} of {killed} kills happened during work"
        kept = rows_on_disk(out)
        with started(bench.command(out)) as driver:
            time.sleep(moments.uniform(0.2, 12.0))
            working = at_work(driver, out, bench.points)
            if driver.poll() is not None:
                assert driver.returncode == 0
                bench.compare(out)
                out, sweeps = bench.place(), sweeps + 1
                continue
            children = descendants(driver.pid)
            driver.kill()
            driver.wait()
            killed, at_work_count = killed + 1, at_work_count + working
            _, alive = psutil.wait_procs(children, timeout=60)
            assert not alive, f"workers outlive their driver: {alive}"
        assert rows_on_disk(out) >= kept, "finished points are lost"
    bench.finish(out)
    return f"{killed} kills of the driver, {at_work_count} of them during work, in {sweeps} sweeps"


def worker_killed(bench: Bench, kills: int, moments: random.Random) -> str:
    """Kill worker processes of the driver with SIGKILL during a batch."""
    out, killed = bench.place(), 0
    with started(bench.command(out, "--workers", "2")) as driver:
        while killed < kills:
            until(lambda: driver.poll() is not None or at_work(driver, out, bench.points), "work")
            assert driver.poll() is None, "the driver ended before the last kill"
            workers = workers_of(driver.pid)
            if workers:
                moments.choice(workers).send_signal(signal.SIGKILL)
                killed += 1
                until(
                    lambda before=workers: not set(before) & set(workers_of(driver.pid)), "the end of the other workers"
                )
        assert driver.wait() == 0
    bench.compare(out)
    return f"{kills} kills of a worker during a batch"


def cluster_disturbed(bench: Bench, moments: random.Random) -> str:
    """On Dask, kill a worker during a batch, then the scheduler, and restart it with a worker."""
    out, at = bench.place(), port()
    with started(bench.command(out, "--cluster", f"tcp://127.0.0.1:{at}"), stderr=subprocess.PIPE) as early:
        assert early.wait() == 1
        assert b"no Dask scheduler answers" in early.stderr.read()
    with dask_worker(at, bench.folder) as worker, dask_worker(at, bench.folder) as other:
        with scheduler(at) as first:
            with started(bench.command(out, "--cluster", f"tcp://127.0.0.1:{at}")) as driver:
                until(lambda: rows_on_disk(out) > 0, "the first part")
                victim = max(descendants(worker.pid), key=lambda process: process.cpu_times().user)
                until(lambda: victim.cpu_percent(0.05) > 20, "a worker at work")
                victim.kill()
                kept = rows_on_disk(out)
                until(lambda: rows_on_disk(out) > kept, "a part after the worker was killed")
                assert driver.poll() is None
                kept = rows_on_disk(out)
                assert kept < bench.points
                first.kill()
                first.wait()
                time.sleep(moments.uniform(0.5, 2.0))
                with scheduler(at), dask_worker(at, bench.folder):
                    until(lambda: driver.poll() is not None or rows_on_disk(out) > kept, "a part after the restart")
                    assert driver.wait() == 0
        assert other.pid
    bench.compare(out)
    return "a Dask worker killed during a batch; the scheduler killed and restarted"


def disk_full(bench: Bench) -> str:
    """Limit the file size after the first part, as on a full disk: a message is printed, and no point is lost."""
    out = bench.place()
    with started(bench.command(out), stderr=subprocess.PIPE) as driver:
        until(lambda: rows_on_disk(out) > 0, "the first part")
        resource.prlimit(driver.pid, resource.RLIMIT_FSIZE, (1000, 1000))
        message = driver.stderr.read().decode()
        assert driver.wait() == 1, message
    assert "cannot be read or written (File too large); finished results are kept" in message, message
    assert "Traceback" not in message, message
    assert not list(out.rglob("*.part"))
    kept = rows_on_disk(out)
    assert 0 < kept < bench.points
    bench.finish(out)
    return f"a disk that was full after {kept} points"


def parts_damaged(bench: Bench, moments: random.Random) -> str:
    """Truncate, empty and flip a bit of parts: they are detected, renamed and computed again."""
    out = bench.place()
    shutil.copytree(bench.undisturbed, out)
    parts = moments.sample(sorted(out.glob("*/*/part-*.parquet")), 3)
    for part, damage in zip(parts, (lambda b: b[: len(b) // 2], lambda b: b"", flip_bit(moments)), strict=True):
        part.write_bytes(damage(part.read_bytes()))
    messages = bench.finish(out)
    assert all(f"{part.name} is damaged" in messages for part in parts), messages
    assert all(part.with_name(f".{part.name}.damaged").exists() for part in parts)
    return "three parts damaged"


def flip_bit(moments: random.Random) -> Callable[[bytes], bytes]:
    """Return a function that changes one bit."""

    def damage(content: bytes) -> bytes:
        changed = bytearray(content)
        changed[moments.randrange(len(changed))] ^= 1 << moments.randrange(8)
        return bytes(changed)

    return damage


def two_drivers(bench: Bench) -> str:
    """Start a second driver on the folder of a working one: it ends immediately and changes nothing."""
    out = bench.place()
    with started(bench.command(out)) as first:
        until(lambda: at_work(first, out, bench.points), "work")
        second = subprocess.run(bench.command(out), capture_output=True, text=True, check=False)
        assert first.poll() is None
        assert second.returncode == 1
        assert "another process uses" in second.stderr
        assert first.wait() == 0
    bench.compare(out)
    return "two drivers on one folder"


def main(kills: int = 50) -> None:
    """Cause all faults, and print a line for each."""
    moments = random.Random(1)  # noqa: S311  # moments, not secrets
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), 150, 8)
        print(f"{bench.points} points")
        for fault in (
            lambda: two_drivers(bench), lambda: disk_full(bench), lambda: parts_damaged(bench, moments),
            lambda: worker_killed(bench, 5, moments), lambda: cluster_disturbed(bench, moments),
            lambda: driver_killed(bench, kills, moments),
        ):  # fmt: skip
            start = time.monotonic()
            print(f"passed: {fault()} ({time.monotonic() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    main(*(int(number) for number in sys.argv[1:]))
