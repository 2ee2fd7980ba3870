# SPDX-License-Identifier: BSD-3-Clause
"""Check of a built site: no address is loaded from another host, and no link is broken."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

FETCHED = {
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "object": "data",
    "use": "href",
}
"""Elements whose address a browser loads without a click."""
IN_STYLE = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")
NOT_FETCHED = {"canonical", "author", "license", "next", "prev", "index", "search"}
"""Relations of <link> that a browser does not load."""


class Page(HTMLParser):
    """Addresses of an HTML page: those that a browser loads, link targets, and anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)
        self.fetched += [a or b for a, b in IN_STYLE.findall("\n".join(re.findall(r"(?s)<style.*?</style>", text)))]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the addresses of one element."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        address = given.get(FETCHED.get(tag, ""), "")
        if address and not (tag == "link" and given.get("rel") in NOT_FETCHED):
            self.fetched.append(address)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])


def is_external(address: str) -> bool:
    """True if an address is on another host.

    >>> is_external("https://example.invalid/a.js"), is_external("//example.invalid/a.js"), is_external("a.js?v=1")
    (True, True, False)
    >>> is_external("data:image/svg+xml;base64,AAAA")
    False
    """
    return bool(urlsplit(address).netloc)


def faults(site: Path) -> list[str]:
    """List faults of a site: a line for each address that is loaded from another host or does not exist."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    lines = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve()).as_posix()
        lines += [f"{name} fetches {address}" for address in page.fetched if is_external(address)]
        for address in {*page.links, *page.fetched}:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                lines.append(f"{name}: {address} is not there")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                lines.append(f"{name}: {address} has no such anchor")
    for path in site.rglob("*.css"):
        addresses = (a or b for a, b in IN_STYLE.findall(path.read_text(encoding="utf-8")))
        lines += [f"{path.relative_to(site)} fetches {address}" for address in addresses if is_external(address)]
    return sorted(lines)
