# SPDX-License-Identifier: BSD-3-Clause
"""State of the page about a migration: a string for each input of `simlib.vmm.inputs`, as on the command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import quote, urlencode

from simlib._lib.errors import InputError, nearest
from simlib.model.quantities import format_size, parse_size
from simlib.ui.explorer.state import Key, parameters
from simlib.vmm import inputs
from simlib.vmm.dirtying import DirtyRate, parse_dirty
from simlib.vmm.guest import RunningGuest
from simlib.vmm.inputs import MigrationInput, parse_time, parse_whole
from simlib.vmm.paste import FORMATS
from simlib.vmm.read_inputs import read_options, read_targets
from simlib.vmm.targets import Targets

DRAWS = 16  # number of sampled working sets; the command samples more, but here a user waits
MAX_RATE = 10**15  # maximum dirty rate, pages/s: no memory is that fast
PATTERNS = {
    "measured": "{distinct}/s in {over}; {more}", "uniform": "{writes}/s over {working-set}",
    "zipf": "{writes}/s over {working-set}, zipf", "sweep": "{writes}/s over {working-set}, sweep",
}  # fmt: skip
"""Templates of ``--dirty`` by what is known about the writes; a name in braces is replaced by that control's value."""

CURRENT = "current-"  # prefix of the names of QEMU's current settings
_RATES = tuple(digit * 10**power for power in range(3, 7) for digit in (1, 2, 5))
_SIZES = tuple(format_size(2**k) for k in range(27, 44))
_OPTION = re.compile(r"(?<![\w-])--(?=[a-z])")


def _rate(text: str, name: str) -> float:
    hint = "write pages per second, such as 250000 or 250k, or memory per second, such as 900MiB"
    try:
        rate = parse_dirty(f"{text}/s in 1s")
    except InputError:
        raise InputError(name, text, "must be a rate", hint) from None
    if not isinstance(rate, DirtyRate) or rate.pages > MAX_RATE:
        raise InputError(name, text, f"must be at most {MAX_RATE:,} pages/s", hint)
    return rate.pages


def _row(
    name: str, label: str, first: str, read: Callable[[str, str], Any] | None, steps: tuple[Any, ...], about: str
) -> Key:
    return Key("", name, label, help=about, steps=steps, first=first, read=read)


def _input(declared: MigrationInput, label: str, first: str, steps: tuple[Any, ...]) -> Key:
    """Return the control of an input that is also an option of the command."""
    return _row(declared.name, label, first, declared.read, steps, declared.help)


def _choice(name: str, label: str, first: str, words: tuple[Any, ...], about: str) -> Key:
    return Key("", name, label, words, about, first=first)


_VCPUS, _MEMORY, _LINK = (item for item in inputs.GUEST if item.name in ("vcpus", "memory", "link"))
_DOWNTIME, _DEADLINE, _SPEED, _STALL = inputs.TARGETS

ROWS: dict[str, tuple[Key, ...]] = {
    "Guest": (
        _input(_VCPUS, "vCPUs", "64", tuple(2**k for k in range(11))),
        _input(_MEMORY, "memory", "512G", _SIZES[3:]),
        _input(_LINK, "link", "25Gbit/s",
               tuple(f"{rate}Gbit/s" for rate in (1, 2, 5, 10, 25, 40, 50, 100, 200, 400))),
        _choice("writes-known", "writes given as", "uniform",
                (("measured: distinct pages", "measured"), ("writes, uniform over the pages", "uniform"),
                 ("writes, Zipf-distributed", "zipf"), ("writes, pages in order", "sweep")),
                "what is known about the guest's writes"),
        _row("distinct", "distinct pages/s", "250000", _rate, _RATES, "distinct 4 KiB pages, or memory such as 900MiB"),
        _row("over", "measured for", "10s", parse_time, ("1s", "2s", "5s", "10s", "20s", "30s", "60s"),
             "time over which distinct pages were counted"),
        _row("more", "also measured", "", None, (), "rates over other times, e.g. 400000/s in 1s; 90000/s in 60s"),
        _row("writes", "writes/s", "900000", _rate, _RATES, "total of all vCPUs; each writes one page"),
        _row("working-set", "working set", "40G", parse_size, _SIZES[:-3], "memory to which the guest writes"),
    ),
    "Targets": (
        _input(_DOWNTIME, "downtime limit", "300ms",
               ("", "50ms", "100ms", "200ms", "300ms", "500ms", "1s", "2s", "5s")),
        _input(_DEADLINE, "deadline", "15min", ("", "1min", "2min", "5min", "10min", "15min", "30min", "60min")),
        _input(_SPEED, "guest speed", "80%", ("", *(f"{share}%" for share in range(10, 100, 10)), "95%")),
        _input(_STALL, "longest stall", "",
               ("", "2ms", "5ms", "10ms", "20ms", "50ms", "100ms", "200ms", "500ms", "1s")),
    ),
    "QEMU's current settings": (
        _row(f"{CURRENT}downtime-limit", "downtime, ms", "300", parse_whole,
             (50, 100, 200, 300, 500, 1000, 2000, 5000), "migration parameter downtime-limit"),
        _choice(f"{CURRENT}auto-converge", "auto-converge", "off", ("off", "on"),
                "throttle vCPUs if the guest dirties memory too fast"),
        _row(f"{CURRENT}max-cpu-throttle", "max. throttle, %", "99", parse_whole,
             (20, 30, 40, 50, 60, 70, 80, 90, 99), "migration parameter max-cpu-throttle"),
    ),
    "Paste": (
        _choice("emit", "paste into", "virsh", tuple(sorted(FORMATS["qemu"], reverse=True)), "output format"),
    ),
}  # fmt: skip
"""All controls by heading."""

