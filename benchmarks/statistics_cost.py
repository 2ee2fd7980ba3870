# SPDX-License-Identifier: BSD-3-Clause
"""What CONFIG_KVM_MMU_LOCK_STAT of the patch series adds to an acquisition of mmu_lock, measured on this machine.

``virt/kvm/mmu_lock_stat.c`` of the patched tree, as it is, is compiled for userspace with a thin stand-in for the
kernel primitives that it uses (``mmu_lock_stat/shim.h`` says what each is). Two threads on two CPUs take and release
locks, with the statistics and without in turns. A second build, in which every store of the accessors is seen, shows
where they write. Needs x86-64, a compiler, and the kernel's source package. ``--write`` puts what it prints into
kernel-patches/README.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from simlib._lib.errors import InputError, SimlibError
from simlib._lib.files import write_text
from simlib.lab.cache import lab_dir, lab_lock
from simlib.lab.patches import read_series
from simlib.lab.source import prepare_source

HERE = Path(__file__).parent / "mmu_lock_stat"
PAGE = Path(__file__).parents[1] / "kernel-patches" / "README.md"
BEGIN, END = "<!-- statistics cost: begin -->", "<!-- statistics cost: end -->"
ACCESSORS = "virt/kvm/mmu_lock_stat.c"
HEADERS = ("linux/kvm_types.h", "linux/kvm_mmu_lock.h")
"""Of the patched tree; every other header is empty, its content is in the shim."""

FLAGS = ("-O2", "-std=gnu11", "-mno-sse", "-D_GNU_SOURCE", "-Wall", "-Wno-unused")
"""The kernel's own optimisation; like the kernel, without vector registers."""

PERIOD = 17
"""``kvm.mmu_lock_stat_period`` of the build in which holds are sampled: a prime, as its documentation advises."""

BUILDS = {
    "whole": ((), ()),
    "sampled": ((f"-DPERIOD={PERIOD}",), ()),
    "without the clock": (("-DWITHOUT_CLOCK",), ()),
    "without the prefetch": (("-DWITHOUT_PREFETCH",), ()),
    "checked": (("-DCHECK_STORES",), ("-fsanitize=thread",)),
}
"""Builds by name: flags of everything that has the statistics, and of the accessors alone."""

BAR_NS = 15.0
"""What an acquisition may cost more with the statistics, ns."""

LEVEL = 0.95
RESAMPLES = 2000
SEED = 1


def main() -> int:
    """Build, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=31, help="how often each case is measured (default: 31)")
    parser.add_argument("--acquisitions", type=int, default=500_000, help="of each thread (default: 500000)")
    parser.add_argument("--tree", type=Path, help="a patched kernel tree (default: the lab's)")
    parser.add_argument("--write", action="store_true", help="put the tables into kernel-patches/README.md")
    given = parser.parse_args()
    try:
        tree = given.tree or lab_tree()
        text, good = measure(tree, Path("build") / "statistics_cost", given.repeats, given.acquisitions)
    except (InputError, SimlibError) as error:
        print(f"statistics_cost: {error}", file=sys.stderr)
        return 2
    print(text)
    if given.write:
        page = PAGE.read_text("utf-8")
        before, _, rest = page.partition(BEGIN)
        after = rest.partition(END)[2]
        write_text(PAGE, f"{before}{BEGIN}\n```\n{text}\n```\n{END}{after}")
    return 0 if good else 1


def lab_tree() -> Path:
    """The lab's tree, with the series as it is now."""
    with lab_lock(exclusive=True):
        return prepare_source(lab_dir(), read_series(), None, lambda text: print(text, file=sys.stderr)).tree


def measure(tree: Path, folder: Path, repeats: int, acquisitions: int) -> tuple[str, bool]:
    """Run all builds; what came out, and whether nothing shared is written and all is counted."""
    if platform.machine() != "x86_64":
        raise InputError("machine", platform.machine(), "the stand-ins are x86-64's", "run it on an x86-64 host")
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        raise InputError("CPUs", len(cpus), "two threads need two", "allow another CPU")
    programs = {name: build(tree, folder, name) for name in BUILDS}
    tables = {
        name: run(program, repeats, acquisitions, cpus) for name, program in programs.items() if name != "checked"
    }
    checked = output(programs["checked"], 1, 10_000, cpus)
    found = re.search(r"^stores - (\d+) (\d+) (\d+)$", checked, re.MULTILINE)
    assert found is not None  # the program always prints it
    own, stack, foreign = map(int, found.groups())
    right = all(words[2] == words[3] for words in map(str.split, checked.splitlines()) if words[0] == "counted")
    lines = [
        f"{cpu_model()}, CPUs {cpus[0]} and {cpus[1]}; {repeats} repetitions of {acquisitions} acquisitions a thread.",
        "ns an acquisition and release: median (5th to 95th percentile). 'more': median of the differences within a",
        f"repetition, with its {LEVEL:.0%} interval (bootstrap).",
        "",
        costs(tables["whole"]).to_string(index=False),
        "",
        f"The same with kvm.mmu_lock_stat_period={PERIOD}: all holds are counted, one of {PERIOD} is timed.",
        f"An acquisition should take at most {BAR_NS:g} ns more.",
        "",
        sampled(tables["sampled"]).to_string(index=False),
        "",
        "The parts, all holds timed.",
        "",
        parts(tables).to_string(index=False),
        "",
        f"Stores of the accessors: {own} to the CPU's own area, {stack} to the stack, {foreign} elsewhere.",
        "Every acquisition was counted." if right else "Acquisitions were NOT all counted.",
    ]
    return "\n".join(lines), right and not foreign


