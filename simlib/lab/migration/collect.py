# SPDX-License-Identifier: BSD-3-Clause
"""Runs an experiment's migrations one after another, and brings them home as tables; what was run is kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from simlib._lib.errors import RunInterruptedError, SimlibError
from simlib._lib.files import write_text, write_together
from simlib._lib.parallel import Progress
from simlib.lab.cache import at_work, lab_dir, system_faults
from simlib.lab.experiment import check_name
from simlib.lab.migration.experiment import MigrationCell
from simlib.lab.migration.guest import assembled
from simlib.lab.migration.run import GAP_S, command_line, migrate, ticks_per_s
from simlib.lab.native import host_provenance
from simlib.lab.qemu import Qemu, find_qemu, shown
from simlib.lab.targets import find_target
from simlib.measurements.importers.tables import Column, measured_files

KEYS = (
    Column("experiment", "text", "experiment in the file"),
    Column("accelerator", "text", "what ran the guest"),
    Column("repeat", "whole", "from 1"),
    Column("vcpus", "whole", "vCPUs; each writes to its own part of the working set"),
    Column("memory_bytes", "whole", "memory of the guest"),
    Column("working_set_bytes", "whole", "memory that it writes to"),
    Column("pattern", "text", "sweep: one page after the other; random: any"),
    Column("writes_per_s", "whole", "writes that were asked for, each to one page, of all vCPUs", unit="1/s"),
    Column("hot_set_bytes", "whole", "part of the working set that is hot"),
    Column("hot_percent", "whole", "writes that go there"),
    Column("settings", "text", "QEMU's parameters and capabilities"),
    Column("postcopy_after_s", "number", "when postcopy was asked for; 0: never"),
    Column("limit_s", "number", "when the migration was given up"),
)
"""What tells a migration from others."""

RUNS = (
    Column("outcome", "text", "completed or gave_up"),
    Column("measured_writes_per_s", "number", "writes of the guest in the second before", unit="1/s"),
    Column("synchronisations", "whole", "ram.dirty-sync-count at the end"),
    Column("throttle_percent", "whole", "highest cpu-throttle-percentage"),
    Column("setup_ms", "whole", "setup-time"),
    Column("total_ms", "whole", "total-time"),
    Column("downtime_ms", "whole", "downtime, as the source says"),
    Column("blackout_ms", "number", "from the source's STOP to the destination's RESUME"),
    Column("longest_gap_ms", "number", "longest time in which a vCPU did not write, blackout_ms included"),
    Column("gaps", "whole", f"times of {GAP_S * 1e3:.0f} ms and longer in which a vCPU did not write"),
    Column("guest_ratio", "number", "writes during the migration, over those of the same time before it"),
    Column("transferred_bytes", "whole", "ram.transferred"),
    Column("precopy_bytes", "whole", "ram.precopy-bytes"),
    Column("downtime_bytes", "whole", "ram.downtime-bytes"),
    Column("postcopy_bytes", "whole", "ram.postcopy-bytes"),
    Column("postcopy_requests", "whole", "ram.postcopy-requests"),
    Column("normal_pages", "whole", "ram.normal: pages sent whole"),
    Column("zero_pages", "whole", "ram.duplicate: pages sent as zeros"),
    Column("throughput_mbit_per_s", "number", "ram.mbps at the end"),
    Column("dirty_pages_per_s", "whole", "ram.dirty-pages-rate at the end", unit="1/s"),
)

PASSES = (
    Column("pass", "whole", "ram.dirty-sync-count: from one synchronisation to the next"),
    Column("began_s", "number", "its synchronisation, since the migration began", optional=True),
    Column("seen_s", "number", "when it was first seen; the others are of its last sight", optional=True),
    Column("throttle_percent", "whole", "cpu-throttle-percentage", optional=True),
    Column("transferred_bytes", "whole", "ram.transferred", optional=True),
    Column("remaining_bytes", "whole", "ram.remaining", optional=True),
    Column("dirty_pages_per_s", "whole", "ram.dirty-pages-rate", unit="1/s", optional=True),
)


@dataclass(frozen=True)
class Migrated:
    """What a file's migrations gave."""

    qemu: Qemu
    found: list[tuple[MigrationCell, dict[str, Any]]]
    """In the order of the file, without those that failed."""
    failures: dict[str, str]
    """Label of each that failed, with the reason."""

    def frame(self) -> pd.DataFrame:
        """One row a migration."""
        return pd.DataFrame([{**one.keys, **content["runs"][0]} for one, content in self.found])

    def readable(self) -> pd.DataFrame:
        """Of each migration what a reader asks first."""
        return self.frame()[["experiment", "settings", "outcome", "throttle_percent", "total_ms", "longest_gap_ms"]]


