# SPDX-License-Identifier: BSD-3-Clause
"""Pages of the repository as pages of the site: names, links, and order."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from website import api

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<=\]\()(?!https?://|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
"""Target of a link within the repository: a path and an optional anchor."""

OTHER_PAGES = {
    "README.md": "tour",
    "CONTRIBUTING.md": "contributing",
    "CHANGELOG.md": "changes",
    "SECURITY.md": "security",
    "kernel-patches/README.md": "kernel-patches",
}
"""Pages outside docs/, with their names on the site."""
GENERATED = {"data/published": "provenance", "notebooks": "gallery", "simlib": "api/index"}
"""Folders from which a page is generated: a link to the folder becomes a link to that page."""


def sources() -> dict[str, Path]:
    """Return every hand-written page by its name on the site."""
    inside = {path.stem: path for path in sorted((ROOT / "docs").glob("*.md"))}
    return inside | {name: ROOT / path for path, name in OTHER_PAGES.items()}


def site_target(path: str) -> str:
    """Return the place of a repository path on the site.

    Raises `ValueError` if it is not there.

    >>> site_target("docs/model.md"), site_target("README.md"), site_target("data/published")
    ('model.md', 'tour.md', 'provenance.md')
    >>> site_target("simlib/model/program.py"), site_target("notebooks/03-clear-dirty-log.ipynb")
    ('api/simlib.model.program.rst', 'gallery.md#03-clear-dirty-log')
    """
    folder, name = posixpath.split(path)
    if not (ROOT / path).exists():
        raise ValueError(f"{path}: no such file; correct the link")
    if path in OTHER_PAGES:
        return f"{OTHER_PAGES[path]}.md"
    if path in GENERATED:
        return GENERATED[path] + (".rst" if path == "simlib" else ".md")
    if folder == "docs" and name.endswith((".md", ".svg")):
        return name
    if folder == "notebooks" and name.endswith(".ipynb"):
        return f"gallery.md#{name.removesuffix('.ipynb')}"
    if path.startswith("simlib/") and name.endswith(".py"):
        return f"api/{api.module_name(path)}.rst"
    raise ValueError(f"{path}: has no page on the site; link to a page, a module or a notebook")


def rewritten(text: str, folder: str) -> str:
    """Replace links that are relative to a page's folder in the repository by links of the site, which has one folder.

    >>> rewritten("[the map](docs/architecture.md), [CLEAR](docs/model.md#2-logic)", "")
    '[the map](architecture.md), [CLEAR](model.md#2-logic)'
    """

    def change(link: re.Match[str]) -> str:
        return site_target(posixpath.normpath(posixpath.join(folder, link[1]))) + (link[2] or "")

    return LINK.sub(change, text)


def navigation(index: str) -> dict[str, list[tuple[str, str]]]:
    """Read the order of pages from docs/index.md: (title, repository link) of each list entry, by heading."""
    sections = (part.partition("\n") for part in index.split("\n## ")[1:])
    lists = {heading: re.findall(r"^- \[([^\]]+)\]\(([^)]+)\)", body, re.MULTILINE) for heading, _, body in sections}
    return {heading: entries for heading, entries in lists.items() if entries}


def with_navigation(index: str) -> str:
    """Convert docs/index.md to the site's front page, with each list repeated as a part of the navigation."""
    trees = []
    for heading, entries in navigation(index).items():
        lines = (f"{title} <{rewritten(f'[]({link})', 'docs')[3:-1].rpartition('.')[0]}>" for title, link in entries)
        trees.append("\n".join(["```{toctree}", ":hidden:", f":caption: {heading}", "", *lines, "```"]))
    return "\n\n".join([rewritten(index, "docs"), *trees]) + "\n"
