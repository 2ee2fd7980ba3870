# SPDX-License-Identifier: BSD-3-Clause
"""One published or collected subject each, with its numbers, its fits and its figures; its notebook is its text.

`docs/write-a-study.md` goes through a small one.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from studies.study import Study

NAMES = (
    "arm64",
    "lab",
    "x86",
    "migrations",
    "lockless",
    "teardown",
    "split_walk",
    "hardware_logs",
    "converge",
    "decision",
    "trial",
)
"""Every study, in the order in which it is read. A new one is its folder, its notebook, and its name here."""


def every() -> tuple[Study[Any], ...]:
    """All studies, in the order of `NAMES`.

    >>> {study.name: study.notebooks for study in every()}["teardown"]
    ('08-teardown',)
    """
    return tuple(import_module(f"studies.{name}").STUDY for name in NAMES)
