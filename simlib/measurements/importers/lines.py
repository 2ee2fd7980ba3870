# SPDX-License-Identifier: BSD-3-Clause
"""Lines of another tool's log, and the numbers in them.

A log may be hundreds of megabytes long and is therefore read block by block. Its content is never evaluated as code.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, BinaryIO

from simlib._lib.errors import InputError
from simlib._lib.parallel import Progress

LARGEST = 2**53
"""Largest whole number in a measurement file; above it, a float64 cannot represent every integer."""

_BLOCK = 1 << 20
_LONG = 8192  # longest line matched by patterns, whose time grows with the square of its length
_LONGEST = 16 << 20  # a line of the selftest has a number for each millisecond of a run
_HEAD = 64
_CONTROL = re.compile("[\x01-\x08\x0b-\x1f\x7f\x85\u2028\u2029]")
_WHOLE = re.compile(r"\d+", re.ASCII)
_DECIMAL = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_MAGIC = {
    b"\x17\x08\x44tracing": ("a trace.dat of trace-cmd", "print it as text: trace-cmd report -t trace.dat > trace.txt"),
    b"PERFILE2": ("a perf.data", "print it as text: perf lock contention -i perf.data 2> contention.txt"),
    b"\x1f\x8b": ("gzip data", "unpack it: gunzip -c FILE | simlib data import KIND -"),
    b"\xfd7zXZ": ("xz data", "unpack it: xz -dc FILE | simlib data import KIND -"),
    b"\x28\xb5\x2f\xfd": ("zstd data", "unpack it: zstd -dc FILE | simlib data import KIND -"),
    b"\xff\xfe": ("UTF-16 text", "save it as UTF-8"),
    b"\xfe\xff": ("UTF-16 text", "save it as UTF-8"),
}


def any_line(*patterns: re.Pattern[str]) -> Callable[[list[str]], bool]:
    """Return a function that returns True if any of the first lines of a file matches one of the patterns."""
    return lambda head: any(pattern.fullmatch(line) for pattern in patterns for line in head)


class ForeignText(Exception):  # noqa: N818  # not an error yet: the caller recognises the text
    """The text does not have the format that its reader expects; `expected` describes that format."""

    def __init__(self, expected: str) -> None:
        self.expected = expected
        super().__init__(expected)


class Lines:
    """Lines of a log, a binary stream in UTF-8 (invalid bytes become ``\\xNN``), over which one can iterate once.

    `where` is the name of the log in messages, `size` its length in bytes, used for the progress.

    - `number`: number of the latest line, from 1.
    - `head`: the first 64 lines.

    >>> list(Lines.of("a\\nb"))
    Traceback (most recent call last):
    simlib.InputError: text, line 2 = 'b': the last line must end with a newline; without one,
    it may be truncated; save the file again, or add the newline if the line is complete
    """

    def __init__(self, stream: BinaryIO, where: str, size: int | None = None, progress: Progress | None = None) -> None:
        self.where, self.number, self.head = where, 0, list[str]()
        self._stream, self._size, self._progress, self._digest = stream, size, progress, hashlib.sha256()

    @classmethod
    def of(cls, text: str, where: str = "text") -> Lines:
        """Lines of a string in memory."""
        return cls(io.BytesIO(text.encode("utf-8", "backslashreplace")), where)

    @property
    def sha256(self) -> str:
        """SHA-256 of the bytes read so far, in hexadecimal; after the iteration, of the whole file."""
        return self._digest.hexdigest()

    def __iter__(self) -> Iterator[str]:
        tail, done, blank = b"", 0, True
        while block := self._stream.read(_BLOCK):
            self._digest.update(block)
            if done == 0:
                self._refuse_magic(block)
                tail, block = b"", block.removeprefix(b"\xef\xbb\xbf")
            done += len(block)
            self._refuse_binary(tail, block)
            blank = blank and not block.strip()
            complete, newline, incomplete = block.rpartition(b"\n")
            if newline:
                yield from self._lines(tail + complete + newline)
                tail = incomplete
            else:
                tail += block
            if len(tail) > _LONGEST:
                raise self.fault("more than 16 MiB", "a line must be shorter", "is this file text?", self.number + 1)
            if self._progress is not None:
                self._progress(f"reading {self.where}", done / self._size if self._size else 0.0)
        if blank:
            raise InputError(self.where, "empty", "must contain measurements", "save it again")
        if tail.strip():
            rule = "the last line must end with a newline; without one, it may be truncated"
            hint = "save the file again, or add the newline if the line is complete"
            raise self.fault(tail.decode("utf-8", "backslashreplace"), rule, hint, self.number + 1)

    def _lines(self, raw: bytes) -> Iterator[str]:
        """Split a block that ends with a newline into lines."""
        text = raw.decode("utf-8", "backslashreplace").replace("\r\n", "\n")
        if _CONTROL.search(text):
            text = _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
        lines = text.split("\n")
        lines.pop()
        self.head += lines[: _HEAD - len(self.head)]
        for line in lines:
            self.number += 1
            if len(line) > _LONG and not line.startswith("{"):
                raise self.fault(line, f"a line must be shorter than {_LONG} characters", "is this a log?")
            yield line

    def _refuse_magic(self, block: bytes) -> None:
        for magic, (what, hint) in _MAGIC.items():
            if block.startswith(magic):
                raise InputError(self.where, what, "must be text", hint)

    def _refuse_binary(self, tail: bytes, block: bytes) -> None:
        at = block.find(b"\0")
        if at >= 0:
            line = self.number + (tail + block[:at]).count(b"\n") + 1
            raise self.fault("a byte 0", "must be text, not binary", "give the log as text", line)

    def fault(self, value: str, rule: str, hint: str, line: int | None = None) -> InputError:
        """Return an error at a line (by default the latest one), with the value shortened."""
        value = value.strip()
        excerpt = value if len(value) <= 72 else value[:64] + " …"
        return InputError(f"{self.where}, line {self.number if line is None else line}", repr(excerpt), rule, hint)

    def end_fault(self, value: str, rule: str) -> InputError:
        """Return an error for a file that ends too early."""
        return self.fault(value, rule, "the log is truncated: save it again")

    def whole(self, text: str, what: str) -> int:
        """Parse a whole number from 0 to 2^53."""
        if not _WHOLE.fullmatch(text):
            raise self.fault(text, f"{what} must be a whole number", "is the line complete?")
        digits = text.lstrip("0") or "0"
        if len(digits) > 16 or int(digits) > LARGEST:
            raise self.fault(text, f"{what} must be at most 2^53", "is the number right?")
        return int(digits)

    def signed(self, text: str, what: str) -> int:
        """Parse a whole number that may be negative, such as a change."""
        return -self.whole(text[1:], what) if text.startswith("-") else self.whole(text, what)

    def decimal(self, text: str, what: str) -> float:
        """Parse a decimal number from 0 to 2^53."""
        if not _DECIMAL.fullmatch(text):
            raise self.fault(text, f"{what} must be a number", "is the line complete?")
        value = float(text)
        if not math.isfinite(value) or value > LARGEST:
            raise self.fault(text, f"{what} must be at most 2^53", "is the number right?")
        return value

    def json_object(self, text: str) -> dict[str, Any]:
        """Parse a JSON object; refuse numbers that are not finite, and whole numbers beyond 2^53."""
        bounded_int = partial(_bounded, kind=int)
        try:
            item = json.loads(text, parse_constant=_bounded, parse_float=_bounded, parse_int=bounded_int)
            if "\\u" in text:  # half of a surrogate pair is not a character
                json.dumps(item, ensure_ascii=False).encode()
        except json.JSONDecodeError as error:
            hint = "is the line complete? save the log again"
            raise self.fault(text[max(0, error.pos - 20) :], f"must be JSON ({error.msg})", hint) from None
        except (UnicodeEncodeError, RecursionError):
            raise self.fault(text, "must be JSON without unpaired surrogates or deep nesting", "correct it") from None
        except ValueError as error:
            raise self.fault(str(error), "a number must be finite and at most 2^53", "is the number right?") from None
        if not isinstance(item, dict):
            raise self.fault(text, "must be a JSON object", "is this a log of mmu_lock_contention_test?")
        return item

    def text_of(self, item: dict[str, Any], name: str) -> str:
        """Return a string field of a JSON line."""
        value = item.get(name)
        if not isinstance(value, str) or not value or not value.isprintable():
            raise self.fault(str(value), f"{name!r} must be a nonempty string", "is the line complete?")
        return value

    def whole_of(self, item: dict[str, Any], name: str) -> int:
        """Return a count or time field of a JSON line."""
        value = item.get(name)
        if type(value) is not int or value < 0:
            raise self.fault(str(value), f"{name!r} must be a whole number of at least 0", "is the line complete?")
        return value


def _bounded(text: str, kind: type[float] = float) -> float:
    value = kind(text)
    if not abs(value) <= LARGEST:  # NaN is not
        raise ValueError(text)
    return value
