# SPDX-License-Identifier: BSD-3-Clause
"""A pasted log: its largest length, and its form in a URL."""

from __future__ import annotations

import base64
import zlib

from simlib._lib.errors import InputError

LOG_LIMIT = 2**20
"""Largest length of a log, bytes in UTF-8."""

URL_LIMIT = 16_000
"""Largest length of a log in a URL, characters: Tornado accepts 64 KiB of a request's first line and headers."""

TOO_LONG = "too-long"
"""Value in a URL of a log that is too long for it."""


def checked_log(text: str) -> str:
    """Return a log with lone surrogates replaced; an empty string if it consists of white space.

    Raises `InputError` if it is longer than `LOG_LIMIT`.

    >>> checked_log("Memory total: 16 GiB"), checked_log(chr(10))
    ('Memory total: 16 GiB', '')
    """
    data = text.encode("utf-8", errors="replace")
    if len(data) > LOG_LIMIT:
        raise InputError("log", f"{len(data):,} bytes", "must have at most 1 MiB", "paste its end only")
    return data.decode("utf-8") if text.strip() else ""


def pack(log: str) -> str:
    """Return a log as the value of a URL's parameter: compressed, in base64; `TOO_LONG` if it does not fit.

    >>> unpack(pack("Memory total: 16.005 GiB"))
    'Memory total: 16.005 GiB'
    """
    text = base64.urlsafe_b64encode(zlib.compress(log.encode("utf-8"), 9)).decode("ascii").rstrip("=")
    return text if len(text) <= URL_LIMIT else TOO_LONG


def unpack(text: str) -> str:
    """Return the log of a URL's parameter; of an empty string, an empty log.

    Raises `InputError` if the parameter does not contain a log.

    >>> unpack("too-long")
    Traceback (most recent call last):
    simlib.InputError: log = too-long: the URL does not contain the log; paste the log into the page
    """
    if not text:
        return ""
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), LOG_LIMIT + 1)
    except (ValueError, zlib.error):
        data = b""
    if not data or (not unpacker.eof and len(data) <= LOG_LIMIT):
        raise InputError("log", text, "the URL does not contain the log", "paste the log into the page")
    return data.decode("utf-8", errors="replace")
