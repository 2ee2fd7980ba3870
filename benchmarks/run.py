# SPDX-License-Identifier: BSD-3-Clause
"""How fast simlib is, and whether that meets the bars: `make bench`.

What is compared takes turns (A B C A B C …), and a ratio is taken within a round: other load on the machine
hits both sides. A bar is judged by the median over the rounds. `docs/performance.md` explains the figures.
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

import waits
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
    """How much is measured."""

    loop: int
    others: int
    reference_loop: int
    rounds: int
    loop_rounds: int
    point_rounds: int
    memory_per_vcpu: str
    calls: int
    waits: int


FULL = Size(
    1_000_000, 20_000, 64_000, rounds=5, loop_rounds=21, point_rounds=3, memory_per_vcpu="2G", calls=200, waits=2
)
QUICK = Size(128_000, 6_400, 6_400, rounds=2, loop_rounds=3, point_rounds=1, memory_per_vcpu="8M", calls=20, waits=1)


@dataclass(frozen=True)
class Row:
    """One line of the table.

    `values` are those of the rounds; `limit` is the bar, if there is one. A row without
    values could not be measured, for the reason in `note`: then its bar is not met.
    """

    name: str
    unit: str
    values: tuple[float, ...] = ()
    limit: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the bar is met; None without a bar."""
        if self.limit is None:
            return None
        if not self.values:
            return False
        middle = median(self.values)
        return middle <= self.limit

    def as_json(self) -> dict[str, Any]:
        """The row, with its median and range."""
        found = {**asdict(self), "met": self.met}
        if self.values:
            found |= {"median": median(self.values), "min": min(self.values), "max": max(self.values)}
        return found

    def cells(self, judged: bool) -> tuple[str, ...]:
        """The row as texts."""
        shown, spread = "not measured", ""
        if self.values:
            shown = f"{number(median(self.values))} {self.unit}"
            if len(self.values) > 1:
                spread = f"{number(min(self.values))}–{number(max(self.values))}"
        bar = "" if self.limit is None else f"≤ {number(self.limit)} {self.unit}"
        verdict = "" if self.met is None else "not judged" if not judged else "met" if self.met else "MISSED"
        return self.name, shown, spread, bar, verdict


def number(value: float) -> str:
    """Three digits, or a whole number with its thousands apart."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def say(text: str) -> None:
    """Say what happens, on the error stream."""
    print(text, file=sys.stderr, flush=True)


def in_turns(contenders: Mapping[str, Callable[[], Any]], rounds: int, warm_up: int = 1) -> dict[str, list[Any]]:
    """Run all contenders in turn, `rounds` times, after `warm_up` turns that do not count."""
    samples: dict[str, list[Any]] = {name: [] for name in contenders}
    for turn in range(warm_up + rounds):
        for name, run in contenders.items():
            gc.collect()
            sample = run()
            if turn >= warm_up:
                samples[name].append(sample)
    return samples


def ratios(above: list[float], below: list[float]) -> tuple[float, ...]:
    """Ratio of each round."""
    return tuple(a / b for a, b in zip(above, below, strict=True))


def child(*arguments: str, **environment: str) -> dict[str, Any]:
    """What `child.py` measures in a process of its own."""
    command = [sys.executable, str(HERE / "child.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout)


# -- 1: the lock loop against plain C ------------------------------------------------------------------------


def build_c(folder: Path, *flags: str) -> Path | None:
    """Compile `lock_loop.c` with -O2; None without a compiler."""
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
    """Path of a C compiler: gcc, or else cc."""
    return shutil.which("gcc") or shutil.which("cc")


def run_c(program: Path, acquisitions: int) -> Sample:
    """The lock loop in C; it times itself."""
    arguments = [str(n) for n in (THREADS, acquisitions, THINK_PS, HOLD_PS)]
    found = json.loads(subprocess.run([program, *arguments], capture_output=True, text=True, check=True).stdout)
    return Sample(found["seconds"], found["acquisitions"], found["utilisation"])


def against_c(size: Size) -> list[Row]:
    """The compiled engine and the C program on the same lock loop."""
    say(f"Lock loop, {size.loop:,} acquisitions: C and the compiled engine.")
    name = "lock loop: compiled engine / C -O2, time"
    with tempfile.TemporaryDirectory() as folder:
        program, tree = build_c(Path(folder)), build_c(Path(folder), "-DWINNER_TREE")
        if program is None or tree is None:
            note = "No C compiler (gcc or cc) is on the path; install one to compare with plain C."
            say(note)
            return [Row(name, "×", limit=1.0, note=note)]
        job = lock_loop(size.loop)
        samples = in_turns(
            {
                "C": lambda: run_c(program, size.loop),
                "simlib": lambda: run_compiled(job),
                "C, winner tree": lambda: run_c(tree, size.loop),
            },
            size.loop_rounds,
        )
    check_same_loop(samples)
    seconds = {name: [s.seconds for s in found] for name, found in samples.items()}
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
    """Stop unless everybody's lock is as busy as the machine-repairman queue says."""
    exact = exact_throughput() * HOLD
    for name, found in samples.items():
        for sample in found:
            if abs(sample.utilisation / exact - 1) > TOLERANCE:
                sys.exit(
                    f"{name} does not simulate the same lock loop: its lock is busy {sample.utilisation:.3f} "
                    f"of the time, where {exact:.3f} is exact; the comparison would mean nothing"
                )


