# SPDX-License-Identifier: BSD-3-Clause
"""The interactive what-ifs: widgets over `simlib.sampling` and `simlib.figures`.

`page` is the explorer, in a page without code (`server` shows it) or in a cell: `controls`, the `canvas` of figures,
and `words`. `state` is what it asks, as an address and as a file; `answers` computes, `findings` keeps what is known so
far, and `drawing` draws it.

Names are imported when they are first used: the server needs nothing of what its page does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simlib import later

if TYPE_CHECKING:
    from simlib.explorer.findings import Findings, find
    from simlib.explorer.page import Explorer
    from simlib.explorer.state import State

__all__ = ["Explorer", "Findings", "State", "find"]

_HOMES = {
    "findings": ("Findings", "find"),
    "page": ("Explorer",),
    "state": ("State",),
}
"""Modules, and the public names that they hold; a test holds them against what type checkers are told above."""

__getattr__ = later.names(__name__, _HOMES)
