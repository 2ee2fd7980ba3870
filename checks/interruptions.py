# SPDX-License-Identifier: BSD-3-Clause
"""Send Ctrl-C and SIGTERM to every long command at random moments, and check what remains: ``make interruptions``.

Each command must end within a second with its exit code and one message, and leave no incomplete file, no temporary
file and no process. The moments are reproducible; another number or another seed gives others:
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

from simlib.lab.build import built_dir

ROOT = Path(__file__).parents[1]

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
    """Command with the moments of its interruption: earliest and latest, s after it installed its signal handlers."""

    name: str
    arguments: tuple[object, ...]
    earliest: float
    latest: float
    environment: dict[str, str] = field(default_factory=dict)
    message: str = SENTENCE


def commands(folder: Path) -> list[Command]:
    """Return all long commands, and write their scenarios and a fake lab into a folder."""
    sys.path.append(str(ROOT / "tests" / "lab"))
    from lab_fakes import built, program  # noqa: PLC0415  # its folder is on the path since the line above

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
    Path("/proc/self/comm").write_text("CPU 0/KVM")  # this process takes the name of a vCPU thread for `host watch`
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


def handles_sigterm(process_id: int) -> bool:
    """True if a process has a handler for SIGTERM."""
    try:
        text = Path(f"/proc/{process_id}/status").read_text()
    except OSError:
        return False
    caught_signals = next((line for line in text.splitlines() if line.startswith("SigCgt")), "SigCgt: 0")
    return bool(int(caught_signals.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def marked(mark: str) -> list[str]:
    """Command lines of the processes of a command and of all that it started, by a variable in their environment."""
    command_lines = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            has_variable = f"MOMENT={mark}\0".encode() in path.read_bytes()
            if has_variable and (path.parent / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                command_lines.append((path.parent / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return command_lines


@dataclass
class Moment:
    """Outcome of a signal: times until the signal handlers were installed and until the command ended, s; faults."""

    command: Command
    delay: float
    signal_number: signal.Signals
    startup: float
    duration: float
    faults: list[str]


def interrupt(command: Command, delay: float, signal_number: signal.Signals, folder: Path, index: int) -> Moment | None:
    """Start a command and send it a signal; return None if it ended before."""
    mark, temporary = f"{os.getpid()}-{index}", folder / "tmp"
    temporary.mkdir(exist_ok=True)
    changes = {key: value.format(index) for key, value in command.environment.items()}
    environment = os.environ | {"MOMENT": mark, "TMPDIR": str(temporary)} | changes
    with (folder / "stderr").open("w+") as messages, (folder / "stdout").open("w") as results:
        start_time = time.monotonic()
        process = subprocess.Popen(
            [Path(sys.executable).parent / "python", "-m", "simlib", *map(str, command.arguments)],
            stdin=subprocess.DEVNULL, stdout=results, stderr=messages, env=environment, cwd=ROOT,
        )  # fmt: skip
        while not handles_sigterm(process.pid) and process.poll() is None:
            time.sleep(0.001)
        startup = time.monotonic() - start_time
        time.sleep(delay)
        if process.poll() is not None:
            return None
        sent_time = time.monotonic()
        process.send_signal(signal_number)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        duration = time.monotonic() - sent_time
        while marked(mark) and time.monotonic() - sent_time < LIMIT_S:  # they end once their pipe from the command does
            time.sleep(0.01)
        messages.seek(0)
        text = messages.read()
    faults = [f"process still running: {line}" for line in marked(mark)]
    if duration > LIMIT_S:
        faults.append(f"took {duration:.2f} s")
    if process.returncode != 128 + signal_number:
        faults.append(f"exit code {process.returncode}")
    if "Traceback" in text or command.message not in text.splitlines()[-1:][0][: len(command.message)]:
        faults.append(f"printed {text[-500:]!r}")
    remaining_files = [*temporary.iterdir(), *folder.rglob("*.part"), *folder.rglob("*.tmp.*")]
    faults += [f"file not removed: {path.relative_to(folder)}" for path in remaining_files]
    for path in remaining_files:
        path.rename(folder / f"seen-{index}-{path.name.replace('.part', '').replace('.tmp', '')}")
    return Moment(command, delay, signal_number, startup, duration, faults)


def main(moments: int = 40, seed: int = 1) -> int:
    """Interrupt the commands, print a table of the longest time of each; return the number of moments with a fault."""
    random = np.random.default_rng(seed)
    print(f"{moments} moments, seed {seed}")
    results: list[Moment] = []
    with tempfile.TemporaryDirectory(prefix="interruptions-") as name:
        folder = Path(name)
        all_commands = commands(folder)
        for index in range(moments):
            command = all_commands[index % len(all_commands)]
            signal_number = (signal.SIGINT, signal.SIGTERM)[(index + index // len(all_commands)) % 2]
            delay = float(random.uniform(command.earliest, command.latest))
            while (moment := interrupt(command, delay, signal_number, folder, index)) is None:
                delay /= 2  # the command ended before
            results.append(moment)
            print(f"{command.name:30} {signal_number.name:8} after {delay:6.2f} s: {moment.duration:.2f} s",
                  *moment.faults, flush=True)  # fmt: skip
    print(f"\n{'command':30} {'moments':>7} {'max, s':>9} {'faults':>7}")
    for command in all_commands:
        of_command = [moment for moment in results if moment.command is command]
        if of_command:
            faults = sum(bool(moment.faults) for moment in of_command)
            longest = max(moment.duration for moment in of_command)
            print(f"{command.name:30} {len(of_command):7} {longest:9.2f} {faults:7}")
    faulty = sum(bool(moment.faults) for moment in results)
    startups = sorted(moment.startup for moment in results)
    print(f"{'all':30} {len(results):7} {max(moment.duration for moment in results):9.2f} {faulty:7}")
    print(f"Time until simlib handles signals, in which Python starts: {startups[len(startups) // 2]:.3f} s (median)")
    return faulty


if __name__ == "__main__":
    sys.exit(min(1, main(*map(int, sys.argv[1:]))))
