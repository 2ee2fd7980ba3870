# SPDX-License-Identifier: BSD-3-Clause
"""simlib migrate on the log of a migration that runs: what remains, how long it takes, and what helps now."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import simlib
from simlib.analysis.migrate import MigrationOptions, RunningGuest, Targets
from simlib.ui.cli import app
from simlib.vmm.dirtying import parse_dirty
from simlib.vmm.read_guest import parse_guest
from simlib.vmm.samples import MigrationSample
from simlib.vmm.settings import Settings

GIB = 2**30
DOMJOBINFO = """Job type:         Unbounded
Operation:        Outgoing migration
Time elapsed:     304000       ms
Data processed:   33.912 GiB
Data remaining:   1.204 GiB
Data total:       16.005 GiB
Memory processed: 33.912 GiB
Memory remaining: 1.204 GiB
Memory total:     16.005 GiB
Memory bandwidth: 112.317 MiB/s
Dirty rate:       24117        pages/s
Page size:        4096         bytes
Iteration:        16
Constant pages:   201846
Normal pages:     8885005
Normal data:      33.892 GiB
Expected downtime: 13000       ms
"""


def migrate(left, dirty, targets=None, emit="", **more):
    """Answer on a guest of 16 GiB at 10 Gbit/s, whose migration is in its fifth pass."""
    settings = Settings(**{"max_bandwidth": 0, **more.pop("settings", {})})
    sample = MigrationSample("active", 60.0, 16.0 * GIB, 50e9, float(left), 4e6, 1e6, passes=5, **more)
    guest = RunningGuest(8, 16 * GIB, 10**10, (parse_dirty(dirty),), cpu=1.0, zeros=0, channel=10**10,
                         settings=settings, running=(sample,))  # fmt: skip
    return simlib.migrate(guest, targets, options=MigrationOptions(draws=32, emit=emit))


def test_a_migration_that_will_end_is_left_alone():
    """2 GiB remain at 5.6 to 9.9 Gbit/s, and little is written: 1.7 to 3.2 s."""
    answer = migrate(2 * GIB, "1000/s over 1G")
    assert answer.recommended.name == "current"
    assert 1.6 < answer.row("current")["total_s_low"] < answer.row("current")["total_s_high"] < 3.3
    first = answer.summary_lines()[0]
    assert first == "The migration has run for 60 s: 2 GiB remain, after 5 synchronisations of the bitmap"
    assert answer.lock == ""


def test_a_longer_downtime_ends_a_migration_that_does_not_converge():
    """600 MiB that are rewritten all the time take 0.5 s at 10 Gbit/s."""
    answer = migrate(600 * 2**20, "5000000/s over 600M")
    assert answer.recommended.name == "downtime 1000 ms"
    assert answer.row("downtime 500 ms")["converges"] < 1
    assert answer.row("downtime 1000 ms")["total_s_high"] < 3
    assert answer.paste("virsh") == "virsh migrate-setmaxdowntime DOMAIN 1000"
    assert '"downtime-limit": 1000' in answer.paste("qmp")
    assert "migrate_set_parameter downtime-limit 1000' | qm monitor VMID" in answer.paste("proxmox")


def test_what_needs_a_capability_starts_again_and_comes_last():
    targets = Targets(downtime_s=0.3)
    answer = migrate(4 * GIB, "5000000/s over 4G", targets)
    assert answer.recommended.restart
    orders = [plan.order for plan in answer.plans]
    assert orders == sorted(orders)
    suspended = answer.row(
        "suspend"
    )  # 4 GiB, and what was written since the last synchronisation, at 5.6 to 9.9 Gbit/s
    assert 3.4 < suspended["downtime_s_low"] < suspended["downtime_s_high"] < 6.5
    assert suspended["converges"] == 1
    assert suspended["guest_share_high"] < 0.01
    assert any("Suspending the guest ends the present migration" in line for line in answer.summary_lines())
    assert answer.paste("virsh").startswith("virsh domjobabort DOMAIN")
    assert "all memory is sent again" in answer.row(answer.recommended.name)["cost"]
    allowed = migrate(4 * GIB, "5000000/s over 4G", targets, settings={"postcopy_ram": True})
    assert allowed.recommended.name == "postcopy"
    assert allowed.paste("virsh") == "virsh migrate-postcopy DOMAIN"
    assert allowed.row("postcopy")["total_s_high"] < 6.5  # 4 GiB at 5.6 Gbit/s
    throttled = migrate(4 * GIB, "100000/s over 4G", targets, settings={"auto_converge": True}, throttle=30)
    assert not throttled.recommended.restart
    assert throttled.row("current")["throttle_low"] >= 30


def test_a_tool_that_cannot_change_a_migration_starts_it_again():
    answer = migrate(4 * GIB, "5000000/s over 4G", emit="kubevirt")
    assert all(plan.name == "current" or plan.restart for plan in answer.plans)
    assert answer.paste("kubevirt").startswith("virtctl migrate-cancel VM")


@pytest.mark.parametrize(
    ("emit", "command"),
    [
        ("virsh", "virsh migrate-setmaxdowntime vm1 "),
        ("qmp", '{"execute": "migrate-set-parameters", "arguments": {"downtime-limit"'),
        ("proxmox", "migrate_set_parameter downtime-limit"),
        ("nova", "virsh migrate-setmaxdowntime INSTANCE"),
    ],
)
def test_the_command_answers_on_the_migration_in_the_log(tmp_path, emit, command):
    log = tmp_path / "log.txt"
    log.write_text(f"$ virsh domjobinfo vm1\n{DOMJOBINFO}\n")
    words = ["migrate", "--from", str(log), "--vcpus", "8", "--draws", "8", "--emit", emit, "--downtime-limit", "30s"]
    words += ["--dirty", "5000000/s over 1400M", "--cpu", "10%"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    shown = re.sub(r"\s+", " ", result.stdout)
    assert "has run for 304 s: 1.204 GiB remain, after 16 synchronisations" in shown
    assert "does not converge with its present settings" in shown
    assert command in result.stdout
    assert "time from now" in result.stdout
    assert "mmu_lock" not in result.stdout


def test_a_suspension_ends_what_nothing_else_ends():
    answer = migrate(4 * GIB, "5000000/s over 4G", Targets(downtime_s=0.3))
    answer = replace(answer, recommended=next(plan for plan in answer.plans if plan.suspends))
    commands = {"virsh": "virsh suspend", "qmp": '"cont"', "proxmox": "stop", "nova": "force complete"}
    for emit, command in commands.items():
        assert command in answer.paste(emit)


def test_a_log_that_is_cut_off_is_no_new_migration_without_saying_so():
    guest = replace(parse_guest(DOMJOBINFO[: DOMJOBINFO.index("Memory processed")]), vcpus=8, link=10**10)
    guest = replace(guest, memory=16 * GIB, dirty=(parse_dirty("1000/s over 1G"),))
    lines = simlib.migrate(guest, options=MigrationOptions(draws=4, lock=False)).summary_lines()
    assert "it may be cut off. What follows is about a new migration" in lines[0]


def test_the_first_pass_goes_on_where_it_is():
    """12 of 16 GiB remain at 5.6 to 9.9 Gbit/s: 10.4 to 18.4 s."""
    sample = MigrationSample("active", 3.5, 16.0 * GIB, 4.3e9, 12.0 * GIB, 2.0**20, 0.0, passes=1)
    guest = RunningGuest(8, 16 * GIB, 10**10, (parse_dirty("100/s over 1M"),), zeros=0, channel=10**10,
                         settings=Settings(max_bandwidth=0), running=(sample,))  # fmt: skip
    answer = simlib.migrate(guest, options=MigrationOptions(draws=8))
    row = answer.row("current")
    assert 10.3 < row["total_s_low"] < row["total_s_high"] < 18.5
    assert "has passed 25 % of the memory" in answer.summary_lines()[0]
    ended = replace(guest, running=(replace(sample, status="completed", remaining_bytes=0.0),))
    again = simlib.migrate(ended, options=MigrationOptions(draws=4, lock=False))
    assert again.running is None
    assert again.row("current")["total_s_low"] > 13
