# SPDX-License-Identifier: BSD-3-Clause
"""Compile the engine ahead of the first run: ``python -m simlib.engine.compiled [plain|recorded]...``, by default both.

What is compiled is kept where Numba keeps it (``NUMBA_CACHE_DIR``), so that no later command waits for it. Runs with
records have machine code of their own. ``aside`` before these compiles only what happens seldom.
"""

import sys

import numpy as np

from simlib.engine import compiled
from simlib.engine.compiled.calendar import first_calendar
from simlib.engine.compiled.state import run_of
from simlib.model.job import Job
from simlib.model.program import Program

if __name__ == "__main__":
    program = Program()
    with program.thread():
        program.run(1000)
    none = np.zeros(1, dtype=int)
    job = Job(program.steps(), none, np.zeros((1, 2), dtype=int), none, 0, 0, 0, none)
    only_aside = sys.argv[1:2] == ["aside"]
    for kind in sys.argv[1 + only_aside :] or ("plain", "recorded"):
        records = 8 if kind == "recorded" else 0
        compiled.compile_for(run_of(job, 1, records, 0, first_calendar(1)), only_aside=only_aside)
