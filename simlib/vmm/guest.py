# SPDX-License-Identifier: BSD-3-Clause
"""Whose migration is asked about, and what is wished of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simlib._lib.errors import InputError, nearest
from simlib.measurements import read
from simlib.model.architectures import architecture
from simlib.model.quantities import format_bandwidth, format_seconds, say_size
from simlib.vmm import rules
from simlib.vmm.dirtying import DirtyingGuess, DirtyRate, draw
from simlib.vmm.memory import LinkModel, WorkingSet
from simlib.vmm.rules import PAGE
from simlib.vmm.running_guest import RunningGuest
from simlib.vmm.settings import NAMES, VMMS, Settings

_PAYLOAD = (0.94, 0.99)
"""Share of a link that is left for memory: Ethernet's and TCP's headers with frames of 1500 to 9000 bytes."""

_STREAM_BITS = (8e9, 20e9)
"""What one stream of QEMU may send, bit/s: a prior, as it is one thread that copies. No source was found."""

_WAIT_S = (0.3e-3, 6e-3)
"""From a fault after postcopy to its page, s: a prior, as what is queued before it counts."""

_SWITCH_S = (0.005, 0.1)
"""For which the guest stands beside what is sent, s: devices stop, are saved and start. A prior."""

_ALIKE = 1.5
"""Times of passes that differ by less than this factor are taken together."""

SWITCH_MOST_S = _SWITCH_S[0] * (_SWITCH_S[1] / _SWITCH_S[0]) ** 0.95
"""What that takes at most in 19 of 20 cases, s."""

_WATCH = "the watch.csv that simlib host watch --out wrote"

_LATE_S = (5e-5, 5e-4)
"""By how much a throttled vCPU sleeps too long, s: from Linux's timer slack (PR_SET_TIMERSLACK) up. A prior."""


