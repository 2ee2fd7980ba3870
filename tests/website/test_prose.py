# SPDX-License-Identifier: BSD-3-Clause
"""A page has at most 1,000 words of prose. Reference pages and the list of changes may be longer."""

from __future__ import annotations

from itertools import pairwise

import pytest
from markdown_it import MarkdownIt
from website.pages import sources

MAX_WORDS = 1000
"""Largest number of words of a page's prose."""
PAGES = {name: path.read_text(encoding="utf-8") for name, path in sources().items()}


def prose(text: str) -> str:
    """Return a page's paragraphs and list items, without headings, tables and blocks of code; inline code is one word.

    >>> prose("# Title\\n\\nA *hold* of `mmu_lock`\\nis [x](x.md)\\n\\n- item\\n\\n```\\ncode\\n```\\n|a|\\n|-|\\n|b|")
    'A hold of code is x\\nitem'
    """
    tokens = MarkdownIt().enable("table").parse(text)
    replaced = {"code_inline": "code", "softbreak": " "}
    return "\n".join(
        "".join(replaced.get(part.type, part.content) for part in token.children or () if part.type != "image")
        for before, token in pairwise(tokens)
        if token.type == "inline" and before.type == "paragraph_open"
    )


@pytest.mark.parametrize("name", PAGES)
def test_page_has_at_most_1000_words_of_prose(name):
    assert len(prose(PAGES[name]).split()) <= MAX_WORDS
