# SPDX-License-Identifier: BSD-3-Clause
"""KVM's locks, page faults and TLB flushes, as parts of programs, and the job that combines them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from simlib.model import strategy
from simlib.model.architectures import TRACKING
from simlib.model.conditions import Condition
from simlib.model.costs import Costs
from simlib.model.job import Image, Job, Places
from simlib.model.locks import LOCKS, SHARING, Discipline
from simlib.model.pagetable import PageTable
from simlib.model.policy import Policy
from simlib.model.program import REGION, Extent, Lock, Program, Thread, in_guest
from simlib.model.scenario import Guest, Scenario
from simlib.model.steps import Adapt, Clock, LockScope, Map, Mode, Stamp, Step
from simlib.model.topology import Placement, placement

MMU_LOCK, INTERCONNECT, REGIONS = range(3)
"""Indices of a job's locks: mmu_lock; broadcast invalidations; the first region's lock, if there are several."""

USERSPACE = REGIONS
"""Index of userspace's lock, if there are dirty rings; these exclude regions with separate locks."""

JITTER, RANDOM, _TICK, _KICK = 1, 2, 3, 4
"""Distributions of a job's times: `Costs.fault_jitter`, exponential, and those of `Host` for ticks and kicks."""

STOP = 0
"""Flag that stops a running guest."""

PLACES = 1
"""Distribution of the places that the guest accesses, if it is not uniform."""


def blocks_per_split(guest: Guest) -> int:
    """Number of 2 MiB blocks (with 4 KiB pages) that are one mapping until a fault splits it.

    >>> blocks_per_split(Guest(backing="hugetlb_1gb")), blocks_per_split(Guest())
    (512, 1)
    """
    return PageTable(guest.page_size).entries if guest.backing == "hugetlb_1gb" else 1


class ProgramCosts:
    """Costs of actions as a program uses them, in ps by the names of `Costs`, and the names that were used.

    A cost without a value takes no time here; the caller ensures that each has one (`simlib.measurements.fits`).

    >>> costs = ProgramCosts(Costs(fault_unlocked=700_000))
    >>> costs.fault_unlocked, costs.fault_hold, sorted(costs.used)
    (700000, 0, ['fault_hold', 'fault_unlocked'])
    """

    def __init__(self, costs: Costs) -> None:
        """Start with no cost marked as used."""
        self._costs = costs
        self.used: set[str] = set()

    def __getattr__(self, name: str) -> int:
        value = getattr(self._costs, name)
        self.used.add(name)
        return value or 0

    def value_or(self, name: str, other: str) -> int:
        """Value of a cost, or the value of `other` if the cost has none."""
        value: int = getattr(self, name)
        return value if getattr(self._costs, name) is not None else getattr(self, other)

    def value_if_set(self, name: str) -> int:
        """Value of a cost; 0 if it has none, because another cost then includes it."""
        return 0 if getattr(self._costs, name) is None else getattr(self, name)


