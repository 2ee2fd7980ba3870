# SPDX-License-Identifier: BSD-3-Clause
"""The house's own rules: which part may import which, and a licence line in every file."""

from __future__ import annotations

import ast
import graphlib
import re
import tomllib
from pathlib import Path

import pytest
from make_map import drawing, imported_parts

ROOT = Path(__file__).parents[1]
CODE = ROOT / "simlib"
ORDER, UI = (
    ["_lib", "model", "figures", "simulator", "measurements", "vmm", "analysis", "lab", "ui"],
    ["report", "explorer", "cli"],
)
"""From the ground up; a part imports only from parts before it."""

MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for folder in (CODE, ROOT / "studies")
    for path in folder.rglob("*.py")
}
MOST_LINES, MOST_OF_A_FUNCTION = 500, 80


def test_a_part_imports_only_from_parts_below():
    faults = []
    for path in CODE.rglob("*.py"):
        part = path.relative_to(CODE).parts[0]
        if part in ("__init__.py", "__main__.py", "ui"):
            continue
        for other in imported_parts(path) - {part}:
            if other not in ORDER:
                faults.append(f"{path.relative_to(ROOT)} imports simlib.{other}, which is no part")
            elif ORDER.index(other) > ORDER.index(part):
                faults.append(f"{path.relative_to(ROOT)}: {part} imports {other}")
    assert not faults


def imported_modules(path: Path) -> set[str]:
    """Modules of simlib that a module imports, at the top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(("simlib.", "studies.")):
            for name in (f"{node.module}.{alias.name}" for alias in node.names):
                found.add(next(filter(MODULES.get, (name, f"{name}.__init__", node.module)), f"{node.module}.__init__"))
    return found & set(MODULES)


def test_parts_of_ui_import_only_those_before_them():
    for path in (CODE / "ui").glob("*/**/*.py"):
        part = path.relative_to(CODE / "ui").parts[0]
        others = {name.split(".")[2] for name in imported_modules(path) if name.startswith("simlib.ui.")}
        assert others <= {part, *UI[: UI.index(part)]}, path


def test_the_package_and_its_notebooks_import_no_study():
    """A wheel has none."""
    shipped = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    notebooks = [ROOT / name for name in shipped["wheel"]["force-include"] if name.endswith(".ipynb")]
    assert notebooks
    for path in (*CODE.rglob("*.py"), *notebooks):
        assert not re.search(r'^\s*"?(from|import) studies\b', path.read_text(encoding="utf-8"), re.MULTILINE), path


def test_no_module_imports_one_that_imports_it():
    graph = {name: imported_modules(path) - {name} for name, path in MODULES.items()}
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names them


def test_files_and_functions_fit_their_reader():
    long = []
    for name, path in MODULES.items():
        text = path.read_text(encoding="utf-8")
        long += [f"{name}: {text.count(chr(10))} lines"] * (text.count("\n") > MOST_LINES)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1
                long += [f"{name}.{node.name}: {lines} lines"] * (lines > MOST_OF_A_FUNCTION)
    assert not long


def test_the_picture_of_the_parts_is_that_of_the_code():
    drawn = (ROOT / "docs" / "architecture.svg").read_text(encoding="utf-8")
    assert drawn == drawing(), "run python docs/make_map.py"


TAG = re.compile(r"</?(?:[abip]|b|br|code|div|h[1-6]|li|p|pre|small|span|strong|table|ul)[ >/]")
MADE_OF_OUR_OWN = {"figures", "notebook_pages.py"}
"""Plotly escapes what its figures say, and the gallery's pages are those of the repository's notebooks."""


def test_html_is_made_by_templates():
    """Text within a tag goes through Jinja2 or `markupsafe.Markup.format`, which escape it; nobody does so by hand."""
    faults = []
    for path in MODULES.values():
        place = path.relative_to(ROOT).relative_to(path.relative_to(ROOT).parts[0])
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
        for folder in ("simlib", "studies", "tests", "checks", "benchmarks", "docs", ".ci", "data/scenarios")
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


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_every_target_that_a_page_names_is_in_the_makefile(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert not set(re.findall(r"`make ([a-z-]+)", page.read_text(encoding="utf-8"))) - targets
