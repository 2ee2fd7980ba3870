# SPDX-License-Identifier: BSD-3-Clause
"""Answer for one guest: whether its migration converges, how long it takes, and which settings to use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pandas as pd

from simlib._lib import parallel
from simlib._lib.errors import InputError
from simlib.analysis.migrate import sentences
from simlib.analysis.migrate.search import simulate_plans
from simlib.analysis.migrate.simulated import SimulatedMigration
from simlib.figures.results import Result, text_of
from simlib.vmm.guest import GuestSample, RunningGuest
from simlib.vmm.paste import FORMATS
from simlib.vmm.plans import Plan, precopy_of, tool_of
from simlib.vmm.precopy import PrecopyStart, compile_model
from simlib.vmm.qemu_rules import PAGE
from simlib.vmm.running import running_migration, running_starts
from simlib.vmm.targets import Targets


@dataclass(frozen=True, repr=False)
class Migration(SimulatedMigration, Result):
    """Answer about a guest's migration: the simulated plans, in sentences, tables and commands to paste."""

    FIGURES: ClassVar[Mapping[str, Callable[[Any], pd.DataFrame]]] = {"migration_passes": lambda result: result.passes}

    def paste(self, emit: str) -> str:
        """Return the recommended plan in an output format of the guest's VMM (`simlib.vmm.paste.FORMATS`).

        Names that the log states replace the placeholders.

        Raises `InputError` if the VMM does not have this format.
        """
        known = FORMATS[self.guest.vmm]
        if emit not in known:
            rule, hint = f"is not a format for {self.guest.vmm}", f"use one of {', '.join(known)}"
            raise InputError("emit", emit, rule, hint, flag="--emit")
        text = known[emit](self.recommended, self.guest, self.targets)
        for placeholder, name in self.guest.names.items():
            text = text.replace(placeholder, name)
        return text

    def summary(self) -> str:
        """Return the answer and the table of plans as text."""
        return "\n".join([*(f"{text}." for text in self.summary_lines()), "", text_of(self.readable())])

    def summary_lines(self) -> list[str]:
        """Return the answer in sentences; the first five are the most important."""
        return sentences.summary_lines(self)

    def readable(self) -> pd.DataFrame:
        """Return the plans as a table of strings, without those whose outcome equals that of an earlier plan."""
        return sentences.readable(self)

    def table(self) -> pd.DataFrame:
        """Return the table of plans."""
        return self.frame

    def to_dict(self) -> dict[str, Any]:
        """Return all values as JSON types."""
        return {
            "guest": self.guest.description, "targets": self.targets.description,
            "recommended": self.recommended.name, "actions": self.recommended.actions,
            "meets_targets": self.meets_targets, "summary": self.summary_lines(),
            "plans": self.frame.to_dict("records"),
            "paste": {name: self.paste(name) for name in FORMATS[self.guest.vmm]}, "seed": self.seed,
            "running": state._asdict() if (state := self.running) is not None else None,
            "lock": self.lock if isinstance(self.lock, str) else self.lock.frame.to_dict("records"),
            "kernel": self.kernel,
        }  # fmt: skip


@dataclass(frozen=True)
class MigrationOptions:
    """Options of `migrate`.

    - `draws`: number of working sets that are sampled.
    - `seed`: random seed.
    - `lock`: True to simulate the effect of mmu_lock, which takes most of the time.
    - `kernel`: True to simulate the effect of a patched kernel, which takes half a minute more.
    - `emit`: output format (`Migration.paste`); settings that it cannot express are not tried.
    """

    draws: int = 64
    seed: int = 1
    lock: bool = True
    kernel: bool = False
    emit: str = ""

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise InputError("draws", self.draws, "must be at least 1", "64 is usual", flag="--draws")


