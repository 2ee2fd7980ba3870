# SPDX-License-Identifier: BSD-3-Clause
"""The explorer's controls: one a key of a scenario file, each with the scenario's own error beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import ipywidgets as widgets
import pandas as pd
from markupsafe import Markup, escape

from simlib.decision.standard import guests
from simlib.errors import InputError
from simlib.explorer.state import State
from simlib.fits import UncertainCosts, choose_fit
from simlib.model.architectures import ARCHITECTURES
from simlib.model.locks import LOCKS
from simlib.model.policies import POLICIES
from simlib.model.quantities import format_duration
from simlib.model.scenario import Scenario, differences

_MODES = ("default", "lockless", "read", "write")
_BELOW = "0 0 {} 122px"
"""Margins of what stands below a control."""


class Key(NamedTuple):
    """One key of a scenario file that the explorer has a control for."""

    table: str
    name: str
    label: str
    words: tuple[Any, ...] = ()
    """What it may be; empty: a text as the file has it."""
    help: str = ""


KEYS: dict[str, tuple[Key, ...]] = {
    "Guest": (
        Key("guest", "vcpus", "vCPUs", help="1 to 1023"),
        Key("guest", "memory", "memory", help="such as 256G or 4T"),
        Key("workload", "clear_chunk", "chunk of a CLEAR", help="what one ioctl clears; QEMU's is 1G at most"),
        Key("guest", "backing", "backing", ("4k", "thp", "hugetlb_2mb", "hugetlb_1gb"), "of the guest's memory"),
        Key("workload", "access_interval", "between accesses", help="from one access of a vCPU to the next"),
        Key("workload", "write_percent", "share written, %", help="of the pages that are accessed"),
        Key("workload", "access", "accesses", ("uniform", "zipf"), "all pages alike, or some far more often"),
        Key("workload", "slow_fault_every", "slow fault every", help="accesses between two; 0: none"),
        Key("workload", "link", "link", help="what the migration can send, such as 25Gbit/s"),
        Key("workload", "pass_limit", "passes at most"),
    ),
    "Lock": (
        Key("policy", "lock", "discipline", ("default", *LOCKS), "default: the architecture's"),
        Key("policy", "write_protect_fault", "write-protect fault", _MODES, "a write to a page that CLEAR protected"),
        Key("policy", "translation_fault", "translation fault", _MODES, "a page that is not mapped"),
        Key("policy", "split_fault", "split fault", ("default", "read", "write"), "the first write to a block"),
        Key("policy", "clear_lock", "CLEAR", _MODES, "how CLEAR write-protects"),
        Key("policy", "eager_split", "eager split", ("default", True, False), "CLEAR splits blocks ahead of the guest"),
        Key("policy", "split_alloc", "tables of splits", ("default", "under_lock", "drop", "under_read_lock"),
            "how an eager split allocates"),
    ),
    "Machine": (
        Key("machine", "cores", "cores"),
        Key("machine", "sockets", "sockets"),
        Key("machine", "remote_ratio", "remote line", help="times as long as within a socket, of a cache line"),
    ),
}  # fmt: skip
"""Controls by their heading."""


def architectures() -> list[tuple[str, str]]:
    """Architectures that a migration can be asked about: label with the kernel of its facts, and name."""
    return [
        (f"{facts.title} — {facts.version}" if facts.version not in facts.title else facts.title, name)
        for name, facts in ARCHITECTURES.items()
        if facts.clear_lock != "none"
    ]


def value_of(scenario: Scenario, key: Key) -> Any:
    """What a control shows of a scenario: the text or number that a file has."""
    section = getattr(scenario, key.table)
    value = getattr(section, key.name)
    if value is None:
        return "default" if "default" in key.words else ""
    (field,) = (f for f in dataclasses.fields(section) if f.name == key.name)
    show = field.metadata["show"]
    return show(value) if show else value


class Controls:
    """All controls of a page, and what is wrong with them.

    - `changed`: called with the new state after a control was let go with a value that breaks no rule.

    >>> told = []
    >>> controls = Controls(State.of("arm64"), told.append)
    >>> controls.set("guest.vcpus", 5000)
    >>> controls.errors["guest.vcpus"]
    'guest.vcpus = 5000: must be a whole number from 1 to 1023'
    >>> controls.set("guest.vcpus", 128)
    >>> controls.errors, told[-1].scenario.guest.vcpus
    ({}, 128)
    """

    def __init__(self, state: State, changed: Callable[[State], None]) -> None:
        self._state, self._changed, self._quiet = state, changed, False
        self.errors: dict[str, str] = {}
        self._notes: dict[str, widgets.HTML] = {}
        self._widgets: dict[str, Any] = {}
        self._keys = {f"{key.table}.{key.name}": key for keys in KEYS.values() for key in keys}
        self.widget = self._build()
        self.show(state)

    @property
    def state(self) -> State:
        """What is asked: the last values that broke no rule."""
        return self._state

    def set(self, name: str, value: Any) -> None:
        """Set a control, as its user does."""
        widget = self._widgets[name]
        widget.value = str(value) if isinstance(widget, widgets.Text) else value

    def show(self, state: State) -> None:
        """Set every control to a state without telling anybody."""
        self._state, self._quiet = state, True
        try:
            self._widgets["architecture"].value = state.architecture
            self._widgets["strategy"].value = state.strategy
            for name, key in self._keys.items():
                value, widget = value_of(state.scenario, key), self._widgets[name]
                widget.value = value if key.words else str(value)
            self._show_pins(state)
            self._show_costs(state)
        finally:
            self._quiet = False
        self.errors.clear()
        for note in self._notes.values():
            note.value = ""

    def _build(self) -> widgets.Widget:
        self._widgets = {
            "architecture": widgets.Dropdown(options=architectures(), description="architecture", **_wide()),
            "preset": widgets.Dropdown(
                options=[("a guest by its name …", ""), *((name, name) for name in guests())],
                description="preset", **_wide(),
            ),
            "strategy": widgets.Combobox(
                options=["own", *(f"every-{n}" for n in (64, 512, 4096, 32768)), *POLICIES],
                description="strategy", continuous_update=False, placeholder="a name, or pages >= 512 and waiters >= 1",
                tooltip="when CLEAR lets go: a named policy, or a condition", **_wide(),
            ),
        }  # fmt: skip
        self._widgets |= {name: _widget(key) for name, key in self._keys.items()}
        for name in self._widgets:
            self._observe(name)
        self._notes["pins"] = note()
        self._pins, self._costs = widgets.VBox(), widgets.VBox()
        pin = button("Pin this strategy", self._pin)
        heads = [*self._shown("architecture", "preset", "strategy"), pin, self._notes["pins"], self._pins]
        parts = [widgets.VBox(self._shown(*(f"{key.table}.{key.name}" for key in keys))) for keys in KEYS.values()]
        folds = widgets.Accordion([*parts, self._costs], selected_index=0)
        for i, title in enumerate((*KEYS, "Costs")):
            folds.set_title(i, title)
        return widgets.VBox([*heads, folds])

    def _observe(self, name: str) -> None:
        """Heed a control, and have a place for what is wrong with it."""
        self._notes[name] = note(margin=_BELOW.format(0))
        self._widgets[name].observe(lambda change: self._heed(name, change["new"]), names="value")

    def _shown(self, *names: str) -> list[widgets.Widget]:
        return [part for name in names for part in (self._widgets[name], self._notes[name])]

    def _heed(self, name: str, value: Any) -> None:
        if self._quiet:
            return
        try:
            fresh = self._asked(name, value)
        except InputError as error:
            self._refuse(name, str(error))
            return
        self.errors.pop(name, None)
        self._notes[name].value = ""
        if fresh is not None and fresh != self._state:
            self._adopt(fresh)

    def _asked(self, name: str, value: Any) -> State | None:
        if name == "architecture":
            return self._other_architecture(value)
        if name == "preset":
            if not value:
                return None
            fresh = State.of(self._state.architecture, value)
            return self._state.changed(differences(fresh.scenario, self._state.scenario))
        if name == "strategy":
            return self._state.changed(strategy=value or "own")
        if name in self._keys:
            key = self._keys[name]
            return self._state.changed({key.table: {key.name: _given(key, value)}})
        return self._state.changed({"costs": {name.removeprefix("costs."): value}})

    def _other_architecture(self, name: str) -> State:
        """The same guest and strategy on another architecture, with its machine and costs."""
        old = self._state.scenario
        fresh = State.of(name).scenario
        guest = differences(old, State.of(self._state.architecture).scenario)
        tables = {table: rows for table, rows in guest.items() if table in ("guest", "workload")}
        return State(fresh.changed(tables), self._state.strategy, self._state.pins)

    def _refuse(self, name: str, why: str) -> None:
        self.errors[name] = why
        self._notes[name].value = escape(why)

    def _adopt(self, fresh: State) -> None:
        """Show all that follows from a change, but leave what is wrong as it stands."""
        wrong = dict(self.errors)
        self.show(fresh)
        for name, why in wrong.items():
            self._refuse(name, why)
        self._changed(fresh)

    def _pin(self) -> None:
        state = self._state
        try:
            fresh = state.changed(pins=list(dict.fromkeys((*state.pins, state.strategy))))
        except InputError as error:
            self._refuse("pins", str(error))
            return
        self._adopt(fresh)

    def _show_pins(self, state: State) -> None:
        self._pins.children = [
            button(f"✕ {pin}", partial(self._unpin, pin), tooltip=f"unpin {pin}") for pin in state.pins
        ]

    def _unpin(self, pin: str) -> None:
        self.errors.pop("pins", None)
        self._adopt(self._state.changed(pins=[one for one in self._state.pins if one != pin]))

    def _show_costs(self, state: State) -> None:
        table = cost_table(state.case())
        names = [f"costs.{name}" for name in table["cost"]]
        if [name for name in self._widgets if name.startswith("costs.")] != names:
            for name in [name for name in self._widgets if name.startswith("costs.")]:
                self._widgets.pop(name).close()
            for name in names:
                self._widgets[name] = widgets.Text(
                    description=name.removeprefix("costs."), continuous_update=False, **_wide()
                )
                self._observe(name)
            self._hints = {name: widgets.HTML(layout=widgets.Layout(margin=_BELOW.format("4px"))) for name in names}
            self._costs.children = [
                part for name in names for part in (self._widgets[name], self._hints[name], self._notes[name])
            ]
        for name, row in zip(names, table.to_dict("records"), strict=True):
            self._widgets[name].value = row["shown"]
            self._hints[name].value = Markup("<small>{}</small>").format(row["hint"])


def auto() -> widgets.Layout:
    """As wide as there is room."""
    return widgets.Layout(width="auto")


def note(**layout: str) -> widgets.HTML:
    """A place for what is wrong."""
    made = widgets.HTML(layout=widgets.Layout(**layout))
    made.add_class("simlib-error")
    return made


def button(label: str, action: Callable[[], None], *, width: str = "auto", tooltip: str | None = None) -> Any:
    """A button that does something."""
    made = widgets.Button(description=label, tooltip=tooltip, layout=widgets.Layout(width=width))
    made.on_click(lambda _button: action())
    return made


def _wide() -> dict[str, Any]:
    return {"style": {"description_width": "118px"}, "layout": auto()}


def cost_table(scenario: Scenario) -> pd.DataFrame:
    """Every cost that decides: its value as a file has it, and its interval and source in words.

    Returns: cost, shown, hint.

    >>> cost_table(State.of("loongarch").scenario).set_index("cost").loc["fault_hold", "hint"]
    '90 %: 140ns to 875ns, prior'
    """
    costs = UncertainCosts.of(scenario, choose_fit(scenario)[0]).table()
    rows = []
    for row in costs.to_dict("records"):
        show = str if row["cost"] == "fault_jitter" else _readable
        span = "" if row["low"] == row["high"] else f"90 %: {show(row['low'])} to {show(row['high'])}, "
        rows.append((row["cost"], show(row["value"]), f"{span}{row['evidence']}"))
    return pd.DataFrame(rows, columns=["cost", "shown", "hint"])


def _readable(picoseconds: float) -> str:
    """A duration of three digits as a file has it."""
    return format_duration(round(float(f"{picoseconds:.3g}")))


def _widget(key: Key) -> Any:
    name = {"description": key.label, "tooltip": key.help or key.label}
    if not key.words:
        return widgets.Text(continuous_update=False, **name, **_wide())
    labels = {True: "yes", False: "no"}
    options = [(labels.get(word, word) if isinstance(word, bool) else word, word) for word in key.words]
    return widgets.Dropdown(options=options, **name, **_wide())


def _given(key: Key, value: Any) -> Any:
    """A control's value as a scenario file has it: a number where it reads as one."""
    if not isinstance(value, str) or key.words:
        return value
    for kind in (int, float):
        with suppress(ValueError):
            return kind(value)
    return value.strip()
