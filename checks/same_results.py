# SPDX-License-Identifier: BSD-3-Clause
"""The same commands under other Pythons, and other versions of what simlib needs: ``make same-results``.

    python checks/same_results.py PYTHON...

Each argument is an interpreter, which gets the pinned packages in an environment of its own below build/pythons; the
first one is the reference, and gets the lowest versions that pyproject.toml allows in another one, too. What every
command prints and writes is compared: text by text but for dates, and where they differ, number by number.
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
"""Name and arguments; those that write do so into the folder in which they run."""

DATES = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d)?( UTC)?)?")
NUMBER = re.compile(r"-?\d+\.?\d*(?:[eE][-+]?\d+)?")

ARITHMETIC = 1e-9
"""Numbers that differ by a smaller share are the same: the order of sums is another one in another NumPy and SciPy."""

ENDED = "ended with"
"""Prefix of the result of a command that failed."""

VERSIONS = "import numba, numpy, pandas, platform, scipy; print('Python', platform.python_version(), *(f'{m.__name__} \
{m.__version__}' for m in (numpy, scipy, pandas, numba)))"


def results(python: str, folder: Path) -> dict[str, str]:
    """What each command prints and writes under an interpreter, by its name."""
    found = {}
    for name, words in COMMANDS.items():
        place = folder / name
        place.mkdir(parents=True)
        (place / "small.toml").write_text(SMALL)
        (place / "migration.toml").write_text(MIGRATION)
        given = set(place.iterdir())
        # -P: only the tree that is tested, not what lies where this runs
        command = [python, "-P", "-m", "simlib", *map(str, words)]
        variables = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False, env=variables)
        if done.returncode:
            found[name] = f"{ENDED} {done.returncode}: {done.stderr[-1000:]}"
            continue
        written = sorted(path for path in place.rglob("*") if path.is_file() and path not in given)
        texts = [done.stdout, *(path.read_text() for path in written if path.suffix in (".csv", ".json"))]
        swept = [place / "swept" / data for data in ("results", "refused") if (place / "swept" / data).is_dir()]
        texts += [pd.read_parquet(data).sort_values("point").to_csv(index=False) for data in swept]
        found[name] = DATES.sub("", "\n".join(texts))
    return found


def difference(one: str, other: str) -> str:
    """How two texts differ: "same", by how much their numbers do at most, or where their words do."""
    if one == other and not one.startswith(ENDED):
        return "same"
    if ENDED in (one[: len(ENDED)], other[: len(ENDED)]):
        return (one if one.startswith(ENDED) else other).strip().replace("\n", " ")[-200:]
    if NUMBER.sub("#", one) != NUMBER.sub("#", other):
        lines = zip(NUMBER.sub("#", one).splitlines(), NUMBER.sub("#", other).splitlines(), strict=False)
        return "words differ: " + next((f"{a[:90]!r} and {b[:90]!r}" for a, b in lines if a != b), "in length")
    pairs = [(float(a), float(b)) for a, b in zip(NUMBER.findall(one), NUMBER.findall(other), strict=True)]
    most = max(abs(a - b) / max(abs(a), abs(b)) for a, b in pairs if a != b)
    how = "same" if most < ARITHMETIC else "differs"
    return f"{how}: {sum(a != b for a, b in pairs)} of {len(pairs)} numbers differ, by {most:.1e} at most"


def environment(python: str, pins: str) -> str:
    """The interpreter of an environment with pinned packages, made if it is not there."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    asked = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    if asked.returncode:
        raise SystemExit(f"{python} does not run ({asked.stderr.strip().splitlines()[0]}): name others, as in "
                         "make same-results PYTHONS='python3.11 /path/to/python3.13'")  # fmt: skip
    folder = ROOT / "build" / "pythons" / f"{asked.stdout.strip()}-{pins}"
    wanted, whole = (ROOT / "requirements" / f"{pins}.txt").read_text(encoding="utf-8"), folder / "installed.txt"
    if not whole.exists() or whole.read_text(encoding="utf-8") != wanted:
        print(f"Installing requirements/{pins}.txt into {folder.relative_to(ROOT)}.", flush=True)
        subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
        install = [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
        subprocess.run([*install, "-r", ROOT / "requirements" / f"{pins}.txt"], check=True)
        whole.write_text(wanted, encoding="utf-8")
    return str(folder / "bin" / "python")


def main(*pythons: str) -> int:
    """Print a line for each command and environment; return how many are not the same."""
    bad, expected = 0, dict[str, str]()
    for python, pins in [*((python, "dev") for python in pythons), (pythons[0], "lowest")]:
        mine = environment(python, pins)
        versions = subprocess.run([mine, "-c", VERSIONS], capture_output=True, text=True, check=True).stdout
        print(versions.strip(), flush=True)
        with tempfile.TemporaryDirectory() as folder:
            found = results(mine, Path(folder))
        expected = expected or found
        for name, text in found.items():
            how = difference(expected[name], text)
            failed = text.startswith(ENDED)
            bad += failed or not how.startswith("same")
            print(f"  {name:27} {how if expected is not found or failed else 'the reference'}", flush=True)
    return bad


if __name__ == "__main__":
    sys.exit(min(1, main(*sys.argv[1:])))
