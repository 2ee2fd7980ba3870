# SPDX-License-Identifier: BSD-3-Clause
"""A QMP server in a thread, which speaks the protocol and says what a test wants."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

GREETING = {"QMP": {"version": {"qemu": {"micro": 1, "minor": 2, "major": 9}, "package": ""}, "capabilities": ["oob"]}}
EVENT = {"timestamp": {"seconds": 1693900460, "microseconds": 1}, "event": "MIGRATION_PASS", "data": {"pass": 4}}
UNKNOWN = {"error": {"class": "CommandNotFound", "desc": "The command has not been found"}}
HANG_UP = "hang up"

Answer = Callable[[str, dict[str, Any]], Any]


@contextlib.contextmanager
def serving(path: Path, answer: Answer) -> Iterator[list[str]]:
    """Serve clients one after another; gives the commands that were asked, in order.

    `answer` gets a command and its arguments, and returns what ``return`` holds, a whole reply (with ``error``),
    `HANG_UP`, or None for silence. An event stands before and behind each reply, and replies come in two pieces.
    """
    asked: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        listening.listen(1)
        thread = threading.Thread(target=_serve, args=(listening, answer, asked), daemon=True)
        thread.start()
        try:
            yield asked
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(10)
            path.unlink()


def _serve(listening: socket.socket, answer: Answer, asked: list[str]) -> None:
    """Until nobody may come any more."""
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        with connection, contextlib.suppress(OSError):
            _say(connection, GREETING)
            for line in connection.makefile("rb"):
                command = json.loads(line)
                asked.append(command["execute"])
                _say(connection, EVENT)
                found = (
                    {} if command["execute"] == "qmp_capabilities" else answer(asked[-1], command.get("arguments", {}))
                )
                if found == HANG_UP:
                    break
                if found is not None:
                    wrapped = found if isinstance(found, dict) and "error" in found else {"return": found}
                    _say(connection, wrapped | {"id": command["id"]})
                _say(connection, EVENT)


def _say(connection: socket.socket, value: Any) -> None:
    data = json.dumps(value).encode() + b"\r\n"
    connection.sendall(data[:9])
    connection.sendall(data[9:])
