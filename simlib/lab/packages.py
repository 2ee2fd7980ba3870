# SPDX-License-Identifier: BSD-3-Clause
"""Debian packages that the lab unpacks into its folder without installing them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from simlib._lib.errors import InputError
from simlib._lib.files import write_text
from simlib.lab.build import run_logged

SUITE = "bookworm"
"""Debian suite whose packages fit the lab's host."""


def debian_sources(folder: Path, *suites: str) -> list[str]:
    """Find this system's first package source of Debian 12, and list it for bookworm and for other `suites`.

    Returns: entries in the one-line format; empty on other systems.

    `folder`: ``/etc/apt``; ``sources.list``, ``sources.list.d/*.list`` and ``sources.list.d/*.sources`` are read.
    """
    mirrors: list[tuple[str, str]] = []
    for path in (folder / "sources.list", *sorted((folder / "sources.list.d").glob("*.list"))):
        text = path.read_text("utf-8") if path.is_file() else ""
        entries = re.findall(rf"(?m)^deb[ \t]+(?:\[([^]\n]*)\][ \t]+)?(\S+)[ \t]+{SUITE}[ \t]", text)
        mirrors += [(uri, options) for options, uri in entries]
    for path in sorted((folder / "sources.list.d").glob("*.sources")):
        for block in re.split(r"\n\s*\n", path.read_text("utf-8")):
            fields = dict(re.findall(r"(?m)^([\w-]+):\s*(\S.*)$", block))
            if SUITE in fields.get("Suites", "").split():
                key = fields.get("Signed-By", "")
                mirrors += [(uri, f"signed-by={key}" if key else "") for uri in fields.get("URIs", "").split()]
    sources = [f"deb {f'[{options}] ' if options else ''}{uri}" for uri, options in mirrors[:1]]
    return [f"{source} {suite} main" for source in sources for suite in (SUITE, *suites)]


def require_sources(what: str, hint: str, *suites: str) -> list[str]:
    """Return `debian_sources` of this system. Raises `InputError` if it is not Debian 12.

    - `what`: software that is to be fetched; `hint`: another way to get it.
    """
    missing = [name for name in ("apt-get", "dpkg") if shutil.which(name) is None]
    sources = [] if missing else debian_sources(Path("/etc/apt"), *suites)
    if not sources:
        lacks = ", ".join(missing) or f"a source of {SUITE} in /etc/apt"
        raise InputError(what, lacks, "not found: the packages can be fetched on Debian 12 only", hint)
    return sources


def download_packages(names: Sequence[str], sources: Sequence[str], work: Path, suite: str = SUITE) -> list[Path]:
    """Download packages with everything that they depend on, as if nothing were installed; return the files.

    Raises `SimlibError` if apt fails.

    - `names`: packages, optionally with their suite (``name/suite``); `suite`: suite of the others.
    - `work`: folder for apt's lists and the packages.
    """
    lists, archives = work / "lists", work / "cache/archives"
    for folder in (lists / "partial", archives / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    write_text(work / "sources.list", "".join(f"{line}\n" for line in sources))
    write_text(work / "status", "")  # as if nothing were installed: the copy must not rely on installed packages
    options = [
        *("-o", f"Dir::Etc::sourcelist={work / 'sources.list'}", "-o", "Dir::Etc::sourceparts=/dev/null"),
        *("-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={work / 'cache'}"),
        *("-o", f"Dir::State::status={work / 'status'}", "-o", "Debug::NoLocking=1"),
    ]
    log = work / "packages.log"
    run_logged(["apt-get", *options, "update"], log)
    for package in archives.glob("*.deb"):
        package.unlink()
    install = ["install", "--yes", "--download-only", "--no-install-recommends", "-t", suite]
    run_logged(["apt-get", *options, *install, *names], log)
    return sorted(archives.glob("*.deb"))


def unpack_packages(packages: Sequence[Path], root: Path) -> None:
    """Unpack packages into a folder. Raises `SimlibError` if dpkg fails."""
    for package in packages:
        run_logged(["dpkg", "-x", str(package), str(root)], root.with_name(f"{root.name}.log"))
