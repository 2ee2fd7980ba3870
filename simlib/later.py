# SPDX-License-Identifier: BSD-3-Clause
"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing and importlib take longer than all the rest of `import simlib`
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def names(package: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], object]:
    """The ``__getattr__`` of a package that imports a module of its own when it, or one of its names, is first used.

    - `package`: its ``__name__``.
    - `homes`: modules of the package, and the public names that they hold.

    >>> names("simlib.model", {"pagetable": ("WORD_PAGES",)})("WORD_PAGES")
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
