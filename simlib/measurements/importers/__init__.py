# SPDX-License-Identifier: BSD-3-Clause
"""Importers: logs of other tools become tidy tables with descriptors.

There is one module per format; `KINDS` lists them, and ``tests/measurements/samples`` has a sample of each.

>>> from simlib.measurements import importers
>>> imported = importers.import_text("kvm-stats", "mmu_lock_clear_write_acquired: 96\\n")
>>> imported.main.frame.loc[0, "acquired"]
np.int64(96)
"""

from simlib.measurements.importers.kinds import KINDS, import_log, import_text, sniff
from simlib.measurements.importers.tables import Imported, write_imported

__all__ = ["KINDS", "Imported", "import_log", "import_text", "sniff", "write_imported"]
