# SPDX-License-Identifier: BSD-3-Clause
"""The initramfs of a lab kernel: cpio's ``newc`` format, with fixed times and owners, so that boots do not differ.

Format: the kernel's ``Documentation/driver-api/early-userspace/buffer-format.rst``.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping


def cpio(files: Mapping[str, bytes], folders: tuple[str, ...] = (), console: bool = False) -> bytes:
    """Pack files into an archive.

    Returns: a multiple of 512 bytes, so that archives can be concatenated.

    `files`: content by path, without the leading slash; all files are executable. `folders`: empty folders (mount
    points) to make first. `console`: make ``/dev/console``, which init's output needs before devtmpfs is mounted.
    """
    entries = [_entry(name, stat.S_IFDIR | 0o755, b"") for name in folders]
    if console:
        entries.append(_entry("dev/console", stat.S_IFCHR | 0o600, b"", (5, 1)))
    entries += [_entry(name, stat.S_IFREG | 0o755, data) for name, data in files.items()]
    entries.append(_entry("TRAILER!!!", 0, b""))
    packed = b"".join(entries)
    return packed + bytes(-len(packed) % 512)


def _entry(name: str, mode: int, data: bytes, device: tuple[int, int] = (0, 0)) -> bytes:
    """Member of an archive: a header of thirteen eight-digit numbers, the name and the data, each padded to 4 bytes."""
    path = name.encode() + b"\0"
    numbers = (0, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
    head = b"070701" + b"".join(b"%08X" % number for number in numbers) + path
    head += bytes(-len(head) % 4)
    return head + data + bytes(-len(data) % 4)
