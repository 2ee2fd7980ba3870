# SPDX-License-Identifier: BSD-3-Clause
"""The content of a log: samples of a migration, and other numbers of the guest with their sources."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from simlib.vmm.dirtying import DirtyRate
from simlib.vmm.qemu_rules import PAGE
from simlib.vmm.samples import MigrationSample

MIB = 2**20

UNDERFLOW = float(2**62)
"""Smallest number of bytes or pages that is a counter below 0: QEMU prints -4096 as 2^64 - 4096."""

EXACT = 0.02
"""Relative standard error of a rate if every dirtied page is counted: above 0, as no guest's rate is constant."""


_PROPERTIES = frozenset({"tool", "emit", "hidden_throttle", "page_error", "emulated"})
"""Fields of a content that say nothing of the guest by themselves."""


class LogValue(NamedTuple):
    """Number from a log.

    - `value`: number in bytes or vCPUs.
    - `source`: field and tool that report it, for notes.
    - `error`: largest difference to the exact value, from the digits that are printed.
    """

    value: float
    source: str
    error: float = 0.0


class RateReading(NamedTuple):
    """Dirty rate from a log.

    - `rate`: the measurement.
    - `note`: its source.
    - `mode`: QEMU's mode of the measurement (``dirty-bitmap``, …); empty if a migration was the measurement.
    """

    rate: DirtyRate
    note: str
    mode: str = ""


@dataclass
class LogContent:
    """Numbers that one tool reports. A value that is not reported is empty.

    - `tool`: name of the tool and its command, for notes.
    - `emit`: output format of this tool; empty if it is not known.
    - `samples`: states of one or more migrations, in the order of the text.
    - `total`: memory that a migration sends. `configured`: memory of the guest as configured, which excludes the
      display's and the firmware's memory.
    - `resident`: resident memory of the process.
    - `vcpus`: number of vCPUs. `cpu`: mean use of a vCPU, as a share of its time.
    - `version`: first two numbers of QEMU's version. `emulated`: True if QEMU runs the guest without KVM (TCG).
    - `architecture`: a name of `simlib.model.architectures`, and `architecture_note`: its source.
    - `rates`: dirty rates that were measured.
    - `settings`: migration settings, by QEMU's names.
    - `page_error`: rounding of the sizes of samples, bytes.
    - `hidden_throttle`: True if the tool may throttle the guest without a record of it.
    - `missing`: reasons for which a number is not known, by its name.
    - `notes`: notes, in the order in which they are printed.
    """

    tool: str
    emit: str = ""
    samples: list[MigrationSample] = field(default_factory=list)
    total: list[LogValue] = field(default_factory=list)
    configured: list[LogValue] = field(default_factory=list)
    resident: list[LogValue] = field(default_factory=list)
    vcpus: list[LogValue] = field(default_factory=list)
    cpu: list[LogValue] = field(default_factory=list)
    version: tuple[int, int] | None = None
    emulated: bool = False
    architecture: str = ""
    architecture_note: str = ""
    rates: list[RateReading] = field(default_factory=list)
    settings: dict[str, int | bool] = field(default_factory=dict)
    page_error: float = 0.0
    hidden_throttle: bool = False
    missing: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Append a note, once."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def empty(self) -> bool:
        """True if the log has no number, setting or note."""
        names = (item.name for item in fields(self) if item.name not in _PROPERTIES)
        return not any(getattr(self, name) for name in names)


def rounded_rate(mib_per_s: float, seconds: float, samples_per_gib: float = 0.0) -> DirtyRate:
    """Return a dirty rate that QEMU rounded down to whole MiB/s.

    - `samples_per_gib`: number of pages in a GiB that QEMU sampled; 0: it counted all pages.

    >>> rate = rounded_rate(25, 10.0)
    >>> rate.pages, rate.rounding
    (64000.0, 2560.0)
    """
    mib = MIB * seconds / PAGE
    return DirtyRate(mib_per_s * mib, seconds, EXACT, rounding=mib, samples_per_gib=samples_per_gib)


def make_sample(content: LogContent, values: dict[str, Any]) -> MigrationSample | None:
    """Return a sample, without counters below 0, which become notes.

    Returns: None if no number of a migration is in `values`.

    - `values`: fields of `MigrationSample`, which may be None.
    """
    known = {}
    for name, value in values.items():
        label = f"{name.replace('_', ' ')} of {content.tool}"
        if value is None:
            continue
        if isinstance(value, float) and not math.isfinite(value):
            content.note(f"{label} is not a number: ignored")
        elif name in COUNTERS and not 0 <= value < UNDERFLOW:
            content.note(f"{label} is a counter below 0 ({value:.0f}), an error of QEMU: ignored")
        else:
            known[name] = value
    numbers = {*known} - {"status", "page_bytes", "downtime_limit_s"}
    return MigrationSample(**known) if numbers else None


COUNTERS = frozenset({"total_bytes", "sent_bytes", "remaining_bytes", "normal_pages", "zero_pages",
                      "dirty_pages_per_s", "bits_per_s"})  # fmt: skip
"""Fields of a sample that an underflow of QEMU may affect."""
