# SPDX-License-Identifier: BSD-3-Clause
"""The notebooks as pages: executed, with figures and links that need no network.

`simlib reproduce` and ``make notebooks`` write a page a notebook, an index of cards, one plotly.js that all of them
share, the executed notebooks themselves, and whatever they link to: a page of ``docs/`` as a page, any other file as it
is.
"""

from __future__ import annotations

import copy
import html
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import nbformat
import plotly.graph_objects as go
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from markupsafe import Markup
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter
from pygments.formatters import HtmlFormatter

from simlib._lib.errors import InputError, SimlibError
from simlib._lib.files import write_text
from simlib._lib.parallel import Check, Progress, run_all
from simlib.figures.results import rendered
from simlib.ui.report.block import Card, Cards, Chart
from simlib.ui.report.page import Report, Section, page_style, plotly_js
from studies.study import KEPT, Answer

ROOT = Path(__file__).parents[1]
"""The source tree: what links in notebooks and pages are relative to."""

BOOKS = "notebooks"
PLOTLY_JS = "plotly.min.js"
TIMEOUT_S = 900
FIGURE = "application/vnd.plotly.v1+json"
WIDGET = "application/vnd.jupyter.widget-view+json"
QUESTION, ANSWER = "**Question.**", Answer()._repr_markdown_()
"""What a paragraph of the first cell of a notebook begins with, and the output of its last."""

_EXPORTER: Any = HTMLExporter(template_name="basic")
_LINK = re.compile(r'(?<![-\w])(href|src)="(?![a-z]+:|#|//)([^"#]+)(#[^"]*)?"')
_HEADING = re.compile(r'<h([1-6]) id="[^"]*">(.*?)<a class="anchor-link".*?</a></h\1>', re.DOTALL)
_TAG = re.compile(r"<[^>]+>")
_LICENCE = re.compile(r"<p>SPDX-License-Identifier: [^<]*</p>\n?")


def notebooks(only: Sequence[str] = ("",)) -> list[Path]:
    """Notebooks by parts of their names, such as ``"08"``; by default all.

    The explorer's is a page by itself, and never among them. Raises `InputError` if no notebook has such a name.
    """
    books = [path for path in sorted((ROOT / BOOKS).glob("*.ipynb")) if path.stem != "explorer"]
    chosen = [path for path in books if any(part in path.stem for part in only)]
    if not chosen:
        raise InputError("notebook", ", ".join(only), f"is no part of a name in {ROOT / BOOKS}", "give part of one")
    return chosen


def gallery(out: str | Path, only: Sequence[str] = ("",), progress: Progress | None = None) -> Path:
    """Execute notebooks (`notebooks`) and write a page of each, and an index; other files in the folder are left alone.

    Returns: ``index.html`` in that folder. Raises `SimlibError` if a cell of a notebook fails.
    """
    chosen = notebooks(only)
    with tempfile.TemporaryDirectory(prefix="simlib-") as private:
        pages = NotebookPages(Path(out), {KEPT: private})
        run_all([partial(pages.run, path) for path in chosen], [path.name for path in chosen], progress)
    pages.linked()
    return pages.index()


