# SPDX-License-Identifier: BSD-3-Clause
"""Tables of real migrations: the columns of each, for guests that only write and for Linux guests."""

from __future__ import annotations

from typing import NamedTuple

from simlib.lab.migration.guest import GAP_S, WriteWorkload
from simlib.lab.migration.linux import LinuxGuest
from simlib.lab.migration.measurement import READINGS
from simlib.lab.migration.progress import MigratedGuest
from simlib.measurements.importers.tables import Column

_MATRIX = (
    Column("experiment", "text", "name of the experiment in the file"),
    Column("accelerator", "text", "accelerator that ran the guest"),
    Column("repeat", "whole", "number of the repeat, from 1"),
)
_MEMORY = Column("memory_bytes", "whole", "memory of the guest")
_SETTINGS = (
    Column("settings", "text", "QEMU's parameters and capabilities"),
    Column("postcopy_after_s", "number", "time at which postcopy was requested; 0: never"),
    Column("limit_s", "number", "time after which the migration is given up"),
)

KEYS = (
    *_MATRIX,
    Column("vcpus", "whole", "number of vCPUs; each writes to its own part of the working set"),
    _MEMORY,
    Column("working_set_bytes", "whole", "memory to which the guest writes"),
    Column("pattern", "text", "sweep: one page after the other; random: any page"),
    Column("writes_per_s", "whole", "requested rate of writes, each to one page, total of all vCPUs", unit="1/s"),
    Column("hot_set_bytes", "whole", "hot part of the working set"),
    Column("hot_percent", "whole", "share of the writes that go to the hot part"),
    *_SETTINGS,
)

LINUX_KEYS = (
    *_MATRIX,
    Column("vcpus", "whole", "number of vCPUs"),
    _MEMORY,
    Column("workload", "text", "workload of the guest: a name of simlib/lab/migration/workloads.py"),
    Column("parameters", "text", "keys of the workload with their values; sizes in bytes"),
    *_SETTINGS,
)

RUNS = (
    Column("outcome", "text", "completed or gave_up"),
    Column("measured_writes_per_s", "number", "rate of writes in the second before the migration", unit="1/s"),
    Column("synchronisations", "whole", "ram.dirty-sync-count at the end"),
    Column("throttle_percent", "whole", "highest cpu-throttle-percentage"),
    Column("setup_ms", "whole", "setup-time"),
    Column("total_ms", "whole", "total-time"),
    Column("downtime_ms", "whole", "downtime, as the source reports it"),
    Column("blackout_ms", "number", "time from the source's STOP event to the destination's RESUME event"),
    Column("longest_gap_ms", "number", "longest gap between two writes of a vCPU, or blackout_ms if it is longer"),
    Column("gaps", "whole", f"number of gaps of {GAP_S * 1e3:.0f} ms or longer between two writes of a vCPU"),
    Column("guest_ratio", "number", "ratio of the writes in the migration to those expected at measured_writes_per_s"),
    Column("transferred_bytes", "whole", "ram.transferred"),
    Column("precopy_bytes", "whole", "ram.precopy-bytes"),
    Column("downtime_bytes", "whole", "ram.downtime-bytes"),
    Column("postcopy_bytes", "whole", "ram.postcopy-bytes"),
    Column("postcopy_requests", "whole", "ram.postcopy-requests"),
    Column("normal_pages", "whole", "ram.normal: pages sent with their content"),
    Column("zero_pages", "whole", "ram.duplicate: zero pages"),
    Column("throughput_mbit_per_s", "number", "ram.mbps at the end"),
    Column("dirty_pages_per_s", "whole", "ram.dirty-pages-rate at the end", unit="1/s"),
)

PASSES = (
    Column("pass", "whole", "number of the pass: ram.dirty-sync-count"),
    Column("began_s", "number", "time of its first synchronisation since the migration started", optional=True),
    Column("seen_s", "number", "time of its first sample; later columns are from its last sample", optional=True),
    Column("throttle_percent", "whole", "cpu-throttle-percentage", optional=True),
    Column("transferred_bytes", "whole", "ram.transferred", optional=True),
    Column("remaining_bytes", "whole", "ram.remaining", optional=True),
    Column("dirty_pages_per_s", "whole", "ram.dirty-pages-rate", unit="1/s", optional=True),
)

_LINUX_MEANINGS = {
    "measured_writes_per_s": "rate of the workload's operations, as measured before the migration",
    "longest_gap_ms": "longest delay of a vCPU's timer thread, or blackout_ms if it is longer",
    "gaps": f"number of delays of {GAP_S * 1e3:.0f} ms or longer of a vCPU's timer thread",
    "guest_ratio": "ratio of the operations in the migration to those expected at measured_writes_per_s",
}
LINUX_RUNS = (
    *(Column(c.name, c.kind, _LINUX_MEANINGS.get(c.name, c.description), c.optional, c.unit) for c in RUNS),
    Column("slow_percent", "number", "share of the migration with less than half of the operations before it"),
    Column("other_cpu_percent", "number", "CPU time of this machine apart from both QEMUs' and the lab's, of one CPU"),
)


class MigrationTable(NamedTuple):
    """Table of migrations.

    - `name`: suffix of its name, and key of its rows in a result. `title`: a row's subject. `columns`: after the keys.
    - `extra_keys`: columns that identify a row in addition to the keys.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    extra_keys: tuple[str, ...] = ()


class TableSet(NamedTuple):
    """Tables of one kind of guest, its keys, and a note on the guest."""

    keys: tuple[Column, ...]
    tables: tuple[MigrationTable, ...]
    note: str


_PASSES = MigrationTable("passes", "pass", PASSES, ("pass",))
TABLE_SETS: dict[type[MigratedGuest], TableSet] = {
    WriteWorkload: TableSet(
        KEYS,
        (MigrationTable("runs", "migration", RUNS), _PASSES),
        "The guest is simlib/lab/migration/guest.S, which only writes to memory at a known rate.",
    ),
    LinuxGuest: TableSet(
        LINUX_KEYS,
        (
            MigrationTable("runs", "migration", LINUX_RUNS),
            _PASSES,
            MigrationTable("measured", "measurement of a dirty rate", READINGS, ("reading",)),
        ),
        "The guest is a Debian kernel with simlib/lab/migration/workload.c as its init.",
    ),
}
"""Tables by the class of the guest."""
