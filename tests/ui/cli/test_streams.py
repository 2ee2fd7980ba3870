# SPDX-License-Identifier: BSD-3-Clause
"""Standard streams that are closed, full or nobody's: a result or a sentence, never a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).with_name("simlib")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("policies >&-", 0),
        ("--help >&-", 0),
        ("simulate missing.toml 2>&-", 2),
        ("data import lock-stat - <&-", 2),
        ("--version >/dev/full", 1),
        ("policies <&- >&- 2>&-", 0),
    ],
)
def test_a_stream_that_is_closed_or_full_ends_nothing_with_a_traceback(tmp_path, words, code):
    done = subprocess.run(f"{COMMAND} {words}", shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)  # noqa: S602  # the shell closes them
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("simlib: ") or not code or "2>&-" in words
