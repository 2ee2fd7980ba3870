# SPDX-License-Identifier: BSD-3-Clause
"""Cost of CONFIG_KVM_MMU_LOCK_STAT of the patch series for an acquisition of mmu_lock, measured on this machine.

The unmodified ``virt/kvm/mmu_lock_stat.c`` of the patched tree is compiled for userspace, with substitutes for the
kernel primitives that it uses (``mmu_lock_stat/shim.h`` describes them). Two threads on two CPUs take and release
locks, alternately with and without the statistics. A second build records all stores of the accessors by their targets.
The program requires x86-64, a compiler, and the kernel's source package. ``--write`` puts its output into
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
"""Headers of the patched tree that are used; all other headers are empty, because the shim has their content."""

FLAGS = ("-O2", "-std=gnu11", "-mno-sse", "-D_GNU_SOURCE", "-Wall", "-Wno-unused")
"""The kernel's optimisation level, without vector registers, as in the kernel."""

PERIOD = 17
"""``kvm.mmu_lock_stat_period`` of the build in which holds are sampled: a prime, as its documentation advises."""

BUILDS = {
    "whole": ((), ()),
    "sampled": ((f"-DPERIOD={PERIOD}",), ()),
    "without the clock": (("-DWITHOUT_CLOCK",), ()),
    "without the prefetch": (("-DWITHOUT_PREFETCH",), ()),
    "checked": (("-DCHECK_STORES",), ("-fsanitize=thread",)),
}
"""Builds by name: flags of all parts with the statistics, and further flags of the accessors."""

BAR_NS = 15.0
"""Largest accepted additional cost of an acquisition with the statistics, ns."""

LEVEL = 0.95
RESAMPLES = 2000
SEED = 1


def main() -> int:
    """Build the programs, measure, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=31, help="measurements of each case (default: 31)")
    parser.add_argument(
        "--acquisitions", type=int, default=500_000, help="acquisitions of each thread (default: 500000)"
    )
    parser.add_argument("--tree", type=Path, help="a patched kernel tree (default: the lab's)")
    parser.add_argument("--write", action="store_true", help="put the tables into kernel-patches/README.md")
    arguments = parser.parse_args()
    try:
        tree = arguments.tree or lab_tree()
        text, good = measure(tree, Path("build") / "statistics_cost", arguments.repeats, arguments.acquisitions)
    except (InputError, SimlibError) as error:
        print(f"statistics_cost: {error}", file=sys.stderr)
        return 2
    print(text)
    if arguments.write:
        page = PAGE.read_text("utf-8")
        before, _, old_and_after = page.partition(BEGIN)
        after = old_and_after.partition(END)[2]
        write_text(PAGE, f"{before}{BEGIN}\n```\n{text}\n```\n{END}{after}")
    return 0 if good else 1


def lab_tree() -> Path:
    """Return the lab's tree with the current series."""
    with lab_lock(exclusive=True):
        return prepare_source(lab_dir(), read_series(), None, lambda text: print(text, file=sys.stderr)).tree


def measure(tree: Path, folder: Path, repeats: int, acquisitions: int) -> tuple[str, bool]:
    """Run all builds.

    Returns: the text of the results; and True if no shared memory is written and all acquisitions are counted.
    """
    if platform.machine() != "x86_64":
        raise InputError("machine", platform.machine(), "the substitutes are for x86-64", "run it on an x86-64 host")
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        raise InputError("CPUs", len(cpus), "two threads need two", "allow another CPU")
    programs = {name: build(tree, folder, name) for name in BUILDS}
    tables = {
        name: run(program, repeats, acquisitions, cpus) for name, program in programs.items() if name != "checked"
    }
    checked = output(programs["checked"], 1, 10_000, cpus)
    stores = re.search(r"^stores - (\d+) (\d+) (\d+)$", checked, re.MULTILINE)
    assert stores is not None  # the program always prints this line
    own, stack, foreign = map(int, stores.groups())
    complete = all(words[2] == words[3] for words in map(str.split, checked.splitlines()) if words[0] == "counted")
    lines = [
        f"{cpu_model()}, CPUs {cpus[0]} and {cpus[1]}; {repeats} repetitions, {acquisitions} acquisitions per thread.",
        "ns per acquisition and release: median (5th to 95th percentile). 'more': median of the differences within a",
        f"repetition, with its {LEVEL:.0%} interval (bootstrap).",
        "",
        costs(tables["whole"]).to_string(index=False),
        "",
        f"The same with kvm.mmu_lock_stat_period={PERIOD}: all holds are counted, one in {PERIOD} is timed.",
        f"An acquisition should take at most {BAR_NS:g} ns more.",
        "",
        sampled(tables["sampled"]).to_string(index=False),
        "",
        "The parts of the cost, with all holds timed.",
        "",
        parts(tables).to_string(index=False),
        "",
        f"Stores of the accessors: {own} to the CPU's own area, {stack} to the stack, {foreign} elsewhere.",
        "Every acquisition was counted." if complete else "Acquisitions were NOT all counted.",
    ]
    return "\n".join(lines), complete and not foreign


