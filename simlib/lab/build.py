# SPDX-License-Identifier: BSD-3-Clause
"""Builds what an experiment boots: kernel, selftests and initramfs, each cached by what went into it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simlib._lib.errors import InputError, SimlibError
from simlib._lib.files import write_text
from simlib._lib.reading import file_sha256
from simlib.lab.cache import at_work, lab_dir, need_space
from simlib.lab.initramfs import cpio
from simlib.lab.patches import Series, read_series
from simlib.lab.process import need, refuse_full, run
from simlib.lab.source import Source, prepare_source
from simlib.lab.targets import Target, find_target

KERNELS = {"plain": (), "statistics": ("statistics.config",), "lock-stat": ("lock-stat.config",)}
"""Kernels by name, with the fragments that each adds to the target's own.

``plain`` carries the series' switches and nothing that measures; ``statistics``
adds the series' own counters; ``lock-stat`` has the kernel's lock debugging."""

PROGRAMS = ("mmu_lock_contention_test", "dirty_log_perf_test")
"""Selftests that are built in."""

STATIC = "-static -Wl,--build-id=none"
"""How programs for an initramfs are linked: a build id would be a hash of the paths that debug information names."""

FIXED = (
    "KBUILD_BUILD_TIMESTAMP=2026-01-01T00:00:00Z", "KBUILD_BUILD_USER=simlib", "KBUILD_BUILD_HOST=lab",
    "KBUILD_BUILD_VERSION=1", "LOCALVERSION=",
    *(f"{tool}=none-in-the-lab" for tool in ("PAHOLE", "RUSTC", "BINDGEN", "CLANG")),
)  # fmt: skip
"""What a build would otherwise take from its surroundings: time, user, count, git, and tools that Kconfig looks for.
With them, the same source and compiler give the same bytes wherever, whenever and by whomever they are built."""

OBJECTS_GIB = 0.5
"""Room that one object tree takes, GiB."""

_FOLDERS = ("dev", "proc", "sys", "tmp")
_ERROR = re.compile(r"\berror:|\*\*\* |undefined reference", re.IGNORECASE)
_HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Built:
    """A kernel that is ready to boot."""

    target: str
    kernel: str
    """Name in `KERNELS`."""
    image: Path
    initramfs: Path
    provenance: dict[str, object]
    """Source, patches, configuration and compiler, with their hashes."""


def check_kernel(name: str) -> None:
    """Raise `InputError` if a kernel is none of `KERNELS`."""
    if name not in KERNELS:
        raise InputError("kernel", name, "is not known", f"known: {', '.join(KERNELS)}", flag="--kernel")


def built_dir(target: str, kernel: str) -> Path:
    """Where a built kernel lies."""
    return lab_dir() / "built" / f"{target}-{kernel}"


def read_built(target: str, kernel: str) -> dict[str, Any]:
    """What is on record of the kernel that was built last: ``key`` and ``provenance``; empty unless all is there."""
    folder = built_dir(target, kernel)
    try:
        record = json.loads((folder / "build.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    whole = isinstance(record, dict) and record.keys() >= {"key", "provenance"}
    return record if whole and all((folder / name).is_file() for name in ("image", "initramfs.cpio")) else {}


def find_built(target: str, kernel: str) -> Built:
    """The kernel that was built last.

    Raises `InputError` if it was not built, or a file of it is missing or damaged.
    """
    folder = built_dir(target, kernel)
    record = read_built(target, kernel)
    if not record:
        raise InputError(
            "kernel", f"{target}-{kernel}", "is not built", f"run simlib lab build --arch {target} --kernel {kernel}"
        )
    return Built(target, kernel, folder / "image", folder / "initramfs.cpio", record["provenance"])


def read_symbols(built: Built) -> list[tuple[int, str]]:
    """Address and name of each function of a kernel, by address.

    Raises `SimlibError` if they were not kept.
    """
    path = built.image.with_name("System.map")
    try:
        rows = [line.split() for line in path.read_text("ascii").splitlines()]
    except OSError as error:
        raise SimlibError(f"{path} cannot be read ({error.strerror}): run simlib lab build again") from None
    return sorted((int(address, 16), name) for address, kind, name in rows if kind in "tTwW")


def build(
    target: str,
    kernel: str = "statistics",
    source: Path | None = None,
    progress: Callable[[str], None] = print,
    skip: Sequence[str] = (),
) -> Built:
    """Build a kernel, the selftests and the initramfs of one target.

    Nothing is done if all inputs are as they were; what is done is incremental.
    An interrupted build goes on where it stopped.

    Raises `InputError` if a tool or the source is missing, or the version is wrong. Raises `SimlibError` if the series
    does not apply, a compilation fails, the disk is full or the lab is in use.

    - `target`: name in `TARGETS`.
    - `kernel`: name in `KERNELS`.
    - `source`: a kernel tree of one's own. Default: the distribution's source package.
    - `progress`: told what is being done.
    - `skip`: patches to leave out, by number or file name.
    """
    what = find_target(target)
    check_kernel(kernel)
    series = read_series().without(skip)
    need_compiler(what, [] if source or series.archive.is_file() else [series.package])
    with at_work(alone=True):
        tree = prepare_source(lab_dir(), series, source, progress)
        key = _key(tree, series, what, fragment_of(what, kernel))
        if read_built(target, kernel).get("key") == key:
            progress(f"{target}-{kernel} is up to date")
        else:
            _build(what, kernel, tree, key, progress)
        return find_built(target, kernel)


def _build(what: Target, kernel: str, tree: Source, key: str, progress: Callable[[str], None]) -> None:
    """Compile everything and put it, with its record, where `find_built` finds it."""
    target, folder = what.name, built_dir(what.name, kernel)
    record = folder / "build.json"
    objects = lab_dir() / "objects" / f"{target}-{kernel}"
    compile_image(what, tree.tree, objects, fragment_of(what, kernel), f"{target}-{kernel}", progress)
    progress(f"{target}: compiling the selftests")
    packed = pack_programs(what, tree.tree, lab_dir() / "objects")
    folder.mkdir(parents=True, exist_ok=True)
    record.unlink(missing_ok=True)
    shutil.copyfile(objects / what.image, folder / "image")
    (folder / "initramfs.cpio").write_bytes(packed)
    shutil.copyfile(objects / "System.map", folder / "System.map")
    shutil.copyfile(objects / ".config", folder / "config")
    provenance = {
        **tree.provenance(),
        "configuration_sha256": settings_sha256(objects / ".config"),
        "image_sha256": file_sha256(folder / "image"),
        "initramfs_sha256": file_sha256(folder / "initramfs.cpio"),
        "compiler": compiler_version(what),
        "kernel": kernel,
    }
    write_text(record, json.dumps({"key": key, "provenance": provenance}, indent=1) + "\n")


def compile_image(
    target: Target, tree: Path, objects: Path, fragment: str, label: str, progress: Callable[[str], None]
) -> None:
    """Compile a kernel; its image is ``target.image`` below `objects`.

    Raises `SimlibError` if the configuration loses a line of the fragment or the compilation fails; the log is named.

    `fragment`: configuration, as `fragment_of` gives it. `label`: what `progress` is told that is compiled.
    """
    need_space(objects, OBJECTS_GIB, "the object tree")
    make = _make(target, tree, objects)
    _configure(make, objects, fragment, progress)
    compiling = f"{label}: compiling the kernel (minutes the first time)"
    progress(compiling)
    run_logged([*make, os.path.basename(target.image)], objects / "build.log",
               lambda lines: progress(f"{compiling}, {lines} files so far"))  # fmt: skip


def pack_programs(target: Target, tree: Path, folder: Path) -> bytes:
    """Compile the lab's init and the selftests; the archive that a kernel unpacks at boot.

    `tree`, `folder`: as in `build_selftests`.
    """
    programs = build_selftests(target, tree, folder)
    files = {"init": _compile_init(target, folder), **{name: path.read_bytes() for name, path in programs.items()}}
    return cpio(files, _FOLDERS, console=True)


def find_program(target: str, name: str) -> Path:
    """A selftest that was built for a target.

    Raises `InputError` if it was not built.
    """
    program = lab_dir() / "objects" / f"{target}-selftests" / f"{name}.stripped"
    if not program.is_file():
        raise InputError("selftest", name, "is not built", f"run simlib lab build --arch {target}")
    return program


def check_objects(target: Target, tree: Path) -> Path:
    """Where `compile_kvm` puts the objects."""
    return lab_dir() / "objects" / f"{target.name}-check-{tree.name}"


def has_sparse(target: Target) -> bool:
    """Whether sparse is there and knows the target: for riscv it (0.6.4) ends at the compiler's -march."""
    return shutil.which("sparse") is not None and target.kernel_arch != "riscv"


