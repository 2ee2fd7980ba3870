# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of a migration, each declared once: its name, its help and its parser.

The options of `simlib migrate`, the controls of the explorer's page and the errors come from this list; `read_inputs`
creates the guest and the targets from it. This module does not import NumPy, so that ``--help`` is fast.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from simlib._lib.errors import InputError
from simlib.model.quantities import PS_PER_S, parse_bandwidth, parse_duration, parse_size

MOST_VCPUS = 4096
"""Largest KVM_MAX_VCPUS of x86 (arch/x86/kvm/Kconfig KVM_MAX_NR_VCPUS), and of all architectures."""

_MINUTES = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*min", re.ASCII)
_SHARE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(%?)", re.ASCII)


def parse_time(text: str, name: str) -> float:
    """Parse a time such as ``300ms`` or ``15min``, to seconds.

    Raises `InputError` if the string is not a time.

    - `name`: name of the value in an error.

    >>> parse_time("15min", "--deadline")
    900.0
    """
    if minutes := _MINUTES.fullmatch(text):
        return float(minutes[1]) * 60
    try:
        return parse_duration(text, name) / PS_PER_S
    except InputError as error:
        raise InputError(name, text, error.rule, "such as 300ms, 20s or 15min") from None


def parse_share(text: str, name: str) -> float:
    """Parse a share such as ``80%`` or ``0.8``.

    Raises `InputError` if the string is not a share.

    >>> parse_share("80%", "--min-guest-speed")
    0.8
    """
    share = _SHARE.fullmatch(text)
    if share is None:
        raise InputError(name, text, "must be a share such as 80% or 0.8")
    return float(share[1]) / (100 if share[2] else 1)


def parse_version(text: str, name: str) -> tuple[int, int]:
    """Parse a version such as ``7.2`` or ``10.0.2``, to its first two numbers.

    Raises `InputError` if the string is not a version.

    >>> parse_version("10.0.2", "--qemu")
    (10, 0)
    """
    numbers = re.match(r"(\d{1,3})\.(\d{1,3})(?![0-9])", text, re.ASCII)
    if numbers is None:
        raise InputError(name, text, "must be a version of QEMU", "such as 7.2")
    return int(numbers[1]), int(numbers[2])


def parse_whole(text: str, name: str) -> int:
    """Parse a whole number.

    Raises `InputError` if the string contains anything but digits.
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

    - `name`: name of the option, without its dashes.
    - `field`: the field of `RunningGuest` or `Targets` that it sets.
    - `read`: function from the string, and the name for errors, to the value.
    - `help`: description, with its unit and an example.
    - `metavar`: placeholder in the command's help.
    - `repeated`: True if the option may be given several times.
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
    MigrationInput("vcpus", "vcpus", _vcpus, "Number of vCPUs of the guest.", "N"),
    MigrationInput("memory", "memory", parse_size, "Total memory of the guest, e.g. 512G.", "SIZE"),
    MigrationInput(
        "dirty", "dirty", _text,
        "Measured dirty rate (distinct pages) and its calc-time, e.g. '250000/s in 10s', '25MB/s in 60s' or "
        "'200Mbit/s in 1s'; repeat the option for other calc-times to narrow the answer. "
        "Or a model: rate of writes and working set, e.g. '200000/s over 40G, zipf'.",
        "RATE", True,
    ),
    MigrationInput("link", "link", parse_bandwidth, "Bandwidth available to the migration, e.g. 25Gbit/s.", "RATE"),
    MigrationInput("cpu", "cpu", parse_share,
                   "Mean CPU use of a vCPU, e.g. 20%. A guest with idle CPU time catches up while it is throttled.",
                   "SHARE"),
    MigrationInput("resident", "resident", parse_size,
                   "Memory of the VMM's process that has contents, e.g. 30G: rss of virsh dommemstat, plus swap and "
                   "huge pages (hugetlbfs), which it does not count. The remainder are zeros, which are not sent.",
                   "SIZE"),
    MigrationInput("channel", "channel", parse_bandwidth,
                   "Measured throughput of one migration stream or multifd channel, e.g. 5.2Gbit/s.", "RATE"),
    MigrationInput("qemu", "version", parse_version,
                   "Version of QEMU, e.g. 7.2. Before 9.2, QEMU throttles only at the end of a pass.", "VERSION"),
    MigrationInput("architecture", "architecture", _text,
                   "Architecture of the host (see docs/scenario.md). Default: as QEMU reports, or x86-tdp.", "NAME"),
    MigrationInput("dirty-tracking", "dirty_tracking", _text,
                   "How KVM tracks dirty pages: pml (default) or write_protect on x86 with EPT or NPT; write_protect "
                   "(default), dbm or hdbss on arm64; write_protect elsewhere.", "NAME"),
    MigrationInput("chunk", "chunk", parse_size,
                   "Memory that one CLEAR covers, e.g. 256M (QEMU's x-clear-bitmap-shift). Default: 1G.", "SIZE"),
    MigrationInput("ring", "ring_entries", parse_whole,
                   "Entries of a dirty ring (QEMU's dirty-ring-size). Default: 0, that is, the dirty bitmap.", "N"),
    MigrationInput(
        "current", "settings", _text,
        "Current value of a migration parameter or capability, e.g. downtime-limit=500; may be repeated. Default: the "
        "values that QEMU reports, or QEMU's defaults with an unlimited max-bandwidth.",
        "NAME=VALUE", True,
    ),
)  # fmt: skip
"""Inputs that describe the guest."""

TARGETS = (
    MigrationInput("downtime-limit", "downtime_s", parse_time, "Target: maximum downtime, e.g. 300ms.", "TIME"),
    MigrationInput("deadline", "deadline_s", parse_time, "Target: maximum total migration time, e.g. 15min.", "TIME"),
    MigrationInput("min-guest-speed", "min_guest_speed", parse_share,
                   "Target: minimum mean guest throughput, relative to an undisturbed guest, e.g. 80%.", "SHARE"),
    MigrationInput("max-stall", "max_stall_s", parse_time,
                   "Target: longest stall of a vCPU, not counting the downtime, e.g. 50ms.", "TIME"),
)  # fmt: skip
"""Inputs that set bounds for the migration."""
