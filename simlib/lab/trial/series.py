# SPDX-License-Identifier: BSD-3-Clause
"""Read the series to try: patches from a folder, a mailbox, a file, or a range of commits."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from simlib._lib.errors import InputError
from simlib.lab.patches import Series
from simlib.lab.process import require_programs, run
from simlib.lab.trial.mails import Mail, posted_series, read_mail, split_box

_DIFF = re.compile(r"^(?=diff --git )", re.MULTILINE)
_HEADER = re.compile(r"diff --git a/(\S+) b/(\S+)")
_NAMED = re.compile(r"^(?:---|\+\+\+|rename (?:from|to)|copy (?:from|to)) (\S+)", re.MULTILINE)
_NUMBERS = re.compile(r"(\d{1,2})(?:-(\d{1,2}))?")
_MAX_BYTES = 2**24

SELFTEST_PATCHES = (18, 19)

MEASURING_PATCHES = (1, 2, 3, 4, 5, 6, *SELFTEST_PATCHES)
"""Bundled instrumentation patches: accessors, statistics, tracepoints, selftests. The others add switches."""

SELFTESTS = "tools/testing/selftests/"
"""Folder in which the tried series' changes are ignored: both kernels run the same tests."""


def file_diffs(text: str) -> Iterator[tuple[tuple[str, str], str]]:
    """Split a patch by file, without its message: the file's names before and after, and the text of its diff.

    >>> [names for names, _ in file_diffs("Subject: s\\n\\ndiff --git a/x.c b/x.c\\n--- a/x.c\\n+++ b/x.c\\n")]
    [('x.c', 'x.c')]
    """
    for part in _DIFF.split(text):
        if match := _HEADER.match(part):
            yield (match[1], match[2]), part


class Patch(NamedTuple):
    """Name and text of a patch."""

    name: str
    text: str

    @property
    def kernel_diff(self) -> str:
        """Diff of the kernel's files, without the message and the selftests."""
        return "".join(part for names, part in file_diffs(self.text) if not names[1].startswith(SELFTESTS))

    @property
    def files(self) -> tuple[str, ...]:
        """Files of the kernel that it changes, relative to the tree."""
        return tuple(dict.fromkeys(name for names, _ in file_diffs(self.kernel_diff) for name in names))


def read_patches(series: str, tree: Path | None = None) -> tuple[Patch, ...]:
    """Read the patches of a series, in order; cover letters and replies are left out.

    Raises `InputError` if the series does not exist, has no patch, or lacks one.

    - `series`: a folder of ``*.patch`` in the order of their names; a mailbox, of which the last version counts, or a
      single patch; or a range of commits of `tree`, such as ``HEAD~3..HEAD``.
    """
    path = Path(series)
    if path.is_dir():
        return _in_folder(path)
    if path.is_file():
        return _named(posted_series(split_box(_read(path)), series), path.name)
    if ".." in series and tree is not None:
        text = git(tree, series, "format-patch", "--stdout", "--no-signature", series, "--")
        return _named(posted_series(split_box(text), series), series)
    hint = "give a folder or mailbox of git format-patch, or a range of commits such as HEAD~3..HEAD with --source TREE"
    raise InputError("SERIES", series, "is not a folder, a file or a range of commits of a tree", hint)


def bundled_numbers(series: str) -> tuple[int, ...]:
    """Numbers of the bundled patches that a string names; empty if it is anything else.

    >>> bundled_numbers("7"), bundled_numbers("16-17"), bundled_numbers("HEAD~3..HEAD")
    ((7,), (16, 17), ())
    """
    match = _NUMBERS.fullmatch(series)
    return tuple(range(int(match[1]), int(match[2] or match[1]) + 1)) if match else ()


def bundled_patches(series: Series, numbers: Sequence[int]) -> tuple[Patch, ...]:
    """Read patches of the bundled series.

    Raises `InputError` if a number is unknown, or its patch measures: both kernels have those patches.
    """
    paths = {int(path.name[:4]): path for path in series.patches}
    for number in numbers:
        if number not in paths or number in MEASURING_PATCHES:
            switches = [known for known in paths if known not in MEASURING_PATCHES]
            hint = f"choose {switches[0]} to {switches[-1]}"
            raise InputError("SERIES", number, "is not a bundled patch that adds a switch", hint)
    return tuple(Patch(read_mail(text).title, text) for n in numbers for text in [_read(paths[n])])


def series_hash(patches: Sequence[Patch]) -> str:
    """Hash of the diffs of the patches, in order, without changes outside the kernel."""
    digest = hashlib.sha256()
    for patch in patches:
        digest.update(patch.kernel_diff.encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()


def base_commit(series: str, tree: Path) -> str:
    """Hash of the commit before a range of commits. Raises `InputError` if git does not know the range."""
    first, last = series.split("..", 1)
    return git(tree, series, "merge-base", first or "HEAD", last.removeprefix(".") or "HEAD").strip()


def git(tree: Path, series: str, *words: str) -> str:
    """Run a git command that only reads a tree, and return its output.

    Raises `InputError`, which names the range of commits `series`, if git is missing or fails.
    """
    require_programs("reading commits", ["git"], "apt-get install git")
    if series.startswith("-"):
        raise InputError("SERIES", series, "is not a range of commits", "give one such as HEAD~3..HEAD")
    done = run(["git", "-C", str(tree), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text = str(done.stdout.decode("utf-8", errors="surrogateescape"))
    if done.returncode:
        last_line = (text.strip().splitlines() or ["no message"])[-1]
        raise InputError("SERIES", series, "is not a range of commits", f"git reports in {tree}: {last_line}")
    return text


def _in_folder(folder: Path) -> tuple[Patch, ...]:
    """Read the patches in a folder, in the order of their names, without a cover letter."""
    mails = [(path, read_mail(_read(path))) for path in sorted(folder.glob("*.patch"))]
    patches = [(path, mail) for path, mail in mails if mail.is_patch or not mail.is_cover_letter]
    if not patches:
        rule = "has no patch, only a cover letter" if mails else "has no file *.patch"
        raise InputError("SERIES", str(folder), rule, "create the patches with git format-patch -o FOLDER")
    return tuple(_checked(Patch(path.name, mail.text)) for path, mail in patches)


def _named(mails: Sequence[Mail], name: str) -> tuple[Patch, ...]:
    """Return the patches of mails; one without a subject is called `name`."""
    return tuple(_checked(Patch(mail.title or name, mail.text)) for mail in mails)


def _read(path: Path) -> str:
    data = path.read_bytes()
    if len(data) > _MAX_BYTES:
        raise InputError("SERIES", str(path), f"must be at most {_MAX_BYTES:,} bytes", "give only the patches")
    return data.decode("utf-8", errors="surrogateescape")


def _checked(patch: Patch) -> Patch:
    """Raise `InputError` for a patch that changes nothing, or names a file outside of the tree."""
    paths = [name for names, part in file_diffs(patch.text) for name in (*names, *_NAMED.findall(part))]
    if not paths:
        hint = "create it with git format-patch"
        raise InputError("SERIES", patch.name, "changes nothing: it has no line 'diff --git' or '--- a/FILE'", hint)
    for name in paths:
        path = name.removeprefix("a/").removeprefix("b/")
        if name != "/dev/null" and (path.startswith("/") or ".." in path.split("/")):
            raise InputError("SERIES", patch.name, f"names {name}, which is outside of the tree", "remove that file")
    return patch
