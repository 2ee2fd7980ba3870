# SPDX-License-Identifier: BSD-3-Clause
"""Rename the files of KVM's selftests in a patch to their names in newer kernels.

Linux 6.12 keeps a selftest for x86 in ``x86_64/`` and lists it in ``Makefile``. Newer trees have ``x86/``, ``arm64/``
and ``s390/``, and list selftests in ``Makefile.kvm``. The layout is detected from a tree's files, not its version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from difflib import unified_diff
from pathlib import Path

SELFTESTS = "tools/testing/selftests/kvm/"
_LISTING = f"{SELFTESTS}Makefile.kvm"
_FOLDERS = {"x86_64": "x86", "aarch64": "arm64", "s390x": "s390"}
_PART = re.compile(r"^(?=diff --git )", re.MULTILINE)
_LISTED = re.compile(r"^\+(TEST_GEN_PROGS\w* \+= \S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Renames:
    """Differences between a tree's names and those of Linux 6.12."""

    folders: dict[str, str]
    """New names of renamed selftest folders, by their old names."""
    text: str
    """Contents of `_LISTING`; empty if the tree lists its selftests in ``Makefile``, as Linux 6.12."""

    def within(self, stage: Path) -> Renames:
        """Return a copy with the contents of `_LISTING` in a staged tree, which earlier patches may have changed."""
        listing = stage / _LISTING
        return replace(self, text=listing.read_text("utf-8") if listing.is_file() else self.text)

    def patch(self, text: str) -> str:
        """Translate a patch for Linux 6.12 to this tree's names."""
        if not self.folders and not self.text:
            return text
        return "".join(self._part(part) for part in _PART.split(text))

    def _part(self, part: str) -> str:
        """Translate a patch's diff of one file."""
        if self.text and part.startswith(f"diff --git a/{SELFTESTS}Makefile "):
            return self._list(part)
        for old, new in self.folders.items():
            part = part.replace(f"{SELFTESTS}{old}/", f"{SELFTESTS}{new}/")
        return part

    def _list(self, part: str) -> str:
        """Add the new selftests after the last one of their variable, because the lines around them differ here."""
        lines = self.text.splitlines()
        extended = list(lines)
        for line in _LISTED.findall(part):
            for old, new in self.folders.items():
                line = re.sub(rf"_{old} ", f"_{new} ", line).replace(f" {old}/", f" {new}/")  # noqa: PLW2901  # renamed
            variable = line.partition(" ")[0]
            indices = [i for i, listed in enumerate(extended) if re.match(rf"{variable}\s*\+?=", listed)]
            if line not in extended:
                extended.insert(indices[-1] + 1 if indices else len(extended), line)
        names = f"a/{_LISTING}", f"b/{_LISTING}"
        diff = "\n".join(unified_diff(lines, extended, *names, n=1, lineterm=""))
        return f"diff --git {' '.join(names)}\n{diff}\n" if diff else ""


def find_renames(tree: Path) -> Renames:
    """Detect the renames in a tree's selftests."""
    tests = tree / SELFTESTS
    folders = {old: new for old, new in _FOLDERS.items() if (tests / new).is_dir() and not (tests / old).is_dir()}
    return Renames(folders, "").within(tree)
