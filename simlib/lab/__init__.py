# SPDX-License-Identifier: BSD-3-Clause
"""Build and boot patched kernels, run tests on them, and collect counts and times in tables.

These functions do not use the model: they turn an experiment file into tables of counts and times, measured with QEMU's
deterministic clock or on this host's ``/dev/kvm``. ``docs/lab.md`` explains the numbers and their limits.
"""

from simlib.lab.build import build
from simlib.lab.collect import Collected, collect, collect_native
from simlib.lab.experiment import check_name, load_experiment
from simlib.lab.findings import check_host
from simlib.lab.migration.collect import MigrationResults, collect_migrations, write_migrations
from simlib.lab.migration.experiment import has_migrations, load_migrations
from simlib.lab.migration.linux_forecast import predict_linux
from simlib.lab.qemu import fetch_qemu, needs_qemu
from simlib.lab.record_tables import tables, write_tables
from simlib.lab.targets import TARGETS, Target, find_target
from simlib.lab.trial.bisect import Bisection, bisect_series
from simlib.lab.trial.mode_trial import TrialOptions
from simlib.lab.trial.result import Trial, load_trial
from simlib.lab.trial.rule import FailRule
from simlib.lab.trial.run import try_each_patch, try_series

__all__ = [
    "TARGETS",
    "Bisection",
    "Collected",
    "FailRule",
    "MigrationResults",
    "Target",
    "Trial",
    "TrialOptions",
    "bisect_series",
    "build",
    "check_host",
    "check_name",
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
    "predict_linux",
    "tables",
    "try_each_patch",
    "try_series",
    "write_migrations",
    "write_tables",
]
