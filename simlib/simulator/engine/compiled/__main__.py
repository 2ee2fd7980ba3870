# SPDX-License-Identifier: BSD-3-Clause
"""Compile the engine ahead of the first run: ``python -m simlib.simulator.engine.compiled [plain|recorded]...``.

By default, the engine is compiled for both kinds of runs.

Numba caches the machine code (``NUMBA_CACHE_DIR``), so that later commands need not compile it. Runs with records have
separate machine code. With ``slow_path`` before the kinds, only the slow path is compiled; with ``advance`` alone, the
rest of the engine for runs without records.
"""

import sys

from simlib.simulator.engine import compiled

if __name__ == "__main__":
    part, *kinds = sys.argv[1:] or [""]
    if part == "advance":
        compiled.compile_advance()
    else:
        slow_path_only = part == "slow_path"
        for kind in kinds if slow_path_only else sys.argv[1:] or ("plain", "recorded"):
            compiled.compile_ahead(recorded=kind == "recorded", slow_path_only=slow_path_only)