@dataclass
class NotebookPages:
    """Pages in a folder, and the files that they link to, each of them once.

    - `cards`: of the notebooks that were run, by their names.
    - `wanted`: files of the source tree that some page links to, with their place in the folder.
    """

    out: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    cards: dict[str, Card] = field(default_factory=dict)
    wanted: dict[Path, str] = field(default_factory=dict)

    def run(self, path: Path, check: Check = lambda: None) -> None:
        """Run a notebook, and write its page and the notebook with its outputs beside it.

        Its card has its heading, the question and picture of its first cell, and the sentence that its last cell shows.
        """
        check()
        began = time.monotonic()
        notebook = executed(path, self.environment)
        seconds = time.monotonic() - began
        write_text(self.out / path.name, nbformat.writes(notebook))
        shown, figures = _with_places(notebook)
        body = self.body(shown, path, path.name)
        for name, figure in figures.items():
            body = body.replace(f'<div id="{name}"></div>', Chart(figure, "").html(name))
        title, question, picture = _opening(notebook.cells[0].source)
        target = self.out / f"{path.stem}.html"
        self.write(target, title, body, charts=bool(figures))
        place = self.place(path.parent / picture, self.out) if picture else ""
        self.cards[path.stem] = Card(target.name, title, question, _closing(notebook), place or "", seconds)

    def body(self, notebook: nbformat.NotebookNode, path: Path, place: str) -> str:
        """Cells as HTML, with headings that can be linked to as on a forge, and links to where the files are now."""
        text, _ = _EXPORTER.from_notebook_node(notebook)
        text = _LICENCE.sub("", text)
        text = _HEADING.sub(lambda m: f'<h{m[1]} id="{slug(m[2])}">{m[2]}</h{m[1]}>', text)
        folder = (self.out / place).parent

        def moved(match: re.Match[str]) -> str:
            target = self.place(path.parent / html.unescape(match[2]), folder)
            return f'{match[1]}="{target}{match[3] or ""}"' if target else f'data-{match[1]}="{match[2]}"'

        return _LINK.sub(moved, text)

    def place(self, file: Path, folder: Path) -> str | None:
        """Address of a file of the source tree, as a page in `folder` links to it; None for what is not such a file."""
        file = Path(os.path.normpath(file))
        if not file.is_relative_to(ROOT) or not file.is_file():
            return None
        target = placed(file.relative_to(ROOT).as_posix())
        if file.parent != ROOT / BOOKS:
            self.wanted.setdefault(file, target)
        return Path(os.path.relpath(self.out / target, folder)).as_posix()

    def linked(self) -> None:
        """Write plotly.js, what the pages link to, what that links to, and so on."""
        write_text(self.out / PLOTLY_JS, plotly_js())
        done: set[Path] = set()
        while todo := [file for file in self.wanted if file not in done]:
            for file in todo:
                done.add(file)
                target = self.out / self.wanted[file]
                target.parent.mkdir(parents=True, exist_ok=True)
                if file.suffix != ".md":
                    shutil.copyfile(file, target)
                    continue
                cell = nbformat.v4.new_markdown_cell(file.read_text(encoding="utf-8"), id="page")
                body = self.body(nbformat.v4.new_notebook(cells=[cell]), file, self.wanted[file])
                self.write(target, _opening(cell.source)[0], body, charts=False)

    def write(self, target: Path, title: str, body: str, *, charts: bool) -> None:
        """One page."""
        up = os.path.relpath(self.out, target.parent)
        home = PurePosixPath(up) / "index.html"
        script = str(PurePosixPath(up) / PLOTLY_JS) if charts else ""
        write_text(target, _page(title, body, home=str(home), script=script))

    def in_order(self) -> list[Card]:
        """The cards, in the order of the notebooks' names."""
        return [card for _, card in sorted(self.cards.items())]

    def index(self) -> Path:
        """Write an index of nothing but notebooks: each with its question, its answer and its picture."""
        report = Report("simlib: the notebooks", sections=[Section("Notebooks", [Cards(self.in_order())])])
        return report.write(self.out / "index.html")


