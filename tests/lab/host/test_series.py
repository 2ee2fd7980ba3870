# SPDX-License-Identifier: BSD-3-Clause
"""Counters of the patch series, read through a real QEMU: a migration in the lab's kernel, watched from outside.

Needs the lab's kernel (simlib lab build --arch x86_64), QEMU with its small build for microvm, and busybox. Everything
is emulated: the tests check counts and their consistency, not times.
"""

from __future__ import annotations

import importlib
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from nested_guest import PATIENCE_S, connected, initramfs, nested
from real_guest import query

from simlib.lab.build import built_dir, read_built
from simlib.lab.host import watch_guest

OUTER, INNER, SHELL = (shutil.which(name) for name in ("qemu-system-x86_64", "qemu-system-x86_64-microvm", "busybox"))
BUILT = bool(read_built("x86_64", "statistics"))

pytestmark = pytest.mark.skipif(
    not (OUTER and INNER and SHELL and BUILT),
    reason="needs qemu-system-x86_64, qemu-system-x86_64-microvm, busybox and simlib lab build --arch x86_64",
)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """A migration of 16 MiB to /dev/null, of which the guest writes 2 MiB: slow until its third pass."""
    folder = tmp_path_factory.mktemp("nested")
    module, pool = importlib.import_module("simlib.lab.host.watch"), ThreadPoolExecutor(1)
    before, module.TIMEOUT = module.TIMEOUT, PATIENCE_S
    samples = []
    files = initramfs(INNER, SHELL, pages=512, pause=200)
    try:
        with nested(OUTER, built_dir("x86_64", "statistics") / "image", files, folder) as (watched, steered):
            steering = pool.submit(connected, steered)

            def steer(state, _):
                samples.append(state)
                here = steering.result(PATIENCE_S)
                if len(samples) == 2:
                    query(here, "migrate-set-parameters", max_bandwidth=10**6, downtime_limit=20)
                    query(here, "migrate", uri="exec:cat > /dev/null")
                elif "pass 3" in state:
                    query(here, "migrate-set-parameters", max_bandwidth=10**9, downtime_limit=2000)

            watch_result = watch_guest(watched, interval=0.5, duration=PATIENCE_S, events=(), progress=steer)
            with steering.result(PATIENCE_S):
                return watch_result
    finally:
        module.TIMEOUT = before
        pool.shutdown()


def test_the_migration_takes_the_lock_at_the_expected_sites(result):
    assert result.ended == "migration completed"
    assert result.imported.setup["accelerator"] == "kvm"
    assert not any("no counters of mmu_lock" in warning for warning in result.imported.warnings)
    locks = result.imported.tables["locks"].frame
    taken = locks.groupby(["site", "mode"])["acquired"].sum()
    assert taken["clear", "write"] > 0  # the dirty log is cleared
    # The TDP MMU handles a fault for read; every page of the guest is new when it begins.
    assert taken.get(("fault_slow", "read"), 0) > 0
    statistics = result.imported.tables["statistics"].frame
    assert statistics.loc[statistics["name"] == "pf_taken", "value"].sum() >= taken["fault_slow", "read"] / 2


def test_histograms_agree_with_the_counts_and_sums(result):
    locks = result.imported.tables["locks"].frame
    histograms = result.imported.tables["histograms"].frame
    for (site, mode), total in locks.groupby(["site", "mode"])[["acquired", "hold_ns"]].sum().iterrows():
        held = histograms[histograms["name"] == f"mmu_lock_{site}_{mode}_hold_hist"]
        assert (
            abs(held["count"].sum() - total["acquired"]) <= 1
        )  # a hold that has not ended when the statistics are read
        least, most = (held["count"] * held["low"]).sum(), (held["count"] * held["high"].astype(float)).sum()
        assert least <= total["hold_ns"] <= most
