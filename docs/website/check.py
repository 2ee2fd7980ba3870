# SPDX-License-Identifier: BSD-3-Clause
"""What a built site may not have: anything that a browser would fetch from elsewhere, and links that lead nowhere."""

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
"""Elements whose address a browser fetches by itself."""
IN_STYLE = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")
NOT_FETCHED = {"canonical", "author", "license", "next", "prev", "index", "search"}
"""Relations of <link> that name a page and load nothing."""


class Page(HTMLParser):
    """The addresses of an HTML page: what is fetched, what is linked to, and its own anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)
        self.fetched += [a or b for a, b in IN_STYLE.findall("\n".join(re.findall(r"(?s)<style.*?</style>", text)))]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the addresses of one element."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        address = given.get(FETCHED.get(tag, ""), "")
        if address and not (tag == "link" and given.get("rel") in NOT_FETCHED):
            self.fetched.append(address)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])


def is_external(address: str) -> bool:
    """Whether an address is on another host.

    >>> is_external("https://example.invalid/a.js"), is_external("//example.invalid/a.js"), is_external("a.js?v=1")
    (True, True, False)
    >>> is_external("data:image/svg+xml;base64,AAAA")
    False
    """
    return bool(urlsplit(address).netloc)


def faults(site: Path) -> list[str]:
    """What is wrong with a site: a line for each address that is fetched from elsewhere or leads nowhere."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve()).as_posix()
        found += [f"{name} fetches {address}" for address in page.fetched if is_external(address)]
        for address in {*page.links, *page.fetched}:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                found.append(f"{name}: {address} is not there")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{name}: {address} has no such anchor")
    for path in site.rglob("*.css"):
        used = (a or b for a, b in IN_STYLE.findall(path.read_text(encoding="utf-8")))
        found += [f"{path.relative_to(site)} fetches {address}" for address in used if is_external(address)]
    return sorted(found)
