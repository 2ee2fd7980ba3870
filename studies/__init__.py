# SPDX-License-Identifier: BSD-3-Clause
"""Studies of published or collected data, one per subject, each with numbers, fits, figures and a notebook.

`docs/write-a-study.md` explains a small example.
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
"""Names of all studies, in reading order. A new study needs a folder, a notebook and its name in this list."""


def all_studies() -> tuple[Study[Any], ...]:
    """Return all studies, in the order of `NAMES`.

    >>> {study.name: study.notebooks for study in all_studies()}["teardown"]
    ('08-teardown',)
    """
    return tuple(import_module(f"studies.{name}").STUDY for name in NAMES)
