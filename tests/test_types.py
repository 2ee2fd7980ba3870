# SPDX-License-Identifier: BSD-3-Clause
"""The package's types, by mypy's strict rules."""

import subprocess
import sys
from pathlib import Path


def test_mypy_has_nothing_to_say():
    done = subprocess.run([sys.executable, "-m", "mypy"], cwd=Path(__file__).parents[1], capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
