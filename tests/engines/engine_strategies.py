# SPDX-License-Identifier: BSD-3-Clause
"""What hypothesis may build for the engines' tests: whole scenarios, and raw programs over every lock."""

import numpy as np
from hypothesis import strategies as st

from simlib.model.architectures import ARCHITECTURES
from simlib.model.costs import Costs
from simlib.model.scenario import Guest, Machine, Policy, Scenario
from simlib.model.steps import FLAGS, Clock, Discipline, Job, Map, Mode, Program, Scan, Stamp, Step, Whose
from simlib.model.workload import Workload

TRACE = 200_000
"""Room for trace events: more than any job made here has."""

SEEDS = st.sampled_from([0, 1, 2, 12345, 2**63 - 1])
DURATIONS = st.sampled_from([None, 0, 1, 1_000, 47_000, 600_000, 3_000_001])
# Few and small values, so that ties are the rule; zeros, so that several things happen at once.
TIMES = st.sampled_from([0, 0, 1, 2, 3, 5, 1_000, 1_001, 700_000])
MOST_PAGES = 1_024
STAMPS = 3
RUNNING = ("clear_under_load", "migration", "migration", "zap")
KINDS = ("dirty_log_perf_test", *RUNNING)


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
    when = draw(st.sampled_from(["lazy", "lazy", "at_once", "at_get", "ring"])) if kind == "migration" else "lazy"
    divided = {"clear_under_load": words, "migration": (chunk or words) * (when == "lazy")}.get(kind, 0)
    return Scenario(
        machine=Machine(
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
            lock=draw(st.sampled_from(["spin", "ticket", "rwlock"])),
            write_protect_fault=draw(st.sampled_from(modes)),
            translation_fault=draw(st.sampled_from(modes)),
            split_fault=draw(st.sampled_from(["read", "write"])),
            clear_lock=draw(st.sampled_from(["read", "write"])),
            clear_batch_pages=draw(st.sampled_from([0, 64, 128, 192, 512])),
            get_batch_pages=draw(st.sampled_from([0, 64, 192])),
            fault_lock_sections=draw(st.integers(0, 3)),
            eager_split=draw(st.sampled_from([None, True, False])),
            split_alloc=draw(st.sampled_from(["default", "under_lock", "drop", "under_read_lock"])),
            yield_on=draw(st.sampled_from(["never", "contended", "vcpus"])),
            yield_pages=draw(st.sampled_from([64, 128])),
            yield_waiters=draw(st.integers(1, 2)),
            lock_regions=draw(st.sampled_from([1, 1, 3])) if kind != "zap" else 1,
            zap_batch=draw(st.integers(0, 3)),
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
            shared=draw(st.booleans()),
            warm_up=draw(st.sampled_from([0, 70_000_000])),
            link=draw(st.sampled_from([10**11, 10**13])),
            clear_when=when,
            clear_threads=draw(
                st.sampled_from([n for n in (0, 0, 1, 2, 3) if not n or (divided and divided % n == 0)])
            ),
            downtime=draw(st.sampled_from([0, 10_000_000])),
            pass_limit=draw(st.integers(1, 3)),
            timeout=draw(st.sampled_from([0, 10**12])),
            slow_fault_every=draw(st.sampled_from([0, 0, 2])),
        ),
        costs=Costs(**costs, fault_jitter=draw(st.sampled_from([None, 0.0, 0.3, 1.0, 1.5]))),
    )


