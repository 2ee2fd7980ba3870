# SPDX-License-Identifier: BSD-3-Clause
"""A migration page by page: QEMU's loop once more, over bits instead of shares; shares no code with `precopy`."""

from __future__ import annotations

import numpy as np


class Replay:
    """A migration of `count` pages, written at random or in turn, `rate` times a second in all.

    `limit`: bytes/s. `chunk`: pages of a CLEAR; 0: GET clears. Results have the field names of `PrecopyTrajectory`.
    """

    def __init__(self, count, rate, sweep, *, limit, downtime, auto, chunk=0, until=60.0, seed=1):
        self.count, self.rate, self.sweep, self.chunk, self.auto = count, rate, sweep, chunk, auto
        self.random = np.random.default_rng(seed)
        self.bitmap, self.logged = np.ones(count, bool), np.full(count, bool(chunk))
        self.uncleared = np.ones(count // chunk if chunk else 1, bool)
        self.cursor, self.carried, self.at = 0, 0.0, 0
        self.total_s = self.guest_s = self.sent_bytes = 0.0
        self.synchronisations, self.throttle, self.high = 1, 0, 0
        self.checked, self.checked_sent, self.checked_new = 0.0, 0.0, 0
        self.due, self.seen = 5.0, 0
        self.completed = self._run(limit, downtime, until)

    def _run(self, limit, downtime, until):
        may = 0.0
        while self.total_s < until:
            if self._is_due(may):
                self._judge(self._get())
            if not self.bitmap.any() or self.bitmap.sum() * 4096 < may:
                self._get()
                self.sent_bytes += self.bitmap.sum() * 4104
                return True
            before = self.sent_bytes
            self._send(32 * (int(limit / 10 / (32 * 4104)) + 1))
            self._write(0.1)
            may = (self.sent_bytes - before) / 0.1 * downtime
        return False

    def _is_due(self, may):
        due = self.bitmap.sum() * 4096 < may
        if self.auto and self.total_s >= self.due - 1e-9:
            due = due or self.synchronisations == self.seen > 1
            self.seen, self.due = self.synchronisations + due, self.due + 5.0
        return due

    def _get(self):
        self.synchronisations += 1
        new = int((self.logged & ~self.bitmap).sum())
        self.bitmap |= self.logged
        if not self.chunk:
            self.logged[:] = False
        self.uncleared[:] = True
        return new

    def _judge(self, new):
        self.checked_new += new
        if self.total_s <= self.checked + 1.0:
            return
        if self.checked_new * 4096 > (self.sent_bytes - self.checked_sent) * 0.5:
            self.high += 1
            if self.high == 2:
                self.high = 0
                if self.auto:
                    self.throttle = min(99, self.throttle + 10) if self.throttle else 20
        self.checked, self.checked_new, self.checked_sent = self.total_s, 0, self.sent_bytes

    def _send(self, room):
        while room and self.bitmap.any():
            if self.bitmap[self.at]:
                if self.chunk and self.uncleared[self.at // self.chunk]:
                    first = self.at // self.chunk * self.chunk
                    self.logged[first : first + self.chunk] &= ~self.bitmap[first : first + self.chunk]
                    self.uncleared[self.at // self.chunk] = False
                self.bitmap[self.at] = False
                self.sent_bytes += 4104
                room -= 1
            self.at = (self.at + 1) % self.count

    def _write(self, seconds):
        runs = seconds * (1 - self.throttle / 100)
        self.carried += self.rate * runs
        number = int(self.carried)
        self.carried -= number
        in_turn = (self.cursor + np.arange(number)) % self.count
        self.logged[in_turn if self.sweep else self.random.integers(0, self.count, number)] = True
        self.cursor = (self.cursor + number) % self.count
        self.total_s, self.guest_s = self.total_s + seconds, self.guest_s + runs
