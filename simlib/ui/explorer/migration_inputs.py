# SPDX-License-Identifier: BSD-3-Clause
"""Controls of the page about a migration, derived from the inputs of ``simlib migrate`` (`simlib.vmm.inputs`).

Every declared input has a control. `LOOKS` adds labels, values of the first visit and sliders; `PARTS` lists the inputs
that have several controls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields
from typing import Any, NamedTuple

from simlib._lib.errors import InputError
from simlib.model.architectures import ARCHITECTURES
from simlib.model.quantities import format_size, parse_size
from simlib.ui.explorer.state import Key
from simlib.vmm.dirtying import DirtyRate, parse_dirty
from simlib.vmm.inputs import GUEST, TARGETS, MigrationInput, parse_time, parse_whole
from simlib.vmm.paste import FORMATS
from simlib.vmm.settings import Settings

MAX_RATE = 10**15  # maximum dirty rate, pages/s: no memory is that fast
CURRENT = "current-"  # prefix of the names of QEMU's current settings
KNOWN = "log"  # value of "writes given as" by which the dirty rates of a pasted log apply
NOT_GIVEN = ("not given", "")  # first word of a list from which nothing needs to be chosen

PATTERNS = {
    KNOWN: "{more}", "measured": "{distinct}/s in {over}; {more}", "uniform": "{writes}/s over {working-set}",
    "zipf": "{writes}/s over {working-set}, zipf", "sweep": "{writes}/s over {working-set}, sweep",
}  # fmt: skip
"""Templates of ``--dirty`` by what is known about the writes; a name in braces is replaced by that control's value."""

VMM_OF = {name: vmm for vmm, formats in FORMATS.items() for name in formats}
"""VMM of each output format."""

_RATES = tuple(digit * 10**power for power in range(3, 7) for digit in (1, 2, 5))
_SIZES = tuple(format_size(2**k) for k in range(27, 44))
_LINKS = tuple(f"{rate}Gbit/s" for rate in (1, 2, 5, 10, 25, 40, 50, 100, 200, 400))
_SHARES = tuple(f"{share}%" for share in range(10, 100, 10))
_TRACKING = tuple(sorted({name for facts in ARCHITECTURES.values() for name in facts.dirty_tracking}))


def _rate(text: str, name: str) -> float:
    hint = "write pages per second, such as 250000 or 250k, or memory per second, such as 900MiB"
    try:
        rate = parse_dirty(f"{text}/s in 1s")
    except InputError:
        raise InputError(name, text, "must be a rate", hint) from None
    if not isinstance(rate, DirtyRate) or rate.pages > MAX_RATE:
        raise InputError(name, text, f"must be at most {MAX_RATE:,} pages/s", hint)
    return rate.pages


class Look(NamedTuple):
    """Look of an input's control.

    - `label`: its label. `first`: its string on the first visit; empty: not given.
    - `steps`: values of its slider; empty: it has none. `words`: values of its list; empty: it is a text field.
    """

    label: str
    first: str = ""
    steps: tuple[Any, ...] = ()
    words: tuple[Any, ...] = ()


LOOKS: Mapping[str, Look] = {
    "vcpus": Look("vCPUs", "64", tuple(2**k for k in range(11))),
    "memory": Look("memory", "512G", _SIZES[3:]),
    "link": Look("link", "25Gbit/s", _LINKS),
    "cpu": Look("CPU use", "", ("", *_SHARES, "100%")),
    "resident": Look("resident memory", "", ("", *_SIZES)),
    "channel": Look("one channel", "", ("", *_LINKS[:-2])),
    "qemu": Look("QEMU version"),
    "architecture": Look("architecture", words=(NOT_GIVEN, *sorted(ARCHITECTURES))),
    "dirty-tracking": Look("dirty tracking", words=(NOT_GIVEN, *_TRACKING)),
    "chunk": Look("chunk of a CLEAR", "", ("", *(format_size(2**k) for k in range(21, 35)))),
    "ring": Look("dirty ring entries", "", ("", *(2**k for k in range(7, 17)))),
    "downtime-limit": Look("downtime limit", "300ms",
                           ("", "50ms", "100ms", "200ms", "300ms", "500ms", "1s", "2s", "5s")),
    "deadline": Look("deadline", "15min", ("", "1min", "2min", "5min", "10min", "15min", "30min", "60min")),
    "min-guest-speed": Look("guest speed", "80%", ("", *_SHARES, "95%")),
    "max-stall": Look("longest stall", "",
                      ("", "2ms", "5ms", "10ms", "20ms", "50ms", "100ms", "200ms", "500ms", "1s")),
}  # fmt: skip
"""Looks by the names of inputs; an input that is not listed has a text field with its own name as the label."""


