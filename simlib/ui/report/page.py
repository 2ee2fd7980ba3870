# SPDX-License-Identifier: BSD-3-Clause
"""Report of a run: one HTML file that needs no other file and no network."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from itertools import count
from pathlib import Path
from typing import Any

import plotly.offline
from markupsafe import Markup

from simlib._lib.errors import InputError
from simlib._lib.files import write_text
from simlib.figures.results import rendered
from simlib.ui.report.block import Block, Chart, Prose, marked, prose_html


@dataclass(frozen=True)
class Section:
    """A heading with the blocks below it.

    - `blocks`: in reading order; a string is `Prose`.
    """

    title: str
    blocks: Sequence[Block | str]

    def __post_init__(self) -> None:
        if isinstance(self.blocks, str):
            raise InputError("section.blocks", self.blocks, "must be a list", "put the text in a list")
        blocks = tuple(Prose(block) if isinstance(block, str) else block for block in self.blocks)
        object.__setattr__(self, "blocks", blocks)


@dataclass(frozen=True)
class Report:
    """A report.

    - `facts`: what is needed to repeat the run, shown at the top: version, date, data set, seeds.
    """

    title: str
    subtitle: str = ""
    sections: Sequence[Section] = ()
    facts: Mapping[str, object] = field(default_factory=dict)

    def to_html(self) -> str:
        """Return the report as one HTML document, which contains plotly.js once if there is a chart."""
        charts = any(isinstance(block, Chart) for section in self.sections for block in section.blocks)
        anchors = _anchors([section.title for section in self.sections])
        values: dict[str, Any] = {"figure_numbers": count(1), "table_numbers": count(1), "next": next}
        values |= {"style": page_style(), "plotly_js": plotly_js() if charts else ""}
        values |= {"marked": marked, "prose": prose_html}
        return rendered("simlib.ui.report", "page.html.j2", report=self, anchors=anchors, **values)

    def write(self, path: str | Path) -> Path:
        """Write the report atomically: to a temporary file that is renamed when complete.

        Returns: The file that was written; missing folders are created. Raises `InputError` if the file cannot be
        written; an earlier report is then left unchanged.
        """
        return write_text(path, self.to_html())


def page_style() -> Markup:
    """Style sheet of every page."""
    text = resources.files("simlib.ui.report").joinpath("page.css").read_text(encoding="utf-8")
    return Markup(text)  # noqa: S704  # a file of this package


def plotly_js() -> Markup:
    """Return plotly.js from the installed package, changed so that it loads no maps from a content delivery network."""
    script = plotly.offline.get_plotlyjs().replace("https://cdn", "about:blank#cdn")
    return Markup(script)  # noqa: S704  # the package's own script


def _anchors(titles: list[str]) -> list[str]:
    anchors: list[str] = []
    for title in titles:
        word = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"
        anchor = f"section-{word}"
        anchors.append(anchor if anchor not in anchors else f"{anchor}-{len(anchors)}")
    return anchors
