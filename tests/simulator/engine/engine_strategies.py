# SPDX-License-Identifier: BSD-3-Clause
"""Hypothesis strategies of the engines' tests: whole scenarios, and raw programs."""

import os
from functools import partial

import numpy as np
from hypothesis import Phase, settings
from hypothesis import strategies as st

from simlib.model.architectures import ARCHITECTURES
from simlib.model.costs import Costs
from simlib.model.host import Host
from simlib.model.job import Image, Job
from simlib.model.locks import LOCKS, SHARING, Discipline
from simlib.model.policy import Policy
from simlib.model.program import (
    ALL,
    REGION,
    Lock,
    Program,
    clock_shows,
    held,
    in_bitmap,
    in_buffer,
    in_guest,
    in_ring,
    mapped_by_block,
    raised,
    since_check,
)
from simlib.model.scenario import Guest, Scenario
from simlib.model.steps import FLAGS, Adapt, Block, Clock, LockScope, Map, Mode, Page, Scan, Stamp
from simlib.model.throttle import CLOUD_HYPERVISOR, QEMU
from simlib.model.workload import Workload

TRACE = 200_000
"""Room for trace events: more than any job made here has."""


class Examples:
    """Number of examples of a test: as given, or at most SIMLIB_EXAMPLES, if that is set."""

    most = int(os.environ["SIMLIB_EXAMPLES"]) if "SIMLIB_EXAMPLES" in os.environ else None

    def __call__(self, number):
        if self.most is None:
            return settings(max_examples=number)
        # Then it is asked whether a test fails, not of what: nothing is made smaller.
        return settings(max_examples=min(number, self.most), phases=[Phase.explicit, Phase.generate])


examples = Examples()

SEEDS = st.sampled_from([0, 1, 2, 12345, 2**63 - 1])
DURATIONS = st.sampled_from([None, 0, 1, 1_000, 47_000, 600_000, 3_000_001])
# Few and small values, so that ties are the rule; zeros, so that several things happen at once.
TIMES = st.sampled_from([0, 0, 1, 2, 3, 5, 1_000, 1_001, 700_000])
MOST_PAGES = 1_024
STAMPS = 3
TICKS = {"tick_work_ps": 5_000, "tick_table": 2, "enqueue_ps": 300, "poll_ps": 7}
TURNS = ({}, {}, {"turn_ps": 900}, {"turn_ps": 300_000}, {"turn_ps": 900, "tick_ps": 500_000, **TICKS},
         {"turn_ps": 20_000, "tick_ps": 2_000_000, "tick_work_ps": 30_000, "poll_ps": 25_000})  # fmt: skip
CLOCKS = ({"clock": Clock.WALL},
          *({"clock": clock, **turns} for clock in (Clock.SERIAL, Clock.SERIAL_YIELD) for turns in TURNS))  # fmt: skip
RING = {"ring_entries": 8192, "ring_full": 5}  # a lockless update that is done again pushes its page each time
LOGS = ({}, {}, {"dirty_bits": True, "dirty_set_ps": 300}, {"dirty_bits": True, "dirty_set_ps": 3, "buffer_entries": 4},
        {"buffer_entries": 4},
        {"dirty_bits": True, "dirty_set_ps": 0, "buffer_entries": 9, **RING}, {"dirty_set_ps": 0, **RING})  # fmt: skip
NESTED = (Discipline.QUEUED_SPIN, Discipline.QUEUED_RW, Discipline.FAIR_RW)
"""Locks that a thread may have beside another one."""
LINES = 2
QUANTILES = tuple(np.concatenate([np.linspace(0, 0.1, 3000, endpoint=False), np.linspace(0.1, 1, 1097)]).tolist())
"""Places: three quarters of them in the first tenth."""
RUNNING = ("clear_under_load", "get_dirty_log", "migration", "migration", "zap")
WITH_INTERVAL = ("get_dirty_log", "migration", "zap")
"""Kinds whose guest has a time between accesses, and may be idle for a part of it."""
KINDS = ("dirty_log_perf_test", *RUNNING)


