# SPDX-License-Identifier: BSD-3-Clause
"""Controls of a page as rows with sliders and errors."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import ipywidgets as widgets
from markupsafe import escape

from simlib._lib.errors import InputError
from simlib.ui.explorer.state import Key

BELOW = "0 0 {} 122px"  # margins of a note below a control
SETTLED_S = 0.25  # time for which a slider must rest before its value is used, s
S = TypeVar("S")


class Fields(ABC, Generic[S]):
    """Controls of a page, and their errors.

    - `state`: first state; the attribute is the last valid state.
    - `changed`: called with the new state after a control was released with a valid value.
    """

    OWN_KEYS: ClassVar[tuple[Key, ...]]
    """Keys of the controls that are rows."""

    def __init__(self, state: S, changed: Callable[[S], None]) -> None:
        self.state, self._changed, self._quiet = state, changed, False
        self._sliders: dict[str, Any] = {}
        self._moving: dict[str, asyncio.TimerHandle] = {}
        self.errors: dict[str, str] = {}
        self._notes: dict[str, widgets.HTML] = {}
        self._widgets: dict[str, Any] = {}
        self._rows: dict[str, tuple[widgets.Widget, widgets.Widget]] = {}
        self._keys = {key.path: key for key in self.OWN_KEYS}
        self.choice, self.folds = self._build()
        self.show(state)

    @abstractmethod
    def _build(self) -> tuple[widgets.Widget, widgets.Widget]:
        """Return the main controls, and the collapsible sections below them."""

    @abstractmethod
    def _asked(self, state: S, name: str, value: Any) -> S | None:
        """Return the state with a control's value; None: no change. Raises `InputError` if the value breaks a rule."""

    @abstractmethod
    def _value(self, state: S, key: Key) -> Any:
        """Return the value of a control for a state."""

    @abstractmethod
    def _step(self, state: S, key: Key) -> int:
        """Return the step of a key's slider that is nearest to the state's value."""

    def set(self, name: str, value: Any) -> None:
        """Set a control, as a user does."""
        widget = self._widgets[name]
        widget.value = str(value) if isinstance(widget, widgets.Text) else value

    def show(self, state: S) -> None:
        """Set every control to a state without calling `changed`."""
        self.state, self._quiet = state, True
        try:
            self._fill(state)
        finally:
            self._quiet = False
        self.errors.clear()
        for note in self._notes.values():
            note.value = ""

    def _fill(self, state: S) -> None:
        for name, key in self._keys.items():
            value = self._value(state, key)
            self._widgets[name].value = value if key.words else str(value)
            if name in self._sliders:
                self._sliders[name].value = self._step(state, key)

    def _make(self, others: Mapping[str, Any] | None = None) -> None:
        """Make the controls of all keys in addition to `others`, and observe them."""
        self._widgets = {**(others or {}), **{name: widget_of(key) for name, key in self._keys.items()}}
        for name in self._widgets:
            self._observe(name)
        for name, key in self._keys.items():
            if key.steps:
                self._sliders[name] = slider = widgets.IntSlider(
                    max=len(key.steps) - 1, readout=False, tooltip=key.label, layout=widgets.Layout(flex="1 1 60px")
                )
                slider.observe(partial(self._slide, name), names="value")

    def _slide(self, name: str, change: Any) -> None:
        """Show a slider's value at once, and use the value when the slider has rested for `SETTLED_S`."""
        if self._quiet:
            return
        value, self._quiet = str(self._keys[name].steps[change["new"]]), True
        self._widgets[name].value, self._quiet = value, False
        if name in self._moving:
            self._moving.pop(name).cancel()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._on_change(name, value)
        else:
            self._moving[name] = loop.call_later(SETTLED_S, self._on_change, name, value)

    def _observe(self, name: str) -> None:
        """Observe a control, and make a place for its errors."""
        self._notes[name] = note(margin=BELOW.format(0))
        self._widgets[name].observe(lambda change: self._on_change(name, change["new"]), names="value")

    def _shown(self, *names: str) -> list[widgets.Widget]:
        """Return controls with their sliders, each with the place for its errors below it."""
        for name in names:
            control = self._widgets[name]
            row = widgets.HBox([control, self._sliders[name]]) if name in self._sliders else control
            self._rows[name] = (row, self._notes[name])
        return [part for name in names for part in self._rows[name]]

    def _on_change(self, name: str, value: Any) -> None:
        if self._quiet:
            return
        try:
            new_state = self._asked(self.state, name, value)
        except InputError as error:
            self._refuse(name, str(error))
            return
        self._accept(name)
        if new_state is None:
            return
        for other in [name for name in self.errors if name in self._widgets]:  # may be valid with the new value
            with suppress(InputError):
                new_state = self._asked(new_state, other, self._widgets[other].value) or new_state
                self._accept(other)
        if new_state != self.state:
            self._adopt(new_state)

    def _accept(self, name: str) -> None:
        self.errors.pop(name, None)
        self._notes[name].value = ""

    def _refuse(self, name: str, why: str) -> None:
        self.errors[name] = why
        self._notes[name].value = escape(why)

    def _adopt(self, new_state: S) -> None:
        """Report a change, then show all that follows from it; controls with errors keep their values."""
        self.state = new_state
        self._changed(new_state)  # first, as the simulation takes longest
        wrong = dict(self.errors)
        typed = {name: self._widgets[name].value for name in wrong if name in self._widgets}
        self.show(new_state)
        self._quiet = True
        for name, why in wrong.items():
            if name in typed and name in self._widgets:
                self._widgets[name].value = typed[name]
            self._refuse(name, why)
        self._quiet = False


def nearest(value: float, steps: Iterable[float]) -> int:
    """Index of the step that is nearest to a value, by their ratio.

    >>> nearest(60, [1, 2, 4, 8, 16, 32, 64, 128])
    6
    """
    distances = [abs(math.log((1 + step) / (1 + value))) for step in steps]
    return distances.index(min(distances))


def auto() -> widgets.Layout:
    """Return a layout that takes the available width."""
    return widgets.Layout(width="auto")


def wide(label_px: int = 118) -> dict[str, Any]:
    """Return options of a control that takes the width of its column, with its label."""
    return {"style": {"description_width": f"{label_px}px"}, "layout": auto()}


def note(**layout: str) -> widgets.HTML:
    """Return an empty widget for an error."""
    made = widgets.HTML(layout=widgets.Layout(**layout))
    made.add_class("simlib-error")
    return made


def button(label: str, action: Callable[[], None], *, width: str = "auto", tooltip: str | None = None) -> Any:
    """Return a button that calls `action`."""
    made = widgets.Button(description=label, tooltip=tooltip, layout=widgets.Layout(width=width))
    made.on_click(lambda _button: action())
    return made


def widget_of(key: Key) -> Any:
    """Return the control of a key: a list of its values if it has any, or a text field."""
    name = {"description": key.label, "tooltip": key.help or key.label}
    if not key.words:
        narrow = {"layout": widgets.Layout(width="222px", flex="0 0 auto")} if key.steps else {}
        return widgets.Text(continuous_update=False, **name, **(wide(key.label_px) | narrow))
    labels = {True: "yes", False: "no"}
    options = [
        word if isinstance(word, tuple) else (labels[word] if isinstance(word, bool) else word, word)
        for word in key.words
    ]
    return widgets.Dropdown(options=options, **name, **wide(key.label_px))
