# SPDX-License-Identifier: BSD-3-Clause
"""The explorer's figures in a browser: one widget, with one instance of Plotly for all."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anywidget
import plotly.graph_objects as go
import traitlets
from plotly.offline import get_plotlyjs

_HERE = Path(__file__).parent

IMAGES = ("svg", "png")  # formats that the browser writes itself


class Canvas(anywidget.AnyWidget):
    """Figures in a grid, by their names."""

    _esm = (_HERE / "canvas.js").read_text(encoding="utf-8")
    _css = (_HERE / "canvas.css").read_text(encoding="utf-8")

    figures = traitlets.Dict().tag(sync=True)
    stamp = traitlets.Dict({"generation": 0, "part": "", "stale": []}).tag(sync=True)
    query = traitlets.Unicode("").tag(sync=True)

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._drawn = threading.Condition()
        self._seen = 0
        self.on_msg(self._on_message)

    def show(self, figures: Mapping[str, go.Figure], *, generation: int, part: str, stale: Sequence[str] = ()) -> None:
        """Draw some figures, and leave the others unchanged; `stale` figures are shown pale."""
        with self.hold_sync():
            self.figures = self.figures | {name: figure.to_json() for name, figure in figures.items()}
            self.stamp = {"generation": generation, "part": part, "stale": list(stale)}

    def wait_until_drawn(self, generation: int, patience: float) -> None:
        """Wait until a browser has drawn an answer, but at most `patience` seconds, as there may be no browser."""
        with self._drawn:
            self._drawn.wait_for(lambda: self._seen >= generation, patience)

    def save(self, name: str, content: bytes) -> None:
        """Have the browser save a file."""
        self.send({"kind": "file", "name": name, "type": "application/octet-stream"}, [content])

    def save_image(self, figure: str, image: str) -> None:
        """Have the browser save a figure as an image in one of the formats `IMAGES`."""
        self.send({"kind": "image", "figure": figure, "format": image, "name": f"{figure}.{image}"})

    def _on_message(self, _widget: Any, content: Mapping[str, Any], _buffers: Any) -> None:
        if content.get("kind") == "pulse":
            self.send({"kind": "alive"})
        elif content.get("kind") == "plotly":
            self.send({"kind": "plotly"}, [get_plotlyjs().encode()])
        elif content.get("kind") == "drawn":
            with self._drawn:
                self._seen = int(content["generation"])
                self._drawn.notify_all()