def control(declared: MigrationInput) -> Key:
    """Return the control of an input that has one.

    >>> control(MigrationInput("numa-nodes", "numa_nodes", parse_whole, "Number of NUMA nodes."))[1:3]
    ('numa-nodes', 'numa nodes')
    """
    look = LOOKS.get(declared.name, Look(declared.name.replace("-", " ")))
    return Key("", declared.name, look.label, look.words, declared.help, look.steps, look.first, declared.read)


def _setting(item: Field[Any]) -> Key:
    """Return the control of a migration parameter or capability; its label is QEMU's name."""
    name, about = item.name.replace("_", "-"), str(item.metadata["about"])
    words = (NOT_GIVEN, "off", "on") if isinstance(item.default, bool) else ()
    return Key("", f"{CURRENT}{name}", name, words, about, read=None if words else parse_whole, label_px=190)


def _row(
    name: str, label: str, first: str, read: Callable[[str, str], Any] | None, steps: tuple[Any, ...], about: str
) -> Key:
    return Key("", name, label, help=about, steps=steps, first=first, read=read)


PARTS: Mapping[str, tuple[Key, ...]] = {
    "dirty": (
        Key("", "writes-known", "writes given as",
            (("measured: distinct pages", "measured"), ("writes, uniform over the pages", "uniform"),
             ("writes, Zipf-distributed", "zipf"), ("writes, pages in order", "sweep"), ("as in the log", KNOWN)),
            "what is known about the guest's writes", first="uniform"),
        _row("distinct", "distinct pages/s", "250000", _rate, _RATES, "distinct 4 KiB pages, or memory such as 900MiB"),
        _row("over", "measured for", "10s", parse_time, ("1s", "2s", "5s", "10s", "20s", "30s", "60s"),
             "time over which distinct pages were counted"),
        _row("more", "also measured", "", None, (), "rates over other times, e.g. 400000/s in 1s; 90000/s in 60s"),
        _row("writes", "writes/s", "900000", _rate, _RATES, "total of all vCPUs; each writes one page"),
        _row("working-set", "working set", "40G", parse_size, _SIZES[:-3], "memory to which the guest writes"),
    ),
    "current": tuple(_setting(item) for item in fields(Settings)),
}  # fmt: skip
"""Controls of the inputs that are built from several strings."""

_MAIN = ("vcpus", "memory", "link", "dirty")
"""Inputs that are always shown; the other inputs of the guest are in a collapsible section."""

GUEST_PART, TARGETS_PART, MORE_PART, SETTINGS_PART, EMIT_PART = (
    "Guest", "Targets", "More about the guest", "QEMU's current settings", "Paste"
)  # fmt: skip


def rows(guest: Sequence[MigrationInput] = GUEST, targets: Sequence[MigrationInput] = TARGETS) -> dict[str, list[Key]]:
    """Return the controls of declared inputs, by heading.

    >>> added = MigrationInput("numa-nodes", "numa_nodes", parse_whole, "Number of NUMA nodes.")
    >>> rows((*GUEST, added))["More about the guest"][-1].label
    'numa nodes'
    """

    def of(inputs: Sequence[MigrationInput]) -> list[Key]:
        return [key for item in inputs for key in PARTS.get(item.name) or (control(item),)]

    main = sorted((item for item in guest if item.name in _MAIN), key=lambda item: _MAIN.index(item.name))
    others = [item for item in guest if item.name not in (*_MAIN, "current")]
    emit = Key("", "emit", "paste into", tuple(sorted(VMM_OF, reverse=True)), "output format", first="virsh")
    return {
        GUEST_PART: of(main), TARGETS_PART: of(targets), MORE_PART: of(others), SETTINGS_PART: [*PARTS["current"]],
        EMIT_PART: [emit],
    }  # fmt: skip


ROWS = rows()
BY_NAME = {key.name: key for keys in ROWS.values() for key in keys}
"""All controls by name."""

OPTIONAL = {name for name, key in BY_NAME.items() if not key.first} | {item.name for item in (*GUEST, *TARGETS)}
"""Names of the controls that may be empty: the log may give the value, and a target sets no bound."""


def number(name: str, text: str) -> Any:
    """Return the value of a control's string; None for an empty string, and if the control has no parser.

    Raises `InputError` if it breaks a rule.

    >>> number("memory", "4G"), number("deadline", ""), number("min-guest-speed", "80%")
    (4294967296, None, 0.8)
    """
    read = BY_NAME[name].read
    return read(text, name) if read is not None and (text or name not in OPTIONAL) else None