@st.composite
def strategies(draw):
    """Condition that ends a hold: never, or up to three comparisons joined in any way."""
    if draw(st.integers(0, 3)) == 0:
        return "never"
    parts = ["pages >= 64", "pages >= 128", "pages >= 192", "pages >= 512", "held >= 1ns", "held > 3us", "waiters >= 1",
             "waiters < 2", "vcpus >= 1", "vcpus > 1", "blocks >= 1", "pages >= adaptive(64, 256)"]  # fmt: skip
    text = draw(st.sampled_from(parts))
    for _ in range(draw(st.integers(0, 2))):
        negation = draw(st.sampled_from(["", "", "not "]))
        text = f"({text}) {draw(st.sampled_from(['and', 'or']))} {negation}{draw(st.sampled_from(parts))}"
    return text


def throttled(draw, time, when, threads):
    """Throttling of a migration's guest, in times like `time`, ps; otherwise there may be threads that clear."""
    rule = draw(st.sampled_from(["none", "none", *["qemu", "cloud-hypervisor"] * (time > 0)]))
    if rule == "none":
        return {"clear_threads": draw(st.sampled_from(threads))}
    if when == "ring" and draw(st.booleans()):
        return {
            "throttle": "qemu-dirty-limit",
            "throttle_slice": 30 * time,
            "throttle_check_period": 0,
            "clear_threads": 0,
        }
    return {
        "throttle": rule,
        "throttle_initial": draw(st.sampled_from([0, 1, 97])),
        "clear_threads": 0,
        "throttle_slice": draw(st.sampled_from([time // 9, time])),
        "throttle_check_period": draw(st.sampled_from([0, time])),
        "throttle_sync": draw(st.sampled_from([0, time // 2, 9 * time])),
    }


@st.composite
def scenarios(draw, kinds=KINDS):
    """A whole scenario, small enough for the reference engine."""
    kind = draw(st.sampled_from(kinds))
    page_size = draw(st.sampled_from([4096, 4096, 4096, 16384]))
    backing = draw(st.sampled_from(["4k", "hugetlb_2mb"]))
    unit = 64 if backing == "4k" else page_size // 8  # a block has as many pages as a table has entries
    most_pages = MOST_PAGES // 2 if kind in RUNNING and unit < MOST_PAGES else MOST_PAGES
    units = draw(st.integers(1, max(1, min(4, most_pages // unit))))
    vcpus = draw(st.integers(1, min(8, max(1, most_pages // (unit * units)))))
    words = vcpus * units * unit // 64
    name = draw(st.sampled_from(sorted(ARCHITECTURES)))
    # What an architecture that does not take mmu_lock would do with one must be said.
    modes = ["lockless", "read", "write"] + ["default"] * (name not in ("s390", "ppc-radix"))
    # A guest that works on does so for as long as the others take: what they do is short beside one access.
    durations = DURATIONS.filter(lambda time: (time or 0) < 1_000_000) if kind in RUNNING else DURATIONS
    costs = {cost: draw(durations) for cost in Costs.__dataclass_fields__ if cost != "fault_jitter"}
    access = draw(st.sampled_from([3_000_001, 20_000_000]))
    if kind == "clear_under_load":
        costs["guest_access"] = access
    chunk = draw(st.sampled_from([n for n in (None, 1, 3) if (n or 0) <= words]))
    ways = {"migration": ["lazy", "lazy", "at_once", "at_get", "ring"], "dirty_log_perf_test": ["lazy", "lazy", "ring"]}
    when = draw(st.sampled_from(ways.get(kind, ["lazy"])))
    divided = {"clear_under_load": words, "migration": (chunk or words) * (when == "lazy")}.get(kind, 0)
    threads = [n for n in (0, 0, 1, 2, 3) if not n or (divided and divided % n == 0)]
    return Scenario(
        host=Host(
            cores=draw(st.sampled_from([2, 4, 64])),
            sockets=draw(st.integers(1, 2)),
            line_transfer_local=draw(DURATIONS),
            line_transfer_remote=draw(DURATIONS),
        ),
        guest=Guest(
            vcpus=vcpus,
            memory_per_vcpu=units * unit * page_size,
            page_size=page_size,
            backing=backing,
            memslot_aligned=draw(st.booleans()),
        ),
        policy=Policy(
            architecture=name,
            lock=draw(st.sampled_from(list(LOCKS))),
            write_protect_fault=draw(st.sampled_from(modes)),
            translation_fault=draw(st.sampled_from(modes)),
            split_fault=draw(st.sampled_from(["read", "write"])),
            clear_lock=draw(st.sampled_from(["lockless", "read", "write"])),
            get_flush=draw(st.sampled_from(["after", "under_lock"])),
            enable_blocks=draw(st.sampled_from(["protect", "drop"])),
            clear_drop_when=draw(strategies()),
            get_drop_when=draw(strategies()),
            fault_lock_sections=draw(st.integers(0, 3)),
            eager_split=draw(st.sampled_from([None, True, False])),
            split_alloc=draw(st.sampled_from(["default", "under_lock", "drop", "under_read_lock"])),
            lock_regions=draw(st.sampled_from([1, 1, 3])) if kind != "zap" and when != "ring" else 1,
            dirty_tracking=draw(st.sampled_from(["default", "pml", "hdbss", *["dbm"] * (when != "ring")])),
            log_buffer=draw(st.sampled_from([1, 7, 40])),
            zap_drop_when=draw(st.one_of(strategies(), st.just("blocks >= 2 and waiters >= 1"))),
        ),
        workload=Workload(
            kind=kind,
            iterations=draw(st.integers(1, 3)),
            write_percent=draw(st.sampled_from([100, 100, 99, 50, 7, 1])),
            initially_set=draw(st.booleans()),
            clear_chunk=chunk and 64 * chunk * page_size,
            pause=draw(st.sampled_from([0, 30_000_000])),
            access=draw(st.sampled_from(["sequential", "uniform", "zipf"])),
            access_interval=access,
            cpu_use=draw(st.sampled_from([1.0, 1.0, 0.5, 0.07])) if kind in WITH_INTERVAL else 1.0,
            shared=draw(st.booleans()),
            warm_up=draw(st.sampled_from([0, 70_000_000])),
            link=draw(st.sampled_from([10**11, 10**13])),
            clear_when=when,
            ring_entries=draw(st.sampled_from([128, 256])),
            reap_every=draw(st.sampled_from([0, 400_000_000])),
            downtime=draw(st.sampled_from([0, 10_000_000])),
            pass_limit=draw(st.integers(1, 3)),
            timeout=draw(st.sampled_from([0, 10**12])),
            slow_fault_every=draw(st.sampled_from([0, 0, 2])),
            **throttled(draw, (kind == "migration") * 30_000_000, when, threads),
        ),
        costs=Costs(**costs, fault_jitter=draw(st.sampled_from([None, 0.0, 0.3, 1.0, 1.5]))),
    )


@st.composite
def busy_scenarios(draw):
    """A guest that makes many accesses between two things that matter to it, over hundreds of pages."""
    blocks = draw(st.booleans())
    kind = draw(st.sampled_from(["clear_under_load", "get_dirty_log", "migration", "migration", "zap"]))
    pages = 512 * draw(st.integers(1, 2)) if blocks else 64 * draw(st.integers(1, 8))
    vcpus = draw(st.integers(1, 4))
    words = pages * vcpus // 64
    chunk = draw(st.sampled_from([None, words // 2])) if words > 1 else None
    short = st.sampled_from([0, 1_000, 3_700, 50_001])
    costs = {
        cost: draw(short)
        for cost in (
            "fault_unlocked",
            "fault_hold",
            "tlb_invalidate",
            "flush",
            "reacquire",
            "kick",
            "interrupt",
            "split_alloc",
            "split_block",
            "split_hold",
            "zap_block",
            "line_transfer",
            "line_local",
            "clear_ioctl",
            "dirty_set",
            "log_exit",
            "log_entry",
            "log_kick",
            "ring_exit",
            "ring_entry",
            "reset_entry",
        )
    }
    costs["clear_page"], costs["enable_page"] = draw(st.sampled_from([0, 700, 3_000])), draw(st.sampled_from([0, 900]))
    access = draw(st.sampled_from([9_000, 20_000, 70_001]))
    divided = {"clear_under_load": words, "migration": chunk or words}.get(kind, 1)
    when = draw(st.sampled_from(["lazy", "at_once", "at_get", "ring"])) if kind == "migration" else "lazy"
    threads = [
        n
        for n in (0, 0, 1, 2)
        if not n or (kind not in ("get_dirty_log", "zap") and when == "lazy" and divided % n == 0)
    ]
    return Scenario(
        guest=Guest(vcpus=vcpus, memory_per_vcpu=pages * 4096, backing="hugetlb_2mb" if blocks else "4k"),
        policy=Policy(
            architecture=draw(st.sampled_from(["x86-tdp", "arm64-2022", "arm64-spinlock"])),
            clear_drop_when=draw(strategies()),
            eager_split=draw(st.sampled_from([None, True, False])),
            split_alloc=draw(st.sampled_from(["default", "drop"])),
            lock_regions=draw(st.sampled_from([1, 1, 3])) if kind != "zap" and when != "ring" else 1,
            dirty_tracking=draw(st.sampled_from(["default", "pml", "hdbss", *["dbm"] * (when != "ring")])),
            log_buffer=draw(st.sampled_from([1, 30])),
        ),
        workload=Workload(
            kind=kind,
            iterations=draw(st.integers(1, 2)),
            write_percent=draw(st.sampled_from([100, 100, 50, 3])),
            initially_set=draw(st.booleans()),
            clear_chunk=chunk and chunk * 64 * 4096,
            pause=draw(st.sampled_from([0, 2_000_000, 20_000_000])),
            access=draw(st.sampled_from(["sequential", "sequential", "uniform", "zipf"])),
            access_interval=access,
            cpu_use=draw(st.sampled_from([1.0, 1.0, 1.0, 0.9, 0.3])) if kind in WITH_INTERVAL else 1.0,
            shared=draw(st.sampled_from([False, False, True])),
            warm_up=draw(st.sampled_from([0, 10_000_000])),
            link=draw(st.sampled_from([10**13, 10**14])),
            clear_when=when,
            ring_entries=draw(st.sampled_from([128, 256])),
            reap_every=draw(st.sampled_from([0, 10_000_000])),
            downtime=draw(st.sampled_from([0, 10_000])),
            pass_limit=draw(st.integers(1, 3)),
            slow_fault_every=draw(st.sampled_from([0, 0, 0, 2, 100])),
            **throttled(draw, (kind == "migration") * 300_000, when, threads),
        ),
        costs=Costs(**costs, guest_access=access, fault_jitter=draw(st.sampled_from([None, 0.3]))),
    )


class _Writer:
    """Writes the programs of a job; every choice is hypothesis's."""

    def __init__(self, draw, threads, locks, own, stamped, logs, slows):
        self.slows = slows  # the rule by which vCPUs are throttled, or None
        self.roomy = len(logs) < 3  # no access finds a log buffer or a dirty ring full
        self.buffered = "buffer_entries" in logs and "ring_entries" not in logs
        self.draw, self.threads, self.locks, self.own, self.stamped = draw, threads, locks, own, stamped
        self.program, self.flag = Program(), None
        self.servers = [i for i, kind in enumerate(locks) if kind == Discipline.SERVER]

    def run(self):
        self.program.run(self.draw(TIMES), self.draw(st.integers(0, 2)))

    def pace(self):
        self.program.pace(self.draw(TIMES), self.draw(TIMES))
        self.run()

    def hold(self):
        self.program.hold(self.draw(TIMES), self.draw(st.integers(0, 2)))

    def stamp_before(self, mode):
        """Make the trace show a drop's mode and its begin, by a stamp of that number right before it."""
        if self.stamped:
            self.program.stamp(mode)
        elif self.draw(st.booleans()):
            self.program.stamp(self.draw(st.integers(0, STAMPS - 1)))

    def lock(self, fair=False):
        """One of the locks, or the thread's own, or the memory region's, and its kind.

        With `fair` no lockless update: threads that repeat theirs for as long as another's lasts would starve it.
        """
        choices = [(LockScope.ALL, lock, kind) for lock, kind in enumerate(self.locks)]
        if self.own is not None:
            choices += [(whose, len(self.locks), self.own) for whose in (LockScope.THREAD, LockScope.REGION)]
        choices = [choice for choice in choices if not fair or choice[2] != Discipline.LOCKLESS]
        if not choices:
            return None, None
        whose, number, kind = self.draw(st.sampled_from(choices))
        modes = [Mode.READ, Mode.READ, Mode.WRITE] if kind in SHARING else [Mode.WRITE]
        return Lock(number, self.draw(st.sampled_from(modes)), whose), kind

    def section(self, body=None, fair=False):
        """Hold a lock; a server, or a lock with a higher number, may be nested inside."""
        lock, kind = self.lock(fair)
        if lock is None:
            return
        with self.program.holding(lock):
            for _ in range(self.draw(st.integers(0, 2))):
                self.hold()
            if self.draw(st.booleans()):
                self.program.touch(self.draw(st.integers(0, LINES - 1)))
            if self.servers and kind != Discipline.SERVER and self.draw(st.booleans()):
                with self.program.holding(Lock(self.draw(st.sampled_from(self.servers)), Mode.WRITE)):
                    self.hold()
                    self.stamp_before(Mode.WRITE)
            inner = [n for n, own in enumerate(self.locks) if n > lock.number and own in NESTED]
            if lock.scope is LockScope.ALL and kind in NESTED and inner and self.draw(st.booleans()):
                with self.program.holding(Lock(self.draw(st.sampled_from(inner)), Mode.WRITE)):
                    self.hold()
                    self.stamp_before(Mode.WRITE)
                self.hold()
            if body is not None:
                body(lock)
            self.stamp_before(lock.mode)

    def walk(self):
        """Touch the region's pages; the faults of other threads on the same pages race with these."""
        p = self.program
        if self.draw(st.booleans()):
            p.seek(self.draw(st.sampled_from([1, 16, 64])), self.draw(st.integers(0, 2)))

        def fault(action):
            logging = self.draw(st.integers(0, 1))

            timed, drains, logs = self.draw(st.booleans()), self.draw(st.booleans()), self.draw(st.booleans())
            logs = logs and self.buffered

            def handle():
                if timed:
                    p.start_stopwatch()
                self.run()
                if drains:
                    p.drain(self.draw(TIMES))
                if logs:
                    p.log(self.leave)
                self.section(lambda lock: p.map(action, logging))
                if timed:
                    p.read_stopwatch(self.draw(st.booleans()))

            return handle

        actions = (Map.PAGE, Map.PAGE, self.draw(st.sampled_from([Map.SPLIT, Map.EAGER, Map.ZAP, Map.NONE])), Map.BLOCK)
        faults = [fault(action) for action in actions]
        stride, batch = self.draw(st.sampled_from([7, 16, 64])), self.draw(st.sampled_from([64, 100, ALL]))
        paced = self.draw(st.booleans())
        with p.loop(until=REGION.done()), p.extent(batch, aligned=self.draw(st.booleans())) as part:
            with p.loop(until=part.done()):
                if paced:
                    self.pace()
                p.access(*faults, on_full=self.draw(st.sampled_from([None, self.leave])) if self.roomy else self.leave)
                if self.draw(st.integers(0, 3)) == 0:
                    p.read_stopwatch()
                p.advance(stride, part)
        p.back(REGION)

    def leave(self):
        """Make room in a full log buffer or dirty ring, as userspace would."""
        p = self.program
        self.run()
        p.drain(self.draw(TIMES))
        with p.when(in_ring(self.draw(st.sampled_from([1, 1, 3])))):
            p.run(self.draw(TIMES))
            self.reap(Lock(0, Mode.WRITE))
        with p.when(in_buffer(1)):
            p.run(1_000)

    def reap(self, lock):
        """Harvest the dirty rings, and reset what was."""
        p = self.program
        p.harvest(self.draw(TIMES))
        if self.slows and self.draw(st.booleans()):
            p.dirty_limit_sleep()
        with p.for_each_run(self.draw(TIMES)):
            with p.holding(lock):
                p.scan(Scan.PROTECT_RUN, *(self.draw(TIMES) for _ in range(3)))
                self.stamp_before(lock.mode)

    def scan(self):
        p = self.program
        action, times = self.draw(st.sampled_from(list(Scan))), [self.draw(TIMES) for _ in range(3)]
        with p.loop(until=REGION.done()):
            p.scan(action, *times)
            p.advance(64)
        p.back(REGION)

    def condition(self, hold, lock):
        """A condition that a thread may test within a hold."""
        p = st.sampled_from([hold.pages(64), hold.pages(128), hold.beyond_batch(), held(self.draw(TIMES)),
                             lock.waiters(1), lock.vcpus(1), clock_shows(self.draw(TIMES)), mapped_by_block(),
                             in_bitmap(3), raised(0), hold.dirty(), hold.collected(), in_guest(1),
                             in_guest(2), in_buffer(1), in_ring(2), since_check(self.draw(TIMES))])  # fmt: skip
        condition = self.draw(p)
        for _ in range(self.draw(st.integers(0, 2))):
            other = self.draw(p)
            condition = self.draw(
                st.sampled_from([condition & other, condition | other, ~condition & other, condition | ~other])
            )
        return condition

    def migrate(self):
        """A pass of a migration: collect the log, unless it is small; chunk by chunk clear and send what it has."""
        p = self.program
        with p.loop(until=REGION.done()):
            p.scan(Scan.COLLECT, self.draw(TIMES), self.draw(TIMES))
            p.advance(64)
        p.back(REGION)
        self.slow()
        with p.when(in_bitmap(self.draw(st.sampled_from([1, 1, 21])))):
            with p.loop(until=REGION.done()), p.extent(self.draw(st.sampled_from([64, 128, 192]))) as chunk:
                with p.when(chunk.collected(), otherwise=lambda: p.skip(chunk)):
                    with p.loop(until=chunk.done()), p.extent(ALL) as hold:
                        self.clear(hold)
                    if self.draw(st.booleans()):
                        with p.when(in_guest(1)):
                            p.run(self.draw(TIMES))
                        p.kick(self.draw(TIMES), self.draw(st.booleans()), 0, self.draw(TIMES))
                    if self.draw(st.integers(0, 3)) == 0:
                        self.reap(Lock(0, Mode.WRITE))
                    p.back(chunk)
                    late = clock_shows(self.draw(TIMES))
                    times = [self.draw(TIMES) for _ in range(2)]
                    with p.loop(until=chunk.done()):
                        with p.when(~late):
                            p.scan(Scan.SEND, *times)
                        p.advance(64, chunk)
        p.back(REGION)

    def slow(self):
        """Throttle the guest, as a VMM does: check it, put the vCPUs to sleep, measure their dirty rates."""
        p = self.program
        for _ in range(self.draw(st.integers(0, 2)) if self.slows else 0):
            begin, judge = partial(p.throttle_check, True), p.throttle_check
            looks = [p.dirty_limit_update] if self.slows.slice else []
            self.draw(st.sampled_from([begin, judge, p.throttle, *looks]))()

    def clear(self, hold):
        """A hold that clears, for as long as its condition says; short, so that a lockless update wins its race."""
        p = self.program

        def body(lock):
            with p.loop(until=hold.done() | self.condition(hold, lock)):
                with p.when(mapped_by_block()):
                    p.map(Map.EAGER)
                p.scan(Scan.CLEAR, self.draw(st.integers(0, 2)), self.draw(st.integers(0, 2)))
                p.advance(64, hold)
            p.adapt(self.draw(st.sampled_from(list(Adapt))), 64, 256)

        lock, _ = self.lock()
        if lock is None or lock.scope is LockScope.REGION:  # whose lock it is must not change under the hold
            body(Lock(0, Mode.WRITE))
        else:
            with p.holding(lock):
                body(lock)
                self.stamp_before(lock.mode)

    def prologue(self, signals):
        """One thread raises a flag; the others look at their stopwatches until it is up."""
        p = self.program
        flag = self.draw(st.integers(0, FLAGS - 1)) if self.flag is None else self.flag
        self.flag = flag
        self.draw(st.sampled_from([p.start_stopwatch, p.read_stopwatch]))()
        with p.loop(until=raised(flag)):
            p.run(1_000, self.draw(st.integers(0, 1)))
            self.section(fair=True)
            with p.when(raised(flag), otherwise=p.start_stopwatch):
                p.read_stopwatch()
            if self.draw(st.booleans()):
                p.sleep(self.draw(TIMES))
            if signals:
                p.signal(flag)

    def life(self, phases, signals=None):
        """A thread's whole program: phases with a barrier of all threads behind each."""
        p = self.program
        with p.thread() as thread:
            if signals is not None:
                self.prologue(signals)
            for phase in range(phases):
                with p.block() if phase else p.repeat(self.draw(st.integers(1, 4))):
                    self.run()
                    for part in range(self.draw(st.integers(0, 3))):
                        what = self.draw(
                            st.sampled_from(["section", "section", "walk", "scan", "migrate", "loop", "slow", "pace"])
                        )
                        if what == "loop" and part < 2:
                            with p.repeat(self.draw(st.integers(2, 20))):
                                self.section()
                                self.run()
                        elif what == "loop":
                            self.section()
                        else:
                            getattr(self, what)()
                p.barrier(phase % 2, self.threads)
        return thread.first


def image_of(seed, pages, block_pages):
    """A memory in which every state and every bit occurs."""
    random = np.random.default_rng(seed)
    states = random.choice([Page.ABSENT, Page.PROTECTED, Page.WRITABLE], pages)
    bits = random.choice([0, Page.DIRTY, Page.COLLECTED, Page.DIRTY | Page.COLLECTED], pages)
    return Image(
        (states | bits).astype(np.uint8), random.choice(list(Block), -(-pages // block_pages)).astype(np.uint8)
    )


@st.composite
def throttles(draw):
    """A rule by which vCPUs are throttled, in short times, or none."""
    rule = draw(st.sampled_from([None, QEMU, CLOUD_HYPERVISOR, QEMU._replace(limit=9)]))
    if rule is None:
        return None
    time = draw(st.sampled_from([3, 1_000, 300_000]))
    own = {"window": time} if rule.window else {"slice": time}
    return rule._replace(
        times=draw(st.integers(1, 2)), initial=draw(st.sampled_from([1, 20, 99])),
        check_period=draw(TIMES), trigger=draw(st.sampled_from([0, 50, 100])), **own,
    )  # fmt: skip


@st.composite
def jobs(draw, stamped=False):
    """Raw programs over several locks; with `stamped`, a STAMP right before every DROP records its mode."""
    threads = draw(st.integers(1, 8))
    locks = draw(st.lists(st.sampled_from(list(Discipline)), min_size=1, max_size=4))
    own = draw(
        st.sampled_from([None, Discipline.LOCKLESS, Discipline.QUEUED_SPIN, Discipline.QUEUED_RW, Discipline.FAIR_RW])
    )
    logs = draw(st.sampled_from(LOGS))
    clock = draw(st.sampled_from(CLOCKS))
    throttle = draw(throttles()) if clock["clock"] == Clock.WALL else None
    writer = _Writer(draw, threads, locks, own, stamped, logs, throttle)
    phases = draw(st.integers(1, 3))
    flagged = draw(st.booleans())
    first = writer.life(phases, True if flagged else None)
    others = [writer.life(phases, False if flagged else None) for _ in range(draw(st.integers(0, 2)))]
    entries = [first, *others]
    block_pages = draw(st.sampled_from([64, 128, 512]))
    image = draw(st.none() | st.integers(0, 99).map(lambda seed: image_of(seed, 256, block_pages)))
    all_locks = [*locks, *([own] * max(threads, 4) if own is not None else [])]  # one a thread, or a region
    return Job(
        steps=writer.program.steps(),
        entry=np.array([first] + [draw(st.sampled_from(entries)) for _ in range(threads - 1)], dtype=np.int64),
        region=np.array([draw(st.sampled_from([(0, 64), (0, 128), (64, 128), (64, 256)])) for _ in range(threads)]),
        locks=np.array(all_locks, dtype=np.int64),
        local_ps=draw(TIMES),
        near_ps=draw(TIMES),
        far_ps=draw(TIMES),
        socket=np.array([draw(st.integers(0, 1)) for _ in range(threads)], dtype=np.int64),
        cluster=draw(st.none() | st.lists(st.integers(0, 2), min_size=threads, max_size=threads).map(np.array)),
        cluster_ps=draw(TIMES),
        queue_length_penalty_ps=draw(TIMES),
        lines=LINES,
        cvs=(0.0, 1.0, (0.5, 1.0, 1.0, 9.0)),
        places=(0.0, 0.99, QUANTILES),
        pages=256,
        block_pages=block_pages,
        mapped_as_blocks=draw(st.booleans()),
        populated=draw(st.booleans()),
        image=image,
        lock_pages=draw(st.sampled_from([64, 192, 256])),
        vcpus=draw(st.integers(0, threads)),
        first_batch=draw(st.sampled_from([64, 128])),
        logged=draw(st.sampled_from([None, np.arange(threads) % (1 + logs.get("buffer_entries", 0))])),
        notes=writer.program.notes(),
        write_percent=draw(st.sampled_from([100, 50, 3])),
        stamps=tuple(Stamp("stamp", i) for i in range(STAMPS)),
        lock_names=tuple(f"lock {i}" for i in range(len(all_locks))),
        thread_names=tuple(f"thread {i}" for i in range(threads)),
        barriers=2,
        throttle=throttle,
        **clock,
        **logs,
    )
