# SPDX-License-Identifier: BSD-3-Clause
"""Check whether this host has what the lab needs, with a hint on each item that it lacks."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from simlib._lib.errors import InputError
from simlib.lab.build import KERNELS, read_built, require_compiler
from simlib.lab.cache import free_gib, lab_dir
from simlib.lab.native import LOCK_STAT, TRACING, is_patched
from simlib.lab.patches import read_series
from simlib.lab.qemu import find_qemu
from simlib.lab.source import find_archive
from simlib.lab.targets import TARGETS


@dataclass(frozen=True)
class Finding:
    """One item that the lab may need."""

    what: str
    present: bool
    detail: str
    """Description of the item, or a hint if it is missing."""


def check_host() -> list[Finding]:
    """Check this host without changing it."""
    series = read_series()
    findings = [
        Finding("patch series", True, f"{len(series.patches)} patches, {series.sha256[:12]}, for {series.package}"),
        _try("kernel source", lambda: str(find_archive(series))),
    ]
    for target in TARGETS.values():
        findings.append(_try(f"compiler {target.name}", partial(require_compiler, target)))
        findings.append(_try(f"QEMU {target.name}", lambda: f"{find_qemu(target).text}, deterministic mode"))  # noqa: B023  # called at once
        built = [name for name in KERNELS if read_built(target.name, name)]
        detail = ", ".join(built) or f"none: run simlib lab build --arch {target.name}"
        findings.append(Finding(f"kernels {target.name}", bool(built), detail))
    free = free_gib(lab_dir())
    disk = Finding("disk", free > 5.0, f"{free:.0f} GiB free for {lab_dir()}; all targets and kernels need 5 GiB")
    return [*findings, *_native(), disk]


def _try(what: str, find: Callable[[], str]) -> Finding:
    """Return a finding with the description that `find` returns, or with the hint of its `InputError`."""
    try:
        return Finding(what, True, find())
    except InputError as error:
        return Finding(what, False, f"{error.rule}: {error.hint}")


def _native() -> list[Finding]:
    kvm = Path("/dev/kvm")
    usable = os.access(kvm, os.R_OK | os.W_OK)
    if usable:
        detail = f"{platform.machine()}, Linux {platform.release()}"
    elif kvm.exists():
        detail = "not accessible: join the group kvm, or run as root"
    else:
        detail = "missing: load KVM's module, or enable virtualisation in the firmware"
    patched = is_patched()
    lock_stat = LOCK_STAT.exists()
    traced = (TRACING / "events/lock/contention_begin").exists()
    return [
        Finding("native /dev/kvm", usable, detail),
        Finding("native patched kernel", patched, "yes" if patched else "stock: vary test.chunk_pages, not the batch"),
        Finding("native lock_stat", lock_stat, "/proc/lock_stat" if lock_stat else "CONFIG_LOCK_STAT is off"),
        Finding("native tracepoints", traced, "contention_begin, contention_end" if traced else "none, or no tracefs"),
    ]
