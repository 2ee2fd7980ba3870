# SPDX-License-Identifier: BSD-3-Clause
"""Kinds of code blocks in pages, by which the site highlights them and the tests run or parse them."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

EQUATION = re.compile(r"^ *\((\d\.\d+)\) |  \((\d\.\d+)\)$", re.MULTILINE)
"""Number of an equation: before it, or after it at the end of the line."""
COMMAND = re.compile(r"(simlib|make|python|cd|sed|source|virsh|perf|trace-cmd|kvm_stat|qemu-\S+|\.venv/bin/\S+) ?")


class Block(NamedTuple):
    """A block of code: its kind, its text, and the page's line where it begins."""

    kind: str
    text: str
    line: int


def kind_of(text: str) -> str:
    """Return the kind of a block of code: `doctest`, `equations`, `shell`, `toml`, `python`, or else `text`."""
    if text.startswith(">>> "):
        return "doctest"
    if EQUATION.search(text):
        return "equations"
    if COMMAND.match(text):
        return "shell"
    for kind, parse in (("toml", tomllib.loads), ("python", ast.parse)):
        try:
            parse(text)
        except (tomllib.TOMLDecodeError, SyntaxError):
            continue
        return kind
    return "text"


def numbers_first(text: str) -> str:
    """Move the numbers of equations to the front, because a narrow page would hide them at the end of a line.

    >>> print(numbers_first("T = a + b            (4.6)\\n  + c"))
    (4.6)  T = a + b
             + c
    """
    if not re.search(r" {2,}\(\d\.\d+\)$", text, re.MULTILINE):
        return text
    indented = re.sub(r"(?m)^", " " * 7, text)
    return re.sub(r"(?m)^ {7}(.*?) {2,}\((\d\.\d+)\)$", r"(\2)  \1", indented)


def parts_of(text: str) -> list[str]:
    """Split a block where another kind begins. Markdown joins indented blocks that are separated by an empty line.

    >>> parts_of("(1.1)  a = b\\n\\n>>> 1 + 1\\n2\\n")
    ['(1.1)  a = b', '>>> 1 + 1\\n2']
    >>> parts_of('[costs]\\nflush = "1us"\\n\\nsimlib data check mine.csv\\n')
    ['[costs]\\nflush = "1us"', 'simlib data check mine.csv']
    """
    if "<<'EOF'" in text:  # one command with its input
        return [text.strip("\n")]
    parts: list[str] = []
    for paragraph in re.split(r"\n\n+", text.strip("\n")):
        if parts and kind_of(parts[-1]) == kind_of(paragraph):
            parts[-1] += "\n\n" + paragraph
        else:
            parts.append(paragraph)
    return parts


def blocks(page: Path) -> list[Block]:
    """List a page's blocks of code, fenced and indented."""
    tokens = MarkdownIt().parse(page.read_text(encoding="utf-8"))
    return [
        Block(kind_of(part), part, token.map[0] + 1 if token.map else 0)
        for token in tokens
        if token.type in ("fence", "code_block")
        for part in parts_of(token.content)
    ]