def cpu_model() -> str:
    """Name of the CPU model."""
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
    return model[1] if model else "unknown CPU"


def build(tree: Path, folder: Path, name: str) -> Path:
    """Compile the tree's accessors and the loops that call them."""
    headers = folder / "include"
    shutil.rmtree(headers, ignore_errors=True)
    for header in HEADERS:
        (headers / header).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(tree / "include" / header, headers / header)
    sources = [tree / ACCESSORS, *(headers / header for header in HEADERS)]
    for header in {name for source in sources for name in re.findall(r'#include [<"](\S+)[>"]', source.read_text())}:
        (headers / header).parent.mkdir(parents=True, exist_ok=True)
        (headers / header).touch()
    both, own = BUILDS[name]
    common = (*FLAGS, f"-I{headers}", f"-I{HERE}", "-include", str(HERE / "shim.h"))
    on = (*common, *both, "-DCONFIG_KVM_MMU_LOCK_STAT")
    program = folder / name.replace(" ", "-")
    objects = {part: str(folder / f"{program.name}-{part}.o") for part in ("accessors", "on", "off", "bench")}
    # The copy includes the empty "kvm_mm.h", not that of the tree.
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
    """Run a build, and return its output."""
    command = [str(program.absolute()), str(repeats), str(acquisitions), *map(str, cpus)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def run(program: Path, repeats: int, acquisitions: int, cpus: list[int]) -> pd.DataFrame:
    """Times of a build: case, variant, repetition, ns (mean of the threads)."""
    rows, repetitions = [], dict[tuple[str, str], int]()
    for line in output(program, repeats, acquisitions, cpus).splitlines():
        case, variant, *numbers = line.split()
        if case != "counted":
            repetitions[case, variant] = repetitions.get((case, variant), 0) + 1
            rows.append((case, variant, repetitions[case, variant], np.mean([float(number) for number in numbers])))
    return pd.DataFrame(rows, columns=["case", "variant", "repetition", "ns"])


def spread(values: pd.Series) -> str:
    """Format the median and the percentiles of times."""
    low, middle, high = np.percentile(values, [5, 50, 95])
    return f"{middle:.1f} ({low:.1f}-{high:.1f})"


def difference(table: pd.DataFrame, case: str) -> tuple[float, str]:
    """Median of the differences between "on" and "off", ns, and its text with the interval."""
    wide = table[table["case"] == case].pivot_table(index="repetition", columns="variant", values="ns")
    values = (wide["on"] - wide["off"]).to_numpy()
    drawn = np.random.default_rng(SEED).choice(values, (RESAMPLES, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(np.median(values)), f"{np.median(values):.1f} ({low:.1f}-{high:.1f})"


def costs(table: pd.DataFrame) -> pd.DataFrame:
    """Return the times of each case without and with the statistics."""
    cases = list(dict.fromkeys(table.loc[table["variant"] == "on", "case"]))
    rows = []
    for case in cases:
        of = table[table["case"] == case]
        on, off = (of.loc[of["variant"] == variant, "ns"] for variant in ("on", "off"))
        rows.append((case, spread(off), spread(on), difference(table, case)[1]))
    return pd.DataFrame(rows, columns=["case", "off", "on", "more"])


def sampled(table: pd.DataFrame) -> pd.DataFrame:
    """Compare each case with sampled holds with the bar."""
    rows = []
    for case in dict.fromkeys(table.loc[table["variant"] == "on", "case"]):
        middle, text = difference(table, case)
        rows.append((case, text, "yes" if middle <= BAR_NS else "no"))
    return pd.DataFrame(rows, columns=["case", "more", f"<= {BAR_NS:g}"])


def parts(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Cost of the two clock reads, and the additional cost without them and without the prefetch."""
    whole = tables["whole"]
    rows = []
    for case in dict.fromkeys(whole.loc[whole["variant"] == "on", "case"]):
        clock = whole.loc[whole["case"] == ("clock-alone" if case.endswith("alone") else "clock-two"), "ns"]
        other = difference(tables["without the clock"], case)[1]
        prefetch = difference(tables["without the prefetch"], case)[1]
        rows.append((case, f"{2 * clock.median():.1f}", other, prefetch))
    names = ["case", "two local_clock()", "more without the clock", "more without the prefetch"]
    return pd.DataFrame(rows, columns=names)


if __name__ == "__main__":
    sys.exit(main())
