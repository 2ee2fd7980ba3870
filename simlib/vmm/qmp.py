# SPDX-License-Identifier: BSD-3-Clause
"""QEMU's machine protocol (QMP) over a unix domain socket: one command, one answer.

Greeting, negotiation of capabilities, replies and events follow QEMU's docs/interop/qmp-spec.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from simlib._lib.errors import InputError

TIMEOUT = 5.0
"""Default time limit for connecting and all answers, s."""

MOST_BYTES = 2**24
"""Length of the longest message that is read, bytes: enough for the statistics of thousands of vCPUs."""

_HINT = (
    "a QMP socket serves one client at a time: disconnect the other client (libvirt keeps its socket busy), or "
    "give QEMU another socket (-qmp unix:PATH,server=on,wait=off)"
)


class MonitorError(InputError):
    """QEMU did not answer."""

    lost = False
    """True if the connection is lost; if not, QEMU may still answer the next command."""


class Monitor(AbstractContextManager["Monitor"]):
    """A connection to QEMU, after greeting and negotiation.

    Raises `InputError` if no process answers on the socket, or the answer is not QMP.

    `path`: the socket. `timeout`: total seconds for connecting, greeting, negotiation and all answers, unless `allow`
    sets a new limit.

    `version`: QEMU's version, such as ``"7.2.22"``, empty if the greeting has none. `pid`: process that opened the
    socket for listening, None where the system does not report it. `events`: events between the answers.

    >>> Monitor("/no/such/socket")
    Traceback (most recent call last):
    simlib.InputError: /no/such/socket = No such file or directory: must be a QMP socket that accepts
    connections; check that QEMU is running, and that you have access to its socket
    """

    def __init__(self, path: str, timeout: float = TIMEOUT) -> None:
        self.path, self.timeout, self.version, self.number, self._received = path, timeout, "", 0, b""
        self.events: list[dict[str, Any]] = []
        self.allow(timeout)
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connect()
        except BaseException:
            self.connection.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def allow(self, seconds: float) -> None:
        """Set a new time limit for the total of all answers that follow, s."""
        self.timeout, self._deadline = seconds, time.monotonic() + seconds

    def ask(self, command: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a command and return its answer; preceding events are appended to `events`.

        Returns: An object with ``return`` or ``error``. Raises `MonitorError` if there is no answer in time, or QEMU
        closes the connection. Raises `InputError` if the answer is not QMP.
        """
        self.number += 1
        message_id = f"simlib-{self.number}"
        message = {"execute": command, "id": message_id} | ({"arguments": arguments} if arguments else {})
        # Part of the command may have been sent: later answers could not be matched.
        with self._waiting(command, lost=True):
            self.connection.settimeout(max(0.01, self._deadline - time.monotonic()))
            self.connection.sendall(json.dumps(message).encode() + b"\n")
        while True:
            answer = self._message(command)
            if answer.get("id") == message_id and ("return" in answer or isinstance(answer.get("error"), dict)):
                return answer
            if "event" in answer:
                self.events.append(answer)

    def _connect(self) -> None:
        """Connect, read the greeting, and leave capabilities negotiation mode."""
        self.connection.settimeout(self.timeout)
        try:
            self.connection.connect(self.path)
        except OSError as error:
            rule = "must be a QMP socket that accepts connections"
            hint = "check that QEMU is running, and that you have access to its socket"
            raise InputError(self.path, error.strerror or str(error), rule, hint) from None
        self.pid = _listener(self.connection)
        greeting = self._message("its greeting")
        if "QMP" not in greeting:
            raise InputError(self.path, one_line(greeting), "must send a QMP greeting", "give the QMP socket")
        self.version = _version(greeting["QMP"])
        answer = self.ask("qmp_capabilities")
        if "error" in answer:
            raise InputError(self.path, refusal("qmp_capabilities", answer["error"]), "must accept queries", _HINT)

    def _message(self, awaited: str) -> dict[str, Any]:
        """Return the next object that QEMU sends; each ends with a newline."""
        while True:
            text = self._received.decode("utf-8", errors="surrogateescape").lstrip()
            if text and not text.startswith("{"):
                hint = "give the QMP socket (-qmp unix:PATH,server=on,wait=off), not the human monitor's"
                raise InputError(self.path, one_line(text), "must be a QMP message", hint)
            if b"\n" in self._received:  # a message ends with a newline; parsing each piece would be slow
                try:
                    value, end = json.JSONDecoder().raw_decode(text)
                except (ValueError, RecursionError):  # a line of a message, not the whole message
                    pass
                else:
                    self._received = text[end:].lstrip().encode("utf-8", errors="surrogateescape")
                    return dict(value)
            if len(self._received) > MOST_BYTES:
                raise InputError(self.path, f"more than {MOST_BYTES} bytes", "is too long for a QMP reply")
            self._receive(awaited)

    def _receive(self, awaited: str) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self._silent(awaited, "no answer")
        with self._waiting(awaited):
            self.connection.settimeout(left)
            data = self.connection.recv(65536)
        if not data:
            raise self._silent(awaited, "hung up", lost=True)
        self._received += data

    @contextmanager
    def _waiting(self, awaited: str, lost: bool = False) -> Iterator[None]:
        """Raise `MonitorError` on a timeout or an error; `lost`: True if a timeout loses the connection."""
        try:
            yield
        except TimeoutError:
            raise self._silent(awaited, "no answer", lost) from None
        except OSError as error:
            raise self._silent(awaited, error.strerror or "no answer", lost=True) from None

    def _silent(self, awaited: str, how: str, lost: bool = False) -> MonitorError:
        rule = f"must answer within {self.timeout:g} s; waited for {awaited}"
        error = MonitorError(self.path, how, rule, _HINT)
        error.lost = lost
        return error


def refusal(command: str, error: dict[str, Any]) -> str:
    """Describe a command that QEMU refused.

    >>> refusal("query-stats", {"class": "CommandNotFound", "desc": "The command query-stats has not been found"})
    'QEMU refused query-stats: The command query-stats has not been found'
    """
    return f"QEMU refused {command or 'a query'}: {one_line(error.get('desc', error.get('class')), 200)}"


def one_line(value: Any, most: int = 60) -> str:
    """First line of an untrusted string, without control characters.

    >>> one_line(" QEMU\\x1b[1m\\r\\nmonitor"), one_line({"a": [1]})
    ('QEMU [1m', "{'a': [1]}")
    """
    first = next(iter(str(value).strip().splitlines()), "")
    return "".join(letter if letter.isprintable() else " " for letter in first).strip()[:most]


def _version(greeting: Any) -> str:
    try:
        numbers = greeting["version"]["qemu"]
        return ".".join(str(int(numbers[part])) for part in ("major", "minor", "micro"))
    except (KeyError, TypeError, ValueError):
        return ""


def _listener(connection: socket.socket) -> int | None:
    """ID of the process that called ``listen`` on the other side (``SO_PEERCRED`` in unix(7)); None if unknown."""
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except (AttributeError, OSError):
        return None
    return struct.unpack("3i", raw)[0] or None
