# SPDX-License-Identifier: BSD-3-Clause
"""A plan as text that can be pasted: QMP, virsh, KubeVirt, cloud-hypervisor; and what each of them cannot set.

Sources: QEMU's qapi/migration.json (10.0); virsh(1) and libvirt-domain.h; KubeVirt's MigrationPolicy
(migrations.kubevirt.io/v1alpha1); cloud-hypervisor's API, SendMigrationData.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import fields

from simlib.migration.guest import Guest, Wishes
from simlib.migration.plans import Plan
from simlib.vmm.settings import Settings

_UNLIMITED = 2**63 - 2**20
"""What libvirt sends to QEMU for no limit, bytes/s."""

_TRUTHS = ("cpu-throttle-tailslow",)
"""Parameters whose value is a truth value."""


def changed(plan: Plan, guest: Guest) -> dict[str, int | bool]:
    """Settings that differ from those that stand, by QEMU's names."""
    return {
        one.name.replace("_", "-"): getattr(plan.settings, one.name)
        for one in fields(Settings)
        if getattr(plan.settings, one.name) != getattr(guest.settings, one.name)
    }


def qmp(plan: Plan, guest: Guest, wishes: Wishes) -> str:
    """What QEMU's monitor is sent on both sides before ``migrate``."""
    differs = changed(plan, guest)
    numbers = {name: value for name, value in differs.items() if name in _TRUTHS or not isinstance(value, bool)}
    on = [{"capability": name, "state": value} for name, value in differs.items() if name not in numbers]
    if numbers.get("max-bandwidth") == 0:
        numbers["max-bandwidth"] = _UNLIMITED
    lines = []
    if on:
        lines.append({"execute": "migrate-set-capabilities", "arguments": {"capabilities": on}})
    if numbers:
        lines.append({"execute": "migrate-set-parameters", "arguments": numbers})
    text = [json.dumps(line) for line in lines]
    if plan.postcopy:
        text.append('{"execute": "migrate-start-postcopy"}   # on the source, when the first pass is over')
    return "\n".join(text)


def virsh(plan: Plan, guest: Guest, wishes: Wishes) -> str:
    """The commands of libvirt."""
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
    if wishes.within_s is not None:
        words.append(f"--timeout {math.ceil(wishes.within_s)} --timeout-suspend")
    lines = [" ".join([*words, "DOMAIN qemu+ssh://HOST/system"])]
    if own.downtime_limit != guest.settings.downtime_limit:
        lines.append(f"virsh migrate-setmaxdowntime DOMAIN {own.downtime_limit}   # while it migrates")
    if own.auto_converge and own.max_cpu_throttle != guest.settings.max_cpu_throttle:
        asked = {"execute": "migrate-set-parameters", "arguments": {"max-cpu-throttle": own.max_cpu_throttle}}
        lines.insert(0, f"virsh qemu-monitor-command DOMAIN '{json.dumps(asked)}'   # libvirt has no option for it")
    if own.dirty_limit:
        lines.insert(0, "# libvirt has no option for the dirty limit: use QMP")
    return "\n".join(lines)


def kubevirt(plan: Plan, guest: Guest, wishes: Wishes) -> str:
    """A MigrationPolicy; it has neither a ceiling for the throttle nor a downtime."""
    own, lines = plan.settings, ["apiVersion: migrations.kubevirt.io/v1alpha1", "kind: MigrationPolicy", "metadata:",
                                 "  name: simlib", "spec:"]  # fmt: skip
    lines.append(f"  allowAutoConverge: {str(own.auto_converge).lower()}")
    lines.append(f"  allowPostCopy: {str(plan.postcopy).lower()}")
    if own.max_bandwidth == 0:
        lines.append('  bandwidthPerMigration: "0"')
    if wishes.within_s is not None:
        each = max(1, math.ceil(wishes.within_s / (guest.memory / 2**30)))
        lines.append(f"  completionTimeoutPerGiB: {each}")
    lines += ["  selectors:", "    virtualMachineInstanceSelector:", "      migrate: simlib   # a label of your guest"]
    cannot = []
    if own.auto_converge and own.max_cpu_throttle < 99:
        cannot.append(f"max-cpu-throttle {own.max_cpu_throttle}")
    if own.downtime_limit != 300:
        cannot.append(f"downtime-limit {own.downtime_limit} ms")
    if cannot:
        lines.append(f"# KubeVirt cannot set {', '.join(cannot)}")
    return "\n".join(lines)


def cloud_hypervisor(plan: Plan, guest: Guest, wishes: Wishes) -> str:
    """What ch-remote is told; its throttling has no settings."""
    own, words = plan.settings, ["destination_url=tcp:HOST:PORT", f"downtime_ms={plan.settings.downtime_limit}"]
    if wishes.within_s is not None:
        words.append(f"timeout_s={math.ceil(wishes.within_s)},timeout_strategy=cancel")
    if own.multifd:
        words.append(f"connections={own.multifd_channels}")
    return f"ch-remote --api-socket SOCKET send-migration {','.join(words)}"


TARGETS: dict[str, Callable[[Plan, Guest, Wishes], str]] = {
    "qmp": qmp, "virsh": virsh, "kubevirt": kubevirt, "cloud-hypervisor": cloud_hypervisor,
}  # fmt: skip
"""What a plan is written for."""
