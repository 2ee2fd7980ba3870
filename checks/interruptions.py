# SPDX-License-Identifier: BSD-3-Clause
"""Sends Ctrl-C and SIGTERM to every long command at random moments, and sees what is left: ``make interruptions``.

Each must end within a second with its exit code and one sentence, and leave no file half-written, no temporary file
and no process. The same moments each time; another number, or another seed, gives others:
``python checks/interruptions.py 100 7``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "tests" / "lab")]

LIMIT_S = 1.0
SENTENCE = "simlib: interrupted; nothing half-written is left behind"
SCENARIOS = ROOT / "data" / "scenarios"
ARM64, SHADOW, X86 = (SCENARIOS / f"{name}.toml" for name in ("arm64-ampere-altra", "lab-x86-shadow", "x86-160-vcpus"))
LONG = """
[guest]
vcpus = 64
memory_per_vcpu = "8G"
[costs]
fault_unlocked = "700ns"
fault_hold = "600ns"
line_transfer = "50ns"
"""


@dataclass(frozen=True)
class Command:
    """A command, and when it is interrupted: seconds after it began to hear signals."""

    name: str
    words: tuple[object, ...]
    first: float
    last: float
    environment: dict[str, str] = field(default_factory=dict)
    sentence: str = SENTENCE


def commands(folder: Path) -> list[Command]:
    """All long commands, with what they need."""
    from lab_fakes import built, program  # noqa: PLC0415  # once the lab is known to be here

    from simlib.lab.build import built_dir  # noqa: PLC0415

    (folder / "long.toml").write_text(LONG)
    lab = folder / "lab"
    os.environ["SIMLIB_LAB"] = str(lab)
    kernel = built_dir("x86_64", "statistics")
    built(kernel)
    (kernel / "build.json").write_text('{"key": "", "provenance": {}}')
    (folder / "one.toml").write_text('name = "one"\ntarget = "x86_64"\nclock = "multithreaded"\n')
    text = "case $1 in --version) echo 'QEMU emulator version 10.0.2'; exit;; esac; while :; do sleep 0.05; done"
    program(folder / "bin" / "qemu-system-x86_64", text)
    qemu = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    out = folder / "out"
    jupyter = {name: str(folder / "jupyter") for name in
               ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")}  # fmt: skip
    Path("/proc/self/comm").write_text("CPU 0/KVM")  # a process to watch: this one
    watch = ("host", "watch", os.getpid(), "--interval", "0.05", "--out", out / "watch")
    fit = ("calibrate", ARM64, "arm64-dirty-memory-time", "--train", "vcpus <= 8", "--out", out / "fit.json")
    return [
        Command("imports", ("predict", ARM64, "--vcpus", "16,32,48"), 0.0, 0.6),
        Command("first compilation", ("simulate", folder / "long.toml"), 0.6, 14.0,
                {"NUMBA_CACHE_DIR": str(folder / "numba-{}")}),
        Command("first compilation, in a pool", ("predict", ARM64, "--vcpus", "16,32,48"), 0.6, 14.0,
                {"NUMBA_CACHE_DIR": str(folder / "numba-{}")}),
        Command("predict", ("predict", ARM64, "--vcpus", "16,32,48,64"), 0.6, 4.0),
        Command("simulate", ("simulate", folder / "long.toml", "--out", out), 0.3, 8.0),
        Command("simulate, reference", ("simulate", folder / "long.toml", "--engine", "reference"), 0.3, 8.0),
        Command("choose-batch, large guest", ("choose-batch", "--architecture", "arm64", "--vcpus", "256", "--memory",
                                              "1T", "--out", out), 0.3, 10.0),
        Command("choose, 160 vCPUs", ("choose", "--architecture", "arm64", "--guest", "mysql-8g"), 0.3, 10.0),
        Command("choose-batch --all", ("choose-batch", "--all", "--out", out), 0.3, 10.0),
        Command("compare", ("compare", X86, "baseline", "every-64", "every-512", "--variant", "before", "--vcpus",
                            "16,32,64,128"), 0.3, 4.0),
        Command("calibrate", fit, 0.3, 4.0),
        Command("reproduce", ("reproduce", "--out", out), 0.3, 15.0),
        Command("lab costs", ("lab", "costs", "--out", out), 0.2, 2.0),
        Command("lab run", ("lab", "run", folder / "one.toml"), 0.4, 3.0, qemu),
        Command("host watch", watch, 0.2, 4.0),
        Command("explore", ("explore", "--no-browser"), 0.2, 10.0, jupyter, "simlib: "),
    ]  # fmt: skip


def listens(number: int) -> bool:
    """Whether a process has a handler for SIGTERM."""
    try:
        text = Path(f"/proc/{number}/status").read_text()
    except OSError:
        return False
    caught = next((line for line in text.splitlines() if line.startswith("SigCgt")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def marked(mark: str) -> list[str]:
    """Processes with a variable in their environment: a command's own and all it has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            there = f"MOMENT={mark}\0".encode() in path.read_bytes()
            if there and (path.parent / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append((path.parent / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@dataclass
class Moment:
    """What came of one signal."""

    command: Command
    after: float
    number: signal.Signals
    start: float
    took: float
    faults: list[str]


def interrupt(command: Command, after: float, number: signal.Signals, folder: Path, count: int) -> Moment | None:
    """Start a command, send it a signal; None if it had ended by then."""
    mark, temporary = f"{os.getpid()}-{count}", folder / "tmp"
    temporary.mkdir(exist_ok=True)
    changes = {key: value.format(count) for key, value in command.environment.items()}
    environment = os.environ | {"MOMENT": mark, "TMPDIR": str(temporary)} | changes
    with (folder / "stderr").open("w+") as messages, (folder / "stdout").open("w") as results:
        begun = time.monotonic()
        process = subprocess.Popen(
            [Path(sys.executable).parent / "python", "-m", "simlib", *map(str, command.words)],
            stdin=subprocess.DEVNULL, stdout=results, stderr=messages, env=environment, cwd=ROOT,
        )  # fmt: skip
        while not listens(process.pid) and process.poll() is None:
            time.sleep(0.001)
        start = time.monotonic() - begun
        time.sleep(after)
        if process.poll() is not None:
            return None
        sent = time.monotonic()
        process.send_signal(number)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        took = time.monotonic() - sent
        messages.seek(0)
        text = messages.read()
    faults = [f"process left: {line}" for line in marked(mark)]
    if took > LIMIT_S:
        faults.append(f"took {took:.2f} s")
    if process.returncode != 128 + number:
        faults.append(f"exit code {process.returncode}")
    if "Traceback" in text or command.sentence not in text.splitlines()[-1:][0][: len(command.sentence)]:
        faults.append(f"said {text[-500:]!r}")
    left = [*temporary.iterdir(), *folder.rglob("*.part"), *folder.rglob("*.tmp.*")]
    faults += [f"left {path.relative_to(folder)}" for path in left]
    for path in left:
        path.rename(folder / f"seen-{count}-{path.name.replace('.part', '').replace('.tmp', '')}")
    return Moment(command, after, number, start, took, faults)


def main(moments: int = 40, seed: int = 1) -> int:
    """Run all, print a table of the worst of each command; return how many moments had a fault."""
    random = np.random.default_rng(seed)
    print(f"{moments} moments, seed {seed}")
    found: list[Moment] = []
    with tempfile.TemporaryDirectory(prefix="interruptions-") as name:
        folder = Path(name)
        known = commands(folder)
        for count in range(moments):
            command = known[count % len(known)]
            number = (signal.SIGINT, signal.SIGTERM)[(count + count // len(known)) % 2]
            after = float(random.uniform(command.first, command.last))
            while (moment := interrupt(command, after, number, folder, count)) is None:
                after /= 2  # it had ended
            found.append(moment)
            print(f"{command.name:30} {number.name:8} after {after:6.2f} s: {moment.took:.2f} s", *moment.faults,
                  flush=True)  # fmt: skip
    print(f"\n{'command':30} {'moments':>7} {'worst, s':>9} {'faults':>7}")
    for command in known:
        mine = [moment for moment in found if moment.command is command]
        if mine:
            faults = sum(bool(moment.faults) for moment in mine)
            print(f"{command.name:30} {len(mine):7} {max(moment.took for moment in mine):9.2f} {faults:7}")
    bad = sum(bool(moment.faults) for moment in found)
    starts = sorted(moment.start for moment in found)
    print(f"{'all':30} {len(found):7} {max(moment.took for moment in found):9.2f} {bad:7}")
    print(f"Until simlib hears signals, while Python itself starts: {starts[len(starts) // 2]:.3f} s (median)")
    return bad


if __name__ == "__main__":
    sys.exit(min(1, main(*map(int, sys.argv[1:]))))
