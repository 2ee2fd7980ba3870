# SPDX-License-Identifier: BSD-3-Clause
"""Kill every command that writes files with SIGKILL, and check the files: ``make kills``.

Half of the kills happen at a random step of the writing (a file is opened, renamed, removed; a folder is created), the
others at a random moment. After each kill all files of a result must exist, or none, with the content of an undisturbed
run; after the next complete run there must be nothing else. Files for an existing folder are moved one by one after all
have been written: kills during the moves are counted separately. The kills are reproducible:
``python checks/kills.py 200``.
"""

from __future__ import annotations

import contextlib
import math
import os
import pkgutil
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import simlib
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
COMPLETE_SET = ".simlib.whole"
"""Folder with a complete set of files, which are moved to its parent folder."""

WRITE_EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir")
"""Steps of the writing, by their names in Python's audit hooks."""

DATES = re.compile(rb"made[^<]*<[^<]*<[^<]*<|\d{4}-\d\d-\d\d( \d\d:\d\d( UTC)?)?")
"""Parts that differ between two runs: dates."""


@dataclass(frozen=True)
class Command:
    """Command with the files it writes, and the folders whose files belong together."""

    name: str
    arguments: tuple[object, ...]
    writes: tuple[str, ...]


def commands(folder: Path) -> list[Command]:
    """Commands that cover each way of writing; the lab and a watched guest write like an import."""
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


def import_package() -> None:
    """Import all modules of simlib, so that no kill falls into an import of a command."""
    for module in pkgutil.walk_packages(simlib.__path__, "simlib."):
        if not module.name.endswith("__main__"):
            import_module(module.name)


def start(command: Command, place: Path, step: int = 0) -> int:
    """Start a command in a forked process, which kills itself at a step of its writing; return its process id."""
    number = os.fork()
    if number:
        return number
    os.setpgid(0, 0)
    os.chdir(place)
    with (place.parent / "output").open("ab") as output, open(os.devnull, "rb") as null:
        for stream, descriptor in ((null, 0), (output, 1), (output, 2)):
            os.dup2(stream.fileno(), descriptor)
    if step:
        sys.addaudithook(kill_at_step(place, step))
    code: object = 1
    try:
        run([str(argument) for argument in command.arguments])
    except SystemExit as end:
        code = end.code
    finally:
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else 0)


def kill_at_step(place: Path, step: int) -> Callable[[str, tuple[Any, ...]], None]:
    """Return an audit hook that counts the steps of writing below a folder, and kills this process at one of them."""
    count = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event not in WRITE_EVENTS or not isinstance(arguments[0], str | os.PathLike):
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        if os.path.join(place, arguments[0]).startswith(f"{place}/"):
            count += 1
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)

    return hook


def wait_for_exit(process: int) -> int:
    """Wait for a process; return its exit code, or the negative number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def read_outputs(command: Command, place: Path) -> dict[str, bytes]:
    """Return the files that a command has written, without the parts that differ from run to run."""
    contents = {}
    for name in command.writes:
        path = place / name
        files = sorted(path.iterdir()) if path.is_dir() else [path] if path.exists() else []
        hidden = [file for file in files if file.name.startswith(".")]
        for file in files:
            if file not in hidden and file.name != "other.csv":
                contents[str(file.relative_to(place))] = DATES.sub(b"", file.read_bytes())
    return contents


def temporary_files(place: Path) -> list[str]:
    """List temporary files and folders that a run has left."""
    return [str(path.relative_to(place)) for path in place.rglob("*") if path.name.startswith(".")]


def faults_of(command: Command, complete: dict[str, bytes], current: dict[str, bytes]) -> list[str]:
    """List incomplete or changed results; each entry of `writes` is checked separately."""
    faults = []
    for name in command.writes:
        expected = {file for file in complete if file == name or file.startswith(f"{name}/")}
        present = {file for file in current if file == name or file.startswith(f"{name}/")}
        if present and present != expected:
            faults.append(f"{len(present)} of {len(expected)} files of {name}")
        faults += [f"{file} has changed" for file in present & expected if current[file] != complete[file]]
    return faults


def main(kills: int = 200, *only: str) -> int:
    """Kill commands, by default all, and print a line for each; return the number of kills with a fault."""
    random, faulty, killed_count, moves = Random(1), 0, 0, 0  # noqa: S311  # draws the moments of the kills, which are no secret
    import_package()
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        selected = [command for command in commands(Path(name)) if not only or command.name in only]
        durations = list[float]()
        for at, command in enumerate(selected):
            place = Path(name) / f"place-{at}"
            place.mkdir()
            if command.name.endswith("again"):
                (place / "kept").mkdir()
                (place / "kept" / "other.csv").write_text("mine\n")
            for _ in range(2):  # the first one may compile
                start_time = time.monotonic()
                code = wait_for_exit(start(command, place))
                durations.append(time.monotonic() - start_time)
                assert code == 0, (command.name, code, (Path(name) / "output").read_text()[-2000:])
            del durations[-2]
            assert read_outputs(command, place), command.name
        speeds = [1 / (0.3 + duration) for duration in durations]
        for at, (command, duration) in enumerate(zip(selected, durations, strict=True)):
            place = Path(name) / f"place-{at}"
            complete, faults, partial = read_outputs(command, place), list[str](), 0
            rounds = max(6, math.ceil((kills - killed_count) * speeds[at] / sum(speeds[at:])))
            steps = 8 + 4 * len(complete)
            for number in range(rounds):
                if number % 3 == 0:  # as if it were the first time
                    for path in sorted(place.rglob("*"), reverse=True):
                        if path.name != "other.csv" and (path.is_file() or not list(path.iterdir())):
                            path.unlink() if path.is_file() else path.rmdir()
                step = random.randint(1, steps) if number % 2 else 0
                process = start(command, place, step)
                if not step:
                    time.sleep(random.uniform(0, duration))
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
                killed = wait_for_exit(process) == -signal.SIGKILL
                killed_count += killed
                moving = any(Path(path).name == COMPLETE_SET for path in temporary_files(place))
                current_faults = [] if moving else faults_of(command, complete, read_outputs(command, place))
                moves += moving
                partial += bool(temporary_files(place))
                if moving or number % 3 == 2 or number == rounds - 1:
                    wait_for_exit(start(command, place))
                    current_faults += faults_of(command, complete, read_outputs(command, place))
                    current_faults += [f"left {path}" for path in temporary_files(place)]
                faulty += bool(current_faults)
                faults += current_faults
            print(f"{command.name:20} {rounds:4} kills, {partial:3} with temporary files left, faults: "
                  f"{'; '.join(faults) or 'none'}", flush=True)  # fmt: skip
    print(
        f"{killed_count} kills of {len(selected)} commands; {faulty} with a partial set, or with temporary files after "
        f"the next run; {moves} during a move into an existing folder, which the next run completed"
    )
    return faulty


if __name__ == "__main__":
    sys.exit(min(1, main(*map(int, sys.argv[1:2]), *sys.argv[2:])))