def compilation() -> list[Row]:
    """A first call in a fresh process, without and with a cache of compiled code."""
    say("First calls in fresh processes.")
    with tempfile.TemporaryDirectory() as folder:
        found = [child("first-call", NUMBA_CACHE_DIR=folder) for _ in range(2)]
    return [
        Row("first call, to compile", "s", (found[0]["first"],)),
        Row("first call, compiled before", "s", (found[1]["first"],)),
    ]


# -- 2: the two engines --------------------------------------------------------------------------------------


def engines(size: Size) -> list[Row]:
    """Events per second of the two engines on the same jobs, whose results must be equal."""
    say("The reference and the compiled engine.")
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
    """Events per second of the compiled and the reference engine, round by round.

    The compiled engine needs milliseconds, so that one of its turns is twenty runs.
    """
    if compiled.run(job) != reference.run(job):
        sys.exit("the two engines disagree; the comparison would mean nothing (run make test)")

    def rate(run: Callable[[Job], EngineResult], times: int) -> float:
        begin = time.perf_counter()
        events = sum(run(job).events for _ in range(times))
        return events / (time.perf_counter() - begin)

    contenders = {"compiled": lambda: rate(compiled.run, 20), "reference": lambda: rate(reference.run, 1)}
    samples = in_turns(contenders, rounds)
    return samples["compiled"], samples["reference"]


def fixed_cost(size: Size) -> list[Row]:
    """What one call of `simulate` takes for a guest of 2 MiB: with another seed, and with costs it never saw."""
    say("simulate() of a tiny scenario.")
    tiny = tiny_scenario()

    def calls(again: bool) -> float:
        cases = [tiny if again else tiny.with_costs(fault_unlocked=1_000_000 + 1000 * k) for k in range(size.calls)]
        begin = time.perf_counter()
        for seed, case in enumerate(cases):
            simulate(case, seed=seed)
        return 1e3 * (time.perf_counter() - begin) / size.calls

    samples = in_turns({"again": lambda: calls(True), "anew": lambda: calls(False)}, size.rounds)
    return [
        Row("simulate(), 1 vCPU, 2 MiB: a call, another seed", "ms", tuple(samples["again"]), 0.4),
        Row("  a call, costs never seen before", "ms", tuple(samples["anew"])),
    ]


# -- 3: other simulators -------------------------------------------------------------------------------------


def others(size: Size) -> list[Row]:
    """Acquisitions per second of the lock loop in other simulators."""
    say(f"Lock loop, {size.others:,} acquisitions: other simulators (compiled engine: {size.loop:,}).")
    job = lock_loop(size.loop)
    contenders: dict[str, Callable[[], Sample]] = {"simlib": lambda: run_compiled(job)}
    missing = [name for name in OTHERS if importlib.util.find_spec(name) is None]
    for name, run in OTHERS.items():
        if name not in missing:
            contenders[name] = partial(run, size.others)
    samples = in_turns(contenders, size.rounds)
    check_same_loop(samples)
    rates = {name: [s.rate for s in found] for name, found in samples.items()}
    rows = [Row("lock loop: compiled engine", "acquisitions/s", tuple(rates["simlib"]))]
    for name in OTHERS:
        if name in missing:
            say(f"{name} is not installed; make bench installs it.")
            rows.append(Row(f"lock loop: {name}", "×", note=f"{name} is not installed; make bench installs it"))
            continue
        faster = ratios(rates["simlib"], rates[name])
        rows += [
            Row(f"lock loop: compiled / {name} {version(name)}, acquisitions/s", "×", faster),
            Row(f"  {name}", "acquisitions/s", tuple(rates[name])),
        ]
    return rows


# -- 4: the published point, page by page --------------------------------------------------------------------


