# SPDX-License-Identifier: BSD-3-Clause
"""The explorer: controls, figures and words, in a page without code or in a cell of a notebook."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import threading
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import ipywidgets as widgets
import plotly.graph_objects as go
from markupsafe import Markup, escape

from simlib.engine.timeline import perfetto_trace
from simlib.errors import InputError, RunInterruptedError, SimlibError
from simlib.explorer import answers
from simlib.explorer.canvas import IMAGES, Canvas
from simlib.explorer.controls import Controls, auto, button, note
from simlib.explorer.drawing import SIMULATED, TITLES, draw
from simlib.explorer.findings import Findings
from simlib.explorer.state import State
from simlib.explorer.words import answer, grounds_in_words

ASKED = "QUERY_STRING"
"""The environment variable in which Voilà gives a page its address."""

DRAWING_S, LOADING_S = 0.5, 5.0
"""How long the simulation lets a browser draw an answer, and load the page before the first one, at most, s."""

PICTURES = (*IMAGES, "pdf")
PATIENCE_S = 5.0
TITLE = Markup(
    "<h1>What does another way of taking mmu_lock cost?</h1><p>Choose a guest and a strategy for KVM's mmu_lock, and "
    "read below what it does to the guest's longest stall while it migrates, and to CPU time.</p>"
)
SLOW = "Still simulating … (after an installation the simulator is compiled once, for a minute or two)"


class Explorer:
    """Explore how a migration's lock strategy plays out: put it last in a cell to show it.

    Theory answers at once; simulation refines the answer in the background, part by part. A new question cancels what
    is still being simulated for the old one.

    - `state`: what is asked first: a state, the query of a URL, or nothing for `State.first`.
    - `background`: False: simulate before returning, for scripts and tests.

    >>> page = Explorer(background=False)
    >>> page.change({"guest": {"vcpus": 32}})
    >>> sorted(page.findings.parts)
    ['batches', 'curve', 'glimpse', 'own', 'ranges', 'trips']
    """

    def __init__(self, state: State | str | None = None, *, background: bool = True) -> None:
        wrong = ""
        if isinstance(state, str):
            try:
                state = State.from_query(state)
            except InputError as error:
                wrong, state = str(error), None
        asked = state or State.first()
        self._background = background
        self._cancelled = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
        self.canvas = Canvas()
        self.controls = Controls(asked, self._ask)
        self._words, self._grounds = widgets.HTML(), widgets.HTML()
        self._words.add_class("simlib-words")
        self._status = widgets.HTML()
        self._others = widgets.ToggleButton(layout=auto(), tooltip="points in the picture of faults")
        self._others.observe(lambda _change: self._show("curve"), names="value")
        self._cancel = button("Cancel", self.cancel, width="80px")
        self.findings = Findings(asked)
        self.widget = self._build()
        self._ask(asked)
        if wrong:
            self._say(f"the address was not understood: {wrong}; this is the standard guest", error=True)

    @classmethod
    def from_environment(cls) -> Explorer:
        """The explorer of the address under which Voilà shows a page."""
        return cls(os.environ.get(ASKED, ""))

    @property
    def state(self) -> State:
        """What is asked."""
        return self.controls.state

    def _repr_mimebundle_(self, **given: Any) -> Any:
        return self.widget._repr_mimebundle_(**given)

    def change(self, changes: dict[str, dict[str, Any]] | None = None, **others: Any) -> None:
        """Ask something else, as the controls do; the parameters are those of `State.changed`."""
        self.load(self.state.changed(changes, **others))

    def load(self, state: State) -> None:
        """Ask about another state."""
        self.controls.show(state)
        self._ask(state)

    def cancel(self) -> None:
        """Stop simulating; what is there stays."""
        self._cancelled.set()
        self._say("cancelled: what is missing was not simulated")

    def _ask(self, state: State) -> None:
        self._cancelled.set()
        self.findings = Findings(state, self.findings.generation + 1)
        self.canvas.query = state.query
        self._show("first")
        cancelled = self._cancelled = threading.Event()
        if self._background:
            self._thread = threading.Thread(target=self._refine, args=(self.findings, cancelled), daemon=True)
            self._thread.start()
        else:
            self._refine(self.findings, cancelled)

    def _refine(self, asked: Findings, cancelled: threading.Event) -> None:
        """Simulate, part by part, in a thread of its own."""

        def check(*_: object) -> None:
            if cancelled.is_set():
                raise RunInterruptedError("another question was asked")

        if self._background:  # browser and simulation would share the CPUs
            self.canvas.wait_until_drawn(asked.generation, DRAWING_S if asked.generation > 1 else LOADING_S)
        patience = threading.Timer(PATIENCE_S, lambda: self._later(asked, partial(self._say, SLOW)))
        patience.daemon = True
        patience.start()
        try:
            for name, found in answers.stages(asked.state, check):
                check()
                self._later(asked, partial(self._take, asked, name, found))
            self._later(asked, lambda: self._end(asked))
        except RunInterruptedError:
            return
        except SimlibError as error:
            text = str(error)
            self._later(asked, lambda: self._say(text, error=True))
        except Exception as error:  # a thread's error would be seen by nobody
            traceback.print_exc()
            text = f"{type(error).__name__}: {error}"
            self._later(asked, lambda: self._say(f"a fault of simlib, please report it: {text}", error=True))
        finally:
            patience.cancel()

    def _later(self, asked: Findings, action: Callable[[], None]) -> None:
        """Do something in the thread of the widgets, unless another question was asked meanwhile."""

        def unless_stale() -> None:
            if self.findings is asked:
                action()

        if self._background and self._loop is not None:
            self._loop.call_soon_threadsafe(unless_stale)
        else:
            unless_stale()

    def _take(self, asked: Findings, name: str, found: Any) -> None:
        asked.parts[name] = found
        self._show(name)

    def _end(self, asked: Findings) -> None:
        self._say("Simulated.")
        self._cancel.disabled = True
        self.canvas.show({}, generation=asked.generation, part="done")

    def _show(self, part: str) -> None:
        found = self.findings
        drawn = draw(found, part, self._others.value)
        known = bool({"trips", "reason"} & set(found.parts))
        if known or not self._words.value:
            self._words.value = answer(found)
        (self._words.remove_class if known else self._words.add_class)("simlib-stale")
        self._grounds.value = grounds_in_words(found)
        if part == "first":
            self._cancel.disabled = False
            machine = found.state.scenario.machine.name if len(found.theory.published) else "ampere-altra"
            self._others.description = f"Show measured curves ({machine})"
            self._say("Simulating …")
        stale = [name for name, needed in SIMULATED.items() if not {*needed, "reason"} & set(found.parts)]
        self.canvas.show(drawn, generation=found.generation, part=part, stale=stale)

    def _say(self, text: str, *, error: bool = False) -> None:
        self._status.value = Markup("<span class='simlib-error'>{}</span>").format(text) if error else escape(text)

    def _build(self) -> widgets.Widget:
        side = widgets.VBox([self.controls.choice, self.controls.folds, self._exports()])
        bar = widgets.Box([self._cancel, self._others, self._status], layout=widgets.Layout(flex_flow="row wrap"))
        main = widgets.VBox([self._words, bar, self.canvas])
        page = widgets.Box([widgets.HTML(TITLE), side, main])
        for part, name in ((page.children[0], "head"), (side, "controls"), (main, "main"), (page, "explorer")):
            part.add_class(f"simlib-{name}")
        return page

    def _exports(self) -> widgets.Widget:
        self._note = note()
        self._figure = widgets.Dropdown(options=[(title, name) for name, title in TITLES.items()], layout=auto())
        self._code = widgets.Textarea(rows=5, disabled=True, layout=auto())
        upload = widgets.FileUpload(description="open a scenario", accept=".toml", layout=auto())
        upload.observe(lambda change: self._try(self._open, change["new"]), names="value")
        files: dict[str, tuple[str, Callable[[], bytes]]] = {
            "scenario (TOML)": ("scenario.toml", lambda: self.state.to_toml().encode()),
            "table (CSV)": ("explorer.csv", lambda: self.findings.table().to_csv(index=False).encode()),
            "trace (Perfetto)": ("trace.json", self._trace),
        }
        saves = [button(label, partial(self._try, self._save, *file)) for label, file in files.items()]
        images = [button(kind.upper(), partial(self._try, self._save_image, kind), width="60px") for kind in PICTURES]
        code = button("Python and command line", lambda: setattr(self._code, "value", self.calls()))
        parts = [upload, *saves, self._figure, widgets.HBox(images), code, self._code, self._note]
        titles = ("Open and save", "What the numbers rest on")
        return widgets.Accordion([widgets.VBox(parts), self._grounds], titles=titles, selected_index=None)

    def calls(self) -> str:
        """The Python call and the command that give the table of this page again."""
        query = self.state.query
        return (
            f"from simlib.explorer import Explorer\nExplorer({query!r}, background=False).findings.table()\n\n"
            f"simlib explore --query {shlex.quote(query)} --table explorer.csv"
        )

    def _trace(self) -> bytes:
        found = self.findings.parts.get("glimpse")
        if found is None:
            raise InputError("trace", "none", "the window was not simulated", "wait until it is")
        return json.dumps(perfetto_trace(found)).encode()

    def _save(self, name: str, content: Callable[[], bytes]) -> None:
        self.canvas.save(name, content())

    def _save_image(self, kind: str) -> None:
        name = self._figure.value
        if kind in IMAGES:
            self.canvas.save_image(name, kind)
        else:
            self.canvas.save(f"{name}.pdf", as_pdf(go.Figure(json.loads(self.canvas.figures[name]))))

    def _open(self, files: Any) -> None:
        for given in files:
            self.load(State.from_toml(bytes(given["content"]).decode("utf-8")))

    def _try(self, action: Callable[..., None], *given: Any) -> None:
        """Do what a button says, or say beside it what is wrong."""
        self._note.value = ""
        try:
            action(*given)
        except (SimlibError, UnicodeDecodeError) as error:
            self._note.value = escape(str(error))


def as_pdf(figure: go.Figure) -> bytes:
    """A figure as PDF, drawn by a Chrome or Chromium of this machine.

    Raises `SimlibError` if there is none.
    """
    try:
        return bytes(figure.to_image(format="pdf", width=1000, height=560))
    except (ImportError, RuntimeError, ValueError, OSError) as error:
        first = str(error).strip().splitlines()[0]
        raise SimlibError(
            f"a PDF needs kaleido (simlib[plot-files]) and a Chrome or Chromium; SVG needs neither ({first})"
        ) from None
