# SPDX-License-Identifier: BSD-3-Clause
"""Targets of a migration: downtime, total time, guest speed, and the longest stall of a vCPU."""

from __future__ import annotations

import math
from dataclasses import dataclass

from simlib._lib.errors import InputError
from simlib.model.quantities import format_seconds


@dataclass(frozen=True)
class Targets:
    """Bounds that a migration should meet; None: no bound.

    - `downtime_s`: longest downtime, s.
    - `deadline_s`: longest total time, s.
    - `min_guest_speed`: minimum mean throughput of the guest during the migration, as a share of its undisturbed
      throughput.
    - `max_stall_s`: longest single wait of a vCPU, s. The downtime does not count as a wait.

    Raises `InputError` if a bound is impossible.

    >>> Targets(downtime_s=0.3, min_guest_speed=0.8).description
    'downtime <= 300ms, guest speed >= 80%'
    """

    downtime_s: float | None = None
    deadline_s: float | None = None
    min_guest_speed: float | None = None
    max_stall_s: float | None = None

    def __post_init__(self) -> None:
        for name, flag in (("downtime_s", "--downtime-limit"), ("deadline_s", "--deadline"),
                           ("max_stall_s", "--max-stall")):  # fmt: skip
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(name, value, "must be a time above 0", "omit the bound if none is needed", flag=flag)
        speed = self.min_guest_speed
        if speed is not None and not 0 < speed <= 1:
            rule, hint = "must be above 0 and at most 1 (100 %)", "write 0.8, or 80% on the command line"
            raise InputError("min_guest_speed", speed, rule, hint, flag="--min-guest-speed")

    @property
    def description(self) -> str:
        """The bounds that are given, as a string."""
        texts = {
            f"downtime <= {format_seconds(self.downtime_s or 0)}": self.downtime_s,
            f"total time <= {format_seconds(self.deadline_s or 0)}": self.deadline_s,
            f"guest speed >= {self.min_guest_speed or 0:.0%}": self.min_guest_speed,
            f"vCPU stalls <= {format_seconds(self.max_stall_s or 0)}": self.max_stall_s,
        }
        return ", ".join(text for text, value in texts.items() if value is not None)
