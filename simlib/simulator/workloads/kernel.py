# SPDX-License-Identifier: BSD-3-Clause
"""KVM's locks, page faults and TLB flushes, as pieces of programs, and the job that they end up in."""

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
from simlib.model.steps import Adapt, Clock, Map, Mode, Stamp, Step, Whose
from simlib.model.topology import Placement, placement

MMU_LOCK, INTERCONNECT, REGIONS = range(3)
"""Indices among a job's locks: mmu_lock; broadcast invalidations; the first region's, if there are several."""

USERSPACE = REGIONS
"""Index of userspace's lock, where there are dirty rings, which go with no regions."""

JITTER, RANDOM, _TICK, _KICK = 1, 2, 3, 4
"""Distributions of a job's times: as `Costs.fault_jitter` says, exponential, and as `Machine` says of ticks, kicks."""

STOP = 0
"""The flag that stops a guest that works on."""

PLACES = 1
"""Distribution of the places that the guest touches, where it is not uniform."""

_FAULTS = ("missing page", "write-protected page", "write-protected block", "missing block")


def split_at_once(guest: Guest) -> int:
    """Blocks of 2 MiB (with pages of 4 KiB) that are one mapping until a fault splits it.

    >>> split_at_once(Guest(backing="hugetlb_1gb")), split_at_once(Guest())
    (512, 1)
    """
    return PageTable(guest.page_size).entries if guest.backing == "hugetlb_1gb" else 1


class Spent:
    """What actions cost, as a program spends it: picoseconds by the names of `Costs`, and which were asked for.

    A cost that has no value takes no time here; whoever simulates sees to it that it has one
    (`simlib.measurements.fits`).

    >>> costs = Spent(Costs(fault_unlocked=700_000))
    >>> costs.fault_unlocked, costs.fault_hold, sorted(costs.used)
    (700000, 0, ['fault_unlocked', 'fault_hold'])
    """

    def __init__(self, costs: Costs) -> None:
        """Nothing was asked for yet."""
        self._costs = costs
        self.used: set[str] = set()

    def __getattr__(self, name: str) -> int:
        value = getattr(self._costs, name)
        self.used.add(name)
        return value or 0

    def either(self, name: str, other: str) -> int:
        """A cost, or what stands for it as long as it has no value."""
        value: int = getattr(self, name)
        return value if getattr(self._costs, name) is not None else getattr(self, other)

    def beside(self, name: str) -> int:
        """A cost that is paid only where it has a value, since another one contains it else."""
        return 0 if getattr(self._costs, name) is None else getattr(self, name)


