# SPDX-License-Identifier: BSD-3-Clause
"""Steps that request and drop locks, and that touch shared cache lines."""

from __future__ import annotations

from simlib.model.steps import Clock, LockScope
from simlib.simulator.engine import limits
from simlib.simulator.engine.reference.interpreter import Interpreter
from simlib.simulator.engine.reference.locks import NoLock, Server
from simlib.simulator.engine.reference.threads import BROADCAST, LINE, WAIT, SimulatedThread
from simlib.simulator.engine.reference.turns import Turns


class LockSteps(Interpreter):
    """Steps on locks: each returns the thread's clock, or None if the thread sleeps."""

    def lock_index(self, thread: SimulatedThread, number: int, scope: int) -> int:
        """Index of the lock that a TAKE or DROP refers to."""
        return (number, number + thread.number, thread.region_lock)[scope]

    def take(self, thread: SimulatedThread, number: int, mode: int, scope: int, *_: int) -> int | None:
        """Request a lock."""
        now = self.now
        if scope == LockScope.REGION:
            thread.region_lock = number + min(thread.page, self.job.pages - 1) // self.job.lock_pages
        index = self.lock_index(thread, number, scope)
        lock = self.locks[index]
        if thread.spins and self.turns is not None:
            return self.poll(index, thread, self.turns)
        thread.tried, thread.mode = now, mode
        self.record_event(now, thread, "try", index, mode)
        if isinstance(lock, NoLock):
            thread.version_read, thread.acquired, thread.since[index] = lock.version, now, now
            thread.holds += 1
            thread.pc += 1
            return now
        done = lock.use_word(thread.number, now)
        if lock.may_bypass_queue(mode, done) and lock.admits(mode):
            thread.spent[LINE] += done - now
            lock.acquire_uncontended()
            self.record_acquisition(index, thread, mode, done)
            return done
        lock.stats[mode][1] += 1
        self.statistics.add_queue_time(index, lock, now)
        lock.waiting.append(thread)
        if len(lock.waiting) == 1:
            lock.comes_at = done if self.turns is None else limits.HORIZON_PS
        if self.job.clock == Clock.SERIAL_YIELD:
            self.clock.change_running(-1)
        thread.asleep = thread.spins = True
        return None if self.turns is None else now + self.job.enqueue_ps

    def poll(self, index: int, thread: SimulatedThread, turns: Turns) -> int | None:
        """Let a waiting thread check, in its turn, whether it gets the lock."""
        lock, now = self.locks[index], self.now
        by = lock.last or thread
        if lock.waiting[lock.successor(by)] is not thread:
            return None
        lock.comes_at = now
        if not lock.admits(thread.mode):
            return None
        self.record_event(now, thread, "poll", index, thread.mode)
        turns.failed_polls = 0
        return self.grant_to(index, thread, by, now, max(now, lock.freed))

    def record_acquisition(self, index: int, thread: SimulatedThread, mode: int, at: int) -> None:
        """Make the thread a holder of the lock at time `at`."""
        lock = self.locks[index]
        thread.asleep = thread.spins = False
        thread.pc += 1
        lock.add_holder(mode, at)
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
        self.record_event(at, thread, "acquired", index, mode)

    def drop(self, thread: SimulatedThread, number: int, mode: int, scope: int, retry: int, _e: int) -> int:
        """Drop a lock, or publish a lockless update, and grant the lock to waiters."""
        now = self.now
        index = self.lock_index(thread, number, scope)
        lock = self.locks[index]
        if lock.waiting:  # the successor polls the word: its cache line must be fetched back
            lock.line.owner = lock.waiting[lock.successor(thread)].number
        done = lock.use_word(thread.number, now)
        thread.spent[LINE] += done - now
        held = done - thread.since.pop(index)
        if not isinstance(lock, Server):
            thread.holds -= 1
            enclosing = [at for other, at in thread.since.items() if not isinstance(self.locks[other], Server)]
            thread.acquired = enclosing[-1] if enclosing else thread.acquired
        if isinstance(lock, NoLock):
            if lock.version != thread.version_read:
                lock.stats[mode][1] += 1
                self.record_event(done, thread, "retry", index, mode)
                thread.pc = retry
                return done
            lock.version += 1
            lock.stats[mode][0] += 1
        else:
            lock.remove_holder(mode, done)
        stats = lock.stats[mode]
        stats[4] += held
        stats[5] = max(stats[5], held)
        lock.holds[mode][held.bit_length()] += 1
        self.record_event(done, thread, "released", index, mode)
        thread.pc += 1
        lock.last, lock.freed = thread, done
        if self.turns is None:  # if threads take turns, waiters poll in their turns
            self.grant(index, thread, now, max(done, lock.comes_at))
        return done

    def grant(self, index: int, by: SimulatedThread, now: int, at: int) -> None:
        """Grant the lock, which is free at time `at`, to its next holders: one writer, or consecutive readers."""
        lock = self.locks[index]
        while lock.waiting and lock.admits(lock.waiting[lock.successor(by)].mode):
            thread = lock.waiting[lock.successor(by)]
            at = self.grant_to(index, thread, by, now, at)
            self.rouse(thread, self.run_ahead(thread, at))

    def grant_to(self, index: int, thread: SimulatedThread, by: SimulatedThread, now: int, at: int) -> int:
        """Grant the lock, which is free at time `at`, to a waiter; returns the time at which the waiter owns it."""
        lock = self.locks[index]
        self.statistics.add_queue_time(index, lock, now)
        lock.waiting.remove(thread)
        if self.job.clock == Clock.SERIAL_YIELD:
            self.clock.change_running(1)
        owned_at = lock.pass_to_successor(thread, by, at)
        thread.spent[BROADCAST if isinstance(lock, Server) else WAIT] += at - thread.tried
        thread.spent[LINE] += owned_at - at
        self.record_acquisition(index, thread, thread.mode, owned_at)
        return owned_at

    def touch(self, thread: SimulatedThread, line: int, *_: int) -> int:
        """Modify a shared cache line."""
        done = self.lines[line].use(thread.number, self.now)
        thread.spent[LINE] += done - self.now
        return self.finish_step(thread, "touch", done - self.now, done - self.now)
