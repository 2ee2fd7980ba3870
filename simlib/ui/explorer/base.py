# SPDX-License-Identifier: BSD-3-Clause
"""Base of the explorer's pages: state, simulation in the background, figures, messages and files to save."""

from __future__ import annotations

import asyncio
import json
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import ipywidgets as widgets
import plotly.graph_objects as go
from IPython import get_ipython
from markupsafe import Markup, escape

from simlib._lib.errors import InputError, RunInterruptedError, SimlibError
from simlib._lib.parallel import Check
from simlib.ui.explorer.canvas import IMAGES, Canvas
from simlib.ui.explorer.fields import Fields, auto, button, note
from simlib.ui.explorer.findings import PartialFindings
from simlib.ui.explorer.state import ExplorerQuestion

DRAWING_S, LOADING_S = 0.5, 5.0
"""Maximum times, s, that the simulation waits for a browser to draw an answer, and to load the page."""

PICTURES = (*IMAGES, "pdf")
PATIENCE_S = 5.0
SLOW = "Still simulating … (the first simulation compiles the simulator, which takes up to half a minute)"

Q = TypeVar("Q", bound=ExplorerQuestion)
K = TypeVar("K", bound=PartialFindings[Any])


class ExplorerPage(ABC, Generic[Q, K]):
    """Page with controls on one side, sentences and figures on the other.

    The answer is simulated part by part in the background. A new state cancels the simulation for the old one.

    - `state`: first state, or the query of a URL; None: the state of the first visit.
    - `background`: False: simulate before returning, for scripts and tests.
    - `NAME`, `TAB`: value of the parameter ``page`` in a URL, and label of its button.
    - `ASKS`, `FINDS`, `CONTROLS`: classes of its states, of its findings, and of its controls.
    - `TITLE`, `ABOUT`: its heading, and a sentence on what to do on the page.
    - `FIGURES`: titles of its figures by name.
    - `STANDARD`: name of the state that the page shows if a URL is invalid.
    """

    NAME: ClassVar[str] = ""
    TAB: ClassVar[str]
    ASKS: ClassVar[type[Any]]
    FINDS: ClassVar[type[Any]]
    CONTROLS: ClassVar[type[Any]]
    TITLE: ClassVar[str]
    ABOUT: ClassVar[str]
    FIGURES: ClassVar[Mapping[str, str]]
    STANDARD: ClassVar[str]

    def __init__(self, state: Q | str | None = None, *, background: bool = True) -> None:
        self._wrong = ""
        try:
            first: Q = self.ASKS.from_query(state or "") if state is None or isinstance(state, str) else state
        except InputError as error:
            first = self.ASKS.from_query("")
            self._wrong = f"The URL is invalid: {error}. The page shows {self.STANDARD}. "
        self._background = background
        self._cancelled = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
        self.canvas = Canvas()
        self.controls: Fields[Q] = self.CONTROLS(first, self._ask)
        self._words, self._status = widgets.HTML(), widgets.HTML()
        self._words.add_class("simlib-words")
        self._cancel = button("Cancel", self.cancel, width="80px")
        self._note = note()
        self._figure = widgets.Dropdown(options=[(title, name) for name, title in self.FIGURES.items()], layout=auto())
        self.findings: K = self.FINDS(first, 0)
        self.widget = self._build()
        if (shell := get_ipython()) is not None:  # the kernel exits: it would wait for the simulation
            shell.observe(lambda _change: self._cancelled.set(), "exit_now")
        self._ask(first)

    @abstractmethod
    def _stages(self, state: Q, check: Check) -> Iterator[tuple[str, object]]:
        """Simulate part by part; `check` raises when the state has changed."""

    @abstractmethod
    def _show(self, part: str) -> None:
        """Update the page for a part of the answer; `part` is ``first`` when the state is new."""

    @abstractmethod
    def _build(self) -> widgets.Widget:
        """Return the whole page (`_laid_out`)."""

    def calls(self) -> str:
        """Return the Python call and the command that give this page's table."""
        name, query = type(self).__name__, self.state.query
        call = f"{name}({query!r}, background=False).findings.table()"
        return f"from simlib.ui.explorer import {name}\n{call}\n\n{self.state.command}"

    @property
    def state(self) -> Q:
        """Current state."""
        return self.controls.state

    def _repr_mimebundle_(self, **given: Any) -> Any:
        return self.widget._repr_mimebundle_(**given)

    def load(self, state: Q) -> None:
        """Change to another state."""
        self.controls.show(state)
        self._ask(state)

    def cancel(self) -> None:
        """Stop simulating; results so far are kept."""
        self._cancelled.set()
        self._say("cancelled: the remaining parts were not simulated")

    def _ask(self, state: Q) -> None:
        self._cancelled.set()
        self.findings = self.FINDS(state, self.findings.generation + 1)
        if self.findings.generation > 1:
            self._wrong = ""
        self.canvas.query = state.query
        self._cancel.disabled = False
        self._say("Simulating …")
        self._show("first")
        cancelled = self._cancelled = threading.Event()
        if self._background:
            self._thread = threading.Thread(target=self._refine, args=(self.findings, cancelled), daemon=True)
            self._thread.start()
        else:
            self._refine(self.findings, cancelled)

    def _refine(self, findings: K, cancelled: threading.Event) -> None:
        """Simulate part by part, in a separate thread."""

        def check(*_: object) -> None:
            if cancelled.is_set():
                raise RunInterruptedError("the state was changed")

        if self._background:  # otherwise, they would compete for the CPUs
            self.canvas.wait_until_drawn(findings.generation, DRAWING_S if findings.generation > 1 else LOADING_S)
        patience = threading.Timer(PATIENCE_S, lambda: self._later(findings, partial(self._say, SLOW)))
        patience.daemon = True
        patience.start()
        try:
            for name, result in self._stages(findings.state, check):
                check()
                self._later(findings, partial(self._take, findings, name, result))
            self._later(findings, lambda: self._end(findings))
        except RunInterruptedError:
            return
        except SimlibError as error:
            text = str(error)
            self._later(findings, lambda: self._say(text, error=True))
        except Exception as error:  # otherwise, an error in a thread would not be shown
            if cancelled.is_set():  # such as a pool of threads that starts no task because the kernel exits
                return
            traceback.print_exc()
            text = f"{type(error).__name__}: {error}"
            self._later(findings, lambda: self._say(f"this is a bug in simlib; please report it: {text}", error=True))
        finally:
            patience.cancel()

    def _later(self, findings: K, action: Callable[[], None]) -> None:
        """Call `action` in the thread of the widgets, unless the state has changed by then."""

        def unless_stale() -> None:
            if self.findings is findings:
                action()

        if self._background and self._loop is not None:
            self._loop.call_soon_threadsafe(unless_stale)
        else:
            unless_stale()

    def _take(self, findings: K, name: str, result: Any) -> None:
        findings.parts[name] = result
        self._show(name)

    def _end(self, findings: K) -> None:
        self._say("Simulated.")
        self._cancel.disabled = True
        self.canvas.show({}, generation=findings.generation, part="done")

    def _say(self, text: str, *, error: bool = False) -> None:
        """Show a message; an error in the URL is shown before the message until the state changes."""
        red, message = Markup("<span class='simlib-error'>{}</span>"), escape(text)
        before = red.format(self._wrong) if self._wrong else ""
        self._status.value = before + (red.format(message) if error else message)

    def _laid_out(self, side: list[widgets.Widget], bar: list[widgets.Widget], main: list[widgets.Widget]) -> Any:
        """Return the page: controls, sentences, a bar of buttons, and `main` below it."""
        head = widgets.HTML(Markup("<h1>{}</h1><p>{}</p>").format(self.TITLE, self.ABOUT))
        across = widgets.Layout(flex_flow="row wrap", align_items="center")
        row = widgets.Box([self._cancel, *bar, self._status], layout=across)
        parts = {"head": head, "controls": widgets.VBox(side), "main": widgets.VBox([self._words, row, *main])}
        page = widgets.Box(list(parts.values()))
        for name, part in (parts | {"explorer": page}).items():
            part.add_class(f"simlib-{name}")
        page.add_class(f"simlib-{self.NAME or 'strategies'}")
        return page

    def _exports(self, files: Mapping[str, tuple[str, Callable[[], bytes]]], *before: widgets.Widget) -> widgets.Widget:
        """Return the controls that save files and images, and that show the calls for this answer."""
        code = widgets.Textarea(rows=5, disabled=True, layout=auto())
        saves = [button(label, partial(self._try, self._save, *file)) for label, file in files.items()]
        images = [button(kind.upper(), partial(self._try, self._save_image, kind), width="60px") for kind in PICTURES]
        call = button("Python and command line", lambda: setattr(code, "value", self.calls()))
        return widgets.VBox([*before, *saves, self._figure, widgets.HBox(images), call, code, self._note])

    def _save(self, name: str, content: Callable[[], bytes]) -> None:
        self.canvas.save(name, content())

    def _save_image(self, kind: str) -> None:
        name = self._figure.value
        if kind in IMAGES:
            self.canvas.save_image(name, kind)
        else:
            self.canvas.save(f"{name}.pdf", as_pdf(go.Figure(json.loads(self.canvas.figures[name]))))

    def _try(self, action: Callable[..., None], *given: Any) -> None:
        """Call the action of a button, and show its error next to the button."""
        self._note.value = ""
        try:
            action(*given)
        except (SimlibError, UnicodeDecodeError) as error:
            self._note.value = escape(str(error))


def as_pdf(figure: go.Figure) -> bytes:
    """Return a figure as PDF, drawn by Chrome or Chromium; raises `SimlibError` without a browser."""
    try:
        return bytes(figure.to_image(format="pdf", width=1000, height=560))
    except (ImportError, RuntimeError, ValueError, OSError) as error:
        first = str(error).strip().splitlines()[0]
        raise SimlibError(
            f"a PDF needs kaleido (simlib[plot-files]) and Chrome or Chromium; SVG needs neither ({first})"
        ) from None
