# SPDX-License-Identifier: BSD-3-Clause
"""Real migrations: two QEMUs on this machine, and a guest that only writes to its memory at a known rate.

QEMU decides when to synchronise the dirty bitmap, when to throttle and when to switch over, regardless of the
accelerator. These decisions can therefore be observed without a second host and without KVM.
"""

from simlib.lab.migration.collect import MigrationResults, collect_migrations, write_migrations
from simlib.lab.migration.experiment import has_migrations, load_migrations

__all__ = ["MigrationResults", "collect_migrations", "has_migrations", "load_migrations", "write_migrations"]
