# SPDX-License-Identifier: BSD-3-Clause
"""Check that the patch series applies, passes checkpatch and compiles with W=1 and sparse, also after each patch.

    .venv/bin/python checks/series_check.py [--arch ARCH …] [--source TREE] [--skip PATCH …] [--no-per-patch]

Takes half an hour on two cores; with ``--no-per-patch`` and two architectures a third of that.
"""

from __future__ import annotations

import argparse
import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from simlib._lib.errors import SimlibError
from simlib.lab.build import compile_kvm, compile_selftests, has_sparse, kvm_objects_dir
from simlib.lab.cache import lab_dir, lab_lock
from simlib.lab.patches import SELFTESTS, Series, read_series
from simlib.lab.process import require_programs
from simlib.lab.source import prepare_source, prepare_step
from simlib.lab.targets import TARGETS, Target, find_target
from simlib.ui.cli.output import progress_bar, say

_SUMMARY = re.compile(r"total: (\d+) errors, (\d+) warnings, (\d+) checks")
_NEW = re.compile(r"^--- /dev/null\n\+\+\+ b/(\S+)$", re.MULTILINE)
_WARNING = re.compile(r"^(\S+\.[ch]):\d+:\d+: warning: (.*)$", re.MULTILINE)
_TREE = re.compile(r"(?:.*/(?:source|pristine|steps)/|(?:\.\./)+)?(?P<name>(?:arch|include|virt)/.*)")

IGNORED = ("FILE_PATH_CHANGES", "UNKNOWN_COMMIT_ID", "MACRO_ARG_REUSE")
"""Messages of checkpatch that are not objections here.

- The reminder to update MAINTAINERS for a new file: instead, `get_maintainer.pl` must name a maintainer of every file.
- Unknown commits: the messages name commits of kernels newer than the base.
- Reuse of a macro's argument: a macro that is a loop over a list names its iterator more than once.
"""


def check_series(
    targets: Sequence[Target],
    source: Path | None = None,
    progress: Callable[[str], None] = print,
    skip: Sequence[str] = (),
    per_patch: bool = True,
) -> list[str]:
    """Check the whole series.

    Returns: a sentence for each check that passed. Raises `InputError` if a tool or the source is missing. Raises
    `SimlibError` if a patch does not apply or fails a check.

    - `targets`: architectures to compile KVM for, with extra warnings (W=1, and sparse where it is installed), with
      and without the statistics.
    - `source`: the caller's kernel tree. Default: the distribution's source package.
    - `progress`: called with a description of each step.
    - `skip`: patches to leave out, by number or file name.
    - `per_patch`: also compile after each patch, which takes longest.
    """
    series = read_series().without(skip)
    require_programs("checkpatch.pl", ["perl"], "apt-get install perl")
    with lab_lock(exclusive=True):
        tree = prepare_source(lab_dir(), series, source, progress)
        version = ".".join(map(str, tree.version))
        passed = [f"{len(series.patches)} patches apply to {tree.origin} ({version})"]
        progress("checkpatch")
        for patch in series.patches:
            _checkpatch(tree.tree, patch)
        passed.append("checkpatch.pl --strict: no errors, warnings or checks")
        if shutil.which("sparse") is None:
            passed.append("sparse is not installed, so nothing was checked with it: apt-get install sparse")
        compiled = set[str]()
        for target in targets:
            tools = "W=1 and sparse" if has_sparse(target) else "W=1"
            compiled |= _compile(target, tree.tree, tools, series.touched(), progress)
            passed.append(f"{target.name}: KVM compiles with {tools}, with and without statistics, no new warnings")
        passed.append(_check_coverage(targets, series, compiled))
        if per_patch:
            passed.append(_compile_each_patch(targets, series, progress))
    return passed


def _compile(
    target: Target, tree: Path, tools: str, touched: Sequence[str], progress: Callable[[str], None]
) -> set[str]:
    """Compile all of KVM, with and without the statistics, and return the touched files that were compiled.

    Raises `SimlibError` for a warning that the kernel without the series does not have.
    """
    compiled = set[str]()
    before: set[tuple[str, str]] | None = None
    for kernel in ("statistics", "plain"):
        progress(f"{target.name}-{kernel}: compiling KVM with {tools}")
        warnings = _warnings(compile_kvm(target, kernel, tree))
        compiled |= _compiled_files(target, tree, touched)
        if warnings and before is None:  # warnings without the series are not new
            progress(f"{target.name}: compiling KVM without the series")
            before = _warnings(compile_kvm(target, "plain", tree.with_name("pristine")))
        warnings -= before or set()
        if warnings:
            first = ": ".join(min(warnings))
            raise SimlibError(f"{target.name}-{kernel}: {len(warnings)} new warnings, the first: {first}")
    return compiled


def _compiled_files(target: Target, tree: Path, touched: Sequence[str]) -> set[str]:
    """Source files of the series that have an object: of the same name, or for arm64's EL2 with that prefix."""
    objects = kvm_objects_dir(target, tree)
    sources = [name for name in touched if name.endswith(".c")]
    return {name for name in sources if any((objects / name).parent.glob(f"{Path(name).stem}*.o"))}


