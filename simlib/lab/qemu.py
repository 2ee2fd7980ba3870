# SPDX-License-Identifier: BSD-3-Clause
"""Find or unpack a QEMU that is new enough, and write the command that boots a cell."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from simlib._lib.errors import InputError, SimlibError
from simlib._lib.files import write_text
from simlib.lab.build import Built, read_symbols
from simlib.lab.cache import check_ownership, lab_dir, lab_lock, require_space
from simlib.lab.experiment import Cell, Experiment
from simlib.lab.packages import download_packages, require_sources, unpack_packages
from simlib.lab.process import StepReport, build_once
from simlib.lab.source import copy_tree
from simlib.lab.targets import OLDEST_QEMU, QEMU_PACKAGES_SUITE, Target

_VERSION = re.compile(r"version (\d+)\.(\d+)(?:\.(\d+))?")
PROFILE = "profile"
"""File name of a boot's profile, in the folder of its initramfs."""

_WRAPPER = """#!/bin/sh
# Run QEMU with the libraries that were unpacked with it.
root=$(dirname "$(dirname "$(readlink -f "$0")")")
LD_LIBRARY_PATH=$(echo "$root"/usr/lib/*-linux-gnu "$root"/lib/*-linux-gnu | tr ' ' ':')
export LD_LIBRARY_PATH
exec "$root/usr/bin/$(basename "$0")" "$@"
"""


@dataclass(frozen=True)
class Qemu:
    """Path and version of an emulator."""

    command: str
    version: tuple[int, ...]
    folders: tuple[str, ...] = ()
    """Folders with the firmware of a private copy; empty for an installed QEMU."""

    @property
    def text(self) -> str:
        """Version as a string."""
        return ".".join(map(str, self.version))


def private_root() -> Path:
    """Folder into which `fetch_qemu` unpacks QEMU's packages."""
    return lab_dir() / "qemu"


def ask_version(program: str) -> tuple[int, ...]:
    """Run an emulator with ``--version``, and parse its version.

    Raises `SimlibError`, with the reason, if the emulator does not start, for example because a library is missing.
    """
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)  # noqa: S603  # ours
    except OSError as error:
        raise SimlibError(f"{program} does not start: {error.strerror}") from None
    match = _VERSION.search(done.stdout)
    if match is None:
        last_line = ["it printed nothing", *done.stdout.strip().splitlines(), *done.stderr.strip().splitlines()][-1]
        hint = "; run simlib lab qemu again, which unpacks all of its libraries" if "shared librar" in last_line else ""
        raise SimlibError(f"{program} prints no version: {last_line}{hint}")
    return tuple(int(part) for part in match.groups(default="0"))


def list_qemu(target: Target) -> tuple[list[Qemu], list[str]]:
    """List the emulators of a target, the private copy first, and the errors of those that do not work."""
    emulators, faults = [], []
    root = private_root()
    private = str(root / "bin" / target.qemu)
    firmware = [root / "usr/share" / name for name in ("qemu", "seabios", "")]
    for path in (private, shutil.which(target.qemu)):
        if path is None or not os.access(path, os.X_OK):
            continue
        try:
            if path == private:
                check_ownership(lab_dir(), root, root / "bin", Path(path))
            version = ask_version(path)
        except SimlibError as error:
            faults.append(str(error))
            continue
        folders = tuple(str(folder) for folder in firmware if path == private and folder.is_dir())
        emulators.append(Qemu(path, version, folders))
    return emulators, faults


def find_qemu(target: Target) -> Qemu:
    """Find the emulator to use. Raises `InputError` if none works and is new enough."""
    emulators, faults = list_qemu(target)
    oldest = ".".join(map(str, OLDEST_QEMU))
    hint = (
        f"run simlib lab qemu, which unpacks QEMU from {QEMU_PACKAGES_SUITE} into {private_root()}; "
        f"or install QEMU {oldest} or later (packages {' '.join(target.qemu_packages)})"
    )
    if not emulators:
        rule = f"the lab's target {target.name} needs QEMU {oldest} or later"
        raise InputError(target.qemu, "; ".join(faults) or "not found", rule, hint)
    usable = [qemu for qemu in emulators if qemu.version[:2] >= OLDEST_QEMU]
    if not usable:
        rule = f"is too old: before {oldest}, plugins cannot end a CPU's turn, which may contain a whole CLEAR"
        raise InputError(target.qemu, "; ".join([*faults, emulators[0].text]), rule, hint)
    return usable[0]


def needs_qemu(targets: Sequence[Target]) -> bool:
    """True if one of the targets has no emulator that works and is new enough."""
    return any(all(qemu.version[:2] < OLDEST_QEMU for qemu in list_qemu(target)[0]) for target in targets)


