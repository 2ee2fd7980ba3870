# SPDX-License-Identifier: BSD-3-Clause
"""What newer kernels call the files of KVM's selftests, so that the series can be tried on them.

Linux 6.12 keeps a selftest for x86 in ``x86_64/`` and lists it in ``Makefile``. Newer trees have ``x86/``, ``arm64/``
and ``s390/``, and list them in ``Makefile.kvm``. Which of the two a tree is, is seen from its files, not its version.
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
    """How a tree's names differ from those of Linux 6.12."""

    folders: dict[str, str]
    """Folders of the selftests that have another name."""
    text: str
    """What `_LISTING` says; empty if the tree lists its selftests where the series knows."""

    def within(self, stage: Path) -> Renames:
        """The same with the list as it is in a tree, such as earlier patches left it."""
        listing = stage / _LISTING
        return replace(self, text=listing.read_text("utf-8") if listing.is_file() else self.text)

    def patch(self, text: str) -> str:
        """A patch as this tree needs it."""
        if not self.folders and not self.text:
            return text
        return "".join(self._part(part) for part in _PART.split(text))

    def _part(self, part: str) -> str:
        """What a patch does to one file."""
        if self.text and part.startswith(f"diff --git a/{SELFTESTS}Makefile "):
            return self._list(part)
        for old, new in self.folders.items():
            part = part.replace(f"{SELFTESTS}{old}/", f"{SELFTESTS}{new}/")
        return part

    def _list(self, part: str) -> str:
        """List the added selftests after the last one of their kind: the lines around them are others here."""
        lines = self.text.splitlines()
        longer = list(lines)
        for line in _LISTED.findall(part):
            for old, new in self.folders.items():
                line = re.sub(rf"_{old} ", f"_{new} ", line).replace(f" {old}/", f" {new}/")  # noqa: PLW2901  # renamed
            variable = line.partition(" ")[0]
            places = [at for at, known in enumerate(longer) if re.match(rf"{variable}\s*\+?=", known)]
            if line not in longer:
                longer.insert(places[-1] + 1 if places else len(longer), line)
        names = f"a/{_LISTING}", f"b/{_LISTING}"
        changed = "\n".join(unified_diff(lines, longer, *names, n=1, lineterm=""))
        return f"diff --git {' '.join(names)}\n{changed}\n" if changed else ""


def find_renames(tree: Path) -> Renames:
    """Look at a tree's selftests."""
    tests = tree / SELFTESTS
    folders = {old: new for old, new in _FOLDERS.items() if (tests / new).is_dir() and not (tests / old).is_dir()}
    return Renames(folders, "").within(tree)
