# SPDX-License-Identifier: BSD-3-Clause
"""Which places of the axes a sweep visits: all of them, or a Latin hypercube or Sobol sequence among them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from simlib.errors import InputError
from simlib.model import rules

KINDS = ("full", "latin_hypercube", "sobol")
"""Designs: every combination, or so many points that fill the space evenly."""

MOST_SAMPLED = 2**20
"""Most points of a Latin hypercube or a Sobol sequence."""

MOST_COORDINATES = 2**23
"""Most points × axes of one: every worker keeps them, 8 bytes each."""


@dataclass(frozen=True)
class Design(rules.Checked):
    """How points are chosen.

    - `kind`: one of `KINDS`.
    - `points`: of ``latin_hypercube`` and ``sobol``; of the latter a power of 2 keeps the balance of the sequence.
    - `seed`: of their randomisation.
    """

    kind: str = rules.rule(rules.choice(*KINDS), "full")
    points: int = rules.rule(rules.whole(0, MOST_SAMPLED), 0)
    seed: int = rules.rule(rules.whole(0, 2**31), 1)

    def __post_init__(self) -> None:
        """Check that a number of points stands where there is one."""
        super().__post_init__()
        if self.kind == "full" and self.points:
            raise InputError("design.points", self.points, "a full design has all combinations",
                             'leave it out, or write kind = "sobol"')  # fmt: skip
        if self.kind != "full" and not self.points:
            raise InputError(
                "design.points", self.points, f"{self.kind} needs a number of points", "write points = 1024"
            )
        if self.kind == "sobol" and self.points & (self.points - 1):
            raise InputError("design.points", self.points, "a Sobol sequence is balanced at powers of 2 alone",
                             f"write {1 << self.points.bit_length()}")  # fmt: skip


@lru_cache(maxsize=2)
def unit_cube(kind: str, points: int, dimensions: int, seed: int) -> NDArray[np.float64]:
    """Points of a Latin hypercube or a scrambled Sobol sequence.

    Returns: ndarray, shape (points, dimensions). Within [0, 1); 8 bytes a coordinate, and up to three times as much
    while they are drawn. A grid has at most `MOST_COORDINATES`: 64 MiB, and 192 MiB.

    >>> sorted((unit_cube("latin_hypercube", 4, 1, 1)[:, 0] * 4).astype(int).tolist())
    [0, 1, 2, 3]
    """
    from scipy.stats import qmc  # noqa: PLC0415  # a third of a worker's imports; a full design needs none

    sampler = (qmc.LatinHypercube if kind == "latin_hypercube" else qmc.Sobol)(d=dimensions, rng=seed)
    return np.asarray(sampler.random(points), dtype=np.float64)
