# SPDX-License-Identifier: BSD-3-Clause
"""A kernel that has imported what the explorer's page needs before there is a page (`simlib.explorer.launch`)."""

from __future__ import annotations

import json
import os
import sys

from ipykernel.kernelapp import IPKernelApp

from simlib.explorer import page
from simlib.explorer.drawing import draw
from simlib.explorer.findings import Findings
from simlib.explorer.state import State

__all__ = ["page", "wait"]


def wait() -> None:
    """Draw what nobody sees, wait to be told of a connection, and be its kernel; end if nobody tells any more."""
    # What was compiled is read from its cache, and what was published from its files.
    draw(Findings(State.of("arm64")), None, "first")
    told = sys.stdin.buffer.read()
    if told:
        be_kernel(**json.loads(told))


def be_kernel(connection_file: str, folder: str, environment: dict[str, str]) -> None:
    """Be the kernel of a connection until it is shut down."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), sys.stdin.fileno())
    # ipywidgets found no kernel when it was imported: as an extension it listens to the browser.
    IPKernelApp.launch_instance(argv=["-f", connection_file, "--ext", "ipywidgets"])
