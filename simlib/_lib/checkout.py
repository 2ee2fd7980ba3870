# SPDX-License-Identifier: BSD-3-Clause
"""The checkout that simlib runs from; it has the studies and the collected data that an installed package lacks."""

from __future__ import annotations

from pathlib import Path

from simlib._lib.errors import SimlibError


def checkout() -> Path | None:
    """Root folder of the checkout, or None if simlib is installed from a wheel.

    >>> checkout().joinpath("studies").is_dir()
    True
    """
    root = Path(__file__).resolve().parents[2]
    return root if (root / "studies" / "__init__.py").is_file() else None


def require_checkout(what: str) -> Path:
    """Return the root folder of the checkout; raise `SimlibError` if simlib is installed from a wheel.

    - `what`: the command or the data that needs it.
    """
    root = checkout()
    if root is None:
        raise SimlibError(f"{what}: needs a checkout of simlib's repository, which has the studies and the collected "
                          "data; the installed package has neither",
                          "clone the repository, run make env there, and use its .venv/bin/simlib")  # fmt: skip
    return root
