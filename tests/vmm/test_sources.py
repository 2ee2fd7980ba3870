# SPDX-License-Identifier: BSD-3-Clause
"""Sources of a guest's numbers: replies of QEMU, and a recorded migration."""

from __future__ import annotations

import io
import json
import sys
import types
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from simlib._lib.errors import InputError
from simlib.lab.host.migration import MigrationWatch
from simlib.measurements.importers import Imported, write_imported
from simlib.ui.cli import app
from simlib.vmm.dirtying import DirtyingGuess
from simlib.vmm.read_guest import parse_guest, read_guest
from simlib.vmm.read_inputs import read_options
from simlib.vmm.watched_migration import read_watched_guest

GIB = 2**30
TRUE = DirtyingGuess(100_000, 2e5, zipf=0.9).pages(4e6)
"""A guest of 16 GiB."""


def counted(seconds, mode="dirty-bitmap"):
    """The reply of query-dirty-rate about it."""
    mib = round(TRUE.distinct_pages(seconds) / 256 / seconds)
    return {"return": {"status": "measured", "dirty-rate": mib, "calc-time": seconds, "mode": mode, "sample-pages": 512,
                       "start-time": 1}}  # fmt: skip


def replies(*more):
    cpus = [{"cpu-index": i, "target": "x86_64"} for i in range(8)]
    return "\n".join(json.dumps(reply) for reply in (*more, {"return": cpus}))


def test_every_time_that_was_measured_counts():
    """A measurement that is printed twice counts once. Sampled pages are as exact as their number."""
    again = {"return": counted(10)["return"] | {"start-time": 2}}
    rates = parse_guest(replies(counted(1), counted(10), counted(60), counted(10), again)).dirty
    assert [point.seconds for point in rates] == [1, 10, 60, 10]  # the newest last
    assert [point.rounding for point in rates] == [256, 2560, 15360, 2560]
    for point in rates:
        assert point.pages == pytest.approx(TRUE.distinct_pages(point.seconds), rel=0.05)
    sampled = parse_guest(replies(counted(1, "page-sampling"))).dirty[0]
    changed = sampled.pages / 2**18 * 512
    assert sampled.relative_error == pytest.approx(1 / np.sqrt(changed), rel=0.05)


def test_current_settings_are_qemus():
    parameters = {"downtime-limit": 500, "max-bandwidth": 2**27, "cpu-throttle-initial": 30, "tls-creds": "",
                  "announce-max": 550}  # fmt: skip
    capabilities = [{"capability": "auto-converge", "state": True}, {"capability": "xbzrle", "state": False}]
    guest = parse_guest(replies({"return": parameters}, {"return": capabilities}))
    own = guest.settings
    assert (own.downtime_limit, own.cpu_throttle_initial, own.auto_converge) == (500, 30, True)
    assert own.max_bandwidth == 0  # QEMU's default, which libvirt lifts
    assert any("--current max-bandwidth=134217728" in note for note in guest.notes)
    unlimited = {"return": parameters | {"max-bandwidth": 9223372036853727232}}
    assert parse_guest(replies(unlimited)).settings.max_bandwidth == 0


def test_settings_that_contradict_each_other_are_refused_only_for_a_migration():
    """simlib choose needs none of them, and an option may correct them."""
    capabilities = [{"capability": name, "state": True} for name in ("multifd", "postcopy-ram")]
    guest = parse_guest(replies(counted(1), {"return": capabilities}))
    texts = {"memory": "16G", "link": "10Gbit/s"}
    with pytest.raises(InputError, match="refuses post-copy with multifd"):
        read_options(texts, guest).check_complete()
    read_options(texts | {"current": ["multifd=off"]}, guest).check_complete()


def test_the_command_combines_replies_and_options(tmp_path):
    file = tmp_path / "guest.txt"
    file.write_text(replies(counted(1), counted(10), {"return": {"downtime-limit": 500, "max-bandwidth": 0}}))
    words = [
        "migrate",
        "--from",
        str(file),
        "--memory",
        "16G",
        "--link",
        "10Gbit/s",
        "--draws",
        "4",
        "--emit",
        "qmp",
    ]
    out = CliRunner().invoke(
        app, [*words, "--downtime-limit", "200ms", "--current", "multifd=on", "--out", str(tmp_path / "o")]
    )
    assert out.exit_code == 0, out.output
    content = json.loads((tmp_path / "o" / "migrate.json").read_text())
    assert "distinct pages/s over 1s" in content["guest"]
    assert "over 10s" in content["guest"]


def watched(folder, passes, throttle=0):
    """A migration whose passes take such times, looked at every half second."""
    migration, now, sample = MigrationWatch(), 0.0, 0
    for number, seconds in enumerate(passes, 1):
        before = passes[number - 2] if number > 1 else 0.0
        rate = round(TRUE.distinct_pages(before) / before) if before else 0
        for at in np.arange(now, now + seconds, 0.5):
            ram = {"dirty-sync-count": number, "transferred": round(at * 1e9), "total": 16 * GIB, "page-size": 4096,
                   "dirty-pages-rate": rate, "mbps": 9000.0}  # fmt: skip
            reply = {"status": "active", "ram": ram, "cpu-throttle-percentage": throttle}
            migration.record(sample, float(at), reply)
            sample += 1
        now += seconds
    tables = {"migration": migration.table()}
    made = Imported("host-watch", "a test", "", tables, (), {}, "a test", "simlib host watch")
    return next(path for path in write_imported(made, folder, "watch") if path.suffix == ".csv")


def test_passes_of_a_migration_that_was_watched_are_points(tmp_path):
    guest = read_watched_guest(watched(tmp_path, [16, 10, 10.5, 4, 1.5, 1.5]))
    assert guest.memory == 16 * GIB
    assert guest.link == 9_000_000_000
    assert [point.seconds for point in guest.dirty] == [1.5, 4.0, 10.25]  # when the first one began nobody knows
    for point in guest.dirty:
        assert point.pages == pytest.approx(TRUE.distinct_pages(point.seconds), rel=0.08)
        assert 0.02 <= point.error < 0.5
    sampled = [one.pages.distinct_pages(10.0) for one in replace(guest, vcpus=8).samples(100) if not one.pages.pause_s]
    assert np.median(sampled) == pytest.approx(TRUE.distinct_pages(10.0), rel=0.2)


def test_a_recording_is_recognised_by_its_header(tmp_path, monkeypatch):
    table = watched(tmp_path, [16, 10, 10.5, 4, 1.5, 1.5])
    guest = read_guest(table)
    assert guest == read_watched_guest(table)
    assert (guest.running[0].passes, guest.running[-1].total_bytes) == (1, 16 * GIB)
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(table.read_bytes())))
    with pytest.raises(InputError, match="the table has a descriptor beside it; give its path"):
        read_guest("-")


def test_a_watch_without_passes_is_refused(tmp_path):
    for folder, passes, throttle in (("short", [3], 0), ("slowed", [3, 3, 3], 20)):
        with pytest.raises(InputError, match="must have at least two synchronisations of an unthrottled guest"):
            read_watched_guest(watched(tmp_path / folder, passes, throttle))
