# SPDX-License-Identifier: BSD-3-Clause
"""HTML pages of the executed notebooks, with figures and links that need no network.

`simlib reproduce` and ``make notebooks`` write a page for each notebook, an index, one shared plotly.js, the executed
notebooks, and the files to which these link: markdown as a page, other files unchanged.
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
from simlib.figures.results import Answer, rendered
from simlib.ui.report.block import Card, Cards, Chart
from simlib.ui.report.page import Report, Section, page_style, plotly_js
from studies.study import FINDINGS_FOLDER

ROOT = Path(__file__).parents[1]
"""Root of the source tree."""

NOTEBOOKS = "notebooks"
PLOTLY_JS = "plotly.min.js"
TIMEOUT_S = 900
FIGURE = "application/vnd.plotly.v1+json"
WIDGET = "application/vnd.jupyter.widget-view+json"
QUESTION, ANSWER = "**Question.**", Answer()._repr_markdown_()
"""Beginnings of the question's paragraph in a notebook's first cell, and of the output of its last cell."""

_EXPORTER: Any = HTMLExporter(template_name="basic")
_LINK = re.compile(r'(?<![-\w])(href|src)="(?![a-z]+:|#|//)([^"#]+)(#[^"]*)?"')
_HEADING = re.compile(r'<h([1-6]) id="[^"]*">(.*?)<a class="anchor-link".*?</a></h\1>', re.DOTALL)
_TAG = re.compile(r"<[^>]+>")
_LICENCE = re.compile(r"<p>SPDX-License-Identifier: [^<]*</p>\n?")


def notebook_paths(only: Sequence[str] = ("",)) -> list[Path]:
    """Paths of the notebooks whose names contain one of the given parts, such as ``"08"``; by default all.

    The explorer's notebook is an application and is never included. Raises `InputError` if no name matches.
    """
    paths = [path for path in sorted((ROOT / NOTEBOOKS).glob("*.ipynb")) if path.stem != "explorer"]
    chosen = [path for path in paths if any(part in path.stem for part in only)]
    if not chosen:
        raise InputError("notebook", ", ".join(only), f"must be part of a notebook's name in {ROOT / NOTEBOOKS}")
    return chosen


def build_pages(out: str | Path, only: Sequence[str] = ("",), progress: Progress | None = None) -> Path:
    """Execute notebooks (see `notebook_paths`) and write their pages and an index; other files in `out` are kept.

    Returns: Path of ``index.html`` in `out`. Raises `SimlibError` if a cell of a notebook fails.
    """
    chosen = notebook_paths(only)
    with tempfile.TemporaryDirectory(prefix="simlib-") as private:
        pages = NotebookPages(Path(out), {FINDINGS_FOLDER: private})
        run_all([partial(pages.run, path) for path in chosen], [path.name for path in chosen], progress)
    pages.write_linked_files()
    return pages.index()


@dataclass
class NotebookPages:
    """Pages in the folder `out`, and the files to which they link, each written once.

    - `environment`: environment variables for the notebooks' kernels.
    - `cards`: index cards of the notebooks that were run, by name.
    - `linked_files`: files of the source tree to which a page links, with their targets in the folder.
    """

    out: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    cards: dict[str, Card] = field(default_factory=dict)
    linked_files: dict[Path, str] = field(default_factory=dict)

    def run(self, path: Path, check: Check = lambda: None) -> None:
        """Run a notebook, write its page and the executed notebook, and add its card.

        The card has the heading, question and picture of the first cell, and the answer that the last cell displays.
        """
        check()
        began = time.monotonic()
        notebook = execute(path, self.environment)
        seconds = time.monotonic() - began
        write_text(self.out / path.name, nbformat.writes(notebook))
        page, figures = _with_placeholders(notebook)
        body = self.body(page, path, path.name)
        for name, figure in figures.items():
            body = body.replace(f'<div id="{name}"></div>', Chart(figure, "").html(name))
        title, question, picture = _parse_first_cell(notebook.cells[0].source)
        target = self.out / f"{path.stem}.html"
        self.write(target, title, body, charts=bool(figures))
        image = self.link_to(path.parent / picture, self.out) if picture else ""
        self.cards[path.stem] = Card(target.name, title, question, _find_answer(notebook), image or "", seconds)

    def body(self, notebook: nbformat.NotebookNode, path: Path, target: str) -> str:
        """Convert cells to HTML, with anchors as on GitHub, and links to the pages written for the files."""
        text, _ = _EXPORTER.from_notebook_node(notebook)
        text = _LICENCE.sub("", text)
        text = _HEADING.sub(lambda m: f'<h{m[1]} id="{heading_anchor(m[2])}">{m[2]}</h{m[1]}>', text)
        folder = (self.out / target).parent

        def retarget(match: re.Match[str]) -> str:
            link = self.link_to(path.parent / html.unescape(match[2]), folder)
            return f'{match[1]}="{link}{match[3] or ""}"' if link else f'data-{match[1]}="{match[2]}"'

        return _LINK.sub(retarget, text)

    def link_to(self, file: Path, folder: Path) -> str | None:
        """Relative link from a page in `folder` to a file of the source tree; None if it is not such a file."""
        file = Path(os.path.normpath(file))
        if not file.is_relative_to(ROOT) or not file.is_file():
            return None
        target = target_path(file.relative_to(ROOT).as_posix())
        if file.parent != ROOT / NOTEBOOKS:
            self.linked_files.setdefault(file, target)
        return Path(os.path.relpath(self.out / target, folder)).as_posix()

    def write_linked_files(self) -> None:
        """Write plotly.js and the files that are linked, directly or through other files."""
        write_text(self.out / PLOTLY_JS, plotly_js())
        done: set[Path] = set()
        while todo := [file for file in self.linked_files if file not in done]:
            for file in todo:
                done.add(file)
                target = self.out / self.linked_files[file]
                target.parent.mkdir(parents=True, exist_ok=True)
                if file.suffix != ".md":
                    shutil.copyfile(file, target)
                    continue
                cell = nbformat.v4.new_markdown_cell(file.read_text(encoding="utf-8"), id="page")
                body = self.body(nbformat.v4.new_notebook(cells=[cell]), file, self.linked_files[file])
                self.write(target, _parse_first_cell(cell.source)[0], body, charts=False)

    def write(self, target: Path, title: str, body: str, *, charts: bool) -> None:
        """Write one page."""
        up = PurePosixPath(os.path.relpath(self.out, target.parent))
        style = Markup(page_style() + HtmlFormatter(style="friendly").get_style_defs(".highlight"))  # noqa: S704  # ours
        page = Markup(body)  # noqa: S704  # of nbconvert
        home, script = str(up / "index.html"), str(up / PLOTLY_JS) if charts else ""
        text = rendered("studies", "book.html.j2", title=title, home=home, script=script, style=style, body=page)
        write_text(target, text)

    def sorted_cards(self) -> list[Card]:
        """Cards in the order of the notebooks' names."""
        return [self.cards[name] for name in sorted(self.cards)]

    def index(self) -> Path:
        """Write an index of the notebooks, each with its question, answer and picture."""
        report = Report("simlib: the notebooks", sections=[Section("Notebooks", [Cards(self.sorted_cards())])])
        return report.write(self.out / "index.html")


