# SPDX-License-Identifier: BSD-3-Clause
"""The series that is tried: patches from a folder, a mailbox, a file, or a range of commits."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from simlib._lib.errors import InputError
from simlib.lab.patches import Series
from simlib.lab.process import need, run

_MAILS = re.compile(r"^(?=From [0-9a-f]{40} |From \S+@\S+ )", re.MULTILINE)
_SUBJECT = re.compile(r"^Subject: (?:\[[^\]]*\] *)?(.+(?:\n .+)*)", re.MULTILINE)
_DIFF = re.compile(r"^(?=diff --git )", re.MULTILINE)
_OF = re.compile(r"diff --git a/(\S+) b/(\S+)")
_NAMED = re.compile(r"^(?:---|\+\+\+|rename (?:from|to)|copy (?:from|to)) (\S+)", re.MULTILINE)
_NUMBERS = re.compile(r"(\d{1,2})(?:-(\d{1,2}))?")
_MOST = 2**24
"""Bytes of the largest file that is read."""

TESTS = (18, 19)
"""Patches of ours that are selftests."""

MEASURES = (1, 2, 3, 4, 5, 6, *TESTS)
"""Patches of ours that measure: accessors, statistics, tracepoints, selftests. The others are switches."""

SELFTESTS = "tools/testing/selftests/"
"""Below here nothing of a tried series is taken: both kernels run the same test."""


def parts(text: str) -> Iterator[tuple[tuple[str, str], str]]:
    """What a patch does to each file: the file's names before and after, and the text; no message.

    >>> [names for names, _ in parts("Subject: s\\n\\ndiff --git a/x.c b/x.c\\n--- a/x.c\\n+++ b/x.c\\n")]
    [('x.c', 'x.c')]
    """
    for part in _DIFF.split(text):
        if found := _OF.match(part):
            yield (found[1], found[2]), part


class Patch(NamedTuple):
    """One patch: what it is called, and its text."""

    name: str
    text: str

    @property
    def changes(self) -> str:
        """What it changes of the kernel, without its message and its selftests."""
        return "".join(part for names, part in parts(self.text) if not names[1].startswith(SELFTESTS))

    @property
    def files(self) -> tuple[str, ...]:
        """The kernel's files that it changes, relative to the tree."""
        return tuple(dict.fromkeys(name for names, _ in parts(self.changes) for name in names))


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


def own_numbers(given: str) -> tuple[int, ...]:
    """The numbers of patches of ours that a text names; none if it is something else.

    >>> own_numbers("7"), own_numbers("16-17"), own_numbers("HEAD~3..HEAD")
    ((7,), (16, 17), ())
    """
    found = _NUMBERS.fullmatch(given)
    return tuple(range(int(found[1]), int(found[2] or found[1]) + 1)) if found else ()


def own_patches(series: Series, numbers: Sequence[int]) -> tuple[Patch, ...]:
    """Patches of ours.

    Raises `InputError` if there is none of a number, or it is one that measures and is in both kernels.
    """
    known = {int(path.name[:4]): path for path in series.patches}
    for number in numbers:
        if number not in known or number in MEASURES:
            switches = [one for one in known if one not in MEASURES]
            cure = f"take {switches[0]} to {switches[-1]}"
            raise InputError("SERIES", number, "is no patch of ours that adds a switch", cure)
    return tuple(Patch(_title(text, known[n].name), text) for n in numbers for text in [_read(known[n])])


def hash_of(patches: Sequence[Patch]) -> str:
    """Of what they change, in order."""
    digest = hashlib.sha256()
    for patch in patches:
        digest.update(patch.changes.encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()


def _commits(given: str, tree: Path) -> tuple[Patch, ...]:
    text = git(tree, given, "format-patch", "--stdout", "--no-signature", given, "--")
    return tuple(_checked(Patch(_title(mail, given), mail)) for mail in _MAILS.split(text) if mail.strip())


def base_of(given: str, tree: Path) -> str:
    """The commit that a range of commits begins after: its hash.

    Raises `InputError` if git knows no such commit.
    """
    first, last = given.split("..", 1)
    return git(tree, given, "merge-base", first or "HEAD", last.removeprefix(".") or "HEAD").strip()


def git(tree: Path, given: str, *words: str) -> str:
    """What git says of a tree, in which it writes nothing.

    - `given`: what the user gave, for the error.
    """
    need("reading commits", ["git"], "apt-get install git")
    if given.startswith("-"):
        raise InputError("SERIES", given, "is no range of commits", "give one such as HEAD~3..HEAD")
    done = run(["git", "-C", str(tree), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text = str(done.stdout.decode("utf-8", errors="surrogateescape"))
    if done.returncode:
        said = text.strip().splitlines()
        cure = f"git says in {tree}: {said[-1] if said else 'nothing'}"
        raise InputError("SERIES", given, "is no range of commits", cure)
    return text


def _read(path: Path) -> str:
    data = path.read_bytes()
    if len(data) > _MOST:
        raise InputError("SERIES", str(path), f"must be at most {_MOST} bytes", "give the patches alone")
    return data.decode("utf-8", errors="surrogateescape")


def _title(mail: str, otherwise: str) -> str:
    found = _SUBJECT.search(mail)
    title = " ".join(found[1].split()) if found else otherwise
    return title.encode("utf-8", "replace").decode()  # to be printed, whatever the mail was written in


def _checked(patch: Patch) -> Patch:
    """Refuse a patch that changes nothing, and one that names a file outside of the tree."""
    named = [name for names, part in parts(patch.text) for name in (*names, *_NAMED.findall(part))]
    if not named:
        cure = "make it by git format-patch"
        raise InputError("SERIES", patch.name, "changes nothing: it has no line 'diff --git'", cure)
    for name in named:
        path = name.removeprefix("a/").removeprefix("b/")
        if name != "/dev/null" and (path.startswith("/") or ".." in path.split("/")):
            raise InputError("SERIES", patch.name, f"names {name}, which lies outside of the tree", "leave it out")
    return patch
