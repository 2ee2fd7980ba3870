# SPDX-License-Identifier: BSD-3-Clause
"""A guest on a kernel with the series: QEMU within QEMU, whose QMP comes out through a serial port.

The outer QEMU emulates (TCG) a machine with SVM and boots the lab's kernel; its init starts the inner QEMU, which runs
a ROM that writes memory in a loop, under that kernel's KVM. Counts are real, times are an emulator's.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from real_guest import four, segments, writing

from simlib.vmm.qmp import Monitor

PATIENCE_S = 90.0
"""Longest time for a boot and for an answer under emulation, s."""

INIT = """#!/bin/sh
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t proc proc /proc
/qemu -M microvm -accel kvm -cpu host -m 16 -bios /rom -nodefaults -no-user-config -display none \\
  -chardev serial,id=a,path=/dev/ttyS1 -mon chardev=a,mode=control \\
  -chardev serial,id=b,path=/dev/ttyS2 -mon chardev=b,mode=control
echo the inner QEMU ended: $?
/bin/busybox sleep 1000
"""


def rom(pages: int, pause: int) -> bytes:
    """A ROM of 64 KiB that runs the program of `real_guest.boot_sector` from the reset vector."""
    base, code, main, table = 0xF0000, 0x8000, 0x8040, 0x8100
    start = (
        b"\xfa"  # cli
        b"\x2e\x0f\x01\x16" + (table + 24).to_bytes(2, "little") +  # cs: lgdt [table + 24]
        b"\x0f\x20\xc0\x0c\x01\x0f\x22\xc0"  # mov eax, cr0; or al, 1; mov cr0, eax
        b"\x66\xea" + four(base + main) + b"\x08\x00"  # jmp 8:main
    )  # fmt: skip
    image = bytearray(1 << 16)
    pieces = {code: start, main: writing(pages, pause), table: segments(base + table)}
    pieces[0xFFF0] = b"\xea" + code.to_bytes(2, "little") + b"\x00\xf0"  # the reset vector: jmp F000:code
    for place, piece in pieces.items():
        image[place : place + len(piece)] = piece
    return bytes(image)


def initramfs(inner: str, busybox: str, pages: int, pause: int) -> bytes:
    """Initramfs of the outer machine: a shell, the inner QEMU with its libraries, and its ROM."""
    files = {"init": INIT.encode(), "rom": rom(pages, pause)}
    files |= {"qemu": Path(inner).read_bytes(), "bin/busybox": Path(busybox).read_bytes()}
    listing = subprocess.run(["ldd", inner], capture_output=True, text=True, check=True).stdout
    libraries = [word for line in listing.splitlines() for word in line.split() if word.startswith("/")]
    files |= {library.lstrip("/"): Path(library).read_bytes() for library in libraries}
    folders = {str(parent) for name in files for parent in list(Path(name).parents)[:-1]} | {"dev", "proc"}
    entries = [(name, 0o40755, b"") for name in sorted(folders)]
    entries += [(name, 0o100755, data) for name, data in files.items()]
    entries += [("bin/sh", 0o120777, b"busybox"), ("bin/cat", 0o120777, b"busybox"), ("TRAILER!!!", 0, b"")]
    return b"".join(_entry(number, *entry) for number, entry in enumerate(entries, 1))


def _entry(number: int, name: str, mode: int, data: bytes) -> bytes:
    """One file of a cpio archive in the format newc (Documentation/driver-api/early-userspace/buffer-format.rst)."""
    text = name.encode() + b"\0"
    fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(text), 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + text
    return b"".join(piece + bytes(-len(piece) % 4) for piece in (head, data))


@contextlib.contextmanager
def nested(outer: str, image: Path, files: bytes, folder: Path) -> Iterator[tuple[Path, Path]]:
    """Run the outer machine; yield the sockets of the inner QEMU's two monitors. It starts when both are connected."""
    watched, steered = folder / "a", folder / "b"
    (folder / "initramfs.cpio").write_bytes(files)
    command = [
        outer, "-accel", "tcg,thread=multi", "-machine", "pc", "-cpu", "max,+svm,+npt", "-m", "512M", "-nodefaults",
        "-display", "none", "-no-reboot", "-serial", f"file:{folder / 'console'}",
        "-serial", f"unix:{watched},server=on,wait=on", "-serial", f"unix:{steered},server=on,wait=on",
        "-kernel", str(image), "-initrd", str(folder / "initramfs.cpio"), "-append", "console=ttyS0 panic=-1",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_for(watched)
            yield watched, steered
        finally:
            process.kill()


def connected(path: Path) -> Monitor:
    """Connect to a monitor whose socket will appear soon."""
    _wait_for(path)
    return Monitor(str(path), PATIENCE_S)


def _wait_for(path: Path) -> None:
    """Wait until a socket exists."""
    for _ in range(2000):
        if path.exists():
            return
        time.sleep(0.01)
    raise AssertionError(f"{path.name} does not appear")