def compile_kvm(target: Target, kernel: str, tree: Path, again: bool = True) -> str:
    """Compile all of KVM with warnings turned up (W=1, and sparse if it is there); return what make said.

    The objects go into a tree of their own, with all parts of KVM that the fragment ``TARGET-check.config`` names.

    Raises `InputError` if a tool is missing. Raises `SimlibError` if the compilation fails.

    `kernel`: name in `KERNELS`. `tree`: kernel source. `again`: compile everything, for all warnings; else without
    sparse, and only what changed.
    """
    need_compiler(target)
    objects = check_objects(target, tree)
    need_space(objects, OBJECTS_GIB, "the object tree")
    make = _make(target, tree, objects)
    more = _HERE / "configs" / f"{target.name}-check.config"
    fragment = fragment_of(target, kernel) + (more.read_text("utf-8") if more.is_file() else "")
    _configure(make, objects, fragment, lambda text: None)
    # What is compiled already would not be compiled again, and so would not warn again.
    for old in (*(objects / target.kvm).rglob("*.o"), *objects.glob("virt/**/*.o")) if again else ():
        old.unlink()
    sparse = ["C=2"] if again and has_sparse(target) else []
    log = objects / "check.log"
    run_logged([*make, "W=1", *sparse, f"{target.kvm}/"], log)
    return log.read_text("utf-8", errors="replace")


