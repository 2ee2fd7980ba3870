# SPDX-License-Identifier: BSD-3-Clause
"""A few faults of `make sweep-faults`, with real processes on loopback."""

from __future__ import annotations

import random

import pytest
from faults import Bench, worker_killed
from processes import at_work, dask_worker, port, rows_on_disk, scheduler, started, until

from simlib.errors import SimlibError
from simlib.sweep import cluster, run


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("faults"), 20, 6)


def test_a_worker_that_is_killed_costs_only_what_was_under_way(bench):
    assert "1 kills" in worker_killed(bench, 1, random.Random(1))  # noqa: S311  # moments, not secrets


def test_a_killed_driver_is_resumed_on_a_cluster(bench):
    out, at = bench.place(), port()
    with started(bench.command(out, "--workers", "1")) as driver:
        until(lambda: at_work(driver, out, bench.points), "work")
        driver.kill()
        driver.wait()
    assert rows_on_disk(out) < bench.points
    with scheduler(at), dask_worker(at, bench.folder):
        bench.finish(out, "--cluster", f"tcp://127.0.0.1:{at}")


def test_a_cluster_that_does_not_answer_is_one_sentence(bench, monkeypatch):
    monkeypatch.setattr(cluster, "TRY_S", 0.2)
    with pytest.raises(SimlibError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:1 "):
        run(bench.grid, bench.place(), cluster="tcp://127.0.0.1:1")
