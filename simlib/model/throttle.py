# SPDX-License-Identifier: BSD-3-Clause
"""How VMMs slow down a guest that dirties its memory faster than it can be sent, each with its source."""

from __future__ import annotations

from typing import NamedTuple

from simlib.model.quantities import PS_PER_S

_MS = PS_PER_S // 1000


class Throttle(NamedTuple):
    """When a VMM throttles a guest, and how. Times are in ps, shares in percent.

    - `trigger`: share of what was sent that may be dirtied meanwhile.
    - `times`: how often the guest must be found to dirty more before it is throttled, or throttled more.
    - `initial`, `increment`, `most`: share of its time for which a vCPU sleeps: the first, what is added, the last.
    - `judge_every`: the guest is not judged sooner after the last time.
    - `sync_every`: the bitmap is synchronised at least so often; 0: when a pass is over.
    - `slice`: a vCPU runs for so long between two sleeps; 0: it sleeps for its share of each `window`.
    - `limit`: instead, what each vCPU may dirty, MiB/s (QEMU's dirty limit, with dirty rings), and `slice` is how often
      the rates of the vCPUs are looked at; 0: vCPUs are throttled.
    """

    trigger: int
    times: int
    initial: int
    increment: int
    most: int
    judge_every: int
    sync_every: int
    slice: int
    window: int
    limit: int = 0


QEMU = Throttle(50, 2, 20, 10, 99, PS_PER_S, 5 * PS_PER_S, 10 * _MS, 0)
"""Auto-converge of QEMU 10.0: migration/ram.c migration_trigger_throttle and mig_throttle_guest_down,
migration/cpu-throttle.c cpu_throttle_thread, cpu_throttle_timer_tick, and cpu_throttle_dirty_sync_timer_tick."""

QEMU_1_6 = Throttle(50, 6, 75, 0, 75, PS_PER_S, 0, 10 * _MS, 0)
"""That of QEMU 1.6, commit 7ca1dfad952d: of every 40 ms a throttled vCPU sleeps 30."""

QEMU_DIRTY_LIMIT = QEMU._replace(slice=PS_PER_S, limit=1)
"""Dirty limit of QEMU 10.0: migration/ram.c migration_dirty_limit_guest, system/dirtylimit.c."""

CLOUD_HYPERVISOR = Throttle(0, 2, 10, 10, 99, 0, 0, 0, 100 * _MS)
"""Cloud Hypervisor as Cyberus Technology has it for Garden Linux: vmm/src/lib.rs memory_copy_iterations, which adds a
tenth at every other pass whatever the guest dirties; vmm/src/vcpu_throttling.rs, which pauses all vCPUs at once."""

THROTTLES = {
    "none": None, "qemu": QEMU, "qemu-1.6": QEMU_1_6, "qemu-dirty-limit": QEMU_DIRTY_LIMIT,
    "cloud-hypervisor": CLOUD_HYPERVISOR,
}  # fmt: skip
"""By the names that a scenario has for them."""
