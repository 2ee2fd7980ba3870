# SPDX-License-Identifier: BSD-3-Clause
"""What may happen to a sweep, with real processes: after each, nothing finished is lost and nothing counted twice.

    python checks/sweep_faults.py [KILLS]

Every fault ends with a sweep that is resumed and gives the same data sets as the undisturbed one, to the bit.
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
    """A grid, its undisturbed data sets, and folders to disturb it in.

    - `intervals`: values of one axis: 12 points each, of which a third are refused.
    - `least`: replications of each point, so how long it takes.
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
        """A folder for another sweep."""
        self.count += 1
        return self.folder / f"sweep-{self.count}"

    def command(self, out: Path, *options: str) -> list[str]:
        """The command that begins the sweep in a folder, or goes on with it."""
        return [*DRIVER, str(self.grid), "--out", str(out), "--resume", *options]

    def finish(self, out: Path, *options: str) -> str:
        """Go on with a sweep to its end, and compare; what the command said."""
        done = subprocess.run(self.command(out, *options), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        self.compare(out)
        return done.stderr

    def compare(self, out: Path) -> None:
        """See that the data sets are the undisturbed ones, and that nothing is left of what was being written."""
        for name in ("results", "refused"):
            pd.testing.assert_frame_equal(rows(out, name), rows(self.undisturbed, name), check_exact=True)
        assert rows_on_disk(out) == self.points
        assert not list(out.rglob("*.part"))


def driver_killed(bench: Bench, kills: int, moments: random.Random) -> str:
    """SIGKILL to the driver at random moments, until so many of them found it at work."""
    out, killed, under_way, swept = bench.place(), 0, 0, 1
    while under_way < kills:
        assert killed < 4 * kills, f"only {under_way} of {killed} kills found work under way"
        kept = rows_on_disk(out)
        with started(bench.command(out)) as driver:
            time.sleep(moments.uniform(0.2, 12.0))
            working = at_work(driver, out, bench.points)
            if driver.poll() is not None:
                assert driver.returncode == 0
                bench.compare(out)
                out, swept = bench.place(), swept + 1
                continue
            below = descendants(driver.pid)
            driver.kill()
            driver.wait()
            killed, under_way = killed + 1, under_way + working
            _, alive = psutil.wait_procs(below, timeout=60)
            assert not alive, f"workers outlive their driver: {alive}"
        assert rows_on_disk(out) >= kept, "what was finished is lost"
    bench.finish(out)
    return f"{killed} kills of the driver, {under_way} of them with work under way, in {swept} sweeps"


def worker_killed(bench: Bench, kills: int, moments: random.Random) -> str:
    """SIGKILL to one of the driver's worker processes in the middle of a batch."""
    out, killed = bench.place(), 0
    with started(bench.command(out, "--workers", "2")) as driver:
        while killed < kills:
            until(lambda: driver.poll() is not None or at_work(driver, out, bench.points), "work")
            assert driver.poll() is None, "it had ended before every kill was made"
            workers = workers_of(driver.pid)
            if workers:
                moments.choice(workers).send_signal(signal.SIGKILL)
                killed += 1
                until(lambda before=workers: not set(before) & set(workers_of(driver.pid)), "the others to be ended")
        assert driver.wait() == 0
    bench.compare(out)
    return f"{kills} kills of a worker in the middle of a batch"


def cluster_disturbed(bench: Bench, moments: random.Random) -> str:
    """On Dask: a worker killed in the middle of a batch; the scheduler killed, and started again with workers."""
    out, at = bench.place(), port()
    with started(bench.command(out, "--cluster", f"tcp://127.0.0.1:{at}"), stderr=subprocess.PIPE) as early:
        assert early.wait() == 1
        assert b"no Dask scheduler answers" in early.stderr.read()
    with dask_worker(at, bench.folder) as one, dask_worker(at, bench.folder) as two:
        with scheduler(at) as first:
            with started(bench.command(out, "--cluster", f"tcp://127.0.0.1:{at}")) as driver:
                until(lambda: rows_on_disk(out) > 0, "the first part")
                victim = max(descendants(one.pid), key=lambda process: process.cpu_times().user)
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
        assert two.pid
    bench.compare(out)
    return "a Dask worker killed in the middle of a batch; the scheduler killed and started again"


def disk_full(bench: Bench) -> str:
    """Once a part is written, no file may grow, as on a disk that is full: one sentence, and nothing is lost."""
    out = bench.place()
    with started(bench.command(out), stderr=subprocess.PIPE) as driver:
        until(lambda: rows_on_disk(out) > 0, "the first part")
        resource.prlimit(driver.pid, resource.RLIMIT_FSIZE, (1000, 1000))
        said = driver.stderr.read().decode()
        assert driver.wait() == 1, said
    assert "cannot be read or written (File too large); what is finished is kept" in said, said
    assert "Traceback" not in said, said
    assert not list(out.rglob("*.part"))
    kept = rows_on_disk(out)
    assert 0 < kept < bench.points
    bench.finish(out)
    return f"a disk that was full after {kept} points"


def parts_damaged(bench: Bench, moments: random.Random) -> str:
    """Parts that were cut short, emptied, or changed in one bit are found, set aside and computed anew."""
    out = bench.place()
    shutil.copytree(bench.undisturbed, out)
    parts = moments.sample(sorted(out.glob("*/*/part-*.parquet")), 3)
    for part, damage in zip(parts, (lambda b: b[: len(b) // 2], lambda b: b"", flipped(moments)), strict=True):
        part.write_bytes(damage(part.read_bytes()))
    said = bench.finish(out)
    assert all(f"{part.name} is damaged" in said for part in parts), said
    assert all(part.with_name(f".{part.name}.damaged").exists() for part in parts)
    return "three parts damaged"


def flipped(moments: random.Random) -> Callable[[bytes], bytes]:
    """Changes one bit."""

    def damage(content: bytes) -> bytes:
        changed = bytearray(content)
        changed[moments.randrange(len(changed))] ^= 1 << moments.randrange(8)
        return bytes(changed)

    return damage


def two_drivers(bench: Bench) -> str:
    """A second driver on the folder of one that is at work ends at once, and disturbs nothing."""
    out = bench.place()
    with started(bench.command(out)) as first:
        until(lambda: at_work(first, out, bench.points), "work")
        second = subprocess.run(bench.command(out), capture_output=True, text=True, check=False)
        assert first.poll() is None
        assert second.returncode == 1
        assert "another process is at work in" in second.stderr
        assert first.wait() == 0
    bench.compare(out)
    return "two drivers on one folder"


def main(kills: int = 50) -> None:
    moments = random.Random(1)  # noqa: S311  # moments, not secrets
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), 150, 8)
        print(f"{bench.points} points")
        for fault in (
            lambda: two_drivers(bench), lambda: disk_full(bench), lambda: parts_damaged(bench, moments),
            lambda: worker_killed(bench, 5, moments), lambda: cluster_disturbed(bench, moments),
            lambda: driver_killed(bench, kills, moments),
        ):  # fmt: skip
            begun = time.monotonic()
            print(f"passed: {fault()} ({time.monotonic() - begun:.0f} s)", flush=True)


if __name__ == "__main__":
    main(*(int(number) for number in sys.argv[1:]))
