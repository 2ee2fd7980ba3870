# SPDX-License-Identifier: BSD-3-Clause
"""What the page about a migration asks: every value is a text, as `simlib migrate` has it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import numpy as np

from simlib._lib.errors import InputError, nearest
from simlib.model.quantities import PS_PER_S, format_size, parse_bandwidth, parse_duration, parse_size
from simlib.ui.explorer.keys import Key
from simlib.ui.explorer.state import parameters
from simlib.vmm.dirtying import DirtyRate, parse_dirty
from simlib.vmm.guest import MigratingGuest, Targets
from simlib.vmm.paste import TARGETS
from simlib.vmm.texts import parse_settings, parse_share, parse_time, parse_wishes

DRAWS = 16
"""Guests that are drawn from those that may have been measured: fewer than the command draws, as somebody waits."""

MOST_VCPUS = 4096
"""KVM_MAX_VCPUS of x86 (arch/x86/include/asm/kvm_host.h), the most of any architecture."""

MOST_RATE = 10**15
"""Pages a second, which no memory can do."""

HABITS = {
    "measured": "{distinct}/s in {over}; {more}", "alike": "{writes}/s over {working-set}",
    "zipf": "{writes}/s over {working-set}, zipf", "sweep": "{writes}/s over {working-set}, sweep",
}  # fmt: skip
"""What is known of the guest's writes: ``--dirty`` of the command, from other values by their names."""

_RATES = tuple(digit * 10**power for power in range(3, 7) for digit in (1, 2, 5))
_SIZES = tuple(format_size(2**k) for k in range(27, 44))
_OPTION = re.compile(r"(?<![\w-])--(?=[a-z])")


