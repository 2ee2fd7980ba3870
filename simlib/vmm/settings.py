# SPDX-License-Identifier: BSD-3-Clause
"""Migration parameters and capabilities by the VMM's own names, with their defaults and sources."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from simlib._lib.errors import InputError, nearest
from simlib.model import throttle
from simlib.model.throttle import Throttle

_SWITCH = {"on": True, "off": False, "true": True, "false": False}


class Vmm(NamedTuple):
    """Fixed behaviour of a VMM, which no setting changes.

    - `throttle`: rule by which it throttles; QEMU's settings change some of its numbers.
    - `whole_passes`: True if it sends all pages that a GET returned before it synchronises again, and always throttles.
    - `settings`: names, as in QEMU, of the `Settings` that the VMM has; None: all.
    """

    throttle: Throttle
    whole_passes: bool = False
    settings: frozenset[str] | None = None
    title: str = "QEMU"


QEMU, QEMU_1_6 = Vmm(throttle.QEMU), Vmm(throttle.QEMU_1_6)
QEMU_BEFORE_9_2 = Vmm(throttle.QEMU._replace(sync_every=0))
"""QEMU that synchronises the bitmap, and checks the throttle, only at the end of a pass: without periodic
synchronisation (migration/cpu-throttle.c cpu_throttle_dirty_sync_timer, QEMU 9.2)."""

PERIODIC_SINCE = (9, 2)
"""First version of QEMU with periodic synchronisation."""

CLOUD_HYPERVISOR = Vmm(
    throttle.CLOUD_HYPERVISOR,
    True,
    frozenset({"downtime-limit", "multifd", "multifd-channels", "max-bandwidth"}),
    "Cloud Hypervisor",
)
"""Cloud Hypervisor of Cyberus Technology, vmm/src/lib.rs memory_copy_iterations; its multifd channels are connections,
and its bandwidth is always unlimited."""

VMMS = {"qemu": QEMU, "cloud-hypervisor": CLOUD_HYPERVISOR}
"""VMMs that a user may name."""


def read_named(texts: Iterable[str]) -> dict[str, int | bool]:
    """Read settings by QEMU's names from strings such as ``downtime-limit=500`` and ``auto-converge=on``.

    Raises `InputError` if a string is not a setting.

    >>> read_named(["auto-converge=on", "max-bandwidth=200"])
    {'auto-converge': True, 'max-bandwidth': 200}
    """
    values: dict[str, int | bool] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if value not in _SWITCH and not re.fullmatch(r"\d{1,19}", value, re.ASCII):
            rule, hint = "must be NAME=NUMBER, NAME=on or NAME=off", "such as downtime-limit=500"
            raise InputError("settings", text, rule, hint, flag="--current")
        values[name] = _SWITCH[value] if value in _SWITCH else int(value)
    return values


def _setting(default: int, least: int, most: int, about: str) -> Any:
    return field(default=default, metadata={"least": least, "most": most, "about": about})


def _truth(about: str, capability: bool = True) -> Any:
    return field(default=False, metadata={"least": False, "most": True, "about": about, "capability": capability})


@dataclass(frozen=True)
class Settings:
    """QEMU's migration parameters and capabilities, QEMU 10.0 (qapi/migration.json; defaults of migration/options.c).

    A name has `_` where QEMU's has `-`.

    >>> Settings().downtime_limit, Settings.of({"max-bandwidth": 10**9}).max_bandwidth
    (300, 1000000000)
    """

    max_bandwidth: int = _setting(2**27, 0, 2**62, "bytes/s; 0: no limit, which is what libvirt sets")
    downtime_limit: int = _setting(300, 0, 2_000_000, "ms")
    avail_switchover_bandwidth: int = _setting(0, 0, 2**62, "bytes/s expected at the switchover; 0: as measured")
    auto_converge: bool = _truth("throttle vCPUs if the guest dirties memory too fast")
    throttle_trigger_threshold: int = _setting(50, 1, 100, "percent of the sent bytes that may be dirtied")
    cpu_throttle_initial: int = _setting(20, 1, 99, "percent")
    cpu_throttle_increment: int = _setting(10, 1, 99, "percent")
    cpu_throttle_tailslow: bool = _truth("smaller increments near the maximum", capability=False)
    max_cpu_throttle: int = _setting(99, 1, 99, "percent")
    dirty_limit: bool = _truth("limit the dirty page rate of each vCPU; requires KVM with a dirty ring")
    vcpu_dirty_limit: int = _setting(1, 1, 2**31, "MiB/s of each vCPU")
    x_vcpu_dirty_limit_period: int = _setting(1000, 1, 1000, "ms between two measurements of the vCPUs' rates")
    postcopy_ram: bool = _truth("may switch to post-copy")
    max_postcopy_bandwidth: int = _setting(0, 0, 2**62, "bytes/s in post-copy; 0: no limit")
    multifd: bool = _truth("several streams")
    multifd_channels: int = _setting(2, 1, 255, "number of streams")

    @property
    def streams(self) -> int:
        """Number of streams that send memory."""
        return self.multifd_channels if self.multifd else 1

    def check(self) -> Settings:
        """Return the settings if QEMU accepts them.

        Raises `InputError` if a value is out of its range, or two contradict each other.
        """
        for item in fields(self):
            value, least, most = getattr(self, item.name), item.metadata["least"], item.metadata["most"]
            if not least <= value <= most:
                rule = f"must be from {least} to {most} ({item.metadata['about']})"
                raise InputError(item.name.replace("_", "-"), value, rule, "use a value in this range")
        if self.postcopy_ram and self.multifd:
            raise InputError("multifd", True, "QEMU 10.0 refuses post-copy with multifd", "turn one of them off")
        if self.dirty_limit and self.auto_converge:  # migration/options.c migrate_caps_check
            raise InputError("dirty-limit", True, "QEMU refuses it with auto-converge", "turn one of them off")
        return self

    @classmethod
    def of(cls, named: dict[str, int | bool]) -> Settings:
        """Return settings with values that are keyed by QEMU's names.

        Raises `InputError` if a name is not a setting.
        """
        known = {item.name.replace("_", "-"): item.name for item in fields(cls)}
        for name, value in named.items():
            if name not in known:
                raise InputError(name, value, "must be a modelled setting", nearest(name, known))
        values: dict[str, Any] = {known[name]: value for name, value in named.items()}
        return cls(**values)

    def changes_from(self, other: Settings) -> dict[str, int | bool]:
        """Settings that differ from `other`, by QEMU's names.

        >>> Settings(auto_converge=True).changes_from(Settings())
        {'auto-converge': True}
        """
        names = (item.name for item in fields(self) if getattr(self, item.name) != getattr(other, item.name))
        return {name.replace("_", "-"): getattr(self, name) for name in names}

    def changed(self, **values: Any) -> Settings:
        """Return the settings with other values."""
        return replace(self, **values)


NAMES = frozenset(item.name.replace("_", "-") for item in fields(Settings))
"""QEMU's names of all settings."""

CAPABILITIES = frozenset(item.name.replace("_", "-") for item in fields(Settings) if item.metadata.get("capability"))
"""Names that migrate-set-capabilities sets; migrate-set-parameters sets all other settings."""
