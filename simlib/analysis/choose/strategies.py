# SPDX-License-Identifier: BSD-3-Clause
"""Strategies that `simlib.choose` compares: named policies, conditions, and combinations of them."""

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
"""Strategies for the holds of CLEAR. All except the first need a patched kernel."""

SPLITS = ("eager-split-under-lock", "every-64+eager-split-under-lock", "eager-split-drop", "every-64+eager-split-drop",
          "no-eager-split")  # fmt: skip
"""Strategies for splitting huge pages. A stock x86 kernel supports only the last."""

CHUNKS = ("baseline", *(f"chunk-{size}" for size in ("16M", "64M", "256M", "1G", "4G")))
"""Sizes of one CLEAR, which userspace selects."""


def stock_kernel_strategies(scenario: Scenario) -> tuple[str, ...]:
    """Return the strategies that a stock kernel supports.

    These are several sizes of one CLEAR and, on x86 with eager splitting, no eager splitting; for a scenario with
    dirty rings, they are `tracking_strategies`.

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
    """Return the methods of dirty tracking: those of the architecture, and dirty rings of several sizes.

    >>> tracking_strategies(Scenario.parse({"policy": {"architecture": "x86-tdp"}}))[:4]
    ('baseline', 'write-protect', 'pml', 'dirty-ring-1024')
    """
    names = (method.replace("_", "-") for method in scenario.policy.facts.dirty_tracking)
    methods = [name for name in names if name in POLICIES]
    splits = scenario.guest.mapped_as_blocks and not scenario.policy.resolved().eager_split
    rings = [f"dirty-ring-{entries}" + "+eager-split-drop" * splits for entries in (1024, 4096, 65536)]
    return (BASELINE, *methods, *rings)


@dataclass(frozen=True)
class Strategy:
    """One strategy of a choice.

    - `name`: names or conditions that `simlib.model.policies.policy` accepts, joined by ``+``.
    - `changes`: number of settings of the scenario that it changes.
    """

    name: str
    changes: int = 1

    @property
    def as_it_is(self) -> bool:
        """True if the strategy changes no setting of the scenario."""
        return self.changes == 0

    def applied(self, scenario: Scenario) -> Scenario:
        """Return the scenario with this strategy."""
        return scenario if self.name == BASELINE else apply(scenario, self.name)


def strategies_of(scenario: Scenario, names: Sequence[str] | None = None) -> tuple[Strategy, ...]:
    """Return the strategies to compare for a scenario; of several with the same effect, only the first is returned.

    Raises `InputError` if a strategy is unknown or makes no CLEAR calls, or if fewer than two differ.

    - `names`: names of strategies; by default those of `stock_kernel_strategies`.
    """
    names = list(stock_kernel_strategies(scenario) if names is None else names)
    for name in names:
        if names.count(name) > 1:
            raise InputError("strategies", name, "is given more than once", "give each strategy once", "", "--strategy")
    distinct: dict[tuple[Policy, Workload], Strategy] = {}
    for name in names:
        case = Strategy(name).applied(scenario)
        if not case.workload.facts.by_chunk or case.workload.clear_when == "at_get":
            raise InputError(
                "strategies", name, "makes no CLEAR calls", "give strategies for CLEAR in a migration", "", "--strategy"
            )
        distinct.setdefault(_settings(case), Strategy(name, _count_changes(scenario, case)))
    if len(distinct) < 2:
        raise InputError(
            "strategies", ", ".join(names) or "none", "at least two strategies must differ for this scenario",
            "name two that differ, such as every-64 and whole-ioctl", "name others, or add --kernel", "--strategy",
        )  # fmt: skip
    return tuple(distinct.values())


def patched_kernel_strategies(scenario: Scenario) -> tuple[str, ...]:
    """Return the strategies for a patched kernel: `HOLDS`, and others that affect this architecture and guest."""
    chunk = scenario.workload.clear_chunk
    pages = chunk // scenario.guest.page_size if chunk else scenario.guest.pages
    batches = {f"every-{WORD_PAGES << k}" for k in range(40) if WORD_PAGES << k >= pages}
    names = [name for name in HOLDS if name not in batches]
    if LOCKS[scenario.policy.resolved().lock] in SHARING:
        names += ["read-lock-clear", "every-64+read-lock-clear"]
    return (*names, *(SPLITS if scenario.guest.mapped_as_blocks else ()), BASELINE)


def _settings(scenario: Scenario) -> tuple[Policy, Workload]:
    return scenario.policy.resolved(), scenario.workload


def _count_changes(before: Scenario, after: Scenario) -> int:
    """Count the settings of the policy and of the workload that differ."""
    pairs = zip((Policy, Workload), _settings(before), _settings(after), strict=True)
    return sum(getattr(old, f.name) != getattr(new, f.name) for kind, old, new in pairs for f in fields(kind))
