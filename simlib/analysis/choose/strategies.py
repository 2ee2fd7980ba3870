# SPDX-License-Identifier: BSD-3-Clause
"""The strategies that a choice is made among: named policies, texts, and several of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from simlib._lib.errors import InputError
from simlib.model.locks import LOCKS, SHARING
from simlib.model.pagetable import WORD_PAGES
from simlib.model.policies import BASELINE, POLICIES, apply
from simlib.model.policy import Policy
from simlib.model.quantities import parse_size
from simlib.model.scenario import Scenario
from simlib.model.workload import Workload

HOLDS = ("whole-ioctl", "every-64", "every-512", "every-4096", "every-32768", "bounded-hold",
         "bounded-hold-after-progress", "needbreak-preemptible", "yield-after-progress", "doubling-batch")  # fmt: skip
"""Strategies for the holds of CLEAR: but for the first, what only a patched kernel can do."""

SPLITS = ("eager-split-under-lock", "every-64+eager-split-under-lock", "eager-split-drop", "every-64+eager-split-drop",
          "no-eager-split")  # fmt: skip
"""Strategies for splitting blocks, where the guest has any; a stock x86 kernel can only do the last."""

CHUNKS = ("baseline", *(f"chunk-{size}" for size in ("16M", "64M", "256M", "1G", "4G")))
"""Memory of one CLEAR, as userspace asks for it."""


RINGS = ("dirty-ring-1024", "dirty-ring-4096", "dirty-ring-65536")
"""Dirty rings, as userspace asks for them."""


def stock_kernel_strategies(scenario: Scenario) -> tuple[str, ...]:
    """What can be set on a stock kernel: memory of one CLEAR; of x86's eager splitting, none; of rings, their size.

    >>> guest = {"backing": "thp", "memory": "1G"}
    >>> stock_kernel_strategies(Scenario.parse({"policy": {"architecture": "x86-tdp"}, "guest": guest}))
    ('baseline', 'chunk-16M', 'chunk-64M', 'chunk-256M', 'chunk-1G', 'no-eager-split')
    """
    if scenario.workload.rings:
        return tracking_strategies(scenario)
    splits = scenario.guest.mapped_as_blocks and scenario.policy.resolved().eager_split
    x86 = scenario.policy.architecture.startswith("x86")
    memory = scenario.guest.pages * scenario.guest.page_size
    chunks = [name for name in CHUNKS if name == BASELINE or parse_size(name.removeprefix("chunk-"), name) <= memory]
    return (*chunks, *(["no-eager-split"] if splits and x86 else []))


def tracking_strategies(scenario: Scenario) -> tuple[str, ...]:
    """Ways of learning what the guest writes: those of the architecture, and dirty rings.

    >>> tracking_strategies(Scenario.parse({"policy": {"architecture": "x86-tdp"}}))[:4]
    ('baseline', 'write-protect', 'pml', 'dirty-ring-1024')
    """
    ways = [name for way in scenario.policy.facts.dirty_tracking if (name := way.replace("_", "-")) in POLICIES]
    splits = scenario.guest.mapped_as_blocks and not scenario.policy.resolved().eager_split
    rings = [f"{ring}+eager-split-drop" if splits else ring for ring in RINGS]
    return (BASELINE, *ways, *rings)


@dataclass(frozen=True)
class Strategy:
    """One strategy of a choice.

    - `name`: names or texts that `simlib.model.policies.policy` knows, joined by ``+``.
    - `changes`: how many settings of the scenario's it changes.
    """

    name: str
    changes: int = 1

    @property
    def as_it_is(self) -> bool:
        """Whether it is what the scenario says itself."""
        return self.changes == 0

    def applied(self, scenario: Scenario) -> Scenario:
        """The scenario with this strategy."""
        return scenario if self.name == BASELINE else apply(scenario, self.name)


def strategies_of(scenario: Scenario, names: Sequence[str] | None = None) -> tuple[Strategy, ...]:
    """The strategies that are compared for a scenario; of those that come to the same only the first.

    Raises `InputError` if one is unknown or leaves nothing to CLEAR, or fewer than two differ.

    - `strategies`: their names; by default those of `stock_kernel_strategies`.
    """
    names = list(stock_kernel_strategies(scenario) if names is None else names)
    for name in names:
        if names.count(name) > 1:
            raise InputError("strategies", name, "is named more than once", "name each once", "", "--strategy")
    found: dict[tuple[Policy, Workload], Strategy] = {}
    for name in names:
        case = Strategy(name).applied(scenario)
        if not case.workload.facts.by_chunk or case.workload.clear_when == "at_get":
            raise InputError(
                "strategies", name, "leaves nothing to CLEAR", "name ways of CLEAR in a migration", "", "--strategy"
            )
        found.setdefault(_essence(case), Strategy(name, _changes(scenario, case)))
    if len(found) < 2:
        raise InputError(
            "strategies", ", ".join(names) or "none", "there is nothing to choose: they come to the same here",
            "name two that differ, such as every-64 and whole-ioctl", "name two, or add --kernel", "--strategy",
        )  # fmt: skip
    return tuple(found.values())


def patched_kernel_strategies(scenario: Scenario) -> tuple[str, ...]:
    """What a patched kernel could do: all of `HOLDS`, and what else makes a difference to this architecture."""
    chunk = scenario.workload.clear_chunk
    pages = chunk // scenario.guest.page_size if chunk else scenario.guest.pages
    batches = {f"every-{WORD_PAGES << k}" for k in range(40) if WORD_PAGES << k >= pages}
    names = [name for name in HOLDS if name not in batches]
    if LOCKS[scenario.policy.resolved().lock] in SHARING:
        names += ["read-lock-clear", "every-64+read-lock-clear"]
    return (*names, *(SPLITS if scenario.guest.mapped_as_blocks else ()), BASELINE)


def _essence(scenario: Scenario) -> tuple[Policy, Workload]:
    return scenario.policy.resolved(), scenario.workload


def _changes(before: Scenario, after: Scenario) -> int:
    """How many settings of the policy and of the workload differ."""
    parts = zip((Policy, Workload), _essence(before), _essence(after), strict=True)
    return sum(getattr(old, f.name) != getattr(new, f.name) for kind, old, new in parts for f in fields(kind))
