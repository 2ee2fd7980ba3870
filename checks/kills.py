# SPDX-License-Identifier: BSD-3-Clause
"""Ends every command that writes by SIGKILL, and sees what stands there: ``make kills``.

Half of the kills come at a random step of the writing (a file that is opened, renamed, removed; a folder that is made),
the others at a random moment. After each, all files of a result must stand there, or none, and each as a run that
nobody disturbs writes it; after the next run that is not killed, nothing else. Into a folder that is there, files are
moved one by one once all are written: kills within are counted by themselves. The same kills each time:
``python checks/kills.py 200``.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import studies.x86.growth  # noqa: F401  # all that commands import, once
from simlib.ui.cli import main as run

ROOT = Path(__file__).parents[1]

SMALL = """
[guest]
vcpus = 2
memory_per_vcpu = "4M"
[costs]
fault_unlocked = "700ns"
fault_hold = "600ns"
line_transfer = "50ns"
clear_page = "30ns"
"""
MIGRATION = (
    SMALL
    + '[workload]\nkind = "migration"\nclear_chunk = "4M"\naccess = "uniform"\nwarm_up = "1ms"\ndowntime = "1us"\n'
)
MOVED = ".simlib.whole"
"""A set that is whole, and of which files are moved to the folder around it."""

AT_WORK = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir")
"""Steps of the writing, as Python's audit hooks call them."""

UNDISTURBED = re.compile(rb"made[^<]*<[^<]*<[^<]*<|\d{4}-\d\d-\d\d( \d\d:\d\d( UTC)?)?")
"""What differs between two runs: their dates."""


@dataclass(frozen=True)
class Command:
    """A command and what it writes: files, and folders whose files belong together."""

    name: str
    words: tuple[object, ...]
    writes: tuple[str, ...]


def commands(folder: Path) -> list[Command]:
    """Commands that write, each way of writing at least once; the lab and a watched guest write as an import does."""
    small, migration = folder / "small.toml", folder / "migration.toml"
    small.write_text(SMALL)
    migration.write_text(MIGRATION)
    scenarios = ROOT / "data" / "scenarios"
    log = ROOT / "tests" / "measurements" / "samples" / "lock_stat.txt"
    return [
        Command(
            "simulate",
            ("simulate", small, "--out", "run", "--trace", "trace.json", "--plot", "run.html"),
            ("run", "trace.json", "run.html"),
        ),
        Command("predict", ("predict", small, "--vcpus", "1,2", "--plot", "predict.html"), ("predict.html",)),
        Command(
            "compare", ("compare", small, "baseline", "every-64", "--vcpus", "1,2", "--plot", "c.html"), ("c.html",)
        ),
        Command(
            "choose",
            ("choose", migration, "--strategy", "baseline", "--strategy", "every-64", "--out", "choice"),
            ("choice",),
        ),
        Command("choose-batch", ("choose-batch", migration, "--out", "new/batch"), ("new/batch",)),
        Command(
            "calibrate",
            (
                "calibrate",
                scenarios / "arm64-ampere-altra.toml",
                "arm64-dirty-memory-time",
                "--train",
                "vcpus <= 8",
                "--out",
                "fit.json",
            ),
            ("fit.json",),
        ),
        Command("data import", ("data", "import", "lock-stat", log, "--out", "mine", "--name", "locks"), ("mine",)),
        Command(
            "data import, again", ("data", "import", "lock-stat", log, "--out", "kept", "--name", "locks"), ("kept",)
        ),
        Command("lab costs", ("lab", "costs", "--out", "fits"), ("fits",)),
        Command(
            "explore --table", ("explore", "--query", "guest.vcpus=4&guest.memory=1G", "--table", "t.csv"), ("t.csv",)
        ),
    ]


def start(command: Command, place: Path, step: int = 0) -> int:
    """Begin a command in a process of its own, which has imported all; at a step of its writing it kills itself."""
    number = os.fork()
    if number:
        return number
    os.setpgid(0, 0)
    os.chdir(place)
    with (place.parent / "said").open("ab") as said, open(os.devnull, "rb") as nothing:
        for theirs, mine in ((nothing, 0), (said, 1), (said, 2)):
            os.dup2(theirs.fileno(), mine)
    if step:
        sys.addaudithook(ending(place, step))
    code: object = 1
    try:
        run([str(word) for word in command.words])
    except SystemExit as end:
        code = end.code
    finally:
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else 0)