def _whole(text: str, name: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
        raise InputError(name, text, "must be a whole number", "write digits only")
    return int(text)


def _vcpus(text: str, name: str) -> int:
    if not 1 <= _whole(text, name) <= MOST_VCPUS:
        raise InputError(name, text, f"must be from 1 to {MOST_VCPUS}", "give the number of vCPUs")
    return int(text)


def _seconds(text: str, name: str) -> float:
    return parse_duration(text, name) / PS_PER_S


def _rate(text: str, name: str) -> float:
    cure = "write 250000, 250k or 900MiB: pages or memory a second"
    try:
        one = parse_dirty(f"{text}/s in 1s")
    except InputError:
        raise InputError(name, text, "is no rate", cure) from None
    if not isinstance(one, DirtyRate) or one.pages > MOST_RATE:
        raise InputError(name, text, f"must be at most {MOST_RATE:,}", cure)
    return one.pages


class InputRow(NamedTuple):
    """A value that is asked.

    - `first`: what a first visit shows.
    - `read`: makes a number of its text; it is given the text and the name that an error tells. None: it stays a text.
    """

    key: Key
    first: str
    read: Callable[[str, str], Any] | None = None


def _text(
    name: str, label: str, first: str, read: Callable[[str, str], Any] | None, steps: tuple[Any, ...], about: str
) -> InputRow:
    return InputRow(Key("", name, label, help=about, steps=steps), first, read)


def _choice(name: str, label: str, first: str, words: tuple[Any, ...], about: str) -> InputRow:
    return InputRow(Key("", name, label, words, about), first)


ROWS: dict[str, tuple[InputRow, ...]] = {
    "Guest": (
        _text("vcpus", "vCPUs", "64", _vcpus, tuple(2**k for k in range(11)), f"1 to {MOST_VCPUS}"),
        _text("memory", "memory", "512G", parse_size, _SIZES[3:], "such as 256G or 4T"),
        _text("link", "link", "25Gbit/s", parse_bandwidth,
              tuple(f"{rate}Gbit/s" for rate in (1, 2, 5, 10, 25, 40, 50, 100, 200, 400)),
              "what the migration may send"),
        _choice("habit", "what is known", "alike",
                (("measured: distinct pages", "measured"), ("writes, all pages alike", "alike"),
                 ("writes, some pages popular (zipf)", "zipf"), ("writes, one page after the other", "sweep")),
                "of what the guest writes"),
        _text("distinct", "distinct pages/s", "250000", _rate, _RATES, "that calc-dirty-rate counts; or 900MiB"),
        _text("over", "measured for", "10s", _seconds, ("1s", "2s", "5s", "10s", "20s", "30s", "60s"),
              "for how long they were counted"),
        _text("more", "measured, too", "", None, (), "other times, such as 400000/s in 1s; 90000/s in 60s"),
        _text("writes", "writes/s", "900000", _rate, _RATES, "of all vCPUs, each to one page"),
        _text("working-set", "working set", "40G", parse_size, _SIZES[:-3], "memory that the writes go to"),
    ),
    "What you wish": (
        _text("downtime", "downtime", "300ms", parse_time,
              ("", "50ms", "100ms", "200ms", "300ms", "500ms", "1s", "2s", "5s"), "for how long it may stand"),
        _text("within", "over within", "15min", parse_time,
              ("", "1min", "2min", "5min", "10min", "15min", "30min", "60min"), "when it is to be over"),
        _text("guest-keeps", "guest keeps", "80%", parse_share,
              ("", *(f"{share}%" for share in range(10, 100, 10)), "95%"), "share of its work that it still does"),
        _text("max-stall", "longest wait", "", parse_time,
              ("", "2ms", "5ms", "10ms", "20ms", "50ms", "100ms", "200ms", "500ms", "1s"),
              "of a vCPU at once, the downtime aside"),
    ),
    "QEMU's settings that stand": (
        _text("downtime-limit", "downtime, ms", "300", _whole, (50, 100, 200, 300, 500, 1000, 2000, 5000),
              "QEMU's downtime-limit"),
        _choice("auto-converge", "auto-converge", "off", ("off", "on"), "throttle vCPUs if the guest dirties too fast"),
        _text("max-cpu-throttle", "max throttle, %", "99", _whole, (20, 30, 40, 50, 60, 70, 80, 90, 99),
              "QEMU's max-cpu-throttle"),
    ),
    "Paste": (
        _choice("for", "paste into", "virsh", tuple(sorted(TARGETS["qemu"], reverse=True)), "what takes the settings"),
    ),
}  # fmt: skip
"""All that is asked, by its heading."""

GUEST, WISHES, SETTINGS, _ = ROWS
BY_NAME = {row.key.name: row for rows in ROWS.values() for row in rows}


def number(name: str, text: str) -> Any:
    """What the text of a value says; None of an empty wish, and of what stays a text.

    Raises `InputError` if it cannot be read.

    >>> number("within", "15min"), number("memory", "2G"), number("within", "")
    (900.0, 2147483648, None)
    """
    read = BY_NAME[name].read
    return read(text, name) if read else None


@dataclass(frozen=True)
class MigrationState:
    """What the page about a migration asks. Two states are equal if all of their texts are.

    - `texts`: by the names of `BY_NAME`; what is missing is a first visit's.

    >>> state = MigrationState({"vcpus": "128", "habit": "zipf"})
    >>> state.query, state.guest.vcpus, state.dirty
    ('page=migration&vcpus=128&habit=zipf', 128, ['900000/s over 40G, zipf'])
    """

    texts: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what breaks a rule, in the words of the command, whose options are the page's controls."""
        for name, text in self.texts.items():
            row = BY_NAME.get(name)
            if row is None:
                raise InputError(name, text, "unknown parameter", nearest(name, BY_NAME))
            words = [word[1] if isinstance(word, tuple) else word for word in row.key.words]
            if words and text not in words:
                raise InputError(name, text, "must be one of these", nearest(text, words))
        texts = {name: self.texts.get(name, row.first).strip() for name, row in BY_NAME.items()}
        object.__setattr__(self, "texts", texts)
        for name, text in texts.items():
            if self.matters(name):
                number(name, text)
        try:
            self.guest.drawn(np.random.default_rng(1))  # what was measured may contradict itself, or the memory
            _ = self.wishes
        except InputError as error:
            where, cure = (_OPTION.sub("", text) for text in (error.flag or error.what, error.cure))
            raise InputError(where, error.value, error.rule, cure) from None

    @classmethod
    def first(cls) -> MigrationState:
        """What a first visit shows: a guest that converges only if it is throttled a little."""
        return cls()

    def changed(self, **texts: str) -> MigrationState:
        """The state with some texts replaced; ``_`` stands for ``-`` in their names.

        >>> MigrationState().changed(guest_keeps="90%").wishes.guest_keeps
        0.9
        """
        return MigrationState({**self.texts, **{name.replace("_", "-"): text for name, text in texts.items()}})

    def matters(self, name: str) -> bool:
        """Whether a value counts for what is known of the guest's writes.

        >>> MigrationState().matters("writes"), MigrationState().matters("distinct")
        (True, False)
        """
        mark = f"{{{name}}}"
        return mark in HABITS[self.texts["habit"]] or not any(mark in habit for habit in HABITS.values())

    @property
    def dirty(self) -> list[str]:
        """What is known of the guest's writes, as ``--dirty`` has it."""
        told = HABITS[self.texts["habit"]].format_map(self.texts)
        return [one.strip() for one in told.split(";") if one.strip()]

    @cached_property
    def guest(self) -> MigratingGuest:
        """Whose migration is asked about."""
        given = {name: number(name, self.texts[name]) for name in ("vcpus", "memory", "link")}
        dirty = tuple(parse_dirty(one) for one in self.dirty)
        return MigratingGuest(**given, dirty=dirty, settings=parse_settings(self._settings()))

    @cached_property
    def wishes(self) -> Targets:
        """What is wished."""
        return parse_wishes(**{row.key.name.replace("-", "_"): self.texts[row.key.name] for row in ROWS[WISHES]})

    def _settings(self) -> list[str]:
        return [f"{row.key.name}={self.texts[row.key.name]}" for row in ROWS[SETTINGS]]

    @property
    def query(self) -> str:
        """The state as the query of a URL: what differs from a first visit."""
        rows = [(name, text) for name, text in self.texts.items() if text != BY_NAME[name].first]
        return urlencode([("page", "migration"), *rows], quote_via=quote, safe="/,()[]")

    @classmethod
    def from_query(cls, query: str) -> MigrationState:
        """The state that a URL's query says; what it does not say is a first visit's.

        Raises `InputError` if a parameter is unknown or a value breaks its rule.

        >>> asked = MigrationState({"within": "", "vcpus": "8"})
        >>> MigrationState.from_query(asked.query) == asked
        True
        """
        return cls({name: text for name, text in parameters(query, blank=True) if name != "page"})

    @property
    def command(self) -> str:
        """The command that says the same."""
        options = {name: self.texts[name] for name in ("vcpus", "memory", "link")}
        options |= {row.key.name: self.texts[row.key.name] for row in ROWS[WISHES] if self.texts[row.key.name]}
        words = [word for name, text in options.items() for word in (f"--{name}", text)]
        words += [word for text in self.dirty for word in ("--dirty", text)]
        words += [word for text in self._settings() for word in ("--set", text)]
        return shlex.join(["simlib", "migrate", *words, "--for", self.texts["for"], "--draws", str(DRAWS)])
