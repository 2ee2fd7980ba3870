# SPDX-License-Identifier: BSD-3-Clause
"""Check the size of the wheel and its commands in an environment without other packages.

    python checks/wheel.py FOLDER

(`make wheel`) builds the wheel, installs it with the pins of requirements/run.txt, and runs commands outside the source
tree. A command that needs an extra, or a checkout of the repository, must name it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]

MOST_MB = 620
"""Largest size of an environment with the wheel, 10⁶ bytes on the disk."""

MOST_WHEEL_MB = 3.0
"""Largest size of the wheel, 10⁶ bytes."""

SMALL = """
[guest]
vcpus = 2
memory = "8M"

[workload]
kind = "migration"
pass_limit = 2
downtime = "0s"
"""

COMMANDS = (
    ("--version",),
    ("policies",),
    ("data", "list"),
    ("data", "show", "arm64-dirty-memory-time"),
    ("simulate", "small.toml"),
    ("predict", "small.toml", "--vcpus", "1,2"),
    ("compare", "small.toml", "baseline", "every-64", "--vcpus", "2"),
    ("choose", "small.toml", "--strategy", "baseline", "--strategy", "every-64", "--plot", "page.html"),
    ("choose-batch", "small.toml"),
    ("migrate", "--vcpus", "4", "--memory", "8G", "--link", "10Gbit/s", "--dirty", "1000/s over 1G", "--draws", "4"),
    ("lab", "costs"),
    ("lab", "check"),
)

REFUSED = {
    ("sweep", "small.toml", "--out", "out"): (1, "pip install 'simlib[sweep]'"),
    ("explore",): (1, "pip install 'simlib[notebook]'"),
    ("reproduce",): (1, "needs a checkout"),
    ("lab", "costs", "--out", "fits"): (1, "needs a checkout"),
    ("data", "show", "load-ioctls"): (2, "use a checkout"),  # the name of the table is the invalid input
}
"""Commands that must end with an exit status, and with a text."""


def size_of(folder: Path) -> float:
    """Size of all files, 10⁶ bytes on the disk; a file with several names is counted once."""
    blocks = {stat.st_ino: stat.st_blocks for path in folder.rglob("*") if (stat := path.lstat())}
    return sum(blocks.values()) * 512 / 1e6


def install(folder: Path) -> Path:
    """Build the wheel, install it in a new environment and return its Python."""
    shutil.rmtree(folder, ignore_errors=True)
    python = folder / "venv" / "bin" / "python"
    pip = (str(python), "-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check")
    build = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "wheel"))
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    subprocess.run((sys.executable, "-m", "venv", str(folder / "venv")), check=True)
    empty, start = size_of(folder / "venv"), time.monotonic()
    pins = str(ROOT / "requirements" / "run.txt")
    subprocess.run((*pip, "install", "--no-compile", "--require-hashes", "-r", pins), check=True)
    [wheel] = (folder / "wheel").glob("*.whl")
    megabytes = wheel.stat().st_size / 1e6
    print(f"the wheel has {megabytes:.2f} MB")
    if megabytes > MOST_WHEEL_MB:
        raise SystemExit(f"the wheel has {megabytes:.2f} MB, more than {MOST_WHEEL_MB}")
    subprocess.run((*pip, "install", "--no-compile", "--no-deps", str(wheel)), check=True)
    size = size_of(folder / "venv") - empty
    print(f"installed in {time.monotonic() - start:.0f} s: {size:.0f} MB")
    if size > MOST_MB:
        raise SystemExit(f"the installed packages have {size:.0f} MB, more than {MOST_MB}")
    return python


def main(folder: Path) -> None:
    """Install the wheel, and run every command."""
    python, place = install(folder), folder / "place"
    place.mkdir()
    (place / "small.toml").write_text(SMALL, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for arguments in (*COMMANDS, *REFUSED):
        done = subprocess.run((str(python), "-P", "-m", "simlib", *arguments), cwd=place, env=environment, check=False,
                              capture_output=True, text=True)  # fmt: skip
        status, need = REFUSED.get(arguments, (0, ""))
        if done.returncode != status or need not in done.stderr or "Traceback" in done.stderr:
            raise SystemExit(f"simlib {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        print(f"simlib {' '.join(arguments)}: {f'refused: {need}' if need else 'runs'}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
