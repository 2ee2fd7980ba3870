# SPDX-License-Identifier: BSD-3-Clause
"""Build what an experiment boots: kernel, selftests and initramfs; rebuild them only if their inputs change."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from simlib._lib.errors import InputError, SimlibError
from simlib._lib.files import write_text
from simlib._lib.reading import file_sha256
from simlib.lab.cache import lab_dir, lab_lock, require_space
from simlib.lab.patches import Series, read_series
from simlib.lab.process import StepReport, raise_if_disk_full, require_programs, run, silent
from simlib.lab.source import Source, prepare_source
from simlib.lab.targets import Target, find_target

KERNELS = {"plain": (), "statistics": ("statistics.config",), "lock-stat": ("lock-stat.config",)}
"""Configuration fragments that each kernel adds to the target's fragment: ``plain`` counts nothing; ``statistics``
enables the series' counters; ``lock-stat`` enables the kernel's statistics of all locks (``CONFIG_LOCK_STAT``)."""

PROGRAMS = ("mmu_lock_contention_test", "dirty_log_perf_test")

STATIC = "-static -Wl,--build-id=none"
"""Linker flags of the initramfs programs; a build id would depend on the paths in the debug information."""

FIXED = (
    "KBUILD_BUILD_TIMESTAMP=2026-01-01T00:00:00Z", "KBUILD_BUILD_USER=simlib", "KBUILD_BUILD_HOST=lab",
    "KBUILD_BUILD_VERSION=1", "LOCALVERSION=",
    *(f"{tool}=none-in-the-lab" for tool in ("PAHOLE", "RUSTC", "BINDGEN", "CLANG")),
)  # fmt: skip
"""Settings that replace values from the environment of a build: time, user, build number, git, and tools that Kconfig
looks for. The same source and compiler then produce the same bytes on every host."""

OBJECTS_GIB = 0.5
"""Disk space that one object tree needs, GiB."""

_ERROR = re.compile(r"\berror:|\*\*\* |undefined reference", re.IGNORECASE)
_HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Built:
    """Image and initramfs of a built kernel."""

    target: str
    kernel: str
    image: Path
    initramfs: Path
    provenance: dict[str, object]
    """Source, patches, configuration and compiler, with their hashes."""


def check_kernel(name: str) -> None:
    """Raise `InputError` if `name` is not in `KERNELS`."""
    if name not in KERNELS:
        raise InputError("kernel", name, "is not known", f"known: {', '.join(KERNELS)}", flag="--kernel")


def built_dir(target: str, kernel: str) -> Path:
    """Folder of a built kernel."""
    return lab_dir() / "built" / f"{target}-{kernel}"


def read_built(target: str, kernel: str) -> dict[str, Any]:
    """Read ``key`` and ``provenance`` of the last build of a kernel; empty if a file is missing or damaged."""
    folder = built_dir(target, kernel)
    try:
        record = json.loads((folder / "build.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    complete = isinstance(record, dict) and record.keys() >= {"key", "provenance"}
    return record if complete and all((folder / name).is_file() for name in ("image", "initramfs.cpio")) else {}


def find_built(target: str, kernel: str) -> Built:
    """Find the last build of a kernel.

    Raises `InputError` if it was not built, or if one of its files is missing or damaged.
    """
    folder = built_dir(target, kernel)
    record = read_built(target, kernel)
    if not record:
        hint = f"run simlib lab build --arch {target} --kernel {kernel}"
        raise InputError("kernel", f"{target}-{kernel}", "is not built", hint)
    return Built(target, kernel, folder / "image", folder / "initramfs.cpio", record["provenance"])


def read_symbols(built: Built) -> list[tuple[int, str]]:
    """Read the address and name of each function of a kernel, sorted by address.

    Raises `SimlibError` if System.map cannot be read.
    """
    path = built.image.with_name("System.map")
    try:
        rows = [line.split() for line in path.read_text("ascii").splitlines()]
    except OSError as error:
        raise SimlibError(f"{path} cannot be read ({error.strerror}): run simlib lab build again") from None
    return sorted((int(address, 16), name) for address, kind, name in rows if kind in "tTwW")


def function_at(starts: Sequence[tuple[int, str]], position: int) -> str:
    """Name of the function at an address or a position; empty before the first function. `starts`: sorted pairs."""
    index = bisect(starts, position, key=itemgetter(0)) - 1
    return starts[index][1] if index >= 0 else ""


def build(
    target: str,
    kernel: str = "statistics",
    source: Path | None = None,
    progress: StepReport = print,
    skip: Sequence[str] = (),
) -> Built:
    """Build a kernel, the selftests and the initramfs of one target.

    Does nothing if the inputs have not changed; rebuilds are incremental, and an interrupted build resumes.

    Raises `InputError` if a tool or the source is missing, or its version is wrong. Raises `SimlibError` if the series
    does not apply, a compilation fails, the disk is full or the lab is in use.

    - `target`, `kernel`: names in `TARGETS` and `KERNELS`.
    - `source`: the caller's kernel tree. Default: the distribution's source package.
    - `skip`: patches to omit, by number or file name.
    """
    spec = find_target(target)
    check_kernel(kernel)
    series = read_series().without(skip)
    require_compiler(spec, [] if source or series.archive.is_file() else [series.package])
    with lab_lock(exclusive=True):
        tree = prepare_source(lab_dir(), series, source, progress)
        key = _key(tree, series, spec, config_fragment(spec, kernel))
        if read_built(target, kernel).get("key") == key:
            progress(f"{target}-{kernel} is up to date")
        else:
            _build(spec, kernel, tree, key, progress)
        return find_built(target, kernel)


def _build(target: Target, kernel: str, source: Source, key: str, progress: StepReport) -> None:
    """Compile kernel and programs, and store them with their record in the folder that `find_built` reads."""
    folder, label = built_dir(target.name, kernel), f"{target.name}-{kernel}"
    record = folder / "build.json"
    objects = lab_dir() / "objects" / label
    compile_image(target, source.tree, objects, config_fragment(target, kernel), label, progress)
    progress(f"{target.name}: compiling the selftests")
    packed = pack_programs(target, source.tree, lab_dir() / "objects")
    folder.mkdir(parents=True, exist_ok=True)
    record.unlink(missing_ok=True)
    shutil.copyfile(objects / target.image, folder / "image")
    (folder / "initramfs.cpio").write_bytes(packed)
    shutil.copyfile(objects / "System.map", folder / "System.map")
    shutil.copyfile(objects / ".config", folder / "config")
    provenance = {
        **source.provenance(),
        "configuration_sha256": config_sha256(objects / ".config"),
        "image_sha256": file_sha256(folder / "image"),
        "initramfs_sha256": file_sha256(folder / "initramfs.cpio"),
        "compiler": compiler_version(target),
        "kernel": kernel,
    }
    write_text(record, json.dumps({"key": key, "provenance": provenance}, indent=1) + "\n")


def compile_image(target: Target, tree: Path, objects: Path, fragment: str, label: str, progress: StepReport) -> None:
    """Compile a kernel; its image is ``target.image`` below `objects`.

    Raises `SimlibError`, which names the log, if Kconfig drops an option of the fragment or the compilation fails.

    `fragment`: configuration, as `config_fragment` returns it. `label`: name of the kernel in the progress messages.
    """
    require_space(objects, OBJECTS_GIB, "the object tree")
    make = _make(target, tree, objects)
    _configure(make, objects, fragment, progress)
    compiling = f"{label}: compiling the kernel (takes minutes the first time)"
    progress(compiling)
    run_logged([*make, os.path.basename(target.image)], objects / "build.log",
               lambda lines: progress(f"{compiling}, files so far: {lines}"))  # fmt: skip


def cpio(files: Mapping[str, bytes], folders: tuple[str, ...] = (), console: bool = False) -> bytes:
    """Pack files into an initramfs, with fixed times and owners, so that boots do not differ.

    Format: cpio's ``newc``, in the kernel's ``Documentation/driver-api/early-userspace/buffer-format.rst``.

    Returns: the archive, padded to a multiple of 512 bytes, so that archives can be concatenated.

    `files`: content by path, without the leading slash; all files are executable. `folders`: empty folders (mount
    points) to create. `console`: create ``/dev/console``, which init's output needs before devtmpfs is mounted.
    """
    entries = [_entry(name, stat.S_IFDIR | 0o755, b"") for name in folders]
    if console:
        entries.append(_entry("dev/console", stat.S_IFCHR | 0o600, b"", (5, 1)))
    entries += [_entry(name, stat.S_IFREG | 0o755, data) for name, data in files.items()]
    entries.append(_entry("TRAILER!!!", 0, b""))
    packed = b"".join(entries)
    return packed + bytes(-len(packed) % 512)


def _entry(name: str, mode: int, data: bytes, device: tuple[int, int] = (0, 0)) -> bytes:
    """Member of an archive: header (13 numbers of 8 hexadecimal digits) with name, and data, each padded to 4 bytes."""
    path = name.encode() + b"\0"
    numbers = (0, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
    head = b"070701" + b"".join(b"%08X" % number for number in numbers) + path
    head += bytes(-len(head) % 4)
    return head + data + bytes(-len(data) % 4)


def pack_programs(target: Target, tree: Path, folder: Path) -> bytes:
    """Compile the lab's init and the selftests (`build_selftests`), and return the initramfs with them."""
    programs, init = build_selftests(target, tree, folder), folder / f"{target.name}-init"
    command = [f"{target.compiler}gcc", "-O2", "-Wall", *STATIC.split(), "-s", "-o", str(init), str(_HERE / "init.c")]
    run_logged(command, init.with_suffix(".log"))
    files = {name: path.read_bytes() for name, path in {"init": init, **programs}.items()}
    return cpio(files, ("dev", "proc", "sys", "tmp"), console=True)


