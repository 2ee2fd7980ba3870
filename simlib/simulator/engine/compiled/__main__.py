# SPDX-License-Identifier: BSD-3-Clause
"""Compile the engine ahead of the first run: ``python -m simlib.simulator.engine.compiled [plain|recorded]...``.

By default both kinds are compiled.

What is compiled is kept where Numba keeps it (``NUMBA_CACHE_DIR``), so that no later command waits for it. Runs with
records have machine code of their own. ``aside`` before these compiles only what happens seldom.
"""

import sys

from simlib.simulator.engine import compiled

if __name__ == "__main__":
    only_aside = sys.argv[1:2] == ["aside"]
    for kind in sys.argv[1 + only_aside :] or ("plain", "recorded"):
        compiled.compile_ahead(recorded=kind == "recorded", only_aside=only_aside)
