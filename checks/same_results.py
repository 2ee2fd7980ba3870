# SPDX-License-Identifier: BSD-3-Clause
"""Compare the results of commands under several Pythons and versions of simlib's packages: ``make same-results``.

    python checks/same_results.py PYTHON...

Each argument is an interpreter, which gets the pinned packages in a virtual environment below build/pythons. The first
interpreter is the reference; it gets a second environment with the lowest versions that pyproject.toml allows. The
check compares all that a command prints and writes: as text without dates and, where texts differ, number by number.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
from kills import MIGRATION, SMALL

ROOT = Path(__file__).parents[1]
SCENARIOS = ROOT / "data" / "scenarios"
ALTRA = SCENARIOS / "arm64-ampere-altra.toml"

COMMANDS: dict[str, tuple[object, ...]] = {
    "simulate": ("simulate", ALTRA, "--variant", "rwlock-old-test", "--vcpus", 8, "--out", "run", "--format", "csv"),
    "simulate, reference engine": ("simulate", "small.toml", "--engine", "reference", "--format", "csv"),
    "simulate a migration": ("simulate", "migration.toml", "--format", "csv"),
    "simulate a teardown": ("simulate", SCENARIOS / "x86-160-vcpus.toml", "--variant", "before", "--vcpus", 4,
                            "--format", "csv"),
    "predict": ("predict", ALTRA, "--vcpus", "1,4,16", "--format", "csv"),
    "compare": ("compare", "small.toml", "baseline", "every-64", "--vcpus", "1,4", "--format", "csv"),
    "choose": ("choose", "migration.toml", "--strategy", "baseline", "--strategy", "every-64", "--out", "choice"),
    "calibrate": ("calibrate", ALTRA, "arm64-dirty-memory-time", "--train", "vcpus <= 8", "--out", "fit.json"),
    "sweep": ("sweep", ROOT / "data" / "grids" / "first.toml", "--out", "swept"),
}  # fmt: skip
"""Names and arguments of the commands, which write into the folder in which they run."""

DATES = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d)?( UTC)?)?")
NUMBER = re.compile(r"-?\d+\.?\d*(?:[eE][-+]?\d+)?")

ARITHMETIC = 1e-9
"""Relative difference below which numbers are the same: versions of NumPy and SciPy sum in different orders."""

ENDED = "ended with"
"""Prefix of the result of a command that failed."""

VERSIONS = "import numba, numpy, pandas, platform, scipy; print('Python', platform.python_version(), *(f'{m.__name__} \
{m.__version__}' for m in (numpy, scipy, pandas, numba)))"


def results(python: str, folder: Path) -> dict[str, str]:
    """Output and files of each command under an interpreter, by the command's name."""
    texts_of_commands = {}
    for name, arguments in COMMANDS.items():
        place = folder / name
        place.mkdir(parents=True)
        (place / "small.toml").write_text(SMALL)
        (place / "migration.toml").write_text(MIGRATION)
        inputs = set(place.iterdir())
        # -P: import the tree under test, not modules in the current folder
        command = [python, "-P", "-m", "simlib", *map(str, arguments)]
        variables = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False, env=variables)
        if done.returncode:
            texts_of_commands[name] = f"{ENDED} {done.returncode}: {done.stderr[-1000:]}"
            continue
        written = sorted(path for path in place.rglob("*") if path.is_file() and path not in inputs)
        texts = [done.stdout, *(path.read_text() for path in written if path.suffix in (".csv", ".json"))]
        data_sets = [place / "swept" / data for data in ("results", "refused") if (place / "swept" / data).is_dir()]
        texts += [pd.read_parquet(data).sort_values("point").to_csv(index=False) for data in data_sets]
        texts_of_commands[name] = DATES.sub("", "\n".join(texts))
    return texts_of_commands


def difference(expected: str, actual: str) -> str:
    """Describe how two texts differ: "same", the largest relative difference of numbers, or the first other words."""
    if expected == actual and not expected.startswith(ENDED):
        return "same"
    if ENDED in (expected[: len(ENDED)], actual[: len(ENDED)]):
        return (expected if expected.startswith(ENDED) else actual).strip().replace("\n", " ")[-200:]
    if NUMBER.sub("#", expected) != NUMBER.sub("#", actual):
        lines = zip(NUMBER.sub("#", expected).splitlines(), NUMBER.sub("#", actual).splitlines(), strict=False)
        return "words differ: " + next((f"{a[:90]!r} and {b[:90]!r}" for a, b in lines if a != b), "in length")
    pairs = [(float(a), float(b)) for a, b in zip(NUMBER.findall(expected), NUMBER.findall(actual), strict=True)]
    largest = max(abs(a - b) / max(abs(a), abs(b)) for a, b in pairs if a != b)
    verdict = "same" if largest < ARITHMETIC else "differs"
    return f"{verdict}: {sum(a != b for a, b in pairs)} of {len(pairs)} numbers differ, by {largest:.1e} at most"


def environment(python: str, pins: str) -> str:
    """Return the interpreter of an environment with pinned packages; create the environment if it does not exist."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{python} does not run ({done.stderr.strip().splitlines()[0]}): name other interpreters, "
                         "e.g. make same-results PYTHONS='python3.11 /path/to/python3.13'")  # fmt: skip
    folder = ROOT / "build" / "pythons" / f"{done.stdout.strip()}-{pins}"
    requirements, installed = (ROOT / "requirements" / f"{pins}.txt").read_text("utf-8"), folder / "installed.txt"
    if not installed.exists() or installed.read_text(encoding="utf-8") != requirements:
        print(f"Installing requirements/{pins}.txt into {folder.relative_to(ROOT)}.", flush=True)
        subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
        install = [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
        subprocess.run([*install, "-r", ROOT / "requirements" / f"{pins}.txt"], check=True)
        installed.write_text(requirements, encoding="utf-8")
    return str(folder / "bin" / "python")


def main(*pythons: str) -> int:
    """Print a line for each command and environment; return the number of lines with a failure or a difference."""
    faults, expected = 0, dict[str, str]()
    for python, pins in [*((python, "dev") for python in pythons), (pythons[0], "lowest")]:
        interpreter = environment(python, pins)
        versions = subprocess.run([interpreter, "-c", VERSIONS], capture_output=True, text=True, check=True).stdout
        print(versions.strip(), flush=True)
        with tempfile.TemporaryDirectory() as folder:
            actual = results(interpreter, Path(folder))
        expected = expected or actual
        for name, text in actual.items():
            verdict = difference(expected[name], text)
            failed = text.startswith(ENDED)
            faults += failed or not verdict.startswith("same")
            print(f"  {name:27} {verdict if expected is not actual or failed else 'the reference'}", flush=True)
    return faults


if __name__ == "__main__":
    sys.exit(min(1, main(*sys.argv[1:])))
