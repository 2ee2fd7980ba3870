# SPDX-License-Identifier: BSD-3-Clause
"""Compile the engine ahead of the first run: ``python -m simlib.engine.compiled [plain|recorded]...``, by default both.

What is compiled is kept where Numba keeps it (``NUMBA_CACHE_DIR``), so that no later command waits for it. Runs with
records have machine code of their own.
"""

import sys

import numpy as np

from simlib.engine import compiled
from simlib.model.job import Job
from simlib.model.program import Program

if __name__ == "__main__":
    program = Program()
    with program.thread():
        program.run(1000)
    none = np.zeros(1, dtype=int)
    job = Job(program.steps(), none, np.zeros((1, 2), dtype=int), none, 0, 0, 0, none)
    for kind in sys.argv[1:] or ("plain", "recorded"):
        compiled.run(job, trace=8 if kind == "recorded" else 0)
