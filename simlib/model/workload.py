# SPDX-License-Identifier: BSD-3-Clause
"""Workloads: the actions of the guest and of userspace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simlib.model import rules
from simlib.model.throttle import THROTTLES, Throttle

RING_RESERVE = 64
"""Entries of a dirty ring that KVM keeps free (include/linux/kvm_dirty_ring.h KVM_DIRTY_RING_RSVD_ENTRIES)."""


@dataclass(frozen=True)
class WorkloadFacts:
    """Properties of a kind of workload on which the rules for a scenario's values depend.

    - `keeps_accessing`: the guest accesses a page once per ``access_interval`` while userspace works.
    - `clear_threads`: there may be threads that only run CLEAR.
    - `by_chunk`: those threads divide each chunk between them, instead of the slot.
    - `regions`: there may be a lock for each of several regions.
    - `shares`: all vCPUs may access all memory (`Workload.shared`), which is then not divided.
    - `manual`: the log has manual protection: there is a CLEAR, and ``initially_set`` is possible.
    - `rings`: KVM may report the guest's writes in dirty rings.
    """

    keeps_accessing: bool = False
    clear_threads: bool = False
    by_chunk: bool = False
    regions: bool = True
    shares: bool = False
    manual: bool = True
    rings: bool = False


KINDS = {
    "clear_under_load": WorkloadFacts(clear_threads=True),
    "dirty_log_perf_test": WorkloadFacts(rings=True),
    "eager_split": WorkloadFacts(regions=False, shares=True),
    "get_dirty_log": WorkloadFacts(keeps_accessing=True, shares=True, manual=False),
    "lock_probe": WorkloadFacts(regions=False),
    "migration": WorkloadFacts(keeps_accessing=True, clear_threads=True, by_chunk=True, shares=True, rings=True),
    "teardown": WorkloadFacts(regions=False, shares=True),
    "zap": WorkloadFacts(keeps_accessing=True, regions=False, shares=True),
}
"""The kinds of workload; `simlib.simulator.workloads` has their programs and metrics."""


@dataclass(frozen=True)
class Workload(rules.Checked):
    """The actions of the guest and of userspace.

    - `kind`: ``dirty_log_perf_test``: KVM's selftest, whose vCPUs are parked while the log is cleared;
      ``clear_under_load``: vCPUs keep writing (the selftest mmu_lock_contention_test of kernel-patches/);
      ``get_dirty_log``: vCPUs keep writing while GET, without manual protection, write-protects the dirty pages;
      ``lock_probe``: the selftest, with empty CLEARs while the vCPUs write (option -q of mmu_lock_contention_test);
      ``migration``: vCPUs keep writing while passes over the memory collect, clear and send it; ``zap``: vCPUs keep
      writing while all memory is unmapped once; ``teardown``: an arm64 stage 2 is unmapped entry by entry, after the
      guest has stopped or while it runs; ``eager_split``: as ``dirty_log_perf_test``, with arm64's walks entry by
      entry, or with vCPUs that keep writing (`parked`).
    - `iterations`: rounds of dirtying, GET and CLEAR after the memory is populated (option -i).
    - `write_percent`: share of the pages that each round writes; it reads the others (option -f).
    - `initially_set`: KVM_DIRTY_LOG_INITIALLY_SET: enabling the log write-protects nothing, and every page starts
      dirty. This is a part of manual protection, so ``at_get`` and ``ring`` do not have it.
    - `clear_chunk`: bytes of one CLEAR ioctl; None: the whole slot.
    - `pause`: picoseconds for which the clearing thread sleeps before each round of ``clear_under_load`` and
      ``get_dirty_log``.
    - `lock_stat_runs`: number of test runs over which the published lock counters are summed.
    - `access`: order in which a vCPU of ``get_dirty_log``, ``migration`` and ``zap`` accesses its pages:
      ``sequential``, cyclically from a random page; ``uniform``, a random page each time; ``zipf``, by Zipf's law.
    - `shared`: each such vCPU accesses all memory instead of its own part.
    - `zipf_exponent`: the r-th most popular page has a share of the accesses proportional to r^-`zipf_exponent`.
    - `access_interval`: picoseconds between two accesses of a vCPU that is not delayed.
    - `cpu_use`: share of this time for which the vCPU computes. It is idle for the rest, so that a vCPU that a fault, a
      kick or a throttle delayed can catch up.
    - `warm_up`: picoseconds for which the guest of ``migration`` and ``zap`` runs undisturbed.
    - `link`: bits per second that a migration can send.
    - `clear_when`: ``lazy``: each chunk is cleared just before its first page is sent (QEMU, x-clear-bitmap-shift);
      ``at_once``: the whole slot after each GET; ``at_get``: by GET itself, without manual protection; ``ring``: by the
      reset of the dirty rings, which takes the lock for each run of entries whose pages lie within 64 pages.
    - `ring_entries`: size of a vCPU's dirty ring (QEMU's dirty-ring-size), a power of two; 64 entries, and as many as a
      log buffer has, stay free.
    - `reap_every`: picoseconds that the reaper thread of ``migration`` sleeps between harvesting the rings; 0: there is
      no reaper thread. Userspace also harvests all rings when a ring is full, and in each pass or round.
    - `clear_threads`: threads that only run CLEAR. In ``migration`` they divide each chunk between them and stay one
      chunk ahead of the sending thread; 0: the sending thread runs CLEAR, as in QEMU. In ``clear_under_load`` each
      clears a part of the slot; 0: one thread clears all of it.
    - `downtime`: downtime limit, picoseconds: a migration switches over when the dirty memory can be sent in this time.
    - `pass_limit`: number of passes after which a migration switches over in any case.
    - `timeout`: picoseconds after which no new pass begins.
    - `throttle`: rule by which the VMM of a migration throttles the guest (`simlib.model.throttle`): ``none``;
      ``qemu``, its auto-converge; ``qemu-1.6``; ``qemu-dirty-limit``, with rings; ``cloud-hypervisor``.
    - `throttle_initial`, `throttle_increment`, `throttle_most`: percent; 0: the VMM's value.
    - `throttle_slice`: picoseconds for which a vCPU runs between two sleeps, or length of the window in which it runs
      and sleeps, or time between two measurements of the vCPUs' rates; `throttle_check_period`: minimum time between
      two checks; `throttle_sync`: longest time of a pass without a GET. None: the VMM's value.
    - `dirty_limit`: dirty rate allowed for each vCPU under ``qemu-dirty-limit``, MiB/s.
    - `parked`: the vCPUs of ``eager_split`` write all their pages once before each CLEAR and then wait until it ends,
      as in the selftest; otherwise they keep writing, and `pause` precedes each CLEAR.
    - `flush_accesses`: accesses after which a vCPU of ``clear_under_load`` flushes its own TLB, which takes
      `Costs.guest_flush`; 0: never.
    - `preempted_vcpus`: number of vCPUs of ``clear_under_load``, the last ones, that share a CPU with the clearing
      thread: when that thread wakes, each of them completes its current access and fault, and then waits until the
      thread sleeps again.
    - `slow_fault_every`: accesses of a vCPU of ``migration`` and ``zap`` between two faults that take the lock
      regardless of the log, such as those of NX huge pages; 0: none.
    - `guest_runs`: the guest of ``teardown`` keeps writing, as if userspace unmapped memory in use.
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
    cpu_use: float = rules.rule(rules.share, 1.0)
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
    def facts(self) -> WorkloadFacts:
        """Properties of the workload's kind."""
        return KINDS[self.kind]

    @property
    def keeps_accessing(self) -> bool:
        """True if the guest accesses a page once per ``access_interval`` while userspace works."""
        return self.facts.keeps_accessing or self.guest_runs or (self.kind == "eager_split" and not self.parked)

    @property
    def access_work(self) -> int:
        """Time that a vCPU computes between two accesses, ps.

        >>> Workload(access_interval=1_000_000, cpu_use=0.2).access_work
        200000
        """
        return round(self.cpu_use * self.access_interval)

    @property
    def rings(self) -> bool:
        """True if KVM reports the guest's writes in dirty rings instead of a bitmap."""
        return self.facts.rings and self.clear_when == "ring"

    @property
    def throttling(self) -> Throttle | None:
        """Throttling rule of the VMM; None: the VMM does not throttle.

        >>> Workload(kind="migration", throttle="qemu", throttle_most=40).throttling.most
        40
        """
        rule = THROTTLES[self.throttle]
        if rule is None or self.kind != "migration":
            return None
        settings: dict[str, Any] = {
            "initial": self.throttle_initial or None, "increment": self.throttle_increment or None,
            "most": self.throttle_most or None, "window" if rule.window else "slice": self.throttle_slice,
            "check_period": self.throttle_check_period, "sync_every": self.throttle_sync,
            "limit": self.dirty_limit if rule.limit else None,
        }  # fmt: skip
        return rule._replace(**{name: value for name, value in settings.items() if value is not None})
