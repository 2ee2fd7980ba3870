# SPDX-License-Identifier: BSD-3-Clause
"""The series that is tried: patches from a folder, a mailbox, a file, or a range of commits."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from simlib.errors import InputError
from simlib.lab.process import need

_MAILS = re.compile(r"^(?=From [0-9a-f]{40} |From \S+@\S+ )", re.MULTILINE)
_SUBJECT = re.compile(r"^Subject: (?:\[[^\]]*\] *)?(.+(?:\n .+)*)", re.MULTILINE)
_DIFF = re.compile(r"^(?=diff --git )", re.MULTILINE)
_MOST = 2**24
"""Bytes of the largest file that is read."""


class Patch(NamedTuple):
    """One patch: what it is called, and its text."""

    name: str
    text: str

    @property
    def changes(self) -> str:
        """What it changes, without its message."""
        return "".join(_DIFF.split(self.text)[1:])


def read_patches(given: str, tree: Path | None = None) -> tuple[Patch, ...]:
    """The patches of a series, in order; none of an empty folder.

    Raises `InputError` if there is no such thing, or a patch of it changes nothing.

    - `given`: a folder of ``*.patch`` in the order of their names, a mailbox or a single patch, or a range of commits
      of `tree`, such as ``HEAD~3..HEAD``.
    """
    path = Path(given)
    if path.is_dir():
        return tuple(_checked(Patch(one.name, _read(one))) for one in sorted(path.glob("*.patch")))
    if path.is_file():
        mails = [mail for mail in _MAILS.split(_read(path)) if mail.strip()]
        return tuple(_checked(Patch(_title(mail, path.name), mail)) for mail in mails)
    if ".." in given and tree is not None:
        return _commits(given, tree)
    cure = "give a folder or mailbox of git format-patch, or a range of commits such as HEAD~3..HEAD with --source TREE"
    raise InputError("SERIES", given, "is no folder, no file and no range of commits of a tree", cure)


def hash_of(patches: Sequence[Patch]) -> str:
    """Of what they change, in order."""
    digest = hashlib.sha256()
    for patch in patches:
        digest.update(patch.changes.encode() + b"\0")
    return digest.hexdigest()


def _commits(given: str, tree: Path) -> tuple[Patch, ...]:
    need("reading commits", ["git"], "apt-get install git")
    command = ["git", "-C", str(tree), "format-patch", "--stdout", "--no-signature", given, "--"]
    done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603  # no shell; the range is one word
    if given.startswith("-") or done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise InputError("SERIES", given, f"git cannot read it in {tree}: {said[-1] if said else 'no reason given'}")
    text = done.stdout.decode(errors="replace")
    return tuple(_checked(Patch(_title(mail, given), mail)) for mail in _MAILS.split(text) if mail.strip())


def _read(path: Path) -> str:
    data = path.read_bytes()
    if len(data) > _MOST:
        raise InputError("SERIES", str(path), f"must be at most {_MOST} bytes", "give the patches alone")
    return data.decode("utf-8", errors="surrogateescape")


def _title(mail: str, otherwise: str) -> str:
    found = _SUBJECT.search(mail)
    return " ".join(found[1].split()) if found else otherwise


def _checked(patch: Patch) -> Patch:
    if not patch.changes:
        raise InputError(
            "SERIES", patch.name, "changes nothing: it has no line 'diff --git'", "make it by git format-patch"
        )
    return patch