def execute(path: Path, environment: Mapping[str, str]) -> nbformat.NotebookNode:
    """Run a notebook from top to bottom in a new kernel, in its folder, and return it with its outputs.

    Raises `SimlibError` if a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    # Without a folder of kernelspecs, "python3" is this interpreter, independent of installed kernels.
    manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=KernelSpecManager(kernel_dirs=[]))
    resources = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, km=manager, timeout=TIMEOUT_S, startup_timeout=TIMEOUT_S, resources=resources)
    client.owns_km = True  # so that the kernel ends with the run
    client.extra_arguments = ["--log-level=ERROR"]  # a kernel warns that its local sockets are not encrypted
    settings = {"PYTHONPATH": str(ROOT), "PLOTLY_RENDERER": "plotly_mimetype"}
    try:
        client.execute(env={**os.environ, **settings, **environment})
    except CellExecutionError as error:
        lines = (line for line in error.traceback.splitlines() if line and not line.startswith(("An error", "---")))
        cell = f"in the cell that begins {next(lines, '')!r}"
        raise SimlibError(f"{path.name}: {error.ename}: {error.evalue}, {cell}") from None
    return notebook


def target_path(name: str) -> str:
    """Path of a file of the source tree among the pages.

    Notebooks and markdown become pages. A picture keeps its name. Any other file gets the suffix ``.txt``, so that a
    browser displays it as text.

    >>> target_path("notebooks/08-teardown.ipynb"), target_path("docs/lab.md"), target_path("docs/arm64-curves.svg")
    ('08-teardown.html', 'docs/lab.html', 'docs/arm64-curves.svg')
    >>> target_path("simlib/lab/host/design.py")
    'simlib/lab/host/design.py.txt'
    """
    path = PurePosixPath(name)
    if path.parts[0] == NOTEBOOKS:
        return f"{path.stem}.html"
    if path.suffix == ".md":
        return str(path.with_suffix(".html"))
    return name if path.suffix in (".svg", ".png", ".txt") else f"{name}.txt"


def heading_anchor(heading: str) -> str:
    """Anchor of a heading, as GitHub generates it.

    >>> heading_anchor("2.3 Teardown, by hand"), heading_anchor("When a <code>hold</code> ends")
    ('23-teardown-by-hand', 'when-a-hold-ends')
    """
    words = re.sub(r"[^\w\- ]", "", html.unescape(_TAG.sub("", heading)).lower())
    return words.strip().replace(" ", "-")


def _with_placeholders(notebook: nbformat.NotebookNode) -> tuple[nbformat.NotebookNode, dict[str, go.Figure]]:
    """Return a copy with a placeholder for each figure, and the figures by the placeholder's name."""
    page = copy.deepcopy(notebook)
    figures: dict[str, go.Figure] = {}
    for cell in page.cells:
        for output in cell.get("outputs", []):
            data: dict[str, Any] = output.get("data", {})
            if FIGURE in data:
                name = f"figure-{len(figures) + 1}"
                figures[name] = go.Figure({part: data[FIGURE].get(part) for part in ("data", "layout")})
                output["data"] = {"text/html": f'<div id="{name}"></div>'}
            elif WIDGET in data:
                output["data"] = {"text/html": "<p class='live'>Interactive sliders appear here in a running notebook: "
                                               "<code>simlib explore --lab</code>.</p>"}  # fmt: skip
    page.metadata.pop("widgets", None)
    return page, figures


