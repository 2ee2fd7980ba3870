# SPDX-License-Identifier: BSD-3-Clause
"""Steps that no other thread can observe, and the quantities that TEST reads."""

from __future__ import annotations

from simlib.model.steps import EXTENTS, Adapt, Page, Quantity, Step
from simlib.simulator.engine.reference.threads import HOLD, RUN, SimulatedThread
from simlib.simulator.engine.reference.world import World


class Interpreter(World):
    """Interpreter of private steps and of TEST."""

    def run_ahead(self, thread: SimulatedThread, clock: int) -> int:
        """Spend the time of all consecutive RUN and HOLD steps, with which no other thread can interfere."""
        while True:
            step, *arguments = self.steps[thread.pc]
            if step not in (Step.RUN, Step.HOLD):
                return clock
            clock = self.private_step(thread, clock, step, *arguments)

    def private_step(
        self, thread: SimulatedThread, clock: int, step: Step, a: int, b: int, c: int, d: int, _e: int
    ) -> int:
        """Take a step that no other thread can observe; returns the thread's clock."""
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
                end = (thread.page // b + 1) * b if c else thread.page + b
                thread.begin[a], thread.end[a] = thread.page, min(end, thread.end[a - 1])
            case Step.ADVANCE:
                page = min(thread.page + a, thread.end[b])
                self.statistics.counters.progress[thread.number, self.statistics.bin_of(clock)] += page - thread.page
                thread.page = page
            case Step.BACK:
                thread.page = thread.begin[a]
            case Step.ADAPT:
                thread.batch = min(thread.batch * 2, c) if a == Adapt.DOUBLE else max(thread.batch // 2, b)
            case Step.SEEK:
                thread.page = self.chance.page(thread, a, b)
        return clock

    def quantity(  # noqa: PLR0911, PLR0912  # one case per quantity
        self, thread: SimulatedThread, quantity: Quantity, argument: int, clock: int
    ) -> int:
        """Value of a quantity that TEST reads."""
        end = thread.end[argument] if 0 <= argument < EXTENTS else 0
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
                return clock - (thread.acquired if quantity is Quantity.HELD else thread.checked_at)
            case Quantity.CLOCK:
                return self.clock.shown_time()
            case Quantity.FLAG:
                return int(self.flags[argument])
            case Quantity.BLOCK:
                return int(self.memory.mapped_by_block(thread.page))
            case Quantity.VCPUS_IN_GUEST:
                return sum(vcpu.in_guest for vcpu in self.threads[: self.job.vcpus])
            case Quantity.LOGGED | Quantity.RING:
                log = self.logs.buffers if quantity is Quantity.LOGGED else self.logs.rings
                return len(log[thread.number])
            case Quantity.WAITERS | Quantity.VCPUS:
                lock = self.locks[argument if argument >= 0 else thread.region_lock]
                threads = len(self.threads) if quantity is Quantity.WAITERS else self.job.vcpus
                return sum(other.number < threads for other in lock.waiting)

    def test(self, thread: SimulatedThread, target: int, quantity: int, argument: int, threshold: int, _e: int) -> int:
        """Test a quantity that other threads can change."""
        value = self.quantity(thread, Quantity(quantity), argument, self.now)
        thread.pc = thread.pc + 1 if value >= threshold else target
        return self.now
