# SPDX-License-Identifier: BSD-3-Clause
"""Imports that wait until they are needed, or are done without: names of a package, and what others would import."""

from __future__ import annotations

import sys
from contextlib import contextmanager

TYPE_CHECKING = False  # typing and importlib take longer than all the rest of `import simlib`
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


def lazy_names(package: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], object]:
    """The ``__getattr__`` of a package that imports a module of its own when it, or one of its names, is first used.

    - `package`: its ``__name__``.
    - `homes`: modules of the package, and the public names that they hold.

    >>> lazy_names("simlib.model", {"pagetable": ("WORD_PAGES",)})("WORD_PAGES")
    64
    """
    home = {name: module for module, held in homes.items() for name in held}

    def found(name: str) -> object:
        from importlib import import_module  # noqa: PLC0415  # `__main__` hears signals only after this module

        if name in homes:
            return import_module(f"{package}.{name}")
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{home[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return found


@contextmanager
def without_module(module: str) -> Iterator[None]:
    """Import others as if a module that they can do without were not there, unless it was imported before.

    For ``rfc3987_syntax``: when jsonschema imports it, it makes a parser of IRIs, more than a second's work. Without it
    jsonschema checks no IRI, as long as the process lives; it itself can be imported afterwards as ever.

    >>> with without_module("turtle"):
    ...     import turtle
    Traceback (most recent call last):
        ...
    ModuleNotFoundError: import of turtle halted; None in sys.modules
    """
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # documented for import, but typeshed has modules alone
    try:
        yield
    finally:
        del sys.modules[module]