def find_program(target: str, name: str) -> Path:
    """Find a selftest that was built for a target. Raises `InputError` if it was not built."""
    program = lab_dir() / "objects" / f"{target}-selftests" / f"{name}.stripped"
    if not program.is_file():
        raise InputError("selftest", name, "is not built", f"run simlib lab build --arch {target}")
    return program


def kvm_objects_dir(target: Target, tree: Path) -> Path:
    """Folder of the objects of `compile_kvm`."""
    return lab_dir() / "objects" / f"{target.name}-check-{tree.name}"


def has_sparse(target: Target) -> bool:
    """True if sparse is installed and supports the target: sparse 0.6.4 rejects the -march of riscv's compiler."""
    return shutil.which("sparse") is not None and target.kernel_arch != "riscv"


def compile_kvm(target: Target, kernel: str, tree: Path, rebuild: bool = True) -> str:
    """Compile all of KVM (``TARGET-check.config``) with extra warnings (W=1, and sparse if it is installed).

    Returns: make's output. Raises `InputError` if a tool is missing, `SimlibError` if the compilation fails.

    `kernel`: name in `KERNELS`. `tree`: kernel source. `rebuild`: compile every file, for all warnings; if False, only
    changed files, without sparse.
    """
    require_compiler(target)
    objects = kvm_objects_dir(target, tree)
    require_space(objects, OBJECTS_GIB, "the object tree")
    make = _make(target, tree, objects)
    extra = _HERE / "configs" / f"{target.name}-check.config"
    fragment = config_fragment(target, kernel) + (extra.read_text("utf-8") if extra.is_file() else "")
    _configure(make, objects, fragment, silent)
    # make skips files that it compiled before, and their warnings with them.
    for stale in (*(objects / target.kvm).rglob("*.o"), *objects.glob("virt/**/*.o")) if rebuild else ():
        stale.unlink()
    sparse = ["C=2"] if rebuild and has_sparse(target) else []
    log = objects / "check.log"
    run_logged([*make, "W=1", *sparse, f"{target.kvm}/"], log)
    return log.read_text("utf-8", errors="replace")


