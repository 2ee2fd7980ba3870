# SPDX-License-Identifier: BSD-3-Clause
"""Throttling: rules by which VMMs slow down a guest so that its migration converges, with sources."""

from __future__ import annotations

from typing import NamedTuple

from simlib.model.quantities import PS_PER_S

_MS = PS_PER_S // 1000


class Throttle(NamedTuple):
    """Throttling rule of a VMM. Times are in ps, shares in percent.

    - `trigger`: share of the sent memory that may be dirtied in the same period.
    - `times`: number of checks in which the guest must exceed this share before throttling starts or increases.
    - `initial`, `increment`, `most`: share of its time for which a vCPU sleeps: the first value, the increment, the
      maximum.
    - `check_period`: minimum time between two checks.
    - `sync_every`: longest time between two synchronisations of the bitmap; 0: at the end of each pass.
    - `slice`: time for which a vCPU runs between two sleeps; 0: it sleeps for its share of each `window`.
    - `limit`: dirty rate allowed for each vCPU, MiB/s (QEMU's dirty limit, with dirty rings); `slice` is then the
      interval at which the rates are measured; 0: vCPUs are throttled instead.
    """

    trigger: int
    times: int
    initial: int
    increment: int
    most: int
    check_period: int
    sync_every: int
    slice: int
    window: int
    limit: int = 0


QEMU = Throttle(50, 2, 20, 10, 99, PS_PER_S, 5 * PS_PER_S, 10 * _MS, 0)
"""Auto-converge of QEMU 10.0: migration/ram.c migration_trigger_throttle and mig_throttle_guest_down,
migration/cpu-throttle.c cpu_throttle_thread, cpu_throttle_timer_tick, and cpu_throttle_dirty_sync_timer_tick."""

QEMU_1_6 = Throttle(50, 6, 75, 0, 75, PS_PER_S, 0, 10 * _MS, 0)
"""Auto-converge of QEMU 1.6, commit 7ca1dfad952d: a throttled vCPU sleeps 30 of every 40 ms."""

QEMU_DIRTY_LIMIT = QEMU._replace(slice=PS_PER_S, limit=1)
"""Dirty limit of QEMU 10.0: migration/ram.c migration_dirty_limit_guest, system/dirtylimit.c."""

CLOUD_HYPERVISOR = Throttle(0, 2, 10, 10, 99, 0, 0, 0, 100 * _MS)
"""Cloud Hypervisor in Cyberus Technology's version for Garden Linux: vmm/src/lib.rs memory_copy_iterations, which adds
10 % at every other pass however much the guest dirties; vmm/src/vcpu_throttling.rs, which pauses all vCPUs at once."""

THROTTLES = {
    "none": None, "qemu": QEMU, "qemu-1.6": QEMU_1_6, "qemu-dirty-limit": QEMU_DIRTY_LIMIT,
    "cloud-hypervisor": CLOUD_HYPERVISOR,
}  # fmt: skip
"""The rules, by their names in ``workload.throttle``."""