GUEST, TARGETS, SETTINGS, _ = ROWS
BY_NAME = {key.name: key for keys in ROWS.values() for key in keys}


def number(name: str, text: str) -> Any:
    """Return the value of a control's string; None for an empty target, and if the control has no parser.

    Raises `InputError` if it breaks a rule.

    >>> number("memory", "4G"), number("deadline", ""), number("min-guest-speed", "80%")
    (4294967296, None, 0.8)
    """
    read, required = BY_NAME[name].read, name not in {item.name for item in inputs.TARGETS}
    return read(text, name) if read is not None and (text or required) else None


@dataclass(frozen=True)
class MigrationState:
    """State of the page about a migration. Two states are equal if all of their strings are.

    - `texts`: strings by the names of `BY_NAME`; the defaults are those of the first visit, whose guest converges only
      if QEMU throttles it a little.

    >>> state = MigrationState({"vcpus": "128", "writes-known": "zipf"})
    >>> state.query, state.guest.vcpus, state.dirty
    ('page=migration&vcpus=128&writes-known=zipf', 128, ['900000/s over 40G, zipf'])
    """

    texts: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the rules; errors name the controls instead of the command's options."""
        for name, text in self.texts.items():
            key = BY_NAME.get(name)
            if key is None:
                raise InputError(name, text, "unknown parameter", nearest(name, BY_NAME))
            words = [word[1] if isinstance(word, tuple) else word for word in key.words]
            if words and text not in words:
                raise InputError(name, text, "must be a listed value", nearest(text, words))
        texts = {name: self.texts.get(name, key.first).strip() for name, key in BY_NAME.items()}
        object.__setattr__(self, "texts", texts)
        for name, text in texts.items():
            if self.matters(name):
                number(name, text)
        try:
            self.guest.samples(1)  # measurements may contradict each other, or the memory
            _ = self.targets
        except InputError as error:
            where, hint = (_OPTION.sub("", text) for text in (error.flag or error.what, error.hint))
            raise InputError(where, error.value, error.rule, hint) from None

    def changed(self, **texts: str) -> MigrationState:
        """Return the state with some strings replaced; write ``_`` for ``-`` in their names.

        >>> MigrationState().changed(min_guest_speed="90%").targets.min_guest_speed
        0.9
        """
        return MigrationState({**self.texts, **{name.replace("_", "-"): text for name, text in texts.items()}})

    def matters(self, name: str) -> bool:
        """True if a control applies to what is known about the guest's writes.

        >>> MigrationState().matters("writes"), MigrationState().matters("distinct")
        (True, False)
        """
        mark = f"{{{name}}}"
        used = mark in PATTERNS[self.texts["writes-known"]]
        return used or not any(mark in pattern for pattern in PATTERNS.values())

    @property
    def dirty(self) -> list[str]:
        """Dirty rates or working-set model, as values of ``--dirty``."""
        rates = PATTERNS[self.texts["writes-known"]].format_map(self.texts)
        return [rate.strip() for rate in rates.split(";") if rate.strip()]

    @cached_property
    def guest(self) -> RunningGuest:
        """The guest that the strings describe."""
        texts = {name: self.texts[name] for name in ("vcpus", "memory", "link")}
        return read_options({**texts, "dirty": self.dirty, "current": self._settings()})

    @cached_property
    def targets(self) -> Targets:
        """The targets."""
        return read_targets(self.texts)

    def _settings(self) -> list[str]:
        return [f"{key.name.removeprefix(CURRENT)}={self.texts[key.name]}" for key in ROWS[SETTINGS]]

    @property
    def query(self) -> str:
        """The state as the query of a URL: the strings that differ from those of the first visit."""
        rows = [(name, text) for name, text in self.texts.items() if text != BY_NAME[name].first]
        return urlencode([("page", "migration"), *rows], quote_via=quote, safe="/,()[]")

    @classmethod
    def from_query(cls, query: str) -> MigrationState:
        """Return the state of a URL's query; raises `InputError` if a parameter is unknown or breaks its rule.

        >>> state = MigrationState({"deadline": "", "vcpus": "8"})
        >>> MigrationState.from_query(state.query) == state
        True
        """
        return cls({name: text for name, text in parameters(query, blank=True) if name != "page"})

    @property
    def command(self) -> str:
        """The command that gives the same answer."""
        options = {name: self.texts[name] for name in ("vcpus", "memory", "link")}
        options |= {item.name: self.texts[item.name] for item in inputs.TARGETS if self.texts[item.name]}
        words = [word for name, text in options.items() for word in (f"--{name}", text)]
        words += [word for text in self.dirty for word in ("--dirty", text)]
        words += [word for text in self._settings() for word in ("--current", text)]
        return shlex.join(["simlib", "migrate", *words, "--emit", self.texts["emit"], "--draws", str(DRAWS)])
