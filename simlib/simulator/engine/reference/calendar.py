# SPDX-License-Identifier: BSD-3-Clause
"""The calendar: SimPy's, but threads that wake at the same time do so in the order of their numbers."""

from __future__ import annotations

from typing import Any

import simpy


class Wake(simpy.Timeout):  # type: ignore[misc]  # SimPy is not type-checked here
    """Wake-up of a thread."""

    def __init__(self, env: Calendar, thread: int, delay: int) -> None:
        self.turn = thread + 2  # SimPy itself uses 0 and 1
        super().__init__(env, delay)


class Calendar(simpy.Environment):  # type: ignore[misc]  # the same
    """An environment in which threads that wake at the same time do so in the order of their numbers."""

    def schedule(self, event: simpy.Event, priority: Any = simpy.events.NORMAL, delay: Any = 0) -> None:
        """Schedule an event as SimPy does, but order each `Wake` by its thread's number."""
        super().schedule(event, getattr(event, "turn", priority), delay)
