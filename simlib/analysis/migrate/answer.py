# SPDX-License-Identifier: BSD-3-Clause
"""Will it converge, and with which settings: the answer for one guest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from simlib._lib import parallel
from simlib._lib.errors import InputError
from simlib.analysis.migrate.lock import LockAnswer, lock_of, patched_of
from simlib.figures.results import Result, text_of
from simlib.model.quantities import say_seconds, say_size
from simlib.vmm.guest import MigratingGuest, Targets
from simlib.vmm.paste import SETTABLE, TARGETS
from simlib.vmm.plans import SURE, Plan, PlanOutcome, plans, precopy, simulate_plan, table_of
from simlib.vmm.rules import PAGE

DRAWS = 64
"""Guests that may have been measured, unless told otherwise."""


@dataclass(frozen=True, repr=False)
class Migration(Result):
    """What a migration comes to with each plan, and which one keeps to the wishes. Nothing in it was measured.

    - `frame`: one row a plan: medians, the ends of 90 % intervals, and with which share of guests each wish is kept.
    - `passes`: of the plan that is taken and of what stands, for some guests: plan, guest, time_s, new_bytes,
      left_bytes, lost_percent, sent_bytes.
    - `take`: the least drastic plan that keeps to the wishes, or what comes nearest; `keeps`: whether it does.
    - `lock`: what mmu_lock adds, or why that is not told; empty: it was not asked for.
    - `kernel`: what a patched kernel could do about that; empty: it was not asked for.
    - `target`: for what the settings are to be written; empty: for whatever can set all.
    """

    guest: MigratingGuest
    wishes: Targets
    plans: tuple[Plan, ...]
    outcomes: Mapping[str, list[PlanOutcome]]
    frame: pd.DataFrame
    passes: pd.DataFrame
    recommended: Plan
    meets_targets: bool
    seed: int
    lock: LockAnswer | str = ""
    kernel: str = ""
    target: str = ""

    FIGURES: ClassVar[Mapping[str, Callable[[Any], pd.DataFrame]]] = {"migration_passes": lambda one: one.passes}

    def row(self, plan: str) -> dict[str, Any]:
        """A plan's row."""
        return {str(name): value for name, value in self.frame.set_index("plan").loc[plan].items()}

    def paste(self, target: str) -> str:
        """The plan that is taken, for ``qmp``, ``virsh`` or ``kubevirt``, or for the one VMM ``cloud-hypervisor``.

        Raises `InputError` if the guest's VMM is another one.
        """
        known = TARGETS[self.guest.vmm]
        if target not in known:
            rule, cure = f"is not for a guest of {self.guest.vmm}", f"take one of {', '.join(known)}"
            raise InputError("target", target, rule, cure, flag="--for")
        return known[target](self.recommended, self.guest, self.wishes)

    def summary(self) -> str:
        """What to do, and what comes of it."""
        return "\n".join([*(f"{text}." for text in self.summary_lines()), "", text_of(self.readable())])

    def summary_lines(self) -> list[str]:
        """What to do, in sentences: the first five say all that matters."""
        now, then = self.row("as it is"), self.row(self.recommended.name)
        said = [self._stands(now)]
        wished = f" ({self.wishes.description})" if self.wishes.description else ""
        if self.recommended.name == "as it is":
            said.append(f"Leave it as it is: it keeps to what you wish{wished}" if self.meets_targets else
                        f"No setting that was tried keeps to what you wish{wished}; none comes nearer")  # fmt: skip
        elif self.meets_targets:
            said.append(f"To keep to what you wish{wished}: {self.recommended.actions}")
        else:
            said.append(
                f"No setting that was tried keeps to what you wish{wished}. Nearest: {self.recommended.actions}"
            )
        if self.recommended.name != "as it is":
            takes = (f"takes {_range(then, 'total_s', say_seconds)} in {_range(then, 'passes', _whole)} "
                     f"passes, stands for {_range(then, 'downtime_s', say_seconds)}, and the guest keeps "
                     f"{_range(then, 'guest_share', _percent)} of its work")  # fmt: skip
            said.append(f"It then {takes}" if then["converges"] else "It does not converge then, either")
        said += self._odds(then)
        said.append(self._stalls(then))
        if self.lock:
            said.append(self.lock if isinstance(self.lock, str) else self.lock.summary())
        if self.kernel:
            said.append(self.kernel)
        missed = self._missed(then)
        if missed:
            said.append(missed)
        return said

    def _odds(self, then: dict[str, Any]) -> list[str]:
        """How sure that is, where it is not nearly."""
        if self.meets_targets or not then["converges"]:
            return []
        return [f"Of the guests that may have been measured, {then['converges']:.0%} converge then, and "
                f"{then['meets_all']:.0%} keep to all that is wished"]  # fmt: skip

    def _stands(self, now: dict[str, Any]) -> str:
        """What the settings that stand come to."""
        share = now["converges"]
        if share >= SURE:
            return (f"It converges as it is: {_range(now, 'total_s', say_seconds)} in {_range(now, 'passes', _whole)} "
                    f"passes, downtime {_range(now, 'downtime_s', say_seconds)}")  # fmt: skip
        stuck = pd.DataFrame([one for one in self.outcomes["as it is"] if not one.completed])
        why = (f"after each pass {say_size(float(stuck['left_bytes'].median()))} are dirty again, which takes "
               f"{say_seconds(float(stuck['left_s'].median()))} to send, and it may stand for "
               f"{say_seconds(self.guest.settings.downtime_limit / 1e3)}")  # fmt: skip
        if share <= 1 - SURE:
            return f"It does not converge as it is: {why}"
        return (f"Whether it converges as it is cannot be told from what was measured: {share:.0%} of the guests that "
                f"may have been measured do; with the others {why}"
                + ("" if len(self.guest.dirty) > 2 else ". Measure over 1, 10 and 60 s"))  # fmt: skip

    def _stalls(self, then: dict[str, Any]) -> str:
        """What makes vCPUs wait."""
        if self.recommended.postcopy:
            return (f"After the switch a vCPU waits {_range(then, 'fault_s', say_seconds)} for each page that is not "
                    "there yet; if the network fails then, the guest is lost")  # fmt: skip
        if then["throttle"] > 0:
            return (f"Throttled by {_range(then, 'throttle', _whole)} %, a vCPU sleeps for up to "
                    f"{_range(then, 'sleep_s', say_seconds)} at a time")  # fmt: skip
        return "Nothing throttles the guest"

    def _missed(self, then: dict[str, Any]) -> str:
        """Which wishes are not kept, and what was reached."""
        if self.meets_targets:
            return ""
        once = self.guest.memory * 8 / self.guest.link
        if self.wishes.within_s is not None and once > self.wishes.within_s:
            return f"All of its memory takes {say_seconds(once)} to send once: give it longer, or a faster link"
        if not then["converges"]:
            return "What is missing is speed: a faster link, or a guest that writes less"
        best: dict[str, tuple[str, Callable[[float], str], str]] = {
            "downtime": ("downtime_s", say_seconds, "a downtime of"),
            "within": ("total_s", say_seconds, "a time of"),
            "guest_keeps": ("guest_share", _percent, "a guest that keeps"),
            "stall": ("fault_s" if self.recommended.postcopy else "sleep_s", say_seconds, "a wait of"),
        }
        said = []
        for wish, (column, shown, words) in best.items():
            if then[f"keeps_{wish}"] < SURE:
                said.append(f"{words} {_range(then, column, shown)}")
        return f"What is reached instead: {', '.join(said)}" if said else ""

    def readable(self) -> pd.DataFrame:
        """The plans for people, without those that change nothing."""
        rows, seen = [], set[tuple[Any, ...]]()
        for row in self.frame.to_dict("records"):
            key = tuple(round(float(row[name]), 4) for name in ("total_s", "downtime_s", "guest_share", "sleep_s"))
            if key in seen and row["plan"] != self.recommended.name:
                continue
            seen.add(key)
            done = row["converges"] > 0
            rows.append(
                {
                    "plan": row["plan"], "converges": f"{row['converges']:.0%}",
                    "takes": _range(row, "total_s", say_seconds, "–") if done else "no end",
                    "downtime": _range(row, "downtime_s", say_seconds, "–") if done else "",
                    "guest keeps": _range(row, "guest_share", _percent, "–"),
                    "waits": say_seconds(max(row["sleep_s_high"], row["fault_s_high"]), 2),
                    "keeps wishes": f"{row['meets_all']:.0%}",
                }
            )  # fmt: skip
        return pd.DataFrame(rows)

    def table(self) -> pd.DataFrame:
        """The plans."""
        return self.frame

    def to_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "guest": self.guest.description,
            "wishes": self.wishes.description,
            "take": self.recommended.name,
            "does": self.recommended.actions,
            "keeps": self.meets_targets,
            "says": self.summary_lines(),
            "plans": self.frame.to_dict("records"),
            "paste": {name: self.paste(name) for name in TARGETS[self.guest.vmm]},
            "seed": self.seed,
            "lock": self.lock if isinstance(self.lock, str) else self.lock.frame.to_dict("records"),
            "kernel": self.kernel,
        }


