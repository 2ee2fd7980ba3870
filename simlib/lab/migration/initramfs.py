# SPDX-License-Identifier: BSD-3-Clause
"""Debian kernel and initramfs of the Linux guest: packages that are unpacked into the lab's folder."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from simlib._lib.errors import SimlibError
from simlib._lib.files import write_text
from simlib.lab.build import cpio
from simlib.lab.cache import lab_dir, require_space
from simlib.lab.migration.workloads import PACKAGES
from simlib.lab.packages import download_packages, require_sources, unpack_packages
from simlib.lab.process import StepReport, build_once, require_programs, run, silent

KERNEL_PACKAGES = ("linux-image-cloud-amd64", "busybox-static")

_LIST = "packages.txt"
_LOADER = "lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
_LIBRARIES = ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu")
_FOLDERS = ("bin", "cache", "dev", "lib", "lib64", "proc", "tmp")
_NEEDED = re.compile(r"\(NEEDED\).*\[(\S+)\]")


def packages_root() -> Path:
    """Folder into which the packages of the guest are unpacked; its name has the hash of their names."""
    digest = hashlib.sha256(" ".join((*KERNEL_PACKAGES, *PACKAGES)).encode()).hexdigest()[:8]
    return lab_dir() / f"linux-guest-{digest}"


def fetch_guest_packages(progress: StepReport = silent) -> Path:
    """Download and unpack the packages of the guest, unless that was done before; return the folder.

    Raises `InputError` if the system is not Debian 12. Raises `SimlibError` if apt or dpkg fails.
    """
    root = packages_root()
    if (root / _LIST).is_file():
        return root
    sources = require_sources("the Linux guest", "run migrations with [experiment.guest], which need no packages")
    require_space(root, 0.6, "the Linux guest")
    progress("fetching a kernel and programs")
    work, part = root.with_name("linux-guest-packages"), root.with_name(f"{root.name}.part")
    packages = download_packages([*KERNEL_PACKAGES, *PACKAGES], sources, work)
    shutil.rmtree(part, ignore_errors=True)
    unpack_packages(packages, part)
    write_text(part / _LIST, "".join(f"{package.name}\n" for package in packages))
    shutil.rmtree(root, ignore_errors=True)
    return part.rename(root)


def package_versions(root: Path, names: Sequence[str]) -> dict[str, str]:
    """Versions of unpacked packages by their names; of the kernel, that of its image."""
    rows = [line.split("_")[:2] for line in (root / _LIST).read_text("utf-8").splitlines()]
    return {name: version.replace("%3a", ":") for name, version in rows if name in names}


def find_kernel(root: Path) -> Path:
    """Return the kernel image in an unpacked tree. Raises `SimlibError` if there is none."""
    images = sorted((root / "boot").glob("vmlinuz-*"))
    if not images:
        raise SimlibError(f"{root} has no boot/vmlinuz-*: delete this folder; it is then unpacked again")
    return images[-1]


def find_libraries(root: Path, programs: Sequence[Path]) -> dict[str, Path]:
    """Find the shared libraries that programs need, directly or not, by their names.

    Raises `InputError` if readelf is missing. Raises `SimlibError` if a library is not in the tree.
    """
    require_programs("making an initramfs", ["readelf"], "apt-get install binutils")
    libraries, queue = dict[str, Path](), list(programs)
    while queue:
        done = run(["readelf", "-dW", str(queue.pop())], stdout=-1, stderr=-3, text=True)
        for name in _NEEDED.findall(done.stdout):
            if name not in libraries:
                paths = [root / folder / name for folder in _LIBRARIES if (root / folder / name).is_file()]
                if not paths:
                    raise SimlibError(f"{root} has no {name}: delete this folder; it is then unpacked again")
                libraries[name] = paths[0]
                queue.append(paths[0])
    return libraries


def build_init() -> Path:
    """Compile ``workload.c``; return the program. Raises `InputError` if there is no compiler."""
    source = Path(__file__).resolve().parent / "workload.c"
    command = ["gcc", "-O2", "-Wall", "-static", "-s", "-o", "{part}", "{source}", "-lm", "-lpthread"]
    hint = "apt-get install gcc libc6-dev"
    return build_once(source, ".elf", "building the guest of a migration", hint, [command])


def initramfs_files(root: Path, programs: Sequence[str], workload: str) -> dict[str, bytes]:
    """Contents of the initramfs by path.

    - `root`: unpacked packages; `programs`: paths of the programs in it.
    - `workload`: text of ``/workload``.
    """
    paths = [root / program for program in programs]
    files: Mapping[str, Path] = {
        "init": build_init(),
        "bin/busybox": root / "bin/busybox",
        **{f"bin/{path.name}": path for path in paths},
        **{f"lib/{name}": path for name, path in find_libraries(root, paths).items()},
        **({"lib64/ld-linux-x86-64.so.2": root / _LOADER} if paths else {}),
    }
    return {name: path.read_bytes() for name, path in files.items()} | {"workload": workload.encode()}


def pack_initramfs(root: Path, programs: Sequence[str], workload: str) -> bytes:
    """Pack `initramfs_files`."""
    return cpio(initramfs_files(root, programs, workload), _FOLDERS, console=True)