def migrate(
    guest: RunningGuest, targets: Targets | None = None, *, options: MigrationOptions | None = None,
    progress: parallel.Progress | None = None,
) -> Migration:  # fmt: skip
    """Simulate plans for a guest's migration, and recommend the least drastic one that meets the targets.

    Raises `InputError` if a required value of the guest is missing, or if the measurements contradict each other or the
    size of the memory.

    - `progress`: called with (stage, share done).

    >>> from simlib.vmm.dirtying import parse_dirty
    >>> guest = RunningGuest(4, 2**33, 10**10, (parse_dirty("400000/s over 4G"),))
    >>> answer = migrate(guest, Targets(0.3), options=MigrationOptions(draws=8, lock=False))
    >>> print(answer.summary_lines()[0])
    The migration does not converge with the current settings: ...
    """
    guest.check_complete()
    targets, options = targets or Targets(), options or MigrationOptions()
    guest = _as_set_by_tool(guest, options.emit)
    compile_model(guest.ring_entries > 0)
    samples, starts = running_starts(guest, guest.samples(options.draws, options.seed))
    with_lock = options.lock and running_migration(guest) is None
    part = parallel.subprogress(progress, 0.0, 0.4 if with_lock or options.kernel else 1.0)
    simulated = simulate_plans(guest, targets, samples, starts, options.emit, part)
    current, best = simulated.plans[0], simulated.recommended
    trajectories = _passes([current, *([best] if best is not current else [])], guest, targets, (samples, starts))
    answer = Migration(
        guest, targets, simulated.plans, simulated.outcomes, simulated.frame, trajectories, best,
        simulated.meets_targets, options.seed, emit=options.emit,
    )  # fmt: skip
    if with_lock:
        answer = add_lock(answer, parallel.subprogress(progress, 0.4, 0.6 if options.kernel else 1.0))
    return add_kernel(answer, parallel.subprogress(progress, 0.6, 1.0)) if options.kernel else answer


def add_lock(answer: Migration, progress: parallel.Progress | None = None) -> Migration:
    """Return the answer with the effect of mmu_lock, whose simulation takes most of the time.

    A migration that is running gets none, since no setting changes it then.

    - `progress`: called with (stage, share done).
    """
    if answer.running is not None:
        return answer
    from simlib.analysis.migrate.lock import lock_of  # noqa: PLC0415  # imports the engines

    dirtied = float(answer.passes.groupby("guest")["new_bytes"].max().median() / PAGE)
    return replace(answer, lock=lock_of(answer.guest, answer.targets.max_stall_s, dirtied, answer.seed, progress))


def add_kernel(answer: Migration, progress: parallel.Progress | None = None) -> Migration:
    """Return the answer with the effect of a patched kernel."""
    from simlib.analysis.migrate.lock import patched_kernel_answer  # noqa: PLC0415  # imports the engines

    return replace(answer, kernel=patched_kernel_answer(answer.guest, answer.seed, progress))


def _as_set_by_tool(guest: RunningGuest, emit: str) -> RunningGuest:
    """Return the guest with the settings that the tool of an output format always makes for a new migration."""
    running = running_migration(guest) is not None
    if not tool_of(emit).auto_converge or guest.settings.dirty_limit or running:
        return guest
    return replace(guest, settings=guest.settings.changed(auto_converge=True))


def _passes(
    shown: list[Plan], guest: RunningGuest, targets: Targets,
    sampled: tuple[Sequence[GuestSample], Sequence[PrecopyStart]],
) -> pd.DataFrame:  # fmt: skip
    """Return the pre-copy passes of some plans for at most eight guests."""
    rows, pairs = [], list(zip(*sampled, strict=True))
    for plan in shown:
        for number, (sample, start) in enumerate(pairs[:: max(1, len(pairs) // 8)][:8]):
            trajectory = precopy_of(plan, guest, targets, sample, start)
            for time, new, left, lost, sent, _ in trajectory.passes:
                rows.append((plan.name, number, time, new * PAGE, left * PAGE, lost, sent))
            if not trajectory.completed and not plan.postcopy:  # later passes would be like the last one
                rows.append((plan.name, number, trajectory.total_s, *rows[-1][3:]))
    names = ["plan", "guest", "time_s", "new_bytes", "left_bytes", "lost_percent", "sent_bytes"]
    return pd.DataFrame(rows, columns=names)
