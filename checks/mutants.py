# SPDX-License-Identifier: BSD-3-Clause
"""Mutation test with random faults of cosmic-ray: the share of them that a test detects.

    python checks/mutants.py FOLDER [NUMBER [PACKAGE...]] [--write]

(`make mutants`) selects NUMBER mutants of each package at random, the same ones in each run, and runs the tests of
`TESTS`, which are a part of ``make test``, on each mutant in a copy of the tree. FOLDER keeps the results in
``mutants.csv``; a mutant with a result there is not tested again. Annotations are not changed, because Python never
evaluates them. `checks/mutations.py` has faults written by hand, and the tests must detect all of those.
"""

from __future__ import annotations

import argparse
import ast
import csv
import datetime
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from queue import Queue
from typing import NamedTuple

from cosmic_ray.commands.init import init
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
from scipy import stats

from simlib._lib.files import write_text

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "checks.md"
BEGIN, END = "<!-- mutants: begin -->", "<!-- mutants: end -->"
REASONS = Path(__file__).with_name("survivors.toml")
"""Reasons why no test detects a mutant, by module and change."""

TESTS = {
    "analysis.theory": (("tests/analysis/theory",), ("tests/simulator/engine/test_theory_agreement.py",)),
    "simulator.engine": (
        ("tests/simulator/engine/test_identity.py",),
        ("tests/simulator/engine", "tests/simulator/workloads", "tests/analysis/test_simulate.py"),
    ),
    "analysis.choose": (("tests/analysis/choose",), ("tests/ui/cli/test_cli.py", "tests/ui/report")),
    "analysis.calibrate": (
        ("tests/analysis/calibrate",),
        ("tests/measurements/fits", "tests/studies", "tests/ui/report", "tests/ui/cli/test_cli.py"),
    ),
}
"""Tests that may detect a fault in a package, besides the doctests of its module: those to run first, then the others.

A mutant that survives them is tested with the studies of both (``make test-studies``)."""

LIMIT_S = 900
"""Time limit of a run of pytest, s; a mutant that exceeds it counts as detected, because it does not end."""

FIELDS = ("package", "module", "line", "operator", "occurrence", "outcome", "test", "seconds", "diff")


class Mutant(NamedTuple):
    """Fault that an operator of cosmic-ray makes in a module, at its place number `occurrence` there."""

    package: str
    module: str
    line: int
    operator: str
    occurrence: int


