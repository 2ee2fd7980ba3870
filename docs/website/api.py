# SPDX-License-Identifier: BSD-3-Clause
"""API pages: one per module, filled by autodoc from docstrings, and a list of the public names of `simlib`."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

import simlib

ROOT = Path(__file__).resolve().parents[2]
LICENCE = ".. SPDX-License-Identifier: BSD-3-Clause\n\n"


def module_name(path: str) -> str:
    """Name a module by its path in the repository.

    >>> module_name("simlib/model/program.py"), module_name("simlib/lab/__init__.py")
    ('simlib.model.program', 'simlib.lab')
    """
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def modules() -> list[str]:
    """List all modules of simlib in alphabetical order, a package before its modules."""
    paths = (path.relative_to(ROOT).as_posix() for path in (ROOT / "simlib").rglob("*.py"))
    return sorted(module_name(path) for path in paths if not path.endswith("__main__.py"))


def headed(title: str) -> str:
    """Format a title in reStructuredText."""
    return f"{title}\n{'=' * len(title)}\n\n"


def page(name: str, children: list[str]) -> str:
    """Write a module's page, with links to its package and to its modules.

    The navigation has only the packages: with all modules it would be longer than most pages.
    """
    parent = name.rpartition(".")[0]
    inner = parent != "simlib"
    lines = [":orphan:", ""] if inner else []
    lines += [LICENCE + headed(name), f"In :py:mod:`{parent}`.\n" if inner else ""]
    lines += [f".. automodule:: {name}", "   :members:", "   :ignore-module-all:", "   :show-inheritance:", ""]
    lines += [f"- :py:mod:`{other}`: {purpose(other)}" for other in children]
    return "\n".join(lines) + "\n"


def source(name: str) -> str:
    """Read a module's source. It is not imported, because that would take most of the time."""
    path = ROOT / name.replace(".", "/")
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")


def first_line(item: ast.Module | ast.ClassDef | ast.FunctionDef) -> str:
    """Return the first line of a docstring."""
    return (ast.get_docstring(item) or "").partition("\n")[0]


def purpose(name: str) -> str:
    """Return the first line of a module's docstring."""
    return first_line(ast.parse(source(name)))


def public() -> str:
    """Write a table of the public names of `simlib`, each with a link to the module that defines it."""
    texts = {name: source(name) for name in modules()}
    rows = []
    for name in sorted({*simlib.__all__} - {"__version__"}):
        value = getattr(simlib, name)
        if isinstance(value, ModuleType):
            rows += [f"   * - :py:mod:`{name} <{value.__name__}>`", f"     - {purpose(value.__name__)}"]
            continue
        # Errors state `simlib` as their module, so that a traceback shows the public name.
        module = "simlib._lib.errors" if value.__module__ == "simlib" else value.__module__
        [definition] = (node for node in ast.parse(texts[module]).body if getattr(node, "name", "") == value.__name__)
        rows += [f"   * - :py:obj:`{name} <{module}.{definition.name}>`", f"     - {first_line(definition)}"]
    return "\n".join([".. list-table::", "   :widths: 25 75", "", *rows, "", ""])


def files() -> dict[str, str]:
    """Write every API page, by its path on the site."""
    names = modules()
    texts = {}
    for name in names[1:]:
        children = [other for other in names if other.rpartition(".")[0] == name]
        texts[f"api/{name}.rst"] = page(name, children)
    packages = [f"   {name}" for name in names if name.count(".") == 1]
    texts["api/index.rst"] = "\n".join([
        LICENCE + headed("API") + "Public names of ``simlib``. Import all other names from their modules.",
        "",
        public(),
        "All packages",
        "------------",
        "",
        ".. toctree::",
        "   :maxdepth: 1",
        "",
        *packages,
        "",
    ])  # fmt: skip
    return texts
