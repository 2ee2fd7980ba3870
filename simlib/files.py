# SPDX-License-Identifier: BSD-3-Clause
"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from simlib.errors import InputError


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file beside its place, then rename it there.

    Parameters
    ----------
    path : str or Path
        Folders that do not exist are made.
    text : str

    Returns
    -------
    Path

    Raises
    ------
    InputError
        If the folder cannot be made or written.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_text(Path(folder) / "a" / "b.txt", "hello").read_text()
    'hello'
    """
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp's 0600 is for secrets
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(
            "output",
            str(path),
            f"cannot be written ({error.strerror})",
            "choose a folder that you may write to",
        ) from None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
    return path
