# SPDX-License-Identifier: BSD-3-Clause
"""Small faults drawn by chance from all that cosmic-ray can put into a package, and whether a test notices each.

    python checks/mutants.py FOLDER [NUMBER [PACKAGE...]] [--write]

(`make mutants`) draws so many mutants of each package, always the same ones, and tries each in a copy of the tree with
the tests of `TESTS`, which are a part of ``make test``. FOLDER keeps the results in ``mutants.csv``; what is
there is not tried again. Annotations are left alone: they are never evaluated. `checks/mutations.py` has faults
that somebody thought of, and which must all be caught.
"""

from __future__ import annotations

import argparse
import ast
import csv
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
"""Why no test notices a mutant."""

TESTS = {
    "theory": (("tests/analysis/theory",), ("tests/simulator/engine/test_theory_agreement.py",)),
    "engine": (
        ("tests/simulator/engine/test_identity.py",),
        ("tests/simulator/engine", "tests/simulator/workloads", "tests/analysis/test_simulate.py"),
    ),
    "decision": (("tests/analysis/choose",), ("tests/ui/cli/test_cli.py", "tests/ui/report")),
    "calibration": (
        ("tests/analysis/calibrate",),
        ("tests/measurements/fits", "tests/studies", "tests/ui/report", "tests/ui/cli/test_cli.py"),
    ),
}
"""Which tests may notice a fault in a package, besides the examples of the module that has it: first these, then those.

Whatever is left is tried with the long ones of all of them (``make test-studies``)."""

LIMIT_S = 900
"""A mutant whose tests take longer does not end; that is noticed, too."""

FIELDS = ("package", "module", "line", "operator", "occurrence", "outcome", "test", "seconds", "diff")


class Mutant(NamedTuple):
    """One fault: the how manieth place at which an operator changes a module."""

    package: str
    module: str
    line: int
    operator: str
    occurrence: int


