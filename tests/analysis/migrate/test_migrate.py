# SPDX-License-Identifier: BSD-3-Clause
"""simlib migrate: what it recommends keeps to the wishes, and what it says agrees with its table."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import simlib
from simlib._lib.errors import InputError
from simlib.analysis.migrate import MigratingGuest, Targets
from simlib.ui.cli import app
from simlib.vmm.dirtying import parse_dirty
from simlib.vmm.paste import TARGETS
from simlib.vmm.plans import SURE, plans
from simlib.vmm.settings import Settings

GIB = 2**30


def guest(*dirty, **more):
    return MigratingGuest(
        **{"vcpus": 8, "memory": 32 * GIB, "link": 10**10, "dirty": tuple(map(parse_dirty, dirty)), **more}
    )


def test_what_converges_is_left_as_it_is():
    found = simlib.migrate(guest("1000/s over 1G"), Targets(), draws=8, lock=False)
    assert found.recommended.name == "as it is"
    assert found.meets_targets
    assert found.summary_lines()[0].startswith("It converges as it is")


def test_the_least_drastic_plan_that_keeps_to_the_wishes_is_taken():
    wishes = Targets(downtime_s=0.3, within_s=120, guest_keeps=0.5, max_stall_s=0.05)
    found = simlib.migrate(guest("600000/s over 8G"), wishes, draws=16, lock=False)
    kept = found.frame.set_index("plan")["meets_all"]
    assert kept[found.recommended.name] >= SURE
    assert all(kept[plan.name] < SURE for plan in found.plans[: found.plans.index(found.recommended)])
    assert found.summary_lines()[0].startswith("It does not converge as it is")
    assert found.recommended.settings.auto_converge
    assert found.row(found.recommended.name)["sleep_s_high"] <= 0.05


def test_what_cannot_be_had_is_said_with_what_is_reached():
    wishes = Targets(downtime_s=0.01, within_s=5)
    found = simlib.migrate(guest("600000/s over 16G"), wishes, draws=8, lock=False)
    assert not found.meets_targets
    said = " ".join(found.summary_lines())
    assert "No setting that was tried keeps to what you wish" in said
    assert "All of its memory takes 27.5 s to send once" in said
    slower = simlib.migrate(guest("600000/s over 16G"), Targets(downtime_s=0.001), draws=8, lock=False)
    assert "What is reached instead" in " ".join(slower.summary_lines())


def test_the_nearest_plan_is_one_that_ends():
    """At 1 Gbit/s all of the memory takes longer than is wished; what is nearest converges all the same."""
    one = guest("20000/s over 16G", link=10**9)
    found = simlib.migrate(one, Targets(within_s=60), draws=8, lock=False)
    assert not found.meets_targets
    assert found.row(found.recommended.name)["converges"] == 1.0
    assert any("All of its memory takes 275 s to send once" in text for text in found.summary_lines())


def test_more_points_narrow_the_answer():
    def width(*dirty):
        row = simlib.migrate(guest(*dirty), draws=32, lock=False).row("as it is")
        return row["total_s_high"] / row["total_s_low"]

    assert width("100000/s in 1s", "60000/s in 10s", "30000/s in 60s") < width("100000/s in 1s")


def test_every_plan_can_be_pasted_and_read_back():
    one = guest("600000/s over 8G", ring_entries=4096)
    for plan in plans(one, Targets(0.3, 600)):
        for target, write in TARGETS["qemu"].items():
            assert write(plan, one, Targets(0.3, 600)).strip() or target == "qmp", (plan.name, target)
        named = {}
        for row in TARGETS["qemu"]["qmp"](plan, one, Targets()).splitlines():
            command = json.loads(row.partition("   #")[0])
            if command["execute"] == "migrate-set-parameters":
                named |= command["arguments"]
            elif command["execute"] == "migrate-set-capabilities":
                named |= {cap["capability"]: cap["state"] for cap in command["arguments"]["capabilities"]}
        assert named == plan.settings.beside(one.settings)
        assert Settings.of({"max-bandwidth": 0, **named}) == plan.settings


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--link", "0Gbit/s"], "--link"),
        (["--dirty", "9e9/s"], "more than the memory"),
        (["--dirty", "soon"], "no rate of pages"),
        (["--guest-keeps", "120%"], "at most 1"),
        (["--downtime", "3"], "needs a unit"),
        (["--set", "downtme-limit=3"], "did you mean 'downtime-limit'"),
        (["--set", "downtime-limit"], "NAME=NUMBER"),
    ],
)
def test_what_is_wrong_is_one_sentence(more, why):
    usual = {"--vcpus": "4", "--memory": "8G", "--link": "10Gbit/s", "--dirty": "1000/s"}
    words = [word for name, value in usual.items() if name not in more for word in (name, value)]
    result = CliRunner().invoke(app, ["migrate", *words, *more])
    assert isinstance(result.exception, InputError)
    assert why in result.exception.on_command_line()


def test_the_command_gives_all_of_it(tmp_path):
    words = [
        "--vcpus",
        "4",
        "--memory",
        "8G",
        "--link",
        "10Gbit/s",
        "--dirty",
        "500000/s over 4G",
        "--downtime",
        "300ms",
    ]
    result = CliRunner().invoke(app, ["migrate", *words, "--draws", "4", "--for", "qmp", "--out", str(tmp_path / "o")])
    assert result.exit_code == 0, result.output
    assert '"auto-converge", "state": true' in result.stdout
    content = json.loads((tmp_path / "o" / "migrate.json").read_text())
    assert content["take"] in {row["plan"] for row in content["plans"]}
    assert (tmp_path / "o" / "passes.csv").is_file()


def test_cloud_hypervisor_throttles_by_itself_and_can_be_told_little():
    one = guest("600000/s over 8G", vmm="cloud-hypervisor")
    found = simlib.migrate(one, Targets(downtime_s=0.3, within_s=600), draws=4)
    assert {plan.name for plan in found.plans} == {"as it is", "same throttle"}
    assert found.row("as it is")["throttle"] >= 10
    assert "GET clears all that it finds in one hold" in found.lock
    assert "downtime_ms" in found.paste("cloud-hypervisor")
    with pytest.raises(InputError, match="is not for a guest of cloud-hypervisor"):
        found.paste("virsh")
    with pytest.raises(InputError, match="is no setting of cloud-hypervisor"):
        guest("1000/s", vmm="cloud-hypervisor", settings=Settings(max_bandwidth=0, auto_converge=True))
    with pytest.raises(InputError, match="has no dirty rings"):
        guest("1000/s", vmm="cloud-hypervisor", ring_entries=4096)


def test_nothing_that_decides_is_taken_for_granted():
    for name in ("vcpus", "memory", "link"):
        with pytest.raises(InputError, match=name):
            guest("1000/s", **{name: 0})
    with pytest.raises(InputError, match="what the guest writes decides"):
        guest()


def test_the_lock_is_said_with_the_chunk_that_keeps_to_the_wish():
    """arm64 without PML clears in holds that stall its vCPUs, the longer the chunk."""
    one = guest("20000/s", vcpus=8, memory=16 * GIB, architecture="arm64", dirty_tracking="")
    free = simlib.migrate(one, Targets(max_stall_s=0.1), draws=2).lock
    assert free.take == free.own == 2**30
    assert "nothing to set" in free.summary()
    tight = simlib.migrate(one, Targets(max_stall_s=0.5 * free.frame["stall_s"].iloc[0]), draws=2).lock
    assert tight.take < tight.own
    assert "x-clear-bitmap-shift" in tight.summary()
