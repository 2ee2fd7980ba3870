# SPDX-License-Identifier: BSD-3-Clause
"""Answer for one guest: whether its migration converges, how long it takes, and which settings to use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd

from simlib._lib import parallel
from simlib._lib.errors import InputError
from simlib.analysis.migrate.lock import LockAnswer, lock_of, patched_kernel_answer
from simlib.figures.results import Result, text_of
from simlib.model.quantities import seconds_text, size_text
from simlib.vmm.dirtying import DirtyRate, unsteady
from simlib.vmm.guest import GuestSample, RunningGuest
from simlib.vmm.paste import FORMATS, SETTABLE
from simlib.vmm.plans import SURE, Plan, PlanOutcome, is_sure, plans, precopy_of, simulate_plan, table_of
from simlib.vmm.qemu_rules import PAGE
from simlib.vmm.settings import VMMS
from simlib.vmm.targets import Targets


@dataclass(frozen=True, repr=False)
class Migration(Result):
    """Simulated outcomes of the plans for a guest's migration, and the recommended plan.

    - `frame`: one row per plan: medians, ends of 90 % intervals, and shares of the working sets that meet each target.
    - `passes`: passes of the recommended plan and of the current settings, for some working sets: plan, guest, time_s,
      new_bytes, left_bytes, lost_percent, sent_bytes.
    - `recommended`: the least drastic plan that meets the targets, or the one that comes nearest.
    - `meets_targets`: True if the recommended plan meets them.
    - `lock`: effect of mmu_lock, or why it is not simulated; empty if not requested.
    - `kernel`: effect of a patched kernel; empty if not requested.
    - `emit`: output format that the settings must have; empty: any.
    """

    guest: RunningGuest
    targets: Targets
    plans: tuple[Plan, ...]
    outcomes: Mapping[str, list[PlanOutcome]]
    frame: pd.DataFrame
    passes: pd.DataFrame
    recommended: Plan
    meets_targets: bool
    seed: int
    lock: LockAnswer | str = ""
    kernel: str = ""
    emit: str = ""

    FIGURES: ClassVar[Mapping[str, Callable[[Any], pd.DataFrame]]] = {"migration_passes": lambda result: result.passes}

    def row(self, plan: str) -> dict[str, Any]:
        """Return a plan's row of `frame`."""
        return {str(name): value for name, value in self.frame.set_index("plan").loc[plan].items()}

    def paste(self, emit: str) -> str:
        """Return the recommended plan in an output format of the guest's VMM (`simlib.vmm.paste.FORMATS`).

        Raises `InputError` if the VMM does not have this format.
        """
        known = FORMATS[self.guest.vmm]
        if emit not in known:
            rule, hint = f"is not a format for {self.guest.vmm}", f"use one of {', '.join(known)}"
            raise InputError("emit", emit, rule, hint, flag="--emit")
        return known[emit](self.recommended, self.guest, self.targets)

    def summary(self) -> str:
        """Return the answer and the table of plans as text."""
        return "\n".join([*(f"{text}." for text in self.summary_lines()), "", text_of(self.readable())])

    def summary_lines(self) -> list[str]:
        """Return the answer in sentences; the first five are the most important."""
        current, planned = self.row("current"), self.row(self.recommended.name)
        lines = [self._current_settings(current)]
        targets = f" ({self.targets.description})" if self.targets.description else ""
        if self.recommended.name == "current":
            lines.append(f"Keep the current settings: they meet the targets{targets}" if self.meets_targets else
                         f"No setting that was tried meets the targets{targets} or comes nearer to them")  # fmt: skip
        elif self.meets_targets:
            lines.append(f"To meet the targets{targets}: {self.recommended.actions}")
        else:
            lines.append(f"No setting that was tried meets the targets{targets}. Nearest: {self.recommended.actions}")
        if self.recommended.name != "current":
            expected = (f"takes {_range(planned, 'total_s', seconds_text)} in {_passes_text(planned)}, "
                        f"the downtime is {_range(planned, 'downtime_s', seconds_text)}, and the guest runs at "
                        f"{_range(planned, 'guest_share', _percent)} of its speed")  # fmt: skip
            lines.append(f"The migration then {expected}" if planned["converges"] else "It still does not converge")
        if planned["converges"] and not self.meets_targets:
            lines.append(f"It converges for {100 * planned['converges']:.0f} % of the working sets consistent with the "
                         f"measurements, and meets all targets for {100 * planned['meets_all']:.0f} %")  # fmt: skip
        lock = self.lock if isinstance(self.lock, str) else self.lock.summary()
        further = (
            self._stalls(planned), lock, self.kernel, self._missed_targets(planned), self._unknown(), self._unsteady()
        )  # fmt: skip
        return [*lines, *filter(None, further)]

    def _unknown(self) -> str:
        """Return the inputs that are not known, and therefore sampled."""
        guest, rates = self.guest, [rate for rate in self.guest.dirty if isinstance(rate, DirtyRate)]
        unknown = {
            "the CPU use (--cpu)": not guest.cpu,
            "the pages of zeros (--resident)": not guest.resident and guest.zeros is None,
            "the time over which the rate was measured (--dirty 'RATE in TIME')": any(rate.between_s for rate in rates),
            "further dirty rates (--dirty, over 1, 10 and 60 s)": bool(rates) and len(rates) < 3,
        }
        names = [name for name, missing in unknown.items() if missing]
        return f"Not known, so that the ranges are wide: {', '.join(names)}" if names else ""

    def _unsteady(self) -> str:
        pair = unsteady([rate for rate in self.guest.dirty if isinstance(rate, DirtyRate)])
        return f"The guest is not steady, so the ranges are wide: {pair}" if pair else ""

    def _current_settings(self, current: dict[str, Any]) -> str:
        share = current["converges"]
        if share >= SURE:
            return (f"The migration converges with the current settings: {_range(current, 'total_s', seconds_text)} in "
                    f"{_passes_text(current)}, with a downtime of "
                    f"{_range(current, 'downtime_s', seconds_text)}")  # fmt: skip
        stuck = pd.DataFrame([outcome for outcome in self.outcomes["current"] if not outcome.completed])
        why = (f"after each pass, {size_text(float(stuck['left_bytes'].median()))} are dirty; sending them "
               f"takes {seconds_text(float(stuck['left_s'].median()))}, but the downtime limit is "
               f"{seconds_text(self.guest.settings.downtime_limit / 1e3)}")  # fmt: skip
        if share <= 1 - SURE:
            return f"The migration does not converge with the current settings: {why}"
        return (f"The measurements are not sufficient: with the current settings, the migration converges for "
                f"{100 * share:.0f} % of the guests that are consistent with them; for the others, {why}")  # fmt: skip

    def _stalls(self, planned: dict[str, Any]) -> str:
        if self.recommended.postcopy:
            return (f"After the switch to post-copy, a vCPU waits {_range(planned, 'fault_s', seconds_text)} for each "
                    "page that has not arrived; if the network fails then, vCPUs wait until the migration is "
                    "recovered, and if either host fails, the guest is lost")  # fmt: skip
        if planned["throttle"] > 0:
            slow = (f"; for {_range(planned, 'slow_s', seconds_text)}, the guest does less than half of its work"
                    if planned["slow_s"] > 0 else "")  # fmt: skip
            return (f"{VMMS[self.guest.vmm].title} throttles vCPUs by {_range(planned, 'throttle', _whole)} %; the "
                    f"longest sleep of a vCPU is {_range(planned, 'sleep_s', seconds_text)}{slow}")  # fmt: skip
        if planned["sleep_s"] > 0:
            return f"With the dirty limit, the longest sleep of a vCPU is {_range(planned, 'sleep_s', seconds_text)}"
        return "Nothing throttles the guest"

    def _missed_targets(self, planned: dict[str, Any]) -> str:
        """Return the values reached instead of the missed targets, or what the migration needs to converge."""
        if self.meets_targets:
            return ""
        once_s = self.guest.memory * 8 / self.guest.link
        if self.targets.deadline_s is not None and once_s > self.targets.deadline_s:
            return f"Sending all memory once takes {seconds_text(once_s)}: set a later deadline, or use a faster link"
        if not planned["converges"]:
            return "To converge, the migration needs a faster link, or a guest that writes less"
        reached: dict[str, tuple[str, Callable[[float], str], str]] = {
            "downtime": ("downtime_s", seconds_text, "a downtime of"),
            "deadline": ("total_s", seconds_text, "a total time of"),
            "min_guest_speed": ("guest_share", _percent, "a guest speed of"),
            "max_stall": ("fault_s" if self.recommended.postcopy else "sleep_s", seconds_text, "a vCPU stall of"),
        }
        texts = [f"{words} {_range(planned, column, shown)}" for target, (column, shown, words) in reached.items()
                 if planned[f"meets_{target}"] < SURE]  # fmt: skip
        return f"Instead of the missed targets, it reaches {', '.join(texts)}" if texts else ""

    def readable(self) -> pd.DataFrame:
        """Return the plans as a table of strings, without those whose outcome equals that of an earlier plan."""
        rows, outcomes = [], set[tuple[Any, ...]]()
        for row in self.frame.to_dict("records"):
            key = tuple(round(float(row[name]), 4) for name in ("total_s", "downtime_s", "guest_share", "sleep_s"))
            if key in outcomes and row["plan"] != self.recommended.name:
                continue
            outcomes.add(key)
            ends = row["converges"] > 0
            rows.append(
                {"plan": row["plan"], "converges": f"{100 * row['converges']:.0f} %",
                 "total time": _range(row, "total_s", seconds_text, "–") if ends else "no end",
                 "downtime": _range(row, "downtime_s", seconds_text, "–") if ends else "",
                 "guest speed": _range(row, "guest_share", _percent, "–"),
                 "longest stall": seconds_text(max(row["sleep_s_high"], row["fault_s_high"]), 2),
                 "meets targets": f"{100 * row['meets_all']:.0f} %"}
            )  # fmt: skip
        return pd.DataFrame(rows)

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
    seed, candidates = options.seed, tuple(plans(guest, targets, SETTABLE.get(options.emit)))
    outcomes, samples = dict[str, list[PlanOutcome]](), guest.samples(options.draws, seed)
    for number, plan in enumerate(candidates):
        if progress is not None:
            progress(f"migrating: {plan.name}", 0.4 * number / len(candidates))
        outcomes[plan.name] = simulate_plan(plan, guest, targets, samples)
    frame = table_of(outcomes, targets)
    rows = frame.set_index("plan")
    meeting = [plan for plan in candidates if is_sure(plan, rows.loc[plan.name])]
    best = meeting[0] if meeting else max(candidates, key=lambda plan: _nearness(rows.loc[plan.name]))
    current = candidates[0]
    passes = _passes([current, *([best] if best is not current else [])], guest, targets, samples)
    lock: LockAnswer | str = ""
    if options.lock:
        dirtied = float(passes.groupby("guest")["new_bytes"].max().median() / PAGE)
        share = parallel.subprogress(progress, 0.4, 0.6 if options.kernel else 1.0)
        lock = lock_of(guest, targets.max_stall_s, dirtied, seed, share)
    kernel = patched_kernel_answer(guest, seed, parallel.subprogress(progress, 0.6, 1.0)) if options.kernel else ""
    return Migration(
        guest, targets, candidates, outcomes, frame, passes, best, bool(meeting), seed, lock, kernel, options.emit
    )


