# SPDX-License-Identifier: BSD-3-Clause
"""Real migrations: two QEMUs on this machine, and a guest that does nothing but write to its memory at a known rate.

QEMU decides when to look at the dirty bitmap, when to throttle and when to switch over, whatever runs the guest. So
these decisions can be seen without a second host and without KVM.
"""

from simlib.lab.migration.collect import Migrated, collect_migrations, write_migrations
from simlib.lab.migration.experiment import has_migrations, load_migrations

__all__ = ["Migrated", "collect_migrations", "has_migrations", "load_migrations", "write_migrations"]
