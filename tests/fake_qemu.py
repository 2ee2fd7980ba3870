# SPDX-License-Identifier: BSD-3-Clause
"""A QMP server in a thread, which gives the answers that a test defines."""

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
    """Serve clients one after another; yield the list of received commands, in order.

    `answer` gets a command and its arguments, and returns the value of ``return``, a whole reply (with ``error``),
    `HANG_UP`, or None for no reply. An event precedes and follows each reply, and replies are sent in two pieces.
    """
    commands: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        listening.listen(1)
        thread = threading.Thread(target=_serve, args=(listening, answer, commands), daemon=True)
        thread.start()
        try:
            yield commands
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(10)
            path.unlink()


def _serve(listening: socket.socket, answer: Answer, commands: list[str]) -> None:
    """Serve until the socket is shut down."""
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        with connection, contextlib.suppress(OSError):
            _send(connection, GREETING)
            for line in connection.makefile("rb"):
                command = json.loads(line)
                commands.append(command["execute"])
                _send(connection, EVENT)
                reply = {} if commands[-1] == "qmp_capabilities" else answer(commands[-1], command.get("arguments", {}))
                if reply == HANG_UP:
                    break
                if reply is not None:
                    wrapped = reply if isinstance(reply, dict) and "error" in reply else {"return": reply}
                    _send(connection, wrapped | {"id": command["id"]})
                _send(connection, EVENT)


def _send(connection: socket.socket, value: Any) -> None:
    data = json.dumps(value).encode() + b"\r\n"
    connection.sendall(data[:9])
    connection.sendall(data[9:])