def cpu_model() -> str:
    """What the CPU calls itself."""
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
    return found[1] if found else "unknown CPU"


def build(tree: Path, folder: Path, name: str) -> Path:
    """Compile the tree's accessors and the loops around them."""
    headers = folder / "include"
    shutil.rmtree(headers, ignore_errors=True)
    for header in HEADERS:
        (headers / header).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(tree / "include" / header, headers / header)
    sources = [tree / ACCESSORS, *(headers / header for header in HEADERS)]
    for header in {found for source in sources for found in re.findall(r'#include [<"](\S+)[>"]', source.read_text())}:
        (headers / header).parent.mkdir(parents=True, exist_ok=True)
        (headers / header).touch()
    both, own = BUILDS[name]
    common = (*FLAGS, f"-I{headers}", f"-I{HERE}", "-include", str(HERE / "shim.h"))
    on = (*common, *both, "-DCONFIG_KVM_MMU_LOCK_STAT")
    program = folder / name.replace(" ", "-")
    objects = {part: str(folder / f"{program.name}-{part}.o") for part in ("accessors", "on", "off", "bench")}
    # Copied, so that "kvm_mm.h" is the empty one and not its neighbour in the tree.
    copied = shutil.copyfile(tree / ACCESSORS, folder / "mmu_lock_stat.c")
    compile_c(*on, *own, "-c", str(copied), "-o", objects["accessors"])
    compile_c(*on, "-DLOOPS=loops_on", "-c", str(HERE / "loops.c"), "-o", objects["on"])
    compile_c(*common, "-DLOOPS=loops_off", "-c", str(HERE / "loops.c"), "-o", objects["off"])
    sse = [word for word in on if word != "-mno-sse"]
    compile_c(*sse, "-c", str(HERE / "bench.c"), "-o", objects["bench"])
    compile_c(*objects.values(), "-pthread", "-o", str(program))
    return program


def compile_c(*arguments: str) -> None:
    """Run the compiler."""
    done = subprocess.run(["gcc", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SimlibError(f"gcc: {done.stderr.strip().splitlines()[0]}")


def output(program: Path, repeats: int, acquisitions: int, cpus: list[int]) -> str:
    """What a build prints."""
    command = [str(program.absolute()), str(repeats), str(acquisitions), *map(str, cpus)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def run(program: Path, repeats: int, acquisitions: int, cpus: list[int]) -> pd.DataFrame:
    """Times of a build: case, variant, repetition, ns (mean of the threads)."""
    rows, seen = [], dict[tuple[str, str], int]()
    for line in output(program, repeats, acquisitions, cpus).splitlines():
        case, variant, *numbers = line.split()
        if case != "counted":
            seen[case, variant] = seen.get((case, variant), 0) + 1
            rows.append((case, variant, seen[case, variant], np.mean([float(number) for number in numbers])))
    return pd.DataFrame(rows, columns=["case", "variant", "repetition", "ns"])


def spread(values: pd.Series) -> str:
    """Median and percentiles of times."""
    low, middle, high = np.percentile(values, [5, 50, 95])
    return f"{middle:.1f} ({low:.1f}-{high:.1f})"


def difference(table: pd.DataFrame, case: str) -> tuple[float, str]:
    """How much more "on" takes, ns: the median of the differences, with its interval."""
    wide = table[table["case"] == case].pivot_table(index="repetition", columns="variant", values="ns")
    values = (wide["on"] - wide["off"]).to_numpy()
    drawn = np.random.default_rng(SEED).choice(values, (RESAMPLES, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(np.median(values)), f"{np.median(values):.1f} ({low:.1f}-{high:.1f})"


def costs(table: pd.DataFrame) -> pd.DataFrame:
    """Each case with the statistics and without."""
    cases = list(dict.fromkeys(table.loc[table["variant"] == "on", "case"]))
    rows = []
    for case in cases:
        of = table[table["case"] == case]
        on, off = (of.loc[of["variant"] == variant, "ns"] for variant in ("on", "off"))
        rows.append((case, spread(off), spread(on), difference(table, case)[1]))
    return pd.DataFrame(rows, columns=["case", "off", "on", "more"])


def sampled(table: pd.DataFrame) -> pd.DataFrame:
    """Each case with sampled holds, against the bar."""
    rows = []
    for case in dict.fromkeys(table.loc[table["variant"] == "on", "case"]):
        middle, shown = difference(table, case)
        rows.append((case, shown, "yes" if middle <= BAR_NS else "no"))
    return pd.DataFrame(rows, columns=["case", "more", f"<= {BAR_NS:g}"])


def parts(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """What the two clock reads cost, the rest without them, and the prefetch."""
    whole = tables["whole"]
    rows = []
    for case in dict.fromkeys(whole.loc[whole["variant"] == "on", "case"]):
        clock = whole.loc[whole["case"] == ("clock-alone" if case.endswith("alone") else "clock-two"), "ns"]
        rest = difference(tables["without the clock"], case)[1]
        prefetch = difference(tables["without the prefetch"], case)[1]
        rows.append((case, f"{2 * clock.median():.1f}", rest, prefetch))
    names = ["case", "two local_clock()", "more without the clock", "more without the prefetch"]
    return pd.DataFrame(rows, columns=names)


if __name__ == "__main__":
    sys.exit(main())
