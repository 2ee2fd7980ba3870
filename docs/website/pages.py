# SPDX-License-Identifier: BSD-3-Clause
"""Pages of the repository as pages of the site: their names, their links, and the order in which they stand."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from website import api

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<=\]\()(?!https?://|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
"""The target of a link within the repository: a path and perhaps an anchor."""

ELSEWHERE = {
    "README.md": "tour",
    "CONTRIBUTING.md": "contributing",
    "CHANGELOG.md": "changes",
    "SECURITY.md": "security",
    "kernel-patches/README.md": "kernel-patches",
}
"""Pages that do not lie in docs/."""
MADE = {"data/published": "provenance", "notebooks": "gallery", "simlib": "api/index"}
"""Folders that a page is made from: in the repository a link shows the folder, on the site that page."""


def sources() -> dict[str, Path]:
    """Every page that is written by hand, by its name on the site."""
    found = {path.stem: path for path in sorted((ROOT / "docs").glob("*.md"))}
    return found | {name: ROOT / path for path, name in ELSEWHERE.items()}


def site_target(path: str) -> str:
    """Where a path of the repository is on the site.

    Raises `ValueError` if it is not there.

    >>> site_target("docs/model.md"), site_target("README.md"), site_target("data/published")
    ('model.md', 'tour.md', 'provenance.md')
    >>> site_target("simlib/model/program.py"), site_target("notebooks/03-clear-dirty-log.ipynb")
    ('api/simlib.model.program.rst', 'gallery.md#03-clear-dirty-log')
    """
    folder, name = posixpath.split(path)
    if not (ROOT / path).exists():
        raise ValueError(f"{path}: no such file; correct the link")
    if path in ELSEWHERE:
        return f"{ELSEWHERE[path]}.md"
    if path in MADE:
        return MADE[path] + (".rst" if path == "simlib" else ".md")
    if folder == "docs" and name.endswith((".md", ".svg")):
        return name
    if folder == "notebooks" and name.endswith(".ipynb"):
        return f"gallery.md#{name.removesuffix('.ipynb')}"
    if path.startswith("simlib/") and name.endswith(".py"):
        return f"api/{api.module_name(path)}.rst"
    raise ValueError(f"{path}: has no page on the site; link to a page, a module or a notebook")


def rewritten(text: str, folder: str) -> str:
    """Change a page's links, relative to its folder in the repository, to those of the site, whose pages lie in one.

    >>> rewritten("[the map](docs/architecture.md), [CLEAR](docs/model.md#2-logic)", "")
    '[the map](architecture.md), [CLEAR](model.md#2-logic)'
    """

    def change(link: re.Match[str]) -> str:
        return site_target(posixpath.normpath(posixpath.join(folder, link[1]))) + (link[2] or "")

    return LINK.sub(change, text)


def navigation(index: str) -> dict[str, list[tuple[str, str]]]:
    """The order of pages in docs/index.md: heading to (title, link within the repository) of each entry of its list."""
    sections = (part.partition("\n") for part in index.split("\n## ")[1:])
    found = {heading: re.findall(r"^- \[([^\]]+)\]\(([^)]+)\)", body, re.MULTILINE) for heading, _, body in sections}
    return {heading: entries for heading, entries in found.items() if entries}


def with_navigation(index: str) -> str:
    """docs/index.md as the site's front page: each list once more, as the navigation beside the text."""
    trees = []
    for heading, entries in navigation(index).items():
        lines = (f"{title} <{rewritten(f'[]({link})', 'docs')[3:-1].rpartition('.')[0]}>" for title, link in entries)
        trees.append("\n".join(["```{toctree}", ":hidden:", f":caption: {heading}", "", *lines, "```"]))
    return "\n\n".join([rewritten(index, "docs"), *trees]) + "\n"
