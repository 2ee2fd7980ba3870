# SPDX-License-Identifier: BSD-3-Clause
"""Builds, boots and runs the patched kernels, and brings the data home.

The lab knows nothing of the model: it turns an experiment file into tables of
counts and times, from QEMU's deterministic clock or from this host's own
``/dev/kvm``. ``docs/lab.md`` says what its numbers mean and what they do not.
"""

from simlib.lab.build import build
from simlib.lab.collect import Collected, collect, collect_native
from simlib.lab.experiment import check_name, load_experiment
from simlib.lab.findings import check_host
from simlib.lab.migration import (
    Migrated,
    collect_migrations,
    has_migrations,
    load_migrations,
    write_migrations,
)
from simlib.lab.qemu import fetch_qemu, needs_qemu
from simlib.lab.records import tables, write_tables
from simlib.lab.series_check import check_series
from simlib.lab.targets import TARGETS, Target, find_target
from simlib.lab.trial import Bisection, FailRule, Trial, bisect_series, load_trial, try_each_patch, try_series

__all__ = [
    "TARGETS",
    "Bisection",
    "Collected",
    "FailRule",
    "Migrated",
    "Target",
    "Trial",
    "bisect_series",
    "build",
    "check_host",
    "check_name",
    "check_series",
    "collect",
    "collect_migrations",
    "collect_native",
    "fetch_qemu",
    "find_target",
    "has_migrations",
    "load_experiment",
    "load_migrations",
    "load_trial",
    "needs_qemu",
    "tables",
    "try_each_patch",
    "try_series",
    "write_migrations",
    "write_tables",
]
