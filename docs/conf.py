# SPDX-License-Identifier: BSD-3-Clause
"""Sphinx configuration of the documentation site, which `make docs` builds; docs/index.md defines the navigation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from website.blocks import EQUATION, kind_of, numbers_first, parts_of

import simlib

project = "simlib"
author = "the simlib authors"
copyright = author  # noqa: A001  # the name that Sphinx reads
version = release = simlib.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
viewcode_follow_imported_members = False  # an object that is a value, such as a lock, has no page of source
myst_heading_anchors = 4  # the anchors that GitHub gives headings
add_module_names = False
autodoc_member_order = "bysource"
highlight_language = "none"
python_maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"simlib {release}"
html_static_path = [str(Path(__file__).parent / "website" / "style")]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False

LANGUAGES = {"doctest": "pycon", "toml": "toml", "python": "python"}
"""Shell blocks are not highlighted, because explanations follow the commands."""


def colour_blocks(app: Any, doctree: Any) -> None:
    """Set the language of each block of code. Equations become separate blocks, with an anchor for each number."""
    from docutils import nodes  # noqa: PLC0415  # read without Sphinx by a test

    if app.env.docname.startswith("api/"):
        return
    numbers = {}
    for block in list(doctree.findall(nodes.literal_block)):
        parts = []
        for text in parts_of(block.astext()):
            kind = kind_of(text)
            content = numbers_first(text) if kind == "equations" else text
            part = nodes.literal_block(content, content, language=LANGUAGES.get(kind, "none"), classes=[kind])
            for match in EQUATION.finditer(text) if kind == "equations" else ():
                number = match[1] or match[2]
                numbers[number] = f"eq-{number.replace('.', '-')}"
                part["ids"].append(numbers[number])
            parts.append(part)
        block.replace_self(parts)
    for text in list(doctree.findall(nodes.Text)):
        if not isinstance(text.parent, (nodes.literal, nodes.literal_block, nodes.title, nodes.reference)):
            link_equations(text, numbers)


def link_equations(text: Any, numbers: dict[str, str]) -> None:
    """Turn `(1.2)` in prose into a link to that equation of the same page."""
    from docutils import nodes  # noqa: PLC0415  # as above

    pieces = re.split(r"(\(\d\.\d+\))", text.astext())
    if not any(piece[1:-1] in numbers for piece in pieces):
        return
    text.parent.replace(text, [
        nodes.reference(piece, piece, internal=True, refid=numbers[piece[1:-1]]) if piece[1:-1] in numbers
        else nodes.Text(piece) for piece in pieces if piece
    ])  # fmt: skip


def is_foreign(app: Any, what: str, name: str, item: object, skip: bool, options: Any) -> bool | None:
    """Omit names that a module does not define: types such as `NDArray[Any]`, and imports."""
    home = getattr(item, "__module__", None)
    foreign = what == "module" and callable(item) and isinstance(home, str) and not home.startswith("simlib")
    return True if foreign else None


def setup(app: Any) -> None:
    """Register the functions above with Sphinx."""
    app.connect("autodoc-skip-member", is_foreign)
    app.connect("doctree-read", colour_blocks)
