# SPDX-License-Identifier: BSD-3-Clause
"""Measurements: the published tables in ``data/``, the user's files, and logs imported from other tools.

>>> from simlib import measurements
>>> table = measurements.load("x86-clear-dirty-log-160-vcpus")
>>> table.select("variant == after").seconds("clear_time")
array([2.31898811, 1.79447016, 1.79166863])
"""

from simlib.measurements.condition import Clause, RowCondition, parse_condition
from simlib.measurements.importers import KINDS, Imported, import_log, import_text, write_imported
from simlib.measurements.package import as_table, assemble, data_dir, list_tables, load, update_listing
from simlib.measurements.table import MeasurementTable, check, read

__all__ = [
    "KINDS",
    "Clause",
    "Imported",
    "MeasurementTable",
    "RowCondition",
    "as_table",
    "assemble",
    "check",
    "data_dir",
    "import_log",
    "import_text",
    "list_tables",
    "load",
    "parse_condition",
    "read",
    "update_listing",
    "write_imported",
]