class _Writer:
    """Writes the programs of a job; every choice is hypothesis's."""

    def __init__(self, draw, threads, locks, own, stamped):
        self.draw, self.threads, self.locks, self.own, self.stamped = draw, threads, locks, own, stamped
        self.program, self.flag = Program(), None
        self.servers = [i for i, kind in enumerate(locks) if kind == Discipline.SERVER]

    def time(self, kind):
        self.program.add(kind, self.draw(TIMES), self.draw(st.integers(0, 2)))

    def drop(self, lock, mode, own, take):
        if self.stamped:
            self.program.add(Step.STAMP, mode)
        elif self.draw(st.booleans()):
            self.program.add(Step.STAMP, self.draw(st.integers(0, STAMPS - 1)))
        self.program.add(Step.DROP, lock, mode, own, take)

    def section(self, body=None, fair=False):
        """Take one of the locks, or the thread's own, or the memory region's; a server may be nested inside.

        With `fair` no lockless update: threads that repeat theirs for as long as another's lasts would starve it.
        """
        choices = [(Whose.ALL, lock, kind) for lock, kind in enumerate(self.locks)]
        if self.own is not None:
            choices += [(whose, len(self.locks), self.own) for whose in (Whose.THREAD, Whose.REGION)]
        choices = [choice for choice in choices if not fair or choice[2] != Discipline.LOCKLESS]
        if not choices:
            return
        own, lock, kind = self.draw(st.sampled_from(choices))
        modes = [Mode.READ, Mode.READ, Mode.WRITE] if kind == Discipline.QUEUED_RW else [Mode.WRITE]
        mode = self.draw(st.sampled_from(modes))
        take = self.program.add(Step.TAKE, lock, mode, own)
        for _ in range(self.draw(st.integers(0, 2))):
            self.time(Step.HOLD)
        if self.servers and kind != Discipline.SERVER and self.draw(st.booleans()):
            server = self.draw(st.sampled_from(self.servers))
            inner = self.program.add(Step.TAKE, server, Mode.WRITE)
            self.time(Step.HOLD)
            self.drop(server, Mode.WRITE, 0, inner)
        if body is not None:
            body()
        self.drop(lock, mode, own, take)

    def walk(self):
        """Touch the region's pages; the faults of other threads on the same pages race with these."""
        if self.draw(st.booleans()):
            self.program.add(Step.SEEK, self.draw(st.sampled_from([1, 16, 64])), self.draw(st.integers(0, 1)))
        start = self.program.add(Step.JUMP)
        faults, jumps = [], []
        for action in (Map.PAGE, Map.PAGE, self.draw(st.sampled_from([Map.SPLIT, Map.EAGER, Map.ZAP])), Map.BLOCK):
            faults.append(self.program.here())
            self.time(Step.RUN)
            logging = self.draw(st.integers(0, 1))
            self.section(lambda a=action, n=logging: self.program.add(Step.MAP, a, n))
            jumps.append(self.program.add(Step.JUMP))
        top = self.program.add(Step.ACCESS, *faults)
        stride, batch = self.draw(st.sampled_from([7, 16, 64])), self.draw(st.sampled_from([0, 64]))
        after = self.program.add(Step.NEXT, top, stride, batch)
        self.program.add(Step.MORE, top)
        self.program.patch(start, a=top)
        for jump in jumps:
            self.program.patch(jump, a=after)

    def scan(self):
        word = self.program.add(
            Step.SCAN, self.draw(TIMES), self.draw(st.sampled_from(list(Scan))), self.draw(TIMES), self.draw(TIMES)
        )
        self.program.add(Step.NEXT, word, 64)
        self.program.add(Step.MORE, word)

    def clear_word(self):
        """CLEAR of one word; short, so that a lockless update among others wins its race after some rounds."""
        self.program.add(Step.SCAN, self.draw(st.integers(0, 2)), Scan.CLEAR, self.draw(st.integers(0, 2)))
        self.program.add(Step.NEXT, self.program.here() + 1, 64)

    def migrate(self):
        """A pass of a migration: collect the log, unless it is small; chunk by chunk clear and send what it has."""
        word = self.program.add(Step.SCAN, self.draw(TIMES), Scan.COLLECT, self.draw(TIMES))
        self.program.add(Step.NEXT, word, 64)
        self.program.add(Step.MORE, word)
        few = self.program.add(Step.FEW, 0, self.draw(st.sampled_from([0, 0, 20])))
        chunk = self.draw(st.sampled_from([64, 128]))
        top = self.program.here()
        peek = self.program.add(Step.PEEK, 0, chunk)
        clear = self.program.here()
        split = self.program.add(Step.SPLIT, 0)
        self.section(lambda: self.program.add(Step.MAP, Map.EAGER, 0))
        self.program.patch(split, a=self.program.here())
        self.section(self.clear_word)
        which, crowd = self.draw(st.integers(-1, len(self.locks) - 1)), self.draw(st.integers(0, self.threads))
        quiet = self.program.add(Step.QUIET, 0, which, self.draw(st.integers(1, 2)), crowd)
        self.time(Step.RUN)
        self.program.patch(quiet, a=self.program.here())
        if chunk == 128:
            self.program.add(Step.NEXT, clear, 0, chunk)
        if self.draw(st.booleans()):
            self.program.add(Step.KICK, self.draw(TIMES))
        self.program.add(Step.BACK, chunk)
        late = self.program.add(Step.PAST, 0, self.draw(TIMES))
        send = self.program.add(Step.SCAN, self.draw(TIMES), Scan.SEND, self.draw(TIMES))
        self.program.patch(late, a=self.program.here())
        self.program.add(Step.NEXT, send, 64, chunk)
        skip = self.program.add(Step.JUMP)
        self.program.patch(peek, a=self.program.add(Step.NEXT, self.program.here() + 1, chunk))
        self.program.patch(skip, a=self.program.here())
        self.program.add(Step.MORE, top)
        self.program.patch(few, a=self.program.here())

    def prologue(self, signals):
        """One thread raises a flag; the others look at their stopwatches until it is up."""
        flag = self.draw(st.integers(0, FLAGS - 1)) if self.flag is None else self.flag
        self.flag = flag
        self.program.add(Step.LAP, self.draw(st.integers(0, 1)))
        top = self.program.add(Step.RUN, 1_000, self.draw(st.integers(0, 1)))
        self.section(fair=True)
        self.program.add(Step.LAP, self.draw(st.integers(1, 2)), flag)
        if self.draw(st.booleans()):
            self.program.add(Step.SLEEP, self.draw(TIMES))
            self.program.add(Step.WAKE)
        if signals:
            self.program.add(Step.SIGNAL, flag)
        self.program.add(Step.UNLESS, top, flag)

    def life(self, phases, signals=None):
        """A thread's whole program: phases with a barrier of all threads behind each; returns its first step."""
        entry = self.program.here()
        if signals is not None:
            self.prologue(signals)
        for phase in range(phases):
            top = self.program.here()
            self.time(Step.RUN)
            for _ in range(self.draw(st.integers(0, 3))):
                what = self.draw(st.sampled_from(["section", "section", "walk", "scan", "migrate", "loop"]))
                inner = self.program.here()
                if what in ("walk", "scan", "migrate"):
                    getattr(self, what)()
                else:
                    self.section()
                if what == "loop":
                    self.time(Step.RUN)
                    self.program.add(Step.REPEAT, inner, self.draw(st.integers(2, 20)), 1)
            self.program.add(Step.REPEAT, top, self.draw(st.integers(1, 4)), 0)
            self.program.add(Step.BARRIER, phase % 2, self.threads)
        self.program.add(Step.END)
        return entry


