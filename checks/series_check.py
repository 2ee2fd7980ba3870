# SPDX-License-Identifier: BSD-3-Clause
"""Whether the patch series is fit to be sent: it applies, passes checkpatch, and compiles, patch by patch."""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from simlib._lib.errors import SimlibError
from simlib.lab.build import check_objects, compile_kvm, compile_selftests, has_sparse
from simlib.lab.cache import at_work, lab_dir
from simlib.lab.patches import Series, read_series
from simlib.lab.process import need
from simlib.lab.renames import SELFTESTS
from simlib.lab.source import prepare_source, prepare_step
from simlib.lab.targets import Target

_SUMMARY = re.compile(r"total: (\d+) errors, (\d+) warnings, (\d+) checks")
_NEW = re.compile(r"^--- /dev/null\n\+\+\+ b/(\S+)$", re.MULTILINE)
_WARNING = re.compile(r"^(\S+\.[ch]):\d+:\d+: warning: (.*)$", re.MULTILINE)
_TREE = re.compile(r"(?:.*/(?:source|pristine|steps)/|(?:\.\./)+)?(?P<name>(?:arch|include|virt)/.*)")


IGNORED = ("FILE_PATH_CHANGES", "UNKNOWN_COMMIT_ID", "MACRO_ARG_REUSE")
"""What checkpatch says and is not an objection here: the reminder to look at MAINTAINERS when a file is new can only be
silenced by touching that file, and is followed instead (every new file must have a maintainer, `get_maintainer.pl`);
commits of kernels newer than the base are named, which no tree of it has; and a macro that is a loop over a list must
name its iterator more than once."""


def check_series(
    targets: Sequence[Target],
    source: Path | None = None,
    progress: Callable[[str], None] = print,
    skip: Sequence[str] = (),
    each: bool = True,
) -> list[str]:
    """Check the whole series.

    Returns: What was found good, a sentence each. Raises `InputError`, `SimlibError` if something is missing, does not
    apply, or is faulty.

    - `targets`: architectures to compile for: everything in KVM's folders, with warnings turned up (W=1, and sparse
      where it is installed), with and without the statistics; then each patch by itself.
    - `source`: a kernel tree of one's own. Default: the distribution's source package.
    - `progress`: told what is being done.
    - `skip`: patches to leave out, by number or file name.
    - `each`: whether to compile each patch by itself, too, which takes longest.
    """
    series = read_series().without(skip)
    need("checkpatch.pl", ["perl"], "apt-get install perl")
    with at_work(alone=True):
        tree = prepare_source(lab_dir(), series, source, progress)
        version = ".".join(map(str, tree.version))
        good = [f"{len(series.patches)} patches apply to {tree.origin} ({version})"]
        progress("checkpatch")
        for patch in series.patches:
            _checkpatch(tree.tree, patch)
        good.append("checkpatch.pl --strict: no errors, warnings or checks")
        if shutil.which("sparse") is None:
            good.append("sparse is not installed, so nothing was checked with it: apt-get install sparse")
        compiled = set[str]()
        for target in targets:
            tools = "W=1 and sparse" if has_sparse(target) else "W=1"
            compiled |= _compile(target, tree.tree, tools, series.touched(), progress)
            good.append(f"{target.name}: KVM compiles with {tools}, with and without statistics, without new warnings")
        good.append(_all_compiled(targets, series, compiled))
        if each:
            good.append(_each_compiles(targets, series, progress))
    return good