def annotated(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Begin and end, (line, column), of every annotation of a module."""
    annotations: list[ast.expr | None] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AnnAssign | ast.arg):
            annotations.append(node.annotation)
        elif isinstance(node, ast.FunctionDef):
            annotations.append(node.returns)
    return [((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)) for node in annotations
            if node]  # fmt: skip


def mutants(package: str) -> list[Mutant]:
    """Return all mutants of a package, in a fixed order."""
    results = []
    for path in sorted((ROOT / "simlib" / package.replace(".", "/")).rglob("*.py")):
        module = str(path.relative_to(ROOT))
        idle = annotated(path.read_text(encoding="utf-8"))
        with use_db(":memory:", WorkDB.Mode.create) as database:
            init([path], database, {})
            specs = [item.mutations[0] for item in database.work_items]
        results += [Mutant(package, module, spec.start_pos[0], spec.operator_name, spec.occurrence) for spec in specs
                  if not any(begin <= spec.start_pos < end for begin, end in idle)]  # fmt: skip
    return sorted(results)


def mutated(mutant: Mutant, source: str) -> str | None:
    """Return the source with the fault; None if that is not valid Python, or the same program."""
    changed = mutate_code(source, get_operator(mutant.operator)(), mutant.occurrence)
    try:
        return changed if changed and ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source)) else None
    except SyntaxError:
        return None


def drawn(package: str, number: int) -> Iterator[Mutant]:
    """Select `number` mutants at random.

    A larger number begins with the same mutants, and a change of a module replaces few of them.
    """
    candidates = sorted(
        mutants(package), key=lambda mutant: hashlib.sha256(repr(mutant._replace(line=0)).encode()).digest()
    )
    if not candidates:
        raise SystemExit(f"{package} = no module of it below simlib/: name one of {', '.join(TESTS)}")
    print(f"{package}: {number} of {len(candidates)} mutants", flush=True)
    for mutant in candidates:
        if number and mutated(mutant, (ROOT / mutant.module).read_text(encoding="utf-8")):
            number -= 1
            yield mutant


def copied(folder: Path) -> Path:
    """Copy all files that git tracks into a folder; return the folder."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def rounds(mutant: Mutant) -> Iterator[tuple[str, ...]]:
    """Arguments of successive runs of pytest, until a run fails: the marker expression, then the paths."""
    yield ("-m", "", mutant.module)
    for paths in TESTS[mutant.package]:
        yield ("-m", "not study", *paths)
    yield ("-m", "study", *(path for paths in TESTS[mutant.package] for path in paths))


def noticed(folder: Path, *paths: str) -> str:
    """Return the first test that fails in a copy, without its parameters; empty if none fails."""
    environment = os.environ | {
        "PYTHONPATH": str(folder), "NUMBA_CACHE_DIR": str(folder / "numba"), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-rfE",
        "--tb=no",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
    ]
    try:
        done = subprocess.run([*command, *paths], check=False, env=environment, cwd=folder, capture_output=True,
                              text=True, timeout=LIMIT_S)  # fmt: skip
    except subprocess.TimeoutExpired:
        return "(time limit exceeded)"
    if done.returncode in (0, 5):  # passed, or the module has no doctests
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) ([^\s[]+)", done.stdout, flags=re.MULTILINE)
    return failed[1] if failed else f"(exit status {done.returncode} of pytest)"


@cache
def unhurt(folder: Path, *arguments: str) -> None:
    """Stop if a failing test also fails without a mutant; a test runs once for this in each copy."""
    test = noticed(folder, *arguments)
    if test:
        raise SystemExit(f"{test} also fails without a mutant")


def attempt(mutant: Mutant, folders: Queue[Path]) -> dict[str, object]:
    """Insert a fault into a copy, run the tests, and restore the module."""
    folder, start_time = folders.get(), time.monotonic()
    path = folder / mutant.module
    source = path.read_text(encoding="utf-8")
    changed = mutated(mutant, source)
    assert changed is not None
    try:
        test = ""
        for arguments in rounds(mutant):
            path.write_text(changed, encoding="utf-8")
            test = noticed(folder, *arguments)
            path.write_text(source, encoding="utf-8")
            if test:
                unhurt(folder, *(arguments if test.startswith("(") else (*arguments[:2], test)))
                break
    finally:
        path.write_text(source, encoding="utf-8")
        folders.put(folder)
    before, after = source.splitlines(), changed.splitlines()
    line = next((n for n, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), mutant.line - 1)
    diff = f"{before[line].strip()} -> {after[line].strip()}"
    return mutant._asdict() | {
        "line": line + 1, "outcome": "killed" if test else "survived", "test": test,
        "seconds": round(time.monotonic() - start_time), "diff": diff,
    }  # fmt: skip


def score(rows: list[dict[str, str]]) -> tuple[int, float, float]:
    """Number of detected mutants, and the ends of the 90 % interval of their share (Wilson)."""
    killed = sum(row["outcome"] == "killed" for row in rows)
    low, high = stats.binomtest(killed, len(rows)).proportion_ci(0.90, method="wilson")
    return killed, low, high


def page(results: dict[str, list[dict[str, str]]]) -> str:
    """Table of the scores for docs/checks.md."""
    reasons = tomllib.loads(REASONS.read_text(encoding="utf-8"))
    lines = ["| package | mutants tested | detected | share detected | 90 % interval |", "|---|---|---|---|---|"]
    all_rows = [row for rows in results.values() for row in rows]
    for name, rows in results.items():
        killed, low, high = score(rows)
        lines.append(
            f"| {name} | {len(rows)} | {killed} | {100 * killed / len(rows):.0f} % | {100 * low:.0f} % to "
            f"{100 * high:.0f} % |"
        )
    survived = [row for row in all_rows if row["outcome"] == "survived"]
    unknown = sum(row["diff"] not in reasons.get(row["module"], {}) for row in survived)
    addition = f"; {unknown} not examined" if unknown else ""
    lines += ["", f"Not detected: {len(survived)}. `checks/survivors.toml` gives the reason for each{addition}.",
              f"Measured on {datetime.date.today():%Y-%m-%d}."]  # fmt: skip
    return "\n".join([BEGIN, *lines, END])


def tried(folder: Path, number: int, packages: Iterable[str]) -> dict[str, list[dict[str, str]]]:
    """Test the mutants without a result; return the results of each package."""
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / "mutants.csv"
    rows: dict[Mutant, dict[str, str]] = {}
    if results.exists():
        with results.open(encoding="utf-8", newline="") as stream:
            for row in csv.DictReader(stream):
                key = Mutant(row["package"], row["module"], 0, row["operator"], int(row["occurrence"]))
                rows[key] = row
    selected = [mutant for package in packages for mutant in drawn(package, number)]
    remaining = [mutant for mutant in selected if mutant._replace(line=0) not in rows]
    folders: Queue[Path] = Queue()
    workers = len(os.sched_getaffinity(0)) if remaining else 0
    for worker in range(workers):
        shutil.rmtree(folder / str(worker), ignore_errors=True)
        folders.put(copied(folder / str(worker)))
    with results.open("a", encoding="utf-8", newline="") as stream, ThreadPoolExecutor(max(workers, 1)) as pool:
        table = csv.DictWriter(stream, FIELDS)
        if not rows:
            table.writeheader()
        futures = [pool.submit(attempt, mutant, folders) for mutant in remaining]
        try:
            for count, future in enumerate(as_completed(futures), 1):
                row = {key: str(value) for key, value in future.result().items()}
                table.writerow(row)
                stream.flush()
                rows[Mutant(row["package"], row["module"], 0, row["operator"], int(row["occurrence"]))] = row
                print(f"{count}/{len(remaining)} {row['outcome']} {row['module']}:{row['line']} {row['diff']} "
                      f"({row['test'] or 'no test'}, {row['seconds']} s)", flush=True)  # fmt: skip
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {package: [rows[mutant._replace(line=0)] for mutant in selected if mutant.package == package]
            for package in packages}  # fmt: skip


def main() -> None:
    """Test the mutants and print the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the results")
    parser.add_argument("number", type=int, nargs="?", default=100, help="mutants per package (default: %(default)s)")
    parser.add_argument("packages", nargs="*", default=list(TESTS), help="packages (default: all of TESTS)")
    parser.add_argument("--write", action="store_true", help="write the table into docs/checks.md")
    arguments = parser.parse_args()
    text = page(tried(arguments.folder, arguments.number, arguments.packages))
    print(text)
    if arguments.write:
        old = PAGE.read_text(encoding="utf-8")
        write_text(PAGE, old[: old.index(BEGIN)] + text + old[old.index(END) + len(END) :])


if __name__ == "__main__":
    main()
