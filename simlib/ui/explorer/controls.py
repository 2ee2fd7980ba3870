# SPDX-License-Identifier: BSD-3-Clause
"""Controls of the explorer for keys of a scenario file, each with the scenario's error below it."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import ipywidgets as widgets
import pandas as pd
from markupsafe import Markup

from simlib.analysis.choose.presets import guests
from simlib.analysis.choose.strategies import HOLDS, SPLITS
from simlib.measurements.fits import UncertainCosts, choose_fit
from simlib.model.architectures import ARCHITECTURES
from simlib.model.locks import LOCKS
from simlib.model.policies import BASELINE, policy
from simlib.model.quantities import format_duration, format_size
from simlib.model.scenario import Scenario, differences
from simlib.ui.explorer.fields import BELOW, Fields, button, nearest, note, wide, widget_of
from simlib.ui.explorer.state import ExplorerState, Key, read_value

_MODES = ("default", "lockless", "read", "write")
_SIZES = tuple(format_size(2**k) for k in range(24, 45))

KEYS: dict[str, tuple[Key, ...]] = {
    "Guest": (
        Key("guest", "vcpus", "vCPUs", help="1 to 1023", steps=tuple(2**k for k in range(10))),
        Key("guest", "memory", "memory", help="total, such as 256G", steps=_SIZES[6:]),
        Key("workload", "access_interval", "access every", help="time between two accesses of a vCPU",
            steps=("100ns", "200ns", "500ns", "1us", "2us", "5us", "10us", "20us", "50us", "100us", "200us", "500us",
                   "1ms", "2ms", "5ms", "10ms")),
        Key("workload", "write_percent", "share written, %", help="share of the pages that the guest writes",
            steps=(1, *range(5, 101, 5))),
        Key("workload", "clear_chunk", "chunk of a CLEAR", help="memory that one CLEAR covers; in QEMU, 1G by default",
            steps=_SIZES[:13]),
        Key("guest", "backing", "backing", ("4k", "thp", "hugetlb_2mb", "hugetlb_1gb"),
            "host pages that back the guest's memory"),
        Key("workload", "access", "accesses", ("uniform", "zipf", "sequential"), "order and popularity of the pages"),
        Key("workload", "slow_fault_every", "slow fault every", help="accesses between two slow faults; 0: none",
            steps=(0, *(digit * 10**power for power in range(6, 1, -1) for digit in (5, 2, 1)))),
        Key("workload", "link", "link", help="bandwidth of the migration, such as 25Gbit/s",
            steps=tuple(f"{rate}Gbit/s" for rate in (1, 2, 5, 10, 25, 40, 50, 100, 200, 400))),
        Key("workload", "pass_limit", "maximum passes", steps=(1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 100)),
    ),
    "Lock": (
        Key("policy", "lock", "lock", ("default", *LOCKS), "default: the architecture's"),
        Key("policy", "write_protect_fault", "protection fault", _MODES,
            "how a fault on a write-protected page takes mmu_lock"),
        Key("policy", "translation_fault", "translation fault", _MODES,
            "how a fault on an unmapped page takes mmu_lock"),
        Key("policy", "split_fault", "split fault", ("default", "read", "write"),
            "how a fault that splits a huge page takes mmu_lock"),
        Key("policy", "clear_lock", "CLEAR", _MODES, "how CLEAR takes mmu_lock to write-protect"),
        Key("policy", "dirty_tracking", "dirty tracking", ("default", "write_protect", "pml", "hdbss"),
            "write protection, or a hardware log (x86: PML, arm64: HDBSS)"),
        Key("policy", "eager_split", "eager split", ("default", True, False),
            "KVM splits huge pages before the guest writes"),
        Key("policy", "split_alloc", "split allocation", ("default", "under_lock", "drop", "under_read_lock"),
            "how eager splitting allocates page tables"),
    ),
    "Host": (
        Key("host", "cores", "cores", steps=(8, 16, 32, 64, 80, 96, 128, 192, 256, 512)),
        Key("host", "sockets", "sockets", steps=(1, 2, 4, 8)),
        Key("host", "remote_ratio", "remote transfer", help="transfer between sockets, relative to one within a socket",
            steps=(1, 1.5, 2, 2.5, 3, 4, 5)),
    ),
}  # fmt: skip
"""Controls by heading."""

NAMED = (*HOLDS, "read-lock-clear", "lockless-write-protect", *SPLITS)  # strategies of the list; any other can be typed


def architectures() -> list[tuple[str, str]]:
    """Return (label, name) of each architecture that can be simulated; the label has its kernel version."""
    return [
        (f"{facts.title} — {facts.version}" if facts.version not in facts.title else facts.title, name)
        for name, facts in ARCHITECTURES.items()
        if facts.clear_lock != "none"
    ]


def _of(scenario: Scenario, key: Key) -> tuple[Any, dataclasses.Field[Any]]:
    section = getattr(scenario, key.table)
    (field,) = (item for item in dataclasses.fields(section) if item.name == key.name)
    return getattr(section, key.name), field


class Controls(Fields[ExplorerState]):
    """All controls of a page, and their errors.

    - `changed`: called with the new state after a control was released with a valid value.

    >>> states = []
    >>> controls = Controls(ExplorerState.of("arm64"), states.append)
    >>> controls.set("guest.vcpus", 5000)
    >>> controls.errors["guest.vcpus"]
    'guest.vcpus = 5000: must be a whole number from 1 to 1023'
    >>> controls.set("guest.vcpus", 128)
    >>> controls.errors, states[-1].scenario.guest.vcpus
    ({}, 128)
    """

    OWN_KEYS = tuple(key for keys in KEYS.values() for key in keys)

    def _fill(self, state: ExplorerState) -> None:
        self._widgets["architecture"].value = state.architecture
        self._widgets["strategy"].value = state.strategy
        self._widgets["named"].value = state.strategy if state.strategy in (BASELINE, *NAMED) else ""
        self._meaning.value = Markup("<small>{}</small>").format(meaning(state.strategy))
        super()._fill(state)
        self._pins.children = [
            button(f"✕ {pin}", partial(self._unpin, pin), tooltip=f"unpin {pin}") for pin in state.pins
        ]
        self._show_costs(state)

    def _value(self, state: ExplorerState, key: Key) -> Any:
        value, field = _of(state.scenario, key)
        if value is None:
            return "default" if "default" in key.words else ""
        show = field.metadata["show"]
        return show(value) if show else value

    def _step(self, state: ExplorerState, key: Key) -> int:
        return nearest_step(state.scenario, key)

    def _build(self) -> tuple[widgets.Widget, widgets.Widget]:
        presets = [("choose one by name …", ""), *((name, name) for name in guests())]
        named = [("unchanged (baseline)", BASELINE), *((name, name) for name in NAMED), ("a strategy typed below", "")]
        when = "when CLEAR drops mmu_lock"
        example = "a named policy, or a condition such as held >= 20us and waiters >= 1"
        typed = {"description": "or type one", "placeholder": "held >= 20us", "tooltip": example}
        others = {
            "architecture": widgets.Dropdown(options=architectures(), description="architecture", **wide()),
            "preset": widgets.Dropdown(options=presets, description="guest", **wide()),
            "named": widgets.Dropdown(options=named, description="strategy", tooltip=when, **wide()),
            "strategy": widgets.Text(continuous_update=False, **typed, **wide()),
        }
        self._make(others)
        self._notes["pins"], self._meaning = note(), widgets.HTML(layout=widgets.Layout(margin=BELOW.format("4px")))
        self._pins, self._costs = widgets.Box(layout=widgets.Layout(flex_flow="row wrap")), widgets.VBox()
        heads = self._shown("architecture", "preset", "named", "strategy")
        pin = button("Pin this strategy", self._pin, tooltip="keep the strategy in the table and the figures")
        parts = [widgets.VBox(self._shown(*(f"{key.table}.{key.name}" for key in keys))) for keys in KEYS.values()]
        folds = widgets.Accordion([*parts, self._costs], titles=(*KEYS, "Costs"), selected_index=0)
        return widgets.VBox([*heads, self._meaning, pin, self._notes["pins"], self._pins]), folds

    def _asked(self, state: ExplorerState, name: str, value: Any) -> ExplorerState | None:
        if name == "architecture":
            return _other_architecture(state, value)
        if name == "preset":
            preset = ExplorerState.of(state.architecture, value)
            return state.changed(differences(preset.scenario, state.scenario)) if value else None
        if name in ("strategy", "named"):
            return state.changed(strategy=value or BASELINE) if value or name == "strategy" else None
        if name == "pins":
            return state.changed(pins=list(value))
        if name in self._keys:
            key = self._keys[name]
            given = read_value(value) if isinstance(value, str) and not key.words else value
            return state.changed({key.table: {key.name: given}})
        return state.changed({"costs": {name.removeprefix("costs."): value}})

    def _pin(self) -> None:
        self._on_change("pins", dict.fromkeys((*self.state.pins, self.state.strategy)))

    def _unpin(self, pin: str) -> None:
        self._on_change("pins", [name for name in self.state.pins if name != pin])

    def _show_costs(self, state: ExplorerState) -> None:
        table = cost_table(state.case())
        names = [f"costs.{name}" for name in table["cost"]]
        if [name for name in self._widgets if name.startswith("costs.")] != names:
            for name in [name for name in self._widgets if name.startswith("costs.")]:
                self._widgets.pop(name).close()
            for name in names:
                self._widgets[name] = widget_of(Key("costs", name, name.removeprefix("costs.")))
                self._observe(name)
            self._hints = {name: widgets.HTML(layout=widgets.Layout(margin=BELOW.format("4px"))) for name in names}
            self._costs.children = [
                part for name in names for part in (self._widgets[name], self._hints[name], self._notes[name])
            ]
        for name, row in zip(names, table.to_dict("records"), strict=True):
            self._widgets[name].value = row["shown"]
            self._hints[name].value = Markup("<small>{}</small>").format(row["hint"])


def _other_architecture(state: ExplorerState, name: str) -> ExplorerState:
    """Return the same guest and strategy on another architecture, with its host and costs."""
    old = state.scenario
    fresh = ExplorerState.of(name).scenario
    guest = differences(old, ExplorerState.of(state.architecture).scenario)
    tables = {table: rows for table, rows in guest.items() if table in ("guest", "workload")}
    return ExplorerState(fresh.changed(tables), state.strategy, state.pins)


def cost_table(scenario: Scenario) -> pd.DataFrame:
    """Tabulate the costs that the simulation uses: value as in a file, interval and source.

    Returns: cost, shown, hint.

    >>> cost_table(ExplorerState.of("loongarch").scenario).set_index("cost").loc["fault_hold", "hint"]
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
    return format_duration(round(float(f"{picoseconds:.3g}")))


def meaning(strategy: str) -> str:
    """Describe a strategy.

    >>> meaning("every-512+held >= 20us")
    'CLEAR drops mmu_lock after every 512 pages; CLEAR drops mmu_lock when held >= 20us'
    """
    if strategy == BASELINE:
        return "the kernel's own strategy, with the settings under Lock"
    return "; ".join(policy(part).title for part in strategy.split("+"))


def nearest_step(scenario: Scenario, key: Key) -> int:
    """Index of the step of a key's slider that is nearest to the scenario's value.

    >>> key = KEYS["Guest"][0]
    >>> key.steps[nearest_step(ExplorerState.of("arm64").changed({"guest": {"vcpus": 60}}).scenario, key)]
    64
    """
    value, field = _of(scenario, key)
    return nearest(value or 0, (field.metadata["parse"](step, key.name) for step in key.steps))
