# SPDX-License-Identifier: BSD-3-Clause
"""A plan as commands or a policy to paste for QMP, virsh, KubeVirt or ch-remote.

Sources: QEMU's qapi/migration.json (10.0); virsh(1) and libvirt-domain.h; KubeVirt's MigrationPolicy
(migrations.kubevirt.io/v1alpha1); cloud-hypervisor's API, SendMigrationData.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from simlib.vmm.guest import RunningGuest
from simlib.vmm.plans import Plan
from simlib.vmm.settings import CAPABILITIES
from simlib.vmm.targets import Targets

_UNLIMITED = 2**63 - 2**20
"""Value of max-bandwidth with which libvirt removes the limit, bytes/s."""

_LIBVIRT = frozenset({
    "auto-converge", "cpu-throttle-initial", "cpu-throttle-increment", "multifd", "multifd-channels", "postcopy-ram",
    "downtime-limit", "max-bandwidth",
})  # fmt: skip
"""Settings for which virsh has an option or a command; by default, virsh sets no bandwidth limit."""

_KUBEVIRT = frozenset({"auto-converge", "postcopy-ram", "max-bandwidth"})
"""Settings for which a MigrationPolicy has a key."""

SETTABLE = {"kubevirt": _KUBEVIRT}
"""Settings that an output format can express; a format that is not listed can express all settings."""


def _inexpressible(plan: Plan, guest: RunningGuest, known: frozenset[str]) -> dict[str, int | bool]:
    return {name: value for name, value in plan.settings.changes_from(guest.settings).items() if name not in known}


def qmp(plan: Plan, guest: RunningGuest, targets: Targets) -> str:
    """Return the QMP commands: settings for both sides before ``migrate``, and the switch to post-copy, if any."""
    lines = _commands(plan.settings.changes_from(guest.settings))
    if plan.postcopy:
        lines.append('{"execute": "migrate-start-postcopy"}   # on the source, after the first pass')
    return "\n".join(lines)


def _commands(named: dict[str, int | bool]) -> list[str]:
    capabilities = [{"capability": name, "state": value} for name, value in named.items() if name in CAPABILITIES]
    parameters = {name: value for name, value in named.items() if name not in CAPABILITIES}
    if parameters.get("max-bandwidth") == 0:
        parameters["max-bandwidth"] = _UNLIMITED
    commands: dict[str, Any] = {
        "migrate-set-capabilities": {"capabilities": capabilities} if capabilities else None,
        "migrate-set-parameters": parameters,
    }
    return [json.dumps({"execute": name, "arguments": given}) for name, given in commands.items() if given]


def virsh(plan: Plan, guest: RunningGuest, targets: Targets) -> str:
    """Return virsh commands; settings for which virsh has no option are sent to QEMU's monitor."""
    settings, words = plan.settings, ["virsh migrate --live --persistent"]
    if settings.auto_converge:
        first, more = settings.cpu_throttle_initial, settings.cpu_throttle_increment
        words.append(f"--auto-converge --auto-converge-initial {first} --auto-converge-increment {more}")
    if settings.multifd:
        words.append(f"--parallel --parallel-connections {settings.multifd_channels}")
    if plan.postcopy:
        words.append("--postcopy --postcopy-after-precopy")
    monitor = _inexpressible(plan, guest, _LIBVIRT)
    lines = [f"virsh qemu-monitor-command DOMAIN '{command}'" for command in _commands(monitor)]
    if monitor:
        before = ", ".join(f"{name} {getattr(guest.settings, name.replace('-', '_'))}" for name in monitor)
        lines[-1] += f"   # libvirt has no option for this; to restore: {before}"
    if settings.downtime_limit != guest.settings.downtime_limit:
        lines.append(f"virsh migrate-setmaxdowntime DOMAIN {settings.downtime_limit}")
    lines.append(" ".join([*words, "DOMAIN qemu+ssh://HOST/system"]))
    if targets.deadline_s is not None:
        limit = f"# if the migration takes longer than {math.ceil(targets.deadline_s)} s:"
        lines.append(f"{limit} virsh domjobabort DOMAIN cancels it; the guest stays on the source")
    return "\n".join(lines)


def kubevirt(plan: Plan, guest: RunningGuest, targets: Targets) -> str:
    """Return a MigrationPolicy, which has no key for max-cpu-throttle or the downtime limit."""
    settings = plan.settings
    lines = ["apiVersion: migrations.kubevirt.io/v1alpha1", "kind: MigrationPolicy", "metadata:", "  name: simlib",
             "spec:", f"  allowAutoConverge: {str(settings.auto_converge).lower()}",
             f"  allowPostCopy: {str(plan.postcopy).lower()}"]  # fmt: skip
    if settings.max_bandwidth == 0:
        lines.append('  bandwidthPerMigration: "0"')
    if targets.deadline_s is not None:
        seconds = max(1, math.ceil(targets.deadline_s / (guest.memory / 2**30)))
        lines.append(f"  completionTimeoutPerGiB: {seconds}")
    lines += ["  selectors:", "    virtualMachineInstanceSelector:", "      migrate: simlib   # a label of your guest"]
    if missing := _inexpressible(plan, guest, _KUBEVIRT):
        lines.append(f"# KubeVirt cannot set {', '.join(missing)}: see --emit qmp")
    return "\n".join(lines)


def cloud_hypervisor(plan: Plan, guest: RunningGuest, targets: Targets) -> str:
    """Return the ch-remote command; Cloud Hypervisor's throttle cannot be set."""
    settings = plan.settings
    words = ["destination_url=tcp:HOST:PORT", f"downtime_ms={settings.downtime_limit}"]
    if targets.deadline_s is not None:
        words.append(f"timeout_s={math.ceil(targets.deadline_s)},timeout_strategy=cancel")
    if settings.multifd:
        words.append(f"connections={settings.multifd_channels}")
    return f"ch-remote --api-socket SOCKET send-migration {','.join(words)}"


FORMATS: dict[str, dict[str, Callable[[Plan, RunningGuest, Targets], str]]] = {
    "qemu": {"qmp": qmp, "virsh": virsh, "kubevirt": kubevirt},
    "cloud-hypervisor": {"cloud-hypervisor": cloud_hypervisor},
}  # fmt: skip
"""Functions that write a plan, by VMM and output format."""