def require_compiler(target: Target, source: Sequence[str] = ()) -> str:
    """Check that every tool of a build is installed, and return the target's compiler.

    Raises `InputError`, which names the missing commands and the packages to install, including those in `source`.
    """
    commands = ("make", "patch", "bison", "flex", "bc", "rsync", f"{target.compiler}gcc")
    hint = f"apt-get install {' '.join([*target.packages, *source])}"
    require_programs(f"building for {target.name}", commands, hint)
    return commands[-1]


def _make(target: Target, tree: Path, objects: Path) -> list[str]:
    """Make command for the kernel, with ccache where it is installed."""
    compiler = f"{target.compiler}gcc"
    cached_compiler = f"ccache {compiler}" if shutil.which("ccache") else compiler
    return [
        *("make", "-C", str(tree), f"O={objects}", f"ARCH={target.kernel_arch}", f"CROSS_COMPILE={target.compiler}"),
        *(f"CC={cached_compiler}", f"-j{len(os.sched_getaffinity(0))}", "--no-print-directory"),
        *FIXED,
    ]


def _configure(make: Sequence[str], objects: Path, fragment: str, progress: StepReport) -> None:
    """Configure with allnoconfig plus the fragment; raise `SimlibError` if Kconfig drops an option of the fragment."""
    requested = objects / "fragment.config"
    config = objects / ".config"
    if config.is_file() and requested.is_file() and requested.read_text("utf-8") == fragment:
        run_logged([*make, "olddefconfig"], objects / "configure.log")
    else:
        progress("configuring")
        config.unlink(missing_ok=True)
        write_text(requested, fragment)
        run_logged([*make, f"KCONFIG_ALLCONFIG={requested}", "allnoconfig"], objects / "configure.log")
    settings = set(config.read_text("utf-8").splitlines())
    requests = [line for line in fragment.splitlines() if line.startswith("CONFIG_")]
    lost = [line for line in requests if line not in settings and not line.endswith("=n")]
    lost += [line for line in requests if line.endswith("=n") and f"{line[:-1]}y" in settings]
    if lost:
        raise SimlibError(f"Kconfig dropped {', '.join(lost)}: add the missing dependency in configs/")