def migrate(
    guest: MigratingGuest, wishes: Targets | None = None, *, draws: int = DRAWS, seed: int = 1, lock: bool = True,
    kernel: bool = False, target: str = "", progress: parallel.Progress | None = None,
) -> Migration:  # fmt: skip
    """Say whether a guest's migration converges, how long it takes, and which settings keep to what is wished.

    Raises `InputError` if what was measured contradicts itself or the memory.

    - `draws`: guests that are drawn from those that may have been measured.
    - `seed`: root of all random streams.
    - `lock`: whether to say what mmu_lock adds, too, which takes longest.
    - `target`: for what the settings will be written (`Migration.paste`): what it cannot set is not tried.
    - `kernel`: whether to say what a patched kernel could do about that, which takes half a minute more.
    - `progress`: told what is done and the share that is.

    >>> from simlib.vmm.dirtying import parse_dirty
    >>> guest = MigratingGuest(4, 2**33, 10**10, (parse_dirty("400000/s over 4G"),))
    >>> found = migrate(guest, Targets(0.3), draws=8, lock=False)
    >>> print(found.summary_lines()[0])
    It does not converge as it is: ...
    """
    if draws < 1:
        raise InputError("draws", draws, "must be at least 1", "64 is usual", flag="--draws")
    wishes = wishes or Targets()
    every, outcomes = tuple(plans(guest, wishes, SETTABLE.get(target))), dict[str, list[PlanOutcome]]()
    seeds = range(seed * 10_000, seed * 10_000 + draws)
    for number, plan in enumerate(every):
        if progress is not None:
            progress(f"migrating: {plan.name}", 0.4 * number / len(every))
        outcomes[plan.name] = simulate_plan(plan, guest, wishes, seeds)
    frame = table_of(outcomes, wishes)
    rows = frame.set_index("plan")
    kept = rows["meets_all"]
    good = [plan for plan in every if kept[plan.name] >= SURE]
    take = good[0] if good else max(every, key=lambda plan: _nearness(rows.loc[plan.name]))
    shown = [every[0], take] if take.name != every[0].name else [take]
    passes = _passes(shown, guest, wishes, seeds)
    adds: LockAnswer | str = ""
    if lock:
        most = passes.groupby("guest")["new_bytes"].max().median() / PAGE
        adds = lock_of(
            guest, wishes.max_stall_s, float(most), seed, parallel.subprogress(progress, 0.4, 0.6 if kernel else 1.0)
        )
    could = patched_of(guest, seed, parallel.subprogress(progress, 0.6, 1.0)) if kernel else ""
    return Migration(guest, wishes, every, outcomes, frame, passes, take, bool(good), seed, adds, could, target)