def need_compiler(target: Target, source: Sequence[str] = ()) -> str:
    """The target's compiler; refuse to begin without the tools that a build needs.

    Raises `InputError`, which names the missing commands and the packages to install.

    `source`: the package of the kernel's source, if that is needed and not there either: one command is to install it
    all.
    """
    commands = ("make", "patch", "bison", "flex", "bc", "rsync", f"{target.compiler}gcc")
    need(f"building for {target.name}", commands, f"apt-get install {' '.join([*target.packages, *source])}")
    return commands[-1]


def _make(target: Target, tree: Path, objects: Path) -> list[str]:
    """The make command for the kernel, through ccache where there is one."""
    compiler = f"{target.compiler}gcc"
    wrapped = f"ccache {compiler}" if shutil.which("ccache") else compiler
    return [
        *("make", "-C", str(tree), f"O={objects}", f"ARCH={target.kernel_arch}", f"CROSS_COMPILE={target.compiler}"),
        *(f"CC={wrapped}", f"-j{len(os.sched_getaffinity(0))}", "--no-print-directory"),
        *FIXED,
    ]


def _configure(make: Sequence[str], objects: Path, fragment: str, progress: Callable[[str], None]) -> None:
    """Configure from nothing plus the fragment, and refuse a configuration that lost a line of it."""
    wanted = objects / "fragment.config"
    config = objects / ".config"
    if config.is_file() and wanted.is_file() and wanted.read_text("utf-8") == fragment:
        run_logged([*make, "olddefconfig"], objects / "configure.log")
    else:
        progress("configuring")
        config.unlink(missing_ok=True)
        write_text(wanted, fragment)
        run_logged([*make, f"KCONFIG_ALLCONFIG={wanted}", "allnoconfig"], objects / "configure.log")
    have = set(config.read_text("utf-8").splitlines())
    wishes = [line for line in fragment.splitlines() if line.startswith("CONFIG_")]
    lost = [line for line in wishes if line not in have and not line.endswith("=n")]
    lost += [line for line in wishes if line.endswith("=n") and f"{line[:-1]}y" in have]
    if lost:
        raise SimlibError(f"the kernel's configuration refused {', '.join(lost)}: a dependency is missing in configs/")


