# SPDX-License-Identifier: BSD-3-Clause
"""Boots one cell and reads its console: bounded in time and size, and suspicious of what it reads."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
import time
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

from simlib._lib.errors import InputError, SimlibError
from simlib.lab.build import Built, read_symbols
from simlib.lab.experiment import Cell
from simlib.lab.initramfs import cpio
from simlib.lab.process import run
from simlib.lab.qemu import PROFILE, Qemu, command_line, shown
from simlib.lab.targets import Target
from simlib.vmm.qmp import Monitor

LOG_BYTES = 32 * 2**20
"""Longest console log that is kept; a failed selftest can print every page-table entry."""

CLOCK_RATIO = 1.25
"""With a running clock: furthest that the guest's time may be from the wall's before a run is refused."""

LOOK_S = 0.1
"""Time between two looks whether the boot is still wanted, s."""

_FRAME = re.compile(rb"@simlib (?:(?P<time>start|stop) (?P<seconds>\d+\.\d+)|begin \d+|end \d+ (?P<status>\d+))")
_COUNTER = re.compile(r"\b(?:RIP|PC|pc)[ =]+([0-9a-f]{8,16})\b")
"""A CPU's place in what QEMU says of its registers, on x86, arm64 and riscv."""

_PANIC = re.compile(
    rb"(?:^|\[ *\d+\.\d+\] )"  # at the beginning of what the kernel says: the test may print such words too
    rb"(?:Kernel panic|Oops|BUG: |Internal error|Unable to handle kernel|general protection fault)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class BootOutcome:
    """What a boot gave."""

    outputs: tuple[str, ...]
    """What each line of the experiment printed."""
    digest: str
    """Hash of the outputs: equal for two runs of a deterministic cell."""
    command: str
    """QEMU's command, without this machine's folders."""
    guest_s: float
    """Time that passed inside, s."""
    wall_s: float
    """Time that passed outside, s."""
    functions: tuple[tuple[str, int, int], ...] = ()
    """Of the kernel's functions: name, instructions, times that a turn was given away there; if they were counted."""


def boot(
    cell: Cell,
    target: Target,
    built: Built,
    qemu: Qemu,
    core: int | None = None,
    progress: Callable[[float], None] = lambda seconds: None,
) -> BootOutcome:
    """Run a cell under QEMU.

    Raises `SimlibError` if the guest panics, hangs, floods its console, ends early, fails its test, or keeps another
    time than the wall.

    `core`: core of this host to stay on. `progress`: told the wall time since the start, s, every `LOOK_S`; what it
    raises ends the machine.
    """
    with tempfile.TemporaryDirectory(prefix="simlib-lab-") as folder:
        initramfs, console = Path(folder) / "initramfs.cpio", Path(folder) / "console"
        initramfs.write_bytes(built.initramfs.read_bytes() + cpio({"experiment": cell.script().encode()}))
        command = command_line(qemu, cell, target, built, str(initramfs))
        monitor = Path(folder) / "qmp"
        talking = ["-qmp", f"unix:{monitor},server=on,wait=off"]
        pinned = ["taskset", "-c", str(core)] if core is not None and shutil.which("taskset") else []

        def check(seconds: float) -> None:
            progress(seconds)
            if seconds > cell.experiment.timeout_s or console.stat().st_size > LOG_BYTES:
                raise TimeoutError(_places(monitor, built))

        begun = time.monotonic()
        try:
            with console.open("wb") as stream:
                run([*pinned, *command, *talking], check, LOOK_S, stdout=stream, stderr=subprocess.STDOUT)
            stuck = ""
        except TimeoutError as error:
            stuck = str(error)
        wall = time.monotonic() - begun
        with console.open("rb") as printed:
            log = printed.read(LOG_BYTES)
        outcome = _read(log, stuck, cell, shown(command), wall)
        if cell.experiment.profile:
            counts = initramfs.with_name(PROFILE).read_text("ascii")
            outcome = replace(outcome, functions=read_profile(counts, read_symbols(built)))
    return outcome


def read_profile(text: str, symbols: Sequence[tuple[int, str]]) -> tuple[tuple[str, int, int], ...]:
    """What ``profile.c`` counted: functions with a ten thousandth of all instructions, and those where a CPU gave way.

    - `symbols`: address and name of each function, by address.

    >>> read_profile("f010 70 0\\nf020 30 3\\n400 5 0\\n", [(0xF000, "first"), (0xF020, "second")])
    (('first', 70, 0), ('second', 30, 3))
    """
    found: dict[str, list[int]] = {}
    every = 0
    for line in text.splitlines():
        address, instructions, gave_way = line.split()
        place = bisect(symbols, int(address, 16), key=itemgetter(0)) - 1
        every += int(instructions)
        if place >= 0:
            own = found.setdefault(symbols[place][1], [0, 0])
            own[0], own[1] = own[0] + int(instructions), own[1] + int(gave_way)
    kept = (name for name, own in sorted(found.items()) if 10_000 * own[0] >= every or own[1])
    return tuple((name, found[name][0], found[name][1]) for name in kept)


def _places(monitor: Path, built: Built) -> str:
    """Where each CPU of a machine that does not end is, in words."""
    try:
        with Monitor(str(monitor)) as machine:
            told = machine.ask("human-monitor-command", {"command-line": "info registers -a"})
        symbols = read_symbols(built)
    except (SimlibError, InputError) as error:
        return f"and nobody can say where its CPUs are ({error})"
    addresses = [int(found[1], 16) for found in _COUNTER.finditer(str(told.get("return", "")))]
    found = [bisect(symbols, at, key=itemgetter(0)) - 1 for at in addresses]
    names = [symbols[at][1] if at >= 0 else "code of a user or a guest" for at in found]
    return ", ".join(f"CPU {number} in {name}" for number, name in enumerate(names)) or "and its CPUs say nothing"


def _read(log: bytes, stuck: str, cell: Cell, command: str, wall: float) -> BootOutcome:
    """Take the frames out of the console, or say what went wrong."""
    log = log.replace(b"\r", b"")
    if panic := _PANIC.search(log):  # first: it is why the test failed
        line = log[log.rfind(b"\n", 0, panic.start()) + 1 :].partition(b"\n")[0]
        raise SimlibError(f"{cell.label}: the guest's kernel stopped: {line.decode('utf-8', errors='replace').strip()}")
    outputs, start, stop = _frames(log, cell)
    if len(log) >= LOG_BYTES:
        raise SimlibError(f"{cell.label}: the console was flooded ({LOG_BYTES >> 20} MiB); it ends: {_tail(log)}")
    if start is None or stop is None or len(outputs) != len(cell.script().splitlines()):
        fault = "the machine ended before the experiment did"
        if stuck:
            fault = f"no end after {cell.experiment.timeout_s} s (raise timeout_s if it was slow), {stuck}"
        raise SimlibError(f"{cell.label}: {fault}; its last words: {_tail(log)}")
    guest = stop - start
    if cell.experiment.clock == "multithreaded" and not guest / CLOCK_RATIO <= wall <= (stop + 5.0) * CLOCK_RATIO:
        raise SimlibError(
            f"{cell.label}: {stop:.1f} s passed inside and {wall:.1f} s outside: the guest's clock is wrong, so are "
            "its times; run it again on an idle host, or use the deterministic clock"
        )
    digest = hashlib.sha256("\0".join(outputs).encode()).hexdigest()
    return BootOutcome(tuple(outputs), digest, command, guest, wall)


def _frames(log: bytes, cell: Cell) -> tuple[list[str], float | None, float | None]:
    """Outputs of the experiment's lines, and the guest's times at its start and stop."""
    outputs: list[str] = []
    times: dict[bytes, float] = {}
    current: list[bytes] | None = None
    for line in log.split(b"\n"):
        frame = _FRAME.fullmatch(line)
        if frame is None:
            if current is not None:
                current.append(line)
        elif frame["time"]:
            times[frame["time"]] = float(frame["seconds"])
        elif frame["status"] is None:
            current = []
        elif current is not None:
            text = b"\n".join(current).decode("utf-8", errors="replace").strip("\n")
            if int(frame["status"]):
                raise SimlibError(_failure(cell, len(outputs), int(frame["status"]), text))
            outputs.append(text)
            current = None
    return outputs, times.get(b"start"), times.get(b"stop")


def _failure(cell: Cell, number: int, status: int, text: str) -> str:
    """A line of the experiment that did not do what it should."""
    line = next(iter(cell.script().splitlines()[number:]), "a line too many")
    last = text.splitlines()[-1] if text else "it printed nothing"
    if line.startswith("parameter"):
        return f"{cell.label}: the kernel refused '{line}': {last}; is it a patched kernel, and the value a known one?"
    if status == 4:
        return f"{cell.label}: the test skipped itself: {last}"
    return f"{cell.label}: '{line}' ended with {status}: {last}"


def _tail(log: bytes) -> str:
    """The console's last line that says something."""
    told = (line for line in log.decode("utf-8", errors="replace").splitlines() if line.strip())
    lines = [line for line in told if "terminating on signal" not in line]  # QEMU's own word, when it is ended
    return lines[-1].strip()[:200] if lines else "none: the console stayed empty"
