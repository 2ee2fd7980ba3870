# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of a migration, each declared once: its name, its help and how its text is read.

The options of `simlib migrate`, the controls of the explorer's page and the errors are made from this list, and
`read_inputs` makes the guest and the targets. Nothing here needs NumPy, so that ``--help`` is fast.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from simlib._lib.errors import InputError
from simlib.model.quantities import PS_PER_S, parse_bandwidth, parse_duration, parse_size

MOST_VCPUS = 4096
"""KVM_MAX_VCPUS of x86 (arch/x86/include/asm/kvm_host.h), the most of any architecture."""

_MINUTES = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*min", re.ASCII)
_SHARE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(%?)", re.ASCII)


def parse_time(text: str, name: str) -> float:
    """Seconds of ``300ms`` or ``15min``.

    Raises `InputError` if the text is not a time.

    - `name`: what an error names.

    >>> parse_time("15min", "--deadline")
    900.0
    """
    if minutes := _MINUTES.fullmatch(text):
        return float(minutes[1]) * 60
    try:
        return parse_duration(text, name) / PS_PER_S
    except InputError as error:
        raise InputError(name, text, error.rule, "write 300ms, 20s or 15min") from None


def parse_share(text: str, name: str) -> float:
    """Share of ``80%`` or ``0.8``.

    Raises `InputError` if the text is not a share.

    >>> parse_share("80%", "--min-guest-speed")
    0.8
    """
    share = _SHARE.fullmatch(text)
    if share is None:
        raise InputError(name, text, "must be a share", "write 80%")
    return float(share[1]) / (100 if share[2] else 1)


def parse_whole(text: str, name: str) -> int:
    """Whole number of a string of digits.

    Raises `InputError` if the text has anything else.
    """
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
        raise InputError(name, text, "must be a whole number", "write digits only")
    return int(text)


def _vcpus(text: str, name: str) -> int:
    if not 1 <= parse_whole(text, name) <= MOST_VCPUS:
        raise InputError(name, text, f"must be from 1 to {MOST_VCPUS}", "give the number of vCPUs")
    return int(text)


def _text(text: str, name: str) -> str:
    return text


class MigrationInput(NamedTuple):
    """An input of a migration.

    - `name`: of the option, without its dashes.
    - `field`: of `RunningGuest` or `Targets`.
    - `read`: function of the text and of the name for errors, which returns the value.
    - `help`: what it is, with its unit and an example.
    - `metavar`: placeholder in the command's help.
    - `repeated`: True if it may be given several times.
    """

    name: str
    field: str
    read: Callable[[str, str], Any]
    help: str
    metavar: str = "TEXT"
    repeated: bool = False

    @property
    def option(self) -> str:
        """Name of the option."""
        return f"--{self.name}"


GUEST = (
    MigrationInput("vcpus", "vcpus", _vcpus, "Number of vCPUs.", "N"),
    MigrationInput("memory", "memory", parse_size, "All memory of the guest, e.g. 512G.", "SIZE"),
    MigrationInput(
        "dirty", "dirty", _text,
        "Dirty rate: '250000/s in 10s', distinct pages counted over a time; repeat it for other times, which narrows "
        "the answer. Or a working-set model: '200000/s over 40G, zipf', writes to a working set.", "RATE",
        repeated=True,
    ),
    MigrationInput("link", "link", parse_bandwidth, "Bandwidth of the link, e.g. 25Gbit/s.", "RATE"),
    MigrationInput("architecture", "architecture", _text,
                   "Architecture of the host. Default: QEMU's target, else x86-tdp.", "NAME"),
    MigrationInput("dirty-tracking", "dirty_tracking", _text,
                   "How KVM detects writes: write_protect; x86 also pml (default); arm64 also dbm, hdbss.", "NAME"),
    MigrationInput("chunk", "chunk", parse_size,
                   "Memory of one CLEAR: QEMU's x-clear-bitmap-shift. Default: 1G.", "SIZE"),
    MigrationInput("ring", "ring_entries", parse_whole, "QEMU's dirty-ring-size; 0: the dirty bitmap.", "N"),
    MigrationInput(
        "current", "settings", _text,
        "A migration parameter or capability already set in QEMU, e.g. downtime-limit=500, auto-converge=on. The "
        "others are those that QEMU reported, else QEMU's defaults with an unlimited max-bandwidth.", "NAME=VALUE",
        repeated=True,
    ),
)  # fmt: skip
"""Inputs that describe the guest."""

TARGETS = (
    MigrationInput("downtime-limit", "downtime_s", parse_time, "Maximum downtime, e.g. 300ms.", "TIME"),
    MigrationInput("deadline", "deadline_s", parse_time, "Maximum total migration time, e.g. 900s or 15min.", "TIME"),
    MigrationInput("min-guest-speed", "min_guest_speed", parse_share,
                   "Minimum guest throughput during migration, a mean, e.g. 80%.", "SHARE"),
    MigrationInput("max-stall", "max_stall_s", parse_time,
                   "Maximum time for which a vCPU waits at once, without the downtime, e.g. 50ms.", "TIME"),
)  # fmt: skip
"""Inputs that say what the migration should meet."""
