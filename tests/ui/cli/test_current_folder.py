# SPDX-License-Identifier: BSD-3-Clause
"""The folder in which a command is started: nothing in it is executed, nor taken for anybody's configuration."""

import subprocess
import sys
from pathlib import Path

COMMAND = Path(sys.executable).with_name("simlib")
MODULES = ("multiprocessing", "signal", "random", "warnings", "numba", "numpy", "simlib", "yaml")
"""Names of some that every process of Python imports, or those that a sweep starts."""

GRID = """
unknown_costs = "median"
scenario.guest.memory = "4M"
axes.guest.vcpus = [1, 2]
replications.most = 3
"""


def test_no_module_and_no_configuration_of_it_is_taken(tmp_path):
    for name in MODULES:
        (tmp_path / f"{name}.py").write_text(f"open('{name}-ran', 'w')\nraise SystemExit(9)\n")
    (tmp_path / ".numba_config.yaml").write_text("a: [")  # whoever reads it ends with a traceback
    (tmp_path / "grid.toml").write_text(GRID)
    words = ("sweep", "grid.toml", "--out", "swept", "--workers", "1")
    done = subprocess.run([COMMAND, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, list(tmp_path.glob("*-ran"))) == (0, []), done.stderr
    assert "Traceback" not in done.stderr


def test_one_that_is_gone_is_named(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    (tmp_path / "grid.toml").write_text(GRID)
    remove_and_run = "import os, sys; os.rmdir(os.getcwd()); os.execv(sys.argv[1], sys.argv[1:])"
    words = ("sweep", tmp_path / "grid.toml", "--out", tmp_path / "swept", "--workers", "1")
    done = subprocess.run([sys.executable, "-c", remove_and_run, COMMAND, *words], cwd=gone, capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("simlib: workers = 1: the processes cannot be started (No such file or directory)")
    assert not (tmp_path / "swept" / "results").exists()