@dataclass
class KernelProgram:
    """A scenario's kernel, which writes its steps into a program.

    - `policy`: with every default replaced.
    - `stamps`: the stamps written so far.
    """

    scenario: Scenario
    program: Program = field(default_factory=Program)
    stamps: list[Stamp] = field(default_factory=list)
    costs: ProgramCosts = field(init=False)
    """Costs of actions on the scenario's host."""
    first_batch: int = 64
    """Pages of each thread's adaptive batch when the run begins: the minimum that the strategy in use allows."""
    places: tuple[Places, ...] = ()
    """Distribution of the pages that the guest accesses (`Job.places`), if it is not uniform; by default Zipf's law."""
    kick_is_stall: bool = field(default=False, init=False)
    """True if a kick is a separate stall, because the guest's stopwatch does not run between two faults."""
    image: Image | None = None
    """Memory when the run begins, if it is neither empty nor all mapped."""
    hardware_dirty_bits: bool = True
    """True if the engine sets dirty bits; otherwise a write that hardware would log is a fault of the same duration."""

    def __post_init__(self) -> None:
        """Resolve the settings that the scenario leaves to the architecture."""
        self.policy: Policy = self.scenario.policy.resolved()
        self.block_pages = PageTable(self.scenario.guest.page_size).pages_per_block()
        self.costs = ProgramCosts(self.scenario.host_costs)
        if self.policy.facts.page_fence:
            self.costs.used.add("fence_vcpu")  # the costs of changing an entry include it
        self.tracking = TRACKING[self.policy.dirty_tracking]
        self.buffer_entries = self.policy.buffer_entries
        workload = self.scenario.workload
        self.ring_entries: int = workload.ring_entries if workload.rings else 0
        self.throttle = workload.throttling
        self.places = self.places or (workload.zipf_exponent,)

    @property
    def slot_pages(self) -> int:
        """Pages of the whole slot."""
        return self.scenario.guest.pages

    def stamp(self, phase: str, number: int = 0) -> None:
        """Record the time at which a phase, or a round of it, ends."""
        self.program.stamp(len(self.stamps))
        self.stamps.append(Stamp(phase, number))

    def lock(self, mode: str, regions: bool = False) -> Lock:
        """Lock for a mode of the policy; `regions`: the lock of the current page's region, if regions have locks."""
        if mode == "lockless":
            preceding = self.policy.lock_regions if self.policy.lock_regions > 1 else int(self.ring_entries > 0)
            return Lock(REGIONS + preceding, Mode.WRITE, LockScope.THREAD)
        shared = mode == "read" and LOCKS[self.policy.lock] in SHARING
        lock_mode = Mode.READ if shared else Mode.WRITE
        if regions and self.policy.lock_regions > 1:
            return Lock(REGIONS, lock_mode, LockScope.REGION)
        return Lock(MMU_LOCK, lock_mode)

    @property
    def faults_split(self) -> bool:
        """True if a write may meet a block that has to be split."""
        return self.scenario.guest.mapped_as_blocks

    def seek_next_page(self) -> None:
        """Go to the page that the guest accesses next, if it does not access pages in order."""
        self.program.seek(1, PLACES if self.scenario.workload.access == "zipf" else 0)

    def map_page(self, action: Map, logging: bool) -> None:
        """Change the entry of the page that faulted."""
        self.program.map(action, logging)

    def read_stopwatch(self, of_kicks: bool = False) -> None:
        """Record the end of a fault, or, if `of_kicks`, of a kick."""
        self.program.read_stopwatch(of_kicks)

    def faults(self, logging: bool, timed: bool = False) -> Sequence[Callable[[], None]]:
        """Handlers of the four kinds of fault, in the order of `Step.ACCESS`; `timed`: use the stopwatch."""
        costs, policy = self.costs, self.policy
        hold = costs.fault_hold
        # Without a log nothing is write-protected: the second and the third kind do not occur.
        split = costs.value_or("split_hold", "fault_hold") if logging and self.faults_split else 0
        slow_sections, fast_sections = policy.fault_lock_sections, self.scenario.policy.fault_lock_sections or 1
        # Only an entry that was valid can be cached by a TLB, and only some architectures broadcast invalidations.
        flush = costs.tlb_invalidate if logging and policy.facts.fault_flush == "broadcast" else 0
        # KVM maps a logged slot with pages: x86's kvm_mmu_hugepage_adjust, arm64's user_mem_abort (logging_active).
        block_action = Map.BLOCK if self.scenario.guest.mapped_as_blocks and not logging else Map.PAGE
        kinds = (
            ("missing page", policy.translation_fault, hold, 0, Map.PAGE, slow_sections),
            ("write-protected page", policy.write_protect_fault, hold, flush, Map.PAGE, fast_sections),
            ("write-protected block", policy.split_fault, split, flush, Map.SPLIT, slow_sections),
            ("missing block", policy.translation_fault, hold, 0, block_action, slow_sections),
        )

        def fault(name: str, mode: str, time: int, invalidate: int, action: Map, sections: int) -> None:
            self.program.note(f"fault: {name}")
            if timed:
                self.program.start_stopwatch()
            self.drain()
            self._fault(mode, time, invalidate, action, sections, logging)
            if timed:
                self.read_stopwatch()

        handlers = [partial(fault, *kind) for kind in kinds]
        if self.tracking.dirty_bits and not self.hardware_dirty_bits:
            handlers[1] = partial(self._logged_write, timed)
        return handlers

    def access(self, logging: bool, timed: bool = False) -> None:
        """Access the current page; `timed`: measure delays with the stopwatch."""
        leave = self.leave(timed) if logging and self.hardware_dirty_bits else None
        # A vCPU whose fault fills the ring exits before it writes; the reset protects the page, which is logged again.
        retry = leave is not None and self.ring_entries > 0
        self.program.access(*self.faults(logging, timed), on_full=leave, retry=retry)

    @property
    def drain_cost(self) -> int:
        """Time per page of emptying the log buffer, ps."""
        return self.costs.log_entry if self.buffer_entries else 0

    def drain(self) -> None:
        """Empty the log buffer of a vCPU that has left the guest, as every exit does.

        Source: arch/x86/kvm/vmx/vmx.c __vmx_handle_exit, vmx_flush_pml_buffer (6.12).
        """
        if self.buffer_entries:
            self.program.drain(self.drain_cost)

    def leave(self, timed: bool) -> Callable[[], None] | None:
        """Handler of a vCPU whose log buffer or dirty ring is full; None if it has neither."""
        return None

    def _fault(self, mode: str, hold: int, invalidate: int, action: Map, sections: int, logging: bool) -> None:
        program, lock = self.program, self.lock(mode, regions=True)
        program.run(self.costs.fault_unlocked, JITTER)
        for section in range(sections):
            with program.holding(lock):
                program.hold(hold // sections, JITTER)
                if section == sections - 1:
                    if mode != "lockless":
                        for line in range(self.policy.facts.data_lines):
                            program.touch(line)
                    if action is Map.SPLIT and self.policy.facts.split_flush:
                        self._flush_after_split()
                    if invalidate:
                        with program.holding(Lock(INTERCONNECT, Mode.WRITE)):
                            program.hold(invalidate, JITTER)
                    self.map_page(action, logging)

    def _logged_write(self, timed: bool) -> None:
        """Make a write to a clean page where hardware sets the dirty bit."""
        self.program.note("write to a clean page, logged by hardware")
        if leave := self.leave(timed):
            self.program.log(leave)
        self.program.run(self.costs.dirty_set)
        self.map_page(Map.PAGE, True)
        if timed:
            self.read_stopwatch(of_kicks=True)

    def _flush_after_split(self) -> None:
        """Flush TLBs once per block of the guest's backing, even if several faults replace its mappings.

        The flush takes as long as with all vCPUs in the guest, although those that wait for the lock need no interrupt.

        Source: arch/x86/kvm/mmu/mmu.c __link_shadow_page (6.12); drop_large_spte in earlier versions.
        """
        with self.program.every(blocks_per_split(self.scenario.guest)):
            self.flush(held=True)

    def slow_fault(self) -> None:
        """Fault that takes the lock regardless of the log, and changes nothing in the log."""
        program, costs = self.program, self.costs
        program.start_stopwatch()
        self.drain()
        program.run(costs.fault_unlocked, JITTER)
        with program.holding(self.lock(self.policy.translation_fault, regions=True)):
            program.hold(costs.fault_hold, JITTER)
        self.read_stopwatch()

    def touch_region(self, logging: bool) -> None:
        """Access every page of the region once; the first time, the host allocates the memory block by block.

        With the log enabled the vCPU leaves the guest at the end.
        """
        program, costs = self.program, self.costs

        def touch(extent: Extent) -> None:
            with program.loop(until=extent.done()):
                if costs.guest_access:
                    program.run(costs.guest_access)
                self.access(logging)
                program.advance(1, extent)

        if logging:
            touch(REGION)
            self.drain()
        else:
            backing_pages = 1 if self.scenario.guest.backing == "4k" else self.block_pages
            with program.loop(until=REGION.done()), program.extent(backing_pages) as backing_block:
                program.run(costs.populate_block)
                touch(backing_block)
        program.back(REGION)

    def flush(self, held: bool = False) -> None:
        """Flush all TLBs: this takes the caller's time and interrupts vCPUs; `held`: the caller holds the lock.

        It interrupts each vCPU that is in, entering or leaving the guest: all but those that wait for the lock, hold
        it, or are interrupted already.

        Source: virt/kvm/kvm_main.c kvm_request_needs_ipi with KVM_REQUEST_WAIT (vcpu->mode), 6.12.
        """
        costs = self.costs
        time = costs.flush + self.scenario.guest.vcpus * costs.flush_per_vcpu
        spend = self.program.hold if held else self.program.run
        spend(time)
        if costs.interrupt:
            with self.program.when(in_guest(1)):
                self.kick(costs.kick, self.drain_cost)  # when it is sent, the vCPU leaves and the caller begins to wait
                spend(costs.interrupt)
        else:
            self.kick(costs.kick, self.drain_cost)

    def kick(self, time: int, entry: int = 0) -> None:
        """Interrupt the vCPUs for `time`, if it is not 0; `entry`: time per page in their log buffers."""
        if time or self.buffer_entries:
            self.program.kick(time, self.kick_is_stall, _KICK if self.scenario.host.kick_spread else 0, entry)

    def adapt(self, condition: Condition, lock: Lock) -> None:
        """Double or halve the adaptive batch at the end of a hold, if the strategy has one."""
        program, batch = self.program, strategy.adaptive(condition)
        if batch is None:
            return
        self.first_batch = batch.least
        with program.when(lock.waiters(1), otherwise=lambda: program.adapt(Adapt.DOUBLE, batch.least, batch.most)):
            program.adapt(Adapt.HALVE, batch.least, batch.most)

    @property
    def region_pages(self) -> int:
        """Pages of one region with a separate lock; a multiple of a block, so that no fault spans two regions."""
        regions = -(-self.slot_pages // self.policy.lock_regions)
        return -(-regions // self.block_pages) * self.block_pages

    def job(
        self,
        vcpu: Thread | Sequence[Thread],
        main: Thread,
        barriers: int,
        *,
        populated: bool = False,
        shared: bool = False,
        helpers: Sequence[Thread] = (),
        parts: int = 1,
        logged: NDArray[np.int64] | None = None,
    ) -> Job:
        """Build the job for an engine: a thread per vCPU, one main thread, and helpers.

        - `vcpu`: program of all vCPUs, or one per vCPU.
        - `populated`: whether all memory is mapped from the beginning.
        - `shared`: whether every vCPU accesses all of the memory, and not only a part.
        - `helpers`: additional threads.
        - `logged`: `Job.logged`.
        - `parts`: number of parts of the memory, which are assigned to the helpers in turn.
        """
        guest, costs, host = self.scenario.guest, self.costs, self.scenario.host
        vcpus = [vcpu] * guest.vcpus if isinstance(vcpu, Thread) else vcpu
        threads = guest.vcpus + 1 + len(helpers)
        steps, names = self.program.steps(), [f"{helper.name} {i}" for i, helper in enumerate(helpers)]
        jitter = float(costs.fault_jitter) if ((steps[:, 0] <= Step.HOLD) & (steps[:, 2] == JITTER)).any() else 0.0
        near, far = self._transfers()
        placed = self._placement(threads)
        locks = self._locks(threads)
        return Job(
            steps=steps,
            entry=np.array([t.first for t in (*vcpus, main, *helpers)], dtype=np.int64),
            region=self._regions(shared, len(helpers), parts),
            locks=np.array([kind for _, kind in locks], dtype=np.int64),
            local_ps=costs.line_local,
            near_ps=near,
            far_ps=far,
            socket=placed.socket,
            cluster=placed.cluster,
            cluster_ps=round(near * host.cluster_ratio),
            queue_length_penalty_ps=costs.queue_length_penalty,
            lines=self.policy.facts.data_lines,
            cvs=(0.0, jitter, 1.0, host.tick_jitter, host.kick_spread or 0.0),
            places=(0.0, *self.places),
            pages=self.slot_pages,
            block_pages=self.block_pages,
            mapped_as_blocks=guest.mapped_as_blocks,
            throttle=self.throttle,
            populated=populated,
            image=self.image,
            lock_pages=self.region_pages,
            write_percent=self.scenario.workload.write_percent,
            vcpus=guest.vcpus,
            first_batch=self.first_batch,
            logged=logged,
            dirty_bits=self.tracking.dirty_bits and self.hardware_dirty_bits,
            dirty_set_ps=costs.dirty_set if self.tracking.dirty_bits and self.hardware_dirty_bits else 0,
            buffer_entries=self.buffer_entries,
            ring_entries=self.ring_entries,
            ring_full=self.scenario.ring_full if self.ring_entries else 0,
            stamps=tuple(self.stamps),
            lock_names=tuple(name for name, _ in locks),
            thread_names=(*(f"vcpu {i}" for i in range(guest.vcpus)), "main", *names),
            barriers=barriers,
            clock=Clock[host.clock.upper()],
            turn_ps=host.turn,
            enqueue_ps=host.enqueue_cost,
            poll_ps=host.spin_poll_cost,
            tick_ps=host.tick,
            tick_work_ps=host.tick_work,
            tick_table=_TICK,
            notes=self.program.notes(),
            costs=tuple(sorted(costs.used)),
        )

    def _placement(self, threads: int) -> Placement:
        """CPU of every thread: the vCPUs fill socket after socket; so do the other threads, starting with the first."""
        host, vcpus = self.scenario.host, self.scenario.guest.vcpus
        guest, others = placement(host, vcpus), placement(host, threads - vcpus)
        cluster = None
        if guest.cluster is not None and others.cluster is not None:
            cluster = np.concatenate([guest.cluster, others.cluster])
        return Placement(np.concatenate([guest.socket, others.socket]), cluster)

    def _transfers(self) -> tuple[int, int]:
        """Time to move a cache line within a socket, and between sockets."""
        host = self.scenario.host
        near = self.costs.line_transfer if host.line_transfer_local is None else host.line_transfer_local
        remote = host.line_transfer_remote
        return near, remote if remote is not None else round(near * host.remote_ratio)

    def _locks(self, threads: int) -> list[tuple[str, Discipline]]:
        """Names and kinds of all locks, in the order of their numbers."""
        policy, kind = self.policy, LOCKS[self.policy.lock]
        locks = [("mmu_lock", kind), ("interconnect", Discipline.SERVER)]
        if self.ring_entries:
            locks.append(("userspace's lock", Discipline.QUEUED_SPIN))
        if policy.lock_regions > 1:
            locks += [(f"mmu_lock of region {i}", kind) for i in range(policy.lock_regions)]
        if "lockless" in (policy.write_protect_fault, policy.translation_fault):
            locks += [(f"page tables of thread {i}", Discipline.LOCKLESS) for i in range(threads)]
        return locks

    def _regions(self, shared: bool, helpers: int, parts: int) -> np.ndarray:
        """First and last page of the region of each thread."""
        vcpus, per_vcpu, pages = self.scenario.guest.vcpus, self.scenario.guest.pages_per_vcpu, self.slot_pages
        vcpu_regions = [(0, pages)] * vcpus if shared else [(i * per_vcpu, (i + 1) * per_vcpu) for i in range(vcpus)]
        part = pages // parts
        helper_regions = [(i % parts * part, (i % parts + 1) * part) for i in range(helpers)]
        return np.array([*vcpu_regions, (0, pages), *helper_regions], dtype=np.int64)
