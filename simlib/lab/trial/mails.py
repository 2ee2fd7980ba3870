# SPDX-License-Identifier: BSD-3-Clause
"""Mails of a series as it was posted: format-patch's files, or a mailbox of lore.kernel.org or b4 with replies."""

from __future__ import annotations

import email
import email.policy
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from simlib._lib.errors import InputError

_BOX = re.compile(r"^(?=From (?:[0-9a-f]{40}|\S+@\S+) )", re.MULTILINE)
_TAGS = re.compile(
    r"(?P<reply>(?:re|fwd?|aw):\s*)*(?P<tags>(?:\[[^\]]*\]\s*)*)(?P<title>.*)", re.IGNORECASE | re.DOTALL
)
_NUMBER = re.compile(r"\b(\d{1,3})/(\d{1,3})\b")
_VERSION = re.compile(r"\bv(\d{1,3})\b", re.IGNORECASE)
_CODED = ("quoted-printable", "base64")
_PLAIN = re.compile(r"^--- (?P<old>\S+)[^\n]*\n\+\+\+ (?P<new>\S+)[^\n]*\n(?=@@ )", re.MULTILINE)


class Mail(NamedTuple):
    """One mail of a series.

    - `title`: its subject, without tags such as ``[PATCH v2 1/3]``; empty if it has none.
    - `text`: the whole mail, decoded.
    - `reply`: True if it answers another mail.
    - `version`, `number`, `total`: those in its tags; 1, 0 and 0 if they have none.
    """

    title: str
    text: str
    reply: bool
    version: int
    number: int
    total: int

    @property
    def is_patch(self) -> bool:
        """True if it changes files, and is no quotation in a reply."""
        return not self.reply and "\ndiff --git " in f"\n{self.text}"

    @property
    def is_cover_letter(self) -> bool:
        """True if it has number 0 of several."""
        return self.total > 0 and self.number == 0


def split_box(text: str) -> list[Mail]:
    """Split a mailbox, or the output of ``git format-patch --stdout``, into mails.

    >>> box = "From a@b Thu Jan  1\\nSubject: [PATCH 1/2] one\\n\\nFrom a@b Thu Jan  1\\nSubject: two\\n"
    >>> [mail.title for mail in split_box(box)]
    ['one', 'two']
    """
    return [read_mail(mail) for mail in _BOX.split(text) if mail.strip()]


def read_mail(text: str) -> Mail:
    """Read a mail, or a patch without headers.

    >>> mail = read_mail("Subject: [RFC PATCH v3 02/10] KVM: a\\n title\\n\\nText\\n")
    >>> mail.title, mail.version, mail.number, mail.total
    ('KVM: a title', 3, 2, 10)
    """
    message: Any = email.message_from_bytes(text.encode("utf-8", "surrogateescape"), policy=email.policy.default)
    subject = " ".join(str(message.get("Subject") or "").split())
    tags, title = (match["tags"], match["title"]) if (match := _TAGS.fullmatch(subject)) else ("", subject)
    number, version = _NUMBER.search(tags), _VERSION.search(tags)
    return Mail(
        title.encode("utf-8", "replace").decode(),  # printable, whatever the mail's encoding
        with_git_headers(_decoded(message, text)),
        reply=bool(match and match["reply"]),
        version=int(version[1]) if version else 1,
        number=int(number[1]) if number else 0,
        total=int(number[2]) if number else 0,
    )


def _decoded(message: Any, text: str) -> str:
    """Text of a mail: as it is, or the decoded parts of one that was encoded for its transfer."""
    parts = [part for part in message.walk() if not part.is_multipart()]
    if not message.is_multipart() and str(message.get("Content-Transfer-Encoding") or "").lower() not in _CODED:
        return text
    bodies = [part.get_payload(decode=True) for part in parts if part.get_content_maintype() == "text"]
    return "\n".join(
        body.decode("utf-8", "surrogateescape").replace("\r\n", "\n") for body in bodies if isinstance(body, bytes)
    )


def with_git_headers(text: str) -> str:
    """Return a patch of ``diff -u`` with the lines ``diff --git`` of git; a patch of git as it is.

    >>> plain = "--- linux.orig/virt/a.c\\t2026\\n+++ linux/virt/a.c\\n@@ -1 +1 @@\\n-a\\n+b\\n"
    >>> print(with_git_headers(plain).split("@@")[0], end="")
    diff --git a/virt/a.c b/virt/a.c
    --- a/virt/a.c
    +++ b/virt/a.c
    """
    if "\ndiff --git " in f"\n{text}":
        return text

    def headed(match: re.Match[str]) -> str:
        old, new = (name if name == "/dev/null" else name.partition("/")[2] for name in (match["old"], match["new"]))
        path = old if new == "/dev/null" else new
        lines = [f"diff --git a/{path} b/{path}"]
        lines += ["new file mode 100644"] * (old == "/dev/null") + ["deleted file mode 100644"] * (new == "/dev/null")
        lines.append(f"--- {'a/' * (old != '/dev/null')}{old}\n+++ {'b/' * (new != '/dev/null')}{new}\n")
        return "\n".join(lines)

    return _PLAIN.sub(headed, text)


def posted_series(mails: Sequence[Mail], where: str) -> list[Mail]:
    """Return the patches of a series, in order: those of its last version, without cover letters and replies.

    Raises `InputError` if there is none, or one is missing.

    - `where`: name of the mailbox.
    """
    patches = [mail for mail in mails if mail.is_patch]
    if not patches:
        cover = any(mail.is_cover_letter for mail in mails)
        rule = "has no patch" + (
            ", only a cover letter" if cover else ": no mail has a line 'diff --git' or '--- a/FILE'"
        )
        raise InputError("SERIES", where, rule, "give the mails with the patches, or git format-patch's files")
    last = max(mail.version for mail in patches)
    patches = [mail for mail in patches if mail.version == last]
    if len(patches) < 2 or not all(mail.number for mail in patches):
        return patches
    by_number = {mail.number: mail for mail in patches}  # the last, if one was posted again
    total = max(mail.total for mail in patches)
    if missing := [f"{number}/{total}" for number in range(1, total + 1) if number not in by_number]:
        shown = ", ".join(missing[:5])
        raise InputError(
            "SERIES", where, f"lacks patch {shown}", "add it, or give the patches to try as files in a folder"
        )
    return [by_number[number] for number in sorted(by_number)]
