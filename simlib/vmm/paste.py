# SPDX-License-Identifier: BSD-3-Clause
"""A plan as commands or a policy to paste for QMP, virsh, KubeVirt, Proxmox VE, Nova or ch-remote.

A plan for a running migration becomes commands that change it; a plan that starts it again begins by cancelling it.

Sources: QEMU's qapi/migration.json (10.0) and migration/migration-hmp-cmds.c; virsh(1), libvirt-domain.h, and libvirt's
src/libvirt-domain.c, which sets VIR_MIGRATE_PAUSED for a guest that is paused when its migration begins; KubeVirt's
MigrationPolicy (migrations.kubevirt.io/v1alpha1); qm(1) of Proxmox VE; nova.conf(5) and the commands ``openstack server
migration``; cloud-hypervisor's API, SendMigrationData.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from simlib.vmm.guest import RunningGuest
from simlib.vmm.plans import Plan
from simlib.vmm.running import running_migration
from simlib.vmm.settings import CAPABILITIES, Settings
from simlib.vmm.targets import Targets
from simlib.vmm.tools import TOOLS

_UNLIMITED = 2**63 - 2**20
"""Value of max-bandwidth with which libvirt removes the limit, bytes/s."""

_MIB = 2**20

_LIBVIRT = frozenset({
    "auto-converge", "cpu-throttle-initial", "cpu-throttle-increment", "multifd", "multifd-channels", "postcopy-ram",
    "downtime-limit", "max-bandwidth",
})  # fmt: skip
"""Settings for which virsh has an option or a command; by default, virsh sets no bandwidth limit."""

_LIBVIRT_RUNNING = frozenset({"downtime-limit", "max-bandwidth"})
"""Settings of a running migration for which virsh has a command."""

_PROXMOX = frozenset({"downtime-limit", "max-bandwidth"})
"""Settings for which ``qm set`` has an option."""

_LEAST_NOVA_MS = 100
"""Least value of live_migration_downtime, ms."""

SETTABLE = {name: tool.settable for name, tool in TOOLS.items() if name != "cloud-hypervisor"}
"""Settings that an output format can express; a format that is not listed can express all settings."""


def _changes(plan: Plan, guest: RunningGuest) -> dict[str, int | bool]:
    return plan.settings.changes_from(guest.settings)


def _others(plan: Plan, guest: RunningGuest, known: frozenset[str]) -> dict[str, int | bool]:
    return {name: value for name, value in _changes(plan, guest).items() if name not in known}


def _is_live(plan: Plan) -> bool:
    """True if the plan changes a running migration."""
    return plan.running and not plan.restart


def _cancelled(plan: Plan, command: str) -> list[str]:
    """Return the command that cancels a running migration, if the plan starts it again."""
    return [f"{command}   # the guest stays on the source, and all memory is sent again"] if plan.restart else []


def _cannot(title: str, missing: dict[str, int | bool]) -> list[str]:
    return [f"# {title} cannot set {', '.join(missing)}: see --emit qmp"] if missing else []


def qmp(plan: Plan, guest: RunningGuest, targets: Targets) -> str:
    """Return the QMP commands: settings for both sides before ``migrate``, and the switch to post-copy, if any.

    Commands for a running migration are for the source only.
    """
    if plan.suspends:
        return ('{"execute": "stop"}   # on the source; when the migration has completed, on the destination:\n'
                '{"execute": "cont"}')  # fmt: skip
    lines = [*_cancelled(plan, '{"execute": "migrate_cancel"}'), *_commands(_changes(plan, guest))]
    if plan.restart:
        where = "# with the same settings on the destination"
        lines.append(f'{{"execute": "migrate", "arguments": {{"uri": "tcp:HOST:PORT"}}}}   {where}')
    if plan.postcopy:
        state = running_migration(guest) if _is_live(plan) else None
        first = state is None or state.in_first_pass
        moment = "on the source, after the first pass" if first else "on the source"
        lines.append(f'{{"execute": "migrate-start-postcopy"}}   # {moment}')
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
    """Return virsh commands; settings for which virsh has no option are sent to QEMU's monitor.

    ``virsh migrate`` gets ``--bandwidth`` wherever a limit applies, since libvirt removes the limit without it.
    """
    if plan.suspends:
        return "virsh suspend DOMAIN   # libvirt starts it on the destination, as it ran when the migration began"
    live = _is_live(plan)
    lines = [*_cancelled(plan, "virsh domjobabort DOMAIN"), *_monitor_lines(plan, guest)]
    if "downtime-limit" in _changes(plan, guest):
        lines.append(f"virsh migrate-setmaxdowntime DOMAIN {plan.settings.downtime_limit}")
    if live:
        if "max-bandwidth" in _changes(plan, guest):
            mib = plan.settings.max_bandwidth or _UNLIMITED
            lines.append(f"virsh migrate-setspeed DOMAIN {mib // _MIB}" + "   # no limit" * (mib == _UNLIMITED))
        if plan.postcopy:
            lines.append("virsh migrate-postcopy DOMAIN")
        return "\n".join(lines)
    lines.append(" ".join([*_virsh_migrate(plan), "DOMAIN qemu+ssh://HOST/system"]))
    if targets.deadline_s is not None:
        limit = f"# if the migration takes longer than {math.ceil(targets.deadline_s)} s:"
        lines.append(f"{limit} virsh domjobabort DOMAIN cancels it; the guest stays on the source")
    return "\n".join(lines)


def _monitor_lines(plan: Plan, guest: RunningGuest) -> list[str]:
    monitor = _others(plan, guest, _LIBVIRT_RUNNING if _is_live(plan) else _LIBVIRT)
    if _is_live(plan):  # capabilities of a running migration are fixed
        monitor = {name: value for name, value in monitor.items() if name not in CAPABILITIES}
    lines = [f"virsh qemu-monitor-command DOMAIN '{command}'" for command in _commands(monitor)]
    if monitor:
        before = ", ".join(f"{name} {getattr(guest.settings, name.replace('-', '_'))}" for name in monitor)
        lines[-1] += f"   # libvirt has no option for this; to restore: {before}"
    return lines


def _virsh_migrate(plan: Plan) -> list[str]:
    settings, words = plan.settings, ["virsh migrate --live --persistent"]
    if settings.max_bandwidth:
        words.append(f"--bandwidth {max(1, settings.max_bandwidth // _MIB)}")
    if settings.auto_converge:
        first, more = settings.cpu_throttle_initial, settings.cpu_throttle_increment
        words.append(f"--auto-converge --auto-converge-initial {first} --auto-converge-increment {more}")
    if settings.multifd:
        words.append(f"--parallel --parallel-connections {settings.multifd_channels}")
    if plan.postcopy:
        words.append("--postcopy --postcopy-after-precopy")
    return words


def kubevirt(plan: Plan, guest: RunningGuest, targets: Targets) -> str:
    """Return a MigrationPolicy, which has no key for max-cpu-throttle or the downtime limit.

    KubeVirt switches to post-copy when completionTimeoutPerGiB × memory has passed; it counts whole GB (10^9 bytes).
    A policy does not change a migration that is running.
    """
    tool, settings = TOOLS["kubevirt"], plan.settings
    if _is_live(plan):
        return ("# KubeVirt cannot change a migration that is running. At its timeout (completionTimeoutPerGiB), it\n"
                "# switches to post-copy if its policy allows this, else it cancels the migration")  # fmt: skip
    lines = [*_cancelled(plan, "virtctl migrate-cancel VM"),
             "apiVersion: migrations.kubevirt.io/v1alpha1", "kind: MigrationPolicy", "metadata:", "  name: simlib",
             "spec:", f"  allowAutoConverge: {str(settings.auto_converge).lower()}",
             f"  allowPostCopy: {str(plan.postcopy).lower()}"]  # fmt: skip
    limit = f"{max(1, settings.max_bandwidth // _MIB)}Mi" if settings.max_bandwidth else "0"
    lines.append(f'  bandwidthPerMigration: "{limit}"')
    units = tool.timeout_units(guest.memory)
    if plan.postcopy:
        seconds = tool.timeout_per_unit(guest, settings)
        lines.append(f"  completionTimeoutPerGiB: {seconds}   # switches to post-copy after {seconds * units:.0f} s")
    elif targets.deadline_s is not None:
        seconds = max(1, math.ceil(targets.deadline_s / units))
        lines.append(f"  completionTimeoutPerGiB: {seconds}   # cancels after {seconds * units:.0f} s")
    lines += ["  selectors:", "    virtualMachineInstanceSelector:", "      migrate: simlib   # a label of your guest"]
    lines += _cannot(tool.title, _others(plan, guest, tool.settable))
    if plan.restart:
        lines.append("# after kubectl apply: virtctl migrate VM")
    return "\n".join(lines)


def proxmox(plan: Plan, guest: RunningGuest, targets: Targets) -> str:
    """Return commands of Proxmox VE.

    It reads the VM's options when a migration begins, and locks the VM, so that only QEMU's monitor changes a running
    migration. It turns auto-converge on, and all other capabilities that are modelled off.
    """
    if plan.suspends:
        return f"{_hmp('stop')}\n# if it does not run on the destination then: qm resume VMID"
    changes, words, lines = _changes(plan, guest), list[str](), _cancelled(plan, _hmp("migrate_cancel"))
    if _is_live(plan):
        parameters = {name: value for name, value in changes.items() if name not in CAPABILITIES}
        lines += [_hmp(f"migrate_set_parameter {name} {_hmp_value(name, value)}") for name, value in parameters.items()]
        lines += [_hmp("migrate_start_postcopy")] * plan.postcopy
        return "\n".join([*lines, "# qm set is refused, as the VM is locked, and would not change a running migration"])
    if "downtime-limit" in changes:
        words.append(f"--migrate_downtime {plan.settings.downtime_limit / 1000:g}")
    if "max-bandwidth" in changes:
        words.append(f"--migrate_speed {plan.settings.max_bandwidth // _MIB}")
    lines += [f"qm set VMID {' '.join(words)}"] * bool(words)
    for name, value in _others(plan, guest, _PROXMOX).items():
        if name not in CAPABILITIES and name in TOOLS["proxmox"].settable:
            lines.append(_hmp(f"migrate_set_parameter {name} {_hmp_value(name, value)}"))
    lines.append("qm migrate VMID NODE --online")
    lines.append("# Proxmox VE doubles migrate_downtime whenever the remaining memory has grown more than 5 times")
    missing = _others(plan, guest, TOOLS["proxmox"].settable | {"auto-converge"})
    return "\n".join([*lines, *_cannot("Proxmox VE", missing)])


def _hmp(command: str) -> str:
    return f"echo '{command}' | qm monitor VMID"


def _hmp_value(name: str, value: int | bool) -> str:
    """Format a parameter for the human monitor, which reads bandwidths with a unit."""
    if name.endswith("bandwidth"):
        return f"{value // _MIB}M" if value else "16G"  # 16 GiB/s is what Proxmox VE sets if there is no limit
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def nova(plan: Plan, guest: RunningGuest, targets: Targets) -> str:
    """Return Nova's options and commands.

    Nova raises the downtime limit in steps, and turns auto-converge off if post-copy is permitted. It cannot change
    a migration that is running, except that ``force complete`` switches to post-copy, or pauses the guest if post-copy
    is not permitted.
    """
    tool, settings, changes = TOOLS["nova"], plan.settings, _changes(plan, guest)
    if _is_live(plan):
        return "\n".join(_running_nova(plan, guest))
    lines = [*_cancelled(plan, "openstack server migration abort SERVER MIGRATION"),
             "# nova.conf on the source's compute host; then restart nova-compute", "[libvirt]",
             f"live_migration_permit_auto_converge = {str(settings.auto_converge).lower()}",
             f"live_migration_permit_post_copy = {str(plan.postcopy).lower()}"]  # fmt: skip
    if "downtime-limit" in changes:
        limit = max(_LEAST_NOVA_MS, settings.downtime_limit)
        least = "   # Nova's least value" if limit > settings.downtime_limit else ""
        lines += [f"live_migration_downtime = {limit}{least}", "live_migration_downtime_steps = 3",
                  "live_migration_downtime_delay = 3   # the limit is reached after 9 s per GiB"]  # fmt: skip
    if settings.max_bandwidth or "max-bandwidth" in changes:
        lines.append(f"live_migration_bandwidth = {settings.max_bandwidth // _MIB}")
    if settings.multifd:
        lines.append(f"live_migration_parallel_connections = {settings.multifd_channels}")
    units = tool.timeout_units(guest.memory)
    if plan.postcopy:
        seconds = tool.timeout_per_unit(guest, settings)
        lines += [f"live_migration_completion_timeout = {seconds}   # switches after {seconds * units:.0f} s",
                  "live_migration_timeout_action = force_complete"]  # fmt: skip
    elif targets.deadline_s is not None:
        lines.append(f"live_migration_completion_timeout = {max(1, math.ceil(targets.deadline_s / units))}")
    lines += ["# then", "openstack server migrate --live-migration SERVER"]
    return "\n".join([*lines, *_cannot(tool.title, _others(plan, guest, tool.settable))])


def _running_nova(plan: Plan, guest: RunningGuest) -> list[str]:
    changes, lines = _changes(plan, guest), list[str]()
    if plan.suspends:
        pauses = "# pauses the guest, unless post-copy is permitted"
        lines.append(f"openstack server migration force complete SERVER MIGRATION   {pauses}")
    if plan.postcopy:
        lines.append("openstack server migration force complete SERVER MIGRATION   # switches to post-copy")
    if changes:
        lines.append("# Nova cannot change a migration that is running. On the source's compute host:")
    if "downtime-limit" in changes:
        lines += [f"virsh migrate-setmaxdowntime INSTANCE {plan.settings.downtime_limit}",
                  "# Nova sets its own limit again at its next step (live_migration_downtime_delay)"]  # fmt: skip
    if "max-bandwidth" in changes:
        lines.append(f"virsh migrate-setspeed INSTANCE {(plan.settings.max_bandwidth or _UNLIMITED) // _MIB}")
    lines.append("# openstack server migration list --server SERVER prints the ID of MIGRATION")
    return lines


def cloud_hypervisor(plan: Plan, guest: RunningGuest, targets: Targets) -> str:
    """Return the ch-remote command; Cloud Hypervisor's throttle cannot be set."""
    settings: Settings = plan.settings
    if _is_live(plan):
        return "# Cloud Hypervisor cannot change a migration that is running"
    words = ["destination_url=tcp:HOST:PORT", f"downtime_ms={settings.downtime_limit}"]
    if targets.deadline_s is not None:
        words.append(f"timeout_s={math.ceil(targets.deadline_s)},timeout_strategy=cancel")
    if settings.multifd:
        words.append(f"connections={settings.multifd_channels}")
    return f"ch-remote --api-socket SOCKET send-migration {','.join(words)}"


FORMATS: dict[str, dict[str, Callable[[Plan, RunningGuest, Targets], str]]] = {
    "qemu": {"qmp": qmp, "virsh": virsh, "kubevirt": kubevirt, "proxmox": proxmox, "nova": nova},
    "cloud-hypervisor": {"cloud-hypervisor": cloud_hypervisor},
}  # fmt: skip
"""Functions that write a plan, by VMM and output format."""