def build_plugin(name: str = "slices") -> Path:
    """Compile QEMU's plugin ``slices``, which limits a CPU's turn, or ``profile``, which counts instructions.

    Returns: the plugin's path. Raises `InputError` if this host has no compiler, `SimlibError` if compilation fails.
    """
    source = Path(__file__).resolve().parent / f"{name}.c"
    command = ["gcc", "-O2", "-shared", "-fPIC", "-o", "{part}", "{source}"]
    return build_once(source, ".so", "building QEMU's plugin", "apt-get install gcc libc6-dev", [command])


def command_line(qemu: Qemu, cell: Cell, target: Target, built: Built, initramfs: str) -> list[str]:
    """QEMU's command for a cell.

    With the deterministic clock an instruction takes one nanosecond of virtual time, summed over the CPUs that run,
    and a plugin ends every CPU's turn after about ``turn_instructions``.
    """
    spec, mode = cell.experiment, target.modes[cell.experiment.mode]
    fixed = "nokaslr norandmaps mitigations=off loglevel=1 panic=-1 rdinit=/init"  # nothing random, nothing printed
    arguments = " ".join([target.console, fixed, *mode.arguments])
    seed = int(cell.test.get("seed", 1))
    if spec.clock == "deterministic":
        clock = [
            *("-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off,align=off"),
            *("-rtc", "base=2026-01-01T00:00:00,clock=vm"),
            *("-plugin", f"{build_plugin()},quantum={spec.turn_instructions},seed={seed}{_turns(spec, built)}"),
        ]
        if spec.profile:
            clock += ["-plugin", f"{build_plugin('profile')},out={Path(initramfs).with_name(PROFILE)}"]
    else:
        clock = ["-accel", "tcg,thread=multi"]
    return [
        qemu.command,
        *(word for folder in qemu.folders for word in ("-L", folder)),
        *target.machine,
        *("-cpu", mode.cpu, "-smp", str(cell.cpus), "-m", spec.machine_memory),
        *clock,
        *("-seed", str(seed), "-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio", "-monitor", "none"),
        *("-kernel", str(built.image), "-initrd", initramfs, "-append", arguments),
    ]


def _turns(spec: Experiment, built: Built) -> str:
    """Arguments of the plugin for ``turns_from`` and ``turns_to``; empty without a function of ``turns_from``."""
    if not spec.turns_from:
        return ""
    symbols = {name: address for address, name in read_symbols(built)}
    lists = ([symbols.get(name) for name in names.split()] for names in (spec.turns_from, spec.turns_to))
    starts, ends = ([address for address in addresses if address is not None] for addresses in lists)
    words = [*(f",from={address:x}" for address in starts), *(f",to={address:x}" for address in ends)]
    return "".join(words) if starts else ""


def portable_command(command: Sequence[str]) -> str:
    """Format a command for use on other hosts: with the names of programs and files, without this host's folders."""
    kept = (word for before, word in pairwise(["", *command]) if "-L" not in (before, word))
    return shlex.join(word.rpartition("/")[2] if word.startswith("/") else word for word in kept)


def fetch_qemu(targets: Sequence[Target], progress: StepReport = print) -> Path:
    """Unpack a QEMU that is new enough into the lab's folder, next to other targets' emulators, without installing it.

    apt downloads the packages from the suite `QEMU_PACKAGES_SUITE` of the system's own Debian mirror.
    Returns: the folder with the unpacked packages. Raises `InputError` if the system is not Debian 12. Raises
    `SimlibError` if apt fails, or the fetched QEMU does not start.
    """
    hint = f"install QEMU {'.'.join(map(str, OLDEST_QEMU))} or later with this system's own tools"
    sources = require_sources("QEMU", hint, QEMU_PACKAGES_SUITE)
    with lab_lock(exclusive=True):
        return _fetch(targets, sources, progress)


def _fetch(targets: Sequence[Target], sources: Sequence[str], progress: StepReport) -> Path:
    """Fetch the packages with their dependencies, unpack them into a temporary folder, and rename it."""
    root = private_root()
    work = root.with_name("qemu-packages")
    require_space(work, 0.6, "QEMU")
    progress(f"fetching QEMU from {QEMU_PACKAGES_SUITE}")
    names = sorted({name for target in targets for name in target.qemu_packages})
    suite = {name: f"/{QEMU_PACKAGES_SUITE}" if name.startswith("qemu") else "" for name in names}
    packages = download_packages([name + suite[name] for name in names], sources, work, QEMU_PACKAGES_SUITE)
    part = root.with_name("qemu.part")
    shutil.rmtree(part, ignore_errors=True)
    if root.is_dir():  # keeps other targets' emulators; dpkg replaces hard-linked files instead of writing into them
        copy_tree(root, part, part)
    # The system's libc has the same build as its loader.
    unpack_packages([package for package in packages if not package.name.startswith("libc6_")], part)
    for target in targets:
        wrapper = part / "bin" / target.qemu
        write_text(wrapper, _WRAPPER)
        wrapper.chmod(0o755)
        ask_version(str(wrapper))
    if root.is_symlink():
        root.unlink()
    shutil.rmtree(root, ignore_errors=True)
    return part.rename(root)
