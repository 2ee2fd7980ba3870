# SPDX-License-Identifier: BSD-3-Clause
"""Boot a cell under QEMU, with limits on wall time and console size, and parse its console."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from simlib._lib.errors import InputError, SimlibError
from simlib.lab.build import Built, cpio, function_at, read_symbols
from simlib.lab.experiment import Cell
from simlib.lab.process import TimeReport, run, silent
from simlib.lab.qemu import PROFILE, Qemu, command_line, portable_command
from simlib.lab.targets import Target
from simlib.vmm.qmp import Monitor

LOG_BYTES = 32 * 2**20
"""Maximum size of a console log, bytes; a failed selftest can print every page-table entry."""

CLOCK_RATIO = 1.25
"""Maximum ratio of guest time to wall time, and of wall time to guest time, with the multithreaded clock."""

POLL_S = 0.1
"""Time between two checks for a timeout or an interruption, s."""

_FRAME = re.compile(rb"@simlib (?:(?P<time>start|stop) (?P<seconds>\d+\.\d+)|begin \d+|end \d+ (?P<status>\d+))")
_COUNTER = re.compile(r"\b(?:RIP|PC|pc)[ =]+([0-9a-f]{8,16})\b")
"""A CPU's program counter in the output of QEMU's ``info registers``, on x86, arm64 and RISC-V."""

_PANIC = re.compile(
    rb"(?:^|\[ *\d+\.\d+\] )"  # only at the beginning of a kernel message: the test may print such words too
    rb"(?:Kernel panic|Oops|BUG: |Internal error|Unable to handle kernel|general protection fault)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class BootOutcome:
    """Outputs of a boot's script lines, hash of the outputs, QEMU's command without this host's folders, and times, s.

    `functions`: name, instructions and yielded turns of each kernel function; empty without a profile.
    """

    outputs: tuple[str, ...]
    digest: str
    command: str
    guest_s: float
    wall_s: float
    functions: tuple[tuple[str, int, int], ...] = ()


def boot(
    cell: Cell, target: Target, built: Built, qemu: Qemu, core: int | None = None, progress: TimeReport = silent
) -> BootOutcome:
    """Run a cell under QEMU.

    Raises `SimlibError` if the guest panics, hangs, floods its console, ends early or fails its test, or if its clock
    disagrees with the wall clock.

    `core`: core of this host to pin QEMU to. `progress`: called every `POLL_S`.
    """
    with tempfile.TemporaryDirectory(prefix="simlib-lab-") as folder:
        initramfs, console = Path(folder) / "initramfs.cpio", Path(folder) / "console"
        initramfs.write_bytes(built.initramfs.read_bytes() + cpio({"experiment": cell.script().encode()}))
        command = command_line(qemu, cell, target, built, str(initramfs))
        monitor = Path(folder) / "qmp"
        qmp_options = ["-qmp", f"unix:{monitor},server=on,wait=off"]
        taskset = ["taskset", "-c", str(core)] if core is not None and shutil.which("taskset") else []

        def check(seconds: float) -> None:
            progress(seconds)
            if seconds > cell.experiment.timeout_s or console.stat().st_size > LOG_BYTES:
                raise TimeoutError(_cpu_locations(monitor, built))

        start = time.monotonic()
        try:
            with console.open("wb") as stream:
                run([*taskset, *command, *qmp_options], check, POLL_S, stdout=stream, stderr=subprocess.STDOUT)
            timeout = ""
        except TimeoutError as error:
            timeout = str(error)
        wall_s = time.monotonic() - start
        with console.open("rb") as output:
            log = output.read(LOG_BYTES)
        outcome = _parse_console(log, timeout, cell, portable_command(command), wall_s)
        if cell.experiment.profile:
            counts = initramfs.with_name(PROFILE).read_text("ascii")
            outcome = replace(outcome, functions=read_profile(counts, read_symbols(built)))
    return outcome


def read_profile(text: str, symbols: Sequence[tuple[int, str]]) -> tuple[tuple[str, int, int], ...]:
    """Read the counts of ``profile.c`` for functions with at least 1/10,000 of all instructions, or at least one yield.

    - `symbols`: address and name of each function, sorted by address.

    >>> read_profile("f010 70 0\\nf020 30 3\\n400 5 0\\n", [(0xF000, "first"), (0xF020, "second")])
    (('first', 70, 0), ('second', 30, 3))
    """
    instructions, yields = Counter[str](), Counter[str]()
    for line in text.splitlines():
        address, executed, yielded = line.split()
        name = function_at(symbols, int(address, 16))
        instructions[name] += int(executed)
        yields[name] += int(yielded)
    total = instructions.total()
    counts = ((name, count, yields[name]) for name, count in sorted(instructions.items()) if name)
    return tuple((name, count, turns) for name, count, turns in counts if 10_000 * count >= total or turns)


def _cpu_locations(monitor: Path, built: Built) -> str:
    """Name the function that each CPU executes, for a guest that exceeded its time limit."""
    try:
        with Monitor(str(monitor)) as machine:
            reply = machine.ask("human-monitor-command", {"command-line": "info registers -a"})
        symbols = read_symbols(built)
    except (SimlibError, InputError) as error:
        return f"the CPUs' registers cannot be read ({error})"
    addresses = (int(match[1], 16) for match in _COUNTER.finditer(str(reply.get("return", ""))))
    names = (function_at(symbols, address) or "user or guest code" for address in addresses)
    return ", ".join(f"CPU {number} in {name}" for number, name in enumerate(names)) or "QEMU lists no CPU"


def _parse_console(log: bytes, timeout: str, cell: Cell, command: str, wall_s: float) -> BootOutcome:
    """Parse the tests' output in a console log; `timeout`: state of the CPUs, or empty if the guest ended in time."""
    log = log.replace(b"\r", b"")
    if panic := _PANIC.search(log):  # first: a panic is why the test failed
        line = log[log.rfind(b"\n", 0, panic.start()) + 1 :].partition(b"\n")[0]
        raise SimlibError(f"{cell.label}: the guest kernel crashed: {line.decode('utf-8', errors='replace').strip()}")
    outputs, start, stop = _frames(log, cell)
    if len(log) >= LOG_BYTES:
        raise SimlibError(f"{cell.label}: the console log exceeds {LOG_BYTES >> 20} MiB; its last line: {_tail(log)}")
    if start is None or stop is None or len(outputs) != len(cell.script().splitlines()):
        fault = "QEMU exited before the experiment ended"
        if timeout:
            fault = f"timed out after {cell.experiment.timeout_s} s (raise timeout_s if the host is slow): {timeout}"
        raise SimlibError(f"{cell.label}: {fault}; last line of the console: {_tail(log)}")
    guest_s = stop - start
    if cell.experiment.clock == "multithreaded" and not guest_s / CLOCK_RATIO <= wall_s <= (stop + 5.0) * CLOCK_RATIO:
        raise SimlibError(
            f"{cell.label}: {stop:.1f} s passed on the guest's clock and {wall_s:.1f} s on the wall clock: the guest's "
            "times are wrong; run the cell again on an idle host, or use the deterministic clock"
        )
    digest = hashlib.sha256("\0".join(outputs).encode()).hexdigest()
    return BootOutcome(tuple(outputs), digest, command, guest_s, wall_s)


def _frames(log: bytes, cell: Cell) -> tuple[list[str], float | None, float | None]:
    """Extract the output of each script line, and the time of the guest's clock at the start and at the end."""
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
    line = next(iter(cell.script().splitlines()[number:]), "an unexpected line")
    last = text.splitlines()[-1] if text else "it printed nothing"
    if line.startswith("parameter"):
        return f"{cell.label}: the kernel refused '{line}': {last}; check the value, and that the kernel is patched"
    if status == 4:
        return f"{cell.label}: the test was skipped: {last}"
    return f"{cell.label}: '{line}' exited with status {status}: {last}"


def _tail(log: bytes) -> str:
    """Last line of the console that is neither blank nor QEMU's own message about a signal."""
    lines = (line.strip() for line in log.decode("utf-8", errors="replace").splitlines())
    messages = [line for line in lines if line and "terminating on signal" not in line]
    return messages[-1][:200] if messages else "(the console is empty)"
