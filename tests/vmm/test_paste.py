# SPDX-License-Identifier: BSD-3-Clause
"""Texts of plans: each setting is in the text, or named as one that the tool cannot express."""

from __future__ import annotations

import re

import pytest

from simlib.vmm.dirtying import parse_dirty
from simlib.vmm.guest import RunningGuest
from simlib.vmm.paste import FORMATS
from simlib.vmm.plans import plans
from simlib.vmm.samples import MigrationSample
from simlib.vmm.settings import CAPABILITIES, Settings
from simlib.vmm.targets import Targets
from simlib.vmm.tools import TOOLS

GIB = 2**30
EXPRESSED = {
    "downtime-limit": r"downtime-limit|setmaxdowntime|migrate_downtime|live_migration_downtime =",
    "max-bandwidth": r"max-bandwidth|setspeed|migrate_speed|live_migration_bandwidth|bandwidthPer|virsh migrate ",
    "auto-converge": r"auto-converge|allowAutoConverge: true|auto_converge = true",
    "postcopy-ram": r"postcopy|allowPostCopy: true|post_copy = true|force complete",
    "multifd": r"multifd|--parallel|parallel_connections",
    "multifd-channels": r"multifd-channels|--parallel-connections|parallel_connections",
    "cpu-throttle-initial": r"cpu-throttle-initial|auto-converge-initial",
    "cpu-throttle-increment": r"cpu-throttle-increment|auto-converge-increment",
}


def guest(running=False, **settings):
    sample = MigrationSample("active", 60.0, 16.0 * GIB, 18e9, 2.0**31, passes=5)
    return RunningGuest(
        8, 16 * GIB, 10**10, (parse_dirty("300000/s over 4G"),), ring_entries=4096,
        settings=Settings(**{"max_bandwidth": 100_000_000, **settings}), running=(sample,) if running else (),
    )  # fmt: skip


@pytest.mark.parametrize("targets", [Targets(), Targets(0.3, 600)])
@pytest.mark.parametrize("now", [{}, {"auto_converge": True}, {"postcopy_ram": True}])
@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("emit", FORMATS["qemu"])
def test_a_text_has_all_settings_of_its_plan(emit, running, now, targets):
    described = guest(running, **now)
    tried = list(plans(described, targets, emit))
    assert len({plan.name for plan in tried}) == len(tried) > 1 or (emit == "kubevirt" and running)
    for plan in tried:
        text = FORMATS["qemu"][emit](plan, described, targets)
        for name, value in plan.settings.changes_from(described.settings).items():
            if value is not False:
                assert re.search(EXPRESSED.get(name, name), text), (plan.name, name, text)
        live = running and not plan.restart
        assert plan.running == (running and not plan.restart) or plan.restart
        starts = re.search(r"virsh migrate |qm migrate |--live-migration|kind: MigrationPolicy", text)
        assert bool(starts) == (not live) or emit == "qmp", (plan.name, text)
        if live:
            assert not plan.settings.changes_from(described.settings).keys() & CAPABILITIES
        if plan.restart:
            assert re.match(r".*(migrate_cancel|domjobabort|migrate-cancel|migration abort)", text)


@pytest.mark.parametrize("running", [False, True])
def test_virsh_keeps_a_limit_that_applies(running):
    """libvirt removes max-bandwidth unless --bandwidth is given: 100 MB/s are 95 MiB/s."""
    for plan in plans(guest(running), Targets(0.3)):
        text = FORMATS["qemu"]["virsh"](plan, guest(running), Targets())
        if "virsh migrate --live" in text:
            assert ("--bandwidth 95" in text) == bool(plan.settings.max_bandwidth), plan.name


def test_a_tool_names_what_it_cannot_express():
    described = guest()
    plan = next(plan for plan in plans(described, Targets(0.3)) if plan.name == "throttle <= 30 %")
    assert "cannot set multifd" in FORMATS["qemu"]["proxmox"](plan, described, Targets())
    assert "cannot set max-cpu-throttle" in FORMATS["qemu"]["nova"](plan, described, Targets())
    assert "downtime-limit" in FORMATS["qemu"]["kubevirt"](plan, described, Targets()).splitlines()[-1]


@pytest.mark.parametrize("emit", ["kubevirt", "nova"])
def test_the_switch_to_postcopy_is_simulated_when_the_tool_switches(emit):
    """16 GiB at 10 Gbit/s: the first pass takes 15.3 s. KubeVirt counts 18 GB, Nova 16 GiB."""
    described = guest()
    plan = next(plan for plan in plans(described, Targets(), emit) if plan.name == "unlimited postcopy")
    text = FORMATS["qemu"][emit](plan, described, Targets())
    after = float(re.search(r"switches (?:to post-copy )?after (\d+) s", text)[1])
    assert plan.switch_s == after + 1
    assert after == TOOLS[emit].timeout_units(16 * GIB) * int(re.search(r"(?:PerGiB:|timeout =) (\d+)", text)[1])
    assert after >= 16
