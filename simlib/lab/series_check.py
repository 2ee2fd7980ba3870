# SPDX-License-Identifier: BSD-3-Clause
"""Whether the patch series is fit to be sent: it applies, passes checkpatch, and compiles without warnings."""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from simlib.errors import InputError, SimlibError
from simlib.lab.build import compile_kvm
from simlib.lab.cache import at_work, lab_dir
from simlib.lab.patches import Series, read_series
from simlib.lab.source import prepare_source
from simlib.lab.targets import Target

_SUMMARY = re.compile(r"total: (\d+) errors, (\d+) warnings, (\d+) checks")
_NEW = re.compile(r"^--- /dev/null\n\+\+\+ b/(\S+)$", re.MULTILINE)
_WARNING = re.compile(r"^(\S+\.[ch]):\d+:\d+: warning: (.*)$", re.MULTILINE)
_TREE = re.compile(r"(?:.*/(?:source|pristine)/|(?:\.\./)+)?(?P<name>(?:arch|include|virt)/.*)")

IGNORED = ("FILE_PATH_CHANGES",)
"""checkpatch's reminder to look at MAINTAINERS when a file is new. It can only be silenced by touching that file;
here the reminder is followed instead: every new file must have a maintainer already (`get_maintainer.pl`)."""


def check_series(
    targets: Sequence[Target], source: Path | None = None, progress: Callable[[str], None] = print
) -> list[str]:
    """Check the whole series.

    Parameters
    ----------
    targets : sequence of Target
        Architectures to compile for: everything in KVM's folders, with warnings turned up (W=1), with and without
        the statistics.
    source : Path, optional
        A kernel tree of one's own. Default: the distribution's source package.
    progress : callable
        Told what is being done.

    Returns
    -------
    list of str
        What was found good, a sentence each.

    Raises
    ------
    InputError, SimlibError
        If something is missing, does not apply, or is faulty.
    """
    series = read_series()
    if shutil.which("perl") is None:
        raise InputError("checkpatch.pl", "perl", "not found", "apt-get install perl")
    with at_work(alone=True):
        return _check(targets, series, source, progress)


def _check(
    targets: Sequence[Target], series: Series, source: Path | None, progress: Callable[[str], None]
) -> list[str]:
    """Check the series in a lab that nobody else uses."""
    tree = prepare_source(lab_dir(), series, source, progress)
    version = ".".join(map(str, tree.version))
    good = [f"{len(series.patches)} patches apply to {tree.origin} ({version})"]
    progress("checkpatch")
    for patch in series.patches:
        _checkpatch(tree.tree, patch)
    good.append("checkpatch.pl --strict: no errors, warnings or checks")
    for target in targets:
        before: set[tuple[str, str]] | None = None
        for kernel in ("statistics", "plain"):
            progress(f"{target.name}-{kernel}: compiling KVM with W=1")
            warnings = _warnings(compile_kvm(target, kernel, tree.tree))
            if warnings and before is None:  # which of them are the series' own?
                progress(f"{target.name}: compiling KVM without the series")
                before = _warnings(compile_kvm(target, "plain", tree.tree.with_name("pristine")))
            warnings -= before or set()
            if warnings:
                first = ": ".join(min(warnings))
                raise SimlibError(f"{target.name}-{kernel}: {len(warnings)} new warnings, the first: {first}")
        good.append(f"{target.name}: KVM compiles with W=1, with and without statistics, without new warnings")
    return good


def _warnings(log: str) -> set[tuple[str, str]]:
    """The compiler's warnings, by file within the tree and text: lines move."""
    found = ((_TREE.fullmatch(posixpath.normpath(path)), text) for path, text in _WARNING.findall(log))
    return {(match["name"], text) for match, text in found if match}


def _checkpatch(tree: Path, patch: Path) -> None:
    """Run the kernel's own style checker."""
    command = ["perl", "scripts/checkpatch.pl", "--strict", "--no-color", "--ignore", ",".join(IGNORED), str(patch)]
    done = subprocess.run(  # noqa: S603  # the kernel's script on the project's own patch
        command, cwd=tree, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}
    )
    found = _SUMMARY.search(done.stdout)
    if found is None or any(int(number) for number in found.groups()):
        said = done.stdout.strip() or done.stderr.strip() or "it printed nothing"
        lines = [line for line in done.stdout.splitlines() if line.startswith(("ERROR", "WARNING", "CHECK"))]
        raise SimlibError(f"{patch.name}: checkpatch: {'; '.join(lines[:3]) or said[-200:]}")
    for name in _NEW.findall(patch.read_text("utf-8")):
        asked = ["perl", "scripts/get_maintainer.pl", "--no-git", "--no-rolestats", "-f", name]
        done = subprocess.run(asked, cwd=tree, capture_output=True, text=True, check=False)  # noqa: S603  # as above
        if "kvm@" not in done.stdout:
            raise SimlibError(f"{patch.name}: {name} is new and MAINTAINERS has no entry for it")