def executed(path: Path, environment: Mapping[str, str]) -> nbformat.NotebookNode:
    """A notebook with the outputs of a run in a kernel of its own, from top to bottom, in its folder.

    Raises `SimlibError` if a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    # No folder of kernelspecs: "python3" is then this interpreter, whatever else is installed.
    manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=KernelSpecManager(kernel_dirs=[]))
    resources = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, km=manager, timeout=TIMEOUT_S, startup_timeout=TIMEOUT_S, resources=resources)
    client.owns_km = True  # so that the kernel ends with the run
    client.extra_arguments = ["--log-level=ERROR"]  # a kernel warns that its sockets on this machine are not encrypted
    own = {"PYTHONPATH": str(ROOT), "PLOTLY_RENDERER": "plotly_mimetype"}
    try:
        client.execute(env={**os.environ, **own, **environment})
    except CellExecutionError as error:
        where = f"in the cell that begins {_first(error)!r}"
        raise SimlibError(f"{path.name}: {error.ename}: {error.evalue}, {where}") from None
    return notebook


def _first(error: CellExecutionError) -> str:
    lines = [line for line in str(error.traceback).splitlines() if line and not line.startswith(("An error", "---"))]
    return lines[0] if lines else ""


def placed(name: str) -> str:
    """Where a file of the source tree is in the gallery.

    Notebooks become pages beside the index, markdown becomes a page, a picture stays what it is; all else gets a name
    that a browser shows as text.

    >>> placed("notebooks/08-teardown.ipynb"), placed("docs/lab.md"), placed("docs/arm64-curves.svg")
    ('08-teardown.html', 'docs/lab.html', 'docs/arm64-curves.svg')
    >>> placed("simlib/lab/host/design.py")
    'simlib/lab/host/design.py.txt'
    """
    path = PurePosixPath(name)
    if path.parts[0] == BOOKS:
        return f"{path.stem}.html"
    if path.suffix == ".md":
        return str(path.with_suffix(".html"))
    return name if path.suffix in (".svg", ".png", ".txt") else f"{name}.txt"


def slug(heading: str) -> str:
    """The address of a heading, as forges make it.

    >>> slug("2.3 Teardown, by hand"), slug("When a <code>hold</code> ends")
    ('23-teardown-by-hand', 'when-a-hold-ends')
    """
    words = re.sub(r"[^\w\- ]", "", html.unescape(_TAG.sub("", heading)).lower())
    return words.strip().replace(" ", "-")


def _page(title: str, body: str, *, home: str, script: str) -> str:
    style = HtmlFormatter(style="friendly").get_style_defs(".highlight")
    return rendered(
        "studies", "book.html.j2", title=title, home=home, script=script,
        style=Markup(page_style() + style), body=Markup(body),  # noqa: S704  # of this package; of nbconvert
    )  # fmt: skip


def _with_places(notebook: nbformat.NotebookNode) -> tuple[nbformat.NotebookNode, dict[str, go.Figure]]:
    """A copy with a place where each figure stands, and the figures by the names of their places."""
    shown = copy.deepcopy(notebook)
    figures: dict[str, go.Figure] = {}
    for cell in shown.cells:
        for output in cell.get("outputs", []):
            data: dict[str, Any] = output.get("data", {})
            if FIGURE in data:
                name = f"figure-{len(figures) + 1}"
                figures[name] = go.Figure({part: data[FIGURE].get(part) for part in ("data", "layout")})
                output["data"] = {"text/html": f'<div id="{name}"></div>'}
            elif WIDGET in data:
                output["data"] = {"text/html": "<p class='live'>Sliders stand here while the notebook runs: "
                                               "<code>simlib explore --lab</code>.</p>"}  # fmt: skip
    shown.metadata.pop("widgets", None)
    return shown, figures


def _opening(source: str) -> tuple[str, str, str]:
    """Title, question and picture of a first cell."""
    title = re.search(r"^# (.+)$", source, re.MULTILINE)
    question = re.search(re.escape(QUESTION) + r"\s*(.+?)(?:\n\s*\n|\Z)", source, re.DOTALL)
    picture = re.search(r"!\[[^\]]*\]\(([^)]+)\)", source)
    return title[1] if title else "", _line(question[1] if question else ""), picture[1] if picture else ""


def _closing(notebook: nbformat.NotebookNode) -> str:
    """The answer that the last cell shows."""
    for cell in reversed(notebook.cells):
        texts = [o.get("data", {}).get("text/markdown", "") for o in cell.get("outputs", [])] or [cell.source]
        for text in texts:
            if text.startswith(ANSWER):
                return _line(text.removeprefix(ANSWER))
    return ""


def _line(text: str) -> str:
    """Words of a paragraph, without its links."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(text.split())).replace("`", "")


def main(arguments: Sequence[str]) -> None:
    """The command behind ``make notebooks``: a folder, and parts of the names of notebooks."""
    out, *only = arguments or ["build/notebooks"]
    try:
        print(gallery(out, only or [""], lambda text, share: print(f"{share:4.0%} {text}", flush=True)))
    except SimlibError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
