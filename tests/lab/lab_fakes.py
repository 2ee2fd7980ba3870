# SPDX-License-Identifier: BSD-3-Clause
"""Fakes for the lab's tests: shell scripts for programs, made-up consoles, and a kernel tree of two files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from simlib.lab.boot import BootOutcome
from simlib.lab.build import Built
from simlib.lab.experiment import Cell, parse_experiment
from simlib.lab.patches import Series, read_series

OUTPUT = (Path(__file__).parent / "samples" / "contention_test_native.jsonl").read_text("utf-8")
"""A run of mmu_lock_contention_test on a stock kernel, shortened; its mmu_lock statistics were added by hand."""


def program(path: Path, text: str) -> Path:
    """Write a shell script in place of a program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def cell(parameters: dict[str, Any] | None = None, **changes: Any) -> Cell:
    """First cell of an experiment."""
    test = {"vcpus": 1, "memory_per_vcpu": "2M", "rounds": 2, "parked": True, **changes.pop("test", {})}
    table = {"name": "fake", "target": "x86_64", "timeout_s": 20, **changes, "test": test}
    return next(parse_experiment({**table, "parameters": parameters or {}}).cells())


def console(of: Cell, outputs: list[str] | None = None, start: float = 0.5, stop: float = 1.5, status: int = 0) -> str:
    """Console of a good run, in the format of the lab's init; the last line ends with `status`."""
    lines = of.script().splitlines()
    outputs = outputs if outputs is not None else [OUTPUT if line.startswith("run") else "" for line in lines]
    frames = [f"\n@simlib start {start:.9f}\n"]
    for number, text in enumerate(outputs):
        last = number == len(outputs) - 1
        frames.append(f"@simlib begin {number}\n{text}\n@simlib end {number} {status if last else 0}\n")
    return "".join([*frames, f"@simlib stop {stop:.9f}\n"]).replace("\n", "\r\n")


def outcome(output: str = OUTPUT, of: Cell | None = None) -> BootOutcome:
    """Outcome of a good boot."""
    lines = (of or cell()).script().splitlines()
    outputs = tuple(output.strip("\n") if line.startswith("run") else "" for line in lines)
    return BootOutcome(
        outputs, hashlib.sha256(repr(outputs).encode()).hexdigest(), "qemu-system-x86_64 -M q35", 1.0, 2.0
    )


def built(folder: Path) -> Built:
    """A built kernel with fake files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "image").write_bytes(b"kernel")
    (folder / "initramfs.cpio").write_bytes(b"")
    provenance: dict[str, object] = {"series_sha256": "5e", "kernel": "statistics"}
    return Built("x86_64", "statistics", folder / "image", folder / "initramfs.cpio", provenance)


def tree(folder: Path, version: str = "6.12.117") -> Path:
    """Kernel tree of two files."""
    keys = zip(("VERSION", "PATCHLEVEL", "SUBLEVEL"), version.split("."), strict=True)
    (folder / "virt").mkdir(parents=True)
    (folder / "Makefile").write_text("".join(f"{key} = {value}\n" for key, value in keys))
    (folder / "virt" / "a.c").write_text("".join(f"int a{number};\n" for number in range(9)))
    (folder / "virt" / "b.c").write_text("int b;\n")
    return folder


CHANGE = """\
Subject: change
--- a/virt/a.c
+++ b/virt/a.c
@@ -4,3 +4,3 @@
 int a3;
-int a4;
+long a4;
 int a5;
"""
ADD = """\
Subject: add
diff --git a/virt/new.c b/virt/new.c
new file mode 100644
--- /dev/null
+++ b/virt/new.c
@@ -0,0 +1 @@
+int added;
"""


def series(folder: Path, base: str = "# base: linux-source-6.12 6.12.117", **patches: str) -> Series:
    """Write a series, and read it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in patches.items():
        (folder / f"{name}.patch").write_text(text)
    (folder / "series").write_text("\n".join([base, *(f"{name}.patch" for name in patches)]) + "\n")
    return read_series(folder)


def contents(folder: Path) -> dict[str, str]:
    """Texts of all files in a folder, by relative path."""
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}
