# SPDX-License-Identifier: BSD-3-Clause
"""What every page of the explorer does: it asks in the background, shows what was asked last, and gives it away."""

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
from markupsafe import Markup, escape

from simlib._lib.errors import InputError, RunInterruptedError, SimlibError
from simlib._lib.parallel import Check
from simlib.ui.explorer.canvas import IMAGES, Canvas
from simlib.ui.explorer.fields import Fields, auto, button, note
from simlib.ui.explorer.findings import KnownCosts
from simlib.ui.explorer.state import ExplorerQuestion

DRAWING_S, LOADING_S = 0.5, 5.0
"""How long the simulation lets a browser draw an answer, and load the page before the first one, at most, s."""

PICTURES = (*IMAGES, "pdf")
PATIENCE_S = 5.0
SLOW = "Still simulating … (after an installation the simulator is compiled once, for up to half a minute)"

Q = TypeVar("Q", bound=ExplorerQuestion)
K = TypeVar("K", bound=KnownCosts[Any])


class ExplorerPage(ABC, Generic[Q, K]):
    """A page: controls on one side, words and figures on the other.

    Its answer comes part by part, simulated in the background. A new question cancels what is still being simulated for
    the old one.

    - `state`: what is asked first: a state, the query of a URL, or nothing for what a first visit shows.
    - `background`: False: simulate before returning, for scripts and tests.
    """

    NAME: ClassVar[str] = ""
    """What an address says of ``page``."""

    TAB: ClassVar[str]
    """What its button says."""

    ASKS: ClassVar[type[Any]]
    """The class of its states."""

    TITLE: ClassVar[str]
    ABOUT: ClassVar[str]
    """What to do on it, in a sentence."""

    FIGURES: ClassVar[Mapping[str, str]]
    """Its figures, and their titles."""

    STANDARD: ClassVar[str]
    """What it shows if an address was not understood."""

    def __init__(self, state: Q | str | None = None, *, background: bool = True) -> None:
        self._wrong = ""
        try:
            asked: Q = self.ASKS.from_query(state or "") if state is None or isinstance(state, str) else state
        except InputError as error:
            asked = self.ASKS.first()
            self._wrong = f"The address was not understood: {error}. This is {self.STANDARD}. "
        self._background = background
        self._cancelled = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
        self.canvas = Canvas()
        self.controls = self._controls(asked)
        self._words, self._status = widgets.HTML(), widgets.HTML()
        self._words.add_class("simlib-words")
        self._cancel = button("Cancel", self.cancel, width="80px")
        self._note = note()
        self._figure = widgets.Dropdown(options=[(title, name) for name, title in self.FIGURES.items()], layout=auto())
        self.findings = self._known(asked, 0)
        self.widget = self._build()
        self._ask(asked)

    @abstractmethod
    def _controls(self, state: Q) -> Fields[Q]:
        """Its controls, which call `_ask`."""

    @abstractmethod
    def _known(self, state: Q, generation: int) -> K:
        """What is known of a state before anything is simulated."""

    @abstractmethod
    def _stages(self, state: Q, check: Check) -> Iterator[tuple[str, object]]:
        """What is simulated, part by part; `check` raises once it is not wanted any more."""

    @abstractmethod
    def _show(self, part: str) -> None:
        """Show what changes with a part of the answer; ``first``: a new question."""

    @abstractmethod
    def _build(self) -> widgets.Widget:
        """Everything, by `_laid_out`."""

    @abstractmethod
    def calls(self) -> str:
        """The Python call and the command that give the table of this page again."""

    @property
    def state(self) -> Q:
        """What is asked."""
        return self.controls.state

    def _repr_mimebundle_(self, **given: Any) -> Any:
        return self.widget._repr_mimebundle_(**given)

    def load(self, state: Q) -> None:
        """Ask about another state."""
        self.controls.show(state)
        self._ask(state)

    def cancel(self) -> None:
        """Stop simulating; what is there stays."""
        self._cancelled.set()
        self._say("cancelled: what is missing was not simulated")

    def _ask(self, state: Q) -> None:
        self._cancelled.set()
        self.findings = self._known(state, self.findings.generation + 1)
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

    def _refine(self, asked: K, cancelled: threading.Event) -> None:
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
            for name, found in self._stages(asked.state, check):
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

    def _later(self, asked: K, action: Callable[[], None]) -> None:
        """Do something in the thread of the widgets, unless another question was asked meanwhile."""

        def unless_stale() -> None:
            if self.findings is asked:
                action()

        if self._background and self._loop is not None:
            self._loop.call_soon_threadsafe(unless_stale)
        else:
            unless_stale()

    def _take(self, asked: K, name: str, found: Any) -> None:
        asked.parts[name] = found
        self._show(name)

    def _end(self, asked: K) -> None:
        self._say("Simulated.")
        self._cancel.disabled = True
        self.canvas.show({}, generation=asked.generation, part="done")

    def _say(self, text: str, *, error: bool = False) -> None:
        """Say what goes on; what was wrong with the address stays before it until something else is asked."""
        red, told = Markup("<span class='simlib-error'>{}</span>"), escape(text)
        self._status.value = (red.format(self._wrong) if self._wrong else "") + (red.format(told) if error else told)

    def _laid_out(self, side: list[widgets.Widget], bar: list[widgets.Widget], main: list[widgets.Widget]) -> Any:
        """The page: controls, then words, a bar of buttons, and what stands below it."""
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
        """What saves this page: a button a file, the pictures, and the calls that make it again."""
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
