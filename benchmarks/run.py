# SPDX-License-Identifier: BSD-3-Clause
"""Speed of simlib, compared with its limits (bars): `make bench`.

Programs to compare run alternately (A B C A B C …), and a ratio is computed within a round, so that other load on the
machine affects both sides. The median over the rounds must meet the bar. `docs/performance.md` explains the numbers.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import timed_commands
from loops import (
    HOLD,
    HOLD_PS,
    OTHERS,
    THINK_PS,
    THREADS,
    Sample,
    exact_throughput,
    lock_loop,
    run_compiled,
    small_scenario,
    tiny_scenario,
)

import simlib
from simlib.analysis.simulate import simulate
from simlib.model.job import Job
from simlib.simulator.engine import compiled, reference
from simlib.simulator.engine.result import EngineResult
from simlib.simulator.workloads.dirty_log_perf_test import build

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "performance.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
PACKAGES = ("numpy", "numba", "llvmlite", "simpy", "salabim", "ciw")
TOLERANCE = 0.05
"""Largest relative difference from the exact utilisation of a simulator that simulates the same loop."""


@dataclass(frozen=True)
class Size:
    """Sizes and repetitions of the measurements."""

    loop: int
    others: int
    reference_loop: int
    rounds: int
    loop_rounds: int
    point_rounds: int
    memory_per_vcpu: str
    calls: int
    command_rounds: int


FULL = Size(
    1_000_000,
    20_000,
    64_000,
    rounds=5,
    loop_rounds=21,
    point_rounds=3,
    memory_per_vcpu="2G",
    calls=200,
    command_rounds=2,
)
QUICK = Size(
    128_000, 6_400, 6_400, rounds=2, loop_rounds=3, point_rounds=1, memory_per_vcpu="8M", calls=20, command_rounds=1
)


@dataclass(frozen=True)
class Row:
    """Row of the table.

    - `values`: values of the rounds; none if the quantity could not be measured, for the reason in `note`.
    - `limit`: the bar, if there is one; a row without values does not meet it.
    """

    name: str
    unit: str
    values: tuple[float, ...] = ()
    limit: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """True if the bar is met; None without a bar."""
        if self.limit is None:
            return None
        if not self.values:
            return False
        return median(self.values) <= self.limit

    def as_json(self) -> dict[str, Any]:
        """Return the row with its median and range."""
        content = {**asdict(self), "met": self.met}
        if self.values:
            content |= {"median": median(self.values), "min": min(self.values), "max": max(self.values)}
        return content

    def cells(self, judged: bool) -> tuple[str, ...]:
        """Return the cells of the row as text."""
        middle, spread = "not measured", ""
        if self.values:
            middle = f"{number(median(self.values))} {self.unit}"
            if len(self.values) > 1:
                spread = f"{number(min(self.values))}–{number(max(self.values))}"
        bar = "" if self.limit is None else f"≤ {number(self.limit)} {self.unit}"
        verdict = "" if self.met is None else "not judged" if not judged else "met" if self.met else "MISSED"
        return self.name, middle, spread, bar, verdict


def number(value: float) -> str:
    """Format a number with three digits, or a large one as an integer with separated thousands."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def log(text: str) -> None:
    """Print a message on the error stream."""
    print(text, file=sys.stderr, flush=True)


def run_alternately(programs: Mapping[str, Callable[[], Any]], rounds: int, warm_up: int = 1) -> dict[str, list[Any]]:
    """Run all programs one after another, in `rounds` rounds after `warm_up` rounds that are not counted."""
    samples: dict[str, list[Any]] = {name: [] for name in programs}
    for index in range(warm_up + rounds):
        for name, run in programs.items():
            gc.collect()
            sample = run()
            if index >= warm_up:
                samples[name].append(sample)
    return samples


def ratios(numerators: list[float], denominators: list[float]) -> tuple[float, ...]:
    """Return the ratio of each round."""
    return tuple(a / b for a, b in zip(numerators, denominators, strict=True))


