# SPDX-License-Identifier: BSD-3-Clause
"""State of the explorer: a migration, a strategy and pinned strategies, as a URL and as a file."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self
from urllib.parse import parse_qsl, quote, urlencode

from simlib._lib.errors import InputError, nearest
from simlib._lib.reading import parse_toml
from simlib.analysis.choose.presets import named_guest, preset_architectures, preset_scenario, with_guest
from simlib.analysis.choose.strategies import Strategy
from simlib.model.policies import BASELINE
from simlib.model.scenario import FILE, Scenario, differences

MAX_PINS = 4  # maximum number of pinned strategies
KIND = "migration"  # workload of the explorer
_OWN = ("architecture", "preset", "cost_group", "strategy")
"""Parameters of a URL other than the keys of a scenario and the pins."""

_OTHERS = ("token", "voila-theme", "voila-template")  # parameters of a URL that belong to the server
PAGES = {"": ("ExplorerState", "find"), "migration": ("MigrationState", "find_migration")}
"""Names in `simlib.ui.explorer` of each page's state class and answer function, keyed by the URL's ``page``."""

FIRST_PAGE = "strategies"
"""Name of the page that a URL without ``page`` selects."""


class Key(NamedTuple):
    """A value with a control: a key of a scenario file, or a parameter of the URL.

    - `table`: table of the scenario file; empty for a parameter of the URL.
    - `words`: allowed values, or pairs of label and value; empty: any string, as in the file.
    - `steps`: values of its slider, as in the file; empty: it has no slider.
    - `first`: string on the first visit, of a parameter of the URL.
    - `read`: function of its string and the name for errors, which returns a value; None: the string is used as it is.
    - `label_px`: width of its label, px.
    """

    table: str
    name: str
    label: str
    words: tuple[Any, ...] = ()
    help: str = ""
    steps: tuple[Any, ...] = ()
    first: str = ""
    read: Callable[[str, str], Any] | None = None
    label_px: int = 118

    @property
    def path(self) -> str:
        """Its name in a URL."""
        return f"{self.table}.{self.name}" if self.table else self.name


class ExplorerQuestion(Protocol):
    """Interface of a page's state, which is encoded in the URL."""

    @property
    def query(self) -> str:
        """The state as the query of a URL."""

    @property
    def command(self) -> str:
        """The command that gives the same answer."""

    @classmethod
    def from_query(cls, query: str) -> Self:
        """Return the state of a URL's query; of an empty query, the state of the first visit.

        Raises `InputError` if it breaks a rule.
        """


