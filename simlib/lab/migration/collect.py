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
from simlib.lab.migration.linux_forecast import COLUMNS, LEVEL, SEED
from simlib.lab.migration.machine import command_line, measure_ticks
from simlib.lab.migration.run import BeforeMigration, migrate
from simlib.lab.migration.tables import TABLE_SETS
from simlib.lab.native import host_provenance
from simlib.lab.process import silent
from simlib.lab.qemu import Qemu, find_qemu, portable_command
from simlib.lab.targets import find_target
from simlib.measurements.importers.tables import Column, DescribedTable, measured_files, predicted_files


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
    migrations: Sequence[MigrationCell],
    *,
    restart: bool = False,
    progress: Progress = silent,
    before_migration: BeforeMigration | None = None,
) -> MigrationResults:
    """Run the migrations that have no result yet, one after another, because they are timed.

    A migration that fails does not stop the others. Raises `InputError` if QEMU or an assembler is missing. Raises
    `SimlibError` if the lab is already running.

    The answers of ``query-migrate`` are stored as JSON lines next to each result (``….samples.jsonl``), and the
    measurement of a Linux guest in the result.

    - `restart`: run all migrations again.
    - `before_migration`: called with the measurement of each guest before its migration starts, for example to predict
      it; the result is stored as ``prediction``.
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
                        ticks[cell.accelerator] = measure_ticks(qemu, cell.accelerator)
                    check = partial(progress, cell.label, share)
                    measured = migrate(cell, qemu, ticks[cell.accelerator], check, before_migration)
                    lines = [json.dumps(sample) for sample in measured.pop("samples", [])]
                    content = {"keys": cell.keys, "ticks_per_s": ticks[cell.accelerator], **measured}
                    write_text(path.with_suffix(".samples.jsonl"), "".join(f"{line}\n" for line in lines))
                    write_text(path, json.dumps(content) + "\n")
                collected.results.append((cell, json.loads(path.read_text("utf-8"))))
            except RunInterruptedError:
                raise
            except SimlibError as error:
                collected.failures[cell.label] = str(error)
    return collected


def write_migrations(collected: MigrationResults, folder: Path, name: str) -> list[Path]:
    """Write ``<name>-runs``, ``<name>-passes`` and, for Linux guests, ``<name>-measured`` and the predictions that were
    made before the migrations, ``<name>-forecast``, with their descriptors; on failure, write none.

    Returns: The CSV files. Raises `InputError` if the name is invalid, or the folder cannot be written. Raises
    `SimlibError` if there is nothing to write.
    """
    check_name("--name", name)
    if not collected.results:
        raise SimlibError("no migration has a result: nothing to write")
    host, first = host_provenance(), collected.results[0][0]
    command = portable_command(command_line(collected.qemu, first, "/", "unix:source.qmp,server=on,wait=off"))
    kind = TABLE_SETS[type(first.guest)]
    measurements = [result.get("measurement", {}) for _, result in collected.results]
    packages = {name: version for row in measurements for name, version in row.get("packages", {}).items()}
    setup = {"kernels": {"host": {**host, "qemu": collected.qemu.text, "command": command}}}
    about = {
        "source": {"subject": "simlib lab migrate", "author": "simlib"},
        "hardware": f"{host['cpu']}, {host['cpus']} CPUs; QEMU {collected.qemu.text}, both sides on this host",
        "command": "simlib lab migrate EXPERIMENT.toml --out DIR --name NAME",
        "setup": setup | ({"packages": packages} if packages else {}),
        "notes": [kind.note],
        "caveats": ["The guest is emulated (TCG): the times show QEMU's decisions, not waits for mmu_lock."],
    }
    names, texts = [column.name for column in kind.keys], dict[str, str]()
    for table, title, columns, extra_keys in kind.tables:
        rows = [{**cell.keys, **row} for cell, content in collected.results for row in _rows(content, table)]
        frame = pd.DataFrame(rows, columns=[*names, *(column.name for column in columns)])
        frame = frame.astype({column.name: "Int64" for column in columns if column.kind == "whole"})
        text = frame.to_csv(index=False, lineterminator="\n")
        stem, key = f"{name}-{table}", [*names, *extra_keys]
        texts |= measured_files(stem, f"{name}: one row per {title}", about, (*kind.keys, *columns), key, text)
    predictions = [{**cell.keys, **content["prediction"]} for cell, content in collected.results
                   if content.get("prediction")]  # fmt: skip
    if predictions:
        texts |= _prediction_files(predictions, kind.keys, name)
    return [path for path in write_together(folder, texts) if path.suffix == ".csv"]


def _prediction_files(predictions: list[dict[str, Any]], keys: Sequence[Column], name: str) -> dict[str, str]:
    """Return the files of the predictions that were made before the migrations began."""
    about = {
        "source": {"subject": "simlib lab migrate --predict", "author": "simlib"}, "level": LEVEL, "seeds": [SEED],
        "command": "simlib lab migrate EXPERIMENT.toml --predict --out DIR --name NAME", "answers": [f"{name}-runs"],
        "notes": [f"Each migration was predicted from its measurement ({name}-measured), before it began."],
        "caveats": ["Of this host: both sides on it."],
    }  # fmt: skip
    columns = (*keys, *COLUMNS)
    frame = pd.DataFrame(predictions, columns=[column.name for column in columns])
    title = f"{name}: real migrations of Linux guests, predicted before they began"
    key = tuple(column.name for column in keys)
    return predicted_files(DescribedTable(f"{name}-forecast", title, columns, key, frame), about, ())


def _rows(content: dict[str, Any], table: str) -> list[dict[str, Any]]:
    """Rows of a table in a result."""
    rows: list[dict[str, Any]] = content["measurement"]["readings"] if table == "measured" else content[table]
    return rows
