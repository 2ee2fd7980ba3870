# SPDX-License-Identifier: BSD-3-Clause
"""The pages of docs/ are short, and their prose is readable: by words, and by Flesch and Kincaid's grade (1975)."""

from __future__ import annotations

from itertools import pairwise

import pytest
import textstat
from markdown_it import MarkdownIt
from website.pages import ROOT, sources

MOST_WORDS = 24_000
"""Of all pages in docs/, tables and code included."""
GRADE = 10.0
PAGES = {name: path.read_text(encoding="utf-8") for name, path in sources().items() if name != "changes"}


def prose(text: str) -> str:
    """A page's paragraphs and items as sentences, without headings, tables and blocks of code; code is one word.

    >>> prose("# Title\\n\\nA *hold* of `mmu_lock`\\nis [x](x.md)\\n\\n- one\\n\\n```\\ncode\\n```\\n|a|\\n|-|\\n|b|")
    'A hold of code is x.\\none.'
    """
    tokens = MarkdownIt().enable("table").parse(text)
    said = []
    for before, token in pairwise(tokens):
        if token.type != "inline" or before.type != "paragraph_open":
            continue
        words = {"code_inline": "code", "softbreak": " "}
        line = "".join(words.get(part.type, part.content) for part in token.children or () if part.type != "image")
        said.append(line if line.endswith((".", ":", "!", "?")) else f"{line}.")
    return "\n".join(said)


def test_words_of_all_pages():
    pages = [text for name, text in PAGES.items() if (ROOT / "docs" / f"{name}.md").exists()]
    assert sum(len(text.split()) for text in pages) <= MOST_WORDS


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_readable(name):
    assert textstat.flesch_kincaid_grade(prose(PAGES[name])) <= GRADE
