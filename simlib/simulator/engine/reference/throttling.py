# SPDX-License-Identifier: BSD-3-Clause
"""Steps that throttle the vCPUs."""

from __future__ import annotations

from simlib.simulator.engine.reference.threads import SimulatedThread
from simlib.simulator.engine.reference.waiting import WaitSteps
from simlib.simulator.engine.throttle import dirty_rate_mib, fill_time_us, next_sleep_us, next_throttle, sleep_time


class ThrottleSteps(WaitSteps):
    """Steps of a VMM that slows its guest down: each returns the thread's clock."""

    def throttle_check(self, thread: SimulatedThread, begins: int, *_: int) -> int:
        """If a check is due, compare pages dirtied with pages sent; start or raise the throttle, or start the limit."""
        rule = self.rule
        if begins or self.now - thread.checked_at >= rule.check_period:
            if not begins and 100 * thread.newly_dirty > rule.trigger * thread.pages_sent:
                thread.high_checks += 1
                if thread.high_checks >= rule.times:
                    thread.high_checks = 0
                    self.throttle = 1 if rule.limit else self.raised_throttle(thread)
            thread.checked_at, thread.newly_dirty, thread.pages_sent = self.now, 0, 0
        self.record_entry(self.now, thread, "throttle_check", self.throttle, begins)
        return self.finish_step(thread, "throttle_check", self.throttle)

    def raised_throttle(self, thread: SimulatedThread) -> int:
        """Next throttle of the vCPUs, percent."""
        dirtied, allowed, rule = thread.newly_dirty, thread.pages_sent * self.rule.trigger / 100, self.rule
        return int(next_throttle(self.throttle, dirtied, allowed, rule.initial, rule.increment, False, rule.most))

    def throttle_vcpus(self, thread: SimulatedThread, pauses: int, entry: int, *_: int) -> int:
        """Put the vCPUs and the thread to sleep for the same time, or only the thread while the vCPUs run."""
        rule = self.rule
        time = sleep_time(rule.slice, rule.window, self.throttle)
        if pauses:
            self.pause_entry = entry
            self.record_event(self.now, thread, "throttle", time)
            self.record_entry(self.now, thread, "throttle", self.throttle, time)
            for vcpu in self.threads[: self.job.vcpus]:
                if vcpu.idle and time:
                    self.sleep_idle(vcpu, time)
                else:
                    vcpu.pause = time
        else:
            time = rule.slice or rule.window - time
        return self.fall_asleep(thread, time)

    def dirty_limit_update(self, thread: SimulatedThread, *_: int) -> int:
        """Measure each vCPU's dirty rate since the last update, and set its next sleep from the fastest rate seen."""
        rule, job = self.rule, self.job
        for vcpu in self.threads[: job.vcpus]:
            pushed = self.logs.rings[vcpu.number].pushed
            rate = dirty_rate_mib(pushed - vcpu.pushed_at_update, rule.slice)
            vcpu.pushed_at_update = pushed
            self.fastest = max(self.fastest, rate)
            if self.throttle:
                fill_us = fill_time_us(job.ring_entries, self.fastest)
                vcpu.limit_sleep_us = next_sleep_us(vcpu.limit_sleep_us, rule.limit, rate, fill_us)
            self.record_entry(self.now, thread, "dirty_limit_update", vcpu.number, vcpu.limit_sleep_us)
        thread.pc += 1
        return self.now

    def dirty_limit_sleep(self, thread: SimulatedThread, *_: int) -> int:
        """Fall asleep for the time that the last DIRTY_LIMIT_UPDATE set."""
        self.record_entry(self.now, thread, "dirty_limit_sleep", thread.number, thread.limit_sleep_us)
        self.statistics.counters.throttled_ps[thread.number] += thread.limit_sleep_us * 10**6
        return self.fall_asleep(thread, thread.limit_sleep_us * 10**6)
