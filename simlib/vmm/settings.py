# SPDX-License-Identifier: BSD-3-Clause
"""What can be set for a migration, by the VMM's own names, with its defaults and where they are from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from simlib.errors import InputError, nearest


class Vmm(NamedTuple):
    """What a version of a VMM does that cannot be set.

    - `high_times`: how often the guest must be found to dirty too much before it is throttled, or throttled more.
    - `sync_every_s`: with auto-converge, the bitmap is synchronised at least so often, s.
    - `source`: where that is from.
    """

    name: str
    high_times: int
    sync_every_s: float
    source: str


QEMU = Vmm("QEMU 10.0", 2, 5.0, "migration/ram.c migration_trigger_throttle, migration/cpu-throttle.c (since 9.2)")
QEMU_9_1 = Vmm("QEMU 9.1", 2, math.inf, "migration/ram.c migration_trigger_throttle")
QEMU_1_6 = Vmm("QEMU 1.6", 6, math.inf, "commit 7ca1dfad952d: of every 40 ms a vCPU sleeps 30, set for good")


def _setting(default: Any, least: float, most: float, about: str) -> Any:
    return field(default=default, metadata={"least": least, "most": most, "about": about})


@dataclass(frozen=True)
class Settings:
    """QEMU's migration parameters and capabilities, QEMU 10.0 (qapi/migration.json; defaults of migration/options.c).

    A name has `_` where QEMU's has `-`. A capability is a truth value.

    >>> Settings().downtime_limit, Settings.of({"max-bandwidth": 10**9}).max_bandwidth
    (300, 1000000000)
    """

    max_bandwidth: int = _setting(2**27, 0, 2**62, "bytes/s; 0: no limit, which is what libvirt sets")
    downtime_limit: int = _setting(300, 0, 2_000_000, "ms")
    avail_switchover_bandwidth: int = _setting(0, 0, 2**62, "bytes/s expected at the switchover; 0: what is measured")
    auto_converge: bool = _setting(False, 0, 1, "throttle vCPUs if the guest dirties too fast")
    throttle_trigger_threshold: int = _setting(50, 1, 100, "percent of what is sent that may be dirtied meanwhile")
    cpu_throttle_initial: int = _setting(20, 1, 99, "percent")
    cpu_throttle_increment: int = _setting(10, 1, 99, "percent")
    cpu_throttle_tailslow: bool = _setting(False, 0, 1, "smaller steps near the end")
    max_cpu_throttle: int = _setting(99, 1, 99, "percent")
    dirty_limit: bool = _setting(False, 0, 1, "limit each vCPU that dirties too fast; needs dirty rings and KVM")
    vcpu_dirty_limit: int = _setting(1, 1, 2**31, "MiB/s of each vCPU")
    x_vcpu_dirty_limit_period: int = _setting(1000, 1, 1000, "ms between two looks at the vCPUs' rates")
    postcopy_ram: bool = _setting(False, 0, 1, "may switch to postcopy")
    max_postcopy_bandwidth: int = _setting(0, 0, 2**62, "bytes/s in postcopy; 0: no limit")
    multifd: bool = _setting(False, 0, 1, "several streams")
    multifd_channels: int = _setting(2, 1, 255, "of them")

    def __post_init__(self) -> None:
        """Refuse what QEMU would."""
        for one in fields(self):
            value, least, most = getattr(self, one.name), one.metadata["least"], one.metadata["most"]
            if not least <= value <= most:
                rule = f"must be from {least} to {most} ({one.metadata['about']})"
                raise InputError(one.name.replace("_", "-"), value, rule, "correct it")
        if self.postcopy_ram and self.multifd:
            raise InputError("multifd", True, "QEMU 10.0 has no postcopy with multifd", "leave one of them out")

    @classmethod
    def of(cls, named: dict[str, int | bool]) -> Settings:
        """Settings by QEMU's names.

        Raises `InputError` if there is none of a name.
        """
        known = {one.name.replace("_", "-"): one.name for one in fields(cls)}
        for name, value in named.items():
            if name not in known:
                raise InputError(name, value, "is no setting that is modelled", nearest(name, known))
        values: dict[str, Any] = {known[name]: value for name, value in named.items()}
        return cls(**values)

    def changed(self, **values: Any) -> Settings:
        """The same with other values."""
        return replace(self, **values)
