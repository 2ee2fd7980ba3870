# SPDX-License-Identifier: BSD-3-Clause
"""What the guest and userspace do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simlib.model import rules
from simlib.model.throttle import THROTTLES, Throttle

RING_RESERVE = 64
"""Entries of a dirty ring that KVM keeps free (include/linux/kvm_dirty_ring.h KVM_DIRTY_RING_RSVD_ENTRIES)."""


@dataclass(frozen=True)
class Facts:
    """What a kind of workload is like, as far as a scenario's values depend on it.

    - `works_on`: the guest touches its memory for as long as userspace works, an access each ``access_interval``.
    - `clear_threads`: there can be threads that only clear.
    - `by_chunk`: these clear chunk by chunk, each a part of it, rather than each a part of the slot.
    - `regions`: the lock may be one of several regions.
    - `shares`: all vCPUs may touch all of the memory (`Workload.shared`), which needs no dividing then.
    - `manual`: manual protection: there is a CLEAR, and ``initially_set`` may be.
    - `rings`: KVM may tell by dirty rings what the guest writes.
    """

    works_on: bool = False
    clear_threads: bool = False
    by_chunk: bool = False
    regions: bool = True
    shares: bool = False
    manual: bool = True
    rings: bool = False


KINDS = {
    "clear_under_load": Facts(clear_threads=True),
    "dirty_log_perf_test": Facts(rings=True),
    "eager_split": Facts(regions=False, shares=True),
    "get_dirty_log": Facts(works_on=True, shares=True, manual=False),
    "lock_probe": Facts(regions=False),
    "migration": Facts(works_on=True, clear_threads=True, by_chunk=True, shares=True, rings=True),
    "teardown": Facts(regions=False, shares=True),
    "zap": Facts(works_on=True, regions=False, shares=True),
}
"""The kinds of workload. What they do and measure is in `simlib.simulator.workloads`."""


@dataclass(frozen=True)
class Workload(rules.Checked):
    """What the guest and userspace do.

    - `kind`: ``dirty_log_perf_test``: KVM's selftest, whose vCPUs are parked while the log is cleared;
      ``clear_under_load``: they keep writing (the selftest mmu_lock_contention_test of kernel-patches/);
      ``get_dirty_log``: they keep writing while GET, without manual protection, write-protects what it finds;
      ``lock_probe``: the selftest, with empty CLEARs while the vCPUs write (option -q of mmu_lock_contention_test);
      ``migration``: they keep writing while passes over the memory collect, clear and send it; ``zap``: they keep
      writing while all of it is unmapped once; ``teardown``: an arm64 stage 2 is unmapped entry by entry, once the
      guest has ended or while it runs. ``eager_split``: as the first, with arm64's walks entry by entry; or they keep
      writing (`parked`).
    - `iterations`: rounds of dirtying, GET and CLEAR after the memory is populated (option -i).
    - `write_percent`: share of the pages that each round writes; it reads the others (option -f).
    - `initially_set`: KVM_DIRTY_LOG_INITIALLY_SET: nothing is write-protected at enable time, every page starts dirty.
      It is a part of manual protection, so ``at_get`` and ``ring`` do without.
    - `clear_chunk`: bytes of one CLEAR ioctl; None: the whole slot.
    - `pause`: picoseconds for which the clearing thread sleeps before each round of ``clear_under_load`` and
      ``get_dirty_log``.
    - `lock_stat_runs`: runs of the test over which the published lock counters were added up.
    - `access`: order in which a vCPU of ``get_dirty_log``, ``migration`` and ``zap`` touches its pages: ``sequential``,
      round and round from a random one; ``uniform``, each time any page; ``zipf``, some much more often than others.
    - `shared`: whether each such vCPU touches all of the memory, rather than its own part of it.
    - `zipf_exponent`: how much more often: page number r by popularity has a share proportional to r to this negative
      power.
    - `access_interval`: picoseconds of its own work between touching one page and the next.
    - `warm_up`: picoseconds for which the guest of ``migration`` and ``zap`` runs undisturbed.
    - `link`: bits a second that a migration can send.
    - `clear_when`: ``lazy``: each chunk is cleared just before its first page is sent (QEMU, x-clear-bitmap-shift);
      ``at_once``: the whole slot after each GET; ``at_get``: by GET itself, without manual protection; ``ring``: by the
      reset of the dirty rings, which takes the lock for each run of entries whose pages lie within 64.
    - `ring_entries`: of a vCPU's dirty ring (QEMU's dirty-ring-size), a power of two; 64 of them, and a log buffer's,
      are kept free.
    - `reap_every`: picoseconds that a thread of userspace sleeps in ``migration`` between harvesting the rings; 0: none
      does. A vCPU whose ring is full, and each pass or round, harvest all rings in any case.
    - `clear_threads`: threads that clear. In ``migration``: beside the one that sends, dividing each chunk between them
      and staying one chunk ahead of it; 0: the sending thread clears, as QEMU's does. In ``clear_under_load``: each a
      part of the slot; 0: one thread clears all of it.
    - `downtime`: picoseconds: a migration switches over when what GET found can be sent in this time.
    - `pass_limit`: passes after which it switches over whatever is left.
    - `timeout`: picoseconds after which no new pass begins.
    - `throttle`: how the VMM of a migration slows down a guest that dirties too much (`simlib.model.throttle`):
      ``none``; ``qemu``, its auto-converge; ``qemu-1.6``; ``qemu-dirty-limit``, with rings; ``cloud-hypervisor``.
    - `throttle_initial`, `throttle_increment`, `throttle_most`: percent; 0: as that VMM has it.
    - `throttle_slice`: picoseconds that a vCPU runs between two sleeps, of the window in which it runs and sleeps, or
      between two looks at the vCPUs' rates; `throttle_check_period`: between two judgements at least; `throttle_sync`:
      for which a pass goes on without a GET. None: as that VMM has it.
    - `dirty_limit`: MiB/s that each vCPU may dirty under ``qemu-dirty-limit``.
    - `parked`: whether the vCPUs of ``eager_split`` write all their pages once before each CLEAR and then wait until it
      is over, as those of the selftest; else they keep writing, and `pause` lies before each CLEAR.
    - `flush_accesses`: accesses after which a vCPU of ``clear_under_load`` flushes its own TLB, which takes
      `Costs.guest_flush`; 0: never.
    - `preempted_vcpus`: vCPUs of ``clear_under_load``, the last ones, that share a CPU with the thread that clears:
      once an access and its fault are over, each of them waits from when that thread wakes until it sleeps again.
    - `slow_fault_every`: accesses of a vCPU of ``migration`` and ``zap`` between two faults that take the lock whatever
      the log says, as those of NX huge pages do; 0: none.
    - `guest_runs`: whether the guest of ``teardown`` keeps writing meanwhile, as when userspace unmaps memory that it
      uses.
    """

    kind: str = rules.rule(rules.choice(*KINDS), "dirty_log_perf_test")
    iterations: int = rules.rule(rules.whole(1, 1000), 2)
    write_percent: int = rules.rule(rules.whole(1, 100), 100)
    initially_set: bool = rules.rule(rules.flag, True)
    clear_chunk: int | None = rules.size()
    pause: int = rules.duration("10ms")
    lock_stat_runs: int = rules.rule(rules.whole(1, 100), 1)
    access: str = rules.rule(rules.choice("sequential", "uniform", "zipf"), "sequential")
    shared: bool = rules.rule(rules.flag, False)
    zipf_exponent: float = rules.rule(rules.number(0, 4), 0.99)
    access_interval: int = rules.duration("1us")
    warm_up: int = rules.duration("100ms")
    link: int = rules.bandwidth("25Gbit/s")
    clear_when: str = rules.rule(rules.choice("lazy", "at_once", "at_get", "ring"), "lazy")
    ring_entries: int = rules.rule(rules.power_of_two(128, 65536), 4096)
    reap_every: int = rules.duration("1s")
    clear_threads: int = rules.rule(rules.whole(0, 64), 0)
    downtime: int = rules.duration("300ms")
    pass_limit: int = rules.rule(rules.whole(1, 100), 30)
    timeout: int = rules.duration("600s")
    throttle: str = rules.rule(rules.choice(*THROTTLES), "none")
    throttle_initial: int = rules.rule(rules.whole(0, 99), 0)
    throttle_increment: int = rules.rule(rules.whole(0, 99), 0)
    throttle_most: int = rules.rule(rules.whole(0, 99), 0)
    throttle_slice: int | None = rules.duration()
    throttle_check_period: int | None = rules.duration()
    throttle_sync: int | None = rules.duration()
    dirty_limit: int = rules.rule(rules.whole(1, 2**31), 1)
    parked: bool = rules.rule(rules.flag, True)
    slow_fault_every: int = rules.rule(rules.whole(0, 2**31), 0)
    guest_runs: bool = rules.rule(rules.flag, False)
    flush_accesses: int = rules.rule(rules.whole(0, 1 << 20), 0)
    preempted_vcpus: int = rules.rule(rules.whole(0, 64), 0)

    @property
    def facts(self) -> Facts:
        """What its kind is like."""
        return KINDS[self.kind]

    @property
    def keeps_touching(self) -> bool:
        """Whether the guest touches its memory for as long as userspace works, an access each ``access_interval``."""
        return self.facts.works_on or self.guest_runs or (self.kind == "eager_split" and not self.parked)

    @property
    def rings(self) -> bool:
        """Whether KVM tells userspace by dirty rings what the guest writes, in place of a bitmap."""
        return self.facts.rings and self.clear_when == "ring"

    @property
    def throttling(self) -> Throttle | None:
        """How the VMM slows the guest down; None: it does not.

        >>> Workload(kind="migration", throttle="qemu", throttle_most=40).throttling.most
        40
        """
        rule = THROTTLES[self.throttle]
        if rule is None or self.kind != "migration":
            return None
        own: dict[str, Any] = {
            "initial": self.throttle_initial or None, "increment": self.throttle_increment or None,
            "most": self.throttle_most or None, "window" if rule.window else "slice": self.throttle_slice,
            "judge_every": self.throttle_check_period, "sync_every": self.throttle_sync,
            "limit": self.dirty_limit if rule.limit else None,
        }  # fmt: skip
        return rule._replace(**{name: value for name, value in own.items() if value is not None})
