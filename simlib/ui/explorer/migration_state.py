# SPDX-License-Identifier: BSD-3-Clause
"""State of the page about a migration: strings as on the command line, and a pasted log."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any
from urllib.parse import quote, urlencode

from simlib._lib.errors import InputError, nearest
from simlib.model.quantities import parse_bandwidth, parse_size, size_text
from simlib.ui.explorer.migration_inputs import BY_NAME, CURRENT, KNOWN, PARTS, PATTERNS, VMM_OF, number
from simlib.ui.explorer.pasted_log import checked_log, pack, unpack
from simlib.ui.explorer.state import parameters
from simlib.vmm.guest import RunningGuest
from simlib.vmm.inputs import GUEST, TARGETS, parse_share, parse_version
from simlib.vmm.read_guest import parse_guest
from simlib.vmm.read_inputs import read_options, read_targets
from simlib.vmm.targets import Targets

DRAWS = 16  # number of sampled working sets; the command samples more, but here a user waits
LOG_FILE = "log.txt"  # name of the saved log, which the page's command reads
_OPTION, _NAMED = re.compile(r"(?<![\w-])--(?=[a-z])"), re.compile(r"(?<![\w-])--[a-z-]+ ")
"""The dashes of an option in a hint for the command, and an option with its name."""


@lru_cache(maxsize=4)
def known_guest(log: str) -> RunningGuest:
    """Return the guest that a log describes; of an empty log, one of which nothing is known.

    Raises `InputError` if nothing in the log is recognised, or a value is impossible.
    """
    return parse_guest(log, "log") if log else RunningGuest()


def first_texts(log: str) -> dict[str, str]:
    """Return the strings of the first visit; with a log, those of the guest are empty.

    >>> first_texts("")["vcpus"], first_texts("a log")["vcpus"], first_texts("a log")["deadline"]
    ('64', '', '15min')
    """
    texts = {name: key.first for name, key in BY_NAME.items()}
    if log:
        texts |= {item.name: "" for item in GUEST if item.name in texts} | {"writes-known": KNOWN}
    return texts


@dataclass(frozen=True)
class MigrationState:
    """State of the page about a migration. Two states are equal if all of their strings are.

    - `texts`: strings by the names of `BY_NAME`; the defaults are those of `first_texts`, whose guest converges only if
      QEMU throttles it a little.
    - `log`: log of a migration, or QEMU's replies; a value that it gives applies where the string is empty.

    >>> state = MigrationState({"vcpus": "128", "writes-known": "zipf"})
    >>> state.query, state.guest.vcpus, state.dirty
    ('page=migration&vcpus=128&writes-known=zipf', 128, ['900000/s over 40G, zipf'])
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    log: str = ""

    def __post_init__(self) -> None:
        """Check the rules; errors name the controls instead of the command's options."""
        for name, text in self.texts.items():
            key = BY_NAME.get(name)
            if key is None:
                raise InputError(name, text, "unknown parameter", nearest(name, BY_NAME))
            words = [word[1] if isinstance(word, tuple) else word for word in key.words]
            if words and text not in words:
                raise InputError(name, text, "must be a listed value", nearest(text, filter(None, words)))
        object.__setattr__(self, "log", checked_log(self.log))
        texts = {name: self.texts.get(name, first).strip() for name, first in first_texts(self.log).items()}
        object.__setattr__(self, "texts", texts)
        for name, text in texts.items():
            if self.matters(name):
                number(name, text)
        try:
            if self.missing is None:
                self.guest.samples(1)  # a rate may have more pages than the memory
            _ = self.targets
        except InputError as error:
            raise _of_page(error) from None

    def changed(self, **texts: str) -> MigrationState:
        """Return the state with some strings replaced; write ``_`` for ``-`` in their names.

        >>> MigrationState().changed(min_guest_speed="90%").targets.min_guest_speed
        0.9
        """
        named = {name.replace("_", "-"): text for name, text in texts.items()}
        return MigrationState({**self.texts, **named}, self.log)

    def with_log(self, log: str) -> MigrationState:
        """Return the state with another log: its values replace strings, as do those of the first visit their own.

        Raises `InputError` if the log cannot be read.
        """
        log = checked_log(log)
        known, old, new = known_guest(log), first_texts(self.log), first_texts(log)
        given = {item.name for item in GUEST if item.name in new and _is_known(known, item.field)}
        given |= {f"{CURRENT}{name}" for name in known.settings.changes_from(RunningGuest().settings)}
        given |= {"writes-known"} if known.dirty else set()
        texts = {name: new[name] if name in given or text == old[name] else text for name, text in self.texts.items()}
        return MigrationState(texts | ({"emit": known.emit} if known.emit else {}), log)

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

    @property
    def _settings(self) -> list[str]:
        texts = {key.name.removeprefix(CURRENT): self.texts[key.name] for key in PARTS["current"]}
        return [f"{name}={text}" for name, text in texts.items() if text]

    @cached_property
    def options(self) -> dict[str, str | list[str]]:
        """Strings by the names of the inputs in `simlib.vmm.inputs`, without those that are empty.

        >>> MigrationState().changed(cpu="20%", deadline="", current_multifd="on").options
        {'vcpus': '64', 'memory': '512G', 'dirty': ['900000/s over 40G'], 'link': '25Gbit/s', 'cpu': '20%',
         'current': ['multifd=on'], 'downtime-limit': '300ms', 'min-guest-speed': '80%'}
        """
        several = {"dirty": self.dirty, "current": self._settings}
        options: dict[str, str | list[str]] = {}
        for item in (*GUEST, *TARGETS):
            text = several[item.name] if item.name in several else self.texts[item.name]
            options[item.name] = [text] if item.repeated and isinstance(text, str) and text else text
        return {name: text for name, text in options.items() if text}

    @cached_property
    def known(self) -> RunningGuest:
        """The guest that the log describes."""
        return known_guest(self.log)

    @cached_property
    def guest(self) -> RunningGuest:
        """The guest that the log and the strings describe."""
        return replace(read_options(self.options, self.known), vmm=VMM_OF[self.texts["emit"]])

    @cached_property
    def targets(self) -> Targets:
        """The targets."""
        texts = {item.name: self.texts[item.name] for item in TARGETS}
        return read_targets(texts)

    @cached_property
    def missing(self) -> InputError | None:
        """Error about the first value without which nothing can be simulated; None if there is none."""
        known = {"vcpus": self.guest.vcpus, "memory": self.guest.memory, "link": self.guest.link,
                 "dirty": self.guest.written}  # fmt: skip
        try:
            self.guest.check_complete()
        except InputError as error:
            if known.get(error.what, True):
                raise
            rule = "is not in the log" if self.log else "must be given"
            return InputError(error.what, "not known", rule, _NAMED.sub("", error.hint))
        return None

    def known_text(self, name: str) -> str:
        """Value that holds if a control is empty, for people; an empty string if there is none.

        >>> MigrationState().known_text("current-downtime-limit"), MigrationState().known_text("chunk")
        ('300', '1 GiB')
        """
        if name.startswith(CURRENT):
            value = getattr(self.known.settings, name.removeprefix(CURRENT).replace("-", "_"))
            return ("off", "on")[value] if isinstance(value, bool) else str(value)
        declared = next((item for item in GUEST if item.name == name), None)
        value = getattr(self.known, declared.field) if declared is not None else ""
        return _SHOWN.get(BY_NAME[name].read, str)(value) if value else ""

    def value(self, name: str) -> Any:
        """Value of a control, or the value that holds if it is empty; None if there is none."""
        declared = next((item for item in GUEST if item.name == name), None)
        if self.texts[name] or declared is None:
            return number(name, self.texts[name])
        return getattr(self.known, declared.field) or None

    @property
    def query(self) -> str:
        """The state as the query of a URL: the log, if it is short, and the strings that differ from `first_texts`."""
        first = first_texts(self.log)
        rows = [("log", pack(self.log))] if self.log else []
        rows += [(name, text) for name, text in self.texts.items() if text != first[name]]
        return urlencode([("page", "migration"), *rows], quote_via=quote, safe="/,()[]")

    @classmethod
    def from_query(cls, query: str) -> MigrationState:
        """Return the state of a URL's query; raises `InputError` if a parameter is unknown or breaks its rule.

        >>> state = MigrationState({"deadline": "", "vcpus": "8"})
        >>> MigrationState.from_query(state.query) == state
        True
        """
        texts = {name: text for name, text in parameters(query, blank=True) if name != "page"}
        return cls(texts, unpack(texts.pop("log", "")))

    @property
    def command(self) -> str:
        """The command that gives the same answer; it reads the log from `LOG_FILE`."""
        words = ["--from", LOG_FILE] if self.log else []
        for name, given in self.options.items():
            words += [word for text in ([given] if isinstance(given, str) else given) for word in (f"--{name}", text)]
        return shlex.join(["simlib", "migrate", *words, "--emit", self.texts["emit"], "--draws", str(DRAWS)])


def _is_known(guest: RunningGuest, name: str) -> bool:
    return bool(getattr(guest, name) != getattr(RunningGuest(), name))


def _of_page(error: InputError) -> InputError:
    """Return an error that names controls instead of options."""
    where, hint = (_OPTION.sub("", text) for text in (error.flag or error.what, error.hint))
    return InputError(where, error.value, error.rule, hint)


def _bandwidth_text(bits: int) -> str:
    unit, size = next(((unit, size) for unit, size in (("Gbit/s", 10**9), ("Mbit/s", 10**6)) if bits >= size),
                      ("kbit/s", 10**3))  # fmt: skip
    return f"{bits / size:.3g}{unit}"


_SHOWN: dict[Any, Callable[[Any], str]] = {
    parse_size: size_text, parse_bandwidth: _bandwidth_text, parse_share: "{:.0%}".format,
    parse_version: lambda version: ".".join(map(str, version)),
}  # fmt: skip
"""Functions that format a value for people, by its parser."""
