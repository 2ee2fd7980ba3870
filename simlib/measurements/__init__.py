# SPDX-License-Identifier: BSD-3-Clause
"""Measurements: the published tables of ``data/``, and the user's own files.

Examples
--------
>>> from simlib import measurements
>>> table = measurements.load("x86-clear-dirty-log-160-vcpus")
>>> table.select("variant == after").seconds("clear_time")
array([2.31898811, 1.79447016, 1.79166863])
"""

from simlib.measurements.condition import Clause, Condition, parse_condition
from simlib.measurements.package import assemble, data_dir, list_tables, load
from simlib.measurements.table import MeasurementTable, check, read

__all__ = [
    "Clause",
    "Condition",
    "MeasurementTable",
    "assemble",
    "check",
    "data_dir",
    "list_tables",
    "load",
    "parse_condition",
    "read",
]
