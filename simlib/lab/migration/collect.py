# SPDX-License-Identifier: BSD-3-Clause
"""Run an experiment's migrations one after another, save their results, and write them as tables."""

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
from simlib.lab.cache import lab_dir, lab_lock, translate_os_errors
from simlib.lab.experiment import check_name
from simlib.lab.migration.experiment import MigrationCell
from simlib.lab.migration.guest import assembled
from simlib.lab.migration.run import GAP_S, command_line, migrate, ticks_per_s
from simlib.lab.native import host_provenance
from simlib.lab.process import silent
from simlib.lab.qemu import Qemu, find_qemu, portable_command
from simlib.lab.targets import find_target
from simlib.measurements.importers.tables import Column, measured_files

KEYS = (
    Column("experiment", "text", "name of the experiment in the file"),
    Column("accelerator", "text", "accelerator that ran the guest"),
    Column("repeat", "whole", "number of the repeat, from 1"),
    Column("vcpus", "whole", "number of vCPUs; each writes to its own part of the working set"),
    Column("memory_bytes", "whole", "memory of the guest"),
    Column("working_set_bytes", "whole", "memory to which the guest writes"),
    Column("pattern", "text", "sweep: one page after the other; random: any page"),
    Column("writes_per_s", "whole", "requested rate of writes, each to one page, total of all vCPUs", unit="1/s"),
    Column("hot_set_bytes", "whole", "hot part of the working set"),
    Column("hot_percent", "whole", "share of the writes that go to the hot part"),
    Column("settings", "text", "QEMU's parameters and capabilities"),
    Column("postcopy_after_s", "number", "time at which postcopy was requested; 0: never"),
    Column("limit_s", "number", "time after which the migration is given up"),
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


@dataclass(frozen=True)
class MigrationResults:
    """Results of a file's migrations."""

    qemu: Qemu
    results: list[tuple[MigrationCell, dict[str, Any]]]
    """Migrations and their results in the order of the file, without those that failed."""
    failures: dict[str, str]
    """Reason for each failure, by the migration's label."""

    def frame(self) -> pd.DataFrame:
        """Table with one row per migration."""
        return pd.DataFrame([{**cell.keys, **content["runs"][0]} for cell, content in self.results])

    def readable(self) -> pd.DataFrame:
        """Table with the main results of each migration."""
        return self.frame()[["experiment", "settings", "outcome", "throttle_percent", "total_ms", "longest_gap_ms"]]


def collect_migrations(
    migrations: Sequence[MigrationCell], *, restart: bool = False, progress: Progress = silent
) -> MigrationResults:
    """Run the migrations that have no result yet, one after another, because they are timed.

    A migration that fails does not stop the others. Raises `InputError` if QEMU or an assembler is missing. Raises
    `SimlibError` if the lab is already running.

    - `restart`: run all migrations again.
    """
    qemu = find_qemu(find_target("x86_64"))
    ticks, collected = dict[str, float](), MigrationResults(qemu, [], {})
    with lab_lock(exclusive=True), translate_os_errors():
        assembled()  # fail before the first migration
        for number, cell in enumerate(migrations):
            share = number / len(migrations)
            progress(cell.label, share)
            path = lab_dir() / "results" / cell.experiment / f"{cell.key(qemu.text)}.json"
            try:
                if restart or not path.is_file():
                    if cell.accelerator not in ticks:
                        ticks[cell.accelerator] = ticks_per_s(qemu, cell.accelerator)
                    measured = migrate(cell, qemu, ticks[cell.accelerator], partial(progress, cell.label, share))
                    content = {"keys": cell.keys, "ticks_per_s": ticks[cell.accelerator], **measured}
                    write_text(path, json.dumps(content) + "\n")
                collected.results.append((cell, json.loads(path.read_text("utf-8"))))
            except RunInterruptedError:
                raise
            except SimlibError as error:
                collected.failures[cell.label] = str(error)
    return collected


def write_migrations(collected: MigrationResults, folder: Path, name: str) -> list[Path]:
    """Write ``<name>-runs`` and ``<name>-passes`` with their descriptors; on failure, write none.

    Returns: The CSV files. Raises `InputError` if the name is invalid, or the folder cannot be written. Raises
    `SimlibError` if there is nothing to write.
    """
    check_name("--name", name)
    if not collected.results:
        raise SimlibError("no migration has a result: nothing to write")
    host, first = host_provenance(), collected.results[0][0]
    command = portable_command(command_line(collected.qemu, first, "guest.bin", "unix:source.qmp,server=on,wait=off"))
    about = {
        "source": {"subject": "simlib lab migrate", "author": "simlib"},
        "hardware": f"{host['cpu']}, {host['cpus']} CPUs; QEMU {collected.qemu.text}, both sides on this host",
        "command": "simlib lab migrate EXPERIMENT.toml --out DIR --name NAME",
        "setup": {"kernels": {"host": {**host, "qemu": collected.qemu.text, "command": command}}},
        "notes": ["The guest is simlib/lab/migration/guest.S, which only writes to memory at a known rate."],
        "caveats": ["The guest is emulated (TCG): the times show QEMU's decisions, not waits for mmu_lock."],
    }
    names, texts = [column.name for column in KEYS], dict[str, str]()
    for table, title, columns, extra_keys in (("runs", "migration", RUNS, []), ("passes", "pass", PASSES, ["pass"])):
        rows = [{**cell.keys, **row} for cell, content in collected.results for row in content[table]]
        frame = pd.DataFrame(rows, columns=[*names, *(column.name for column in columns)])
        frame = frame.astype({column.name: "Int64" for column in columns if column.kind == "whole"})
        text = frame.to_csv(index=False, lineterminator="\n")
        stem, key = f"{name}-{table}", [*names, *extra_keys]
        texts |= measured_files(stem, f"{name}: one row per {title}", about, (*KEYS, *columns), key, text)
    return [path for path in write_together(folder, texts) if path.suffix == ".csv"]