def _parse_first_cell(source: str) -> tuple[str, str, str]:
    """Title, question and picture of a notebook's first cell."""
    title = re.search(r"^# (.+)$", source, re.MULTILINE)
    question = re.search(re.escape(QUESTION) + r"\s*(.+?)(?:\n\s*\n|\Z)", source, re.DOTALL)
    picture = re.search(r"!\[[^\]]*\]\(([^)]+)\)", source)
    return title[1] if title else "", _plain_text(question[1] if question else ""), picture[1] if picture else ""


def _find_answer(notebook: nbformat.NotebookNode) -> str:
    """Answer that the last cell displays."""
    for cell in reversed(notebook.cells):
        texts = [o.get("data", {}).get("text/markdown", "") for o in cell.get("outputs", [])] or [cell.source]
        for text in filter(lambda text: text.startswith(ANSWER), texts):
            return _plain_text(text.removeprefix(ANSWER))
    return ""


def _plain_text(text: str) -> str:
    """Text of a paragraph without markup of links and code."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(text.split())).replace("`", "")


def main(arguments: Sequence[str]) -> None:
    """Run ``make notebooks``: the output folder, then parts of notebook names."""
    out, *only = arguments or ["build/notebooks"]
    try:
        print(build_pages(out, only or [""], lambda text, share: print(f"{share:4.0%} {text}", flush=True)))
    except SimlibError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
