# SPDX-License-Identifier: BSD-3-Clause
"""Draw the pictures of README and of the notebooks. Needs kaleido and a Chrome or Chromium.

The README's picture is computed. A notebook's picture is one of its figures, taken from its execution by `make
reproduce` or `make notebooks`; a notebook that was not executed keeps its picture.
"""

import re
import sys
from pathlib import Path

import nbformat
import plotly.graph_objects as go

from simlib import figures
from studies.arm64 import STUDY
from studies.notebook_pages import FIGURE

HERE = Path(__file__).parent
TARGET = HERE / "arm64-curves.svg"
BUILD = HERE.parent / "build"

README_PICTURE = ("00-tour", "01-arm64-rwlock")
FIGURE_INDEX = {"02-contention-lab": 1, "07-lockless-write-protect": 1, "10-your-own-host": 1, "15-will-it-converge": 1}
"""Index of the figure that is a notebook's picture, if it is not the first. 00 and 01 use the README's."""


def write(figure: go.Figure, target: Path, height: int) -> None:
    """Write a figure as SVG, with coordinates rounded to a hundredth of a pixel."""
    text = figure.to_image("svg", width=900, height=height).decode()
    target.write_text(re.sub(r"(\.\d\d)\d+", r"\1", text), encoding="utf-8")
    print(target)


def draw_readme() -> None:
    """Draw the arm64 curves."""
    figure = figures.dirty_memory_time(
        STUDY.load_or_compute().tables["curves"],
        title="arm64, Ampere Altra: fitted up to 8 vCPUs, predicted up to 64",
    )
    write(figure, TARGET, 520)


def draw_notebooks() -> None:
    """Draw a figure of each notebook that was executed."""
    for path in sorted(path for run in ("report", "notebooks") for path in (BUILD / run).glob("*.ipynb")):
        if path.stem in README_PICTURE:
            continue
        cells = nbformat.read(path, as_version=4).cells
        figures_of_cells = [
            o["data"][FIGURE] for cell in cells for o in cell.get("outputs", []) if FIGURE in o.get("data", {})
        ]
        figure = go.Figure(
            {part: figures_of_cells[FIGURE_INDEX.get(path.stem, 0)][part] for part in ("data", "layout")}
        )
        write(figure, HERE / f"{path.stem}.svg", int(figure.layout.height or 520))


if __name__ == "__main__":
    if "--notebooks" not in sys.argv[1:]:
        draw_readme()
    draw_notebooks()
