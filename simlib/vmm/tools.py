# SPDX-License-Identifier: BSD-3-Clause
"""Tools that start migrations: the settings that each can express, before a migration and while it runs.

Sources: QEMU 10.0, migration/options.c qmp_migrate_set_capabilities, which refuses while a migration runs, and
migrate_params_apply, which does not; KubeVirt's pkg/virt-launcher/virtwrap/live-migration-source.go
processInflightMigration and manager.go getVMIMigrationDataSize, and its MigrationPolicySpec; Proxmox VE's
QemuMigrate.pm and QemuMigrate/Helpers.pm set_migration_caps; Nova's nova/conf/libvirt.py and
nova/virt/libvirt/driver.py _live_migration_monitor.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from simlib.vmm.guest import RunningGuest
from simlib.vmm.settings import CAPABILITIES, NAMES, Settings

_LINK_SHARE = 0.9
"""Share of the link's bandwidth with which a first pass is expected at least."""

PARAMETERS = NAMES - CAPABILITIES - {"multifd-channels"}
"""Settings that QEMU changes while a migration runs."""

UNIT_GB, UNIT_GIB = "GB", "GiB"
"""Units of memory for which a completion timeout counts: KubeVirt rounds up to whole GB (10^9 bytes)."""


class Tool(NamedTuple):
    """Facts about a tool.

    - `title`: its name, in sentences.
    - `settable`: settings, by QEMU's names, that it can express for a new migration. `running`: those that it, or
      libvirt's or QEMU's monitor below it, can change while a migration runs.
    - `auto_converge`: True if it always turns auto-converge on.
    - `timeout_unit`: unit of its completion timeout, at which it switches to post-copy; empty: it has none.
    - `exclusive_postcopy`: True if it turns auto-converge off where post-copy is permitted.
    - `suspends`: True if it, or the monitor below it, can suspend a guest that migrates.
    """

    title: str
    settable: frozenset[str] = NAMES
    running: frozenset[str] = PARAMETERS
    auto_converge: bool = False
    timeout_unit: str = ""
    exclusive_postcopy: bool = False
    suspends: bool = True

    def timeout_units(self, memory: int) -> float:
        """Number of units for which the completion timeout counts.

        - `memory`: bytes.

        >>> TOOLS["kubevirt"].timeout_units(16 * 2**30), TOOLS["nova"].timeout_units(16 * 2**30)
        (18, 16.0)
        """
        return math.ceil(memory / 1e9) if self.timeout_unit == UNIT_GB else max(2.0, memory / 2**30)

    def timeout_per_unit(self, guest: RunningGuest, settings: Settings) -> int:
        """Completion timeout after which the tool is to switch to post-copy: the time of the first pass, s a unit."""
        return max(1, math.ceil(first_pass_s(guest, settings) / self.timeout_units(guest.memory)))

    def switch_s(self, guest: RunningGuest, settings: Settings) -> float | None:
        """Time at which the tool switches to post-copy, s; None if a command does so.

        The tools check about once a second whether the timeout has passed.
        """
        if not self.timeout_unit:
            return None
        return self.timeout_per_unit(guest, settings) * self.timeout_units(guest.memory) + 1.0


TOOLS = {
    "kubevirt": Tool(
        "KubeVirt", frozenset({"auto-converge", "postcopy-ram", "max-bandwidth"}), frozenset(), timeout_unit=UNIT_GB,
        suspends=False,
    ),
    "proxmox": Tool("Proxmox VE", PARAMETERS, auto_converge=True),
    "nova": Tool(
        "Nova",
        frozenset({
            "auto-converge", "postcopy-ram", "max-bandwidth", "downtime-limit", "multifd", "multifd-channels",
        }),
        frozenset({"downtime-limit", "max-bandwidth"}), timeout_unit=UNIT_GIB, exclusive_postcopy=True,
    ),
    "cloud-hypervisor": Tool("Cloud Hypervisor", running=frozenset(), suspends=False),
}  # fmt: skip
"""Tools by the names of their output formats; QEMU's and libvirt's monitors can express all settings."""

ANY_TOOL = Tool("QEMU")
"""QEMU itself, or libvirt with its access to QEMU's monitor."""


def first_pass_s(guest: RunningGuest, settings: Settings) -> float:
    """Time to send all of the memory once, without pages that are known to be zeros, s."""
    bits = min(guest.link, settings.max_bandwidth * 8) if settings.max_bandwidth else guest.link
    return max(guest.memory - (guest.zeros or 0), 1) * 8 / (_LINK_SHARE * bits)
