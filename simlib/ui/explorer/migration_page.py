# SPDX-License-Identifier: BSD-3-Clause
"""Page about one migration: whether it converges, how long it takes, and which settings to use."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import ipywidgets as widgets
from markupsafe import Markup

from simlib._lib.parallel import Check
from simlib.analysis.migrate import Migration
from simlib.figures.explorer import empty
from simlib.figures.migration import migration_passes
from simlib.figures.results import html_of, rendered
from simlib.ui.explorer.base import ExplorerPage
from simlib.ui.explorer.drawing import WAITING
from simlib.ui.explorer.fields import Fields, nearest
from simlib.ui.explorer.findings import MigrationFindings, migration_answer
from simlib.ui.explorer.migration_state import BY_NAME, GUEST, ROWS, SETTINGS, TARGETS, MigrationState, number
from simlib.ui.explorer.state import Key
from simlib.vmm.paste import SETTABLE

FIGURE = "migration_passes"


class MigrationControls(Fields[MigrationState]):
    """Controls of the page, one for each row of `ROWS`.

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
        self._make()
        parts = {title: self._shown(*(key.path for key in keys)) for title, keys in ROWS.items()}
        folds = [widgets.VBox(parts[title]) for title in (TARGETS, SETTINGS)]
        self.paste = widgets.VBox(parts["Paste"])
        return widgets.VBox(parts[GUEST]), widgets.Accordion(folds, titles=(TARGETS, SETTINGS), selected_index=0)

    def _fill(self, state: MigrationState) -> None:
        super()._fill(state)
        for name in self._keys:
            for part in self._rows[name]:
                part.layout.display = None if state.matters(name) else "none"

    def _asked(self, state: MigrationState, name: str, value: Any) -> MigrationState:
        return MigrationState({**state.texts, name: value})

    def _value(self, state: MigrationState, key: Key) -> str:
        return state.texts[key.name]

    def _step(self, state: MigrationState, key: Key) -> int:
        value, *steps = (number(key.name, str(text)) or 0 for text in (state.texts[key.name], *key.steps))
        return nearest(value, steps)


class MigrationPage(ExplorerPage[MigrationState, MigrationFindings]):
    """Page about a migration. To show it, make it the last expression of a notebook cell.

    >>> page = MigrationPage("page=migration&memory=8G&working-set=1G", background=False)
    >>> page.findings.parts["answer"].recommended.name
    'no throttle'
    """

    NAME = "migration"
    TAB = "A migration"
    ASKS, FINDS, CONTROLS = MigrationState, MigrationFindings, MigrationControls
    TITLE = "Will this migration converge, and which settings should I use?"
    ABOUT = (
        "Describe the guest's writes, and set targets. The page shows how long the migration takes, how fast the guest "
        "runs meanwhile, and which QEMU settings to choose."
    )
    controls: MigrationControls
    FIGURES: ClassVar = {FIGURE: "Passes of the migration"}
    STANDARD = "the first example"
    _answered: Migration | None = None
    """The last answer; it is simulated again for another output format only if this format has other settings."""

    def change(self, **texts: str) -> None:
        """Change the state as the controls do; the parameters are those of `MigrationState.changed`."""
        self.load(self.state.changed(**texts))

    def _stages(self, state: MigrationState, check: Check) -> Iterator[tuple[str, object]]:
        result = self._answered
        question = state.guest, state.targets, SETTABLE.get(state.texts["emit"])
        if result is None or (result.guest, result.targets, SETTABLE.get(result.emit)) != question:
            result = self._answered = migration_answer(state, check)
        yield "answer", result

    def _show(self, part: str) -> None:
        result: Migration | None = self.findings.parts.get("answer")
        drawn = {}
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
        self._plans, self._pasted = widgets.HTML(), widgets.HTML()
        files: dict[str, tuple[str, Callable[[], bytes]]] = {
            "plans (CSV)": ("plans.csv", lambda: self.findings.table().to_csv(index=False).encode()),
            "answer (JSON)": (
                "migrate.json",
                lambda: json.dumps(self.findings.parts["answer"].to_dict(), indent=1).encode(),
            ),
        }
        keep = widgets.Accordion([self._exports(files)], titles=("Save",), selected_index=None)
        paste = widgets.VBox([self.controls.paste, self._pasted])
        return self._laid_out([self.controls.choice, self.controls.folds, keep], [], [paste, self.canvas, self._plans])