def _check_coverage(targets: Sequence[Target], series: Series, compiled: set[str]) -> str:
    """Describe how many source files of the series were compiled, and name those of other architectures.

    Raises `SimlibError` if no target compiled a file of its architecture.
    """
    sources = [name for name in series.touched() if name.endswith(".c") and not name.startswith(SELFTESTS)]
    missing = [name for name in sources if name not in compiled]
    foreign = [name for name in missing if name.startswith("arch/") and not _owners(targets, name)]
    if unchecked := sorted(set(missing) - set(foreign)):
        raise SimlibError(f"{', '.join(unchecked)}: not compiled, so not checked: simlib/lab/configs must enable it")
    text = f"{len(sources) - len(foreign)} source files of the kernel that the series touches have objects"
    return text + (f"; not compiled, as they belong to other architectures: {', '.join(foreign)}" if foreign else "")


def _owners(targets: Sequence[Target], name: str) -> list[Target]:
    """Targets for which a file of the kernel is compiled."""
    if name.startswith("arch/"):
        return [target for target in targets if name.startswith(target.kvm.removesuffix("kvm"))]
    return [target for target in targets if target.name == "x86_64"] or list(targets[:1])


def _compile_each_patch(targets: Sequence[Target], series: Series, progress: Callable[[str], None]) -> str:
    """Apply one patch after another, and compile the affected parts: KVM and selftests."""
    compilations = 0
    for number, patch in enumerate(series.patches, start=1):
        tree = prepare_step(lab_dir(), series, number)
        changed = replace(series, patches=(patch,)).touched()
        code = [name for name in changed if name.endswith((".c", ".h")) and not name.startswith(SELFTESTS)]
        makefiles = [name for name in changed if name.startswith(("arch/", "virt/")) and name not in code]
        owners = {target.name: target for name in (*code, *makefiles) for target in _owners(targets, name)}
        has_statistics = (tree / "virt/kvm/mmu_lock_stat.c").is_file()
        kernels = ["statistics"] if has_statistics else ["plain"]
        if has_statistics and any("mmu_lock" in Path(name).name for name in code):  # accessors differ between the two
            kernels.append("plain")
        for target in owners.values():
            for kernel in kernels:
                progress(f"patch {number} of {len(series.patches)}: compiling KVM for {target.name}-{kernel}")
                compile_kvm(target, kernel, tree, rebuild=False)
                compilations += 1
        tests = [name.removeprefix(SELFTESTS).removesuffix(".c") for name in changed if name.startswith(SELFTESTS)]
        programs = [name for name in tests if name != "Makefile" and (tree / f"{SELFTESTS}{name}.c").is_file()]
        for target in _owners(targets, SELFTESTS) if programs else ():
            progress(f"patch {number} of {len(series.patches)}: compiling its selftest")
            out = lab_dir() / "objects" / f"{target.name}-check-selftests"
            log = compile_selftests(target, tree, programs, out)
            if warnings := [line for line in log.splitlines() if "warning:" in line and Path(programs[0]).name in line]:
                raise SimlibError(f"{patch.name}: {warnings[0]}")
            compilations += 1
    return f"each patch by itself: {compilations} compilations of KVM and selftests succeed"


def _warnings(log: str) -> set[tuple[str, str]]:
    """File within the tree and text of each warning of the compiler, without line numbers, which patches shift."""
    matches = ((_TREE.fullmatch(posixpath.normpath(path)), text) for path, text in _WARNING.findall(log))
    return {(match["name"], text) for match, text in matches if match}


def _checkpatch(tree: Path, patch: Path) -> None:
    """Run checkpatch.pl on a patch, and get_maintainer.pl on its new files.

    Raises `SimlibError` for an error, warning or check, and for a new file without a maintainer.
    """
    command = ["perl", "scripts/checkpatch.pl", "--strict", "--no-color", "--ignore", ",".join(IGNORED), str(patch)]
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False, env=environment)
    summary = _SUMMARY.search(done.stdout)
    if summary is None or any(int(number) for number in summary.groups()):
        output = done.stdout.strip() or done.stderr.strip() or "it printed nothing"
        lines = [line for line in done.stdout.splitlines() if line.startswith(("ERROR", "WARNING", "CHECK"))]
        raise SimlibError(f"{patch.name}: checkpatch: {'; '.join(lines[:3]) or output[-200:]}")
    for name in _NEW.findall(patch.read_text("utf-8")):
        command = ["perl", "scripts/get_maintainer.pl", "--no-git", "--no-rolestats", "-f", name]
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
        if "kvm@" not in done.stdout:
            raise SimlibError(f"{patch.name}: {name} is new and MAINTAINERS has no entry for it")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print each check that passed; return the exit code of the first error."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--arch", action="append", help="architecture; may be given again (default: all three)")
    parser.add_argument("--source", metavar="TREE", type=Path, help="a Linux tree (default: the source package)")
    parser.add_argument("--skip", metavar="PATCH", action="append", default=[], help="leave out a patch, by number or "
                        "file name; may be given again")  # fmt: skip
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument("--per-patch", action="store_true", default=True, help="also compile after each patch (default)")
    scope.add_argument("--no-per-patch", dest="per_patch", action="store_false", help="compile only the whole series")
    options = parser.parse_args(arguments)
    try:
        targets = [find_target(name) for name in options.arch or TARGETS]
        with progress_bar() as progress:
            passed = check_series(
                targets, options.source, lambda step: progress(step, 0.0), options.skip, options.per_patch
            )
    except SimlibError as error:
        say(error.cli_message())
        return error.exit_code
    for line in passed:
        say(f"passed: {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