def ending(place: Path, step: int) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook that counts the steps of the writing below a place, and ends this process at one of them."""
    count = 0

    def hook(event: str, given: tuple[Any, ...]) -> None:
        nonlocal count
        if event not in AT_WORK or not isinstance(given[0], str | os.PathLike):
            return
        if event == "open" and not (isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        if os.path.join(place, given[0]).startswith(f"{place}/"):
            count += 1
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)

    return hook


def ended(process: int) -> int:
    """Exit code of a process, or the signal that ended it, negative."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def seen(command: Command, place: Path) -> dict[str, bytes]:
    """What stands there of what a command writes, without what differs from run to run."""
    found = {}
    for name in command.writes:
        path = place / name
        files = sorted(path.iterdir()) if path.is_dir() else [path] if path.exists() else []
        hidden = [file for file in files if file.name.startswith(".")]
        for file in files:
            if file not in hidden and file.name != "other.csv":
                found[str(file.relative_to(place))] = UNDISTURBED.sub(b"", file.read_bytes())
    return found


def strays(place: Path) -> list[str]:
    """Files and folders that a run leaves to the next."""
    return [str(path.relative_to(place)) for path in place.rglob("*") if path.name.startswith(".")]


def faults_of(command: Command, whole: dict[str, bytes], now: dict[str, bytes]) -> list[str]:
    """What is there and should not be, or not as it is. Each of the things written stands for itself."""
    found = []
    for name in command.writes:
        mine = {file for file in whole if file == name or file.startswith(f"{name}/")}
        there = {file for file in now if file == name or file.startswith(f"{name}/")}
        if there and there != mine:
            found.append(f"{len(there)} of {len(mine)} files of {name}")
        found += [f"{file} is another" for file in there & mine if now[file] != whole[file]]
    return found


def main(kills: int = 200, *only: str) -> int:
    """Kill so often, all commands or only some, print a line a command; return how many kills had a fault."""
    random, bad, did, moves = Random(1), 0, 0, 0  # noqa: S311  # no secret
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        known, lengths = [one for one in commands(Path(name)) if not only or one.name in only], list[float]()
        for at, command in enumerate(known):
            place = Path(name) / f"place-{at}"
            place.mkdir()
            if command.name.endswith("again"):
                (place / "kept").mkdir()
                (place / "kept" / "other.csv").write_text("mine\n")
            for _ in range(2):  # the first one may compile
                begun = time.monotonic()
                code = ended(start(command, place))
                lengths.append(time.monotonic() - begun)
                assert code == 0, (command.name, code, (Path(name) / "said").read_text()[-2000:])
            del lengths[-2]
            assert seen(command, place), command.name
        speeds = [1 / (0.3 + length) for length in lengths]
        for at, (command, length) in enumerate(zip(known, lengths, strict=True)):
            place = Path(name) / f"place-{at}"
            whole, faults, partial = seen(command, place), list[str](), 0
            mine = max(6, math.ceil((kills - did) * speeds[at] / sum(speeds[at:])))
            steps = 8 + 4 * len(whole)
            for number in range(mine):
                if number % 3 == 0:  # as if it were the first time
                    for path in sorted(place.rglob("*"), reverse=True):
                        if path.name != "other.csv" and (path.is_file() or not list(path.iterdir())):
                            path.unlink() if path.is_file() else path.rmdir()
                step = random.randint(1, steps) if number % 2 else 0
                process = start(command, place, step)
                if not step:
                    time.sleep(random.uniform(0, length))
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
                killed = ended(process) == -signal.SIGKILL
                did += killed
                moving = any(Path(path).name == MOVED for path in strays(place))
                partly = [] if moving else faults_of(command, whole, seen(command, place))
                moves += moving
                partial += bool(strays(place))
                if moving or number % 3 == 2 or number == mine - 1:
                    ended(start(command, place))
                    partly += faults_of(command, whole, seen(command, place))
                    partly += [f"left {path}" for path in strays(place)]
                bad += bool(partly)
                faults += partly
            print(f"{command.name:20} {mine:4} kills, {partial:3} with a part left to the next run, faults: "
                  f"{'; '.join(faults) or 'none'}", flush=True)  # fmt: skip
    print(
        f"{did} kills of {len(known)} commands; {bad} with a partial set, or with a part after the next run; "
        f"{moves} within a move into a folder that was there, which the next run ended"
    )
    return bad


if __name__ == "__main__":
    sys.exit(min(1, main(*map(int, sys.argv[1:2]), *sys.argv[2:])))
