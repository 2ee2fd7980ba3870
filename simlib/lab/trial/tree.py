# SPDX-License-Identifier: BSD-3-Clause
"""Stage the source of a kernel: apply the series under test, then the bundled instrumentation patches."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from simlib._lib.errors import SimlibError
from simlib.lab.patches import Series, apply_patch, apply_series, describe_failure
from simlib.lab.trial.accessors import UncountedCall, sites_in, to_accessors
from simlib.lab.trial.series import Patch, file_diffs

_ACCESSOR_PATCHES = 4
"""Number of the last bundled patch that replaces calls with accessors."""

_BY_HAND = ("include/linux/kvm_types.h", "virt/kvm/kvm_mm.h", "include/linux/kvm_mmu_lock.h")
"""Files in which the accessor patches do more than replace calls."""

_SITES, _STATISTICS = "include/linux/kvm_types.h", "include/linux/kvm_mmu_lock_sites.h"
_LAST = "\tKVM_MMU_LOCK_NR_SITES,"

LOCK_STAT_HINT = "use --kernel lock-stat, which counts by lock"


@dataclass(frozen=True)
class Staged:
    """Files of a changed kernel, in a folder of their own.

    - `touched`: their paths, relative to the kernel tree.
    - `sites`: the new sites, by the function that takes the lock there.
    - `uncounted`: calls that the tried series adds and that take the lock directly, by file.
    """

    folder: Path
    touched: tuple[str, ...]
    sites: Mapping[str, str]
    uncounted: Mapping[str, tuple[UncountedCall, ...]]


def select_patches(series: Series, numbers: Sequence[int]) -> Series:
    """Select patches of a bundled series by number."""
    return replace(series, patches=tuple(patch for patch in series.patches if int(patch.name[:4]) in numbers))


def stage_bundled(pristine: Path, series: Series, numbers: Sequence[int], folder: Path) -> Staged:
    """Stage a source with only the bundled patches that have one of the `numbers`."""
    return Staged(folder, tuple(apply_series(pristine, select_patches(series, numbers), folder)), {}, {})


def stage(
    pristine: Path, patches: Sequence[Patch], series: Series, folder: Path, by_rule: Sequence[str] = ()
) -> Staged:
    """Stage a kernel's source: apply the series under test, then the bundled instrumentation patches.

    Raises `SimlibError` if a tried patch does not apply, with its files and hunks, or if a bundled patch does not apply
    on top of it.

    - `series`: the bundled patches that measure, or only the selftests; then calls are not replaced by accessors.
    - `by_rule`: files whose calls are replaced even if none of `patches` changes them, so that both kernels of a
      comparison are made in the same way.
    """
    shutil.rmtree(folder, ignore_errors=True)
    bundled = apply_series(pristine, series, folder)
    has_accessors = any(int(patch.name[:4]) <= _ACCESSOR_PATCHES for patch in series.patches)
    with tempfile.TemporaryDirectory(prefix="simlib-series-") as temporary:
        tried = Path(temporary)
        names = _apply_tried(pristine, patches, tried, by_rule)
        sites: dict[str, str] = {}
        uncounted: dict[str, tuple[UncountedCall, ...]] = {}
        for name in names:
            changed, staged = tried / name, folder / name
            if not changed.is_file():
                staged.unlink(missing_ok=True)
                continue
            text = _text(changed)
            if has_accessors and name.endswith((".c", ".h")) and name not in _BY_HAND:
                rewritten = to_accessors(text, sites_in(_text(staged)))
                sites |= rewritten.sites
                if new_calls := _added(rewritten.uncounted, to_accessors(_text(pristine / name), {}).uncounted):
                    uncounted[name] = new_calls
                text = rewritten.text
            staged.parent.mkdir(parents=True, exist_ok=True)
            staged.write_text(text, "utf-8", errors="surrogateescape")
            if name in bundled:
                _apply_bundled(name, series, folder)
    if sites:
        _add_sites(folder, sites)
    return Staged(folder, tuple(sorted({*bundled, *names})), sites, uncounted)


def is_applied(tree: Path, patches: Sequence[Patch]) -> bool:
    """True if a tree already has the changes of all patches: they can be taken back, the last one first."""
    with tempfile.TemporaryDirectory(prefix="simlib-applied-") as folder:
        _copy(tree, Path(folder), [name for patch in patches for name in patch.files])
        changing = [patch for patch in patches if patch.kernel_diff]
        return bool(changing) and not any(
            apply_patch(patch.kernel_diff, Path(folder), reverse=True) for patch in reversed(changing)
        )


def _copy(tree: Path, folder: Path, names: Sequence[str]) -> None:
    """Copy those files of a tree that exist."""
    for name in names:
        if (tree / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, folder / name)


def _added(after: Sequence[UncountedCall], before: Sequence[UncountedCall]) -> tuple[UncountedCall, ...]:
    """Calls that a patch adds: of each call's text, the occurrences in `after` beyond their number in `before`."""
    known = Counter(call.text for call in before)
    added = []
    for call in after:
        known[call.text] -= 1
        if known[call.text] < 0:
            added.append(call)
    return tuple(added)


def _text(path: Path) -> str:
    return path.read_text("utf-8", errors="surrogateescape") if path.is_file() else ""


def _apply_tried(pristine: Path, patches: Sequence[Patch], folder: Path, by_rule: Sequence[str]) -> list[str]:
    """Apply the tried patches to copies of the files that they touch and of `by_rule`; return these files' names."""
    touched = list(dict.fromkeys([*by_rule, *(name for patch in patches for name in patch.files)]))
    _copy(pristine, folder, touched)
    for patch in patches:
        if patch.kernel_diff and (output := apply_patch(patch.kernel_diff, folder)):
            hint = "rebase it onto the kernel that is built, or give its own tree with --source"
            raise SimlibError(describe_failure(patch.name, output, hint))
    return touched


def _apply_bundled(name: str, series: Series, folder: Path) -> None:
    """Apply the bundled patches to one file, except the accessor patches where rules replace the calls."""
    for patch in series.patches:
        if int(patch.name[:4]) <= _ACCESSOR_PATCHES and name not in _BY_HAND:
            continue
        for names, part in file_diffs(patch.read_text("utf-8")):
            if names[1] != name:
                continue
            if output := apply_patch(part, folder, fuzz=2):
                hint = f"the lab cannot measure there: change that part of your patch, or {LOCK_STAT_HINT}"
                raise SimlibError(f"on top of the series, {describe_failure(patch.name, output, hint)}")


def _add_sites(folder: Path, sites: Mapping[str, str]) -> None:
    """Add new sites to the enumeration of sites and to the statistics."""
    path = folder / _SITES
    text = path.read_text("utf-8")
    names = sorted(set(sites.values()))
    path.write_text(text.replace(_LAST, "".join(f"\t{name},\n" for name in names) + _LAST), "utf-8")
    rows = []
    for name in names:
        upper = name.removeprefix("KVM_MMU_LOCK_")
        rows += [f"KVM_MMU_LOCK_STAT({upper.lower()}, {upper}, {mode}, {mode.upper()})," for mode in ("read", "write")]
    statistics = folder / _STATISTICS
    statistics.write_text(f"{statistics.read_text('utf-8').rstrip()}\n" + "\n".join(rows) + "\n", "utf-8")