def collect_migrations(
    migrations: Sequence[MigrationCell], *, restart: bool = False, progress: Progress = lambda label, share: None
) -> Migrated:
    """Run every migration that has no result yet: one at a time, as they are timed.

    Returns: Those that fail do not stop the others. Raises `InputError` if QEMU or an assembler is missing. Raises
    `SimlibError` if the lab is at work already.

    - `restart`: run them again even if their results are there.
    - `progress`: told the label of the one that runs and the share that is done.
    """
    qemu = find_qemu(find_target("x86_64"))
    ticks, outcome = dict[str, float](), Migrated(qemu, [], {})
    with at_work(alone=True), system_faults():
        assembled()  # or nothing begins
        for number, one in enumerate(migrations):
            share = number / len(migrations)
            progress(one.label, share)
            path = lab_dir() / "results" / one.experiment / f"{one.key(qemu.text)}.json"
            try:
                if restart or not path.is_file():
                    if one.accelerator not in ticks:
                        ticks[one.accelerator] = ticks_per_s(qemu, one.accelerator)
                    found = migrate(one, qemu, ticks[one.accelerator], partial(progress, one.label, share))
                    content = {"keys": one.keys, "ticks_per_s": ticks[one.accelerator], **found}
                    write_text(path, json.dumps(content) + "\n")
                outcome.found.append((one, json.loads(path.read_text("utf-8"))))
            except RunInterruptedError:
                raise
            except SimlibError as error:
                outcome.failures[one.label] = str(error)
    return outcome


def write_migrations(collected: Migrated, folder: Path, name: str) -> list[Path]:
    """Write the tables with their descriptors, all of them or none.

    Returns: The CSV files. Raises `InputError` if the name is unfit, or the folder cannot be written. Raises
    `SimlibError` if there is nothing to write.

    - `name`: first part of the tables' names: ``<name>-runs`` and ``<name>-passes``.
    """
    check_name("--name", name)
    if not collected.found:
        raise SimlibError("no migration gave a result: nothing is written")
    host, first = host_provenance(), collected.found[0][0]
    command = shown(command_line(collected.qemu, first, "guest.bin", "unix:source.qmp,server=on,wait=off"))
    about = {
        "source": {"subject": "simlib lab migrate", "author": "simlib"},
        "hardware": f"{host['cpu']}, {host['cpus']} CPUs; QEMU {collected.qemu.text}, both sides on this host",
        "command": "simlib lab migrate EXPERIMENT.toml --out DIR --name NAME",
        "setup": {"kernels": {"host": {**host, "qemu": collected.qemu.text, "command": command}}},
        "notes": ["The guest is simlib/lab/migration/guest.S: nothing but writes at a known rate."],
        "caveats": ["The guest is emulated (TCG), so KVM's lock is not in these times; QEMU's decisions are."],
    }
    names, texts = [column.name for column in KEYS], dict[str, str]()
    for table, title, columns, more in (("runs", "migration", RUNS, []), ("passes", "pass", PASSES, ["pass"])):
        found = [{**one.keys, **row} for one, content in collected.found for row in content[table]]
        frame = pd.DataFrame(found, columns=[*names, *(column.name for column in columns)])
        frame = frame.astype({column.name: "Int64" for column in columns if column.kind == "whole"})
        text = frame.to_csv(index=False, lineterminator="\n")
        texts |= measured_files(
            f"{name}-{table}", f"{name}: one row a {title}", about, (*KEYS, *columns), [*names, *more], text
        )
    return [path for path in write_together(folder, texts) if path.suffix == ".csv"]
