# SPDX-License-Identifier: BSD-3-Clause
"""Finding a QEMU that is new enough, and the command that boots a cell."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from simlib._lib.errors import InputError, SimlibError
from simlib._lib.files import write_text
from simlib.lab.build import Built, read_symbols, run_logged
from simlib.lab.cache import at_work, check_own, lab_dir, need_space
from simlib.lab.experiment import Cell, Experiment
from simlib.lab.process import built_once
from simlib.lab.source import copy_tree
from simlib.lab.targets import OLDEST_QEMU, QEMU_PACKAGES_SUITE, Target

_VERSION = re.compile(r"version (\d+)\.(\d+)(?:\.(\d+))?")
PROFILE = "profile"
"""Where a boot's profile goes: beside its initramfs."""

_LIBRARIES = "run simlib lab qemu again, which brings all of its libraries"
_C_LIBRARY = "libc6"
"""The one package that the private copy takes from the system: its loader has to be of the same build."""

_WRAPPER = """#!/bin/sh
# QEMU with the libraries that were unpacked beside it.
root=$(dirname "$(dirname "$(readlink -f "$0")")")
LD_LIBRARY_PATH=$(echo "$root"/usr/lib/*-linux-gnu "$root"/lib/*-linux-gnu | tr ' ' ':')
export LD_LIBRARY_PATH
exec "$root/usr/bin/$(basename "$0")" "$@"
"""


@dataclass(frozen=True)
class Qemu:
    """An emulator."""

    command: str
    version: tuple[int, ...]
    folders: tuple[str, ...] = ()
    """Where its firmware lies, for a private copy; empty for an installed one."""

    @property
    def text(self) -> str:
        """Version in words."""
        return ".".join(map(str, self.version))


def private_root() -> Path:
    """Folder into which QEMU's packages may be unpacked without installing them."""
    return lab_dir() / "qemu"


def ask_version(program: str) -> tuple[int, ...]:
    """Version of an emulator, as it says.

    Raises `SimlibError` if it does not start (a library is missing, or it is another machine's), with the reason.
    """
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)  # noqa: S603  # ours
    except OSError as error:
        raise SimlibError(f"{program} does not start: {error.strerror}") from None
    match = _VERSION.search(done.stdout)
    if match is None:
        last = [*done.stdout.strip().splitlines(), *done.stderr.strip().splitlines()][-1:] or ["it printed nothing"]
        cure = f"; {_LIBRARIES}" if "shared librar" in last[0] else ""
        raise SimlibError(f"{program} prints no version: {last[0]}{cure}")
    return tuple(int(part) for part in match.groups(default="0"))


def list_qemu(target: Target) -> tuple[list[Qemu], list[str]]:
    """All emulators of a target that are here, the private copy first, then the installed one; and what is broken."""
    found, broken = [], []
    root = private_root()
    own = str(root / "bin" / target.qemu)
    firmware = [root / "usr/share" / name for name in ("qemu", "seabios", "")]
    for place in (own, shutil.which(target.qemu)):
        if place is None or not os.access(place, os.X_OK):
            continue
        try:
            if place == own:
                check_own(lab_dir(), root, root / "bin", Path(place))
            version = ask_version(place)
        except SimlibError as error:
            broken.append(str(error))
            continue
        folders = tuple(str(folder) for folder in firmware if place == own and folder.is_dir())
        found.append(Qemu(place, version, folders))
    return found, broken


def find_qemu(target: Target) -> Qemu:
    """The emulator to use.

    Raises `InputError` if there is none, or none that works and is new enough.
    """
    found, broken = list_qemu(target)
    wanted = ".".join(map(str, OLDEST_QEMU))
    cure = (
        f"run simlib lab qemu, which unpacks the packages of {QEMU_PACKAGES_SUITE} into {private_root()}, "
        f"or install {wanted} or later: {' '.join(target.qemu_packages)}"
    )
    if not found:
        rule = f"QEMU {wanted} or later runs the lab's {target.name}"
        raise InputError(target.qemu, "; ".join(broken) or "not found", rule, cure)
    good = [one for one in found if one.version[:2] >= OLDEST_QEMU]
    if not good:
        rule = f"is too old: before {wanted} no plugin can end a CPU's turn, and a whole CLEAR fits into one"
        raise InputError(target.qemu, "; ".join([*broken, found[0].text]), rule, cure)
    return good[0]


def needs_qemu(targets: Sequence[Target]) -> bool:
    """Whether a target has no emulator here that is new enough."""
    return any(all(one.version[:2] < OLDEST_QEMU for one in list_qemu(target)[0]) for target in targets)


def build_plugin(name: str = "slices") -> Path:
    """Compile a plugin, unless that was done.

    Raises `InputError` if there is no compiler for this host. Raises `SimlibError` if it does not compile.

    - `name`: ``slices``, which ends a CPU's turn after so many instructions, or ``profile``, which counts them.
    """
    source = Path(__file__).resolve().parent / f"{name}.c"
    command = ["gcc", "-O2", "-shared", "-fPIC", "-o", "{part}", "{source}"]
    return built_once(source, ".so", "building QEMU's plugin", "apt-get install gcc libc6-dev", [command])