def compile_selftests(
    target: Target, tree: Path, programs: Sequence[str], out: Path, headers: Path | None = None, link: str = STATIC
) -> str:
    """Compile selftests of KVM against the tree's own headers, and return make's output.

    Raises `SimlibError`, which names the log, if a compilation fails.

    `tree`: kernel source. `programs`: paths relative to the folder of KVM's selftests. `out`: folder for the programs.
    `headers`: folder for the headers; default: the lab's. `link`: linker flags; static by default, as the initramfs
    has no libraries.
    """
    headers = headers or lab_dir() / "objects" / f"{target.name}-headers"
    run_logged([*_make(target, tree, headers), "headers"], headers / "build.log")
    command = [
        *("make", "-C", str(tree / "tools/testing/selftests/kvm"), f"ARCH={target.kernel_arch}"),
        *(f"CROSS_COMPILE={target.compiler}", f"OUTPUT={out}", f"LDFLAGS={link}", "--no-print-directory"),
        f"KHDR_INCLUDES=-isystem {headers}/usr/include",
    ]
    last_command, log = out / "command", out / "build.log"
    if out.exists() and (not last_command.is_file() or last_command.read_text("utf-8") != " ".join(command)):
        shutil.rmtree(out)  # make compares dates of files, not flags
    write_text(last_command, " ".join(command))
    run_logged([*command, f"-j{len(os.sched_getaffinity(0))}", *(str(out / name) for name in programs)], log)
    return log.read_text("utf-8", errors="replace")


def build_selftests(
    target: Target, tree: Path, folder: Path, programs: Sequence[str] = PROGRAMS, link: str = STATIC
) -> dict[str, Path]:
    """Compile and strip selftests, and return their paths by name.

    `tree`: kernel source, with the series' selftests. `folder`: parent of the folders for headers and programs, whose
    names begin with the target's. `programs`, `link`: as in `compile_selftests`.
    """
    out = folder / f"{target.name}-selftests"
    compile_selftests(target, tree, programs, out, folder / f"{target.name}-headers", link)
    stripped = {name: out / f"{name}.stripped" for name in programs}
    for name, path in stripped.items():
        run_logged([f"{target.compiler}strip", "-o", str(path), str(out / name)], out / "strip.log")
    return stripped


def config_sha256(config: Path) -> str:
    """Hash of the options that a configuration sets; the list of unset options depends on the host's tools."""
    settings = sorted(line for line in config.read_text("utf-8").splitlines() if line.startswith("CONFIG_"))
    return hashlib.sha256("\n".join(settings).encode()).hexdigest()


def config_fragment(target: Target, kernel: str) -> str:
    """Configuration of a kernel: the target's fragment followed by those of `KERNELS`."""
    names = (f"{target.name}.config", *KERNELS[kernel])
    return "".join((_HERE / "configs" / name).read_text("utf-8") for name in names)


def _key(tree: Source, series: Series, target: Target, fragment: str) -> str:
    parts = [tree.origin, tree.sha256, series.sha256, fragment, (_HERE / "init.c").read_text("utf-8")]
    parts += [compiler_version(target), ".".join(map(str, tree.version)), repr((PROGRAMS, FIXED, STATIC))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def compiler_version(target: Target) -> str:
    """First line of the compiler's ``--version``."""
    command = [f"{target.compiler}gcc", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # a name from TARGETS
    return done.stdout.partition("\n")[0]


def run_logged(command: Sequence[str], log: Path, progress: Callable[[int], None] = silent) -> None:
    """Run a step of a build; if it fails, print the error lines of its log, and raise `SimlibError`.

    `progress`: called every second with the number of lines in the log; make writes a line for each file.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stream:
        done = run(command, lambda seconds: progress(log.read_bytes().count(b"\n")), stdout=stream,
                   stderr=subprocess.STDOUT, env={**os.environ, "LC_ALL": "C", "TZ": "UTC"})  # fmt: skip
    if done.returncode:
        text = log.read_text("utf-8", errors="replace")
        raise_if_disk_full(text)
        lines = text.splitlines()
        errors = [line for line in lines if _ERROR.search(line)][:3] or lines[-3:]
        sys.stderr.write("".join(f"  {line}\n" for line in errors))
        raise SimlibError(f"{command[0]} exited with status {done.returncode}: see {log}")
