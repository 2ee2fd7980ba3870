# SPDX-License-Identifier: BSD-3-Clause
"""Page about mmu_lock: strategies for holding it, for one guest."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import ipywidgets as widgets

from simlib._lib.errors import InputError
from simlib._lib.parallel import Check
from simlib.simulator.engine.timeline import perfetto_trace
from simlib.ui.explorer import answers
from simlib.ui.explorer.base import ExplorerPage
from simlib.ui.explorer.controls import Controls
from simlib.ui.explorer.drawing import SIMULATED, TITLES, draw
from simlib.ui.explorer.fields import auto
from simlib.ui.explorer.findings import Findings
from simlib.ui.explorer.state import ExplorerState
from simlib.ui.explorer.words import answer, grounds_in_words


class Explorer(ExplorerPage[ExplorerState, Findings]):
    """Page about strategies for mmu_lock. To show it, make it the last expression of a notebook cell.

    Theory answers at once; simulation refines the answer in the background, part by part.

    >>> page = Explorer(background=False)
    >>> page.change({"guest": {"vcpus": 32}})
    >>> sorted(page.findings.parts)
    ['baseline', 'batches', 'curve', 'glimpse', 'ranges', 'trips']
    """

    TAB = "mmu_lock"
    ASKS, FINDS, CONTROLS = ExplorerState, Findings, Controls
    TITLE = "What does another strategy for mmu_lock cost?"
    ABOUT = (
        "Choose a guest and a strategy for KVM's mmu_lock. The page shows how the strategy affects the guest's longest "
        "stall during migration, and the CPU time of CLEAR."
    )
    FIGURES: ClassVar = TITLES
    STANDARD = "the preset guest"

    def change(self, changes: dict[str, dict[str, Any]] | None = None, **others: Any) -> None:
        """Change the state as the controls do; the parameters are those of `ExplorerState.changed`."""
        self.load(self.state.changed(changes, **others))

    def _stages(self, state: ExplorerState, check: Check) -> Iterator[tuple[str, object]]:
        return answers.stages(state, check)

    def _show(self, part: str) -> None:
        findings = self.findings
        drawn = draw(findings, part, self._others.value)
        known = bool({"trips", "reason"} & set(findings.parts))
        if known or not self._words.value:
            self._words.value = answer(findings)
        (self._words.remove_class if known else self._words.add_class)("simlib-stale")
        self._grounds.value = grounds_in_words(findings)
        if part == "first":
            host = findings.state.scenario.host.name if len(findings.theory.published) else "ampere-altra"
            self._others.description = f"Show measured curves ({host})"
        stale = [name for name, needed in SIMULATED.items() if not {*needed, "reason"} & set(findings.parts)]
        self.canvas.show(drawn, generation=findings.generation, part=part, stale=stale)

    def _build(self) -> widgets.Widget:
        self._grounds = widgets.HTML()
        self._others = widgets.ToggleButton(layout=auto(), tooltip="adds points to the figure about faults")
        self._others.observe(lambda _change: self._show("curve"), names="value")
        upload = widgets.FileUpload(description="open a scenario", accept=".toml", layout=auto())
        upload.observe(lambda change: self._try(self._open, change["new"]), names="value")
        files: dict[str, tuple[str, Callable[[], bytes]]] = {
            "scenario (TOML)": ("scenario.toml", lambda: self.state.to_toml().encode()),
            "table (CSV)": ("explorer.csv", lambda: self.findings.table().to_csv(index=False).encode()),
            "trace (Perfetto)": ("trace.json", self._trace),
        }
        titles = ("Open and save", "Evidence for the numbers")
        keep = widgets.Accordion([self._exports(files, upload), self._grounds], titles=titles, selected_index=None)
        return self._laid_out([self.controls.choice, self.controls.folds, keep], [self._others], [self.canvas])

    def _trace(self) -> bytes:
        window = self.findings.parts.get("glimpse")
        if window is None:
            raise InputError("trace", "none", "is not simulated yet", "wait until the figures of the lock are drawn")
        return json.dumps(perfetto_trace(window)).encode()

    def _open(self, files: Any) -> None:
        for given in files:
            self.load(ExplorerState.from_toml(bytes(given["content"]).decode("utf-8")))
