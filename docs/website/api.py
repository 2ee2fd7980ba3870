# SPDX-License-Identifier: BSD-3-Clause
"""The API's pages: one a module, filled by autodoc from docstrings, and a list of what `import simlib` offers."""

from __future__ import annotations

import ast
from pathlib import Path

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
    """All modules of simlib in alphabetical order, packages before what they hold."""
    paths = (path.relative_to(ROOT).as_posix() for path in (ROOT / "simlib").rglob("*.py"))
    return sorted(module_name(path) for path in paths if not path.endswith("__main__.py"))


def headed(title: str) -> str:
    """A title as reStructuredText has it."""
    return f"{title}\n{'=' * len(title)}\n\n"


def page(name: str, held: list[str]) -> str:
    """One module's page, with links to the modules that it holds and to the one that holds it.

    Only parts stand in the navigation beside the text: with all modules it would be longer than most pages.
    """
    parent = name.rpartition(".")[0]
    inner = parent != "simlib"
    lines = [":orphan:", ""] if inner else []
    lines += [LICENCE + headed(name), f"In :py:mod:`{parent}`.\n" if inner else ""]
    lines += [f".. automodule:: {name}", "   :members:", "   :ignore-module-all:", "   :show-inheritance:", ""]
    lines += [f"- :py:mod:`{other}`: {purpose(other)}" for other in held]
    return "\n".join(lines) + "\n"


def source(name: str) -> str:
    """A module's text. Nothing is imported here: that takes as long as all the rest."""
    path = ROOT / name.replace(".", "/")
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")


def first_line(item: ast.Module | ast.ClassDef | ast.FunctionDef) -> str:
    """The line that a docstring begins with."""
    return (ast.get_docstring(item) or "").partition("\n")[0]


def purpose(name: str) -> str:
    """What a module is for, by its docstring."""
    return first_line(ast.parse(source(name)))


def public() -> str:
    """The names that `import simlib` offers, each with a link to the module that defines it."""
    texts = {name: source(name) for name in modules()}
    rows = []
    for name in sorted({*simlib.__all__} - {"__version__"}):
        if f"simlib.{name}" in texts:
            rows += [f"   * - :py:mod:`{name} <simlib.{name}>`", f"     - {purpose(f'simlib.{name}')}"]
            continue
        thing = getattr(simlib, name)
        [item] = (
            item for item in ast.parse(texts[thing.__module__]).body if getattr(item, "name", "") == thing.__name__
        )
        rows += [f"   * - :py:obj:`{name} <{thing.__module__}.{item.name}>`", f"     - {first_line(item)}"]
    return "\n".join([".. list-table::", "   :widths: 25 75", "", *rows, "", ""])


def files() -> dict[str, str]:
    """Every page of the API, by its path on the site."""
    names = modules()
    found = {}
    for name in names[1:]:
        held = [other for other in names if other.rpartition(".")[0] == name]
        found[f"api/{name}.rst"] = page(name, held)
    parts = [f"   {name}" for name in names if name.count(".") == 1]
    found["api/index.rst"] = "\n".join([
        LICENCE + headed("API") + "``import simlib`` offers these; all else is imported from the module that holds it.",
        "",
        public(),
        "All parts",
        "---------",
        "",
        ".. toctree::",
        "   :maxdepth: 1",
        "",
        *parts,
        "",
    ])  # fmt: skip
    return found
