# SPDX-License-Identifier: BSD-3-Clause
"""simlib migrate: its recommendation meets the targets, and its sentences agree with its table."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import simlib
from simlib._lib.errors import InputError
from simlib.analysis.migrate import MigrationOptions, RunningGuest, Targets
from simlib.analysis.migrate.sentences import stalls
from simlib.ui.cli import app
from simlib.vmm.dirtying import DirtyRate, parse_dirty
from simlib.vmm.paste import FORMATS
from simlib.vmm.plans import SURE, plans
from simlib.vmm.settings import Settings

GIB = 2**30


def quick(draws):
    return MigrationOptions(draws=draws, lock=False)


def guest(*dirty, **more):
    return RunningGuest(
        **{"vcpus": 8, "memory": 32 * GIB, "link": 10**10, "dirty": tuple(map(parse_dirty, dirty)), **more}
    )


def test_settings_with_which_it_converges_are_kept():
    answer = simlib.migrate(guest("1000/s over 1G"), Targets(), options=quick(8))
    assert answer.recommended.name == "current"
    assert answer.meets_targets
    assert answer.summary_lines()[0].startswith("The migration converges with the current settings")


def test_the_least_drastic_plan_that_meets_the_targets_is_recommended():
    targets = Targets(downtime_s=0.3, deadline_s=120, min_guest_speed=0.5, max_stall_s=0.05)
    answer = simlib.migrate(guest("600000/s over 8G", cpu=1.0), targets, options=quick(16))
    kept = answer.frame.set_index("plan")["meets_all"]
    assert kept[answer.recommended.name] >= SURE
    assert all(kept[plan.name] < SURE for plan in answer.plans[: answer.plans.index(answer.recommended)])
    assert answer.summary_lines()[0].startswith("The migration does not converge with the current settings")
    assert answer.recommended.settings.auto_converge
    assert answer.row(answer.recommended.name)["sleep_s_high"] <= 0.05


def test_qemu_judges_by_the_limit_and_not_by_the_link():
    """100 MiB that are rewritten all the time take 0.1 s at 10 Gbit/s, but a second at the limit of 100 MB/s."""
    limited = guest("1000000/s over 100M", settings=Settings(max_bandwidth=100_000_000), channel=10**10)
    answer = simlib.migrate(limited, Targets(downtime_s=0.5), options=quick(32))
    assert "sending them takes 1." in answer.summary_lines()[0]
    assert "the bandwidth by which QEMU judges" in answer.summary_lines()[0]
    assert answer.recommended.name == "switchover bandwidth"
    assert answer.recommended.settings.max_bandwidth == 100_000_000
    assert answer.row("switchover bandwidth")["downtime_s_high"] < 0.5
    assert "--bandwidth 95" in answer.paste("virsh")


def test_plans_are_ranked_as_operators_do():
    """Post-copy comes before sleeps of a second, and a longer downtime is an alternative to throttling."""
    answer = simlib.migrate(guest("1500000/s over 3G", cpu=0.15, vcpus=1), options=quick(8))
    names = [plan.name for plan in answer.plans]
    assert answer.recommended.name == "postcopy"
    assert [name for name in names if answer.row(name)["converges"] == 1] == [
        "postcopy", "downtime 5000 ms", "auto-converge"
    ]  # fmt: skip
    assert answer.row("auto-converge")["sleep_s_high"] > 0.9
    assert all(answer.row(name)["cost"] for name in names[1:])
    text = " ".join(answer.summary_lines())
    assert "Of the downtime," in text
    assert "VFIO and vhost-user devices" in text


def test_a_longer_downtime_is_mentioned_without_a_target():
    """A part of 500 MiB is written between two synchronisations, and takes 0.3 s at 10 Gbit/s, or a little more."""
    answer = simlib.migrate(guest("400000/s over 500M", channel=10**10, cpu=1.0), options=quick(8))
    assert answer.recommended.name == "auto-converge"
    assert "Alternatively, with a downtime limit of 500 ms, the migration converges without throttling" in " ".join(
        answer.summary_lines()
    )


def total_s(*dirty, **more):
    """Ends of the interval of the total time with the current settings."""
    row = simlib.migrate(guest(*dirty, **more), options=quick(32)).row("current")
    return row["total_s_low"], row["total_s_high"]


def test_pages_of_zeros_are_not_sent():
    """3.5 to 4 GiB take 3.0 to 6.2 s at 5.6 to 9.9 Gbit/s, 28 GiB are scanned in 1.5 to 3.8 s, devices take 0.1 s."""
    low, high = total_s("100/s over 1M", resident=4 * GIB, channel=20 * 10**9)
    assert 3.0 + 1.5 < low < high < 6.2 + 3.8 + 0.1


def test_a_guest_with_idle_cpu_time_needs_more_throttling():
    def throttle(cpu):
        converging = Settings(max_bandwidth=0, auto_converge=True)
        answer = simlib.migrate(guest("300000/s over 8G", vcpus=1, cpu=cpu, settings=converging), options=quick(8))
        return answer.row("current")["throttle"]

    assert throttle(1.0) < 75 < throttle(0.2)


def test_a_rate_without_a_time_widens_the_answer():
    narrow, wide = total_s("100000/s in 60s"), total_s("100000/s")
    assert wide[1] / wide[0] > narrow[1] / narrow[0]


def test_measurements_that_contradict_each_other_are_used_and_reported():
    rates = "60000/s in 1s", "6000/s in 1s", "500/s in 10s"
    ends = [total_s(rate) for rate in rates]
    low, high = total_s(*rates)
    assert min(low for low, _ in ends) < 1.05 * low < high < 1.05 * max(high for _, high in ends)
    answer = simlib.migrate(guest(*rates), options=quick(4))
    assert "The guest is not steady" in " ".join(answer.summary_lines())


def test_a_rate_of_0_is_a_measurement():
    """Less than 1 MiB/s over 10 s: the memory is sent once, at 5.6 Gbit/s or more."""
    zero = DirtyRate(0.0, 10.0, rounding=2560.0)
    answer = simlib.migrate(replace(guest("1/s", channel=10**10), dirty=(zero,)), options=quick(8))
    assert answer.row("current")["total_s_high"] < 1.05 * 32 * GIB * 8 / 0.56e10


def test_missed_targets_are_reported_with_what_is_reached():
    targets = Targets(downtime_s=0.01, deadline_s=5)
    answer = simlib.migrate(guest("600000/s over 16G"), targets, options=quick(8))
    assert not answer.meets_targets
    text = " ".join(answer.summary_lines())
    assert "No setting that was tried meets the targets" in text
    assert "Sending all memory once takes 27.5 s" in text
    slower = simlib.migrate(guest("600000/s over 16G"), Targets(downtime_s=0.001), options=quick(8))
    assert "Instead of the missed targets, it reaches" in " ".join(slower.summary_lines())


def test_the_nearest_plan_converges():
    """At 1 Gbit/s sending all memory takes longer than the deadline; the nearest plan converges all the same."""
    described = guest("20000/s over 16G", link=10**9)
    answer = simlib.migrate(described, Targets(deadline_s=60), options=quick(8))
    assert not answer.meets_targets
    assert answer.row(answer.recommended.name)["converges"] == 1.0
    assert any("Sending all memory once takes 275 s" in text for text in answer.summary_lines())


def test_more_points_narrow_the_answer():
    def width(*dirty):
        row = simlib.migrate(guest(*dirty), options=quick(32)).row("current")
        return row["total_s_high"] / row["total_s_low"]

    assert width("100000/s in 1s", "60000/s in 10s", "30000/s in 60s") < width("100000/s in 1s")


def test_every_plan_can_be_pasted_and_read_back():
    described = guest("600000/s over 8G", ring_entries=4096)
    for plan in plans(described, Targets(0.3, 600)):
        for target, write in FORMATS["qemu"].items():
            assert write(plan, described, Targets(0.3, 600)).strip() or target == "qmp", (plan.name, target)
        named = {}
        for row in FORMATS["qemu"]["qmp"](plan, described, Targets()).splitlines():
            command = json.loads(row.partition("   #")[0])
            if command["execute"] == "migrate-set-parameters":
                named |= command["arguments"]
            elif command["execute"] == "migrate-set-capabilities":
                named |= {cap["capability"]: cap["state"] for cap in command["arguments"]["capabilities"]}
        assert named == plan.settings.changes_from(described.settings)
        assert Settings.of({"max-bandwidth": 0, **named}) == plan.settings


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--link", "0Gbit/s"], "--link"),
        (["--dirty", "9e9/s"], "more pages than fit into"),
        (["--dirty", "soon"], "must be a dirty rate or a working-set model"),
        (["--min-guest-speed", "120%"], "at most 1"),
        (["--downtime-limit", "3"], "needs a unit"),
        (["--current", "downtme-limit=3"], "did you mean 'downtime-limit'"),
        (["--current", "downtime-limit"], "NAME=NUMBER"),
    ],
)
def test_a_wrong_option_is_reported_in_one_sentence(more, why):
    usual = {"--vcpus": "4", "--memory": "8G", "--link": "10Gbit/s", "--dirty": "1000/s"}
    words = [word for name, value in usual.items() if name not in more for word in (name, value)]
    result = CliRunner().invoke(app, ["migrate", *words, *more])
    assert isinstance(result.exception, InputError)
    assert why in result.exception.cli_message()


def test_the_command_writes_the_whole_answer(tmp_path):
    words = [
        "--vcpus",
        "4",
        "--memory",
        "8G",
        "--link",
        "10Gbit/s",
        "--dirty",
        "500000/s over 4G",
        "--downtime-limit",
        "300ms",
    ]
    result = CliRunner().invoke(app, ["migrate", *words, "--draws", "4", "--emit", "qmp", "--out", str(tmp_path / "o")])
    assert result.exit_code == 0, result.output
    assert '"auto-converge", "state": true' in result.stdout
    content = json.loads((tmp_path / "o" / "migrate.json").read_text())
    assert content["recommended"] in {row["plan"] for row in content["plans"]}
    assert (tmp_path / "o" / "passes.csv").is_file()


def test_cloud_hypervisor_throttles_by_its_own_rule_and_has_few_settings():
    described = guest("600000/s over 8G", vmm="cloud-hypervisor")
    answer = simlib.migrate(described, Targets(downtime_s=0.3, deadline_s=600), options=MigrationOptions(draws=4))
    assert {plan.name for plan in answer.plans} <= {"current", "downtime", "multifd"}
    assert answer.row("current")["throttle"] >= 10
    assert "clears all dirty pages in one hold" in answer.lock
    assert "downtime_ms" in answer.paste("cloud-hypervisor")
    with pytest.raises(InputError, match="is not a format for cloud-hypervisor"):
        answer.paste("virsh")
    with pytest.raises(InputError, match="is not a setting of cloud-hypervisor"):
        guest("1000/s", vmm="cloud-hypervisor", settings=Settings(max_bandwidth=0, auto_converge=True))
    with pytest.raises(InputError, match="has no dirty rings"):
        guest("1000/s", vmm="cloud-hypervisor", ring_entries=4096)


@pytest.mark.parametrize("now", [{}, {"auto_converge": True}, {"dirty_limit": True}])
def test_plans_have_settings_that_qemu_accepts_together(now):
    """QEMU refuses dirty-limit with auto-converge, and post-copy with multifd."""
    described = guest("600000/s over 8G", ring_entries=4096, link=4 * 10**10, settings=Settings(**now))
    for plan in plans(described, Targets(downtime_s=0.3)):
        plan.settings.check()
    with pytest.raises(InputError, match="dirty-limit = True: QEMU refuses it with auto-converge"):
        Settings(auto_converge=True, dirty_limit=True).check()


def test_a_dirty_limit_that_makes_vcpus_sleep_is_reported():
    limited = Settings(dirty_limit=True, vcpu_dirty_limit=30)
    answer = simlib.migrate(guest("600000/s over 8G", ring_entries=4096, settings=limited), options=quick(8))
    assert answer.row("current")["sleep_s_high"] > 0
    assert "With the dirty limit, the longest sleep of a vCPU is" in stalls(answer, answer.row("current"))


def test_a_rate_of_0_over_a_short_time_is_left_out():
    """QEMU reports 0 for less than 1 MiB/s."""
    rates = (DirtyRate(0.0, 1.0), DirtyRate(12_800.0, 10.0))
    described = RunningGuest(vcpus=8, memory=32 * GIB, link=10**10, dirty=rates, vmm="cloud-hypervisor")
    answer = simlib.migrate(described, Targets(downtime_s=0.3), options=MigrationOptions(draws=2))
    assert "clears all dirty pages in one hold" in answer.lock


def test_a_value_that_decides_must_be_given():
    for name in ("vcpus", "memory", "link"):
        with pytest.raises(InputError, match=f"{name} = nothing: must be given"):
            simlib.migrate(guest("1000/s", **{name: 0}))
    with pytest.raises(InputError, match="dirty = nothing: must be given"):
        simlib.migrate(guest())


def test_the_lock_answer_has_the_chunk_that_meets_the_target():
    """arm64 without PML clears in holds that stall its vCPUs, the longer the chunk."""
    described = guest("20000/s", vcpus=8, memory=16 * GIB, architecture="arm64", dirty_tracking="")
    free = simlib.migrate(described, Targets(max_stall_s=0.1), options=MigrationOptions(draws=2)).lock
    assert free.recommended == free.current == 2**30
    assert "no setting needs to change" in free.summary()
    tight = simlib.migrate(
        described, Targets(max_stall_s=0.5 * free.frame["stall_s"].iloc[0]), options=MigrationOptions(draws=2)
    ).lock
    assert tight.recommended < tight.current
    assert "x-clear-bitmap-shift" in tight.summary()