@dataclass
class KernelProgram:
    """A scenario's kernel, writing its steps into a program.

    - `policy`: with every default replaced.
    - `stamps`: those so far.
    """

    scenario: Scenario
    program: Program = field(default_factory=Program)
    stamps: list[Stamp] = field(default_factory=list)
    costs: Spent = field(init=False)
    """What actions cost on the scenario's machine."""
    first_batch: int = 64
    """Pages of each thread's adaptive batch when the run begins: the least that the strategy in use allows."""
    places: tuple[Places, ...] = ()
    """Which pages the guest touches, as `Job.places` has it, where it is not uniform; by default Zipf's law."""
    kicks_stall: bool = field(default=False, init=False)
    """Whether a kick is a stall of the guest by itself: its stopwatch stands between two faults."""
    image: Image | None = None
    """What the memory is like when the run begins, if it is neither empty nor all mapped."""
    hardware: bool = True
    """Whether the engine sets dirty bits; else a write that hardware would notice faults, and takes no longer."""

    def __post_init__(self) -> None:
        """Resolve what the scenario leaves to the architecture."""
        self.policy: Policy = self.scenario.policy.resolved()
        self.block_pages = PageTable(self.scenario.guest.page_size).pages_per_block()
        self.costs = Spent(self.scenario.host_costs)
        if self.policy.facts.page_fence:
            self.costs.used.add("fence_vcpu")  # it is part of what those take that change an entry
        self.tracking = TRACKING[self.policy.dirty_tracking]
        self.buffer_entries = self.policy.buffer_entries
        workload = self.scenario.workload
        self.ring_entries: int = workload.ring_entries if workload.rings else 0
        self.throttle = workload.throttling
        self.places = self.places or (self.scenario.workload.zipf_exponent,)

    @property
    def slot_pages(self) -> int:
        """Pages of the whole slot."""
        return self.scenario.guest.pages

    def stamp(self, phase: str, number: int = 0) -> None:
        """Write down the time at which a phase ends, or a round of it."""
        self.program.stamp(len(self.stamps))
        self.stamps.append(Stamp(phase, number))

    def lock(self, mode: str, regions: bool = False) -> Lock:
        """The lock that one of the policy's words means; `regions`: that of the memory at hand, if there is one."""
        if mode == "lockless":
            others = self.policy.lock_regions if self.policy.lock_regions > 1 else int(self.ring_entries > 0)
            first = REGIONS + others
            return Lock(first, Mode.WRITE, Whose.THREAD)
        shared = mode == "read" and LOCKS[self.policy.lock] in SHARING
        how = Mode.READ if shared else Mode.WRITE
        if regions and self.policy.lock_regions > 1:
            return Lock(REGIONS, how, Whose.REGION)
        return Lock(MMU_LOCK, how)

    @property
    def faults_split(self) -> bool:
        """Whether a write may meet a block that has to be split."""
        return self.scenario.guest.mapped_as_blocks

    def seek(self) -> None:
        """Go to the page that the guest touches next, where it does not go page by page."""
        self.program.seek(1, PLACES if self.scenario.workload.access == "zipf" else 0)

    def map_page(self, action: Map, logging: bool) -> None:
        """Change the entry of the page that faulted."""
        self.program.map(action, logging)

    def read_stopwatch(self, of_kicks: bool = False) -> None:
        """A fault is over, or, `of_kicks`, what a kick began."""
        self.program.read_stopwatch(of_kicks)

    def faults(self, logging: bool, timed: bool = False) -> list[Callable[[], None]]:
        """What each of the four kinds of fault does, in the order of `Step.ACCESS`; `timed`: by the stopwatch, too."""
        costs, policy = self.costs, self.policy
        hold = costs.fault_hold
        # Without a log nothing is write-protected: the second and the third kind do not come.
        split = costs.either("split_hold", "fault_hold") if logging and self.faults_split else 0
        slow, fast = policy.fault_lock_sections, self.scenario.policy.fault_lock_sections or 1
        # Only an entry that was valid can be cached by a TLB, and only some architectures broadcast.
        flush = costs.tlb_invalidate if logging and policy.facts.fault_flush == "broadcast" else 0
        # A slot that is logged is mapped by pages: kvm_mmu_hugepage_adjust, arm64's user_mem_abort (logging_active).
        whole = Map.BLOCK if self.scenario.guest.mapped_as_blocks and not logging else Map.PAGE
        kinds = (
            (policy.translation_fault, hold, 0, Map.PAGE, slow),
            (policy.write_protect_fault, hold, flush, Map.PAGE, fast),
            (policy.split_fault, split, flush, Map.SPLIT, slow),
            (policy.translation_fault, hold, 0, whole, slow),
        )

        def fault(name: str, mode: str, time: int, invalidate: int, action: Map, sections: int) -> None:
            self.program.note(f"fault: {name}")
            if timed:
                self.program.start_stopwatch()
            self.drain()
            self._fault(mode, time, invalidate, action, sections, logging)
            if timed:
                self.read_stopwatch()

        found: list[Callable[[], None]] = [
            partial(fault, name, *kind) for name, kind in zip(_FAULTS, kinds, strict=True)
        ]
        if self.tracking.dirty_bits and not self.hardware:
            found[1] = partial(self._logged_write, timed)
        return found

    def access(self, logging: bool, timed: bool = False) -> None:
        """The guest touches its page; `timed`: what keeps it from that is, by the stopwatch."""
        leave = self.leave(timed) if logging and self.hardware else None
        # A fault that fills the ring leaves before its page is written, which is protected then, and logged twice.
        self.program.access(
            *self.faults(logging, timed), leave=leave, again=leave is not None and self.ring_entries > 0
        )

    @property
    def drains(self) -> bool:
        """Whether a vCPU's log buffer has to be emptied whenever it leaves the guest.

        Source: arch/x86/kvm/vmx/vmx.c __vmx_handle_exit, vmx_flush_pml_buffer (6.12).
        """
        return self.buffer_entries > 0

    @property
    def drained(self) -> int:
        """What a page takes then, ps."""
        return self.costs.log_entry if self.drains else 0

    def drain(self) -> None:
        """A vCPU has left the guest."""
        if self.drains:
            self.program.drain(self.drained)

    def leave(self, timed: bool) -> Callable[[], None] | None:
        """What a vCPU does whose log buffer or dirty ring is full; None: it has neither."""
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
        """What a write to a clean page is where hardware sets the dirty bit."""
        self.program.note("write to a clean page, which hardware notices")
        if leave := self.leave(timed):
            self.program.log(leave)
        self.program.run(self.costs.dirty_set)
        self.map_page(Map.PAGE, True)
        if timed:
            self.read_stopwatch(of_kicks=True)

    def _flush_after_split(self) -> None:
        """Once for each block that the host backs the memory with: what it held, down to the pages, is mapped anew.

        It takes no longer than with all vCPUs in the guest; those that wait for the lock need no interrupt.

        Source: arch/x86/kvm/mmu/mmu.c __link_shadow_page (6.12), drop_large_spte before.
        """
        with self.program.every(split_at_once(self.scenario.guest)):
            self.flush(held=True)

    def slow_fault(self) -> None:
        """A fault that takes the lock whatever the log says, and changes nothing that the log knows of."""
        program, costs = self.program, self.costs
        program.start_stopwatch()
        self.drain()
        program.run(costs.fault_unlocked, JITTER)
        with program.holding(self.lock(self.policy.translation_fault, regions=True)):
            program.hold(costs.fault_hold, JITTER)
        self.read_stopwatch()

    def touch_region(self, logging: bool) -> None:
        """Touch every page of the region once; the first time, the host finds the memory block by block.

        With the log enabled the vCPU leaves the guest behind it.
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
            with program.loop(until=REGION.done()), program.extent(backing_pages) as found:
                program.run(costs.populate_block)
                touch(found)
        program.back(REGION)

    def flush(self, held: bool = False) -> None:
        """Flush all TLBs: it takes the caller's time, and interrupts the vCPUs; `held`: with the lock held.

        Interrupted is whoever is in the guest or on its way out or in: all but those that wait for the lock or hold
        it, or are interrupted already.

        Source: virt/kvm/kvm_main.c kvm_request_needs_ipi with KVM_REQUEST_WAIT (vcpu->mode), 6.12.
        """
        costs = self.costs
        time = costs.flush + self.scenario.guest.vcpus * costs.flush_per_vcpu
        spend = self.program.hold if held else self.program.run
        spend(time)
        if costs.interrupt:
            with self.program.when(in_guest(1)):
                self.kick(costs.kick, self.drained)  # both begin as it is sent: the vCPU leaves, the caller waits
                spend(costs.interrupt)
        else:
            self.kick(costs.kick, self.drained)

    def kick(self, time: int, entry: int = 0) -> None:
        """Interrupt the vCPUs for as long, as far as that costs them anything; `entry`: for each page that they logged.

        Every interrupt empties log buffers: an exit does.
        """
        if time or self.drains:
            self.program.kick(time, self.kicks_stall, _KICK if self.scenario.host.kick_spread else 0, entry)

    def adapt(self, condition: Condition, lock: Lock) -> None:
        """A hold ends: the adaptive batch, if the strategy has one, doubles or halves."""
        program, batch = self.program, strategy.adaptive(condition)
        if batch is None:
            return
        self.first_batch = batch.least
        with program.when(lock.waiters(1), otherwise=lambda: program.adapt(Adapt.DOUBLE, batch.least, batch.most)):
            program.adapt(Adapt.HALVE, batch.least, batch.most)

    @property
    def region_pages(self) -> int:
        """Pages of one region with a lock of its own; a multiple of a block, so that no fault spans two."""
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
        """All that an engine needs: as many vCPU threads as the guest has, one main thread, and what helps it.

        - `vcpu`: that of all vCPUs, or of each.
        - `populated`: whether all memory is mapped from the beginning.
        - `shared`: whether every vCPU walks all of the memory, rather than its own part.
        - `helpers`: further threads.
        - `logged`: as `Job.logged`.
        - `parts`: into how many parts the memory is divided, of which each further thread walks the next one.
        """
        guest, costs, machine = self.scenario.guest, self.costs, self.scenario.host
        vcpus = [vcpu] * guest.vcpus if isinstance(vcpu, Thread) else vcpu
        threads = guest.vcpus + 1 + len(helpers)
        steps = self.program.steps()
        near, far = self._transfers()
        where = self._placement(threads)
        locks = self._locks(threads)
        return Job(
            steps=steps,
            entry=np.array([t.first for t in (*vcpus, main, *helpers)], dtype=np.int64),
            region=self._regions(shared, len(helpers), parts),
            locks=np.array([kind for _, kind in locks], dtype=np.int64),
            local_ps=costs.line_local,
            near_ps=near,
            far_ps=far,
            socket=where.socket,
            cluster=where.cluster,
            cluster_ps=round(near * machine.cluster_ratio),
            queue_length_penalty_ps=costs.queue_length_penalty,
            lines=self.policy.facts.data_lines,
            cvs=(0.0, self._jitter(steps), 1.0, machine.tick_jitter, machine.kick_spread or 0.0),
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
            dirty_bits=self.tracking.dirty_bits and self.hardware,
            dirty_set_ps=costs.dirty_set if self.tracking.dirty_bits and self.hardware else 0,
            buffer_entries=self.buffer_entries,
            ring_entries=self.ring_entries,
            ring_full=self.scenario.ring_full if self.ring_entries else 0,
            stamps=tuple(self.stamps),
            lock_names=tuple(name for name, _ in locks),
            thread_names=(
                *(f"vcpu {i}" for i in range(guest.vcpus)),
                "main",
                *(f"{helper.name} {i}" for i, helper in enumerate(helpers)),
            ),
            barriers=barriers,
            clock=Clock[machine.clock.upper()],
            turn_ps=machine.turn,
            queue_ps=machine.enqueue_cost,
            look_ps=machine.spin_poll_cost,
            tick_ps=machine.tick,
            tick_work_ps=machine.tick_work,
            tick_table=_TICK,
            notes=self.program.notes(),
            costs=tuple(sorted(costs.used)),
        )

    def _placement(self, threads: int) -> Placement:
        """Where every thread runs: the vCPUs socket after socket, userspace's others from the first socket on."""
        machine, vcpus = self.scenario.host, self.scenario.guest.vcpus
        guest, others = placement(machine, vcpus), placement(machine, threads - vcpus)
        cluster = None
        if guest.cluster is not None and others.cluster is not None:
            cluster = np.concatenate([guest.cluster, others.cluster])
        return Placement(np.concatenate([guest.socket, others.socket]), cluster)

    def _jitter(self, steps: NDArray[np.int64]) -> float:
        """Coefficient of variation of what faults take, if anything of the program varies so."""
        timed = (steps[:, 0] <= Step.HOLD) & (steps[:, 2] == JITTER)
        return float(self.costs.fault_jitter) if timed.any() else 0.0

    def _transfers(self) -> tuple[int, int]:
        """Time to move a cache line within a socket, and between sockets."""
        machine = self.scenario.host
        near = self.costs.line_transfer if machine.line_transfer_local is None else machine.line_transfer_local
        remote = machine.line_transfer_remote
        return near, remote if remote is not None else round(near * machine.remote_ratio)

    def _locks(self, threads: int) -> list[tuple[str, Discipline]]:
        """Names and kinds of all locks, in the order of their numbers."""
        policy = self.policy
        kind = LOCKS[policy.lock]
        locks = [("mmu_lock", kind), ("interconnect", Discipline.SERVER)]
        if self.ring_entries:
            locks.append(("userspace's lock", Discipline.QUEUED_SPIN))
        if policy.lock_regions > 1:
            locks += [(f"mmu_lock of region {i}", kind) for i in range(policy.lock_regions)]
        if "lockless" in (policy.write_protect_fault, policy.translation_fault):
            locks += [(f"page tables of thread {i}", Discipline.LOCKLESS) for i in range(threads)]
        return locks

    def _regions(self, shared: bool, helpers: int, parts: int) -> np.ndarray:
        """First and last page of what each thread walks."""
        vcpus, per_vcpu, pages = self.scenario.guest.vcpus, self.scenario.guest.pages_per_vcpu, self.slot_pages
        mine = [(0, pages)] * vcpus if shared else [(i * per_vcpu, (i + 1) * per_vcpu) for i in range(vcpus)]
        part = pages // parts
        walks = [(i % parts * part, (i % parts + 1) * part) for i in range(helpers)]
        return np.array([*mine, (0, pages), *walks], dtype=np.int64)