def _compile(
    target: Target, tree: Path, tools: str, touched: Sequence[str], progress: Callable[[str], None]
) -> set[str]:
    """Compile all of KVM, with and without the statistics; refuse new warnings, return which files were compiled."""
    compiled = set[str]()
    before: set[tuple[str, str]] | None = None
    for kernel in ("statistics", "plain"):
        progress(f"{target.name}-{kernel}: compiling KVM with {tools}")
        warnings = _warnings(compile_kvm(target, kernel, tree))
        compiled |= _compiled(target, tree, touched)
        if warnings and before is None:  # which of them are the series' own?
            progress(f"{target.name}: compiling KVM without the series")
            before = _warnings(compile_kvm(target, "plain", tree.with_name("pristine")))
        warnings -= before or set()
        if warnings:
            first = ": ".join(min(warnings))
            raise SimlibError(f"{target.name}-{kernel}: {len(warnings)} new warnings, the first: {first}")
    return compiled


def _compiled(target: Target, tree: Path, touched: Sequence[str]) -> set[str]:
    """Which of the series' files there is an object of: the same name, or for arm64's EL2 one that begins so."""
    objects = check_objects(target, tree)
    sources = [name for name in touched if name.endswith(".c")]
    return {name for name in sources if any((objects / name).parent.glob(f"{Path(name).stem}*.o"))}


def _all_compiled(targets: Sequence[Target], series: Series, compiled: set[str]) -> str:
    """Refuse a file of the series that nothing compiled; files of architectures that were not asked for are told."""
    sources = [name for name in series.touched() if name.endswith(".c") and not name.startswith(SELFTESTS)]
    missing = [name for name in sources if name not in compiled]
    others = [name for name in missing if name.startswith("arch/") and not _owners(targets, name)]
    if lost := sorted(set(missing) - set(others)):
        raise SimlibError(f"{', '.join(lost)}: not compiled, so not checked: simlib/lab/configs must turn it on")
    text = f"{len(sources) - len(others)} source files of the kernel that the series touches have objects"
    return text + (f"; left out, being of other architectures: {', '.join(others)}" if others else "")


def _owners(targets: Sequence[Target], name: str) -> list[Target]:
    """The targets for which a file of the kernel is compiled."""
    if name.startswith("arch/"):
        return [target for target in targets if name.startswith(target.kvm.removesuffix("kvm"))]
    return [target for target in targets if target.name == "x86_64"] or list(targets[:1])


def _each_compiles(targets: Sequence[Target], series: Series, progress: Callable[[str], None]) -> str:
    """Apply one patch after the other, and compile what each could break: KVM and selftests."""
    steps = 0
    for number, patch in enumerate(series.patches, start=1):
        tree = prepare_step(lab_dir(), series, number)
        changed = replace(series, patches=(patch,)).touched()
        code = [name for name in changed if name.endswith((".c", ".h")) and not name.startswith(SELFTESTS)]
        build = [name for name in changed if name.startswith(("arch/", "virt/")) and name not in code]
        owners = {target.name: target for name in (*code, *build) for target in _owners(targets, name)}
        known = (tree / "virt/kvm/mmu_lock_stat.c").is_file()
        kernels = ["statistics"] if known else ["plain"]
        if known and any("mmu_lock" in Path(name).name for name in code):  # accessors, which differ
            kernels.append("plain")
        for target in owners.values():
            for kernel in kernels:
                progress(f"patch {number} of {len(series.patches)}: compiling KVM for {target.name}-{kernel}")
                compile_kvm(target, kernel, tree, again=False)
                steps += 1
        tests = [name.removeprefix(SELFTESTS).removesuffix(".c") for name in changed if name.startswith(SELFTESTS)]
        programs = [name for name in tests if name != "Makefile" and (tree / f"{SELFTESTS}{name}.c").is_file()]
        for target in _owners(targets, SELFTESTS) if programs else ():
            progress(f"patch {number} of {len(series.patches)}: compiling its selftest")
            out = lab_dir() / "objects" / f"{target.name}-check-selftests"
            log = compile_selftests(target, tree, programs, out)
            if found := [line for line in log.splitlines() if "warning:" in line and Path(programs[0]).name in line]:
                raise SimlibError(f"{patch.name}: {found[0]}")
            steps += 1
    return f"each patch by itself: {steps} compilations of KVM and selftests succeed"


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
