# SPDX-License-Identifier: BSD-3-Clause
"""Where the lab keeps kernels, images and raw results: one folder, safe to delete."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from simlib.errors import SimlibError


def lab_dir() -> Path:
    """Folder of the lab: what ``SIMLIB_LAB`` names, else ``build/lab`` under the current folder.

    Examples
    --------
    >>> lab_dir().is_absolute()
    True
    """
    return Path(os.environ.get("SIMLIB_LAB") or Path("build") / "lab").absolute()


def need_space(folder: Path, gib: float, what: str) -> None:
    """Refuse to begin something that the disk cannot hold.

    Raises
    ------
    SimlibError
        If fewer than `gib` GiB are free where `folder` will be.

    Examples
    --------
    >>> need_space(Path("/"), 0.0, "nothing")
    """
    place = folder
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free / 2**30
    if free < gib:
        raise SimlibError(
            f"{what} needs {gib:g} GiB below {folder}, {free:.1f} GiB are free: free some, or set SIMLIB_LAB to a "
            "folder on a larger disk"
        )
