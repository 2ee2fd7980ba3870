# SPDX-License-Identifier: BSD-3-Clause
"""Watch of a live migration between two real QEMUs on this machine, from its first pass to its end.

Under KVM where it works, and under TCG, where the watch has a guest and a migration but warns about missing statistics.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from real_guest import MIB, boot_sector, query, running

from simlib.lab.host import watch_guest
from simlib.measurements import check

QEMU = "qemu-system-x86_64"
PAGES = 2048
"""Pages that the guest writes repeatedly: 8 MiB."""

PAUSE = {"kvm": 4, "tcg": 3000}
"""Iterations of an empty loop between two pages. TCG and hardware run millions of iterations per second, but a KVM that
emulates a guest without page tables of its own needs about half a microsecond for each."""

SLOW, FAST = 8 * MIB, 10**10
"""Bandwidths, bytes/s: one below and one above the guest's dirty rate."""

pytestmark = pytest.mark.skipif(shutil.which(QEMU) is None, reason=f"needs {QEMU}")


@pytest.mark.parametrize("accelerator", ["kvm", "tcg"])
def test_a_live_migration_is_watched(accelerator, tmp_path):
    (tmp_path / "boot.img").write_bytes(boot_sector(PAGES, PAUSE[accelerator]).ljust(MIB, b"\0"))
    uri = f"unix:{tmp_path / 'wire'}"
    try:
        target = running(QEMU, tmp_path, "target", accelerator, "-incoming", uri)
        with target as (_, there), running(QEMU, tmp_path, "source", accelerator) as (socket, here):
            result = watched(socket, here, uri)
            assert query(there, "query-status")["running"]
    except RuntimeError as error:
        if accelerator == "tcg":
            raise
        pytest.skip(f"no KVM here: {str(error).strip()[:80]}")
    check_tables(result, accelerator, tmp_path)


def watched(socket, here, uri):
    """Start the migration at the first sample, slow enough for several passes; then raise the bandwidth."""
    wait_for_writes(here)
    query(here, "migrate-set-parameters", max_bandwidth=SLOW, downtime_limit=50)
    samples = []

    def steer(state, _):
        samples.append(state)
        if len(samples) == 1:
            query(here, "migrate", uri=uri)
        elif "pass 3" in state:
            query(here, "migrate-set-parameters", max_bandwidth=FAST, downtime_limit=2000)

    return watch_guest(socket, interval=0.1, duration=60, progress=steer)


def wait_for_writes(here):
    """Wait until the guest has left the firmware and writes its memory."""
    for _ in range(200):
        reply = query(here, "human-monitor-command", command_line="xp /1wx 0x100000")
        if int(reply.split(":")[1], 16) > 1:
            return
        time.sleep(0.1)
    raise AssertionError("the guest does not write")


def check_tables(result, accelerator, tmp_path):
    """Check the contents of all tables."""
    tables, warnings = result.imported.tables, result.imported.warnings
    assert result.ended == "migration completed", warnings
    migration = tables["migration"].frame
    assert migration["status"].iloc[0] == "none"
    assert migration["dirty_sync_count"].max() >= 4
    assert migration["transferred_bytes"].dropna().is_monotonic_increasing
    # All of the guest's memory, and in each later pass the pages that it wrote.
    assert migration["transferred_bytes"].max() > 2 * PAGES * 4096
    assert (migration["total_bytes"].dropna() >= 64 * MIB).all()
    assert tables["passes"].frame["pass"].tolist()[:3] == [1, 2, 3]
    threads = tables["threads"].frame
    assert threads.loc[threads["vcpu"] == "0", "tid"].nunique() == 1
    assert threads.loc[threads["vcpu"] == "0", "cpu_ns"].sum() > 0
    if accelerator == "kvm":
        statistics = tables["statistics"].frame
        exits = statistics[statistics["name"] == "exits"]
        assert set(exits["vcpu"]) == {"0"}
        assert exits["value"].sum() > 0
    else:
        assert "statistics" not in tables
        assert "the guest does not run under KVM, so KVM's statistics and events are missing" in warnings
    assert result.imported.setup["accelerator"] == {"kvm": "kvm", "tcg": "not kvm"}[accelerator]
    for path in result.write(tmp_path / "out"):
        assert check(Path(path))