def published(size: Size) -> list[Row]:
    """The published 64-vCPU point with nothing sampled, in processes of its own."""
    say(f"64 vCPUs, {size.memory_per_vcpu} each, page by page.")
    found = [child("point", "3", size.memory_per_vcpu) for _ in range(size.point_rounds)]
    return [
        Row(f"64 vCPUs × {size.memory_per_vcpu}, 3 lock sections a fault", "s", tuple(f["wall"] for f in found), 8.5),
        Row("  peak memory", "GiB", tuple(f["peak_bytes"] / 2**30 for f in found), 0.3),
        Row("  processor time", "s", tuple(f["cpu"] for f in found)),
        Row("  acquisitions of mmu_lock", "", (found[0]["acquisitions"],)),
        Row("  events", "", (found[0]["events"],)),
    ]


# -- 5: what people wait for --------------------------------------------------------------------------------


def waiting(size: Size, before: str | None) -> list[Row]:
    """Commands as people type them, each in turn with the same command of a version before, if one is given."""
    rows = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        trees = {"now": waits.ROOT}
        if before:
            trees["before"] = stack.enter_context(waits.version_before(before))
        for wait in waits.waits(folder)[: None if size is FULL else 1]:
            say(f"simlib {' '.join(wait.arguments)}")
            contenders = {name: partial(waits.waited, wait, tree, folder / name) for name, tree in trees.items()}
            samples = in_turns(contenders, size.waits, warm_up=0 if wait.compiles else 1)
            rows.append(Row(wait.name, "s", tuple(samples["now"]), wait.limit))
            if before:
                rows.append(Row(f"  over {before}", "×", ratios(samples["now"], samples["before"]), 1.0))
    return rows


# -- the report ----------------------------------------------------------------------------------------------


def machine_facts() -> dict[str, Any]:
    """What the figures depend on; nothing that names the machine."""
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
    """First line of what the C compiler says of itself."""
    compiler = c_compiler()
    if compiler is None:
        return None
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    return (done.stdout.splitlines() or [""])[0]


def version(package: str) -> str | None:
    """A package's version, or None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def print_table(rows: list[Row], judged: bool) -> None:
    """Print the rows in aligned columns."""
    head = ("what", "median", "range", "bar", "")
    lines = [head, *(row.cells(judged) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for index, line in enumerate(lines):
        left, *rest = (text.ljust(width) for text, width in zip(line, widths, strict=True))
        print("  ".join((left, *rest)).rstrip())
        if index == 0:
            print("  ".join("-" * width for width in widths))


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON file: the whole of it or nothing."""
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
    """The rows as the page has them: those with a bar, and ratios."""
    lines = ["| what | median | range | bar | |", "|---|---|---|---|---|"]
    shown_rows = [row for row in rows if row.limit is not None or row.unit == "×"]
    for name, *cells, verdict in (row.cells(judged=True) for row in shown_rows):
        shown = f"– {name.strip()}" if name.startswith(" ") else name
        lines.append(f"| {' | '.join([shown, *cells, verdict.replace('MISSED', '**missed**')])} |")
    return "\n".join(lines)


def write_page(rows: list[Row]) -> None:
    """Put the table into the page, between its marks."""
    text = PAGE.read_text(encoding="utf-8")
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    PAGE.write_text(f"{before}\n{markdown(rows)}\n{after}", encoding="utf-8")


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Measure simlib's speed against plain C, its reference engine and other simulators.",
        epilog="Exit status: 0 if every bar is met (or with --quick), else 1.",
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that all works; judges no bar")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("build/benchmarks.json"),
        help="where the figures go (default: %(default)s)",
    )
    parser.add_argument("--before", metavar="COMMIT", help="measure what people wait for in pairs with this version")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.parent.name}/{PAGE.name} too")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write; returns the exit status."""
    options = parse_arguments(arguments)
    size = QUICK if options.quick else FULL
    rows = [*compilation(), *published(size), *against_c(size), *engines(size), *fixed_cost(size), *others(size)]
    rows += waiting(size, options.before)
    print_table(rows, judged=not options.quick)
    document = {
        "taken": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "quick": options.quick,
        "size": asdict(size),
        "machine": machine_facts(),
        "rows": [row.as_json() for row in rows],
    }
    write_json(options.out, document)
    print(f"\nWritten to {options.out}.")
    if options.write:
        write_page(rows)
    missed = [row.name.strip() for row in rows if row.met is False]
    if missed and not options.quick:
        print(f"Missed or not measured: {'; '.join(missed)}.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