@dataclass(frozen=True)
class ExplorerState:
    """State of the page about strategies. Two states are equal if all values are written identically.

    - `scenario`: a migration.
    - `strategy`: a named policy, a condition for ``policy.clear_drop_when``, several joined by ``+``, or ``baseline``
      for the scenario's own.
    - `pins`: strategies to compare with, at most `MAX_PINS`.

    >>> ExplorerState.of("arm64").changed({"guest": {"vcpus": 128}}, strategy="every-64").query
    'architecture=arm64&guest.vcpus=128&strategy=every-64'
    """

    scenario: Scenario
    strategy: str = BASELINE
    pins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse other workloads, strategies that are unknown or do not call CLEAR, and too many pins."""
        if self.scenario.workload.kind != KIND or self.scenario.variants:
            what = "its variants" if self.scenario.variants else self.scenario.workload.kind
            raise InputError(
                "scenario", what, "must be one migration", 'give a file with kind = "migration" and without variants'
            )
        if len(self.pins) > MAX_PINS:
            raise InputError("pins", len(self.pins), f"must be at most {MAX_PINS}", "unpin a strategy")
        for name in (self.strategy, *self.pins):
            self.case(name)

    @classmethod
    def of(cls, architecture: str, guest: str = "") -> ExplorerState:
        """The preset guest of an architecture, or a named guest on it.

        >>> ExplorerState.of("x86-tdp", "mysql-8g").scenario.guest.vcpus
        160
        """
        scenario = preset(architecture)
        return cls(named_guest(guest).in_place_of(scenario) if guest else scenario)

    @classmethod
    def first(cls) -> ExplorerState:
        """Return the state of the first visit: arm64's preset guest, with strategies that differ on it."""
        return cls(preset("arm64"), "every-512", ("whole-ioctl", "every-64", "held >= 20us"))

    @property
    def architecture(self) -> str:
        """Its name."""
        return self.scenario.policy.architecture

    def case(self, strategy: str | None = None) -> Scenario:
        """The migration with a strategy; by default, the selected one.

        >>> str(ExplorerState.of("arm64", "idle").case("pages >= 128 and waiters >= 1").policy.clear_drop_when)
        'pages >= 128 and waiters >= 1'
        """
        name = self.strategy if strategy is None else strategy
        case = Strategy(name).applied(self.scenario)
        if not case.workload.facts.by_chunk or case.workload.clear_when == "at_get":
            hint = "choose another strategy, such as every-64"
            raise InputError("strategy", name, "must be a strategy with which the migration calls CLEAR", hint)
        return case

    def changed(
        self, changes: Mapping[str, Mapping[str, Any]] | None = None, *, strategy: str | None = None,
        pins: Sequence[str] | None = None,
    ) -> ExplorerState:  # fmt: skip
        """The state with some values replaced, given as the tables of a scenario file.

        The memory is rounded up to whole blocks for each vCPU, and a chunk is at most the memory.
        """
        scenario = self.scenario
        if changes:
            about_guest = {name: changes[name] for name in ("guest", "workload") if name in changes}
            scenario = with_guest(scenario, about_guest) if about_guest else scenario
            scenario = scenario.changed({name: rows for name, rows in changes.items() if name not in about_guest})
        return ExplorerState(
            scenario, self.strategy if strategy is None else strategy, self.pins if pins is None else tuple(pins)
        )

    @property
    def query(self) -> str:
        """The state as the query of a URL: what differs from the architecture's preset guest, by scenario keys."""
        base = preset(self.architecture)
        rows = [("architecture", self.architecture)]
        for table, values in differences(self.scenario, base).items():
            texts = (
                (name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in values.items()
            )
            rows += [(f"{table}.{name}", text) for name, text in texts if (table, name) != ("policy", "architecture")]
        rows += [("cost_group", self.scenario.cost_group)] if self.scenario.cost_group != base.cost_group else []
        rows.sort()
        rows += [("strategy", self.strategy)] if self.strategy != BASELINE else []
        return urlencode(rows + [("pin", pin) for pin in self.pins], quote_via=quote, safe="/,()[]")

    @property
    def command(self) -> str:
        """The command that gives the page's table."""
        return f"simlib explore --query {shlex.quote(self.query)} --table explorer.csv"

    @classmethod
    def from_query(cls, query: str) -> ExplorerState:
        """Return the state of a URL's query; missing values come from the preset guest. An empty query gives `first`.

        Raises `InputError` if a key is unknown or a value breaks its rule.

        >>> asked = ExplorerState.of("riscv", "web").changed({"workload": {"clear_chunk": "512M"}}, pins=["every-64"])
        >>> ExplorerState.from_query(asked.query) == asked
        True
        """
        if name := page_of(query):
            raise InputError("page", name, "is another page", f"omit it, or write page={FIRST_PAGE}")
        rows = [(key, text) for key, text in parameters(query) if key != "page"]
        if not rows:
            return cls.first()
        named = dict(rows)
        state = cls.of(named.get("architecture", "arm64"), named.get("preset", ""))
        tables: dict[str, dict[str, Any]] = {}
        pins = []
        for key, text in rows:
            table, dot, name = key.partition(".")
            if key == "pin":
                pins.append(text)
            elif dot:
                tables.setdefault(table, {})[name] = read_value(text)
            elif key not in _OWN:
                raise InputError(key, text, "unknown parameter", nearest(key, (*_OWN, "pin")))
        scenario = dataclasses.replace(
            state.scenario.changed(tables), cost_group=named.get("cost_group", state.scenario.cost_group)
        )
        return cls(scenario, named.get("strategy", BASELINE), tuple(pins))

    def to_toml(self) -> str:
        """The migration with its strategy as a scenario file, which every command of simlib reads.

        >>> state = ExplorerState.of("arm64").changed(strategy="every-512")
        >>> ExplorerState.from_toml(state.to_toml()).case() == state.case()
        True
        """
        return f"# simlib explore: ?{self.query}\n{self.case().to_toml()}\n"

    @classmethod
    def from_toml(cls, text: str) -> ExplorerState:
        """Return the state of a scenario file; raises `InputError` if it is not TOML or not a valid migration."""
        return cls(Scenario.parse(parse_toml(text, "the file", FILE)))


def parameters(query: str, *, blank: bool = False) -> list[tuple[str, str]]:
    """Return the parameters of a URL's query that are not for the server; `blank`: also those with an empty value.

    A query without ``=`` is the name of a page.

    >>> parameters("?token=secret&page=migration&deadline=", blank=True), parameters("migration")
    ([('page', 'migration'), ('deadline', '')], [('page', 'migration')])
    """
    text = query.removeprefix("?").removeprefix("#")
    rows = parse_qsl(text if "=" in text or not text else f"page={text}", keep_blank_values=blank)
    return [(key, text) for key, text in rows if key not in _OTHERS]


def page_of(query: str) -> str:
    """Name in `PAGES` of the page that a URL's query selects; raises `InputError` if there is no such page.

    >>> page_of("page=migration&vcpus=8"), page_of("migration"), page_of("strategies"), page_of("guest.vcpus=8")
    ('migration', 'migration', '', '')
    """
    name = dict(parameters(query)).get("page", FIRST_PAGE)
    if name != FIRST_PAGE and name not in PAGES:
        raise InputError("page", name, "no such page", nearest(name, (FIRST_PAGE, *filter(None, PAGES))))
    return "" if name == FIRST_PAGE else name


def preset(architecture: str) -> Scenario:
    """Return the preset guest of an architecture; an older kernel has the guest and host of the current one.

    >>> preset("arm64-2022").host.name
    'ampere-altra'
    """
    known = preset_architectures()
    family = architecture.partition("-")[0]
    if architecture not in known and family in known:
        return preset_scenario(family).changed({"policy": {"architecture": architecture}})
    return preset_scenario(architecture)


def read_value(text: str) -> Any:
    """Read a string as a value of a scenario file: a number, a list or a truth value, or the string itself."""
    try:
        (value,) = parse_toml(f"value = {text}", "value", "a value").values()
    except ValueError:
        return text.strip()
    return value if isinstance(value, bool | int | float | list) else text
