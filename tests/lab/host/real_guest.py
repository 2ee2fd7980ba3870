# SPDX-License-Identifier: BSD-3-Clause
"""A guest of one sector that writes memory in a loop, and a QEMU that runs it."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from simlib._lib.errors import InputError
from simlib.vmm.qmp import Monitor

PAGE, MIB = 4096, 2**20
FIRST = MIB
"""First written byte: above firmware and boot sector."""


def four(number: int) -> bytes:
    """A number as x86 stores it."""
    return number.to_bytes(4, "little")


def writing(pages: int, pause: int) -> bytes:
    """Instructions of protected mode that add 1 to the first word of each page, over and over."""
    return (
        b"\x66\xb8\x10\x00\x8e\xd8"  # mov ax, 16; mov ds, ax
        b"\xbf" + four(FIRST) +  # again: mov edi, FIRST
        b"\xff\x07"  # page: inc dword [edi]
        b"\xb9" + four(pause) + b"\xe2\xfe"  # mov ecx, pause; loop to itself
        b"\x81\xc7" + four(PAGE) +  # add edi, PAGE
        b"\x81\xff" + four(FIRST + pages * PAGE) +  # cmp edi, behind the last
        b"\x72\xe9"  # jb page
        b"\xeb\xe2"  # jmp again
    )  # fmt: skip


def segments(place: int) -> bytes:
    """Segment descriptors at an address: null, code and data of 4 GiB from 0; then the operand of lgdt."""
    flat = bytes.fromhex("ffff0000009acf00 ffff00000092cf00")
    return bytes(8) + flat + (23).to_bytes(2, "little") + four(place)


def boot_sector(pages: int, pause: int) -> bytes:
    """A boot sector that adds 1 to the first word of `pages` pages from `FIRST`, over and over.

    It runs in flat protected mode without interrupts, so that the guest touches no other memory. `pause` iterations of
    an empty loop separate two pages. Firmware loads it to 0x7c00 and has enabled the A20 line.
    """
    base = 0x7C00
    start = base + 0x20
    table = base + 0x60
    real_mode = (
        b"\xfa"  # cli
        b"\x31\xc0\x8e\xd8"  # xor ax, ax; mov ds, ax
        b"\x0f\x01\x16" + (table + 24).to_bytes(2, "little") +  # lgdt [table + 24]
        b"\x0f\x20\xc0\x0c\x01\x0f\x22\xc0"  # mov eax, cr0; or al, 1; mov cr0, eax
        b"\xea" + start.to_bytes(2, "little") + b"\x08\x00"  # jmp 8:start
    )  # fmt: skip
    image = bytearray(512)
    image[: len(real_mode)] = real_mode
    code = writing(pages, pause)
    image[start - base : start - base + len(code)] = code
    image[table - base : table - base + len(segments(table))] = segments(table)
    image[510:] = b"\x55\xaa"
    return bytes(image)


@contextlib.contextmanager
def running(
    program: str, folder: Path, name: str, accelerator: str, *more: str, memory_mib: int = 64
) -> Iterator[tuple[str, Monitor]]:
    """A QEMU with two QMP sockets, one for the watch and one for the test's commands."""
    watched, steered = str(folder / f"{name}.qmp"), str(folder / f"{name}.steer")
    command = [
        program, "-accel", accelerator, "-machine", "pc", "-m", str(memory_mib), "-nodefaults", "-display", "none",
        "-drive", f"file={folder / 'boot.img'},format=raw,if=ide,snapshot=on",
        "-qmp", f"unix:{watched},server=on,wait=off", "-qmp", f"unix:{steered},server=on,wait=off", *more,
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        with _answering(process, steered) as monitor:
            yield watched, monitor
    finally:
        process.kill()
        with process:
            process.wait(10)


def _answering(process: subprocess.Popen[bytes], path: str) -> Monitor:
    """Connect to QEMU's monitor; raise an error with QEMU's output if QEMU ends."""
    for _ in range(400):
        with contextlib.suppress(InputError):
            return Monitor(path)
        if process.poll() is not None:
            break
        time.sleep(0.025)
    process.kill()
    assert process.stdout is not None
    raise RuntimeError(process.stdout.read().decode(errors="replace"))


def query(monitor: Monitor, command: str, **arguments: object) -> object:
    """Return QEMU's answer; fail if QEMU refuses the command."""
    monitor.allow(10.0)
    answer = monitor.ask(command, {name.replace("_", "-"): value for name, value in arguments.items()})
    assert "return" in answer, answer
    return answer["return"]