def child(*arguments: str, **environment: str) -> dict[str, Any]:
    """Run `child.py` in a separate process, and return its measurements."""
    command = [sys.executable, str(HERE / "child.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout)


# -- 1: the lock loop against plain C ------------------------------------------------------------------------


def build_c(folder: Path, *flags: str) -> Path | None:
    """Compile `lock_loop.c` with -O2; return None without a compiler."""
    compiler = c_compiler()
    if compiler is None:
        return None
    program = folder / f"lock_loop{''.join(flags)}"
    source = HERE / "lock_loop.c"
    command = [compiler, "-O2", "-Wall", "-Wextra", *flags, "-o", str(program), str(source), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return program


def c_compiler() -> str | None:
    """Path of a C compiler: gcc, otherwise cc."""
    return shutil.which("gcc") or shutil.which("cc")


def run_c(program: Path, acquisitions: int) -> Sample:
    """Run the lock loop in C, which measures its own time."""
    arguments = [str(n) for n in (THREADS, acquisitions, THINK_PS, HOLD_PS)]
    output = json.loads(subprocess.run([program, *arguments], capture_output=True, text=True, check=True).stdout)
    return Sample(output["seconds"], output["acquisitions"], output["utilisation"])


def compare_with_c(size: Size) -> list[Row]:
    """Compare the compiled engine with the C program on the same lock loop."""
    log(f"Lock loop, {size.loop:,} acquisitions: C and the compiled engine.")
    name = "lock loop: compiled engine / C -O2, time"
    with tempfile.TemporaryDirectory() as folder:
        program, tree = build_c(Path(folder)), build_c(Path(folder), "-DWINNER_TREE")
        if program is None or tree is None:
            note = "No C compiler (gcc or cc) is on the path; install a compiler to compare with plain C."
            log(note)
            return [Row(name, "×", limit=1.0, note=note)]
        job = lock_loop(size.loop)
        samples = run_alternately(
            {
                "C": lambda: run_c(program, size.loop),
                "simlib": lambda: run_compiled(job),
                "C, winner tree": lambda: run_c(tree, size.loop),
            },
            size.loop_rounds,
        )
    check_same_loop(samples)
    seconds = {name: [sample.seconds for sample in runs] for name, runs in samples.items()}
    return [
        Row(name, "×", ratios(seconds["simlib"], seconds["C"]), 1.0),
        Row("  compiled engine", "s", tuple(seconds["simlib"])),
        Row("  C", "s", tuple(seconds["C"])),
        Row(
            "  compiled engine / C with simlib's calendar",
            "×",
            ratios(seconds["simlib"], seconds["C, winner tree"]),
            1.2,
        ),
    ]


def check_same_loop(samples: Mapping[str, list[Sample]]) -> None:
    """Exit if the utilisation of a simulator's lock differs from that of the machine-repairman queue."""
    exact = exact_throughput() * HOLD
    for name, runs in samples.items():
        for sample in runs:
            if abs(sample.utilisation / exact - 1) > TOLERANCE:
                sys.exit(
                    f"{name} does not simulate the same lock loop, and the comparison is not valid: the utilisation of "
                    f"its lock is {sample.utilisation:.3f}, the exact value {exact:.3f}"
                )


def compilation() -> list[Row]:
    """Measure the first call in a new process, without and with a cache of compiled code."""
    log("First calls in new processes.")
    with tempfile.TemporaryDirectory() as folder:
        compiling, cached = (child("first-call", NUMBA_CACHE_DIR=folder) for _ in range(2))
    return [
        Row("first call, to compile", "s", (compiling["first"],)),
        Row("first call, compiled before", "s", (cached["first"],)),
    ]


# -- 2: the two engines --------------------------------------------------------------------------------------


def engines(size: Size) -> list[Row]:
    """Measure the events per second of the two engines on the same jobs, whose results must be equal."""
    log("The reference and the compiled engine.")
    jobs = {
        "dirty_log_perf_test, 16 vCPUs": build(small_scenario()),
        "lock loop": lock_loop(size.reference_loop),
    }
    rows = []
    for name, job in jobs.items():
        rates = engine_rates(job, size.rounds)
        rows += [
            Row(f"{name}: compiled / reference, events/s", "×", ratios(*rates)),
            Row("  compiled engine", "events/s", tuple(rates[0])),
            Row("  reference engine", "events/s", tuple(rates[1])),
        ]
    return rows


def engine_rates(job: Job, rounds: int) -> tuple[list[float], list[float]]:
    """Events per second of the compiled and the reference engine in each round.

    A run of the compiled engine takes milliseconds, so a round has twenty of them.
    """
    if compiled.run(job) != reference.run(job):
        sys.exit("the two engines disagree, and the comparison is not valid (run make test)")

    def rate(run: Callable[[Job], EngineResult], times: int) -> float:
        begin = time.perf_counter()
        events = sum(run(job).events for _ in range(times))
        return events / (time.perf_counter() - begin)

    programs = {"compiled": lambda: rate(compiled.run, 20), "reference": lambda: rate(reference.run, 1)}
    samples = run_alternately(programs, rounds)
    return samples["compiled"], samples["reference"]


def fixed_cost(size: Size) -> list[Row]:
    """Measure a call of `simulate` for a guest of 2 MiB: with another seed, and with costs that are not cached."""
    log("simulate() of a tiny scenario.")
    tiny = tiny_scenario()

    def calls(cached: bool) -> float:
        cases = [tiny if cached else tiny.with_costs(fault_unlocked=1_000_000 + 1000 * k) for k in range(size.calls)]
        begin = time.perf_counter()
        for seed, case in enumerate(cases):
            simulate(case, seed=seed)
        return 1e3 * (time.perf_counter() - begin) / size.calls

    samples = run_alternately({"cached": lambda: calls(True), "new": lambda: calls(False)}, size.rounds)
    return [
        Row("simulate(), 1 vCPU, 2 MiB: a call with another seed", "ms", tuple(samples["cached"]), 0.4),
        Row("  a call, costs that are not cached", "ms", tuple(samples["new"])),
    ]


# -- 3: other simulators -------------------------------------------------------------------------------------


def others(size: Size) -> list[Row]:
    """Measure the acquisitions per second of the lock loop in other simulators."""
    log(f"Lock loop, {size.others:,} acquisitions: other simulators (compiled engine: {size.loop:,}).")
    job = lock_loop(size.loop)
    programs: dict[str, Callable[[], Sample]] = {"simlib": lambda: run_compiled(job)}
    missing = [name for name in OTHERS if importlib.util.find_spec(name) is None]
    for name, run in OTHERS.items():
        if name not in missing:
            programs[name] = partial(run, size.others)
    samples = run_alternately(programs, size.rounds)
    check_same_loop(samples)
    rates = {name: [sample.rate for sample in runs] for name, runs in samples.items()}
    rows = [Row("lock loop: compiled engine", "acquisitions/s", tuple(rates["simlib"]))]
    for name in OTHERS:
        if name in missing:
            log(f"{name} is not installed; make bench installs it.")
            rows.append(Row(f"lock loop: {name}", "×", note=f"{name} is not installed; make bench installs it"))
            continue
        speed_up = ratios(rates["simlib"], rates[name])
        rows += [
            Row(f"lock loop: compiled / {name} {version(name)}, acquisitions/s", "×", speed_up),
            Row(f"  {name}", "acquisitions/s", tuple(rates[name])),
        ]
    return rows


# -- 4: the published point, page by page --------------------------------------------------------------------


def published(size: Size) -> list[Row]:
    """Measure the published 64-vCPU point without sampling, in separate processes."""
    log(f"64 vCPUs, {size.memory_per_vcpu} each, page by page.")
    runs = [child("point", "3", size.memory_per_vcpu) for _ in range(size.point_rounds)]
    return [
        Row(
            f"64 vCPUs × {size.memory_per_vcpu}, 3 acquisitions per fault", "s", tuple(run["wall"] for run in runs), 8.5
        ),
        Row("  peak memory", "GiB", tuple(run["peak_bytes"] / 2**30 for run in runs), 0.3),
        Row("  CPU time", "s", tuple(run["cpu"] for run in runs)),
        Row("  acquisitions of mmu_lock", "", (runs[0]["acquisitions"],)),
        Row("  events", "", (runs[0]["events"],)),
    ]


# -- 5: commands --------------------------------------------------------------------------------------------


def command_times(size: Size, before: str | None) -> list[Row]:
    """Measure commands, alternately with the same commands of another commit if `before` names a commit."""
    rows = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        trees = {"now": timed_commands.ROOT}
        if before:
            trees["before"] = stack.enter_context(timed_commands.tree_of(before))
        for command in timed_commands.commands(folder)[: None if size is FULL else 1]:
            log(f"simlib {' '.join(command.arguments)}")
            programs = {
                name: partial(timed_commands.time_of, command, tree, folder / name) for name, tree in trees.items()
            }
            samples = run_alternately(programs, size.command_rounds, warm_up=0 if command.compiles else 1)
            rows.append(Row(command.name, "s", tuple(samples["now"]), command.limit))
            if before:
                rows.append(Row(f"  relative to {before}", "×", ratios(samples["now"], samples["before"]), 1.0))
    return rows


# -- the report ----------------------------------------------------------------------------------------------


def machine_facts() -> dict[str, Any]:
    """Properties of the machine on which the numbers depend, without its name."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cores": os.cpu_count(),
        "usable_cores": usable,
        "architecture": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "compiler": compiler_version(),
        "packages": {"simlib": simlib.__version__, **{name: version(name) for name in PACKAGES}},
    }


def compiler_version() -> str | None:
    """Return the first line of the C compiler's version, or None without a compiler."""
    compiler = c_compiler()
    if compiler is None:
        return None
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    return (done.stdout.splitlines() or [""])[0]


def version(package: str) -> str | None:
    """Version of a package, or None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def print_table(rows: list[Row], judged: bool) -> None:
    """Print the rows in aligned columns."""
    head = ("measurement", "median", "range", "bar", "")
    lines = [head, *(row.cells(judged) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for index, line in enumerate(lines):
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
        if index == 0:
            print("  ".join("-" * width for width in widths))


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON file completely, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1, ensure_ascii=False)
            file.write("\n")
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def markdown(rows: list[Row]) -> str:
    """Return the rows with a bar and the ratios as a Markdown table."""
    lines = ["| measurement | median | range | bar | |", "|---|---|---|---|---|"]
    shown_rows = [row for row in rows if row.limit is not None or row.unit == "×"]
    for name, *cells, verdict in (row.cells(judged=True) for row in shown_rows):
        label = f"– {name.strip()}" if name.startswith(" ") else name
        lines.append(f"| {' | '.join([label, *cells, verdict.replace('MISSED', '**missed**')])} |")
    return "\n".join(lines)


def write_page(rows: list[Row]) -> None:
    """Write the table into the page, between its marks."""
    text = PAGE.read_text(encoding="utf-8")
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    PAGE.write_text(f"{before}\n{markdown(rows)}\n{after}", encoding="utf-8")


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Measure simlib's speed against plain C, its reference engine and other simulators.",
        epilog="Exit status: 0 if every bar is met (or with --quick), else 1.",
    )
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, as a test of the benchmarks; no bar is judged"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("build/benchmarks.json"),
        help="file for the results (default: %(default)s)",
    )
    parser.add_argument(
        "--before",
        metavar="COMMIT",
        help="also measure the commands of another commit, alternately; it must have today's scenario keys",
    )
    parser.add_argument(
        "--write", action="store_true", help=f"also write the table into {PAGE.parent.name}/{PAGE.name}"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and write the results; return the exit status."""
    options = parse_arguments(arguments)
    size = QUICK if options.quick else FULL
    rows = [*compilation(), *published(size), *compare_with_c(size), *engines(size), *fixed_cost(size), *others(size)]
    rows += command_times(size, options.before)
    print_table(rows, judged=not options.quick)
    document = {
        "taken": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "quick": options.quick,
        "size": asdict(size),
        "machine": machine_facts(),
        "rows": [row.as_json() for row in rows],
    }
    write_json(options.out, document)
    print(f"\nThe results are in {options.out}.")
    if options.write:
        write_page(rows)
    missed = [row.name.strip() for row in rows if row.met is False]
    if missed and not options.quick:
        print(f"Missed or not measured: {'; '.join(missed)}.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
