# SPDX-License-Identifier: BSD-3-Clause
"""The archive that a lab kernel unpacks at boot: cpio's ``newc`` format, written with fixed times and owners.

Fixed, because a byte that differs would be a difference between two boots.
Format: the kernel's ``Documentation/driver-api/early-userspace/buffer-format.rst``.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping

_CONSOLE = (5, 1)


def cpio(files: Mapping[str, bytes], folders: tuple[str, ...] = (), console: bool = False) -> bytes:
    """Pack files into an archive.

    Returns: A multiple of 512 bytes, so that archives can be put one behind another.

    `files`: path, without the leading slash, to content. All are executable. `folders`: empty folders (mount points) to
    make first. `console`: whether to make ``/dev/console``, which init's output needs before anything is mounted.
    """
    entries = [_entry(name, stat.S_IFDIR | 0o755, b"") for name in folders]
    if console:
        entries.append(_entry("dev/console", stat.S_IFCHR | 0o600, b"", _CONSOLE))
    entries += [_entry(name, stat.S_IFREG | 0o755, data) for name, data in files.items()]
    entries.append(_entry("TRAILER!!!", 0, b""))
    packed = b"".join(entries)
    return packed + bytes(-len(packed) % 512)


def _entry(name: str, mode: int, data: bytes, device: tuple[int, int] = (0, 0)) -> bytes:
    """One member: a header of thirteen eight-digit numbers, the name, the data, each padded to four bytes."""
    path = name.encode() + b"\0"
    numbers = (0, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
    head = b"070701" + b"".join(b"%08X" % number for number in numbers) + path
    head += bytes(-len(head) % 4)
    return head + data + bytes(-len(data) % 4)
