# SPDX-License-Identifier: BSD-3-Clause
"""Files of the lab's tables: CSV and descriptors, which say how the records were measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simlib._lib.errors import SimlibError
from simlib._lib.files import write_together
from simlib.lab.cache import translate_os_errors
from simlib.lab.experiment import check_name
from simlib.lab.record_tables import TABLES, emulated_per_access, tables
from simlib.lab.records import KEYS, Record
from simlib.measurements.importers.tables import measured_files


@translate_os_errors()
def write_tables(records: Sequence[Record], folder: Path, name: str) -> list[Path]:
    """Write the tables of records with their descriptors: all of them, or none if one fails.

    Returns: the paths of the CSV files. Raises `InputError` if the name is unfit, or the folder cannot be written.
    Raises `SimlibError` if there is no record, or two records have the same key.

    - `name`: first part of the tables' names: ``<name>-runs`` and so on.
    """
    check_name("--name", name)
    if not records:
        raise SimlibError("no cell gave a result: nothing is written")
    first: dict[str, Record] = {}
    for record in records:
        other = first.setdefault(json.dumps(record.keys), record)
        if other is not record:
            raise SimlibError(
                f"'{other.label}' and '{record.label}' have the same key in the tables, so nothing is written: put "
                "them into separate experiments"
            )
    frames, texts = tables(records), dict[str, str]()
    provenance = records[0].content["provenance"]
    native = "cpu" in provenance
    caveats = [] if native else ["Emulated: no caches, no line transfers, no IPI cost."]
    if native and any(emulated_per_access(record) > 1 for record in records):
        caveats = ["This KVM emulated the guest's instructions one by one: take times of GET and CLEAR only."]
    about = {
        "source": {"subject": f"simlib {'host measure' if native else 'lab collect'}", "author": "simlib"},
        "hardware": (
            f"{provenance['cpu']}, {provenance['cpus']} CPUs, Linux {provenance['kernel']}"
            if native
            else f"QEMU {provenance['qemu']}, TCG, one thread, icount: one instruction a nanosecond"
        ),
        "command": records[0].content["command"],
        "setup": _setup(records),
        "notes": list(_NATIVE_NOTES if native else _NOTES),
        "caveats": caveats,
    }
    for table, (title, columns, key, _) in TABLES.items():
        if len(frames[table]):
            keys = [*(column.name for column in KEYS), *key]
            text = frames[table].to_csv(index=False, lineterminator="\n")
            texts |= measured_files(f"{name}-{table}", f"{name}: {title}", about, (*KEYS, *columns), keys, text)
    written = write_together(folder, texts)
    for stale in {f"{name}-{table}{suffix}" for table in TABLES for suffix in (".csv", ".json")} - texts.keys():
        (folder / stale).unlink(missing_ok=True)  # tables of an earlier collection must not remain with the new ones
    return [path for path in written if path.suffix == ".csv"]


_NOTES = (
    "Repeat it: simlib lab collect on the experiment file of this name; docs/lab.md.",
    "Times are instructions: 1 ns each, summed over all CPUs.",
)
_NATIVE_NOTES = ("Repeat it: simlib host measure; docs/on-a-real-host.md.", "Times are a host's own.")


def _setup(records: Sequence[Record]) -> dict[str, Any]:
    """Source, patches, configuration and command of each kernel, for the descriptors."""
    kernels: dict[str, dict[str, Any]] = {}
    for record in records:
        keys = record.keys
        name = f"{keys['architecture']}-{keys['mode']}-{keys['kernel']}"
        kernels.setdefault(name, {**record.content["provenance"], "command": record.content["command"]})
    return {"kernels": kernels}