@dataclass(frozen=True)
class Targets:
    """What a migration is to keep to; None: no wish.

    - `downtime_s`, `within_s`: times.
    - `guest_keeps`: share of its work that the guest still does, in the mean of the migration.
    - `max_stall_s`: longest time for which a vCPU is made to wait at once, the downtime aside.
    """

    downtime_s: float | None = None
    within_s: float | None = None
    guest_keeps: float | None = None
    max_stall_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse what nobody can wish."""
        for name, flag in (("downtime_s", "--downtime"), ("within_s", "--within"), ("max_stall_s", "--max-stall")):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(name, value, "must be a time above 0", "leave it out if it does not matter", flag=flag)
        if self.guest_keeps is not None and not 0 < self.guest_keeps <= 1:
            rule, cure = "must be above 0 and at most 1 (100 %)", "write 0.8, or 80% on the command line"
            raise InputError("guest_keeps", self.guest_keeps, rule, cure, flag="--guest-keeps")

    @property
    def description(self) -> str:
        """In words."""
        each = {
            f"downtime <= {format_seconds(self.downtime_s or 0)}": self.downtime_s,
            f"over within {format_seconds(self.within_s or 0)}": self.within_s,
            f"guest keeps {self.guest_keeps or 0:.0%}": self.guest_keeps,
            f"no vCPU waits longer than {format_seconds(self.max_stall_s or 0)}": self.max_stall_s,
        }
        return ", ".join(text for text, value in each.items() if value is not None)


@dataclass(frozen=True)
class MigratingGuest:
    """A guest that is to be migrated.

    - `vcpus`; `memory`: bytes.
    - `link`: bit/s.
    - `dirty`: what is known of its writes: several `DirtyRate`, or one `DirtyingGuess`.
    - `settings`: those that stand.
    - `architecture`: a name of `simlib.model.architectures`; `dirty_tracking`: how its host learns of writes; empty: as
      that of `simlib.preset_scenario`, which on x86 has PML.
    - `ring_entries`: of each vCPU's dirty ring; 0: the bitmap.
    - `chunk`: memory of one CLEAR, bytes: QEMU's x-clear-bitmap-shift.
    - `vmm`: a name of `simlib.vmm.settings.VMMS`.
    - `notes`: where the numbers come from.
    """

    vcpus: int
    memory: int
    link: int
    dirty: tuple[DirtyRate | DirtyingGuess, ...]
    settings: Settings = field(default_factory=lambda: Settings(max_bandwidth=0))
    architecture: str = "x86-tdp"
    dirty_tracking: str = ""
    ring_entries: int = 0
    chunk: int = 2**30
    vmm: str = "qemu"
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be migrated."""
        for name, flag, value in (("vcpus", "--vcpus", self.vcpus), ("memory", "--memory", self.memory),
                                  ("link", "--link", self.link)):  # fmt: skip
            if value <= 0:
                cure = "give what the migration may send, such as 25Gbit/s" if name == "link" else "give it as it is"
                raise InputError(name, value, "must be above 0", cure, flag=flag)
        if self.vmm not in VMMS:
            raise InputError("vmm", self.vmm, "is no VMM that is modelled", nearest(self.vmm, VMMS), flag="--for")
        if self.vmm == "cloud-hypervisor" and self.ring_entries:
            raise InputError("ring", self.ring_entries, "Cloud Hypervisor has no dirty rings", "leave it out",
                             flag="--ring")  # fmt: skip
        known = VMMS[self.vmm].settings
        for name, value in self.settings.beside(Settings(max_bandwidth=0)).items():
            if known is not None and name not in known:
                rule, cure = f"is no setting of {self.vmm}", f"give one of {', '.join(sorted(known))}"
                raise InputError(name, value, rule, cure, flag="--set")
        self._check_host()
        if not self.dirty:
            cure = "measure it: calc-dirty-rate over 1, 10 and 60 s (docs/migrate.md), then --dirty '250000/s in 10s'"
            raise InputError("dirty", "nothing", "what the guest writes decides", cure, flag="--dirty")
        if len(self.dirty) > 1 and any(isinstance(one, DirtyingGuess) for one in self.dirty):
            raise InputError(
                "dirty", "several", "a habit told by hand stands alone", "give one of them", flag="--dirty"
            )

    def _check_host(self) -> None:
        """Refuse what a scenario of the guest would."""
        found = architecture(self.architecture)
        if self.dirty_tracking and self.dirty_tracking not in found.dirty_tracking:
            raise InputError("dirty_tracking", self.dirty_tracking, f"is not how {found.name} learns of writes",
                             f"take one of {', '.join(found.dirty_tracking)}", flag="--dirty-tracking")  # fmt: skip
        if self.ring_entries and (self.ring_entries & (self.ring_entries - 1) or not 128 <= self.ring_entries <= 65536):
            raise InputError("ring", self.ring_entries, "must be a power of two from 128 to 65536", "QEMU's is 4096",
                             flag="--ring")  # fmt: skip
        if self.chunk < 2**21 or self.chunk & (self.chunk - 1):
            raise InputError("chunk", say_size(self.chunk), "must be a power of two, 2 MiB or more",
                             "QEMU's is 1G", flag="--chunk")  # fmt: skip

    @property
    def pages(self) -> float:
        """Pages of its memory."""
        return self.memory / PAGE

    @property
    def description(self) -> str:
        """In words."""
        each = "; ".join(one.said for one in self.dirty)
        return f"{self.vcpus} vCPUs, {say_size(self.memory)}, {format_bandwidth(self.link)}; {each}"

    def drawn(self, random: np.random.Generator) -> tuple[WorkingSet, LinkModel, float]:
        """One of the guests, and one of the ways to the other side, that this may be.

        Returns: Pages, line, and the time that a fault waits after postcopy, s.
        """
        first = self.dirty[0]
        if isinstance(first, DirtyingGuess):
            pages = first.pages(self.pages)
        else:
            pages = draw([one for one in self.dirty if isinstance(one, DirtyRate)], self.pages, random)
        bits = self.link * random.uniform(*_PAYLOAD)
        stream = _log_uniform(random, *_STREAM_BITS)
        channels = self.settings.multifd_channels if self.settings.multifd else 1
        bits = min(bits, stream * channels)
        chunk = 0.0 if self.ring_entries or VMMS[self.vmm].whole_passes else self.chunk / PAGE
        line = LinkModel(
            page_s=rules.WHOLE_PAGE * 8 / bits, switch_s=_log_uniform(random, *_SWITCH_S), chunk_pages=chunk,
            vcpus=float(self.vcpus), ring_entries=float(self.ring_entries), late_s=_log_uniform(random, *_LATE_S),
        )  # fmt: skip
        return pages, line, _log_uniform(random, *_WAIT_S)