def compile_selftests(
    target: Target, tree: Path, programs: Sequence[str], out: Path, headers: Path | None = None, link: str = STATIC
) -> str:
    """Compile selftests of KVM against the tree's own headers; return what make said.

    Raises `SimlibError` if a compilation fails; the log is named.

    `tree`: kernel source. `programs`: relative to the folder of KVM's selftests. `out`: where the programs go.
    `headers`: where the headers go. Default: the lab's folder for them. `link`: flags for the linker: static for an
    initramfs that holds no library.
    """
    headers = headers or lab_dir() / "objects" / f"{target.name}-headers"
    run_logged([*_make(target, tree, headers), "headers"], headers / "build.log")
    command = [
        *("make", "-C", str(tree / "tools/testing/selftests/kvm"), f"ARCH={target.kernel_arch}"),
        *(f"CROSS_COMPILE={target.compiler}", f"OUTPUT={out}", f"LDFLAGS={link}", "--no-print-directory"),
        f"KHDR_INCLUDES=-isystem {headers}/usr/include",
    ]
    _keep_if_same(out, " ".join(command))
    run_logged(
        [*command, f"-j{len(os.sched_getaffinity(0))}", *(str(out / name) for name in programs)], out / "build.log"
    )
    return (out / "build.log").read_text("utf-8", errors="replace")


def _keep_if_same(out: Path, command: str) -> None:
    """Empty a folder of objects that another command made: make looks at the age of files, not at flags."""
    made_by = out / "command"
    if out.exists() and (not made_by.is_file() or made_by.read_text("utf-8") != command):
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    write_text(made_by, command)


def build_selftests(
    target: Target, tree: Path, folder: Path, programs: Sequence[str] = PROGRAMS, link: str = STATIC
) -> dict[str, Path]:
    """Compile selftests and strip them; the programs by name.

    `tree`: kernel source, with the series' selftests. `folder`: where the headers and the programs go: folders that
    begin with the target's name. `programs`, `link`: as in `compile_selftests`.
    """
    out = folder / f"{target.name}-selftests"
    compile_selftests(target, tree, programs, out, folder / f"{target.name}-headers", link)
    stripped = {name: out / f"{name}.stripped" for name in programs}
    for name, path in stripped.items():
        run_logged([f"{target.compiler}strip", "-o", str(path), str(out / name)], out / "strip.log")
    return stripped


def _compile_init(target: Target, objects: Path) -> bytes:
    """Compile the lab's own init."""
    program = objects / f"{target.name}-init"
    run_logged(
        [f"{target.compiler}gcc", "-O2", "-Wall", *STATIC.split(), "-s", "-o", str(program), str(_HERE / "init.c")],
        program.with_suffix(".log"),
    )
    return program.read_bytes()


def settings_sha256(config: Path) -> str:
    """Hash of what a kernel configuration sets: what it leaves off is listed only where the host's tools allow it."""
    settings = sorted(line for line in config.read_text("utf-8").splitlines() if line.startswith("CONFIG_"))
    return hashlib.sha256("\n".join(settings).encode()).hexdigest()


def fragment_of(target: Target, kernel: str) -> str:
    """Configuration of a kernel: the target's own fragment and those of the kernel."""
    names = (f"{target.name}.config", *KERNELS[kernel])
    return "".join((_HERE / "configs" / name).read_text("utf-8") for name in names)


def _key(tree: Source, series: Series, target: Target, fragment: str) -> str:
    """What everything that is built depends on."""
    parts = [tree.origin, tree.sha256, series.sha256, fragment, (_HERE / "init.c").read_text("utf-8")]
    parts += [compiler_version(target), ".".join(map(str, tree.version)), repr((PROGRAMS, FIXED, STATIC))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def compiler_version(target: Target) -> str:
    """First line of what the compiler says of itself."""
    command = [f"{target.compiler}gcc", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # a name from TARGETS
    return done.stdout.partition("\n")[0]


def run_logged(command: Sequence[str], log: Path, progress: Callable[[int], None] = lambda lines: None) -> None:
    """Run a step; on failure show the error lines of its log.

    `progress`: told every second how many lines the log has; make writes one for each file that it makes.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stream:
        done = run(command, lambda seconds: progress(log.read_bytes().count(b"\n")), stdout=stream,
                   stderr=subprocess.STDOUT, env={**os.environ, "LC_ALL": "C", "TZ": "UTC"})  # fmt: skip
    if done.returncode:
        text = log.read_text("utf-8", errors="replace")
        refuse_full(text)
        lines = text.splitlines()
        errors = [line for line in lines if _ERROR.search(line)][:3] or lines[-3:]
        sys.stderr.write("".join(f"  {line}\n" for line in errors))
        raise SimlibError(f"{command[0]} ended with {done.returncode}: the whole log is {log}")
