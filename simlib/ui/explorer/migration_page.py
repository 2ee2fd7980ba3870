# SPDX-License-Identifier: BSD-3-Clause
"""Page about one migration: whether it converges, how long it takes, and which settings to use."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import ipywidgets as widgets
from markupsafe import Markup, escape

from simlib._lib.errors import InputError
from simlib._lib.parallel import Check
from simlib.analysis.migrate import Migration
from simlib.figures.explorer import empty
from simlib.figures.migration import migration_passes
from simlib.figures.results import html_of, rendered
from simlib.ui.explorer.base import ExplorerPage
from simlib.ui.explorer.drawing import WAITING
from simlib.ui.explorer.fields import Fields, nearest
from simlib.ui.explorer.findings import MigrationFindings, migration_answer
from simlib.ui.explorer.log_area import LogArea
from simlib.ui.explorer.migration_inputs import (
    BY_NAME,
    EMIT_PART,
    GUEST_PART,
    MORE_PART,
    NOT_GIVEN,
    PARTS,
    ROWS,
    SETTINGS_PART,
    TARGETS_PART,
    number,
)
from simlib.ui.explorer.migration_state import LOG_FILE, MigrationState, first_texts
from simlib.ui.explorer.state import Key
from simlib.vmm.plans import tool_of

FIGURE = "migration_passes"


class MigrationControls(Fields[MigrationState]):
    """Controls of the page: one for each row of `ROWS`, and the log.

    >>> states = []
    >>> controls = MigrationControls(MigrationState(), states.append)
    >>> controls.set("memory", "8G")
    >>> controls.errors["memory"]
    "dirty = over 40 GiB: is more than the guest's memory; give a smaller working set, or a larger memory"
    >>> controls.set("working-set", "1G")
    >>> controls.errors, states[-1].guest.description
    ({}, '64 vCPUs, 8 GiB, 25Gbit/s; 900,000 writes/s over 1 GiB')
    """

    OWN_KEYS = tuple(BY_NAME.values())

    def _build(self) -> tuple[widgets.Widget, widgets.Widget]:
        self._make({"log": LogArea()})
        parts = {title: self._shown(*(key.path for key in keys)) for title, keys in ROWS.items()}
        titles = (TARGETS_PART, MORE_PART, SETTINGS_PART)
        folds = [widgets.VBox(parts[title]) for title in titles]
        self.paste = widgets.VBox(parts[EMIT_PART])
        choice = widgets.VBox([*self._shown("log"), *parts[GUEST_PART]])
        return choice, widgets.Accordion(folds, titles=titles, selected_index=0)

    def show(self, state: MigrationState) -> None:
        """Set every control to a state, and name a missing value below its control."""
        super().show(state)
        if state.missing is not None:
            (first, *_) = PARTS.get(state.missing.what) or (BY_NAME[state.missing.what],)
            self._notes[first.path].value = escape(str(state.missing))

    def _fill(self, state: MigrationState) -> None:
        self._widgets["log"].value = state.log
        for name, key in self._keys.items():
            known, widget = state.known_text(name) or NOT_GIVEN[0], self._widgets[name]
            if not key.words:
                widget.placeholder = known
            elif key.words[0] == NOT_GIVEN:
                widget.options = [(known, ""), *((word, word) for word in key.words[1:])]
            for part in self._rows[name]:
                part.layout.display = None if state.matters(name) else "none"
        super()._fill(state)

    def _asked(self, state: MigrationState, name: str, value: Any) -> MigrationState:
        return state.with_log(value) if name == "log" else MigrationState({**state.texts, name: value}, state.log)

    def _value(self, state: MigrationState, key: Key) -> str:
        return state.texts[key.name]

    def _step(self, state: MigrationState, key: Key) -> int:
        if not state.matters(key.name):  # its string may break a rule
            return 0
        return nearest(state.value(key.name) or 0, (number(key.name, str(step)) or 0 for step in key.steps))


class MigrationPage(ExplorerPage[MigrationState, MigrationFindings]):
    """Page about a migration. To show it, make it the last expression of a notebook cell.

    >>> page = MigrationPage("page=migration&memory=8G&working-set=1G", background=False)
    >>> page.findings.parts["answer"].recommended.name
    'throttle <= 70 %'
    """

    NAME = "migration"
    TAB = "A migration"
    ASKS, FINDS, CONTROLS = MigrationState, MigrationFindings, MigrationControls
    TITLE = "Will this migration converge, and which settings should I use?"
    ABOUT = (
        "Paste the log of a migration, or describe the guest, and set targets. The page shows how long the migration "
        "takes, how fast the guest runs meanwhile, and which settings to choose."
    )
    controls: MigrationControls
    FIGURES: ClassVar = {FIGURE: "Passes of the migration"}
    STANDARD = "the first example"
    _answered: tuple[Any, Migration] | None = None
    """The last question and its answer, which also holds for another output format with the same tool."""

    def change(self, **texts: str) -> None:
        """Change the state as the controls do; the parameters are those of `MigrationState.changed`."""
        self.load(self.state.changed(**texts))

    def calls(self) -> str:
        """Return the Python call and the command that give this page's table; both read a log from `LOG_FILE`."""
        if not self.state.log:
            return super().calls()
        first = first_texts(self.state.log)
        texts = {name: text for name, text in self.state.texts.items() if text != first[name]}
        return (
            "from pathlib import Path\nfrom simlib.ui.explorer import MigrationState, find_migration\n"
            f"find_migration(MigrationState({texts!r}, Path({LOG_FILE!r}).read_text(encoding='utf-8'))).table()\n\n"
            f"{self.state.command}"
        )

    def _stages(self, state: MigrationState, check: Check) -> Iterator[tuple[str, object]]:
        if state.missing is not None:
            raise state.missing
        question = state.guest, state.targets, tool_of(state.texts["emit"])
        if self._answered is None or self._answered[0] != question:
            self._answered = question, migration_answer(state, check)
        yield "answer", self._answered[1]

    def _show(self, part: str) -> None:
        result: Migration | None = self.findings.parts.get("answer")
        drawn = {}
        if part == "first":
            known = self.findings.state.known
            notes = [*known.notes, *known.missing.values()]
            self._log_notes.value = rendered("simlib.ui.explorer", "log_notes.html.j2", notes=notes)
        if result is not None:
            self._words.value = rendered("simlib.ui.explorer", "migration.html.j2", lines=result.summary_lines())
            self._plans.value = html_of(result.readable())
            self._pasted.value = Markup("<pre>{}</pre>").format(result.paste(self.findings.state.texts["emit"]))
            drawn = {FIGURE: migration_passes(result.passes)}
        elif self.findings.generation == 1:
            drawn = {FIGURE: empty(self.FIGURES[FIGURE], WAITING)}
        stale = [] if result is not None else [FIGURE]
        for widget in (self._words, self._plans, self._pasted):
            (widget.add_class if stale else widget.remove_class)("simlib-stale")
        self.canvas.show(drawn, generation=self.findings.generation, part=part, stale=stale)

    def _build(self) -> widgets.Widget:
        self._plans, self._pasted, self._log_notes = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self._log_notes.add_class("simlib-notes")
        files: dict[str, tuple[str, Callable[[], bytes]]] = {
            "plans (CSV)": ("plans.csv", lambda: self.findings.table().to_csv(index=False).encode()),
            "answer (JSON)": (
                "migrate.json",
                lambda: json.dumps(self._answer().to_dict(), indent=1).encode(),
            ),
            "log (text)": (LOG_FILE, self._log_bytes),
        }
        keep = widgets.Accordion([self._exports(files)], titles=("Save",), selected_index=None)
        paste = widgets.VBox([self.controls.paste, self._pasted])
        main = [paste, self._log_notes, self.canvas, self._plans]
        return self._laid_out([self.controls.choice, self.controls.folds, keep], [], main)

    def _answer(self) -> Migration:
        answer: Migration | None = self.findings.parts.get("answer")
        if answer is None:
            raise InputError("answer", "none", "is not simulated", "wait until it is simulated, or correct the input")
        return answer

    def _log_bytes(self) -> bytes:
        if not self.state.log:
            raise InputError("log", "empty", "there is nothing to save", "paste a log")
        return self.state.log.encode()