def _nearness(row: Any) -> tuple[float, float, float]:
    """Sort key of plans that miss a target: shares of runs that meet all targets, converge, meet each (summed)."""
    shares = [float(row[name]) for name in row.index if str(name).startswith("meets_") and name != "meets_all"]
    return float(row["meets_all"]), float(row["converges"]), sum(shares)


def _passes(shown: list[Plan], guest: RunningGuest, targets: Targets, samples: Sequence[GuestSample]) -> pd.DataFrame:
    """Return the pre-copy passes of some plans for at most eight guests."""
    rows = []
    for plan in shown:
        for number, sample in enumerate(samples[:: max(1, len(samples) // 8)][:8]):
            link = guest.link_of(sample, plan.settings)
            trajectory = precopy_of(plan, guest, targets, sample.pages, link)
            for time, new, left, lost, sent, _ in trajectory.passes:
                rows.append((plan.name, number, time, new * PAGE, left * PAGE, lost, sent))
            if not trajectory.completed and not plan.postcopy:  # later passes would be like the last one
                rows.append((plan.name, number, trajectory.total_s, *rows[-1][3:]))
    names = ["plan", "guest", "time_s", "new_bytes", "left_bytes", "lost_percent", "sent_bytes"]
    return pd.DataFrame(rows, columns=names)


def _range(row: Any, column: str, shown: Callable[[float], str], to: str = " to ") -> str:
    """Format an interval; one value if both ends are formatted alike."""
    low, high = shown(row[f"{column}_low"]), shown(row[f"{column}_high"])
    return low if low == high else f"{low}{to}{high}"


_whole = "{:.0f}".format


def _passes_text(row: Any) -> str:
    return "1 pass" if (passes := _range(row, "passes", _whole)) == "1" else f"{passes} passes"


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"
