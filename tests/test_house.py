# SPDX-License-Identifier: BSD-3-Clause
"""The house's own rules: which part may import which, and a licence line in every file."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ORDER = [
    "interruption", "later", "errors", "version", "parallel", "files", "reading", "machine_code", "results", "model",
    "engine", "workloads", "sampling", "measurements", "fits", "simulation", "theory", "lab", "prediction",
    "comparison", "calibration", "host", "decision", "sweep", "figures", "studies", "explorer", "report", "cli",
]  # fmt: skip
"""From the ground up; a part imports only from parts before it."""
UPWARDS = {("results", "figures")}
"""The exceptions: `Result.plot` imports what draws it, when it is called."""


def imported_parts(path: Path) -> set[str]:
    """Parts of simlib that a module imports, at the top or inside a function."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            if node.module == "simlib":
                parts |= {alias.name for alias in node.names}
            elif node.module.startswith("simlib."):
                parts.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            parts |= {a.name.split(".")[1] for a in node.names if a.name.startswith("simlib.")}
    return parts


def test_a_part_imports_only_from_parts_below():
    faults = []
    for path in (ROOT / "simlib").rglob("*.py"):
        part = path.relative_to(ROOT / "simlib").parts[0].removesuffix(".py")
        if part in ("__init__", "__main__", "cli"):
            continue
        for other in imported_parts(path) - {part}:
            if other not in ORDER:
                faults.append(f"{path.relative_to(ROOT)} imports simlib.{other}, which is no part")
            elif ORDER.index(other) > ORDER.index(part) and (part, other) not in UPWARDS:
                faults.append(f"{path.relative_to(ROOT)}: {part} imports {other}")
    assert not faults


TAG = re.compile(r"</?(?:[abip]|b|br|code|div|h[1-6]|li|p|pre|small|span|strong|table|ul)[ >/]")
MADE_OF_OUR_OWN = {"figures", "report/books.py"}
"""Plotly escapes what its figures say, and the gallery's pages are those of the repository's notebooks."""


def test_html_is_made_by_templates():
    """Text within a tag goes through Jinja2 or `markupsafe.Markup.format`, which escape it; nobody does so by hand."""
    faults = []
    for path in (ROOT / "simlib").rglob("*.py"):
        place = path.relative_to(ROOT / "simlib")
        if {place.parts[0], place.as_posix()} & MADE_OF_OUR_OWN:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                text = "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
                filled = any(isinstance(part, ast.FormattedValue) for part in node.values)
                faults += [f"{place}:{node.lineno}: {text}"] * bool(filled and TAG.search(text))
            elif isinstance(node, ast.Attribute) and ast.unparse(node) == "html.escape":
                faults.append(f"{place}:{node.lineno}: escapes by hand")
    assert not faults


def test_every_source_file_says_its_licence():
    files = [
        p
        for folder in ("simlib", "tests", "checks", "benchmarks", "docs", ".ci", "data/scenarios")
        for p in (ROOT / folder).rglob("*")
        if p.suffix in {".py", ".c", ".toml", ".md", ""} and p.is_file() and "__pycache__" not in p.parts
    ]
    bare = [str(p.relative_to(ROOT)) for p in files if "SPDX-License-Identifier" not in p.read_text("utf-8")[:300]]
    assert len(files) > 50
    assert not bare


def test_test_files_have_names_of_their_own():
    """Pytest imports them by their names alone: of two that are the same, one is an error."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_every_check_that_the_page_names_is_a_target():
    named = set(re.findall(r"`make ([a-z-]+)`", (ROOT / "docs" / "checks.md").read_text(encoding="utf-8")))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert len(named) > 15
    for name in named:
        assert re.search(rf"^{name}:", makefile, re.MULTILINE), name