def _nearness(row: Any) -> tuple[float, float, float]:
    """How near a plan comes to what is wished: all of it, ending at all, and each of the wishes."""
    each = [float(row[name]) for name in row.index if str(name).startswith("keeps_") and name != "meets_all"]
    return float(row["meets_all"]), float(row["converges"]), sum(each)


def _passes(shown: list[Plan], guest: MigratingGuest, wishes: Targets, seeds: range) -> pd.DataFrame:
    """Passes of some plans for a few of the guests, before postcopy."""
    rows = []
    for plan in shown:
        for number, seed in enumerate(seeds[:: max(1, len(seeds) // 8)][:8]):
            pages, line, _ = replace(guest, settings=plan.settings).drawn(np.random.default_rng([17, seed]))
            found = precopy(plan, guest, wishes, pages, line)
            for time, new, left, lost, sent, _ in found.passes:
                rows.append((plan.name, number, time, new * PAGE, left * PAGE, lost, sent))
            if not found.completed and not plan.postcopy:  # it goes on like this, though no more of it is simulated
                rows.append((plan.name, number, found.total_s, *rows[-1][3:]))
    names = ["plan", "guest", "time_s", "new_bytes", "left_bytes", "lost_percent", "sent_bytes"]
    return pd.DataFrame(rows, columns=names)


def _range(row: Any, column: str, shown: Callable[[float], str], to: str = " to ") -> str:
    """An interval in words; one value where its ends look alike."""
    low, high = shown(row[f"{column}_low"]), shown(row[f"{column}_high"])
    return low if low == high else f"{low}{to}{high}"


def _whole(value: float) -> str:
    return f"{value:.0f}"


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"
