# SPDX-License-Identifier: BSD-3-Clause
"""The source of a kernel with somebody's series and the lab's statistics: theirs first, ours on top of it."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from simlib._lib.errors import SimlibError
from simlib.lab.patches import Series, apply_patch, apply_series, failure_of
from simlib.lab.trial.accessors import Past, sites_in, to_accessors
from simlib.lab.trial.series import Patch, parts

_BY_RULE = 4
"""Of the first patches so many bring calls to accessors."""

_BY_HAND = ("include/linux/kvm_types.h", "virt/kvm/kvm_mm.h", "include/linux/kvm_mmu_lock.h")
"""Files in which they do more than that."""

_SITES, _LISTED = "include/linux/kvm_types.h", "include/linux/kvm_mmu_lock_sites.h"
_LAST = "\tKVM_MMU_LOCK_NR_SITES,"

OTHERWISE = "take --kernel lock-stat, which counts by lock"
"""What is left where the statistics do not fit."""


@dataclass(frozen=True)
class Staged:
    """Files of a changed kernel, in a folder of their own.

    - `touched`: their paths, relative to the kernel tree.
    - `sites`: sites that are new, by the function that takes the lock there.
    - `past`: places of theirs that take the lock by no accessor, by file.
    """

    folder: Path
    touched: tuple[str, ...]
    sites: Mapping[str, str]
    past: Mapping[str, tuple[Past, ...]]


def taken(series: Series, numbers: Sequence[int]) -> Series:
    """Some patches of a series."""
    return replace(series, patches=tuple(patch for patch in series.patches if int(patch.name[:4]) in numbers))


def stage_own(pristine: Path, series: Series, numbers: Sequence[int], folder: Path) -> Staged:
    """Stage a source with patches of ours alone.

    - `series`: all of them.
    - `numbers`: which are taken.
    """
    return Staged(folder, tuple(apply_series(pristine, taken(series, numbers), folder)), {}, {})


def stage(
    pristine: Path, patches: Sequence[Patch], series: Series, folder: Path, by_rule: Sequence[str] = ()
) -> Staged:
    """Stage a source with a series of somebody's, and then what measures.

    Raises `SimlibError` if a patch of theirs does not apply, naming it, its files and hunks; or if what measures does
    not go on top of it.

    - `pristine`: the kernel's source.
    - `series`: of ours those that measure, or the tests alone: then calls stay as they are.
    - `by_rule`: files that are brought to the accessors by rule even if none of `patches` changes them, so that two
      kernels that are compared were made alike.
    """
    shutil.rmtree(folder, ignore_errors=True)
    ours = apply_series(pristine, series, folder)
    named = any(int(patch.name[:4]) <= _BY_RULE for patch in series.patches)
    with tempfile.TemporaryDirectory(prefix="simlib-series-") as place:
        theirs = Path(place)
        names = _apply_theirs(pristine, patches, theirs, by_rule)
        sites: dict[str, str] = {}
        past: dict[str, tuple[Past, ...]] = {}
        for name in names:
            changed, staged = theirs / name, folder / name
            if not changed.is_file():
                staged.unlink(missing_ok=True)
                continue
            text = _text(changed)
            if named and name.endswith((".c", ".h")) and name not in _BY_HAND:
                made = to_accessors(text, sites_in(_text(staged)))
                sites |= made.sites
                if new := _added(made.past, to_accessors(_text(pristine / name), {}).past):
                    past[name] = new
                text = made.text
            staged.parent.mkdir(parents=True, exist_ok=True)
            staged.write_text(text, "utf-8", errors="surrogateescape")
            if name in ours:
                _measure(name, series, folder)
    if sites:
        _name_sites(folder, sites)
    return Staged(folder, tuple(sorted({*ours, *names})), sites, past)


def _added(after: Sequence[Past], before: Sequence[Past]) -> tuple[Past, ...]:
    """The lines that were not there before, as often as they are new."""
    known = Counter(one.text for one in before)
    new = []
    for one in after:
        known[one.text] -= 1
        if known[one.text] < 0:
            new.append(one)
    return tuple(new)


def _text(path: Path) -> str:
    return path.read_text("utf-8", errors="surrogateescape") if path.is_file() else ""


def _apply_theirs(pristine: Path, patches: Sequence[Patch], place: Path, also: Sequence[str]) -> list[str]:
    """Apply their patches, in order, to copies of the files that they touch, and of some others; returns these."""
    touched = list(dict.fromkeys([*also, *(name for patch in patches for name in patch.files)]))
    for name in touched:
        if (pristine / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(pristine / name, place / name)
    for patch in patches:
        if patch.changes and (said := apply_patch(patch.changes, place)):
            cure = "rebase it to the kernel that is built, or give its own tree with --source"
            raise SimlibError(failure_of(patch.name, said, cure))
    return touched


def _measure(name: str, series: Series, folder: Path) -> None:
    """Put what our patches do to one file on top of it, but for what was done by rule."""
    for patch in series.patches:
        if int(patch.name[:4]) <= _BY_RULE and name not in _BY_HAND:
            continue
        for names, part in parts(patch.read_text("utf-8")):
            if names[1] != name:
                continue
            if said := apply_patch(part, folder, fuzz=2):
                cure = f"what it measures there is lost: change that part of your patch, or {OTHERWISE}"
                raise SimlibError(f"on top of the series, {failure_of(patch.name, said, cure)}")


def _name_sites(folder: Path, sites: Mapping[str, str]) -> None:
    """Give new sites a number, and statistics."""
    path = folder / _SITES
    text = path.read_text("utf-8")
    names = sorted(set(sites.values()))
    path.write_text(text.replace(_LAST, "".join(f"\t{name},\n" for name in names) + _LAST), "utf-8")
    rows = []
    for name in names:
        upper = name.removeprefix("KVM_MMU_LOCK_")
        rows += [f"KVM_MMU_LOCK_STAT({upper.lower()}, {upper}, {mode}, {mode.upper()})," for mode in ("read", "write")]
    listed = folder / _LISTED
    listed.write_text(f"{listed.read_text('utf-8').rstrip()}\n" + "\n".join(rows) + "\n", "utf-8")
