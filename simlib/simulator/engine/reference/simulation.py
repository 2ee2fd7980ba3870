# SPDX-License-Identifier: BSD-3-Clause
"""One run of a job: what every step means."""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np
import simpy

from simlib.model.steps import EXTENTS, Adapt, Clock, Page, Quantity, Step, Whose
from simlib.simulator.engine import limits
from simlib.simulator.engine.reference.access import Access
from simlib.simulator.engine.reference.locks import NoLock, Server
from simlib.simulator.engine.reference.threads import BROADCAST, HOLD, IDLE, LINE, RUN, WAIT, SimulatedThread
from simlib.simulator.engine.reference.turns import Turns
from simlib.simulator.engine.result import EngineResult
from simlib.simulator.engine.throttle import full_us, next_sleep_us, next_throttle, rate_mib, sleeps

PS_PER_US = 10**6
"""Picoseconds in a microsecond."""

PROGRESS_EVENTS = 5_000
"""Events between two calls of the progress function."""


class Simulation(Access):
    """One run of a job."""

    # -- the interpreter -------------------------------------------------------------------------------

    def live_through(self, thread: SimulatedThread) -> Generator[simpy.Event, None, None]:
        """A thread's life: its own steps move its clock, a shared step waits until the world's clock is there."""
        yield from self.spend(thread, 0)
        clock, own_steps = self.now, 0
        while True:
            step, *arguments = self.steps[thread.pc]
            own_steps += 1
            if own_steps > limits.OWN_STEPS:
                raise limits.runaway(self.now)
            if not (step.shared or (step is Step.TEST and Quantity(arguments[1]).shared)):
                clock = self.own_step(thread, clock, step, *arguments)
                if clock > self.ends_at():
                    yield from self.spend(thread, clock - self.now)
                    clock, own_steps = self.now, 0
                continue
            if clock > self.now:
                yield from self.spend(thread, clock - self.now)
                clock, own_steps = self.now, 0
            self.events += 1
            if self.report is not None and self.events % PROGRESS_EVENTS == 0:
                self.report(self.events, self.now)
            if step is Step.END:
                self.ends(thread)
                if self.turns is not None:
                    self.turns.pass_on()
                return
            done = SHARED_STEPS[step](self, thread, *arguments)
            if done is None:  # asleep, until a lock or a barrier lets it go on
                thread.roused = self.env.event()
                yield from self.sleep(thread)
                clock, own_steps = self.now, 0
            else:
                clock = done
                if clock > self.ends_at():
                    yield from self.spend(thread, clock - self.now)
                    clock, own_steps = self.now, 0

    def ends(self, thread: SimulatedThread) -> None:
        """The thread is done."""
        thread.ended, thread.asleep = self.now, True
        self.live -= 1
        self.starts(-1)
        self.note(thread.ended, thread, "end", 0)

    def run_ahead(self, thread: SimulatedThread, clock: int) -> int:
        """Spend the time of the RUN and HOLD steps ahead; nobody can interfere with them."""
        while True:
            step, *arguments = self.steps[thread.pc]
            if step not in (Step.RUN, Step.HOLD):
                return clock
            clock = self.own_step(thread, clock, step, *arguments)

    def own_step(  # one branch a kind of step reads best
        self, thread: SimulatedThread, clock: int, step: Step, a: int, b: int, c: int, d: int, _e: int
    ) -> int:
        """A step that nobody else can see. Returns the thread's clock."""
        thread.pc += 1
        match step:
            case Step.RUN | Step.HOLD:
                time = self.chance.duration(thread, a, b)
                thread.spent[RUN if step is Step.RUN else HOLD] += time
                return clock + time
            case Step.JUMP:
                thread.pc = a
            case Step.REPEAT:
                thread.counters[c] += 1
                if thread.counters[c] < b:
                    thread.pc = a
                else:
                    thread.counters[c] = 0
            case Step.TEST:
                if self.quantity(thread, Quantity(b), c, clock) < d:
                    thread.pc = a
            case Step.OPEN:
                reach = (thread.page // b + 1) * b if c else thread.page + b
                thread.begin[a], thread.end[a] = thread.page, min(reach, thread.end[a - 1])
            case Step.ADVANCE:
                page = min(thread.page + a, thread.end[b])
                self.books.progress[thread.number, self.books.bin_of(clock)] += page - thread.page
                thread.page = page
            case Step.BACK:
                thread.page = thread.begin[a]
            case Step.ADAPT:
                thread.batch = min(thread.batch * 2, c) if a == Adapt.DOUBLE else max(thread.batch // 2, b)
            case Step.SEEK:
                thread.page = self.chance.page(thread, a, b)
        return clock

    def quantity(  # noqa: PLR0911  # one return a quantity reads best
        self, thread: SimulatedThread, quantity: Quantity, argument: int, clock: int
    ) -> int:
        """What a thread asks for."""
        end = thread.end[argument] if 0 <= argument < EXTENTS else 0
        lock = self.locks[argument if argument >= 0 else thread.region_lock] if argument < len(self.locks) else None
        match quantity:
            case Quantity.DONE:
                return int(thread.page >= thread.end[argument])
            case Quantity.PAGES:
                return thread.page - thread.begin[argument]
            case Quantity.BEYOND:
                return thread.page - thread.begin[argument] - thread.batch
            case Quantity.COLLECTED:
                return self.memory.count(thread.page, end, Page.COLLECTED)
            case Quantity.DIRTY:
                return self.memory.count(thread.page, end, Page.DIRTY)
            case Quantity.BITMAP:
                return thread.bitmap
            case Quantity.HELD | Quantity.SINCE_CHECK:
                return clock - (thread.acquired if quantity is Quantity.HELD else thread.judged)
            case Quantity.CLOCK:
                return self.clock()
            case Quantity.FLAG:
                return int(self.flags[argument])
            case Quantity.BLOCK:
                return int(self.memory.mapped_by_block(thread.page))
            case Quantity.VCPUS_IN_GUEST:
                return sum(vcpu.in_guest for vcpu in self.threads[: self.job.vcpus])
            case Quantity.LOGGED | Quantity.RING:
                log = self.logs.buffers if quantity is Quantity.LOGGED else self.logs.rings
                return len(log[thread.number])
        assert lock is not None  # noqa: S101  # what remains is asked of a lock
        only = len(self.threads) if quantity is Quantity.WAITERS else self.job.vcpus
        return sum(other.number < only for other in lock.waiting)

    # -- shared steps: each returns the thread's clock, or None if the thread sleeps -------------------

    def test(self, thread: SimulatedThread, target: int, quantity: int, argument: int, threshold: int, _e: int) -> int:
        """Ask for what others change."""
        found = self.quantity(thread, Quantity(quantity), argument, self.now)
        thread.pc = thread.pc + 1 if found >= threshold else target
        return self.now

    def lock_index(self, thread: SimulatedThread, number: int, whose: int) -> int:
        """Which lock a TAKE or DROP means."""
        return (number, number + thread.number, thread.region_lock)[whose]

    def take(self, thread: SimulatedThread, number: int, mode: int, whose: int, *_: int) -> int | None:
        """Ask for a lock."""
        now = self.now
        if whose == Whose.REGION:
            thread.region_lock = number + min(thread.page, self.job.pages - 1) // self.job.lock_pages
        index = self.lock_index(thread, number, whose)
        lock = self.locks[index]
        if thread.spins and self.turns is not None:
            return self.poll(index, thread, self.turns)
        thread.tried, thread.mode = now, mode
        self.note(now, thread, "try", index, mode)
        if isinstance(lock, NoLock):
            thread.seen, thread.acquired, thread.since[index] = lock.version, now, now
            thread.holds += 1
            thread.pc += 1
            return now
        done = lock.reach(thread.number, now)
        if lock.unguarded(mode, done) and lock.admits(mode):
            thread.spent[LINE] += done - now
            lock.found_free()
            self.record_acquisition(index, thread, mode, done)
            return done
        lock.stats[mode][1] += 1
        self.books.queue_changes(index, lock, now)
        lock.waiting.append(thread)
        if len(lock.waiting) == 1:
            lock.comes_at = done if self.turns is None else limits.HORIZON_PS
        if self.job.clock == Clock.SERIAL_YIELD:
            self.starts(-1)
        thread.asleep = thread.spins = True
        return None if self.turns is None else now + self.job.queue_ps

    def poll(self, index: int, thread: SimulatedThread, turns: Turns) -> int | None:
        """A thread that waits for a lock looks whether it has it now, which it does when it is its turn."""
        lock, now = self.locks[index], self.now
        by = lock.last or thread
        if lock.waiting[lock.successor(by)] is not thread:
            return None
        lock.comes_at = now
        if not lock.admits(thread.mode):
            return None
        self.note(now, thread, "look", index, thread.mode)
        turns.vain = 0
        return self.grant_to(index, thread, by, now, max(now, lock.freed))

    def record_acquisition(self, index: int, thread: SimulatedThread, mode: int, at: int) -> None:
        """The thread holds the lock from `at` on."""
        lock = self.locks[index]
        thread.asleep = thread.spins = False
        thread.pc += 1
        lock.enter(mode, at)
        thread.since[index] = at
        if not isinstance(lock, Server):
            thread.acquired = at
            thread.holds += 1
        wait = at - thread.tried
        stats = lock.stats[mode]
        stats[0] += 1
        stats[2] += wait
        stats[3] = max(stats[3], wait)
        lock.waits[mode][wait.bit_length()] += 1
        self.note(at, thread, "acquired", index, mode)

    def drop(self, thread: SimulatedThread, number: int, mode: int, whose: int, retry: int, _e: int) -> int:
        """Let a lock go, or publish a lockless update; hand the lock on."""
        now = self.now
        index = self.lock_index(thread, number, whose)
        lock = self.locks[index]
        if lock.waiting:  # the one whose turn is next polls the word: its line must be fetched back
            lock.line.owner = lock.waiting[lock.successor(thread)].number
        done = lock.reach(thread.number, now)
        thread.spent[LINE] += done - now
        held = done - thread.since.pop(index)
        if not isinstance(lock, Server):
            thread.holds -= 1
            around = [at for other, at in thread.since.items() if not isinstance(self.locks[other], Server)]
            thread.acquired = around[-1] if around else thread.acquired
        if isinstance(lock, NoLock):
            if lock.version != thread.seen:
                lock.stats[mode][1] += 1
                self.note(done, thread, "retry", index, mode)
                thread.pc = retry
                return done
            lock.version += 1
            lock.stats[mode][0] += 1
        else:
            lock.leave(mode, done)
        stats = lock.stats[mode]
        stats[4] += held
        stats[5] = max(stats[5], held)
        lock.holds[mode][held.bit_length()] += 1
        self.note(done, thread, "released", index, mode)
        thread.pc += 1
        lock.last, lock.freed = thread, done
        if self.turns is None:  # else whoever waits looks when it is its turn
            self.grant(index, thread, now, max(done, lock.comes_at))
        return done

    def grant(self, index: int, by: SimulatedThread, now: int, at: int) -> None:
        """Give the lock, free from `at` on, to those whose turn it is: one writer, or readers in a row."""
        lock = self.locks[index]
        while lock.waiting and lock.admits(lock.waiting[lock.successor(by)].mode):
            thread = lock.waiting[lock.successor(by)]
            at = self.grant_to(index, thread, by, now, at)
            self.rouse(thread, self.run_ahead(thread, at))

    def grant_to(self, index: int, thread: SimulatedThread, by: SimulatedThread, now: int, at: int) -> int:
        """One that waited has the lock, which is free from `at` on; returns when it sees that."""
        lock = self.locks[index]
        self.books.queue_changes(index, lock, now)
        lock.waiting.remove(thread)
        if self.job.clock == Clock.SERIAL_YIELD:
            self.starts(1)
        owned = lock.pass_to_successor(thread, by, at)
        thread.spent[BROADCAST if isinstance(lock, Server) else WAIT] += at - thread.tried
        thread.spent[LINE] += owned - at
        self.record_acquisition(index, thread, thread.mode, owned)
        return owned

    def barrier(self, thread: SimulatedThread, which: int, parties: int, *_: int) -> int | None:
        """Wait for the others; the last one wakes them and goes on at once."""
        now = self.now
        thread.pc += 1
        self.note(now, thread, "barrier", which)
        parked = self.parked[which]
        if len(parked) + 1 < parties:
            parked.append(thread)
            thread.tried = now
            self.starts(-1)
            thread.asleep = True
            return None
        self.starts(len(parked))
        for other in parked:
            other.asleep = False
            other.spent[IDLE] += now - other.tried
            if self.turns is None:
                self.rouse(other, self.run_ahead(other, now))
        parked.clear()
        return now

    def stamp(self, thread: SimulatedThread, which: int, *_: int) -> int:
        """Write down the time and all counters."""
        self.books.stamp(which, self.now, self.clock(), thread, self.threads, self.locks)
        self.note(self.now, thread, "stamp", which)
        thread.pc += 1
        return self.now

    def lap(self, thread: SimulatedThread, reads: int, *_: int) -> int:
        """Start the stopwatch, or write down its time; a fault's begins with the kick before it."""
        if reads > 1 and not thread.kicked:
            pass
        elif reads:
            self.read_stopwatch(thread)
        elif thread.kicked:
            thread.kicked = False
        else:
            thread.lap_from = self.clock()
        thread.pc += 1
        return self.now

    def signal(self, thread: SimulatedThread, flag: int, *_: int) -> int:
        """Raise a flag."""
        self.flags[flag] = True
        self.note(self.now, thread, "signal", flag)
        thread.pc += 1
        return self.now

    def kick(self, thread: SimulatedThread, mean: int, stalls: int, table: int, entry: int, _e: int) -> int:
        """Interrupt every vCPU that is in the guest, each for the same time."""
        time = self.chance.duration(thread, mean, table)
        for other in self.threads[: self.job.vcpus]:
            if other is not thread and other.in_guest:
                other.kick, other.kick_stalls = time + self.empty_buffer(other) * entry, bool(stalls)
        self.note(self.now, thread, "kick", time)
        thread.pc += 1
        return self.now

    def touch(self, thread: SimulatedThread, line: int, *_: int) -> int:
        """Change a cache line that threads share."""
        done = self.lines[line].use(thread.number, self.now)
        thread.spent[LINE] += done - self.now
        self.note(self.now, thread, "touch", done - self.now)
        thread.pc += 1
        return done

    def rest(self, thread: SimulatedThread, time: int, *_: int) -> int:
        """Fall asleep: the clock goes on with one thread less."""
        thread.alarm = self.clock() + time
        self.starts(-1)
        thread.pc += 1
        return self.now

    def awake(self, thread: SimulatedThread, *_: int) -> int | None:
        """Look at the clock; sleep on for as long as it needs at least, which is when all threads run."""
        left = thread.alarm - self.clock()
        if left <= 0:
            if thread.rests:
                thread.spent[IDLE] += self.now - thread.tried
            thread.rests = False
            self.starts(1)
            thread.pc += 1
            return self.now
        if self.turns is not None:
            thread.rests, thread.tried = True, self.now
            return None
        wait = -(-left // (1 if self.job.clock == Clock.WALL else len(self.threads)))
        thread.spent[IDLE] += wait
        return self.now + wait

    # -- steps that slow the vCPUs down ----------------------------------------------------------------

    def judge(self, thread: SimulatedThread, begins: int, *_: int) -> int:
        """Look at what the guest dirtied, if that is due, and throttle it, or have its vCPUs limited."""
        rule = self.rule
        if begins or self.now - thread.judged >= rule.judge_every:
            if not begins and 100 * thread.came > rule.trigger * thread.went:
                thread.high += 1
                if thread.high >= rule.times:
                    thread.high = 0
                    self.throttle = 1 if rule.limit else next_throttle(
                        self.throttle, thread.came, thread.went * rule.trigger / 100, rule.initial, rule.increment,
                        False, rule.most,
                    )  # fmt: skip
            thread.judged, thread.came, thread.went = self.now, 0, 0
        self.note(self.now, thread, "judge", self.throttle)
        self.books.enter(self.now, thread, "judge", self.throttle, begins)
        thread.pc += 1
        return self.now

    def throttle_vcpus(self, thread: SimulatedThread, pauses: int, entry: int, *_: int) -> int:
        """Fall asleep while the vCPUs run, or while they sleep."""
        rule = self.rule
        time = sleeps(rule.slice, rule.window, self.throttle)
        if pauses:
            self.pause_entry = entry
            for vcpu in self.threads[: self.job.vcpus]:
                vcpu.pause = time
            self.note(self.now, thread, "throttle", time)
            self.books.enter(self.now, thread, "throttle", self.throttle, time)
        else:
            time = rule.slice or rule.window - time
        return self.rest(thread, time)

    def limit(self, thread: SimulatedThread, *_: int) -> int:
        """Look at the rate of each vCPU, and at how fast a ring is filled at the highest that was seen."""
        rule, job = self.rule, self.job
        for vcpu in self.threads[: job.vcpus]:
            pushed = self.logs.rings[vcpu.number].pushed
            rate = rate_mib(pushed - vcpu.looked, rule.slice)
            vcpu.looked = pushed
            self.fastest = max(self.fastest, rate)
            if self.throttle:
                fills = full_us(job.ring_entries, self.fastest)
                vcpu.nap_us = next_sleep_us(vcpu.nap_us, rule.limit, rate, fills)
            self.books.enter(self.now, thread, "limit", vcpu.number, vcpu.nap_us)
        thread.pc += 1
        return self.now

    def nap(self, thread: SimulatedThread, *_: int) -> int:
        """Fall asleep for as long as LIMIT said."""
        self.books.enter(self.now, thread, "nap", thread.number, thread.nap_us)
        return self.rest(thread, thread.nap_us * PS_PER_US)

    # -- the run ---------------------------------------------------------------------------------------

    def run(self) -> EngineResult:
        """Let every thread live, and collect what they left."""
        self.live = len(self.threads)
        for thread in self.threads:
            self.env.process(self.live_through(thread))
        if self.turns is not None:
            self.turns.pass_on()
        while self.env.peek() <= limits.HORIZON_PS:
            self.env.step()
        if self.live:
            stuck = self.env.peek() == simpy.core.Infinity
            ended = np.array([t.ended for t in self.threads])
            raise limits.deadlock(self.job, self.now, ended) if stuck else limits.past_horizon()
        books = self.books
        books.check_room()
        return EngineResult(
            end_ps=max(t.ended for t in self.threads),
            events=self.events,
            lock_stats=np.array([lock.stats for lock in self.locks]),
            wait_histogram=np.array([lock.waits for lock in self.locks]),
            hold_histogram=np.array([lock.holds for lock in self.locks]),
            busy_ps=np.array([lock.busy for lock in self.locks]),
            queue_ps=books.queue,
            thread_ps=np.array([t.spent for t in self.threads]),
            thread_end_ps=np.array([t.ended for t in self.threads]),
            faults=np.array([t.faults for t in self.threads]),
            progress=books.progress,
            bin_ps=1 << books.shift,
            stamp_ps=books.stamp_ps,
            stamp_locks=books.stamp_locks,
            stamp_sums=books.stamp_sums,
            stamp_own=books.stamp_own,
            stamp_waits=books.stamp_waits,
            lap_histogram=books.laps,
            lap_max_ps=np.array([t.lap_max for t in self.threads]),
            throttle=self.throttle,
            trace=np.array(books.trace, dtype=np.int64).reshape(-1, 5),
            ledger=np.array(books.ledger, dtype=np.int64).reshape(-1, 5),
        )


SHARED_STEPS: dict[Step, Callable[..., int | None]] = {
    Step.TEST: Simulation.test,
    Step.TAKE: Simulation.take,
    Step.DROP: Simulation.drop,
    Step.ACCESS: Simulation.access,
    Step.MAP: Simulation.map,
    Step.SCAN: Simulation.scan,
    Step.BARRIER: Simulation.barrier,
    Step.STAMP: Simulation.stamp,
    Step.LAP: Simulation.lap,
    Step.SIGNAL: Simulation.signal,
    Step.SLEEP: Simulation.rest,
    Step.WAKE: Simulation.awake,
    Step.KICK: Simulation.kick,
    Step.TOUCH: Simulation.touch,
    Step.DRAIN: Simulation.drain,
    Step.HARVEST: Simulation.harvest,
    Step.RESET: Simulation.reset,
    Step.LOG: Simulation.log,
    Step.THROTTLE_CHECK: Simulation.judge,
    Step.THROTTLE: Simulation.throttle_vcpus,
    Step.DIRTY_LIMIT_UPDATE: Simulation.limit,
    Step.DIRTY_LIMIT_SLEEP: Simulation.nap,
}
