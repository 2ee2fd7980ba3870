# SPDX-License-Identifier: BSD-3-Clause
"""Which processes a process has started: all of them end with the explorer's page."""

from __future__ import annotations

import contextlib
from pathlib import Path


def started_by(number: int) -> list[int]:
    """Ids of the processes that one has started, and that these have started; none where there is no ``/proc``.

    Examples
    --------
    >>> import os, subprocess
    >>> with subprocess.Popen(["sleep", "60"]) as child:
    ...     child.pid in started_by(os.getpid())
    ...     child.kill()
    True
    """
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(path.parent.name))
    found = [number]
    for one in found:
        found += parents.get(one, [])
    return found[1:]
