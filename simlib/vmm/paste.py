# SPDX-License-Identifier: BSD-3-Clause
"""A plan as text that can be pasted: QMP, virsh, KubeVirt, cloud-hypervisor; and what each of them cannot set.

Sources: QEMU's qapi/migration.json (10.0); virsh(1) and libvirt-domain.h; KubeVirt's MigrationPolicy
(migrations.kubevirt.io/v1alpha1); cloud-hypervisor's API, SendMigrationData.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from simlib.vmm.guest import MigratingGuest, Targets
from simlib.vmm.plans import Plan
from simlib.vmm.settings import CAPABILITIES

_UNLIMITED = 2**63 - 2**20
"""What libvirt sends to QEMU for no limit, bytes/s."""

_LIBVIRT = frozenset({
    "auto-converge", "cpu-throttle-initial", "cpu-throttle-increment", "multifd", "multifd-channels", "postcopy-ram",
    "downtime-limit", "max-bandwidth",
})  # fmt: skip
"""Settings for which virsh has an option or a command; no limit of bandwidth is its default."""

_KUBEVIRT = frozenset({"auto-converge", "postcopy-ram", "max-bandwidth"})
"""Those for which a MigrationPolicy has a key."""

SETTABLE = {"kubevirt": _KUBEVIRT}
"""What can be set, by target, where that is not all."""


def _cannot(plan: Plan, guest: MigratingGuest, known: frozenset[str]) -> dict[str, int | bool]:
    """What a plan changes that something has no words for."""
    return {name: value for name, value in plan.settings.beside(guest.settings).items() if name not in known}


def _left_out(who: str, plan: Plan, guest: MigratingGuest, known: frozenset[str]) -> list[str]:
    """A remark on that."""
    cannot = _cannot(plan, guest, known)
    return [f"# {who} cannot set {', '.join(cannot)}: see --for qmp"] if cannot else []


def qmp(plan: Plan, guest: MigratingGuest, wishes: Targets) -> str:
    """What QEMU's monitor is sent on both sides before ``migrate``."""
    text = _commands(plan.settings.beside(guest.settings))
    if plan.postcopy:
        text.append('{"execute": "migrate-start-postcopy"}   # on the source, when the first pass is over')
    return "\n".join(text)


def _commands(named: dict[str, int | bool]) -> list[str]:
    """QMP that sets some settings."""
    on = [{"capability": name, "state": value} for name, value in named.items() if name in CAPABILITIES]
    numbers = {name: value for name, value in named.items() if name not in CAPABILITIES}
    if numbers.get("max-bandwidth") == 0:
        numbers["max-bandwidth"] = _UNLIMITED
    asked: dict[str, Any] = {
        "migrate-set-capabilities": {"capabilities": on} if on else None, "migrate-set-parameters": numbers,
    }  # fmt: skip
    return [json.dumps({"execute": name, "arguments": given}) for name, given in asked.items() if given]


def virsh(plan: Plan, guest: MigratingGuest, wishes: Targets) -> str:
    """The commands of libvirt; what it has no option for goes to QEMU."""
    own, words = plan.settings, ["virsh migrate --live --persistent"]
    if own.auto_converge:
        words.append(
            f"--auto-converge --auto-converge-initial {own.cpu_throttle_initial} "
            f"--auto-converge-increment {own.cpu_throttle_increment}"
        )
    if own.multifd:
        words.append(f"--parallel --parallel-connections {own.multifd_channels}")
    if plan.postcopy:
        words.append("--postcopy --postcopy-after-precopy")
    before = _cannot(plan, guest, _LIBVIRT)
    lines = [f"virsh qemu-monitor-command DOMAIN '{one}'" for one in _commands(before)]
    if before:
        back = ", ".join(f"{name} {getattr(guest.settings, name.replace('-', '_'))}" for name in before)
        lines[-1] += f"   # libvirt has no option for it; it was {back}"
    if own.downtime_limit != guest.settings.downtime_limit:
        lines.append(f"virsh migrate-setmaxdowntime DOMAIN {own.downtime_limit}")
    lines.append(" ".join([*words, "DOMAIN qemu+ssh://HOST/system"]))
    if wishes.within_s is not None:
        lines.append(f"# not over after {math.ceil(wishes.within_s)} s? virsh domjobabort DOMAIN leaves it where it is")
    return "\n".join(lines)


def kubevirt(plan: Plan, guest: MigratingGuest, wishes: Targets) -> str:
    """A MigrationPolicy; it has neither a ceiling for the throttle nor a downtime."""
    own = plan.settings
    lines = ["apiVersion: migrations.kubevirt.io/v1alpha1", "kind: MigrationPolicy", "metadata:", "  name: simlib",
             "spec:", f"  allowAutoConverge: {str(own.auto_converge).lower()}",
             f"  allowPostCopy: {str(plan.postcopy).lower()}"]  # fmt: skip
    if own.max_bandwidth == 0:
        lines.append('  bandwidthPerMigration: "0"')
    if wishes.within_s is not None:
        each = max(1, math.ceil(wishes.within_s / (guest.memory / 2**30)))
        lines.append(f"  completionTimeoutPerGiB: {each}")
    lines += ["  selectors:", "    virtualMachineInstanceSelector:", "      migrate: simlib   # a label of your guest"]
    return "\n".join([*lines, *_left_out("KubeVirt", plan, guest, _KUBEVIRT)])


def cloud_hypervisor(plan: Plan, guest: MigratingGuest, wishes: Targets) -> str:
    """What ch-remote is told; how it throttles cannot be set."""
    own, words = plan.settings, ["destination_url=tcp:HOST:PORT", f"downtime_ms={plan.settings.downtime_limit}"]
    if wishes.within_s is not None:
        words.append(f"timeout_s={math.ceil(wishes.within_s)},timeout_strategy=cancel")
    if own.multifd:
        words.append(f"connections={own.multifd_channels}")
    return f"ch-remote --api-socket SOCKET send-migration {','.join(words)}"


TARGETS: dict[str, dict[str, Callable[[Plan, MigratingGuest, Targets], str]]] = {
    "qemu": {"qmp": qmp, "virsh": virsh, "kubevirt": kubevirt},
    "cloud-hypervisor": {"cloud-hypervisor": cloud_hypervisor},
}  # fmt: skip
"""What a plan is written for, by the VMM."""