def command_line(qemu: Qemu, cell: Cell, target: Target, built: Built, initramfs: str) -> list[str]:
    """QEMU's command for a cell.

    With the deterministic clock one instruction is one nanosecond of virtual time, summed over
    the CPUs that run, and a plugin ends every CPU's turn after about ``turn_instructions``.
    """
    spec, mode = cell.experiment, target.modes[cell.experiment.mode]
    told = "nokaslr norandmaps mitigations=off loglevel=1 panic=-1 rdinit=/init"  # nothing random, nothing printed
    arguments = " ".join([target.console, told, *mode.arguments])
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
    """The plugin's arguments for functions of an experiment; nothing if the kernel has none of the first kind.

    Raises `SimlibError` if its symbols were not kept.
    """
    if not spec.turns_from:
        return ""
    at = {name: address for address, name in read_symbols(built)}
    kinds = [[at[name] for name in names.split() if name in at] for names in (spec.turns_from, spec.turns_to)]
    words = (f",{kind}={one:x}" for kind, found in zip(("from", "to"), kinds, strict=True) for one in found)
    return "".join(words) if kinds[0] else ""


def shown(command: Sequence[str]) -> str:
    """The command for a reader elsewhere: programs and files by their names, without this machine's folders."""
    words = []
    skip = False
    for word in command:
        if skip or word == "-L":
            skip = not skip
            continue
        words.append(word.rpartition("/")[2] if word.startswith("/") else word)
    return shlex.join(words)


def fetch_qemu(targets: Sequence[Target], progress: Callable[[str], None] = print) -> Path:
    """Unpack a new enough QEMU into the lab's folder; what is installed stays as it is, and what was unpacked before.

    The packages come through apt, from the suite `QEMU_PACKAGES_SUITE` of the system's own
    Debian source.

    Returns: The folder that holds the unpacked packages. Raises `InputError`, `SimlibError` if this is no Debian
    system, apt fails, or what it fetched does not start here.

    - `progress`: told what is being done.
    """
    missing = [name for name in ("apt-get", "dpkg") if shutil.which(name) is None]
    sources = [] if missing else debian_sources(Path("/etc/apt"))
    if not sources:
        lacks = ", ".join(missing) or "a source of bookworm in /etc/apt"
        cure = f"install QEMU {'.'.join(map(str, OLDEST_QEMU))} or later with this system's own tools"
        raise InputError("QEMU", lacks, "not found: the packages can be fetched on Debian 12 only", cure)
    with at_work(alone=True):
        return _fetch(targets, sources, progress)


def debian_sources(folder: Path) -> list[str]:
    """Where this system takes Debian 12 from, once with its own suite and once with `QEMU_PACKAGES_SUITE`.

    Returns: One-line entries; none if this is no Debian 12.

    `folder`: ``/etc/apt``: one-line entries of ``sources.list`` and of ``sources.list.d/*.list``, and ``*.sources``.
    """
    found: list[tuple[str, str]] = []
    for path in (folder / "sources.list", *sorted((folder / "sources.list.d").glob("*.list"))):
        text = path.read_text("utf-8") if path.is_file() else ""
        entries = re.findall(r"(?m)^deb[ \t]+(?:\[([^]\n]*)\][ \t]+)?(\S+)[ \t]+bookworm[ \t]", text)
        found += [(uri, options) for options, uri in entries]
    for path in sorted((folder / "sources.list.d").glob("*.sources")):
        for block in re.split(r"\n\s*\n", path.read_text("utf-8")):
            fields = dict(re.findall(r"(?m)^([\w-]+):\s*(\S.*)$", block))
            if "bookworm" in fields.get("Suites", "").split():
                key = fields.get("Signed-By", "")
                found += [(uri, f"signed-by={key}" if key else "") for uri in fields.get("URIs", "").split()]
    suites = ("bookworm", QEMU_PACKAGES_SUITE)
    return [
        f"deb {f'[{options}] ' if options else ''}{uri} {suite} main" for uri, options in found[:1] for suite in suites
    ]


def _fetch(targets: Sequence[Target], sources: Sequence[str], progress: Callable[[str], None]) -> Path:
    """Fetch the packages with all that they depend on, unpack them beside, then rename."""
    root = private_root()
    work = root.with_name("qemu-packages")
    need_space(work, 0.6, "QEMU")
    lists = work / "lists"
    archives = work / "cache/archives"
    for folder in (lists / "partial", archives / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    write_text(work / "sources.list", "".join(f"{line}\n" for line in sources))
    write_text(work / "status", "")  # as if nothing were installed: what is here by chance is not relied on
    options = [
        *("-o", f"Dir::Etc::sourcelist={work / 'sources.list'}", "-o", "Dir::Etc::sourceparts=/dev/null"),
        *("-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={work / 'cache'}"),
        *("-o", f"Dir::State::status={work / 'status'}", "-o", "Debug::NoLocking=1"),
    ]
    log = work / "packages.log"
    progress(f"fetching QEMU from {QEMU_PACKAGES_SUITE}")
    run_logged(["apt-get", *options, "update"], log)
    for old in archives.glob("*.deb"):
        old.unlink()
    names = sorted({name for target in targets for name in target.qemu_packages})
    suite = {name: f"/{QEMU_PACKAGES_SUITE}" if name.startswith("qemu") else "" for name in names}
    whole = ["install", "--yes", "--download-only", "--no-install-recommends", "-t", QEMU_PACKAGES_SUITE]
    run_logged(["apt-get", *options, *whole, *(name + suite[name] for name in names)], log)
    part = root.with_name("qemu.part")
    shutil.rmtree(part, ignore_errors=True)
    if root.is_dir():  # other architectures' emulators stay; dpkg replaces files and writes into none
        copy_tree(root, part, part)
    for package in sorted(archives.glob("*.deb")):
        if not package.name.startswith(f"{_C_LIBRARY}_"):
            run_logged(["dpkg", "-x", str(package), str(part)], log)
    for target in targets:
        wrapper = part / "bin" / target.qemu
        write_text(wrapper, _WRAPPER)
        wrapper.chmod(0o755)
        ask_version(str(wrapper))
    if root.is_symlink():
        root.unlink()
    shutil.rmtree(root, ignore_errors=True)
    os.rename(part, root)
    return root
