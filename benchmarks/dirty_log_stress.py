# SPDX-License-Identifier: BSD-3-Clause
"""Run the series' dirty_log_stress_test many times under emulation, and count the runs that report a lost write.

Each boot of the lab's plain x86-64 kernel (``simlib lab build --kernel plain``) does some runs, with shadow paging and
``lockless_write_protect`` on or off. A run harvests in both modes. With a correct kernel no run may report a lost
write; ``--image`` selects another kernel. The test must fail on a kernel without the second dirty mark of 0017; the
next ``simlib lab build`` restores the file::

    sed -i '/smp_mb__before_atomic();/{n;d}' build/lab/source/arch/x86/kvm/mmu/mmu.c
    make -C build/lab/source O=$PWD/build/lab/objects/x86_64-plain CC=x86_64-linux-gnu-gcc bzImage
    .venv/bin/python benchmarks/dirty_log_stress.py --runs 20 --per-boot 1 --seconds 10 \\
        --image build/lab/objects/x86_64-plain/arch/x86/boot/bzImage
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from simlib.lab.build import Built, compile_selftests, cpio, find_built
from simlib.lab.cache import lab_dir, lab_lock
from simlib.lab.experiment import Cell, Experiment
from simlib.lab.process import run
from simlib.lab.qemu import command_line, find_qemu
from simlib.lab.targets import TARGETS

TARGET = TARGETS["x86_64"]
TEST = "x86_64/dirty_log_stress_test"
LOST = re.compile(r"Lost write to page \d+.*?harvest \d+")
DONE = re.compile(r"^(get|clear): (\d+) writes, (\d+) harvests, (\d+) dirty pages, (\d+) late pages", re.MULTILINE)
FAULTS = re.compile(r"Kernel panic|BUG:|WARNING:|Oops")


def main() -> int:
    """Run the test, and print the counts; return 1 if a run lost a write or did not end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--per-boot", type=int, default=20, help="runs of a boot, which ends after the first failure")
    parser.add_argument("--seconds", type=int, default=1, help="duration of each mode of a run, s")
    parser.add_argument("--locked", action="store_true", help="with lockless_write_protect off")
    parser.add_argument("--image", type=Path, help="a kernel to boot instead of the lab's plain one")
    parser.add_argument("options", nargs="*", help="further options of the test, after --")
    arguments = parser.parse_args()
    program = compile_test()
    built = find_built("x86_64", "plain")
    built = replace(built, image=arguments.image or built.image)
    ended, lost, done = 0, list[str](), list[tuple[str, ...]]()
    while ended < arguments.runs:
        runs = min(arguments.per_boot, arguments.runs - ended)
        words = ["run", "/stress", "-t", str(arguments.seconds), *arguments.options]
        lines = [f"parameter lockless_write_protect {'N' if arguments.locked else 'Y'}", *[" ".join(words)] * runs]
        console = boot(built, program, "\n".join(lines) + "\n", 60 + 8 * runs * arguments.seconds)
        if fault := FAULTS.search(console):
            print(console[fault.start() : fault.start() + 2000])
            return 1
        losses = LOST.findall(console)
        finished = len(re.findall(r"^@simlib end [1-9]\d* \d+", console, re.MULTILINE))
        lost += losses
        done += DONE.findall(console)
        ended += finished
        print(f"{ended} runs, {len(lost)} with a lost write {losses[:1] or ''}", file=sys.stderr, flush=True)
        if not finished or (finished < runs and not losses):
            print(f"a boot ended early: {console[-2000:]}")
            return 1
    for mode in ("get", "clear"):
        sums = [sum(int(counts[column]) for counts in done if counts[0] == mode) for column in range(1, 5)]
        print(f"{mode}: {sums[0]} writes, {sums[1]} harvests, {sums[2]} dirty pages, {sums[3]} late pages")
    print(f"{ended} runs, {len(lost)} reported a lost write")
    return 1 if lost else 0


def compile_test() -> bytes:
    """Compile the test, and return the stripped program."""
    out = lab_dir() / "objects" / "x86_64-stress"
    with lab_lock(exclusive=False):
        compile_selftests(TARGET, lab_dir() / "source", [TEST], out)
    subprocess.run([f"{TARGET.compiler}strip", "-o", str(out / "stress"), str(out / TEST)], check=True)
    return (out / "stress").read_bytes()


def boot(built: Built, program: bytes, script: str, timeout_s: float) -> str:
    """Boot with multi-threaded emulation, in which vCPUs race, and return the console's text."""
    cell = Cell(Experiment("stress", TARGET.name, "shadow", "plain", clock="multithreaded", cpus=4), {}, {})
    with tempfile.TemporaryDirectory(prefix="simlib-stress-") as folder:
        initramfs = Path(folder) / "initramfs.cpio"
        more = cpio({"stress": program, "experiment": script.encode()})
        initramfs.write_bytes(built.initramfs.read_bytes() + more)
        command = command_line(find_qemu(TARGET), cell, TARGET, built, str(initramfs))
        try:
            done = run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, progress=Deadline(timeout_s))
        except TimeoutError:
            return f"no end within {timeout_s:.0f} s"
    return done.stdout.decode("utf-8", errors="replace").replace("\r", "")


class Deadline:
    """Time limit of a program."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s

    def __call__(self, seconds: float) -> None:
        if seconds > self.timeout_s:
            raise TimeoutError


if __name__ == "__main__":
    sys.exit(main())