@st.composite
def jobs(draw, stamped=False):
    """Raw programs over several locks; with `stamped`, a STAMP right before every DROP tells its mode."""
    threads = draw(st.integers(1, 8))
    locks = draw(st.lists(st.sampled_from(list(Discipline)), min_size=1, max_size=4))
    own = draw(st.sampled_from([None, Discipline.LOCKLESS, Discipline.QUEUED_SPIN, Discipline.QUEUED_RW]))
    writer = _Writer(draw, threads, locks, own, stamped)
    phases = draw(st.integers(1, 3))
    flagged = draw(st.booleans())
    first = writer.life(phases, True if flagged else None)
    others = [writer.life(phases, False if flagged else None) for _ in range(draw(st.integers(0, 2)))]
    entries = [first, *others]
    all_locks = [*locks, *([own] * max(threads, 4) if own is not None else [])]  # one a thread, or a region
    return Job(
        steps=np.array(writer.program.rows, dtype=np.int64),
        entry=np.array([first] + [draw(st.sampled_from(entries)) for _ in range(threads - 1)], dtype=np.int64),
        region=np.array([draw(st.sampled_from([(0, 64), (0, 128), (64, 128), (64, 256)])) for _ in range(threads)]),
        locks=np.array(all_locks, dtype=np.int64),
        local_ps=draw(TIMES),
        near_ps=draw(TIMES),
        far_ps=draw(TIMES),
        socket=np.array([draw(st.integers(0, 1)) for _ in range(threads)], dtype=np.int64),
        cvs=(0.0, 1.0, 0.4),
        zipf=(0.0, 0.99),
        pages=256,
        block_pages=draw(st.sampled_from([64, 128, 512])),
        mapped_as_blocks=draw(st.booleans()),
        populated=draw(st.booleans()),
        lock_pages=draw(st.sampled_from([64, 192, 256])),
        write_percent=draw(st.sampled_from([100, 50, 3])),
        stamps=tuple(Stamp("stamp", i) for i in range(STAMPS)),
        lock_names=tuple(f"lock {i}" for i in range(len(all_locks))),
        thread_names=tuple(f"thread {i}" for i in range(threads)),
        barriers=2,
        clock=draw(st.sampled_from(list(Clock))),
    )