def annotated(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Begin and end, (line, column), of every annotation of a module."""
    found: list[ast.expr | None] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AnnAssign | ast.arg):
            found.append(node.annotation)
        elif isinstance(node, ast.FunctionDef):
            found.append(node.returns)
    return [((one.lineno, one.col_offset), (one.end_lineno or 0, one.end_col_offset or 0)) for one in found if one]


def mutants(package: str) -> list[Mutant]:
    """All that there are of a package, in an order that is always the same."""
    found = []
    for path in sorted((ROOT / "simlib" / package).rglob("*.py")):
        module = str(path.relative_to(ROOT))
        idle = annotated(path.read_text(encoding="utf-8"))
        with use_db(":memory:", WorkDB.Mode.create) as database:
            init([path], database, {})
            specs = [item.mutations[0] for item in database.work_items]
        found += [Mutant(package, module, spec.start_pos[0], spec.operator_name, spec.occurrence) for spec in specs
                  if not any(begin <= spec.start_pos < end for begin, end in idle)]  # fmt: skip
    return sorted(found)


def mutated(mutant: Mutant, source: str) -> str | None:
    """The module with the fault; None if it would be no program, or the same."""
    changed = mutate_code(source, get_operator(mutant.operator)(), mutant.occurrence)
    try:
        return changed if changed and ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source)) else None
    except SyntaxError:
        return None


def drawn(package: str, number: int) -> Iterator[Mutant]:
    """So many mutants by chance; a larger number begins with the same ones, and a changed module draws few others."""
    every = sorted(mutants(package), key=lambda mutant: hashlib.sha256(repr(mutant._replace(line=0)).encode()).digest())
    print(f"{package}: {number} of {len(every)} mutants", flush=True)
    for mutant in every:
        if number and mutated(mutant, (ROOT / mutant.module).read_text(encoding="utf-8")):
            number -= 1
            yield mutant


def copied(folder: Path) -> Path:
    """A copy of all that git knows."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def rounds(mutant: Mutant) -> Iterator[tuple[str, ...]]:
    """What pytest is asked for, one after another until something fails: which marks, then the tests."""
    yield ("-m", "", mutant.module)
    for paths in TESTS[mutant.package]:
        yield ("-m", "not study", *paths)
    yield ("-m", "study", *(path for paths in TESTS[mutant.package] for path in paths))


def noticed(folder: Path, *paths: str) -> str:
    """The first test that fails in a copy, without its parameters; empty if none does."""
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
        return "(it does not end)"
    if done.returncode in (0, 5):  # passed, or a module without examples
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) ([^\s[]+)", done.stdout, flags=re.MULTILINE)
    return failed[1] if failed else f"(pytest ended with {done.returncode})"


@cache
def unhurt(folder: Path, *asked: str) -> None:
    """Stop if what failed fails without any mutant, too; a test is asked once in each copy."""
    test = noticed(folder, *asked)
    if test:
        raise SystemExit(f"without any mutant, {test} fails")


def attempt(mutant: Mutant, folders: Queue[Path]) -> dict[str, object]:
    """Put a fault into a copy, ask the tests, and take it out."""
    folder, began = folders.get(), time.monotonic()
    path = folder / mutant.module
    source = path.read_text(encoding="utf-8")
    changed = mutated(mutant, source)
    assert changed is not None
    try:
        test = ""
        for asked in rounds(mutant):
            path.write_text(changed, encoding="utf-8")
            test = noticed(folder, *asked)
            path.write_text(source, encoding="utf-8")
            if test:
                unhurt(folder, *(asked if test.startswith("(") else (*asked[:2], test)))
                break
    finally:
        path.write_text(source, encoding="utf-8")
        folders.put(folder)
    before, after = source.splitlines(), changed.splitlines()
    line = next((n for n, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), mutant.line - 1)
    diff = f"{before[line].strip()} -> {after[line].strip()}"
    return mutant._asdict() | {
        "line": line + 1, "outcome": "killed" if test else "survived", "test": test,
        "seconds": round(time.monotonic() - began), "diff": diff,
    }  # fmt: skip


def score(rows: list[dict[str, str]]) -> tuple[int, float, float]:
    """How many mutants were noticed, and the ends of that share's interval (Wilson, 90 %)."""
    killed = sum(row["outcome"] == "killed" for row in rows)
    low, high = stats.binomtest(killed, len(rows)).proportion_ci(0.90, method="wilson")
    return killed, low, high


def page(found: dict[str, list[dict[str, str]]]) -> str:
    """Scores, as docs/checks.md has them."""
    reasons = tomllib.loads(REASONS.read_text(encoding="utf-8"))
    lines = ["| package | mutants tried | noticed | share | 90 % interval |", "|---|---|---|---|---|"]
    every = [row for rows in found.values() for row in rows]
    for name, rows in found.items():
        killed, low, high = score(rows)
        lines.append(f"| {name} | {len(rows)} | {killed} | {killed / len(rows):.0%} | {low:.0%} to {high:.0%} |")
    survived = [row for row in every if row["outcome"] == "survived"]
    unknown = sum(row["diff"] not in reasons.get(row["module"], {}) for row in survived)
    left = f"; {unknown} not looked into" if unknown else ""
    lines += ["", f"Not noticed: {len(survived)}. Why each is no fault: `checks/survivors.toml`{left}."]
    return "\n".join([BEGIN, *lines, END])


def tried(folder: Path, number: int, packages: Iterable[str]) -> dict[str, list[dict[str, str]]]:
    """Try what was not tried yet; what was found of each package."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "mutants.csv"
    rows: dict[Mutant, dict[str, str]] = {}
    if kept.exists():
        with kept.open(encoding="utf-8", newline="") as stream:
            for row in csv.DictReader(stream):
                key = Mutant(row["package"], row["module"], 0, row["operator"], int(row["occurrence"]))
                rows[key] = row
    wanted = [mutant for package in packages for mutant in drawn(package, number)]
    left = [mutant for mutant in wanted if mutant._replace(line=0) not in rows]
    folders: Queue[Path] = Queue()
    workers = len(os.sched_getaffinity(0)) if left else 0
    for at in range(workers):
        shutil.rmtree(folder / str(at), ignore_errors=True)
        folders.put(copied(folder / str(at)))
    with kept.open("a", encoding="utf-8", newline="") as stream, ThreadPoolExecutor(max(workers, 1)) as pool:
        table = csv.DictWriter(stream, FIELDS)
        if not rows:
            table.writeheader()
        under_way = [pool.submit(attempt, mutant, folders) for mutant in left]
        try:
            for done, future in enumerate(as_completed(under_way), 1):
                row = {key: str(value) for key, value in future.result().items()}
                table.writerow(row)
                stream.flush()
                rows[Mutant(row["package"], row["module"], 0, row["operator"], int(row["occurrence"]))] = row
                print(f"{done}/{len(left)} {row['outcome']} {row['module']}:{row['line']} {row['diff']} "
                      f"({row['test'] or 'no test'}, {row['seconds']} s)", flush=True)  # fmt: skip
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {package: [rows[mutant._replace(line=0)] for mutant in wanted if mutant.package == package]
            for package in packages}  # fmt: skip


def main() -> None:
    """Try them, and print the scores and the survivors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="keeps what was found")
    parser.add_argument("number", type=int, nargs="?", default=100, help="mutants of each package (%(default)s)")
    parser.add_argument("packages", nargs="*", default=list(TESTS), help="of these; else of all")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/checks.md")
    arguments = parser.parse_args()
    text = page(tried(arguments.folder, arguments.number, arguments.packages))
    print(text)
    if arguments.write:
        old = PAGE.read_text(encoding="utf-8")
        write_text(PAGE, old[: old.index(BEGIN)] + text + old[old.index(END) + len(END) :])


if __name__ == "__main__":
    main()
