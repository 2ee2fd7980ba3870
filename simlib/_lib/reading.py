# SPDX-License-Identifier: BSD-3-Clause
"""Read users' files: only regular files, bounded in size and depth.

A scenario, a fit, an experiment or a table may come from anybody. The result is text or plain values (numbers,
strings, lists, tables) without control characters, which a terminal would interpret. An error message is one sentence.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simlib._lib.errors import InputError, printable

MIB = 1 << 20
TOML_BYTES = 1 * MIB
"""Maximum size of a TOML file, bytes; a scenario takes a few kilobytes."""

JSON_BYTES = 16 * MIB
"""Maximum size of a JSON file, bytes; a fit takes tens of kilobytes."""

CSV_BYTES = 32 * MIB
"""Maximum size of a table, bytes: about half a million rows."""

DEPTH = 32
"""Maximum nesting depth of lists and tables."""

_LONG_KEY = re.compile(
    rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{DEPTH}}}""", flags=re.ASCII
)
"""A dotted key that nests tables too deeply; Python's TOML reader takes a time quadratic in the depth."""

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters, and surrogates."""


def read_bytes(path: str | Path, kind: str, most: int) -> bytes:
    """Read the bytes of a file.

    Raises `InputError` if it is missing, a folder, a device or a pipe, unreadable, empty, or too large.

    - `kind`: name of the expected format, for an error's message (``"a measurement file (CSV)"``).
    - `most`: largest size, bytes.

    >>> read_bytes("/dev/zero", "a scenario file (TOML)", TOML_BYTES)
    Traceback (most recent call last):
    simlib.InputError: /dev/zero = a device or pipe: must be a scenario file (TOML); save it to a regular file
    first
    """
    where, must = str(path), f"must be {kind}"
    try:
        # Non-blocking, since a pipe might have no writer; checked after opening, so that the file cannot be exchanged.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            mode = os.fstat(handle).st_mode
            if stat.S_ISDIR(mode):
                raise InputError(where, "a directory", must, "name a file inside it")
            if not stat.S_ISREG(mode):
                raise InputError(where, "a device or pipe", must, "save it to a regular file first")
            with open(handle, "rb", closefd=False) as stream:
                raw = stream.read(most + 1) or b""
        finally:
            os.close(handle)
    except FileNotFoundError:
        raise InputError(where, "missing", f"{kind} must exist", "check the path") from None
    except OSError as error:
        hint = "check its permissions and those of its folder"
        raise InputError(where, error.strerror or "unreadable", "must be readable", hint) from None
    except ValueError as error:  # a byte 0 in a name; InputError is a ValueError, too
        if isinstance(error, InputError):
            raise
        raise InputError(where, str(error), "must be the name of a file", "check the path") from None
    if len(raw) > most:
        raise InputError(where, f"more than {most / MIB:g} MiB", must, "check the path")
    if not raw.strip():
        raise InputError(where, "an empty file", must, "write the file again")
    return raw


def read_text(path: str | Path, kind: str, most: int = CSV_BYTES) -> str:
    """Read a whole UTF-8 file; a byte order mark is dropped.

    Raises `InputError` as `read_bytes`, or if it is not UTF-8, or has control characters.

    - `path`, `kind`, `most`: see `read_bytes`.
    """
    raw, where = read_bytes(path, kind, most), str(path)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, byte = raw.count(b"\n", 0, error.start) + 1, f"byte {raw[error.start]:#04x}"
        raise InputError(f"{where}, line {line}", byte, "must be UTF-8 text", "save the file as UTF-8") from None
    if control := _CONTROL.search(text):
        line = text.count("\n", 0, control.start()) + 1
        raise InputError(f"{where}, line {line}", printable(control[0]), "must be a printable character", "remove it")
    return text


def read_toml(path: str | Path, kind: str) -> dict[str, Any]:
    """Read the tables of a TOML file; raises `InputError` as `read_text` and `parse_toml` do."""
    return parse_toml(read_text(path, kind, TOML_BYTES), str(path), kind)


def read_json(path: str | Path, kind: str, most: int = JSON_BYTES) -> Any:
    """Read the value of a JSON file; raises `InputError` as `read_text` and `parse_json` do."""
    return parse_json(read_text(path, kind, most), str(path), kind)


def parse_toml(text: str, where: str, kind: str) -> dict[str, Any]:
    """Parse a TOML string into its tables.

    Raises `InputError` if it is not TOML, is nested too deeply, or has a control character or too long a number.

    >>> parse_toml("[guest]\\nvcpus = 8", "mine.toml", "a scenario file (TOML)")
    {'guest': {'vcpus': 8}}
    >>> parse_toml("a." * 99 + "b = 1", "mine.toml", "a scenario file (TOML)")
    Traceback (most recent call last):
    simlib.InputError: mine.toml = nested too deeply: must be a scenario file (TOML); correct the file
    >>> parse_toml("a = " + "[" * 99 + "]" * 99, "mine.toml", "a scenario file (TOML)")
    Traceback (most recent call last):
    simlib.InputError: mine.toml = nested too deeply: must be a scenario file (TOML); correct the file
    """
    if len(text) > TOML_BYTES:
        raise InputError(where, f"more than {TOML_BYTES / MIB:g} MiB", f"must be {kind}", "check the path")
    if _LONG_KEY.search(text):
        raise _too_deep(where, kind)
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise _too_deep(where, kind) from None
    except ValueError as error:  # tomllib.TOMLDecodeError, or a number that is too long for Python
        raise InputError(where, f"not TOML: {error}", f"must be {kind}", "correct the file") from None
    _check(tables, where, kind)
    return tables


def parse_json(text: str, where: str, kind: str) -> Any:
    """Parse a JSON string into its value.

    Raises `InputError` if it is not JSON, is nested too deeply, or has a control character, NaN or too long a number.

    >>> parse_json('{"dof": 8}', "fit.json", "a fit file (JSON)")
    {'dof': 8}
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise _too_deep(where, kind) from None
    except json.JSONDecodeError as error:
        line = f"{where}, line {error.lineno}"
        raise InputError(line, error.msg, f"must be {kind}", "correct the file, or generate it again") from None
    except ValueError as error:  # NaN, or a number that is too long for Python
        raise InputError(where, str(error), f"must be {kind}", "correct the file, or generate it again") from None
    _check(value, where, kind)
    return value


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word}, which JSON does not allow")


def _too_deep(where: str, kind: str) -> InputError:
    return InputError(where, "nested too deeply", f"must be {kind}", "correct the file")


def _check(root: Any, where: str, kind: str) -> None:
    """Refuse a value that is nested too deeply, and strings with control characters."""
    level = [root]
    for _ in range(DEPTH):
        deeper: list[Any] = []
        for value in level:
            if isinstance(value, Mapping):
                deeper += [*value, *value.values()]
            elif isinstance(value, list):
                deeper += value
            elif isinstance(value, str) and (control := _CONTROL.search(value)):
                what = f"{printable(control[0])} in {value!r}"
                raise InputError(where, what, "must be a printable character", "remove it")
        level = deeper
        if not level:
            return
    raise _too_deep(where, kind)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