def from_running(running: RunningGuest) -> dict[str, Any]:
    """What QEMU says of a guest, as arguments of `MigratingGuest`."""
    rate, seconds = running.dirty_bytes_per_s, running.dirty_seconds
    points = tuple(
        DirtyRate(one.bytes_per_s * one.seconds / PAGE, one.seconds, one.error)
        for one in running.counted
        if one.bytes_per_s > 0
    )
    if not points and rate and seconds:
        points = (DirtyRate(rate * seconds / PAGE, seconds),)
    known = {name: value for name, value in running.settings.items() if name in NAMES}
    if known.get("max-bandwidth", 0) >= 2**62:  # what libvirt sends for no limit
        known["max-bandwidth"] = 0
    notes = running.notes
    if known.get("max-bandwidth") == Settings().max_bandwidth:
        del known["max-bandwidth"]
        notes = (*notes, "max-bandwidth is QEMU's default, which libvirt lifts as it migrates: taken as no limit "
                 "(--set max-bandwidth=134217728 if it stands)")  # fmt: skip
    said = {
        "vcpus": running.vcpus, "memory": running.memory_bytes, "link": running.link_bits,
        "architecture": running.architecture, "notes": notes, "dirty": points,
        "settings": Settings.of({"max-bandwidth": 0} | known),
    }  # fmt: skip
    return {name: value for name, value in said.items() if value}


def from_watch(path: str | Path) -> dict[str, Any]:
    """What ``simlib host watch`` saw of a migration under way, as arguments of `MigratingGuest`.

    Each synchronisation tells how many pages were dirtied since the one before. Times that are alike are taken
    together. What was throttled is left out.

    Raises `InputError` if the table has no pass that tells anything.

    - `path`: its table ``watch.csv``.
    """
    if not Path(path).is_file():
        raise InputError("--from-watch", str(path), "is no file", f"give {_WATCH}")
    try:
        frame = read(path).frame.dropna(subset=["dirty_sync_count", "dirty_pages_per_s", "total_bytes"])
    except (InputError, KeyError):
        cure = f"give {_WATCH}; replies of QEMU go to --from-qemu"
        raise InputError(str(path), "another file", "is no table of a watched migration", cure) from None
    frame = frame[frame["throttle_percent"].fillna(0) == 0]
    looks = frame[frame["dirty_sync_count"].diff().fillna(0) == 1]
    times = looks["time_s"].diff()
    new = looks["dirty_pages_per_s"] * times * looks["page_size_bytes"].fillna(PAGE) / PAGE
    seen = pd.DataFrame({"seconds": times, "pages": new})[(times > 0) & (new > 0)]
    if seen.empty:
        cure = "watch a migration over several passes, or measure with calc-dirty-rate"
        raise InputError(str(path), "no pass", "has no two synchronisations of an unthrottled guest", cure)
    each = float(frame["time_s"].diff().median())
    alike = seen.groupby((np.log(seen["seconds"]) / np.log(_ALIKE)).round())
    points = tuple(
        DirtyRate(float(rows["pages"].mean()), float(rows["seconds"].mean()), _error(rows, each)) for _, rows in alike
    )
    note = f"{len(points)} rates of dirtying: the passes of {path}, which the migration itself slowed"
    said = {"memory": int(frame["total_bytes"].iloc[-1]), "dirty": points, "notes": (note,)}
    reached = frame["throughput_mbit_per_s"].max()
    return said | ({"link": round(reached * 1e6)} if reached > 0 else {})


def _error(rows: pd.DataFrame, each: float) -> float:
    """Standard error of a mean of pages, as a share of it; `each`: time between two samples, s."""
    spread = float(rows["pages"].std() / rows["pages"].mean()) if len(rows) > 1 else 0.0
    return max(0.02, float(np.hypot(spread, each / rows["seconds"].mean()) / np.sqrt(len(rows))))


def _log_uniform(random: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(random.uniform(np.log(low), np.log(high))))
