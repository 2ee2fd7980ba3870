# SPDX-License-Identifier: BSD-3-Clause
"""Imports on first use, and imports without an optional module."""

from __future__ import annotations

import sys
from contextlib import contextmanager

TYPE_CHECKING = False  # importing typing and importlib takes longer than the remainder of `import simlib`
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


def lazy_names(package: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], object]:
    """Return a ``__getattr__`` for a package that imports a submodule when it, or one of its names, is first used.

    - `package`: its ``__name__``.
    - `homes`: submodules of the package, and the public names that each defines.

    >>> lazy_names("simlib.model", {"pagetable": ("WORD_PAGES",)})("WORD_PAGES")
    64
    """
    home = {name: module for module, names in homes.items() for name in names}

    def load(name: str) -> object:
        from importlib import import_module  # noqa: PLC0415  # `__main__` handles signals only after this module

        if name in homes:
            return import_module(f"{package}.{name}")
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{home[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return load


@contextmanager
def without_module(module: str) -> Iterator[None]:
    """Hide an optional module from imports within the block, unless it is imported already.

    For ``rfc3987_syntax``: when jsonschema imports it, it builds a parser of IRIs, which takes more than a second.
    Without it jsonschema checks no IRIs in this process. The module itself can be imported after the block.

    >>> with without_module("turtle"):
    ...     import turtle
    Traceback (most recent call last):
        ...
    ModuleNotFoundError: import of turtle halted; None in sys.modules
    """
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # documented for import, but typeshed allows modules only
    try:
        yield
    finally:
        del sys.modules[module]
